package pipe_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/oracle"
)

// crossing is a pipeline with more of everything than fits: two fixed pipes whose searches are longer than a function, and
// together with lists of actions longer than a program; control pipes of more entries than become instructions; a
// classifier as a forest.
func crossing(r *rand.Rand, n int) *pipe.Pipeline {
	f := pipe.LookupField
	to := func(name string) *pipe.Forward { return &pipe.Forward{To: pipe.ToPipe, Name: name} }
	line := &pipe.Pipeline{Name: "crossing", Root: "c0", BypassesPolicy: true}
	control := &pipe.Pipe{Name: "c0", Kind: pipe.Control, Miss: *to("b0"), Forward: to("b0"), Monitor: pipe.Monitor{Count: true}}
	for i := range n + 600 {
		e := &pipe.Entry{Priority: i % 8}
		address := pipe.Value{10<<24 | r.Uint32N(1<<16)}
		switch i % 4 {
		case 0:
			e.Match = []pipe.Match{{Field: f("ipv4.src"), Value: address}, {Field: f("l4.dport"), Value: pipe.Value{r.Uint32N(1024)}}}
		case 1:
			e.Match = []pipe.Match{{Field: f("ipv4.src"), Value: pipe.Value{address[0] &^ 0xff}, Mask: pipe.Value{0xffffff00}}, {Field: f("ip.proto"), Value: pipe.Value{6}}}
		case 2:
			e.Match = []pipe.Match{{Field: f("ipv4.dst"), Value: address}, {Field: f("vlan.0.id"), Value: pipe.Value{r.Uint32N(4)}}}
		default:
			if i%16 != 3 {
				e.Match = []pipe.Match{{Field: f("ipv4.dst"), Value: address}}
				break
			}
			a, b := r.Uint32N(1<<16), r.Uint32N(1<<16)
			e.Match = []pipe.Match{{Field: f("l4.sport"), Value: pipe.Value{min(a, b)}, Last: pipe.Value{max(a, b)}}, {Field: f("ipv4.src"), Value: address}}
		}
		control.Entries = append(control.Entries, e)
	}
	line.Pipes = append(line.Pipes, control)
	for i := range 3 {
		p := &pipe.Pipe{
			Name: fmt.Sprintf("b%d", i), Kind: pipe.Basic, Fixed: true, Miss: *to([]string{"b1", "b2", "list"}[i]), Monitor: pipe.Monitor{Count: true},
			Match: []pipe.MatchField{{Field: f("ipv4.src")}, {Field: f("l4.dport")}, {Field: f("ip.proto")}},
		}
		seen := map[[2]uint32]bool{}
		for range n {
			k := [2]uint32{10<<24 | r.Uint32N(1<<16), r.Uint32N(1024)}
			if !seen[k] {
				seen[k] = true
				p.Entries = append(p.Entries, &pipe.Entry{Forward: to([]string{"b1", "b2", "list"}[i]), Match: []pipe.Match{
					{Field: f("ipv4.src"), Value: pipe.Value{k[0]}}, {Field: f("l4.dport"), Value: pipe.Value{k[1]}}, {Field: f("ip.proto"), Value: pipe.Value{6}},
				}})
			}
		}
		line.Pipes = append(line.Pipes, p)
	}
	for i := range line.Pipes[3].Entries {
		line.Pipes[3].Entries[i].Forward = &pipe.Forward{To: pipe.ToPipe, Name: "list", Index: i % 60}
	}
	list := &pipe.Pipe{Name: "list", Kind: pipe.OrderedList, Miss: *to("acl")}
	for i := range 60 {
		a := pipe.Action{}
		for range 12 {
			a.Ops = append(a.Ops, pipe.Op{Kind: pipe.Add, Field: f("eth.dst"), Value: pipe.Value{r.Uint32N(1 << 16), r.Uint32()}})
		}
		list.Entries = append(list.Entries, &pipe.Entry{Index: i, List: []pipe.Action{a}, Forward: to("acl")})
	}
	acl := &pipe.Pipe{Name: "acl", Kind: pipe.ACL, Miss: pipe.Forward{To: pipe.ToDrop}, Monitor: pipe.Monitor{Count: true}}
	for i := range n + 600 {
		a := r.Uint32N(1 << 16)
		acl.Entries = append(acl.Entries, &pipe.Entry{
			Priority: i % 7, Forward: &pipe.Forward{To: pipe.ToPort, Name: []string{"lan0", "lan1", "wan0"}[i%3]}, Match: []pipe.Match{
				{Field: f("ipv4.dst"), Value: pipe.Value{10<<24 | a&^0xff}, Mask: pipe.Value{0xffffff00}},
				{Field: f("l4.sport"), Value: pipe.Value{a}, Last: pipe.Value{min(a+r.Uint32N(5000), 65535)}},
			},
		})
	}
	line.Pipes = append(line.Pipes, list, acl)
	return line
}

