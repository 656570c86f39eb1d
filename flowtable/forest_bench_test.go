package flowtable

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
)

// benchBits is the binary logarithm of the number of keys that are looked up, in random order.
const benchBits = 20

// BenchmarkForest builds forests of ClassBench sets and looks a million distinct keys up, drawn inside entries,
// inside two, and to any address: docs/CLASSIFIER.md. It reports how many trees, cuts and rules a search takes
// on average, and what it costs in Go and in the kernel, there over a classifier that answers a constant after it
// has waited for the key's memory.
func BenchmarkForest(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		for _, kind := range []string{"acl1", "fw1", "ipc1", "firewall"} {
			b.Run(fmt.Sprintf("%s-%d", kind, n), func(b *testing.B) {
				entries := aclFirewallRules(n)
				if kind != "firewall" {
					entries = aclClassBench(b, kind, n)
				}
				benchForest(b, entries)
			})
		}
	}
}

func benchForest(b *testing.B, entries []ACLEntry) {
	start := time.Now()
	a := plantACL(b, entries)
	built := time.Since(start)
	r := rand.New(rand.NewPCG(1, 2))
	keys := make([]bpf.XDPClassifyKey, 1<<benchBits)
	for i := range keys {
		keys[i] = aclInsideKey(r, entries)
		switch i % 4 {
		case 2:
			keys[i].DstLo = aclInsideKey(r, entries).DstLo
		case 3:
			keys[i].DstLo = uint64(r.Uint32())
		}
	}
	trees, cuts, rules := a.forest.steps(a, keys)
	var kernel, constant *kernelRandom
	if os.Geteuid() == 0 {
		kernel, constant = newKernelRandom(b, a, keys), newKernelRandom(b, nil, keys)
	}
	var inGo, inKernel []float64
	for b.Loop() {
		start := time.Now()
		for i := range keys {
			a.Classify(&keys[i], nil)
		}
		inGo = append(inGo, float64(time.Since(start).Nanoseconds())/float64(len(keys)))
		if kernel != nil {
			inKernel = append(inKernel, kernel.run(b)-constant.run(b))
		}
	}
	f := &a.forest.busy
	b.ReportMetric(float64(built.Milliseconds()), "ms/build")
	b.ReportMetric(float64(8*f[forestInNodes].count()+32*f[forestInRules4].count())/1e6, "MB")
	b.ReportMetric(trees, "trees")
	b.ReportMetric(cuts, "cuts")
	b.ReportMetric(rules, "rules")
	b.ReportMetric(median(inGo), "ns/go")
	if kernel != nil {
		b.ReportMetric(median(inKernel), "ns/kernel")
	}
	b.ReportMetric(0, "ns/op")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// steps counts what searches for IPv4 keys take on average.
func (f *aclForest) steps(a *ACL, keys []bpf.XDPClassifyKey) (trees, cuts, rules float64) {
	for i := range keys {
		best := ^uint32(0)
		words := newForestKey(&keys[i])
		for _, root := range f.family[0].decide {
			if root.lowest >= best {
				break
			}
			trees++
			node := root.node
			for node>>bpf.XDPForestNodeFOREST_BITS_SHIFT&uint64(bpf.XDPForestNodeFOREST_BITS_MASK) != 0 {
				cuts++
				node = f.child(&words, node)
			}
			at, n := f.leaf(&words, node)
			for rule := at; rule < at+n && f.who(0, rule).Entry < best; rule++ {
				rules++
				if f.matches(a, 0, rule, f.entry(0, at, n, rule-at), &keys[i]) {
					best = f.who(0, rule).Entry
				}
			}
		}
	}
	n := float64(len(keys))
	return trees / n, cuts / n, rules / n
}

// kernelRandom looks one of many keys up in each run, at random, and waits for the key before and for the
// answer after.
type kernelRandom struct{ kernelClassifier }

func newKernelRandom(tb testing.TB, a *ACL, keys []bpf.XDPClassifyKey) *kernelRandom {
	tb.Helper()
	k := &kernelRandom{}
	k.keys = kernelNodes(tb, "keys", keys)
	k.audits = kernelMap(tb, "audits", 4*kernelAudits, 1)
	k.state = kernelMap(tb, "state", 8, 1)
	spec := k.harness(tb, false)
	main := &emitFunc{}
	out := main.label()
	main.add(asm.StoreImm(asm.RFP, -4, 0, asm.Word))
	kernelLookup(main, k.state, out)
	main.add(
		asm.Mov.Reg(asm.R8, asm.R0), asm.LoadMem(asm.R6, asm.R8, 0, asm.DWord),
		asm.LoadImm(asm.R1, 6364136223846793005, asm.DWord), asm.Mul.Reg(asm.R6, asm.R1), asm.Add.Imm(asm.R6, 1),
		asm.Mov.Reg(asm.R7, asm.R6), asm.RSh.Imm(asm.R6, 64-benchBits), asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word),
	)
	kernelLookup(main, k.keys, out)
	main.add( // nothing goes on without both ends of the key: zero is added to its address and to the state
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.LoadMem(asm.R2, asm.R0, int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.Context)), asm.DWord),
		asm.Or.Reg(asm.R1, asm.R2), asm.And.Imm(asm.R1, 0),
		asm.Add.Reg(asm.R7, asm.R1), asm.StoreMem(asm.R8, 0, asm.R7, asm.DWord),
		asm.Add.Reg(asm.R1, asm.R0),
	)
	main.call(emitClassifyName)
	main.add(
		asm.And.Imm(asm.R0, 0), asm.LoadMem(asm.R7, asm.R8, 0, asm.DWord), asm.Add.Reg(asm.R7, asm.R0),
		asm.StoreMem(asm.R8, 0, asm.R7, asm.DWord),
	)
	main.place(out)
	main.ret(2)
	end := 1
	for spec.Instructions[end].Symbol() == "" {
		end++
	}
	ctx := btf.FuncParam{Name: "ctx", Type: &btf.Pointer{Target: &btf.Struct{Name: "xdp_md", Size: 24}}}
	spec.Instructions = append(kernelFunction(tb, main, "main", ctx), spec.Instructions[end:]...)
	k.prog = kernelProgram(tb, spec, a)
	return k
}

// run returns the nanoseconds of a run, on average.
func (k *kernelRandom) run(tb testing.TB) float64 {
	tb.Helper()
	_, took, err := k.prog.Benchmark(make([]byte, 64), 1<<benchBits, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return float64(took.Nanoseconds())
}
