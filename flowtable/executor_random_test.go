package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// Damaged frames of all kinds: nothing panics, each packet ends in one counter or leaves, flows add up.
func TestEveryPacketIsAccountedFor(t *testing.T) {
	t.Run("plain", func(t *testing.T) { accountFor(t) })
	t.Run("translated", func(t *testing.T) {
		everything := forward(server4, 0, 0, natByConnection, natServer(inner4, 8080), natServer(neighbour, 0))
		everything.when.Proto, everything.when.SrcPort = U8Range{0, 255}, U16Range{500, 65535}
		accountFor(t, masquerade(4, zoneLAN, zoneWAN, 1000, 1200), masquerade(6, zoneLAN, zoneWAN, 1024, 65535), everything)
	})
}

func accountFor(t *testing.T, nat ...natRow) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	r := natRig(t, nat...)
	r.ports[lanIf].Flags |= PortFixChecksum
	r.Publish(10, rules(func(k *bpf.XDPClassifyKey, _ func(uint32)) uint32 {
		return Verdict(uint32(1+k.Dport%9), uint32(k.Sport%5), uint32(k.Dport&3)<<28)
	}), 9)
	var seeds []packetIn
	for _, s := range []side{fromClient4, fromServer4, fromClient6, fromServer6, toHost4, inline4, inlineBack4} {
		udp, echo := s.udp(t, 1001, 53, 100), s.echo(t, true, 9)
		seeds = append(seeds, packetIn{s.ifindex, udp}, packetIn{s.ifindex, echo}, packetIn{s.ifindex, s.echo(t, false, 9)},
			packetIn{s.ifindex, tag(udp, 7)}, packetIn{s.ifindex, s.icmpError(t, 3, 1, udp)},
			packetIn{s.ifindex, s.tcp(t, 1001, 443, seg{flags: syn, scale: 5})}, packetIn{s.ifindex, s.tcp(t, 443, 1001, seg{flags: syn | ack})},
			packetIn{s.ifindex, s.tcp(t, 1001, 443, seg{flags: ack})}, packetIn{s.ifindex, s.tcp(t, 443, 1001, seg{flags: fin | ack})})
		for _, f := range cutUp(t, udp, 24, 24) {
			seeds = append(seeds, packetIn{s.ifindex, f})
		}
	}
	routes := []Route{{Nexthop: hopLAN}, {Nexthop: hopWAN}, {Nexthop: hopTagged}, {Nexthop: hopPending}, {Nexthop: hopSmall}, {Nexthop: NexthopHost}, {Reason: bpf.XDPReasonREASON_NO_ROUTE}}

	const packets = 100_000
	var left, passed uint64
	for i := range packets {
		in := seeds[rng.IntN(len(seeds))]
		f := append([]byte(nil), in.frame...)
		for range rng.IntN(4) {
			at := rng.IntN(len(f))
			f = patch(f, at, byte(rng.Uint32()))
			if len(f) < 34 {
				break
			}
		}
		if rng.IntN(10) == 0 {
			f = f[:rng.IntN(len(f)+1)]
		}
		if rng.IntN(1000) == 0 {
			r.SetNAT(r.cfg.NAT)
			r.Publish(uint32(11+i), r.cfg.Classifier, 9)
		}
		r.now += uint64(rng.IntN(int(second / 10)))
		r.route = &routes[rng.IntN(len(routes))]
		switch res := r.send(in.ifindex, f); {
		case res.Verdict == Forward:
			left++
			if len(res.Frame) == 0 || res.Reason != reasonNone {
				t.Fatalf("packet %d: forwarded as %+v", i, res)
			}
		case res.Pass != 0:
			passed++
		case res.Reason == reasonNone || res.Reason == bpf.XDPReasonREASON_INTERNAL:
			t.Fatalf("packet %d: dropped as %+v", i, res)
		}
	}
	var counted uint64
	for _, c := range r.Counters.Passes {
		counted += c.Packets
	}
	if counted != passed || left+passed+r.Counters.Dropped() != packets {
		t.Errorf("%d left, %d passed and counted %d, %d dropped: not %d", left, passed, counted, r.Counters.Dropped(), packets)
	}
	flows, half, aliases := int64(0), int64(0), int64(0)
	for f := range r.Table().All() {
		flows++
		if f.NAT != nil {
			aliases++
		}
		if halfOpen(f.State) {
			half++
		}
	}
	c := r.Table().Counters
	if flows+aliases != r.Table().Flows() || half != r.Table().HalfOpen() || aliases != r.Table().State().Aliases {
		t.Errorf("%d flows, %d translated, %d half-open; counts say %d, %d and %d; %+v", flows, aliases, half,
			r.Table().Flows(), r.Table().State().Aliases, r.Table().HalfOpen(), c)
	}
	if (aliases > 0) != (len(nat) > 0) {
		t.Errorf("%d flows are translated", aliases)
	}
	if left < packets/20 || passed < packets/100 || r.Counters.Reasons[bpf.XDPReasonREASON_FRAGMENT_OVERLAP].Packets == 0 {
		t.Errorf("%d left, %d passed: the packets are too broken to tell anything", left, passed)
	}
}
