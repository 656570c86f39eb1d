package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/gateway"
)

// asked is a daemon that gives one answer, and tells what it was asked.
func asked(t *testing.T, code int, body string) (socket string, request func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan string, 10)
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests <- req.Method + " " + req.URL.String()
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return socket, func() string {
		select {
		case r := <-requests:
			return r
		default:
			return "nothing"
		}
	}
}

// What verbs ask of the daemon, how they print the answer, and the exit code that scripts rely on.
func TestPolicyChangeVerbs(t *testing.T) {
	const (
		done     = `{"epoch":7,"entry":42,"files":["/p/a.yaml"],"rules":12,"tests":3,"warnings":[]}`
		back     = `{"epoch":8,"entry":43,"restored":41,"files":["/p/a.yaml"],"rules":11,"tests":3,"warnings":[]}`
		conflict = `{"error":"the change of entry 42 waits to be confirmed, and is taken back in 1m30s","hint":"'softdpu policy confirm' keeps it"}`
	)
	waiting := strings.Replace(done, `"files"`, `"comes_back":"`+time.Now().Add(2*time.Minute).Format(time.RFC3339)+`","files"`, 1)
	for _, tt := range []struct {
		name   string
		args   string
		status int
		body   string
		asks   string
		code   int
		says   string // on either output
	}{
		{"comment", "apply -m why?", 200, done, "POST /v1/reload?comment=why%3F", exitYes, "ok: epoch 7 is in force"},
		{"with a limit", "apply --confirm 2m", 200, waiting, "POST /v1/reload?confirm=2m0s", exitYes, "unless you say 'softdpu policy confirm'"},
		{"no limit", "apply --confirm 0", 200, done, "nothing", exitError, "--confirm must be a time"},
		{"no time", "apply --confirm soon", 200, done, "nothing", exitError, "soon"},
		{"another waits", "apply", 409, conflict, "POST /v1/reload", exitNo, "nothing was changed: the change of entry 42 waits to be confirmed, and is taken back in 1m30s: 'softdpu policy confirm' keeps it"},
		{"another waits, for programs", "apply -o json", 409, conflict, "POST /v1/reload", exitNo, `"ok": false`},
		{"back", "rollback", 200, back, "POST /v1/policy/rollback", exitYes, "rolled back to entry 41: the files on disk are not what is in force"},
		{"back to", "rollback 41 -m no", 200, back, "POST /v1/policy/rollback?comment=no&entry=41", exitYes, "epoch 8"},
		{"back to nothing", "rollback 4", 409, `{"error":"the history has no entry 4"}`, "POST /v1/policy/rollback?entry=4", exitNo, "no entry 4"},
		{"back to no number", "rollback x", 200, back, "nothing", exitError, `"x" is not the number of an entry`},
		{"back by somebody else", "rollback", 403, `{"error":"only root may change the gateway"}`, "POST /v1/policy/rollback", exitError, "only root"},
		{"confirmed", "confirm", 200, `{"entry":42,"epoch":7}`, "POST /v1/policy/confirm", exitYes, "epoch 7 stays in force, entry 42"},
		{"nothing to confirm", "confirm", 409, `{"error":"no change waits to be confirmed"}`, "POST /v1/policy/confirm", exitNo, "no change waits to be confirmed"},
		{"no disk to confirm on", "confirm", 500, `{"error":"no space left"}`, "POST /v1/policy/confirm", exitError, "no space left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket, request := asked(t, tt.status, tt.body)
			code, stdout, stderr := execute(t, append(append([]string{"policy"}, strings.Fields(tt.args)...), "--socket", socket)...)
			if got := request(); got != tt.asks || code != tt.code || !strings.Contains(stdout+stderr, tt.says) {
				t.Errorf("asks %q, exit code %d, says %q %q", got, code, stdout, stderr)
			}
		})
	}
}