// A pipeline that crosses every limit of what becomes instructions answers as its entries say, on 100,000 packets.
func TestLimits(t *testing.T) {
	needsRoot(t)
	r := rand.New(rand.NewPCG(31, 31))
	line := crossing(r, 1900)
	o := pipe.Options{Seed: 1, SpreadSeed: 2, Limits: pipe.Limits{Always: true}}
	three := newThree(t, line, o, true)
	program := three.program
	forms := map[pipe.Form]int{}
	for _, n := range program.Order {
		forms[program.Pipes[n].Form]++
	}
	first, others, err := program.Instructions()
	if err != nil {
		t.Fatal(err)
	}
	names, slots, longest := map[string]bool{}, 0, 0
	for _, function := range append(others, first) {
		names[function[0].Symbol()] = true
		n := 0
		for i := range function {
			n += int(function[i].Width())
		}
		slots, longest = slots+n, max(longest, n)
	}
	t.Logf("forms %v, %d functions, the longest of %d instructions, %d in all", forms, len(names), longest, slots)
	if forms[pipe.InCode] < 2 || forms[pipe.InBuckets] < 2 || !names["run_pipes_find1_1"] || !names["run_pipes_do4_2"] || slots > 65_536 || longest > 16_384 {
		t.Errorf("functions %v: the pipeline crosses too few limits", names)
	}
	rounds, sampled := 98, 30
	if os.Getenv("SOFTDPU_LONG") != "" {
		sampled = 1
	}
	found := map[int]int{}
	for range rounds {
		packets := make([]bpf.PipesPipeFields, kernelBatch)
		for i := range packets {
			w := &packets[i].Word
			w[bpf.PipesPipeWordPIPE_HAS] = uint32(bpf.PipesPipeHasPIPE_HAS_IPV4 | bpf.PipesPipeHasPIPE_HAS_IP | bpf.PipesPipeHasPIPE_HAS_TCP | bpf.PipesPipeHasPIPE_HAS_PORTS)
			w[bpf.PipesPipeWordPIPE_IP_PROTO] = 6
			w[bpf.PipesPipeWordPIPE_L4SPORT], w[bpf.PipesPipeWordPIPE_L4DPORT] = r.Uint32N(1<<16), r.Uint32N(1024)
			w[bpf.PipesPipeWordPIPE_IP_SRC], w[bpf.PipesPipeWordPIPE_IP_DST] = 10<<24|r.Uint32N(1<<16), 10<<24|r.Uint32N(1<<16)
			if i%3 == 0 {
				w[bpf.PipesPipeWordPIPE_HAS] |= uint32(bpf.PipesPipeHasPIPE_HAS_VLAN0)
				w[bpf.PipesPipeWordPIPE_VLANS], w[bpf.PipesPipeWordPIPE_VLAN0ID] = 1, r.Uint32N(5)
			}
			for range 2 {
				p := three.line.Pipes[[]int{0, 1, 2, 3, 3, 5}[r.IntN(6)]]
				for _, m := range p.Entries[r.IntN(len(p.Entries))].Match {
					w[m.Field.Word] = m.Value[0]
				}
			}
			w[bpf.PipesPipeWordPIPE_LENGTH] = 60 + r.Uint32N(1400)
		}
		after := slices.Clone(packets)
		answers := three.kernel.run(t, after)
		for i := range packets {
			f := packets[i]
			got, walk := program.Run(&f)
			if answers[i] != got || !slices.Equal(after[i].Word[:wordIndex], f.Word[:wordIndex]) {
				t.Fatalf("packet %v: kernel answers %#x, Go %#x after %+v", packets[i].Word, answers[i], got, walk)
			}
			for _, s := range walk {
				if s.Found {
					found[s.Pipe]++
				}
			}
			if i%sampled != 0 {
				continue
			}
			want := three.world.Walk(oracle.Packet(packets[i].Word), 0)
			if fault := three.differs(want, got, &f); fault != "" || len(walk) != len(want.Walk) {
				t.Fatalf("packet %v: Go %s, walk %+v, oracle %s", packets[i].Word, fault, walk, describe(want))
			}
		}
	}
	for n := range line.Pipes {
		if found[n] < rounds*kernelBatch/50 {
			t.Errorf("pipe %s found an entry for %d of %d packets: the test asks too little", line.Pipes[n].Name, found[n], rounds*kernelBatch)
		}
	}
}

