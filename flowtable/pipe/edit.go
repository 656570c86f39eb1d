package pipe

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// Edit asks for a change of an entry of a pipe.
type Edit struct {
	Change Change
	// Entry is what is added, or stands in the place of the one that it is found by: of basic and LPM pipes what it matches on,
	// of hash pipes and ordered lists its index, of control and ACL pipes its name, or without one all that it asks. An entry to be removed is found
	// alike, or by its name alone; nothing else of it counts.
	Entry *Entry
}

// Edited is what became of an Edit.
type Edited struct {
	Err error // ErrDuplicate, ErrNotFound, ErrFull, ErrName or a [mistake.Error]; nil: it is done
	At  int   // number of the entry in its pipe at that time. The last one takes the number of one that was removed
	// What all packets of an entry that was removed came to, and when the last one was.
	Packets, Bytes uint64
	Used           uint32
}

// ErrName is what becomes of an entry whose name another one has.
var ErrName = errors.New("another entry of the pipe has this name: give each a name of its own, or none")

// ErrPartly says that a part of a batch has changed the memory of a program.
var ErrPartly = errors.New("a part of the changes is in force")

// Edit changes entries of a pipe in memory while packets pass, in the order of the batch: each meets an entry as it was
// or as it is afterwards, whole. Entries have been checked ([Pipeline.CheckEdits]) and resolved ([Pipeline.ResolveEdits]).
// The error is [ErrRebuild] if the program must be compiled again for any of it: then nothing has changed, or what has
// is in the new program too, and the error is [ErrPartly] as well. One goroutine may call it.
func (p *Program) Edit(number int, batch []Edit) ([]Edited, error) {
	e, err := p.editor(number, batch)
	if err != nil {
		return nil, err
	}
	done := make([]Edited, len(batch))
	for from := 0; from < len(batch); {
		to := e.run(batch, from)
		e.process(batch[from:to], from, done[from:to])
		if e.failed != nil {
			return nil, fmt.Errorf("change entries of pipe %s: %w: %w: %w", e.pl.Pipe.Name, e.failed, ErrPartly, ErrRebuild)
		}
		from = to
	}
	return done, nil
}

// editor changes the entries of one pipe in place.
type editor struct {
	*Program
	pl      *Planned
	records []bpf.PipesPipeEntry // of what is to be written, by number in the batch
	in      place
	failed  error // of what should have been done
}

// place is where the entries of a pipe lie.
type place interface {
	// lookup returns the place of the entry that one is found by; 0 = there is none.
	lookup(e *Entry) uint32
	// process makes changes of one sort. A record's Number stands.
	process(change Change, entries []*Entry, records []bpf.PipesPipeEntry) []Completion
}

// editor looks whether the program can do what a batch asks as it is.
func (p *Program) editor(number int, batch []Edit) (*editor, error) {
	pl := p.Pipes[number]
	e := &editor{Program: p, pl: pl, records: make([]bpf.PipesPipeEntry, len(batch))}
	switch {
	case pl.Pipe.Fixed:
	case pl.Table != nil:
		e.in = tablePlace{pl}
	case pl.LPM != nil:
		e.in = &prefixPlace{p, pl}
	case pl.Form == InSlots && !pl.single():
		e.in = newSlotPlace(p, pl)
	}
	if e.in == nil {
		return nil, fmt.Errorf("pipe %s has become %s: %w", pl.Pipe.Name, pl.Form, ErrRebuild)
	}
	more := 0 // at most
	for i := range batch {
		if batch[i].Change == RemoveEntry {
			continue
		}
		if batch[i].Change == InsertEntry {
			more++
		}
		r, err := p.Record(number, batch[i].Entry)
		if err != nil {
			return nil, err
		}
		e.records[i] = r
		pl.ages = pl.ages || r.Age > 0
	}
	switch {
	case pl.Pipe.Resizable && len(pl.Pipe.Entries)+more > pl.room:
		return nil, fmt.Errorf("pipe %s has room for %d entries: %w", pl.Pipe.Name, pl.room, ErrRebuild)
	case pl.Form == InSlots:
		return e, e.onlyForwards(batch)
	}
	return e, nil
}

