package pipe

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// What may become of a request to a table.
var (
	ErrDuplicate = errors.New("an entry with this key is there already: update it")
	ErrNotFound  = errors.New("no entry has this key")
	ErrFull      = errors.New("the table is full: make it larger")
)

const (
	bucketSlots = int(bpf.PipesPipeLimitPIPE_BUCKET)
	// bucketFirst is from how many entries in its first bucket on a key goes to the emptier of its two: a packet looks into
	// the second one only if its key is not in the first. The higher it is the fewer do, and the earlier both are full: of 16
	// million slots at 68 per cent with 4, 64 with 5, 55 with 6.
	bucketFirst = 5
	// tableLoad is the share of slots, in per cent, to which tables are filled.
	tableLoad   = 50
	tableSpare  = 4096       // most places beyond the size
	bucketOther = 0x9e3779b1 // PIPE_OTHER
)

// TableBuckets is how many buckets a table for so many entries has: a power of two.
func TableBuckets(size int) int {
	slots := max(size, 1) * 100 / tableLoad
	return max(2, 1<<bits.Len(uint((slots+bucketSlots-1)/bucketSlots-1)))
}

// TablePlaces is how many places in memory a table for so many entries takes. An entry that changes has two for a while:
// with none to spare a full table would wait for packets after every change, and not after every batch.
func TablePlaces(size int) int { return size + min(size/16+1, tableSpare) }

// TableConfig says where a table lies.
type TableConfig struct {
	Words   int                   // of a key: 1 to MaxKey
	Size    int                   // most entries
	Seed    uint64                // the constant pipe_seed of the program
	Buckets []bpf.PipesPipeBucket // the table's own: TableBuckets(Size)
	Entries []bpf.PipesPipeEntry  // of the program: Memory.Entries
	First   uint32                // the table's first place of Entries; TablePlaces(Size) are its own. Not 0
	Now     func() uint32         // tick; nil: always 0
	Grace   func()                // returns when every packet that was under way is done; nil: nobody looks anything up meanwhile
}

// Table is a table of exact matches in memory that packets look things up in (abi_pipe.h). One goroutine may change it,
// while others call Lookup and XDP does the same. It keeps nothing of entries but what memory holds.
type Table struct {
	TableConfig
	mask  uint32
	n     int    // entries
	fresh uint32 // places from here on have not been used
	free  uint32 // a place that is free again; its record's number is the next one; 0 = none

	gone   []replaced
	read0  uint64 // what ahead has read, so that it must
	before *Table // whose counts are not in this table's yet
}

// replaced is a record that no packet finds any more.
type replaced struct {
	place, by uint32 // by: the record that has taken its place; 0 = none
	request   int
}

// NewTable makes an empty table in memory that is zero.
func NewTable(c TableConfig) (*Table, error) {
	t := &Table{TableConfig: c, mask: uint32(len(c.Buckets) - 1), fresh: c.First}
	switch places := TablePlaces(c.Size); {
	case c.Words < 1 || c.Words > MaxKey:
		return nil, fmt.Errorf("make a table: a key has 1 to %d words, not %d", MaxKey, c.Words)
	case c.Size < 1 || len(c.Buckets) != TableBuckets(c.Size):
		return nil, fmt.Errorf("make a table of %d entries: it has %d buckets, and needs %d", c.Size, len(c.Buckets), TableBuckets(c.Size))
	case c.First == 0 || int(c.First)+places > len(c.Entries):
		return nil, fmt.Errorf("make a table of %d entries: places %d to %d are not all in memory", c.Size, c.First, int(c.First)+places-1)
	}
	if t.Now == nil {
		t.Now = func() uint32 { return 0 }
	}
	if t.Grace == nil {
		t.Grace = func() {}
	}
	return t, nil
}

// OpenTable makes a table of memory in which entries are already, written by another Table of the same configuration.
func OpenTable(c TableConfig) (*Table, error) {
	t, err := NewTable(c)
	if err != nil {
		return nil, err
	}
	taken := make([]uint64, (TablePlaces(c.Size)+63)/64)
	for i := range t.Buckets {
		for s := range t.Buckets[i].Slot {
			place := uint32(t.Buckets[i].Slot[s])
			if place == 0 {
				continue
			}
			at := int(place) - int(c.First)
			if at < 0 || at >= TablePlaces(c.Size) || taken[at/64]>>(at%64)&1 != 0 {
				return nil, fmt.Errorf("open a table: bucket %d has an entry at place %d, which is not the table's or another's", i, place)
			}
			taken[at/64] |= 1 << (at % 64)
			t.n++
			t.fresh = max(t.fresh, place+1)
		}
	}
	for place := c.First; place < t.fresh; place++ {
		if at := place - c.First; taken[at/64]>>(at%64)&1 == 0 {
			t.release(place)
		}
	}
	return t, nil
}

