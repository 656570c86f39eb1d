package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// answering is a daemon that says one thing.
func answering(t *testing.T, code int, body string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return socket
}

func TestPolicyApply(t *testing.T) {
	const (
		good = `{"epoch":7,"files":["/p/a.yaml","/p/b.yaml"],"rules":12,"nat":1,"tests":3,"warnings":[{"file":"/p/a.yaml","line":3,"column":5,"message":"set \"x\" is not used","source":"  x: []"}]}`
		bad  = `{"error":"...","errors":[{"file":"/p/a.yaml","line":4,"column":2,"message":"no zone \"van\"","hint":"did you mean wan?","source":"  to: van"}]}`
	)
	for _, tt := range []struct {
		name   string
		status int
		body   string
		code   int
		stdout []string
		stderr string
	}{
		{"in force", 200, good, exitYes, []string{"ok: epoch 7 is in force: 12 rules and 1 nat rule in 2 files; 3 tests passed; 1 warning", `warning: /p/a.yaml:3:5: set "x" is not used`}, ""},
		{"refused", 422, bad, exitNo, []string{`/p/a.yaml:4:2: no zone "van"`, "  = did you mean wan?", "1 error, nothing was changed"}, ""},
		{"no permission", 403, `{"error":"only root may change the gateway","hint":"run as root"}`, exitError, nil, "only root may change the gateway: run as root"},
		{"stopping", 503, `{"error":"softdpu is stopping"}`, exitError, nil, "softdpu is stopping"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := answering(t, tt.status, tt.body)
			code, stdout, stderr := execute(t, "policy", "apply", "--socket", socket)
			if code != tt.code || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit code %d, says %q", code, stderr)
			}
			for _, want := range tt.stdout {
				if !strings.Contains(stdout, want) {
					t.Errorf("prints %q, which lacks %q", stdout, want)
				}
			}
			if tt.stdout == nil {
				return
			}
			code, stdout, _ = execute(t, "policy", "apply", "-o", "json", "--socket", socket)
			var r applyReport
			if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != tt.code || r.OK != (code == exitYes) || r.OK != (r.Epoch == 7) || len(r.Errors)+len(r.Warnings) != 1 {
				t.Errorf("exit code %d, prints %s", code, stdout)
			}
		})
	}
	if code, _, stderr := execute(t, "policy", "apply", "--socket", filepath.Join(t.TempDir(), "none")); code != exitError || !strings.Contains(stderr, "softdpu run") {
		t.Errorf("without a daemon: exit code %d, says %q", code, stderr)
	}
}
