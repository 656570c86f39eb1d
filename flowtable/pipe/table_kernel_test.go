package pipe

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// XDP finds what Go finds, for keys of odd and even lengths.
func TestTableInKernel(t *testing.T) {
	const size, probes = 3000, 4096
	rnd := rand.New(rand.NewPCG(7, 7))
	for _, words := range []uint32{1, 2, 3, 5, 8, uint32(MaxKey)} {
		s := sizesFor(size, words, probes)
		k := loadTables(t, s)
		table, err := NewTable(k.config(&s, size))
		if err != nil {
			t.Fatal(err)
		}
		key := func(n uint32) (key [MaxKey]uint32) {
			key[0] = n
			for i := 1; i < int(words); i++ {
				key[i] = n * uint32(i) % 3
			}
			return key
		}
		var batch []Request
		for n := range uint32(size) {
			k := key(n)
			batch = append(batch, requestFor(InsertEntry, n, k[:]...))
		}
		for _, c := range table.Process(batch, nil) {
			if c.Err != nil {
				t.Fatal(c.Err)
			}
		}
		for i := range k.probes {
			k.probes[i].Key = key(rnd.Uint32N(2 * size))
			k.probes[i].Length = 100
			for j := int(words); j < MaxKey; j++ {
				k.probes[i].Key[j] = rnd.Uint32() // of a longer key before: not the table's business
			}
		}
		run(t, k.Programs[bpf.PipeBenchProgProbeFind], probes)
		hits := 0
		for i := range k.probes {
			p := &k.probes[i]
			if want := table.Lookup(p.Key[:]); p.Answer != want || (want != 0) != (p.Key[0] < size) {
				t.Fatalf("%d words: key %x is at %d, XDP says %d", words, p.Key, want, p.Answer)
			}
			if p.Answer != 0 {
				hits++
			}
		}
		counted := uint64(0)
		for _, e := range table.All() {
			counted += e.Packets
		}
		if counted != uint64(hits) {
			t.Errorf("%d words: %d packets counted, want %d", words, counted, hits)
		}
		run(t, k.Programs[bpf.PipeBenchProgProbeHash], probes)
		for i := range k.probes {
			if want := SpreadWords(s.seed, k.probes[i].Key[:words]); k.probes[i].Answer != want {
				t.Fatalf("%d words: hash of %x is %#x, XDP says %#x", words, k.probes[i].Key, want, k.probes[i].Answer)
			}
		}
	}
}

// While a table changes in every way and then grows into other maps, no packet misses its entry, and every one is counted.
func TestTableGrowsUnderLoad(t *testing.T) {
	needGrace(t)
	const size, larger, probes = 2000, 9000, 1024
	s, l := sizesFor(size, 4, probes), sizesFor(larger, 4, probes)
	old, next := loadTables(t, s), loadTables(t, l)
	table, err := NewTable(old.config(&s, size))
	if err != nil {
		t.Fatal(err)
	}
	var batch []Request
	for i := range uint32(probes) { // entries that packets look for
		r := requestFor(InsertEntry, i, 1, i, 0, i)
		batch = append(batch, r)
		old.probes[i].Key, next.probes[i].Key = r.Entry.Key, r.Entry.Key
		old.probes[i].Length, next.probes[i].Length = 100, 100
	}
	table.Process(batch, nil)

	entry, generations := tailCaller(t)
	if err := generations.Put(uint32(0), old.Programs[bpf.PipeBenchProgProbeFind]); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var runs atomic.Uint64
	done := make(chan error)
	go func() {
		var err error
		for !stop.Load() && err == nil {
			_, err = entry.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 5000})
			runs.Add(5000)
		}
		done <- err
	}()
	defer func() {
		stop.Store(true)
		if err := <-done; err != nil {
			t.Error(err)
		}
		first, second := old.tally(t), next.tally(t)
		if first.Next+second.Next != runs.Load() || first.Next == 0 || second.Next == 0 {
			t.Errorf("%d packets met the small table and %d the large one, of %d", first.Next, second.Next, runs.Load())
		}
		if missed := first.Next + second.Next - first.Hits - second.Hits; missed != 0 {
			t.Errorf("%d of %d packets missed their entry", missed, runs.Load())
		}
		var packets, bytes uint64
		for _, e := range table.All() {
			packets, bytes = packets+e.Packets, bytes+e.Bytes
		}
		if packets != runs.Load() || bytes != 100*packets {
			t.Errorf("%d packets and %d bytes counted, of %d packets", packets, bytes, runs.Load())
		}
	}()
	rnd := rand.New(rand.NewPCG(3, 3))
	change := func(rounds int) {
		for range rounds {
			batch = batch[:0]
			for range 50 {
				i := rnd.Uint32N(probes)
				batch = append(batch, requestFor(UpdateEntry, i, 1, i, 0, i), requestFor(Change(rnd.IntN(3)), i, 2, i, 0, i))
			}
			for i, c := range table.Process(batch, nil) {
				if i%2 == 0 && c.Err != nil {
					t.Errorf("update: %v", c.Err)
				}
			}
		}
	}
	for runs.Load() == 0 {
		change(1)
	}
	change(10)
	grown, err := table.GrowInto(next.config(&l, larger))
	if err != nil {
		t.Fatal(err)
	}
	if err := generations.Put(uint32(0), next.Programs[bpf.PipeBenchProgProbeFind]); err != nil {
		t.Fatal(err)
	}
	grace()
	grown.Adopt()
	table = grown
	for seen := runs.Load(); runs.Load() < seen+10000; {
		change(1)
	}
	change(10)
}

// tailCaller is a program that runs the one at place 0 of the map.
func tailCaller(t *testing.T) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	generations, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { generations.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapPtr(asm.R2, generations.FD()), asm.Mov.Imm(asm.R3, 0), asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 0), asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog, generations
}
