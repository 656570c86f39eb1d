package pipe

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// kernelTables are the programs of bpf/pipebench.c with maps of their own.
type kernelTables struct {
	*ebpf.Collection
	Memory
	probes []bpf.PipeBenchPipeProbe
}

// kernelSizes are those of the maps, and of the keys that packets ask for.
type kernelSizes struct {
	entries, buckets, roots, nodes4, nodes6, probes int
	first, mask, words                              uint32
	seed                                            uint64
	uncounted                                       bool // nothing is written
}

func needKernel(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			tb.Fatal("loading programs needs root, and CI has it")
		}
		tb.Skip("loading programs needs root")
	}
}

func loadTables(tb testing.TB, s kernelSizes) *kernelTables {
	tb.Helper()
	needKernel(tb)
	spec, err := bpf.LoadPipeBench()
	if err != nil {
		tb.Fatal(err)
	}
	for name, size := range map[string]int{
		bpf.PipeBenchMapPipeEntries: s.entries, bpf.PipeBenchMapPipeBuckets: s.buckets, bpf.PipeBenchMapPipeProbes: s.probes,
		bpf.PipeBenchMapPipeRoots: s.roots, bpf.PipeBenchMapPipeNodes4: s.nodes4, bpf.PipeBenchMapPipeNodes6: s.nodes6,
	} {
		spec.Maps[name].MaxEntries = uint32(max(1, size))
	}
	spec.Maps[bpf.PipeBenchMapPeerTrie].MaxEntries = 1 << 20
	count := uint32(1)
	if s.uncounted {
		count = 0
	}
	for name, value := range map[string]any{
		bpf.PipeBenchVarProbeMask: uint32(s.probes - 1), bpf.PipeBenchVarTableFirst: s.first, bpf.PipeBenchVarTableMask: s.mask,
		bpf.PipeBenchVarTableWords: s.words, bpf.PipeBenchVarPipeSeed: s.seed, bpf.PipeBenchVarPipeSpreadSeed: s.seed, bpf.PipeBenchVarCountHits: count,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			tb.Fatal(err)
		}
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		var refused *ebpf.VerifierError
		if errors.As(err, &refused) {
			tb.Fatalf("%v\n%s", err, strings.Join(refused.Log[max(0, len(refused.Log)-40):], "\n"))
		}
		tb.Fatal(err)
	}
	tb.Cleanup(coll.Close)
	return &kernelTables{
		Collection: coll,
		Memory: Memory{
			Entries: mapped[bpf.PipesPipeEntry](tb, coll.Maps[bpf.PipeBenchMapPipeEntries]),
			Buckets: mapped[bpf.PipesPipeBucket](tb, coll.Maps[bpf.PipeBenchMapPipeBuckets]),
			Meters:  mapped[bpf.PipesPipeMeter](tb, coll.Maps[bpf.PipeBenchMapPipeMeters]),
			Tries:   mapped[uint64](tb, coll.Maps[bpf.PipeBenchMapPipeTries]),
			Arena: NewArena(mapped[uint64](tb, coll.Maps[bpf.PipeBenchMapPipeRoots]),
				mapped[bpf.PipesPipeNode4](tb, coll.Maps[bpf.PipeBenchMapPipeNodes4]), mapped[bpf.PipesPipeNode6](tb, coll.Maps[bpf.PipeBenchMapPipeNodes6])),
		},
		probes: mapped[bpf.PipeBenchPipeProbe](tb, coll.Maps[bpf.PipeBenchMapPipeProbes]),
	}
}

// mapped is the memory of an array.
func mapped[T any](tb testing.TB, m *ebpf.Map) []T {
	tb.Helper()
	var t T
	if m.ValueSize() != uint32(unsafe.Sizeof(t)) {
		tb.Fatalf("a value of %v has %d bytes, and in Go %d", m, m.ValueSize(), unsafe.Sizeof(t))
	}
	page := os.Getpagesize()
	size := (int(m.ValueSize())*int(m.MaxEntries()) + page - 1) / page * page
	b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(b) })
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), m.MaxEntries())
}

// grace waits for programs under way.
func grace() {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, 1, 0, 0); errno != 0 { // MEMBARRIER_CMD_GLOBAL
		panic(errno)
	}
}

// needGrace leaves a test out where membarrier does not wait for programs.
func needGrace(tb testing.TB) {
	tb.Helper()
	if runtime.NumCPU() == 1 {
		tb.Skip("on one CPU the kernel's membarrier waits for nobody")
	}
}

// run has a program answer so many probes.
func run(tb testing.TB, prog *ebpf.Program, times int) {
	tb.Helper()
	if _, err := prog.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: uint32(times)}); err != nil {
		tb.Fatal(err)
	}
}

// tally sums what programs counted.
func (k *kernelTables) tally(tb testing.TB) (sum bpf.PipeBenchPipeTally) {
	tb.Helper()
	var each []bpf.PipeBenchPipeTally
	if err := k.Maps[bpf.PipeBenchMapPipeTallies].Lookup(uint32(0), &each); err != nil {
		tb.Fatal(err)
	}
	for _, t := range each {
		sum.Next += t.Next
		sum.Hits += t.Hits
		for i := range sum.Bytes {
			sum.Bytes[i] += t.Bytes[i]
		}
	}
	return sum
}

// config says where a table of a size lies in the whole memory.
func (k *kernelTables) config(s *kernelSizes, size int) TableConfig {
	return TableConfig{
		Words: int(s.words), Size: size, Seed: s.seed, First: 1, Buckets: k.Buckets[s.first : s.first+s.mask+1], Entries: k.Entries, Grace: grace,
	}
}

func sizesFor(size int, words uint32, probes int) kernelSizes {
	buckets := TableBuckets(size)
	return kernelSizes{
		entries: 1 + TablePlaces(size), buckets: buckets + 3, probes: probes, first: 3, mask: uint32(buckets - 1), words: words, seed: 0x5eed_0123_4567_89ab,
	}
}