// Len is the number of entries.
func (t *Table) Len() int { return t.n }

// Mask is the number of buckets less one, as generated instructions say it.
func (t *Table) Mask() uint32 { return t.mask }

// Congested reports whether the table is filled to so many per cent of its size.
func (t *Table) Congested(percent int) bool { return t.n*100 >= t.Size*percent }

// spot is where a key may be: its tag, and its two buckets.
type spot struct {
	tag    uint64
	bucket [2]uint32
}

func (t *Table) spot(key []uint32) (s spot) {
	h := HashWords(t.Seed, key)
	s.tag = max(1, h>>32)
	s.bucket[0] = uint32(h) & t.mask
	s.bucket[1] = s.bucket[0] ^ (uint32(s.tag)*bucketOther>>8|1)&t.mask
	return s
}

// find returns the slot of a key, nil if it has none, and of its two buckets how many slots are taken, or bucketSlots of
// one that has another key of the same tag.
func (t *Table) find(s *spot, key []uint32) (slot *uint64, taken [2]int) {
	for b, i := range s.bucket {
		bucket := &t.Buckets[i].Slot
		same := false
		for n := range bucket {
			v := atomic.LoadUint64(&bucket[n])
			if v == 0 {
				continue
			}
			taken[b]++
			if v>>32 == s.tag {
				if t.hasKey(uint32(v), key) {
					return &bucket[n], taken
				}
				same = true
			}
		}
		if same {
			taken[b] = bucketSlots
		}
	}
	return nil, taken
}

func (t *Table) hasKey(place uint32, key []uint32) bool {
	have := t.Entries[place].Key[:]
	for i, w := range key {
		if have[i] != w {
			return false
		}
	}
	return true
}

// Lookup returns the place of the entry whose key it is; 0 = none. It is what pipe_find of bpf/pipe_table.h does, and
// may be called while the table changes.
func (t *Table) Lookup(key []uint32) uint32 {
	s := t.spot(key[:t.Words])
	slot, _ := t.find(&s, key[:t.Words])
	if slot == nil {
		return 0
	}
	return uint32(atomic.LoadUint64(slot))
}

// Query returns a copy of the entry whose key it is. Its counts are what all packets so far came to.
func (t *Table) Query(key []uint32) (e bpf.PipesPipeEntry, ok bool) {
	place := t.Lookup(key)
	if place == 0 {
		return e, false
	}
	return t.read(place), true
}

// All returns the places of all entries and copies of them, in no order. The table must not change meanwhile.
func (t *Table) All() iter.Seq2[uint32, bpf.PipesPipeEntry] {
	return func(yield func(uint32, bpf.PipesPipeEntry) bool) {
		for i := range t.Buckets {
			for _, v := range t.Buckets[i].Slot {
				if place := uint32(v); place != 0 && !yield(place, t.read(place)) {
					return
				}
			}
		}
	}
}

// read copies an entry that packets count on.
func (t *Table) read(place uint32) bpf.PipesPipeEntry {
	e := readEntry(&t.Entries[place])
	if t.before != nil {
		// An entry that was there keeps its place among the table's.
		if at := place - t.First + t.before.First; at < t.before.fresh {
			b := &t.before.Entries[at]
			e.Packets += atomic.LoadUint64(&b.Packets)
			e.Bytes += atomic.LoadUint64(&b.Bytes)
			e.Used = later(e.Used, atomic.LoadUint32(&b.Used))
		}
	}
	return e
}

func readEntry(e *bpf.PipesPipeEntry) bpf.PipesPipeEntry {
	return bpf.PipesPipeEntry{
		Packets: atomic.LoadUint64(&e.Packets), Bytes: atomic.LoadUint64(&e.Bytes), Used: atomic.LoadUint32(&e.Used),
		Forward: e.Forward, Action: e.Action, Meter: e.Meter, Number: e.Number, Value: e.Value, Key: e.Key,
		Counter: e.Counter, Mirror: e.Mirror, Flags: e.Flags, Age: e.Age,
	}
}

// later returns the later of two ticks.
func later(a, b uint32) uint32 {
	if int32(b-a) > 0 {
		return b
	}
	return a
}
