package flowtable

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// Flows get the stages of their rule and of the configuration when they are opened and when they are judged
// again; what goes to the gateway itself never does.
func TestStages(t *testing.T) {
	const inspect = 0x80 // any other bit
	there, back := fromClient4.udp(t, 1000, 53, 10), fromServer4.udp(t, 53, 1000, 20)
	own := side{lanIf, client4, gateway4}.udp(t, 1000, 53, 10)
	r := newRig(t, func(c *Config) {
		c.Stages = Stages{Force: bpf.StageForward, Rules: map[uint32]uint8{ruleAll: inspect}}
	})
	legs := func(what string, stages uint8, ready bool) {
		t.Helper()
		f := r.flow(fromClient4.tuple(17, 1000, 53))
		if f.Stages != [2]uint8{stages, stages} || f.Ready != ready || f.Home != 0 {
			t.Errorf("%s: stages %v, ready %v, want %#x, %v", what, f.Stages, f.Ready, stages, ready)
		}
	}
	for ifindex, frame := range map[uint32][]byte{lanIf: there, wanIf: back} {
		if ifindex == wanIf {
			r.want(lanIf, there, Forward, reasonNone)
		}
		if res := r.want(ifindex, frame, Forward, reasonNone); res.Stages != bpf.StageForward|inspect {
			t.Errorf("in by %d: stages %#x", ifindex, res.Stages)
		}
	}
	legs("opened", bpf.StageForward|inspect, false)
	if res := r.want(lanIf, own, Pass, reasonNone); res.Stages != 0 {
		t.Errorf("a packet to the gateway itself has stages %#x", res.Stages)
	}

	// A rule that asks for less, and one that asks for nothing.
	r.SetStages(Stages{Rules: map[uint32]uint8{5: inspect}})
	legs("not judged again yet", bpf.StageForward|inspect, false)
	r.Publish(11, always(allow(5)), 9)
	if res := r.want(wanIf, back, Forward, reasonNone); res.Stages != inspect {
		t.Errorf("under rule 5: stages %#x", res.Stages)
	}
	legs("rule 5", inspect, false)
	r.Publish(12, always(allow(6)), 9)
	if res := r.want(lanIf, there, Forward, reasonNone); res.Stages != inspect || res.Word&WordReady == 0 {
		t.Errorf("under rule 6: stages %#x, word %#x", res.Stages, res.Word)
	}
	legs("rule 6", inspect, true)
	// One that refuses changes nothing of that.
	r.Publish(13, always(deny(3)), 9)
	if res := r.want(lanIf, there, Drop, bpf.XDPReasonREASON_POLICY_REVOKED); res.Stages != 0 {
		t.Errorf("a refused packet has stages %#x", res.Stages)
	}
	legs("refused", inspect, true)
	r.Publish(14, always(allow(5)), 9)
	r.want(lanIf, there, Forward, reasonNone)
	legs("rule 5 again", inspect, false)

	// A packet that goes to the kernel does not go to a worker.
	r.route = &Route{Nexthop: hopPending}
	r.now += 2 * second
	if res := r.want(lanIf, there, Pass, reasonNone); res.Stages != 0 {
		t.Errorf("a packet whose next hop is not known has stages %#x", res.Stages)
	}
}
