package pipe_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Tables of prefixes, with and without an exact part, answer the same in other memory, and the old one may go.
func TestMovePrefixes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	f := pipe.LookupField
	line := &pipe.Pipeline{Name: "moved", Root: "a"}
	for i, name := range []string{"a", "b"} {
		p := &pipe.Pipe{Name: name, Kind: pipe.LPM, Match: []pipe.MatchField{{Field: f("ipv4.dst")}}, Forward: &pipe.Forward{To: pipe.ToDrop}, Miss: pipe.Forward{To: pipe.ToPolicy}}
		if i == 0 {
			p.Miss = pipe.Forward{To: pipe.ToPipe, Name: "b"}
		} else {
			p.Match = append(p.Match, pipe.MatchField{Field: f("ip.proto")})
		}
		for n := range 200 {
			e := &pipe.Entry{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), byte(16 * i)}), 20)}
			if i == 1 {
				e.Match = []pipe.Match{{Field: f("ip.proto"), Value: pipe.Value{[]uint32{6, 17}[n%2]}}}
			}
			p.Entries = append(p.Entries, e)
		}
		line.Pipes = append(line.Pipes, p)
	}
	p := compiled(t, line, pipe.Options{Seed: 3})
	packets := make([]bpf.PipesPipeFields, 500)
	answers := make([]int, len(packets))
	entries := func() {
		for i := range packets {
			fields := packets[i]
			_, walk := p.Run(&fields)
			answers[i] = 1000*len(walk) + walk[len(walk)-1].Entry
		}
	}
	for i := range packets {
		w := &packets[i].Word
		w[bpf.PipesPipeWordPIPE_HAS] = uint32(bpf.PipesPipeHasPIPE_HAS_IPV4 | bpf.PipesPipeHasPIPE_HAS_IP)
		w[bpf.PipesPipeWordPIPE_IP_PROTO] = []uint32{6, 17, 1}[i%3]
		w[bpf.PipesPipeWordPIPE_IP_DST] = 10<<24 | r.Uint32N(1<<24)&^0xc000
	}
	entries()
	before := slices.Clone(answers)
	if found := slices.Compact(slices.Sorted(slices.Values(before))); len(found) < 100 {
		t.Fatalf("only %d answers: the packets ask too little", len(found))
	}
	old := p.Memory
	m := &pipe.Memory{
		Entries: slices.Clone(old.Entries), Buckets: slices.Clone(old.Buckets), Meters: slices.Clone(old.Meters), Tries: make([]uint64, len(old.Tries)),
		Arena: pipe.NewArena(make([]uint64, len(old.Arena.Roots)), make([]bpf.PipesPipeNode4, len(old.Arena.Nodes4)), make([]bpf.PipesPipeNode6, len(old.Arena.Nodes6))),
	}
	if err := p.MovePrefixes(&pipe.Memory{}, nil); err == nil {
		t.Error("no error without room")
	}
	if err := p.MovePrefixes(m, nil); err != nil {
		t.Fatal(err)
	}
	p.Memory = m
	clear(old.Entries)
	clear(old.Buckets)
	clear(old.Tries)
	entries()
	if !slices.Equal(answers, before) {
		t.Error("other entries are found in the other memory")
	}
}