// onlyForwards looks whether all that changes in entries that are chosen by number is one word: packets would see half of more.
func (e *editor) onlyForwards(batch []Edit) error {
	for i := range batch {
		at := e.in.lookup(batch[i].Entry)
		if batch[i].Change != UpdateEntry || at == 0 {
			return fmt.Errorf("entries of pipe %s are chosen by number: %w", e.pl.Pipe.Name, ErrRebuild)
		}
		have, want := e.Memory.Entries[at], e.records[i]
		have.Packets, have.Bytes, have.Used, have.Number, have.Forward = 0, 0, 0, 0, want.Forward
		old := e.pl.Pipe.Entries[e.number(at)]
		if have != want || max(1, old.Weight) != max(1, batch[i].Entry.Weight) {
			return fmt.Errorf("more than the forward of an entry of pipe %s changes: %w", e.pl.Pipe.Name, ErrRebuild)
		}
	}
	return nil
}

// number is that of the entry at a place.
func (e *editor) number(place uint32) int {
	return int(atomic.LoadUint32(&e.Memory.Entries[place].Number))
}

func (e *editor) renumber(place uint32, number int) {
	atomic.StoreUint32(&e.Memory.Entries[place].Number, uint32(number))
}

// run returns the end of the changes of one sort that begin with a number of the batch. A name that one gives and another
// one takes divides them.
func (e *editor) run(batch []Edit, from int) int {
	touched := make(map[string]bool)
	for i := from; i < len(batch); i++ {
		if batch[i].Change != batch[from].Change {
			return i
		}
		name := batch[i].Entry.Name
		if name == "" {
			continue
		}
		if touched[name] {
			return i
		}
		touched[name] = true
	}
	return len(batch)
}

// named are the entries that have a name, by it.
func (e *editor) named() map[string]*Entry {
	if e.pl.names == nil {
		e.pl.names = make(map[string]*Entry)
		for _, entry := range e.pl.Pipe.Entries {
			if entry.Name != "" {
				e.pl.names[entry.Name] = entry
			}
		}
	}
	return e.pl.names
}

// rename keeps the names: that of an entry that goes, and that of one that comes; nil: there is none.
func (e *editor) rename(goes, comes *Entry) {
	if e.pl.names == nil {
		return
	}
	if goes != nil && goes.Name != "" {
		delete(e.pl.names, goes.Name)
	}
	if comes != nil && comes.Name != "" {
		e.pl.names[comes.Name] = comes
	}
}

// process makes changes of one sort, the first of which is a number of the batch. Entries have been told apart by name.
func (e *editor) process(batch []Edit, first int, done []Edited) {
	change := batch[0].Change
	p := e.pl.Pipe
	which := make([]int, 0, len(batch)) // that are asked for, by number in batch
	entries := make([]*Entry, 0, len(batch))
	records := make([]bpf.PipesPipeEntry, 0, len(batch))
	for i := range batch {
		entry := batch[i].Entry
		r := &e.records[first+i]
		if change == InsertEntry {
			if entry.Name != "" && e.named()[entry.Name] != nil {
				done[i].Err = ErrName
				continue
			}
			r.Number = uint32(len(p.Entries) + len(entries))
		} else {
			at, err := e.settle(change, &entry)
			if done[i].At, done[i].Err = at, err; err != nil {
				continue
			}
			r.Number = uint32(at)
		}
		which = append(which, i)
		entries = append(entries, entry)
		records = append(records, *r)
	}
	for n, c := range e.in.process(change, entries, records) {
		d := &done[which[n]]
		d.Err, d.Packets, d.Bytes, d.Used = c.Err, c.Packets, c.Bytes, c.Used
		switch {
		case c.Err != nil && change == RemoveEntry: // a table of prefixes has no room for what comes in its place
			e.renumber(e.in.lookup(entries[n]), len(p.Entries))
			p.Entries, e.pl.Places = append(p.Entries, entries[n]), append(e.pl.Places, e.in.lookup(entries[n]))
			e.rename(nil, entries[n])
			e.failed = c.Err
		case c.Err != nil && change == UpdateEntry:
			e.failed = c.Err
		case c.Err != nil:
		case change == InsertEntry:
			d.At = len(p.Entries)
			if d.At != int(records[n].Number) {
				e.renumber(c.Place, d.At)
			}
			p.Entries, e.pl.Places = append(p.Entries, entries[n]), append(e.pl.Places, c.Place)
			e.rename(nil, entries[n])
		case change == UpdateEntry:
			e.pl.Places[d.At] = c.Place
		}
	}
}

