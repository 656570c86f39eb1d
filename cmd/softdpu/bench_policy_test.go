package main

import (
	"strings"
	"testing"
)

// What nftables runs with is shown without root, and a set that there is none of is told.
func TestBenchPolicyPeer(t *testing.T) {
	code, stdout, stderr := execute(t, "bench", "policy", "--show-peer", "--kinds", "fw1", "--sizes", "10,1000")
	if code != exitYes || stderr != "" || !strings.Contains(stdout, "### nft-fw1-10\nnft -f FILE, with:\ntable ip bench {\n") ||
		!strings.Contains(stdout, "1000 rules in all") || strings.Contains(stdout, "acl1") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	if code, _, stderr := execute(t, "bench", "policy", "--show-peer", "--kinds", "fw9"); code != exitError || !strings.Contains(stderr, `"fw9": the kinds are`) {
		t.Errorf("an unknown kind: exit %d: %s", code, stderr)
	}
}
