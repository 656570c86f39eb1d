package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// setDaemon answers everything with one body and keeps what it was asked.
type setDaemon struct {
	socket, method, path, body string
}

func newSetDaemon(t *testing.T, code int, answer string) *setDaemon {
	t.Helper()
	d := &setDaemon{socket: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		d.method, d.path, d.body = req.Method, req.URL.Path, string(body)
		w.WriteHeader(code)
		_, _ = w.Write([]byte(answer))
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return d
}

// executeWith is execute with a standard input.
func executeWith(t *testing.T, input string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	env := &Env{
		Stdin: strings.NewReader(input), Stdout: &out, Stderr: &complaints,
		Getenv: func(string) string { return "" }, Width: func() int { return 0 }, Program: "softdpu",
	}
	code = run(t.Context(), env, args)
	return code, out.String(), complaints.String()
}

const setDone = `{"set":"threats","added":2,"removed":0,"prolonged":0,"unchanged":1,"entries":12,"until":null,"epoch":4,"notes":["no rule uses the set\u001b[2J"]}`

func TestSetChange(t *testing.T) {
	for _, tt := range []struct {
		name, args, input string
		path, body        string
		want              string
	}{
		{"add", "add threats 192.0.2.1 192.0.2.2", "", "/v1/sets/threats/add", `{"entries":["192.0.2.1","192.0.2.2"]}`, "threats: 2 added, 1 unchanged; 12 entries in force\n"},
		{"for a time", "add threats 192.0.2.1 --for 7d --comment x", "", "/v1/sets/threats/add", `{"entries":["192.0.2.1"],"for":"7d","comment":"x"}`, "2 added"},
		{"standard input", "add threats 192.0.2.1 -", "# list\n\n 192.0.2.2 # one\r\n2001:db8::/32\n", "/v1/sets/threats/add", `{"entries":["192.0.2.1","192.0.2.2","2001:db8::/32"]}`, "2 added"},
		{"del", "del threats 192.0.2.1", "", "/v1/sets/threats/del", `{"entries":["192.0.2.1"]}`, "12 entries"},
		{"all", "del threats --all", "", "/v1/sets/threats/del", `{"entries":null,"all":true}`, "12 entries"},
		{"a name that is a path", "add ../status 192.0.2.1", "", "/v1/sets/../status/add", `{"entries":["192.0.2.1"]}`, "2 added"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newSetDaemon(t, 200, setDone)
			code, stdout, stderr := executeWith(t, tt.input, append([]string{"set"}, append(strings.Fields(tt.args), "--socket", d.socket)...)...)
			if code != exitYes || !strings.Contains(stdout, tt.want) || d.method != "POST" || d.path != tt.path || d.body != tt.body {
				t.Errorf("exit code %d, prints %q, asks %s %s %s", code, stdout, d.method, d.path, d.body)
			}
			if stderr != "note: no rule uses the set?[2J\n" {
				t.Errorf("says %q", stderr)
			}
		})
	}
	d := newSetDaemon(t, 200, setDone)
	if code, stdout, stderr := execute(t, "set", "add", "threats", "192.0.2.1", "-o", "json", "--socket", d.socket); code != exitYes || stderr != "" || !strings.Contains(stdout, `"epoch": 4`) {
		t.Errorf("exit code %d, prints %s, says %s", code, stdout, stderr)
	}
}

// Mistakes are told where they were made, and what is wrong use never reaches the daemon.
func TestSetChangeRefused(t *testing.T) {
	const wrong = `{"error":"...","errors":[
		{"file":"entries","line":1,"column":1,"message":"\"a\" is not an address","hint":"write one","source":"a"},
		{"file":"entries","line":3,"column":1,"message":"\"10.1.2.3/8\" has bits set beyond its length","hint":"write 10.0.0.0/8","source":"10.1.2.3/8"}]}`
	d := newSetDaemon(t, 422, wrong)
	code, stdout, stderr := executeWith(t, "192.0.2.1\n\n  10.1.2.3/8 # loopback\n", "set", "add", "threats", "a", "-", "--socket", d.socket)
	for _, want := range []string{
		"2 errors, nothing was changed:\n", "entry 1: \"a\" is not an address\n  = write one",
		"standard input:3:3: \"10.1.2.3/8\" has bits set beyond its length\n  3 |   10.1.2.3/8 # loopback\n    |   ^\n  = write 10.0.0.0/8",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("says %s, which lacks %q", stderr, want)
		}
	}
	if code != exitError || stdout != "" {
		t.Errorf("exit code %d, prints %q", code, stdout)
	}
	d = newSetDaemon(t, 404, `{"error":"unknown set \"treats\"","hint":"did you mean \"threats\"?"}`)
	if code, _, stderr := execute(t, "set", "list", "treats", "--socket", d.socket); code != exitError || !strings.Contains(stderr, `did you mean "threats"?`) {
		t.Errorf("exit code %d, says %q", code, stderr)
	}
	for _, tt := range []struct{ args, input, want string }{
		{"add", "", "needs NAME"},
		{"add threats", "", "needs ENTRY"},
		{"del threats", "", "needs ENTRY"},
		{"del threats 192.0.2.1 --all", "", `takes no argument "192.0.2.1"`},
		{"add threats -", "# nothing\n", "the standard input has no entries"},
		{"add threats -", strings.Repeat("1", 100_000), "it has one entry a line"},
		{"add threats 192.0.2.1 --for soon", "", `"soon" is not for how long`},
		{"add threats 192.0.2.1 --for 0s", "", "from 1s to 3650d"},
		{"lst", "", "did you mean list?"},
	} {
		code, _, stderr := executeWith(t, tt.input, append([]string{"set"}, append(strings.Fields(tt.args), "--socket", "/nowhere")...)...)
		if code != exitError || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: exit code %d, says %q, want %q", tt.args, code, stderr, tt.want)
		}
	}
}

