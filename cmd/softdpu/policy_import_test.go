package main

import (
	"os"
	"strings"
	"testing"
)

func TestImportClassBench(t *testing.T) {
	t.Chdir(t.TempDir())
	set := "@192.0.2.0/24\t198.51.100.1/32\t0 : 65535\t80 : 80\t0x06/0xFF\t0x0000/0x0000\t\n@0.0.0.0/0\t0.0.0.0/0\t0 : 65535\t80 : 80\t0x01/0xFF\t0x0000/0x0000\t\n"
	if err := os.WriteFile("set.rules", []byte(set), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("bad.rules", []byte(set+"allow all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, policy, stderr := execute(t, "policy", "import", "classbench", "set.rules")
	if code != exitYes || !strings.Contains(policy, "name: line-1, ") || strings.Contains(policy, "line-2") ||
		!strings.Contains(stderr, "warning: set.rules:2:1: ports of protocol 1") || !strings.HasSuffix(stderr, "imported: 1 rule of 2 lines; 1 warning\n") {
		t.Errorf("exit code %d, said %q, printed:\n%s", code, stderr, policy)
	}
	if err := os.WriteFile("policy.yaml", []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := execute(t, "policy", "check", "policy.yaml"); code != exitYes {
		t.Errorf("what was imported is no policy: %s%s", stdout, stderr)
	}
	if code, _, stderr := execute(t, "policy", "import", "classbench", "bad.rules"); code != exitNo || !strings.Contains(stderr, "bad.rules:3:1: this is not a rule") || !strings.HasSuffix(stderr, "1 error\n") {
		t.Errorf("a mistake: exit code %d, said %q", code, stderr)
	}
	if code, _, stderr := execute(t, "policy", "import", "classbench", "none.rules"); code != exitError || !strings.Contains(stderr, "none.rules: no such file") {
		t.Errorf("no file: exit code %d, said %q", code, stderr)
	}
	if code, _, stderr := execute(t, "policy", "import", "classbench", "-"); code != exitNo || !strings.Contains(stderr, "standard input: there is no rule in it") {
		t.Errorf("an empty standard input: exit code %d, said %q", code, stderr)
	}
}
