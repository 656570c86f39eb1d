package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// Sums says of every flow what All says.
func TestSumsAreThoseOfAll(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flows [2]int // IPv4, IPv6
		cfg   TableConfig
	}{
		{"empty", [2]int{0, 0}, TableConfig{Groups4: 64, Groups6: 64, FlowsMax: 300, HalfOpenMax: 300}},
		{"both families", [2]int{90, 70}, TableConfig{Groups4: 64, Groups6: 64, FlowsMax: 300, HalfOpenMax: 300, OverflowMax: 20}},
		{"IPv6 alone", [2]int{0, 50}, TableConfig{Groups4: 64, Groups6: 64, FlowsMax: 300, HalfOpenMax: 300}},
		{"overflow", [2]int{20, 20}, TableConfig{Groups4: 1, Groups6: 1, FlowsMax: 100, HalfOpenMax: 100, OverflowMax: 20}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := newTable(t, tt.cfg)
			rng := rand.New(rand.NewPCG(7, 7))
			for i, n := range tt.flows {
				for range n {
					tuple := randomTuple(rng, uint8(4+2*i))
					opened(table, tuple, []bpf.XDPFlowState{bpf.XDPFlowStateFLOW_REPLIED, bpf.XDPFlowStateFLOW_ESTABLISHED}[rng.IntN(2)], 1)
					k := keyOf(&tuple)
					e, ok := table.find(&k)
					if !ok {
						t.Fatal("a flow that was opened is not there")
					}
					e.core.Rule = rng.Uint32N(100)
					for leg := range e.count {
						e.count[leg] = bpf.XDPFlowCount{Packets: rng.Uint64N(1000), Bytes: rng.Uint64N(1_000_000)}
					}
					e.core.From, e.core.To, e.core.Context = uint8(rng.IntN(256)), uint8(rng.IntN(256)), uint16(rng.IntN(1<<16))
					if rng.IntN(4) == 0 {
						e.core.Word |= WordRevoked
					}
				}
			}
			want, got := make(map[Sum]int), make(map[Sum]int)
			for f := range table.All() {
				want[Sum{f.State, f.Revoked, f.Rule, f.From, f.To, f.Context, f.Packets, f.Bytes, f.Stages[0] | f.Stages[1]}]++
			}
			n := 0
			table.Sums(func(s *Sum) { got[*s]++; n++ })
			if n != tt.flows[0]+tt.flows[1] {
				t.Errorf("%d flows of %v", n, tt.flows)
			}
			for s, times := range want {
				if got[s] != times {
					t.Errorf("%+v: %d times, not %d", s, got[s], times)
				}
			}
		})
	}
}

// BenchmarkSums2M is what reading the counters of a million flows costs.
func BenchmarkSums2M(b *testing.B) {
	table := halfFull(b)
	n := 0
	for b.Loop() {
		table.Sums(func(s *Sum) { n += int(s.State) })
	}
	if n == 0 {
		b.Fatal("no flows")
	}
}