func TestPolicyHistoryText(t *testing.T) {
	const entries = `[
 {"entry":4,"time":"2026-11-30T10:04:00Z","by":"not-confirmed","restored":1,"result":"in-force","current":true,"hash":"aaaaaaaaaaaaaaaa","changes":{"rules":{"added":1,"removed":2,"changed":3,"moved":4},"sets":{"changed":1}}},
 {"entry":3,"time":"2026-11-30T10:03:00Z","by":"control socket","user":"root","login":"ann","uid":0,"result":"in-force","confirm":"rolled-back","hash":"bbbbbbbbbbbbbbbb","changes":{},"comment":"CHG-1\u001b[2J"},
 {"entry":2,"time":"2026-11-30T10:02:00Z","by":"signal","result":"refused","mistakes":3,"errors":[{"file":"/p/a.yaml","line":4,"column":2,"message":"no zone \"van\"","hint":"did you mean wan?"}]},
 {"entry":1,"time":"2026-11-30T10:01:00Z","by":"start","result":"in-force","hash":"aaaaaaaaaaaaaaaa","changes":null}]`
	socket, _ := asked(t, 200, entries)
	code, stdout, stderr := execute(t, "policy", "history", "--socket", socket)
	rows := strings.Split(stdout, "\n")
	if code != exitYes || len(rows) != 6 {
		t.Fatalf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	for i, want := range [][]string{
		{"ENTRY", "TIME", "BY", "USER", "RESULT", "HASH", "CHANGES", "COMMENT"},
		{"*", "4", "not-confirmed to 1", "in-force", "aaaaaaaaaaaa", "sets ~1, rules +1 -2 ~3 >4"},
		{"3", "control socket", "ann as root", "in-force, rolled-back", "none", "CHG-1?[2J"},
		{"2", "signal", "refused", `/p/a.yaml:4:2: no zone "van" (and 2 others)`},
		{"1", "start", "in-force"},
	} {
		for _, word := range want {
			if !strings.Contains(rows[i], word) {
				t.Errorf("line %d lacks %q: %s", i, word, rows[i])
			}
		}
	}
	code, stdout, _ = execute(t, "policy", "history", "-o", "json", "--socket", socket)
	var all []gateway.HistoryEntry
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || code != exitYes || len(all) != 4 || !all[0].Current || all[2].Errors[0].Line != 4 {
		t.Errorf("%v, exit code %d: %s", err, code, stdout)
	}
}

func TestPolicyDiffText(t *testing.T) {
	const differs = `{"from":{"what":"in-force","entry":42,"hash":"aaaaaaaaaaaaaaaa"},"to":{"what":"files","hash":"bbbbbbbbbbbbbbbb"},"same":false,
 "changes":{"zones":{"added":1},"rules":{"changed":1,"moved":1}},
 "differences":[{"kind":"zone","name":"guests","how":"added","file":"/p/z.yaml","line":9,"fields":[{"key":"ports","old":"","new":"lan1"}]},
  {"kind":"nat","name":"branch","how":"removed","file":"/p/n.yaml","line":2,"fields":[]},
  {"kind":"rule","name":"web","how":"changed","file":"/p/r.yaml","line":3,"fields":[{"key":"action","old":"allow","new":"deny"},{"key":"log","old":"true","new":""}]},
  {"kind":"rule","name":"ping","how":"moved","file":"/p/r.yaml","line":4,"fields":[{"key":"place","old":"first","new":"behind web"}]}],
 "configuration":[{"key":"management","old":"a","new":"b"}],
 "restart":[{"file":"/c.yaml","message":"flows.max has changed, which a reload does not put in force","hint":"restart softdpu, or change it back"}]}`
	const text = `--- in force, entry 42, sha256 aaaaaaaaaaaa
+++ the files, sha256 bbbbbbbbbbbb
zones
  + guests  (/p/z.yaml:9)
      ports: + lan1
nat
  - branch  (/p/n.yaml:2)
rules
  ~ web  (/p/r.yaml:3)
      action: - allow
              + deny
      log: - true
  > ping  (/p/r.yaml:4)
      place: - first
             + behind web
configuration
      management: - a
                  + b
! /c.yaml: flows.max has changed, which a reload does not put in force (restart softdpu, or change it back)
changes: zones +1, rules ~1 >1
`
	for _, tt := range []struct {
		name   string
		args   string
		status int
		body   string
		asks   string
		code   int
		stdout string
	}{
		{"differs", "", 200, differs, "GET /v1/policy/diff", exitNo, text},
		{"two entries", "3 4", 200, `{"from":{"what":"entry","entry":3,"hash":"aa"},"to":{"what":"entry","entry":4,"hash":"bb"},"same":true}`,
			"GET /v1/policy/diff?from=3&to=4", exitYes, "--- entry 3, sha256 aa\n+++ entry 4, sha256 bb\nno difference but comments and layout\n"},
		{"the same", "3", 200, `{"from":{"what":"entry","entry":3,"hash":"aa"},"to":{"what":"files","hash":"aa"},"same":true}`,
			"GET /v1/policy/diff?from=3", exitYes, "--- entry 3, sha256 aa\n+++ the files, sha256 aa\nno difference\n"},
		{"wrong files", "", 422, `{"error":"...","errors":[{"file":"/p/a.yaml","line":4,"column":2,"message":"no zone"}]}`,
			"GET /v1/policy/diff", exitNo, "/p/a.yaml:4:2: no zone\n1 error in the files\n"},
		{"no entry", "9", 409, `{"error":"the history has no entry 9"}`, "GET /v1/policy/diff?from=9", exitError, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket, request := asked(t, tt.status, tt.body)
			code, stdout, stderr := execute(t, append(append([]string{"policy", "diff"}, strings.Fields(tt.args)...), "--socket", socket)...)
			if got := request(); got != tt.asks || code != tt.code || stdout != tt.stdout || (code == exitError) != (stderr != "") {
				t.Errorf("asks %q, exit code %d:\n%s%s", got, code, stdout, stderr)
			}
		})
	}
}
