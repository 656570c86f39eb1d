package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/testenv"
)

func TestDemo(t *testing.T) {
	testenv.RequireRoot(t)
	t.Setenv("TMPDIR", t.TempDir())
	code, stdout, stderr := execute(t, "lab", "demo", "--prefix", "t-gw-demo")
	if code != exitYes {
		t.Fatalf("exit code %d:\n%s\n%s", code, stdout, stderr)
	}
	for _, want := range []string{
		"rule web, 50-office.yaml:13", "refused at once", "rule no-mail", "no-rule-matched", "spoofed", "by way of 10.10.1.1",
		"$ softdpu rules --used", "[fd10:2::2]:80", "no hardware offload on port wan (veth)", `"event":"deny","rule":"no-telnet"`,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("does not show %q:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "\x1b[") {
		t.Error("colours without a terminal")
	}
	left, err := filepath.Glob("/run/netns/t-gw-demo-*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if left, _ = filepath.Glob(filepath.Join(os.TempDir(), "softdpu-demo-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The demo believes nothing that the counters do not tell.
func TestAttemptIsJudged(t *testing.T) {
	counts := func(judged, dropped uint64) demoCounts {
		return demoCounts{
			judged: map[string]uint64{"no-telnet": judged, "none": 1},
			drops:  map[string]uint64{"deny": dropped},
			rules:  map[string]gateway.RuleStatus{"no-telnet": {Name: "no-telnet", File: "/x/p.yaml", Line: 3}},
		}
	}
	tests := []struct {
		name    string
		got     []demoOutcome
		after   demoCounts
		right   bool
		decided string
	}{
		{"as it must be", []demoOutcome{demoSilence, demoSilence}, counts(3, 4), true, "rule no-telnet, p.yaml:3: deny"},
		{"one family passed", []demoOutcome{demoSilence, demoPassed}, counts(3, 4), false, "rule no-telnet, p.yaml:3: deny"},
		{"no drop counted", []demoOutcome{demoSilence}, counts(3, 2), false, "rule no-telnet, p.yaml:3"},
		{"another rule", []demoOutcome{demoSilence}, counts(1, 4), false, "deny"},
		{"nothing counted", []demoOutcome{demoSilence}, counts(1, 2), false, "the counters do not tell"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := attempt{want: demoSilence, rule: "no-telnet", reason: "deny", got: tt.got}
			a.judge(counts(1, 2), tt.after)
			if a.right != tt.right || a.decided != tt.decided {
				t.Errorf("%t, %q", a.right, a.decided)
			}
		})
	}
}
