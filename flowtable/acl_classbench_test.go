package flowtable

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// aclClassBench reads the first n lines of a ClassBench set. A port range there means TCP and UDP only,
// which is left out here: the sets are made for lookups, and so are these tests.
func aclClassBench(tb testing.TB, kind string, n int) []ACLEntry {
	tb.Helper()
	dir := os.Getenv("SOFTDPU_TESTDATA")
	if dir == "" {
		tb.Skip("SOFTDPU_TESTDATA is not set: ClassBench sets left out")
	}
	size := 1000
	for size < n {
		size *= 10
	}
	path := filepath.Join(dir, "classbench", fmt.Sprintf("%s_%d.rules.xz", kind, size))
	text, err := exec.Command("xzcat", path).Output()
	if err != nil {
		tb.Fatalf("read %s: %v", path, err)
	}
	var entries []ACLEntry
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && len(entries) < n; {
		var src, dst string
		var sf, sl, df, dl uint16
		var proto, mask uint8
		if _, err := fmt.Sscanf(lines.Text(), "@%s %s %d : %d %d : %d 0x%x/0x%x", &src, &dst, &sf, &sl, &df, &dl, &proto, &mask); err != nil {
			tb.Fatalf("%s line %d: %v", path, len(entries)+1, err)
		}
		e := ACLEntry{
			Src: []AddrRange{aclPrefix(netip.MustParsePrefix(src))}, Dst: []AddrRange{aclPrefix(netip.MustParsePrefix(dst))},
			SrcPort: U16Range{sf, sl}, DstPort: U16Range{df, dl}, Proto: U8Range{proto, proto}, Family: 4,
			Verdict: Verdict(uint32(len(entries)+1), 1, 0),
		}
		if mask == 0 {
			e.Proto = U8Range{0, 255}
		}
		entries = append(entries, e)
	}
	return entries
}

// aclFirewallRules are n rules as people write them: zones, networks, hosts, services.
func aclFirewallRules(n int) []ACLEntry {
	r := rand.New(rand.NewPCG(1, 2))
	services := []struct {
		proto       uint8
		first, last uint16
	}{{6, 22, 22}, {6, 80, 80}, {6, 443, 443}, {17, 443, 443}, {17, 53, 53}, {6, 53, 53}, {6, 25, 25}, {6, 3389, 3389}, {17, 123, 123}, {6, 5432, 5432}, {6, 8000, 8999}, {6, 1024, 65535}}
	network := func() netip.Prefix {
		a := netip.AddrFrom4([4]byte{10, byte(r.IntN(16)), byte(r.IntN(64)), byte(r.IntN(256))})
		p, _ := a.Prefix([]int{16, 24, 24, 26, 28, 32, 32}[r.IntN(7)])
		return p
	}
	entries := make([]ACLEntry, n)
	for i := range entries {
		e := &entries[i]
		e.From.Add(uint8(2 + r.IntN(6)))
		e.To.Add(uint8(2 + r.IntN(6)))
		if r.IntN(5) > 0 {
			e.Src = append(e.Src, aclPrefix(network()))
		}
		if r.IntN(5) > 0 {
			for range 1 + r.IntN(3) {
				e.Dst = append(e.Dst, aclPrefix(network()))
			}
		}
		s := services[r.IntN(len(services))]
		e.Proto, e.SrcPort, e.DstPort = U8Range{s.proto, s.proto}, U16Range{0, 65535}, U16Range{s.first, s.last}
		if r.IntN(20) == 0 {
			e.Proto, e.DstPort = U8Range{0, 255}, U16Range{0, 65535}
		}
		e.Verdict = Verdict(uint32(i+1), uint32(1+r.IntN(2)), 0)
	}
	return entries
}

// aclInsideKey draws a key inside a random entry, as traffic that a rule set is for would be.
func aclInsideKey(r *rand.Rand, entries []ACLEntry) bpf.XDPClassifyKey {
	e := &entries[r.IntN(len(entries))]
	addr := func(list []AddrRange) uint64 {
		if len(list) == 0 {
			return 10<<24 | uint64(r.IntN(1<<20))
		}
		x := list[r.IntN(len(list))]
		first, last := aclAddr(x.First).lo, aclAddr(x.Last).lo
		return first + r.Uint64N(last-first+1)
	}
	zone := func(z Zones) uint8 {
		for id := uint8(2); id < 9; id++ {
			if z != (Zones{}) && z.Has(id) {
				return id
			}
		}
		return 2
	}
	return bpf.XDPClassifyKey{
		Family: 4, SrcLo: addr(e.Src), DstLo: addr(e.Dst),
		Sport: e.SrcPort.First + uint16(r.IntN(int(e.SrcPort.Last-e.SrcPort.First)+1)),
		Dport: e.DstPort.First + uint16(r.IntN(int(e.DstPort.Last-e.DstPort.First)+1)),
		Proto: e.Proto.First, From: zone(e.From), To: zone(e.To),
	}
}

