package pipe

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/firewall/mistake"
)

// Query asks for entries of a pipe: those of which all holds that it says.
type Query struct {
	Name  string  // of the entry; "": any
	Match []Match // exactly what the entry says of these fields; of the address of an LPM pipe its prefix, as value and mask
	Index int     // of the entry; -1: any
}

// Find returns the numbers of entries of a pipe, from one on, and where to go on; -1: that was all. It looks at no more
// than `look` of them and finds no more than `most`.
func (p *Program) Find(number int, q Query, from, look, most int) (found []int, next int) {
	pl := p.Pipes[number]
	entries := pl.Pipe.Entries
	if at, ok := p.findByKey(pl, q); ok {
		if at >= from {
			found = append(found, at)
		}
		return found, -1
	}
	for i := from; i < len(entries); i++ {
		if len(found) == most || i-from == look {
			return found, i
		}
		if q.of(pl.Pipe, entries[i]) {
			found = append(found, i)
		}
	}
	return found, -1
}

// findByKey finds the only entry that there can be, if the query says its key and the table has it.
func (p *Program) findByKey(pl *Planned, q Query) (at int, ok bool) {
	if pl.Table == nil || len(q.Match) != len(pl.Pipe.Match) || q.Index >= 0 {
		return 0, false
	}
	e := &Entry{}
	for _, m := range pl.Pipe.Match {
		i := slices.IndexFunc(q.Match, func(asked Match) bool { return asked.Field.Name == m.Field.Name })
		if i < 0 || len(q.Match[i].Value) != m.Field.Words() {
			return 0, false
		}
		e.Match = append(e.Match, q.Match[i])
	}
	place := pl.Table.Lookup(pl.Key(e))
	if place == 0 {
		return -1, true
	}
	at = int(atomic.LoadUint32(&p.Memory.Entries[place].Number))
	if !q.of(pl.Pipe, pl.Pipe.Entries[at]) {
		at = -1
	}
	return at, true
}

// of tells whether all holds of an entry.
func (q *Query) of(p *Pipe, e *Entry) bool {
	if q.Name != "" && e.Name != q.Name || q.Index >= 0 && e.Index != q.Index {
		return false
	}
	for i := range q.Match {
		asked := &q.Match[i]
		if p.Kind == LPM && asked.Field.Name == p.Match[0].Field.Name {
			if !slices.Equal(asked.Value, addressValue(e.Prefix.Addr())) || !slices.Equal(asked.mask(), prefixMask(e.Prefix)) {
				return false
			}
			continue
		}
		n := slices.IndexFunc(e.Match, func(m Match) bool { return m.Field.Name == asked.Field.Name })
		if n < 0 {
			return false
		}
		m := &e.Match[n]
		mask, have := asked.mask(), m.mask()
		if f := slices.IndexFunc(p.Match, func(f MatchField) bool { return f.Field.Name == asked.Field.Name }); f >= 0 {
			have = p.Match[f].mask() // which its entries do not repeat
			if asked.Mask == nil {
				mask = have
			}
		}
		if !slices.Equal(asked.Value, m.Value) || !slices.Equal(mask, have) || !slices.Equal(asked.Last, m.Last) {
			return false
		}
	}
	return true
}

// Unused returns after what time an entry ages, and how long no packet has used it, at a tick. Ok is whether it ages.
func (p *Program) Unused(number, i int, now uint32) (age, unused time.Duration, ok bool) {
	pl := p.Pipes[number]
	if i >= len(pl.Places) {
		return 0, 0, false
	}
	r := &p.Memory.Entries[pl.Places[i]]
	ticks := int32(now - atomic.LoadUint32(&r.Used))
	return pl.Pipe.monitor(pl.Pipe.Entries[i]).Age, time.Duration(max(0, ticks)) << tickShift, r.Age > 0
}

// At returns the number of the entry at a place, which one of the pipe's has, and when it was last used.
func (p *Program) At(place uint32) (number int, used uint32) {
	r := &p.Memory.Entries[place]
	return int(atomic.LoadUint32(&r.Number)), atomic.LoadUint32(&r.Used)
}

// Removes tells whether an entry is to be removed when it is old.
func (p *Pipe) Removes(e *Entry) bool { return p.monitor(e).Remove }

// Counted is EntryReport of an entry with what its record has counted, as of one that ages.
func (p *Program) Counted(number, i int) EntryReport {
	r := p.EntryReport(number, i, 0)
	packets, bytes, _ := p.counts(p.Pipes[number].Places[i])
	r.Packets, r.Bytes = &packets, &bytes
	return r
}

// ParseQuery reads a query: FIELD=VALUE, or index=N, of which all are to hold. The error is a [mistake.Errors].
func (p *Pipeline) ParseQuery(name string, match []string, ports map[string]uint32) (Query, error) {
	q := Query{Name: name, Index: -1}
	r := &resolver{known: ports, used: make(map[string]uint32)}
	for _, text := range match {
		left, right, ok := strings.Cut(text, "=")
		if left == "index" {
			n, err := strconv.Atoi(right)
			if err != nil || n < 0 {
				return q, mistake.Errors{{Msg: fmt.Sprintf("%q is no index", right), Hint: "as in index=3"}}
			}
			q.Index = n
			continue
		}
		f := p.Field(left)
		if f == nil || !ok {
			return q, mistake.Errors{nearHint(mistake.Error{Msg: fmt.Sprintf("%q does not ask for a field", text)}, left, p.FieldNames(), "as in ipv4.src=10.0.0.1")}
		}
		m, err := f.Parse(right)
		if err != nil {
			return q, queryMistake(f, err)
		}
		if m.Port != "" {
			m.Value, m.Port = r.port(Pos{}, "field "+f.Name, m.Port), ""
		}
		q.Match = append(q.Match, m)
	}
	if len(r.faults) > 0 {
		return q, r.faults
	}
	return q, nil
}

func queryMistake(f *Field, err error) error {
	var e *ValueError
	if errors.As(err, &e) {
		return mistake.Errors{{Msg: fmt.Sprintf("field %s: %s", f.Name, e.Msg), Hint: e.Hint}}
	}
	return err
}
