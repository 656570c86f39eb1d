package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// labPrefix returns a prefix of this test's own. What is up under it is removed when the test ends.
func labPrefix(t *testing.T) string {
	t.Helper()
	return testenv.New(t, "wire", testenv.Options{}).Prefix
}

func labUp(t *testing.T, topology, prefix string) (stdout string) {
	t.Helper()
	code, stdout, stderr := execute(t, "lab", "up", topology, "--prefix", prefix)
	if code != exitYes {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	return stdout
}

func TestLabLife(t *testing.T) {
	prefix := labPrefix(t)
	stdout := labUp(t, "client-server", prefix)
	for _, want := range []string{prefix + "-gw", "10.10.2.2/24", "softdpu lab --prefix " + prefix + " exec client -- ping -c 3 -W 1 10.10.2.2"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("up does not show %q:\n%s", want, stdout)
		}
	}

	code, stdout, _ := execute(t, "lab", "list", "-o", "json")
	var labs []testenv.Status
	if err := json.Unmarshal([]byte(stdout), &labs); code != exitYes || err != nil {
		t.Fatalf("list: exit code %d, %v:\n%s", code, err, stdout)
	}
	ours := func(s testenv.Status) bool { return s.Prefix == prefix }
	if i := slices.IndexFunc(labs, ours); i < 0 || labs[i].Topology != "client-server" || len(labs[i].Namespaces) != 3 {
		t.Errorf("list: %+v", labs)
	}
	code, stdout, _ = execute(t, "lab", "list")
	if code != exitYes || !strings.Contains(stdout, prefix+"-server") || !strings.Contains(stdout, "10.10.2.1/24 fd10:2::1/64") {
		t.Errorf("list: exit code %d:\n%s", code, stdout)
	}

	// A second lab takes the first one's place.
	labUp(t, "wire", prefix)
	if _, err := os.Stat("/run/netns/" + prefix + "-gw"); err == nil {
		t.Error("the gateway of the lab before is still there")
	}
	for _, want := range []string{"lab " + prefix + " is removed", "no lab " + prefix + " is up"} {
		if code, _, stderr := execute(t, "lab", "down", "--prefix", prefix); code != exitYes || !strings.Contains(stderr, want) {
			t.Errorf("down: exit code %d: %s", code, stderr)
		}
	}
	code, _, stderr := execute(t, "lab", "exec", "--prefix", prefix, "client", "--", "true")
	if code != exitError || !strings.Contains(stderr, "softdpu lab up") {
		t.Errorf("exec without lab: exit code %d: %s", code, stderr)
	}
}

func TestLabExec(t *testing.T) {
	prefix := labPrefix(t)
	tests := []struct {
		name   string
		args   []string
		code   int
		stdout string // what it contains
		stderr string
	}{
		{"short name", []string{"client", "--", "ip", "-br", "addr", "show", "c0"}, 0, "10.10.1.2/24", ""},
		{"whole name", []string{prefix + "-server", "--", "ip", "-br", "addr", "show", "s0"}, 0, "10.10.1.3/24", ""},
		{"without dashes", []string{"client", "ping", "-c", "1", "-W", "2", "10.10.1.3"}, 0, "1 received", ""},
		{"its exit code is ours", []string{"client", "--", "sh", "-c", "exit 7"}, 7, "", ""},
		{"ended by a signal", []string{"client", "--", "sh", "-c", "kill -9 $$"}, 128 + 9, "", ""},
		{"unknown node", []string{"clinet", "--", "true"}, exitError, "", "did you mean client?"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"lab", "exec", "--prefix", prefix}, tt.args...)...)
			if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
			}
		})
	}
}

func TestLabExecEndsItsCommand(t *testing.T) {
	prefix := labPrefix(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start := time.Now()
	env := &Env{Stdin: strings.NewReader(""), Stdout: whenWritten(cancel), Stderr: t.Output(), Getenv: os.Getenv, Width: func() int { return 0 }}
	code := run(ctx, env, []string{"lab", "exec", "--prefix", prefix, "client", "--", "sh", "-c", "echo runs; exec sleep 30"})
	if code != 128+15 || time.Since(start) > 20*time.Second {
		t.Errorf("exit code %d after %s", code, time.Since(start))
	}
}

// whenWritten is a writer that calls the function at the first word.
type whenWritten func()

func (w whenWritten) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

func TestPictures(t *testing.T) {
	tests := map[string]string{
		"wire": `
+- sdpu-client --+         +- sdpu-server --+
| c0             |=========| s0             |
|   10.10.1.2/24 |         |   10.10.1.3/24 |
|   fd10:1::2/64 |         |   fd10:1::3/64 |
+----------------+         +----------------+
`,
		"inline": `
+- sdpu-client --+         +- sdpu-gw ----+
| c0             |=========| lan          |
|   10.10.1.2/24 |         |   no address |
|   fd10:1::2/64 |         |              |
+----------------+         |              |
                           |              |
+- sdpu-server --+         |              |
| s0             |=========| wan          |
|   10.10.1.3/24 |         |   no address |
|   fd10:1::3/64 |         |              |
+----------------+         +--------------+
`,
		"three-zone": `
+- sdpu-lan -----+         +- sdpu-gw ------+
| l0             |=========| lan            |
|   10.10.1.2/24 |         |   10.10.1.1/24 |
|   fd10:1::2/64 |         |   fd10:1::1/64 |
+----------------+         |                |
                           |                |
+- sdpu-wan -----+         |                |
| w0             |=========| wan            |
|   10.10.2.2/24 |         |   10.10.2.1/24 |
|   fd10:2::2/64 |         |   fd10:2::1/64 |
+----------------+         |                |
                           |                |
+- sdpu-dmz -----+         |                |
| d0             |=========| dmz            |
|   10.10.3.2/24 |         |   10.10.3.1/24 |
|   fd10:3::2/64 |         |   fd10:3::1/64 |
+----------------+         +----------------+
`,
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			topology, err := testenv.TopologyByName(name)
			if err != nil {
				t.Fatal(err)
			}
			if got := "\n" + picture(&testenv.Lab{Topology: topology, Prefix: "sdpu"}); got != want {
				t.Errorf("got:%swant:%s", got, want)
			}
		})
	}
}
