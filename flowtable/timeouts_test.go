package flowtable

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Every protocol has the time-outs of its class: to the tick, whatever the others have.
func TestTimeoutsByProtocolAndState(t *testing.T) {
	var timeouts Timeouts
	for class := range timeouts {
		for state := 1; state < len(timeouts[class]); state++ {
			timeouts[class][state] = uint32(1000*(class+1) + 100*state)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for proto, class := range map[uint8]Class{
		packet.ProtoTCP: ClassTCP, packet.ProtoUDP: ClassUDP, packet.ProtoICMP: ClassICMP, packet.ProtoICMPv6: ClassICMP,
		packet.ProtoGRE: ClassOther, packet.ProtoESP: ClassOther, packet.ProtoAH: ClassOther, packet.ProtoSCTP: ClassOther,
		packet.ProtoNone: ClassOther, 4: ClassOther, 255: ClassOther,
	} {
		for state := bpf.XDPFlowStateFLOW_FREE + 1; state < bpf.XDPFlowStateFLOW_ALIAS; state++ {
			if (class == ClassTCP) == (state == bpf.XDPFlowStateFLOW_NEW || state == bpf.XDPFlowStateFLOW_REPLIED) {
				continue // no flow of this protocol is ever in it
			}
			for _, family := range []uint8{4, 6} {
				t.Run(fmt.Sprintf("proto %d %v IPv%d", proto, state, family), func(t *testing.T) {
					table := scanTable(t)
					tuple := randomTuple(rng, family)
					tuple.Proto = proto
					const created = 0xffffff00 // ticks wrap during the test
					opened(table, tuple, state, created)
					after := timeouts[class][state]
					if n := table.Scan(created+after-1, &timeouts, func() {}, func(*Flow) {}); n != 0 {
						t.Errorf("freed a tick before %d", after)
					}
					if n := table.Scan(created+after, &timeouts, func() {}, func(*Flow) {}); n != 1 || table.Flows() != 0 || table.Flows6() != 0 {
						t.Errorf("%d freed after %d ticks", n, after)
					}
				})
			}
		}
	}
}

// A time-out that is measured by the clock of packets, which steps, is never shorter than it says.
func TestTimeoutIsNeverShorter(t *testing.T) {
	for _, step := range []uint64{1, 1e6, 4e6, 10e6} {
		coarse := func(ns uint64) uint32 { return Tick(ns / step * step) }
		rng := rand.New(rand.NewPCG(1, step))
		for range 100_000 {
			d := time.Duration(rng.Uint64N(uint64(24 * 24 * time.Hour)))
			last := rng.Uint64N(1 << 60)
			ticks := TimeoutTicks(d)
			if ticks > 1<<31-1 {
				t.Fatalf("%v are %d ticks: they no longer compare", d, ticks)
			}
			var f bpf.XDPFlow4
			f.Core.Word = uint64(bpf.XDPFlowStateFLOW_REPLIED)
			f.Leg[0].Seen, f.Leg[1].Seen = coarse(last), coarse(last)-5
			timeouts := UniformTimeouts(ticks)
			if early := last + uint64(d) - 1; timeouts.Expired(coarse(early), packet.ProtoUDP, &f.Core, &f.Leg) {
				t.Fatalf("clock of %d ns: idle since %d, expired at %d, before %v", step, last, early, d)
			}
			if late := last + uint64(d) + 25e6; !timeouts.Expired(coarse(late), packet.ProtoUDP, &f.Core, &f.Leg) {
				t.Fatalf("clock of %d ns: idle since %d, not expired at %d, 25 ms after %v", step, last, late, d)
			}
		}
	}
}
