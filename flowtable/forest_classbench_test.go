package flowtable

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// scanRow is an entry of a ClassBench set for a scan from the first to the last: first and last of each field.
type scanRow [5][2]uint32

func scanRows(entries []ACLEntry) []scanRow {
	rows := make([]scanRow, len(entries))
	for i := range entries {
		e := &entries[i]
		rows[i] = scanRow{
			{uint32(aclAddr(e.Src[0].First).lo), uint32(aclAddr(e.Src[0].Last).lo)}, {uint32(aclAddr(e.Dst[0].First).lo), uint32(aclAddr(e.Dst[0].Last).lo)},
			{uint32(e.SrcPort.First), uint32(e.SrcPort.Last)}, {uint32(e.DstPort.First), uint32(e.DstPort.Last)}, {uint32(e.Proto.First), uint32(e.Proto.Last)},
		}
	}
	return rows
}

// scan returns the verdict of the first row that holds a key.
func scan(rows []scanRow, entries []ACLEntry, k *bpf.XDPClassifyKey) uint32 {
	key := [5]uint32{uint32(k.SrcLo), uint32(k.DstLo), uint32(k.Sport), uint32(k.Dport), uint32(k.Proto)}
next:
	for i := range rows {
		for f, v := range key {
			if v < rows[i][f][0] || v > rows[i][f][1] {
				continue next
			}
		}
		return entries[i].Verdict
	}
	return 0
}

// classBenchKey draws a key: at corners of an entry, inside one, inside several, or anywhere.
func classBenchKey(r *rand.Rand, entries []ACLEntry) bpf.XDPClassifyKey {
	k := aclInsideKey(r, entries)
	e := &entries[r.IntN(len(entries))]
	switch r.IntN(5) {
	case 0:
		src, dst := e.Src[0], e.Dst[0]
		k.SrcLo = []uint64{aclAddr(src.First).lo, aclAddr(src.Last).lo, aclAddr(src.First).lo - 1, aclAddr(src.Last).lo + 1}[r.IntN(4)] & (1<<32 - 1)
		k.DstLo = []uint64{aclAddr(dst.First).lo, aclAddr(dst.Last).lo, aclAddr(dst.First).lo - 1, aclAddr(dst.Last).lo + 1}[r.IntN(4)] & (1<<32 - 1)
		k.Sport = []uint16{e.SrcPort.First, e.SrcPort.Last, e.SrcPort.Last + 1}[r.IntN(3)]
		k.Dport = []uint16{e.DstPort.First, e.DstPort.Last, e.DstPort.First - 1}[r.IntN(3)]
		k.Proto = []uint8{e.Proto.First, e.Proto.Last, 6, 17}[r.IntN(4)]
	case 1:
		k.DstLo = aclAddr(e.Dst[0].First).lo
	case 2:
		k.SrcLo, k.DstLo, k.Dport = uint64(r.Uint32()), uint64(r.Uint32()), uint16(r.Uint32())
	}
	return k
}

// Kernel, Go and a scan of the list agree about packets from everywhere, also in sets that no program holds as
// instructions. SOFTDPU_LONG=1 takes the largest sets too, and a million packets each.
func TestForestClassBench(t *testing.T) {
	packets, sizes := 20_000, []int{1000, 10_000}
	if os.Getenv("SOFTDPU_LONG") != "" {
		packets, sizes = 1_000_000, append(sizes, 100_000)
	}
	for _, kind := range []string{"acl1", "fw1", "ipc1"} {
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s-%d", kind, n), func(t *testing.T) {
				entries := aclClassBench(t, kind, n)
				start := time.Now()
				a := plantACL(t, entries)
				took := time.Since(start)
				f := a.forest
				nodes, rules := f.busy[forestInNodes].count(), f.busy[forestInRules4].count()
				t.Logf("built in %v: %d nodes, %d places of rules of %d entries, %d trees", took, nodes, rules, len(entries), len(f.family[0].decide))
				if rules > 5*len(entries) || len(f.family[0].decide) > 8 {
					t.Errorf("%d places of rules in %d trees: a search would take too long", rules, len(f.family[0].decide))
				}
				var k *kernelClassifier
				if os.Geteuid() == 0 {
					k = newKernelClassifier(t, a, true)
				}
				matched := agreeWithScan(t, a, k, entries, packets)
				if matched < packets/3 {
					t.Errorf("%d of %d packets matched: the test asks too little", matched, packets)
				}
			})
		}
	}
}

func agreeWithScan(t *testing.T, a *ACL, k *kernelClassifier, entries []ACLEntry, packets int) (matched int) {
	t.Helper()
	rows := scanRows(entries)
	r := rand.New(rand.NewPCG(41, 42))
	for done := 0; done < packets; done += kernelBatch {
		keys, want := make([]bpf.XDPClassifyKey, kernelBatch), make([]uint32, kernelBatch)
		for i := range keys {
			keys[i] = classBenchKey(r, entries)
		}
		var wait sync.WaitGroup
		for half := range 2 {
			wait.Go(func() {
				for i := half; i < len(keys); i += 2 {
					want[i] = scan(rows, entries, &keys[i])
				}
			})
		}
		wait.Wait()
		var verdicts []uint32
		if k != nil {
			verdicts, _ = k.classify(t, keys)
		}
		for i := range keys {
			if got := a.Classify(&keys[i], nil); got != want[i] {
				t.Fatalf("key %+v: Go says %#x, the list %#x", keys[i], got, want[i])
			}
			if k != nil && verdicts[i] != want[i] {
				t.Fatalf("key %+v: kernel says %#x, the list %#x", keys[i], verdicts[i], want[i])
			}
			if want[i] != 0 {
				matched++
			}
		}
	}
	return matched
}