// Entries that no cut tells apart are compared one by one, in several functions if they are many; and where no table could
// hold them, a pipe of more than fit is refused.
func TestRangesOneByOne(t *testing.T) {
	needsRoot(t)
	r := rand.New(rand.NewPCG(41, 41))
	names := []string{"l4.sport", "l4.dport", "meta.mark"}
	line := func(n int) *pipe.Pipeline {
		p := &pipe.Pipe{Name: "ranges", Kind: pipe.Control, Forward: &pipe.Forward{To: pipe.ToDrop}, Miss: pipe.Forward{To: pipe.ToPolicy}, Monitor: pipe.Monitor{Count: true}}
		for range n {
			e := &pipe.Entry{}
			for _, name := range names {
				a := r.Uint32N(1000)
				e.Match = append(e.Match, pipe.Match{Field: pipe.LookupField(name), Value: pipe.Value{a}, Last: pipe.Value{a + r.Uint32N(400)}})
			}
			p.Entries = append(p.Entries, e)
		}
		return &pipe.Pipeline{Name: "ranges", Root: "ranges", Pipes: []*pipe.Pipe{p}}
	}
	three := newThree(t, line(600), pipe.Options{Limits: pipe.Limits{Function: 9000}}, true)
	packets := make([]bpf.PipesPipeFields, kernelBatch)
	for i := range packets {
		w := &packets[i].Word
		w[bpf.PipesPipeWordPIPE_HAS] = uint32(bpf.PipesPipeHasPIPE_HAS_PORTS)
		w[bpf.PipesPipeWordPIPE_L4SPORT], w[bpf.PipesPipeWordPIPE_L4DPORT], w[bpf.PipesPipeWordPIPE_MARK] = r.Uint32N(1500), r.Uint32N(1500), r.Uint32N(1500)
	}
	answers := three.kernel.run(t, slices.Clone(packets))
	hits := 0
	for i := range packets {
		f := packets[i]
		want := three.world.Walk(oracle.Packet(f.Word), 0)
		got, walk := three.program.Run(&f)
		if fault := three.differs(want, got, &f); fault != "" || answers[i] != got || want.Walk[0].Found != walk[0].Found {
			t.Fatalf("packet %v: kernel answers %#x, Go %#x after %+v, oracle %s", packets[i].Word, answers[i], got, walk, describe(want))
		}
		if walk[0].Found {
			hits++
		}
	}
	three.counts(t)
	if _, others, _ := three.program.Instructions(); len(others) < 3 || hits < kernelBatch/4 || hits > kernelBatch*9/10 {
		t.Errorf("%d functions beside the first, %d of %d packets found an entry: the test asks too little", len(others), hits, kernelBatch)
	}
	large, err := line(8000).Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Compile(large, pipe.Options{}); err == nil || !strings.Contains(err.Error(), "more than the 65536 that fit into a program") || !strings.Contains(err.Error(), "most of it is pipe ranges") {
		t.Errorf("error %v of a pipe that does not fit", err)
	}
}
