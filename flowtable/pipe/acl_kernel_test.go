package pipe_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/oracle"
)

// aclShapes are kinds of sets of entries that classifiers may find hard.
var aclShapes = []string{"mixed", "wide", "nested", "identical", "ports", "six"}

// aclSet is an ACL pipe of so many entries of a shape.
func aclSet(r *rand.Rand, shape string, n int) *pipe.Pipeline {
	field := pipe.LookupField
	prefix := func(name string, v pipe.Value, bits int) pipe.Match {
		m := pipe.Match{Field: field(name), Value: slices.Clone(v), Mask: make(pipe.Value, len(v))}
		for i := range v {
			m.Mask[i] = ^uint32(0)
			if left := bits - 32*i; left < 32 {
				m.Mask[i] = ^uint32(0) << (32 - max(left, 0))
			}
			m.Value[i] &= m.Mask[i]
		}
		return m
	}
	span := func(name string, first, last uint32) pipe.Match {
		return pipe.Match{Field: field(name), Value: pipe.Value{min(first, last)}, Last: pipe.Value{max(first, last)}}
	}
	four := func() pipe.Value { return pipe.Value{10<<24 | r.Uint32N(1<<18)} }
	six := func() pipe.Value { return pipe.Value{0x20010db8, r.Uint32N(4) << 30, r.Uint32N(3), r.Uint32N(1 << 10)} }
	acl := &pipe.Pipe{Name: "acl", Kind: pipe.ACL, Miss: pipe.Forward{To: pipe.ToPolicy}, Monitor: pipe.Monitor{Count: true}, Forward: &pipe.Forward{To: pipe.ToDrop}}
	for i := range n {
		e := &pipe.Entry{Name: fmt.Sprintf("e%d", i), Priority: r.IntN(3)}
		kind := shape
		if shape == "mixed" {
			kind = aclShapes[1+r.IntN(len(aclShapes)-1)]
		}
		switch kind {
		case "wide":
			e.Match = append(e.Match, prefix("ipv4.src", four(), r.IntN(16)), prefix("ipv4.dst", four(), 8+r.IntN(12)))
		case "nested": // each inside those before
			at := uint32(i % 12)
			e.Match = append(e.Match, prefix("ipv4.dst", pipe.Value{0x0a0a0a0a}, int(32-at*2)), span("l4.dport", 1000-at*50, 1000+at*50), span("l4.sport", 30000-at*2000, 30000+at*2000))
		case "identical":
			e.Match = append(e.Match, prefix("ipv4.src", pipe.Value{0x0a010000}, 16), prefix("ipv4.dst", pipe.Value{0x0a020000}, 16), span("l4.dport", r.Uint32N(100), r.Uint32N(100)))
		case "ports":
			e.Match = append(e.Match, span("l4.sport", r.Uint32N(1<<16), r.Uint32N(1<<16)))
			if r.IntN(2) == 0 {
				p := r.Uint32N(1 << 16)
				e.Match = append(e.Match, span("l4.dport", p, p))
			}
		case "six":
			e.Match = append(e.Match, prefix("ipv6.dst", six(), r.IntN(129)))
			if r.IntN(2) == 0 {
				e.Match = append(e.Match, prefix("ipv6.src", six(), 96+r.IntN(33)))
			}
		}
		if e.Match[0].Field.Name[:2] != "l4" && len(e.Match) < 3 {
			switch r.IntN(4) {
			case 0:
				e.Match = append(e.Match, pipe.Match{Field: field("ip.proto"), Value: pipe.Value{[]uint32{1, 6, 17, 50, 58}[r.IntN(5)]}})
			case 1:
				e.Match = append(e.Match, pipe.Match{Field: field("icmp.type"), Value: pipe.Value{r.Uint32N(20)}})
			}
		}
		acl.Entries = append(acl.Entries, e)
	}
	return &pipe.Pipeline{Name: "acl", Root: "acl", Pipes: []*pipe.Pipe{acl}}
}

