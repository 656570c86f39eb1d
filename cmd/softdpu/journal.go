package main

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// A journalHandler logs to systemd's journal. The message is a line for people; beside it every
// attribute is a field of its own, SOFTDPU_ and its key in capitals, for `journalctl SOFTDPU_PORT=lan0`.
type journalHandler struct {
	level slog.Leveler
	send  func(message string, priority journal.Priority, fields map[string]string) error
	attrs []slog.Attr // their keys with the groups that they are in
	group string      // before the keys of attributes to come, with the dot behind it
}

// Enabled implements slog.Handler.
func (h *journalHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// Handle implements slog.Handler.
func (h *journalHandler) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = flatten(attrs, h.group, a)
		return true
	})
	var line strings.Builder
	line.WriteString(r.Message)
	fields := map[string]string{"SYSLOG_IDENTIFIER": "softdpu"}
	for _, a := range attrs {
		value := a.Value.String()
		fields["SOFTDPU_"+fieldName(a.Key)] = value
		line.WriteString(" " + a.Key + "=" + quoted(value))
	}
	return h.send(line.String(), priorityOf(r.Level), fields)
}

// WithAttrs implements slog.Handler.
func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		with.attrs = flatten(with.attrs, h.group, a)
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *journalHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.group += name + "."
	return &with
}

// flatten appends the attribute, or those of the group that it is.
func flatten(to []slog.Attr, group string, a slog.Attr) []slog.Attr {
	a.Value = a.Value.Resolve()
	if a.Value.Kind() != slog.KindGroup {
		if a.Equal(slog.Attr{}) {
			return to
		}
		return append(to, slog.Attr{Key: group + a.Key, Value: a.Value})
	}
	if a.Key != "" {
		group += a.Key + "."
	}
	for _, inner := range a.Value.Group() {
		to = flatten(to, group, inner)
	}
	return to
}

// fieldName leaves what the journal takes in the name of a field.
func fieldName(key string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, key)
}

// quoted is the value as slog writes it.
func quoted(value string) string {
	if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || !strconv.IsPrint(r) }) {
		return strconv.Quote(value)
	}
	return value
}

func priorityOf(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}
