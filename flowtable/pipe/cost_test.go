package pipe_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

// alike makes a pipeline of one pipe with n entries that IPv4 packets are looked up in.
func alike(r *rand.Rand, kind pipe.Kind, n int, fixed, count bool) *pipe.Pipeline {
	f := pipe.LookupField
	p := &pipe.Pipe{Name: "p", Kind: kind, Fixed: fixed, Miss: pipe.Forward{To: pipe.ToDrop}, Forward: &pipe.Forward{To: pipe.ToPort, Name: "lan0"}, Monitor: pipe.Monitor{Count: count}}
	switch kind {
	case pipe.Basic:
		p.Match = []pipe.MatchField{{Field: f("ipv4.src")}, {Field: f("l4.dport")}}
	case pipe.LPM:
		p.Match = []pipe.MatchField{{Field: f("ipv4.dst")}}
	case pipe.Hash:
		p.Match, p.Algorithm, p.Size = []pipe.MatchField{{Field: f("ipv4.src")}, {Field: f("l4.dport")}}, pipe.ByHash, n
	}
	for i := range n {
		e := &pipe.Entry{}
		address := pipe.Value{10<<24 | uint32(i)*7}
		switch kind {
		case pipe.Basic:
			e.Match = []pipe.Match{{Field: f("ipv4.src"), Value: address}, {Field: f("l4.dport"), Value: pipe.Value{uint32(i) & 1023}}}
		case pipe.Control:
			e.Match = []pipe.Match{{Field: f("ipv4.src"), Value: address}, {Field: f("l4.dport"), Value: pipe.Value{uint32(i) & 1023}}}
		case pipe.LPM:
			a := 10<<24 | uint32(i)<<8
			e.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8)}), 24)
		case pipe.ACL:
			e.Match = []pipe.Match{{Field: f("ipv4.src"), Value: address, Mask: pipe.Value{0xfffffff8}}, {Field: f("l4.dport"), Value: pipe.Value{uint32(i) & 1023}, Last: pipe.Value{uint32(i)&1023 + 5}}}
		case pipe.Hash:
			e.Index = i
		}
		p.Entries = append(p.Entries, e)
	}
	return &pipe.Pipeline{Name: "bench", Root: "p", BypassesPolicy: true, Pipes: []*pipe.Pipe{p}}
}

// measure returns what a packet takes in the kernel.
func measure(t *testing.T, r *rand.Rand, line *pipe.Pipeline) (ns float64, p *pipe.Program) {
	t.Helper()
	line, err := line.Resolve(random.Ports)
	if err != nil {
		t.Fatal(err)
	}
	o := pipe.Options{Seed: 5, SpreadSeed: 7}
	p, err = pipe.Compile(line, o)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, r, line, p, o), p
}

// run returns what a packet takes; nil is no pipeline.
func run(t *testing.T, r *rand.Rand, line *pipe.Pipeline, p *pipe.Program, o pipe.Options) float64 {
	t.Helper()
	k := newKernel(t, p, o, false)
	packets := make([]bpf.PipesPipeFields, kernelBatch)
	for i := range packets {
		w := &packets[i].Word
		w[bpf.PipesPipeWordPIPE_HAS] = uint32(bpf.PipesPipeHasPIPE_HAS_IPV4 | bpf.PipesPipeHasPIPE_HAS_IP | bpf.PipesPipeHasPIPE_HAS_TCP | bpf.PipesPipeHasPIPE_HAS_PORTS)
		n := r.Uint32N(uint32(max(1, len(line.Pipes[0].Entries))))
		w[bpf.PipesPipeWordPIPE_IP_PROTO], w[bpf.PipesPipeWordPIPE_IP_SRC], w[bpf.PipesPipeWordPIPE_L4DPORT] = 6, 10<<24|n*7, n&1023
		w[bpf.PipesPipeWordPIPE_IP_DST] = 10<<24 | n<<8
	}
	fill(t, k.maps["fields"], packets)
	best := time.Duration(1 << 62)
	for range 5 {
		const repeat = 300_000
		_, took, err := k.prog.Benchmark(make([]byte, 64), repeat, nil)
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, took)
	}
	return float64(best.Nanoseconds())
}

// What pipes are predicted to take, beside what they take in the kernel.
func TestPrediction(t *testing.T) {
	needsRoot(t)
	if os.Getenv("SOFTDPU_LONG") == "" {
		t.Skip("a measurement: set SOFTDPU_LONG")
	}
	r := rand.New(rand.NewPCG(1, 1))
	empty := run(t, r, alike(r, pipe.Basic, 1, true, false), nil, pipe.Options{})
	fmt.Printf("%-10s %8s %6s %6s %9s %9s\n", "kind", "entries", "form", "count", "measured", "predicted")
	for _, row := range []struct {
		kind  pipe.Kind
		n     int
		fixed bool
	}{
		{pipe.Control, 4, true}, {pipe.Control, 40, true}, {pipe.Control, 400, false}, {pipe.Control, 2000, false}, {pipe.Control, 5000, false},
		{pipe.Basic, 4, true}, {pipe.Basic, 40, true}, {pipe.Basic, 400, true}, {pipe.Basic, 2000, true},
		{pipe.Basic, 40, false}, {pipe.Basic, 400, false}, {pipe.Basic, 4000, false}, {pipe.Basic, 1_000_000, false},
		{pipe.LPM, 40, true}, {pipe.LPM, 400, false}, {pipe.LPM, 60_000, false},
		{pipe.ACL, 40, false}, {pipe.ACL, 1000, false}, {pipe.ACL, 4000, false}, {pipe.Hash, 16, false},
	} {
		for _, count := range []bool{false, true} {
			ns, p := measure(t, r, alike(r, row.kind, row.n, row.fixed, count))
			fmt.Printf("%-10s %8d %6s %6t %9.1f %9.1f\n", row.kind, row.n, p.Pipes[0].Form, count, ns-empty, p.Pipes[0].NS)
		}
	}
}