// aclPacket is a packet at a corner of an entry, or beside it.
func aclPacket(r *rand.Rand, e *pipe.Entry) (f bpf.PipesPipeFields) {
	w := &f.Word
	version, proto := uint32(bpf.PipesPipeHasPIPE_HAS_IPV4), []uint32{1, 6, 6, 17, 17, 50, 58}[r.IntN(7)]
	w[bpf.PipesPipeWordPIPE_IP_SRC], w[bpf.PipesPipeWordPIPE_IP_DST] = 10<<24|r.Uint32N(1<<18), 10<<24|r.Uint32N(1<<18)
	w[bpf.PipesPipeWordPIPE_L4SPORT], w[bpf.PipesPipeWordPIPE_L4DPORT] = r.Uint32N(1<<16), r.Uint32N(1<<16)
	w[bpf.PipesPipeWordPIPE_ICMP_TYPE], w[bpf.PipesPipeWordPIPE_ICMP_CODE] = r.Uint32N(20), r.Uint32N(3)
	for _, m := range e.Match {
		v := w[m.Field.Word : m.Field.Word+m.Field.Words()]
		switch m.Field.Name {
		case "ipv6.src", "ipv6.dst":
			version = uint32(bpf.PipesPipeHasPIPE_HAS_IPV6)
		case "ip.proto":
			proto = m.Value[0]
		case "icmp.type":
			proto = []uint32{1, 58}[r.IntN(2)]
		case "l4.sport", "l4.dport":
			proto = []uint32{6, 17}[r.IntN(2)]
		}
		if m.Last != nil {
			v[0] = (m.Value[0] + []uint32{0, m.Last[0] - m.Value[0], 0xffff, m.Last[0] - m.Value[0] + 1, (m.Last[0] - m.Value[0]) / 2}[r.IntN(5)]) & 0xffff
			continue
		}
		ones := r.IntN(3) // at the first address, at the last, or anywhere in it
		for i := range v {
			v[i] = m.Value[i]
			if m.Mask != nil {
				v[i] |= ^m.Mask[i] & []uint32{0, ^uint32(0), r.Uint32()}[ones]
			}
		}
		if r.IntN(6) == 0 {
			v[r.IntN(len(v))] ^= 1 << r.IntN(32) & m.Field.Full()[0]
		}
	}
	has := uint32(bpf.PipesPipeHasPIPE_HAS_IP) | version
	w[bpf.PipesPipeWordPIPE_IP_PROTO] = proto
	switch {
	case r.IntN(12) == 0: // a later fragment
		proto = 0
	case proto == 6:
		has |= uint32(bpf.PipesPipeHasPIPE_HAS_TCP | bpf.PipesPipeHasPIPE_HAS_PORTS)
	case proto == 17:
		has |= uint32(bpf.PipesPipeHasPIPE_HAS_UDP | bpf.PipesPipeHasPIPE_HAS_PORTS)
	case proto == 1 || proto == 58:
		has |= uint32(bpf.PipesPipeHasPIPE_HAS_ICMP)
	}
	if proto != 6 && proto != 17 {
		w[bpf.PipesPipeWordPIPE_L4SPORT], w[bpf.PipesPipeWordPIPE_L4DPORT] = 0, 0
	}
	if proto != 1 && proto != 58 {
		w[bpf.PipesPipeWordPIPE_ICMP_TYPE], w[bpf.PipesPipeWordPIPE_ICMP_CODE] = 0, 0
	}
	w[bpf.PipesPipeWordPIPE_HAS], w[bpf.PipesPipeWordPIPE_LENGTH] = has, 60
	return f
}

// TestACLShapes: sets of shapes that classifiers may find hard, in instructions and as forests, answer as a look at one entry
// after the other does: the kernel, Go and the oracle, on packets at the entries' corners.
func TestACLShapes(t *testing.T) {
	needsRoot(t)
	seeds, sizes := []uint64{1}, []int{120, 2600}
	long := os.Getenv("SOFTDPU_LONG") != ""
	if long {
		seeds = nil
		for seed := range uint64(12) {
			seeds = append(seeds, seed+100)
		}
		sizes = []int{1, 40, 300, 2047, 2600, 9000}
	}
	for _, shape := range aclShapes {
		for _, n := range sizes {
			if n > 2048 && !long && shape != "mixed" {
				continue
			}
			for _, seed := range seeds {
				r := rand.New(rand.NewPCG(seed, uint64(n)))
				three := newThree(t, aclSet(r, shape, n), pipe.Options{}, true)
				entries := three.line.Pipes[0].Entries
				packets := make([]bpf.PipesPipeFields, kernelBatch)
				for i := range packets {
					packets[i] = aclPacket(r, entries[r.IntN(len(entries))])
				}
				answers := three.kernel.run(t, slices.Clone(packets))
				found := map[string]bool{}
				for i := range packets {
					f := packets[i]
					want := three.world.Walk(oracle.Packet(f.Word), 0)
					got, walk := three.program.Run(&f)
					if answers[i] != got || want.Walk[0].Found != walk[0].Found || want.Walk[0].Entry != nil && entries[walk[0].Entry] != want.Walk[0].Entry {
						t.Fatalf("%s of %d, seed %d: packet %v: kernel answers %#x, Go %#x after %+v, oracle %s", shape, n, seed, packets[i].Word, answers[i], got, walk, describe(want))
					}
					if e := want.Walk[0].Entry; e != nil {
						found[e.Name] = true
					}
				}
				three.counts(t)
				if len(found) < min(n, 3) {
					t.Errorf("%s of %d, seed %d: only %d entries are found", shape, n, seed, len(found))
				}
			}
		}
	}
}
