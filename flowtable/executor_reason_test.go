package flowtable

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Every parse failure has a reason, and all but OK a reason to drop.
func TestFailureReasonsAreComplete(t *testing.T) {
	for f := range packet.FailureLen {
		reason := failureReasons[f]
		if (reason == bpf.XDPReasonREASON_NONE) != (f == packet.OK) {
			t.Errorf("failure %v has the reason %v", f, reason)
		}
	}
}

func TestRefusal(t *testing.T) {
	for action, want := range map[bpf.XDPAction]bpf.XDPReason{
		bpf.XDPActionACTION_NONE:    bpf.XDPReasonREASON_NO_RULE_MATCHED,
		bpf.XDPActionACTION_ALLOW:   bpf.XDPReasonREASON_NONE,
		bpf.XDPActionACTION_DENY:    bpf.XDPReasonREASON_DENY,
		bpf.XDPActionACTION_REJECT:  bpf.XDPReasonREASON_REJECT,
		bpf.XDPActionACTION_SPOOFED: bpf.XDPReasonREASON_SPOOFED,
		7:                           bpf.XDPReasonREASON_NO_RULE_MATCHED, // what no compiler writes opens nothing
	} {
		if got := refusal(action); got != want {
			t.Errorf("action %d: %v, want %v", action, got, want)
		}
		if got := actionOf(Verdict(0xffffff, uint32(action), VerdictLog|VerdictMidstream)); got != action {
			t.Errorf("action %d comes out of its verdict as %d", action, got)
		}
	}
}
