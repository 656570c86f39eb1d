package main

import (
	"log/slog"
	"os"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/spf13/cobra"
)

// logFlags say how a daemon logs to the error output.
type logFlags struct {
	format choice
	level  choice
}

func addLogFlags(cmd *cobra.Command) *logFlags {
	f := &logFlags{
		format: choice{value: "auto", of: []string{"auto", "text", "json"}},
		level:  choice{value: "info", of: []string{"debug", "info", "warn", "error"}},
	}
	f.format.addTo(cmd, "log-format", "how to log: text or json, or auto: to the journal with fields where the error output leads there, else text")
	f.level.addTo(cmd, "log-level", "the least that is logged: debug, info, warn or error")
	return f
}

// logger returns what to log with, and whether that is the journal, whose lines have no other way
// beside them.
func (f *logFlags) logger(env *Env) (log *slog.Logger, toJournal bool) {
	var level slog.Level
	// The flag takes levels only, so this cannot fail.
	_ = level.UnmarshalText([]byte(f.level.value))
	options := &slog.HandlerOptions{Level: level}
	switch {
	case f.format.value == "json":
		return slog.New(slog.NewJSONHandler(env.Stderr, options)), false
	case f.format.value == "auto" && stderrIsJournal(env):
		return slog.New(&journalHandler{level: level, send: journal.Send}), true
	}
	return slog.New(slog.NewTextHandler(env.Stderr, options)), false
}

func stderrIsJournal(env *Env) bool {
	if env.Stderr != os.Stderr {
		return false
	}
	is, err := journal.StderrIsJournalStream()
	return is && err == nil && journal.Enabled()
}
