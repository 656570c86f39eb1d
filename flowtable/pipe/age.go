package pipe

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// Aged calls tell with the places of entries that no packet has used for longer than their age at a tick, in batches of
// at most `batch`: of those from place first to before end. The places are valid until tell returns; it may change
// tables. A scan reads two cache lines of each place, so only pipes with entries that age need one.
func Aged(entries []bpf.PipesPipeEntry, first, end uint32, now uint32, batch int, tell func(places []uint32)) {
	places := make([]uint32, 0, batch)
	for place := first; place < end; place++ {
		e := &entries[place]
		if e.Age == 0 || int32(now-atomic.LoadUint32(&e.Used)) <= int32(e.Age) {
			continue
		}
		if places = append(places, place); len(places) == batch {
			tell(places)
			places = places[:0]
		}
	}
	if len(places) > 0 {
		tell(places)
	}
}

// Ages tells whether a pipe has, or has had, entries that age.
func (p *Program) Ages(number int) bool { return p.Pipes[number].ages }

// Aged is the same of a pipe's entries: places count from 0 to its [Program.Span].
func (p *Program) Aged(number int, first, end uint32, now uint32, batch int, tell func(places []uint32)) {
	pl := p.Pipes[number]
	Aged(p.Memory.Entries, pl.First+first, min(pl.First+end, pl.End), now, batch, tell)
}

// Span is how many places a pipe's entries lie in.
func (p *Program) Span(number int) uint32 { return p.Pipes[number].End - p.Pipes[number].First }

// Aged is the same of all entries of a table.
func (t *Table) Aged(now uint32, batch int, tell func(places []uint32)) {
	Aged(t.Entries, t.First, t.fresh, now, batch, tell)
}

// RemoveRequests appends to batch the requests that remove the entries at places.
func (t *Table) RemoveRequests(batch []Request, places []uint32) []Request {
	for _, place := range places {
		batch = append(batch, Request{Change: RemoveEntry, Entry: bpf.PipesPipeEntry{Key: t.Entries[place].Key}})
	}
	return batch
}