// settle finds the entry that is to be updated or removed, which cannot fail any more if it is there, and notes that it is.
func (e *editor) settle(change Change, entry **Entry) (at int, err error) {
	p, asked := e.pl.Pipe, *entry
	if change == RemoveEntry && asked.Name != "" && p.keyless(asked) {
		if *entry = e.named()[asked.Name]; *entry == nil {
			return 0, ErrNotFound
		}
	}
	place := e.in.lookup(*entry)
	if place == 0 {
		return 0, ErrNotFound
	}
	if at = e.number(place); at >= len(p.Entries) || e.pl.Places[at] != place {
		return 0, ErrNotFound // one before removes it, and it is found until all of them are gone
	}
	old := p.Entries[at]
	if change == RemoveEntry {
		e.rename(old, nil)
		e.drop(at)
		return at, nil
	}
	if asked.Name != "" {
		if other := e.named()[asked.Name]; other != nil && other != old {
			return 0, ErrName
		}
	}
	p.Entries[at] = asked
	e.rename(old, asked)
	return at, nil
}

// drop forgets an entry: the last one gets its number.
func (e *editor) drop(at int) {
	p, last := e.pl.Pipe, len(e.pl.Places)-1
	p.Entries[at], e.pl.Places[at] = p.Entries[last], e.pl.Places[last]
	e.renumber(e.pl.Places[at], at)
	p.Entries[last] = nil
	p.Entries, e.pl.Places = p.Entries[:last], e.pl.Places[:last]
}

// Follow has a pipe that was not compiled itself have the entries that the compiled one has after [Program.Edit].
func (p *Pipe) Follow(batch []Edit, done []Edited) {
	for i := range done {
		at := done[i].At
		switch {
		case done[i].Err != nil:
		case batch[i].Change == InsertEntry:
			p.Entries = append(p.Entries, batch[i].Entry)
		case batch[i].Change == UpdateEntry:
			p.Entries[at] = batch[i].Entry
		default:
			last := len(p.Entries) - 1
			p.Entries[at], p.Entries[last] = p.Entries[last], nil
			p.Entries = p.Entries[:last]
		}
	}
}

// keyless tells whether an entry says nothing that its kind of pipe finds one by but, perhaps, its name.
func (p *Pipe) keyless(e *Entry) bool {
	switch p.Kind {
	case Basic, LPM:
		return len(e.Match) == 0 && !e.Prefix.IsValid()
	case Control, ACL:
		return true
	}
	return false
}

// tablePlace is a table of exact matches.
type tablePlace struct{ *Planned }

func (t tablePlace) lookup(e *Entry) uint32 { return t.Table.Lookup(t.Key(e)) }

func (t tablePlace) process(change Change, entries []*Entry, records []bpf.PipesPipeEntry) []Completion {
	batch := make([]Request, len(records))
	for i := range records {
		batch[i] = Request{Change: change, Entry: records[i]}
		copy(batch[i].Entry.Key[:], t.Key(entries[i]))
	}
	return t.Table.Process(batch, nil)
}

// slotPlace are entries that are chosen by number.
type slotPlace struct {
	memory  []bpf.PipesPipeEntry
	byIndex map[int]uint32
}

func newSlotPlace(p *Program, pl *Planned) slotPlace {
	s := slotPlace{p.Memory.Entries, make(map[int]uint32, len(pl.Places))}
	for i, at := range pl.Places {
		s.byIndex[pl.Pipe.Entries[i].Index] = at
	}
	return s
}

func (s slotPlace) lookup(e *Entry) uint32 { return s.byIndex[e.Index] }

// process changes forwards, since nothing else is asked of it.
func (s slotPlace) process(_ Change, entries []*Entry, records []bpf.PipesPipeEntry) []Completion {
	done := make([]Completion, len(entries))
	for i := range entries {
		done[i] = Completion{Request: i, Place: s.lookup(entries[i])}
		atomic.StoreUint32(&s.memory[done[i].Place].Forward, records[i].Forward)
	}
	return done
}
