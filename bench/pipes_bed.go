package bench

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

const pipeWords = 5 // of a key

type pipeKey [pipeWords]uint32

// pipesBed is a table, its peer, and the packets that look keys up in them.
type pipesBed struct {
	coll   *ebpf.Collection
	probes []bpf.PipeBenchPipeProbe
	table  *pipesTable
	peer   *pipesHash
	mapped [][]byte
}

// pipesSide is one of both.
type pipesSide interface {
	// change inserts keys, or removes them, and tells how long it was at it.
	change(keys []pipeKey, insert bool) (time.Duration, error)
	program() string
}

func newPipesBed(size, probes int) (b *pipesBed, err error) {
	if bits.OnesCount(uint(probes)) != 1 {
		return nil, fmt.Errorf("look %d keys up: name a power of two", probes)
	}
	spec, err := bpf.LoadPipeBench()
	if err != nil {
		return nil, err
	}
	buckets, seed := pipe.TableBuckets(size), uint64(0x243f6a8885a308d3)
	for name, n := range map[string]int{
		bpf.PipeBenchMapPipeEntries: 1 + pipe.TablePlaces(size), bpf.PipeBenchMapPipeBuckets: buckets,
		bpf.PipeBenchMapPipeProbes: probes, bpf.PipeBenchMapPeerHash: size,
	} {
		spec.Maps[name].MaxEntries = uint32(n)
	}
	spec.Maps[bpf.PipeBenchMapPeerHash].KeySize = uint32(unsafe.Sizeof(pipeKey{}))
	spec.Maps[bpf.PipeBenchMapPeerHash].Key = nil
	for name, v := range map[string]any{
		bpf.PipeBenchVarProbeMask: uint32(probes - 1), bpf.PipeBenchVarTableMask: uint32(buckets - 1),
		bpf.PipeBenchVarTableWords: uint32(pipeWords), bpf.PipeBenchVarPipeSeed: seed,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, err
		}
	}
	b = &pipesBed{}
	if b.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load tables: %w", err)
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.probes, err = mapped[bpf.PipeBenchPipeProbe](b, bpf.PipeBenchMapPipeProbes); err != nil {
		return nil, err
	}
	c := pipe.TableConfig{Words: pipeWords, Size: size, Seed: seed, First: 1, Grace: func() {
		if err := dataplane.Grace(); err != nil {
			time.Sleep(100 * time.Millisecond) // longer than any test run here goes on without a pause
		}
	}}
	if c.Entries, err = mapped[bpf.PipesPipeEntry](b, bpf.PipeBenchMapPipeEntries); err != nil {
		return nil, err
	}
	if c.Buckets, err = mapped[bpf.PipesPipeBucket](b, bpf.PipeBenchMapPipeBuckets); err != nil {
		return nil, err
	}
	table, err := pipe.NewTable(c)
	if err != nil {
		return nil, err
	}
	b.table, b.peer = &pipesTable{table: table}, &pipesHash{hash: b.coll.Maps[bpf.PipeBenchMapPeerHash]}
	return b, nil
}

func (b *pipesBed) close() {
	for _, m := range b.mapped {
		_ = unix.Munmap(m) // of what Mmap returned: it cannot fail
	}
	b.coll.Close()
}

// mapped is the memory of an array.
func mapped[T any](b *pipesBed, name string) ([]T, error) {
	m := b.coll.Maps[name]
	page := os.Getpagesize()
	size := (int(m.ValueSize())*int(m.MaxEntries()) + page - 1) / page * page
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s into memory: %w", name, err)
	}
	b.mapped = append(b.mapped, mem)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), m.MaxEntries()), nil
}

// lookUp has a program look every probe up once, and returns the ns that one takes. It proves that each was found.
func (b *pipesBed) lookUp(program string) (float64, error) {
	before, err := b.hits()
	if err != nil {
		return 0, err
	}
	_, each, err := testRun(b.coll.Programs[program], make([]byte, pipesFrame), 0, len(b.probes))
	if err != nil {
		return 0, err
	}
	after, err := b.hits()
	if err == nil && after-before != uint64(len(b.probes)) {
		err = fmt.Errorf("%s found %d of %d keys", program, after-before, len(b.probes))
	}
	return float64(each.Nanoseconds()), err
}

func (b *pipesBed) hits() (n uint64, err error) {
	var each []bpf.PipeBenchPipeTally
	if err := b.coll.Maps[bpf.PipeBenchMapPipeTallies].Lookup(uint32(0), &each); err != nil {
		return 0, err
	}
	for _, t := range each {
		n += t.Hits
	}
	return n, nil
}

// pipesTable is a table of ours.
type pipesTable struct {
	table *pipe.Table
	batch []pipe.Request
	done  []pipe.Completion
}

func (t *pipesTable) program() string { return bpf.PipeBenchProgProbeFind }

func (t *pipesTable) change(keys []pipeKey, insert bool) (took time.Duration, err error) {
	r := pipe.Request{Change: pipe.RemoveEntry}
	r.Entry.Forward = 1
	if insert {
		r.Change = pipe.InsertEntry
	}
	for _, some := range batches(keys) {
		t.batch = t.batch[:0]
		for _, k := range some {
			copy(r.Entry.Key[:], k[:])
			t.batch = append(t.batch, r)
		}
		begin := time.Now()
		t.done = t.table.Process(t.batch, t.done[:0])
		took += time.Since(begin)
		for _, c := range t.done {
			err = errors.Join(err, c.Err)
		}
		if err != nil {
			return 0, err
		}
	}
	return took, nil
}

// pipesHash is a hash map of the kernel.
type pipesHash struct {
	hash   *ebpf.Map
	values []bpf.PipesPipeEntry
}

func (h *pipesHash) program() string { return bpf.PipeBenchProgProbePeer }

func (h *pipesHash) change(keys []pipeKey, insert bool) (took time.Duration, err error) {
	h.values = make([]bpf.PipesPipeEntry, pipesBatch)
	for i := range h.values {
		h.values[i].Forward = 1 // which says to the program that it has been found
	}
	for _, some := range batches(keys) {
		begin := time.Now()
		if insert {
			_, err = h.hash.BatchUpdate(some, h.values[:len(some)], nil)
		} else {
			_, err = h.hash.BatchDelete(some, nil)
		}
		took += time.Since(begin)
		if err != nil {
			return 0, fmt.Errorf("change the kernel's hash map: %w", err)
		}
	}
	return took, nil
}
