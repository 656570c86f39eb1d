package pipe

import (
	"slices"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// prefixPlace is a table of prefixes, whose entries lie in places of the pipe's own.
type prefixPlace struct {
	p *Program
	*Planned
}

func (x *prefixPlace) exact(e *Entry) (exact [lpmExact]uint32) {
	copy(exact[:], x.Key(e))
	return exact
}

func (x *prefixPlace) lookup(e *Entry) uint32 { return x.LPM.at(x.exact(e), e) }

// at returns the place of the entry of a prefix, 0 = none.
func (l *LPMTable) at(exact [lpmExact]uint32, e *Entry) uint32 {
	t := l.alone
	if t == nil {
		if t = l.groups[exact]; t == nil {
			return 0
		}
	}
	i, there := slices.BinarySearchFunc(t.sorted, prefix{wideOf(e.Prefix.Addr()), uint8(e.Prefix.Bits()), 0}, prefix.compare)
	if !there {
		return 0
	}
	return t.sorted[i].place
}

// process does as much at a time as there are places for: an entry that changes has two for a while.
func (x *prefixPlace) process(change Change, entries []*Entry, records []bpf.PipesPipeEntry) (done []Completion) {
	done = make([]Completion, 0, len(entries))
	for len(done) < len(entries) {
		from := len(done)
		to := len(entries)
		if change != RemoveEntry {
			to = min(to, from+len(x.free))
		}
		if change == InsertEntry {
			to = min(to, from+x.room-x.LPM.Len())
		}
		if to <= from { // there is none left, for this one or any other
			for i := from; i < len(entries); i++ {
				c := Completion{Request: i, Err: ErrFull}
				if at := x.lookup(entries[i]); at != 0 {
					c.Place, c.Err = at, ErrDuplicate
				}
				done = append(done, c)
			}
			return done
		}
		done = x.some(change, entries[from:to], records[from:to], done)
	}
	return done
}

// some makes changes of one sort for which there are places.
func (x *prefixPlace) some(change Change, entries []*Entry, records []bpf.PipesPipeEntry, done []Completion) []Completion {
	first := len(done)
	memory := x.p.Memory.Entries
	batch := make([]PrefixRequest, len(entries))
	old := make([]uint32, len(entries))
	for i, e := range entries {
		batch[i] = PrefixRequest{Change: change, Exact: x.exact(e), Prefix: e.Prefix}
		if change != InsertEntry {
			old[i] = x.lookup(e)
		}
		if change == RemoveEntry {
			continue
		}
		at := x.free[len(x.free)-1]
		x.free = x.free[:len(x.free)-1]
		batch[i].Place = at
		memory[at] = records[i]
		memory[at].Used = x.p.tick()
		if old[i] != 0 {
			memory[at].Used = atomic.LoadUint32(&memory[old[i]].Used)
		}
	}
	done, _ = x.LPM.Process(batch, done) // each says its own error
	if change != InsertEntry {
		x.LPM.Grace() // a part without nodes has nothing that Process would wait for
	}
	last := make(map[uint32]int) // of an entry that is changed more than once, the change that stands
	for i := range entries {
		c := &done[first+i]
		c.Request = first + i
		switch {
		case change == InsertEntry && c.Err != nil, change == UpdateEntry && c.Err != nil:
			x.release(batch[i].Place)
		case change == UpdateEntry:
			last[old[i]] = i
		case change == RemoveEntry && c.Err == nil:
			r := readEntry(&memory[old[i]])
			c.Packets, c.Bytes, c.Used = r.Packets, r.Bytes, r.Used
			x.release(old[i])
		}
	}
	if change != UpdateEntry {
		return done
	}
	for i := range entries {
		c := &done[first+i]
		n, ok := last[old[i]]
		if c.Err != nil || !ok {
			continue
		}
		if n != i {
			x.release(batch[i].Place)
			c.Place = batch[n].Place
			continue
		}
		r := readEntry(&memory[old[i]])
		carry(&memory[batch[i].Place], &r)
		x.release(old[i])
	}
	return done
}

// release gives a place back that no packet looks at any more.
func (x *prefixPlace) release(at uint32) {
	x.p.Memory.Entries[at] = bpf.PipesPipeEntry{}
	x.free = append(x.free, at)
}
