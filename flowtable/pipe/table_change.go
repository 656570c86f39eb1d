package pipe

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// Change is what is asked of a table.
type Change uint8

// Changes of tables.
const (
	InsertEntry Change = iota
	UpdateEntry        // what the entry does; its counts, and when it was last used, stay
	RemoveEntry
)

// Request is a change of one entry. Of Entry.Key the table's words count; of an entry to be removed nothing else.
// Packets, Bytes and Used are not the caller's to say.
type Request struct {
	Change Change
	Entry  bpf.PipesPipeEntry
}

// Completion is what became of a request.
type Completion struct {
	Request int    // its number in the batch
	Err     error  // ErrDuplicate, ErrNotFound, ErrFull
	Place   uint32 // where the entry is now; of one removed 0
	// What all packets of an entry that was removed came to, and when the last one was.
	Packets, Bytes uint64
	Used           uint32
}

// Process does what a batch asks for, in its order, and appends one completion for each request to done, in the same
// order. Every request comes in force by itself, at once and whole: a packet meets the entry as it was before, or as it
// is afterwards. If anything was updated or removed it waits for one grace period, so that counts are right and
// places may be used again when it returns.
func (t *Table) Process(batch []Request, done []Completion) []Completion {
	first := len(done)
	for i := range batch {
		done = append(done, Completion{Request: i})
	}
	mine := done[first:]
	var spots [tableAhead]spot
	for i := range batch {
		if i%tableAhead == 0 {
			t.ahead(spots[:], batch[i:])
		}
		r, c, s := &batch[i], &mine[i], &spots[i%tableAhead]
		key := r.Entry.Key[:t.Words]
		slot, taken := t.find(s, key)
		switch {
		case r.Change == InsertEntry && slot != nil:
			c.Place, c.Err = uint32(*slot), ErrDuplicate
		case r.Change == InsertEntry:
			if slot = t.freeSlot(s, taken); slot == nil {
				c.Err = ErrFull
				continue
			}
			c.Place = t.take(mine)
			t.write(c.Place, &r.Entry, t.Now())
			t.n++
			atomic.StoreUint64(slot, s.tag<<32|uint64(c.Place))
		case slot == nil:
			c.Err = ErrNotFound
		case r.Change == UpdateEntry:
			old := uint32(*slot)
			c.Place = t.take(mine)
			t.write(c.Place, &r.Entry, atomic.LoadUint32(&t.Entries[old].Used))
			atomic.StoreUint64(slot, s.tag<<32|uint64(c.Place))
			t.gone = append(t.gone, replaced{old, c.Place, i})
		default:
			t.gone = append(t.gone, replaced{uint32(*slot), 0, i})
			t.n--
			atomic.StoreUint64(slot, 0)
		}
	}
	t.settle(mine)
	return done
}

// tableAhead is for how many requests memory is read before the first of them is done.
const tableAhead = 32

// ahead finds out where the keys of requests may be, and reads what they will need there. None of these reads waits for
// another, so that the processor does many at a time; one after the other they are most of the time of a change.
func (t *Table) ahead(spots []spot, batch []Request) {
	n := min(len(spots), len(batch))
	for i := range n {
		spots[i] = t.spot(batch[i].Entry.Key[:t.Words])
	}
	var sum uint64
	for i := range n {
		for _, b := range spots[i].bucket {
			sum += t.Buckets[b].Slot[0]
		}
	}
	for i := range n {
		for _, b := range spots[i].bucket {
			for _, v := range t.Buckets[b].Slot {
				if v>>32 == spots[i].tag {
					e := &t.Entries[uint32(v)]
					sum += uint64(e.Key[0]) + uint64(e.Forward)
				}
			}
		}
	}
	t.read0 = sum
}

// freeSlot returns a slot for a new key; nil if there is none.
func (t *Table) freeSlot(s *spot, taken [2]int) *uint64 {
	b := 0
	if taken[0] >= bucketFirst && taken[1] < taken[0] {
		b = 1
	}
	if t.n >= t.Size || taken[b] == bucketSlots {
		return nil
	}
	bucket := &t.Buckets[s.bucket[b]].Slot
	for n := range bucket {
		if bucket[n] == 0 {
			return &bucket[n]
		}
	}
	return nil
}

// take returns a place that no packet looks at.
func (t *Table) take(done []Completion) uint32 {
	if t.free == 0 && t.fresh == t.First+uint32(TablePlaces(t.Size)) {
		t.settle(done) // there is one then: there are fewer entries than places
	}
	if place := t.free; place != 0 {
		t.free = t.Entries[place].Number
		return place
	}
	t.fresh++
	return t.fresh - 1
}

// release gives a place back that no packet looks at any more.
func (t *Table) release(place uint32) {
	t.Entries[place] = bpf.PipesPipeEntry{Number: t.free}
	t.free = place
}

// write fills a place that no packet can find yet.
func (t *Table) write(place uint32, e *bpf.PipesPipeEntry, used uint32) {
	to := &t.Entries[place]
	*to = *e
	to.Packets, to.Bytes, to.Used = 0, 0, used
	clear(to.Key[t.Words:])
}

// settle waits until no packet is at what has been replaced, and carries over its counts, in the order in which it was.
func (t *Table) settle(done []Completion) {
	if len(t.gone) == 0 {
		return
	}
	t.Grace()
	for _, g := range t.gone {
		old := readEntry(&t.Entries[g.place])
		if g.by != 0 {
			carry(&t.Entries[g.by], &old)
		} else {
			c := &done[g.request]
			c.Packets, c.Bytes, c.Used = old.Packets, old.Bytes, old.Used
		}
		t.release(g.place)
	}
	t.gone = t.gone[:0]
}

// carry adds what packets of one entry came to, to another that they may be counting on.
func carry(to, from *bpf.PipesPipeEntry) {
	atomic.AddUint64(&to.Packets, from.Packets)
	atomic.AddUint64(&to.Bytes, from.Bytes)
	for {
		used := atomic.LoadUint32(&to.Used)
		if now := later(used, from.Used); now == used || atomic.CompareAndSwapUint32(&to.Used, used, now) {
			return
		}
	}
}
