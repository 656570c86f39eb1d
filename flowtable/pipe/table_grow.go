package pipe

import (
	"fmt"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// GrowInto makes a larger table of the same entries, in other memory, which must be zero: c says where, and how large;
// its Words, Now and Grace are not looked at. Each entry keeps its distance from the table's first place.
//
// The table stays in force for packets and must not be changed from now on. When they look into the larger one instead,
// and those that still looked into this one are done, Adopt completes it. Until then counts that the larger one tells
// are the sums of both. An error leaves this table as it was.
func (t *Table) GrowInto(c TableConfig) (*Table, error) {
	if t.before != nil {
		return nil, fmt.Errorf("make a table larger: it is being made larger already")
	}
	if c.Size < t.Size {
		return nil, fmt.Errorf("make a table larger: from %d entries to %d", t.Size, c.Size)
	}
	c.Words, c.Now, c.Grace = t.Words, t.Now, t.Grace
	g, err := NewTable(c)
	if err != nil {
		return nil, err
	}
	g.fresh, g.n = t.fresh-t.First+c.First, t.n
	for i := range t.Buckets {
		for _, v := range t.Buckets[i].Slot {
			if v == 0 {
				continue
			}
			from := &t.Entries[uint32(v)]
			place := uint32(v) - t.First + c.First
			to := &g.Entries[place]
			*to = readEntry(from)
			to.Packets, to.Bytes = 0, 0
			if !g.hang(place) {
				return nil, fmt.Errorf("make a table larger, from %d entries to %d: %w", t.Size, c.Size, ErrFull)
			}
		}
	}
	for place := t.free; place != 0; place = t.Entries[place].Number {
		g.release(place - t.First + c.First)
	}
	g.before = t
	return g, nil
}

// hang has packets find an entry that is written.
func (t *Table) hang(place uint32) bool {
	key := t.Entries[place].Key[:t.Words]
	s := t.spot(key)
	var taken [2]int
	for b, i := range s.bucket {
		for _, v := range t.Buckets[i].Slot {
			switch {
			case v == 0:
			case v>>32 == s.tag:
				taken[b] = bucketSlots
			case taken[b] < bucketSlots:
				taken[b]++
			}
		}
	}
	b := 0
	if taken[0] >= bucketFirst && taken[1] < taken[0] {
		b = 1
	}
	if taken[b] == bucketSlots {
		return false
	}
	bucket := &t.Buckets[s.bucket[b]].Slot
	for n := range bucket {
		if bucket[n] == 0 {
			atomic.StoreUint64(&bucket[n], s.tag<<32|uint64(place))
			return true
		}
	}
	return false
}

// Adopt adds the counts of the table that this one was made of, when no packet looks into that one any more. The other
// table's memory is not needed afterwards.
func (t *Table) Adopt() {
	if t.before == nil {
		return
	}
	for i := range t.before.Buckets {
		for _, v := range t.before.Buckets[i].Slot {
			if v != 0 {
				old := readEntry(&t.before.Entries[uint32(v)])
				carry(&t.Entries[uint32(v)-t.before.First+t.First], &old)
			}
		}
	}
	t.before = nil
}

// CopyEntries copies records that no table holds, from a program's memory to that of the one which takes its place, and
// leaves out their counts: AdoptEntries adds them when no packet counts in the old ones any more.
func CopyEntries(to, from []bpf.PipesPipeEntry) {
	for i := range from {
		to[i] = readEntry(&from[i])
		to[i].Packets, to[i].Bytes = 0, 0
	}
}

// AdoptEntries adds the counts of records that CopyEntries has copied.
func AdoptEntries(to, from []bpf.PipesPipeEntry) {
	for i := range from {
		old := readEntry(&from[i])
		carry(&to[i], &old)
	}
}