// Sets of the sizes that a gateway has fit into one function of less than 30,000 instructions and
// decide as the oracle does, in both executors.
func TestACLClassBench(t *testing.T) {
	checked := 0
	for _, kind := range []string{"acl1", "fw1", "ipc1"} {
		t.Run(kind, func(t *testing.T) {
			checked += aclCheckSet(t, aclClassBench(t, kind, 1000))
		})
	}
	if checked == 0 {
		t.Skip("no ClassBench set was found")
	}
	t.Logf("%d keys checked", checked)
}

func TestACLFirewall(t *testing.T) { aclCheckSet(t, aclFirewallRules(1000)) }

func aclCheckSet(t *testing.T, entries []ACLEntry) (checked int) {
	t.Helper()
	start := time.Now()
	a, err := CompileACL(entries)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	insns, err := a.Instructions()
	if err != nil {
		t.Fatal(err)
	}
	slots := insns.Size() / asm.InstructionSize
	t.Logf("%d entries: compiled in %v, %d nodes, %d instructions", len(entries), took, len(a.nodes), slots)
	if slots >= 30_000 {
		t.Errorf("%d instructions, want less than 30,000", slots)
	}
	var k *kernelClassifier
	if os.Geteuid() == 0 {
		k = newKernelClassifier(t, a, true)
	}
	r := rand.New(rand.NewPCG(7, 8))
	matched := 0
	for range 4 {
		keys := make([]bpf.XDPClassifyKey, kernelBatch)
		for i := range keys {
			keys[i] = aclInsideKey(r, entries)
			if i%2 == 1 {
				keys[i].DstLo = aclInsideKey(r, entries).DstLo
			}
		}
		m, _ := aclAgree(t, entries, a, k, keys)
		matched, checked = matched+m, checked+len(keys)
	}
	if matched < checked/2 {
		t.Errorf("only %d of %d keys matched an entry that they were drawn from", matched, checked)
	}
	return checked
}

// aclSets are what the benchmarks run over.
func aclSets(b *testing.B, f func(b *testing.B, entries []ACLEntry)) {
	for _, kind := range []string{"acl1", "fw1", "ipc1", "firewall"} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s-%d", kind, n), func(b *testing.B) {
				entries := aclFirewallRules(n)
				if kind != "firewall" {
					entries = aclClassBench(b, kind, n)
				}
				f(b, entries)
			})
		}
	}
}

func BenchmarkCompileACL(b *testing.B) {
	aclSets(b, func(b *testing.B, entries []ACLEntry) {
		for b.Loop() {
			if _, err := CompileACL(entries); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkClassify(b *testing.B) {
	aclSets(b, func(b *testing.B, entries []ACLEntry) {
		a, err := CompileACL(entries)
		if err != nil {
			b.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 1))
		keys := make([]bpf.XDPClassifyKey, kernelBatch)
		for i := range keys {
			keys[i] = aclInsideKey(r, entries)
		}
		for b.Loop() {
			a.Classify(&keys[r.IntN(len(keys))], nil)
		}
	})
}

// BenchmarkInstructions measures one call of the generated classifier on keys in random order, over
// the same program with a classifier that answers a constant: `hit` on keys inside entries, `miss` on
// keys to any address.
func BenchmarkInstructions(b *testing.B) {
	kernelNeedsRoot(b)
	aclSets(b, func(b *testing.B, entries []ACLEntry) {
		a, err := CompileACL(entries)
		if err != nil {
			b.Fatal(err)
		}
		k, constant := newKernelClassifier(b, a, false), newKernelClassifier(b, nil, false)
		r := rand.New(rand.NewPCG(1, 1))
		hit, miss := make([]bpf.XDPClassifyKey, kernelBatch), make([]bpf.XDPClassifyKey, kernelBatch)
		for i := range hit {
			hit[i], miss[i] = aclInsideKey(r, entries), aclInsideKey(r, entries)
			miss[i].DstLo = uint64(r.Uint32())
		}
		const repeat = 100_000
		run := func(k *kernelClassifier, keys []bpf.XDPClassifyKey) float64 {
			k.fill(b, keys)
			_, took, err := k.prog.Benchmark(make([]byte, 64), repeat, nil)
			if err != nil {
				b.Fatal(err)
			}
			return float64(took.Nanoseconds())
		}
		var overHit, overMiss []float64
		for b.Loop() {
			floor := run(constant, hit)
			overHit = append(overHit, run(k, hit)-floor)
			overMiss = append(overMiss, run(k, miss)-floor)
		}
		slices.Sort(overHit)
		slices.Sort(overMiss)
		b.ReportMetric(overHit[len(overHit)/2], "ns/hit")
		b.ReportMetric(overMiss[len(overMiss)/2], "ns/miss")
		b.ReportMetric(0, "ns/op")
	})
}
