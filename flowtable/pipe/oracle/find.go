package oracle

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/flowtable/pipe"
)

// find returns the entry of the pipe that the packet belongs to. A ct pipe, and one that floods, may find without one.
func (t *turn) find(p *pipe.Pipe, index uint32) (e *pipe.Entry, found bool) {
	switch p.Kind {
	case pipe.Basic:
		e = t.first(p.Entries, func(e *pipe.Entry) bool { return t.exact(p.Match, e) })
	case pipe.Control:
		e = t.best(p.Entries, func(e *pipe.Entry) bool { return t.asked(e) })
	case pipe.ACL:
		if t.After[wordHas]&hasIP != 0 {
			e = t.best(p.Entries, func(e *pipe.Entry) bool { return t.asked(e) && !e.Audit })
			t.audit(p.Entries, e)
		}
	case pipe.LPM:
		e = t.longest(p)
	case pipe.Hash:
		return t.hash(p)
	case pipe.OrderedList:
		e = t.first(p.Entries, func(e *pipe.Entry) bool { return uint32(e.Index) == index })
	case pipe.CT:
		state := uint32(0)
		if t.CT != nil {
			state, found = t.CT(&t.After)
		}
		t.After[wordCT] = state
		return nil, found
	}
	return e, e != nil
}

func (t *turn) first(entries []*pipe.Entry, matches func(*pipe.Entry) bool) *pipe.Entry {
	for _, e := range entries {
		if matches(e) {
			return e
		}
	}
	return nil
}

// best is the matching entry of the lowest priority number, of several the first.
func (t *turn) best(entries []*pipe.Entry, matches func(*pipe.Entry) bool) (best *pipe.Entry) {
	for _, e := range entries {
		if matches(e) && (best == nil || e.Priority < best.Priority) {
			best = e
		}
	}
	return best
}

// audit notes the entries that match in front of the one that decides and decide nothing themselves.
func (t *turn) audit(entries []*pipe.Entry, decides *pipe.Entry) {
	for _, e := range entries {
		if e == decides {
			return
		}
		if e.Audit && t.asked(e) {
			t.Audited = append(t.Audited, e)
		}
	}
}

// exact says whether the entry has the packet's value of each field.
func (t *turn) exact(fields []pipe.MatchField, e *pipe.Entry) bool {
	for i := range fields {
		if !t.equal(fields[i].Field, e.Match[i].Value, fields[i].Mask) {
			return false
		}
	}
	return true
}

// equal compares a field under a mask; nil: the whole field.
func (t *turn) equal(f *pipe.Field, v, mask pipe.Value) bool {
	if !t.has(f) {
		return false
	}
	if mask == nil {
		mask = f.Full()
	}
	for i, word := range t.value(f) {
		if word&mask[i] != v[i]&mask[i] {
			return false
		}
	}
	return true
}

// asked says whether the packet has all that an entry asks itself.
func (t *turn) asked(e *pipe.Entry) bool {
	for i := range e.Match {
		m := &e.Match[i]
		if m.Among != nil {
			if !t.has(m.Field) || !among(m.Among, t.value(m.Field)) {
				return false
			}
		} else if m.Last == nil {
			if !t.equal(m.Field, m.Value, m.Mask) {
				return false
			}
		} else if v := t.value(m.Field)[0]; !t.has(m.Field) || v < m.Value[0] || v > m.Last[0] {
			return false
		}
	}
	for i := range e.Conditions {
		if !t.holds(&e.Conditions[i]) {
			return false
		}
	}
	return true
}

// among says whether one of the ranges holds a value.
func among(spans []pipe.Span, v pipe.Value) bool {
	return slices.ContainsFunc(spans, func(s pipe.Span) bool {
		return slices.Compare(v, s.First[:len(v)]) >= 0 && slices.Compare(v, s.Last[:len(v)]) <= 0
	})
}

func (t *turn) holds(c *pipe.Condition) bool {
	a, b := t.value(c.Field)[0], c.Value
	if !t.has(c.Field) || c.With != nil && !t.has(c.With) {
		return false
	}
	if c.With != nil {
		b = t.value(c.With)[0]
	}
	switch c.Compare {
	case pipe.EQ:
		return a == b
	case pipe.NE:
		return a != b
	case pipe.LT:
		return a < b
	case pipe.LE:
		return a <= b
	case pipe.GT:
		return a > b
	}
	return a >= b
}

// longest is the entry with the longest prefix that holds the packet's address, beside equal fields.
func (t *turn) longest(p *pipe.Pipe) (best *pipe.Entry) {
	address := p.Match[0].Field
	if !t.has(address) {
		return nil
	}
	var b []byte
	for _, w := range t.value(address) {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	a, _ := netip.AddrFromSlice(b)
	for _, e := range p.Entries {
		if e.Prefix.Contains(a) && t.exact(p.Match[1:], e) && (best == nil || e.Prefix.Bits() > best.Prefix.Bits()) {
			best = e
		}
	}
	return best
}

// hash chooses an entry by number.
func (t *turn) hash(p *pipe.Pipe) (*pipe.Entry, bool) {
	if p.Algorithm == pipe.Flood {
		return nil, true
	}
	var key []uint32
	for _, m := range p.Match {
		mask := m.Mask
		if mask == nil {
			mask = m.Field.Full()
		}
		for i, w := range t.value(m.Field) {
			key = append(key, w&mask[i])
		}
	}
	slot := uint32(0)
	switch p.Algorithm {
	case pipe.ByHash, pipe.Consistent:
		slot = t.Hash(key)
	case pipe.Random:
		slot = t.After[wordRandom]
	case pipe.Identity:
		slot = key[len(key)-1]
	case pipe.RoundRobin:
		slot = t.turns[p]
		t.turns[p]++
	}
	if p.Algorithm == pipe.Consistent {
		slots := t.Slots(p)
		return p.Entries[slots[slot%uint32(len(slots))]], true
	}
	slot &= uint32(p.Size) - 1
	return t.first(p.Entries, func(e *pipe.Entry) bool { return uint32(e.Index) == slot }), true
}
