package pipe

import (
	"encoding/binary"
	"fmt"
)

// pair are the places of an entry in two programs.
type pair struct{ to, from uint32 }

// Begin says what time it is from now on, before packets come. Entries that another program, whose place this one takes
// (nil: none), has too have been unused as long as there; the time of the others begins.
func (p *Program) Begin(before *Program, clock func() uint32) {
	p.clock = clock
	now := clock()
	for _, pl := range p.Pipes {
		for _, at := range pl.Places {
			p.Memory.Entries[at].Used = now
		}
		if pl.Table != nil {
			pl.Table.Now = clock
		}
	}
	if before == nil {
		return
	}
	p.pairs = p.pairsWith(before)
	for _, both := range p.pairs {
		if _, _, used := before.counts(both.from); used != 0 {
			p.Memory.Entries[both.to].Used = used
		}
	}
}

// Adopt adds the counts of another program to those of this one, for entries of the same name, or else of the same match, in
// pipes of the same name and kind. No packet counts in the other one any more.
func (p *Program) Adopt(before *Program) {
	if p.pairs == nil {
		p.pairs = p.pairsWith(before)
	}
	for _, both := range p.pairs {
		carryAt(p, before, both.to, both.from)
	}
	p.pairs = nil
	old := before.byName()
	for _, pl := range p.Pipes {
		if from := old[pl.Pipe.Name]; from != nil && from.Pipe.Kind == pl.Pipe.Kind {
			carryAt(p, before, pl.Miss, from.Miss)
		}
	}
	for i, name := range p.Pipeline.Counters {
		for j, other := range before.Pipeline.Counters {
			if name == other {
				carryAt(p, before, p.Counters[i], before.Counters[j])
			}
		}
	}
}

func (p *Program) byName() map[string]*Planned {
	all := make(map[string]*Planned)
	for _, pl := range p.Pipes {
		all[pl.Pipe.Name] = pl
	}
	return all
}

// pairsWith finds the entries that both programs have.
func (p *Program) pairsWith(before *Program) []pair {
	old := before.byName()
	pairs := []pair{}
	for _, pl := range p.Pipes {
		from := old[pl.Pipe.Name]
		if from == nil || from.Pipe.Kind != pl.Pipe.Kind {
			continue
		}
		if pl.single() && from.single() {
			pairs = append(pairs, pair{pl.First, from.First})
		}
		places := make(map[string][]uint32, len(from.Places)) // several may ask the same
		var b []byte
		for i, at := range from.Places {
			b = from.Pipe.Entries[i].identity(b[:0])
			places[string(b)] = append(places[string(b)], at)
		}
		for i, at := range pl.Places {
			b = pl.Pipe.Entries[i].identity(b[:0])
			if others := places[string(b)]; len(others) > 0 {
				if at != 0 && others[0] != 0 {
					pairs = append(pairs, pair{at, others[0]})
				}
				places[string(b)] = others[1:]
			}
		}
	}
	return pairs
}

func carryAt(p, before *Program, to, from uint32) {
	if to != 0 && from != 0 {
		old := readEntry(&before.Memory.Entries[from])
		carry(&p.Memory.Entries[to], &old)
	}
}

// identity appends what an entry is known by when its pipeline is replaced.
func (e *Entry) identity(b []byte) []byte {
	if e.Name != "" {
		return append(append(b, 'n'), e.Name...)
	}
	number := func(n int) { b = binary.AppendVarint(b, int64(n)) }
	number(e.Priority)
	number(e.Index)
	number(len(e.Match))
	for i := range e.Match {
		m := &e.Match[i]
		b = append(append(b, m.Field.Name...), 0)
		number(len(m.Port))
		b = append(b, m.Port...)
		for _, v := range []Value{m.Value, m.mask(), m.Last} {
			number(len(v))
			for _, w := range v {
				b = binary.BigEndian.AppendUint32(b, w)
			}
		}
	}
	b = append(b, conditionsText(e.Conditions)...)
	if e.Prefix.IsValid() {
		b, _ = e.Prefix.AppendBinary(b) // never fails
	}
	return b
}

func conditionsText(list []Condition) (text string) {
	for _, c := range list {
		with := fmt.Sprint(c.Value)
		if c.With != nil {
			with = c.With.Name
		}
		text += fmt.Sprintf("%s %s %s;", c.Field.Name, c.Compare, with)
	}
	return text
}
