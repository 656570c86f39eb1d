package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestPolicyCheck(t *testing.T) {
	t.Chdir(simDir(t))
	for name, text := range map[string]string{
		"misspelt.yaml": "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {prots: [lan0]}, wan: {}}\nrules:\n  - {name: a, from: lann, to: wan, action: allow}\n",
		"failing.yaml": `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan0]}, wan: {ports: [wan0]}}
rules: [{name: a, from: lan, to: wan, service: tcp/80, action: allow}]
tests:
  - {name: no web, packet: {in: lan0, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/80}, expect: {verdict: deny}}
`,
		"routed.yaml": `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan0]}, wan: {ports: [wan0]}}
rules: [{name: a, from: lan, to: wan, service: tcp/80, action: allow}]
tests:
  - {name: web, packet: {in: lan0, src: 10.0.0.1, dst: 192.0.2.9, service: tcp/80}, expect: {verdict: allow, rule: a}}
`,
		"untested.yaml": "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan0]}}\nservices: {web: tcp/80}\n",
		"portless.yaml": "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan0]}}\n",
		"two.yaml":      "apiVersion: softdpu/v1\nkind: Gateway\nports: {lan0: {device: eth1}, wan0: {device: eth0}}\npolicy: routed.yaml\nmanagement: none\n",
		"three.yaml":    "apiVersion: softdpu/v1\nkind: Gateway\nports: {lan0: {device: eth1}, wan0: {device: eth0}}\npolicy: portless.yaml\nmanagement: none\n",
		"pair.yaml":     "apiVersion: softdpu/v1\nkind: Gateway\nports: {lan0: {device: eth1}, wan0: {device: eth0}}\ninline: [[lan0, wan0]]\npolicy: routed.yaml\nmanagement: none\n",
		"config.yaml":   "apiVersion: softdpu/v1\nkind: Gateway\nprots: {}\n",
		"dev.json":      `[{"dst":"192.0.2.0/24","dev":"wan0","flags":[]}]`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, args string
		code       int
		want       []string // parts of what is printed
	}{
		{"file", "policy.yaml", exitYes, []string{"ok: 4 rules in 1 file, 2 zones; 1 test passed; 0 warnings\ncompiled: ", " instructions\n"}},
		{"configuration", "-c softdpu.yaml", exitYes, []string{"ok: 4 rules in 1 file, 2 zones; 1 test passed"}},
		{"nearest keys", "misspelt.yaml", exitNo, []string{
			"misspelt.yaml:3:15: ", `"prots"`, `did you mean "ports"?`, "  3 | zones: {lan: {prots: [lan0]}, wan: {}}\n    |               ^",
			"misspelt.yaml:5:21: ", `"lann"`, `did you mean "lan"?`, "\n2 errors\n"}},
		{"test that fails", "failing.yaml", exitNo, []string{"failing.yaml:6:", `test "no web": expected deny, got allow: rule "a", failing.yaml:4`, "\n1 error\n"}},
		{"routed test", "routed.yaml", exitNo, []string{"where 192.0.2.9 lies is not known", "add out: PORT (or out: host), or give the routes with --routes"}},
		{"routed test with routes", "routed.yaml --routes dev.json", exitYes, []string{"1 test passed"}},
		{"routed test of a configuration", "-c two.yaml", exitNo, []string{"or give the routes with --routes"}},
		{"routed test of a configuration with routes", "-c two.yaml --routes routes.json", exitYes, []string{"1 test passed"}},
		{"inline test", "-c pair.yaml", exitYes, []string{"1 test passed"}},
		{"port without zone", "-c three.yaml", exitNo, []string{`three.yaml:3:31: port "wan0" belongs to no zone of the policy`}},
		{"warning", "untested.yaml", exitYes, []string{"warning: untested.yaml:4:12: service \"web\" is not used", "no tests: add some", "1 warning\n"}},
		{"mistake in the configuration", "-c config.yaml", exitNo, []string{"config.yaml:3:1: ", `did you mean "ports"?`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"policy", "check"}, strings.Fields(tt.args)...)...)
			for _, part := range tt.want {
				if !strings.Contains(stdout, part) {
					t.Errorf("it does not print %q", part)
				}
			}
			if code != tt.code || stderr != "" || t.Failed() {
				t.Errorf("exit code %d, said %q, printed:\n%s", code, stderr, stdout)
			}
		})
	}
	for _, tt := range []struct{ name, args, want string }{
		{"unreadable file", "none.yaml", "none.yaml: no such file"},
		{"unreadable configuration", "-c none.yaml", "none.yaml: no such file"},
		{"both", "-c softdpu.yaml policy.yaml", "takes -c or files, not both"},
		{"unreadable routes", "policy.yaml --routes none.json", "none.json: no such file"},
		{"unreadable routes of a configuration", "-c two.yaml --routes none.json", "none.json: no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"policy", "check"}, strings.Fields(tt.args)...)...)
			if code != exitError || !strings.Contains(stderr, tt.want) || stdout != "" {
				t.Errorf("exit code %d, said %q, printed:\n%s", code, stderr, stdout)
			}
		})
	}
}

func TestPolicyCheckJSON(t *testing.T) {
	t.Chdir(simDir(t))
	check := func(want int, args ...string) (r checkReport) {
		t.Helper()
		code, stdout, stderr := execute(t, append([]string{"policy", "check", "-o", "json"}, args...)...)
		if err := json.Unmarshal([]byte(stdout), &r); code != want || err != nil {
			t.Fatalf("exit code %d, %v: %s%s", code, err, stderr, stdout)
		}
		return r
	}
	r := check(exitYes, "policy.yaml")
	if !r.OK || r.Rules != 4 || r.Zones != 2 || r.Tests != 1 || len(r.Files) != 1 || r.Classifier == nil || r.Classifier.Entries < 5 || r.Classifier.Instructions < 10 {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile("bad.yaml", []byte("apiVersion: softdpu/v1\nkind: Policy\nzonse: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = check(exitNo, "bad.yaml", "policy.yaml")
	if r.OK || len(r.Errors) != 1 || r.Errors[0].File != "bad.yaml" || r.Errors[0].Line != 3 || r.Errors[0].Column != 1 ||
		!strings.Contains(r.Errors[0].Hint, "zones") || r.Errors[0].Source != "zonse: {}" {
		t.Errorf("%+v", r)
	}
}

// A report that could not be written is no yes: a script that keeps it on a full disk learns of it.
func TestPolicyCheckUnwritten(t *testing.T) {
	t.Chdir(simDir(t))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := os.WriteFile("bad.yaml", []byte("apiVersion: softdpu/v1\nkind: Policy\nzonse: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"policy.yaml", "bad.yaml"} {
		var complaints strings.Builder
		env := &Env{Stdin: strings.NewReader(""), Stdout: full, Stderr: &complaints, Getenv: os.Getenv, Width: func() int { return 0 }}
		if code := run(t.Context(), env, []string{"policy", "check", file}); code != exitError || !strings.Contains(complaints.String(), "no space left") {
			t.Errorf("%s: exit code %d, said %q", file, code, complaints.String())
		}
	}
}
