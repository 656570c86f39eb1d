package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// execute runs a command line in this process, without a terminal.
func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	env := &Env{
		Stdin:   strings.NewReader(""),
		Stdout:  &out,
		Stderr:  &complaints,
		Getenv:  func(string) string { return "" },
		Width:   func() int { return 0 },
		Program: "softdpu",
	}
	code = run(t.Context(), env, args)
	return code, out.String(), complaints.String()
}

func TestWrongUse(t *testing.T) {
	tests := []struct{ name, args, want string }{
		{"unknown verb", "vresion", `no command "vresion"; did you mean version?`},
		{"unknown verb and a flag that only it could know", "vresion -o json", "did you mean version?"},
		{"unknown verb of a group", "lab uo", "did you mean up?"},
		{"unknown verb that is like none", "teleport", `softdpu: softdpu has no command "teleport"` + "\n"},
		{"unknown flag", "version --outptu json", "has no flag --outptu; did you mean --output?"},
		{"unknown short flag", "version -x", "has no flag -x"},
		{"bad value", "version -o xml", "it must be table or json"},
		{"value of a wrong type", "lab up wire --mtu big", `invalid argument "big"`},
		{"argument too many", "version now", `takes no argument "now"`},
		{"missing argument", "lab up", "needs a TOPOLOGY: client-server, inline, three-zone, wire"},
		{"missing command", "lab exec client --", "needs a NODE and a COMMAND"},
		{"unknown topology", "lab up inlien", "did you mean inline?"},
		{"unknown shell", "completion bahs", "did you mean bash?"},
		{"unknown help", "help vresion", "did you mean version?"},
		{"unknown help of a group", "help lab uo", "did you mean up?"},
		{"nothing", "", "Available Commands:"},
		{"a group alone", "lab", "Available Commands:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, strings.Fields(tt.args)...)
			if code != exitError || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit code %d, said:\n%s", code, stderr)
			}
			if stdout != "" {
				t.Errorf("printed to the standard output:\n%s", stdout)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"help", "lab", "up"}, {"lab", "up", "--help"}} {
		code, stdout, _ := execute(t, args...)
		if code != exitYes || !strings.Contains(stdout, "softdpu lab up inline --mtu 9000") {
			t.Errorf("%s: exit code %d:\n%s", args, code, stdout)
		}
	}
}

// Every verb explains itself with an example, and has a one-line description.
func TestEveryVerbIsExplained(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "help" || c.Name() == "completion" {
			return // cobra's words
		}
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s lacks a description or an example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand(&Env{}))
}

func TestOutcome(t *testing.T) {
	plain := errors.New("read x: no such file")
	tests := []struct {
		name    string
		err     error
		code    int
		message string
	}{
		{"done", nil, exitYes, ""},
		{"an error", plain, exitError, "read x: no such file"},
		{"the answer is no, already printed", answerNo(nil), exitNo, ""},
		{"the answer is no", answerNo(plain), exitNo, "read x: no such file"},
		{"wrapped", fmt.Errorf("check: %w", answerNo(plain)), exitNo, "check: read x: no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if code, message := outcome(tt.err); code != tt.code || message != tt.message {
				t.Errorf("exit code %d, message %q", code, message)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := execute(t, "version", "-o", "json")
	var v versionInfo
	if err := json.Unmarshal([]byte(stdout), &v); code != exitYes || err != nil {
		t.Fatalf("exit code %d, %v:\n%s", code, err, stdout)
	}
	if v.Version == "" || v.Commit == "" || !strings.HasPrefix(v.Go, "go") || !strings.HasPrefix(v.Platform, "linux/") || v.Kernel == "unknown" {
		t.Errorf("%+v", v)
	}
	code, stdout, _ = execute(t, "version")
	if code != exitYes || !strings.HasPrefix(stdout, "VERSION") || !strings.Contains(stdout, v.Kernel) {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, stdout, _ := execute(t, "completion", shell); code != exitYes || !strings.Contains(stdout, "softdpu") {
			t.Errorf("%s: exit code %d, %d bytes", shell, code, len(stdout))
		}
	}
	code, stdout, _ := execute(t, "__complete", "lab", "up", "in")
	if code != exitYes || !strings.HasPrefix(stdout, "client-server\ninline\n") {
		t.Errorf("topologies: exit code %d:\n%s", code, stdout)
	}
	code, stdout, _ = execute(t, "__complete", "version", "-o", "")
	if code != exitYes || !strings.HasPrefix(stdout, "table\njson\n") {
		t.Errorf("formats: exit code %d:\n%s", code, stdout)
	}
}

func TestTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	defer terminal.Close()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 97}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tests := []struct {
		name     string
		file     *os.File
		columns  string
		width    int
		terminal bool
	}{
		{"terminal", terminal, "", 97, true},
		{"terminal and COLUMNS", terminal, "40", 40, true},
		{"terminal and nonsense in COLUMNS", terminal, "wide", 97, true},
		{"file", file, "40", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := terminalWidth(tt.file, tt.columns); got != tt.width {
				t.Errorf("width %d", got)
			}
			if got := isTerminal(tt.file); got != tt.terminal {
				t.Errorf("terminal %t", got)
			}
		})
	}
}
