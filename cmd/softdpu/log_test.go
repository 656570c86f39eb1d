package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/spf13/cobra"
)

func TestJournalHandler(t *testing.T) {
	type entry struct {
		message  string
		priority journal.Priority
		fields   map[string]string
	}
	tests := []struct {
		name string
		log  func(*slog.Logger)
		want *entry
	}{
		{"attributes", func(l *slog.Logger) { l.Info("port", "name", "lan0", "why_not_native", "no driver") },
			&entry{`port name=lan0 why_not_native="no driver"`, journal.PriInfo,
				map[string]string{"SOFTDPU_NAME": "lan0", "SOFTDPU_WHY_NOT_NATIVE": "no driver"}}},
		{"an error of two lines", func(l *slog.Logger) { l.Error("cannot", "error", errors.New("a\nb")) },
			&entry{`cannot error="a\nb"`, journal.PriErr, map[string]string{"SOFTDPU_ERROR": "a\nb"}}},
		{"groups", func(l *slog.Logger) { l.With("a", 1).WithGroup("g").With("b", 2).Warn("m", slog.Group("h", "c-d", "")) },
			&entry{`m a=1 g.b=2 g.h.c-d=""`, journal.PriWarning, map[string]string{"SOFTDPU_A": "1", "SOFTDPU_G_B": "2", "SOFTDPU_G_H_C_D": ""}}},
		{"below the level", func(l *slog.Logger) { l.Debug("m") }, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got *entry
			tt.log(slog.New(&journalHandler{level: slog.LevelInfo, send: func(m string, p journal.Priority, f map[string]string) error {
				got = &entry{m, p, f}
				return nil
			}}))
			if (got == nil) != (tt.want == nil) {
				t.Fatalf("%+v", got)
			}
			if got == nil {
				return
			}
			tt.want.fields["SYSLOG_IDENTIFIER"] = "softdpu"
			if got.message != tt.want.message || got.priority != tt.want.priority || !maps.Equal(got.fields, tt.want.fields) {
				t.Errorf("%+v", *got)
			}
		})
	}
}

func TestLogFlags(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want string // contained in what an info line prints, "" if it prints nothing
	}{
		{"by default", nil, "level=INFO msg=hello port=lan0"},
		{"json", []string{"--log-format", "json"}, `"msg":"hello","port":"lan0"}`},
		{"level", []string{"--log-level", "warn"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := &cobra.Command{}
			f := addLogFlags(cmd)
			if err := cmd.ParseFlags(tt.args); err != nil {
				t.Fatal(err)
			}
			log, toJournal := f.logger(&Env{Stderr: &out})
			log.Info("hello", "port", "lan0")
			if toJournal || !strings.Contains(out.String(), tt.want) || (out.Len() == 0) != (tt.want == "") {
				t.Errorf("journal %t, printed %q", toJournal, out.String())
			}
			if tt.name == "json" && !json.Valid(out.Bytes()) {
				t.Error("this is no JSON")
			}
		})
	}
	if code, _, stderr := execute(t, "run", "--log-format", "jsno"); code != exitError || !strings.Contains(stderr, "did you mean json?") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