func TestSetList(t *testing.T) {
	d := newSetDaemon(t, 200, `[{"name":"threats","type":"prefix","entries":3,"written":2,"added":1,"removed":0,"idle":0,"file":"/p/20-names.yaml","line":5,"source":"/p/threats.txt","used":true},
		{"name":"gone","type":"port","entries":0,"written":0,"added":0,"removed":0,"idle":4,"file":"","line":0,"source":"","used":false}]`)
	_, stdout, _ := execute(t, "set", "list", "--socket", d.socket)
	if want := "SET      TYPE    ENTRIES  WRITTEN  ADDED  REMOVED  IDLE  USED  WHERE\n" +
		"threats  prefix        3        2      1        0     0  yes   20-names.yaml:5\n" +
		"gone     port          0        0      0        0     4  no    not in the policy\n"; stdout != want {
		t.Errorf("prints\n%swant\n%s", stdout, want)
	}
	d = newSetDaemon(t, 200, `[{"entry":"198.51.100.7","source":"policy","in_force":true,"file":"/p/threats.txt","line":2,"by":"","at":null,"until":null,"expires_s":null,"comment":""},
		{"entry":"203.0.113.66","source":"runtime","in_force":true,"file":"","line":0,"by":"root","at":"2026-11-30T08:00:00Z","until":"2026-11-30T09:00:00Z","expires_s":59.5,"comment":"CHG-1"}]`)
	_, stdout, _ = execute(t, "set", "list", "threats", "--socket", d.socket)
	for _, want := range []string{"198.51.100.7  policy   threats.txt:2  -     ", "203.0.113.66  runtime  -              root  ", "in 59s  CHG-1"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("prints\n%s, which lacks %q", stdout, want)
		}
	}
	if _, stdout, _ := execute(t, "set", "list", "threats", "--runtime", "-o", "json", "--socket", d.socket); strings.Contains(stdout, "198.51.100.7") || !strings.Contains(stdout, "203.0.113.66") {
		t.Errorf("prints %s", stdout)
	}
}

func TestSetReplace(t *testing.T) {
	d := newSetDaemon(t, 200, setDone)
	code, stdout, stderr := executeWith(t, "192.0.2.1 # one\n\n", "set", "replace", "threats", "-", "--comment", "CHG 7", "--socket", d.socket)
	if code != exitYes || !strings.Contains(stdout, "12 entries in force") || d.method != "POST" || d.path != "/v1/sets/threats/replace" || d.body != "192.0.2.1 # one\n\n" {
		t.Errorf("exit code %d, prints %q, says %q, asks %s %s %q", code, stdout, stderr, d.method, d.path, d.body)
	}
	d = newSetDaemon(t, 422, `{"error":"...","errors":[{"file":"list","line":3,"column":2,"message":"\"a\" is not an address","hint":"write one","source":" a"}]}`)
	file := filepath.Join(t.TempDir(), "feed.txt")
	if err := os.WriteFile(file, []byte("192.0.2.1\n\n a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = execute(t, "set", "replace", "threats", file, "--socket", d.socket)
	if code != exitError || !strings.Contains(stderr, "1 error, nothing was changed:\n"+file+":3:2: \"a\" is not an address") {
		t.Errorf("exit code %d, says %q", code, stderr)
	}
	for args, want := range map[string]string{"threats": "needs FILE", "threats " + file + "x": "no such file", "threats - more": `takes no argument "more"`} {
		if code, _, stderr := execute(t, append([]string{"set", "replace", "--socket", "/nowhere"}, strings.Fields(args)...)...); code != exitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, says %q, want %q", args, code, stderr, want)
		}
	}
}
