package pipe

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Most of what entries may say.
const (
	MaxControlPriority = 7
	MaxACLPriority     = 1024
	MaxWeight          = 100
)

// entries checks the entries of a pipe, one by one and beside each other.
func (c *checker) entries(at subject, p *Pipe) {
	names, indices := make(map[string]bool), make(map[int]bool)
	keys := make(map[string]int)
	var key []byte
	for i, e := range p.Entries {
		at := at
		at.entry, at.number = e, i
		if e.Pos != (Pos{}) {
			at.pos = e.Pos
		}
		if e.Name != "" {
			if names[e.Name] {
				c.fail(at.Errorf("the name is given twice in its pipe").WithHint("give each entry a name of its own, or none"))
			}
			names[e.Name] = true
		}
		before := len(c.errs)
		c.entry(at, p, e)
		if len(c.errs) > before {
			continue // what follows would only say it again
		}
		switch p.Kind {
		case Basic, LPM:
			key = e.key(key[:0])
			if first, twice := keys[string(key)]; twice {
				c.fail(at.Errorf("%s has the same key", p.Entries[first].title(first)).WithHint("packets can only go one way: change that entry instead"))
				continue
			}
			keys[string(key)] = i
		case Hash, OrderedList:
			if indices[e.Index] {
				c.fail(at.Errorf("index %d is given twice", e.Index).WithHint("indices count from 0"))
			}
			indices[e.Index] = true
		}
	}
	if p.Kind == Hash && (p.Algorithm == ByHash || p.Algorithm == Random || p.Algorithm == Identity || p.Algorithm == RoundRobin) {
		c.gaps(at, p, indices)
	}
	if p.Kind == Hash && p.Algorithm == Consistent && len(p.Entries) == 0 {
		c.fail(at.Errorf("it has no entry to choose").WithHint("add at least one"))
	}
}

// gaps checks that a hash pipe has an entry whatever the hash.
func (c *checker) gaps(at subject, p *Pipe, indices map[int]bool) {
	for i := range min(p.Size, MaxSlots) {
		if !indices[i] {
			c.fail(at.Errorf("no entry has index %d of 0 to %d", i, p.Size-1).WithHint("every index needs an entry: several may do the same, and consistent takes fewer"))
			return
		}
	}
}

// key joins what a basic and an lpm pipe find an entry by.
func (e *Entry) key(b []byte) []byte {
	for _, m := range e.Match {
		if m.Port != "" {
			b = append(append(b, m.Port...), 0)
		}
		for _, w := range m.Value {
			b = binary.BigEndian.AppendUint32(b, w)
		}
	}
	b, _ = e.Prefix.AppendBinary(b) // never fails
	return b
}

// entry checks one entry by itself.
func (c *checker) entry(at subject, p *Pipe, e *Entry) {
	c.misplaced(at, p, e)
	if e.Audit || e.Log || slices.ContainsFunc(e.Match, func(m Match) bool { return m.Among != nil }) {
		c.fail(at.Errorf("only entries of the gateway's own pipes ask for sets, are in audit mode, or are logged").WithHint("write an entry for each range, and forward to another pipe"))
		return
	}
	switch p.Kind {
	case Basic:
		c.exact(at, p.Match, e)
	case LPM:
		if len(p.Match) > 0 {
			c.exact(at, p.Match[1:], e)
			c.prefix(at, p.Match[0].Field, e)
		}
	case Control:
		for i := range e.Match {
			c.match(at, e, i)
		}
		for i := range e.Conditions {
			c.condition(at, &e.Conditions[i])
		}
	case ACL:
		c.acl(at, e)
	case Hash, OrderedList:
		most := MaxSlots
		if p.Kind == Hash && p.Algorithm != Flood && p.Size > 0 {
			most = p.Size
		}
		if e.Index < 0 || e.Index >= most {
			c.fail(at.Errorf("index %d: the pipe has 0 to %d", e.Index, most-1).WithHint("indices count from 0"))
		}
	}
	c.does(at, p, e)
}

// misplaced finds what only other kinds have.
func (c *checker) misplaced(at subject, p *Pipe, e *Entry) {
	if len(e.Match) > 0 && (p.Kind == Hash || p.Kind == OrderedList) {
		c.fail(at.in(e.Match[0].Pos, "match").Errorf("an entry of a pipe of kind %s matches nothing: it is chosen by its index", p.Kind).WithHint("take kind basic or control"))
	}
	if len(e.Conditions) > 0 && p.Kind != Control {
		c.fail(at.in(e.Conditions[0].Pos, "condition").Errorf("a pipe of kind %s has no conditions", p.Kind).WithHint("kind control has: forward to such a pipe"))
	}
	if e.Prefix.IsValid() && p.Kind != LPM {
		c.fail(at.Errorf("a pipe of kind %s has no prefix", p.Kind).WithHint("match the address with a mask, as in 10.0.0.0/8, or take kind lpm"))
	}
	most := 0
	switch p.Kind {
	case Control:
		most = MaxControlPriority
	case ACL:
		most = MaxACLPriority
	}
	if e.Priority < 0 || e.Priority > most {
		hint := "kinds control and acl have"
		if most > 0 {
			hint = "lower numbers come first, and among equal ones the first entry"
		}
		c.fail(at.Errorf("priority %d: entries of a pipe of kind %s have 0 to %d", e.Priority, p.Kind, most).WithHint("%s", hint))
	}
	if e.Index != 0 && p.Kind != Hash && p.Kind != OrderedList {
		c.fail(at.Errorf("entries of a pipe of kind %s have no index", p.Kind).WithHint("kinds hash and ordered-list have"))
	}
	if e.Weight != 0 && (p.Kind != Hash || p.Algorithm != Consistent) {
		c.fail(at.Errorf("a weight, which only the algorithm consistent of hash pipes heeds").WithHint("give an entry more than one index, or take consistent"))
	} else if e.Weight < 0 || e.Weight > MaxWeight {
		c.fail(at.Errorf("weight %d: it is 1 to %d", e.Weight, MaxWeight).WithHint("shares are in proportion to weights"))
	}
	if e.List != nil && p.Kind != OrderedList {
		c.fail(at.Errorf("a list of actions, which only entries of ordered lists have").WithHint("name one of the pipe's actions, which has several steps"))
	}
}

// exact checks that an entry gives a value for each of the fields.
func (c *checker) exact(at subject, fields []MatchField, e *Entry) {
	for i, m := range e.Match {
		at := at.field(m.Pos, m.Field)
		n := slices.IndexFunc(fields, func(f MatchField) bool { return f.Field.Name == m.Field.Name })
		switch {
		case n < 0:
			c.fail(at.Errorf("its pipe does not match on it").WithHint("add it to the pipe's match, or take kind control, whose entries choose their fields"))
			continue
		case slices.ContainsFunc(e.Match[:i], func(o Match) bool { return o.Field.Name == m.Field.Name }):
			c.fail(at.Errorf("it is named twice").WithHint("an entry is one value of each field"))
			continue
		case n != i:
			c.fail(at.Errorf("it stands in another place than in the pipe's match").WithHint("name the fields in the pipe's order"))
			continue
		case m.Last != nil:
			c.fail(at.Errorf("only control and acl pipes match ranges").WithHint("take one of these kinds"))
			continue
		case m.Mask != nil && !slices.Equal(m.Mask, fields[n].mask()):
			c.fail(at.Errorf("all entries of its pipe have the pipe's mask").WithHint("leave the entry's out, or take kind control, whose entries have their own"))
			continue
		}
		c.given(at, &e.Match[i])
		c.value(at, m.Field, m.Value, fields[n].mask(), "value")
	}
	for _, f := range fields {
		if !slices.ContainsFunc(e.Match, func(m Match) bool { return m.Field.Name == f.Field.Name }) {
			c.fail(at.Errorf("it has no value for field %s", f.Field.Name).WithHint("an entry is a value of each field of its pipe"))
		}
	}
}

// mask is the one that the field is compared under.
func (m *MatchField) mask() Value {
	if m.Mask == nil {
		return m.Field.Full()
	}
	return m.Mask
}

// mask is the one that the field is compared under.
func (m *Match) mask() Value {
	if m.Mask == nil {
		return m.Field.Full()
	}
	return m.Mask
}

// match checks field i of an entry that chooses its own.
func (c *checker) match(at subject, e *Entry, i int) {
	m := &e.Match[i]
	at = at.field(m.Pos, m.Field)
	c.used.fields[m.Field.Name] = true
	if slices.ContainsFunc(e.Match[:i], func(o Match) bool { return o.Field.Name == m.Field.Name }) {
		c.fail(at.Errorf("it is named twice").WithHint("a mask joins several parts of a field, and a range has two ends"))
	}
	c.given(at, m)
	if m.Last == nil {
		c.value(at, m.Field, m.Mask, nil, "mask")
		c.value(at, m.Field, m.Value, m.mask(), "value")
		return
	}
	switch {
	case !m.Field.Numeric() || m.Field.Format == Port:
		c.fail(at.Errorf("it has no order, so that there is no range of it").WithHint("match single values, or prefixes by a mask"))
	case m.Mask != nil:
		c.fail(at.Errorf("a range under a mask").WithHint("leave one of the two out"))
	default:
		c.value(at, m.Field, m.Value, nil, "value")
		c.value(at, m.Field, m.Last, nil, "value")
		if len(m.Value) == 1 && len(m.Last) == 1 && m.Last[0] < m.Value[0] {
			c.fail(at.Errorf("the range %d-%d ends before it begins", m.Value[0], m.Last[0]).WithHint("write %d-%d", m.Last[0], m.Value[0]))
		}
	}
}

// given checks that there is a value: a name of a port, or words.
func (c *checker) given(at subject, m *Match) {
	switch {
	case m.Port == "" && m.Value == nil:
		c.fail(at.Errorf("it has no value").WithHint("give it one, or leave the field out"))
	case m.Port != "" && (m.Field.Format != Port || m.Value != nil):
		c.fail(at.Errorf("%q would be a port's name, and it has a value besides or is no port", m.Port).WithHint("only field port has names"))
	}
}

// value checks that a value, if there is one, has as many words and bits as its field, and none outside of the mask, if
// there is one.
func (c *checker) value(at subject, f *Field, v, mask Value, what string) {
	if v == nil {
		return
	}
	full := f.Full()
	if len(v) != len(full) {
		c.fail(at.Errorf("its %s has %d words: the field has %d", what, len(v), len(full)).WithHint("a value has as many words of 32 bits as its field"))
		return
	}
	for i := range v {
		if v[i]&^full[i] != 0 {
			c.fail(at.Errorf("its %s %s is wider than the field, which has %d bits", what, f.Text(v), f.Bits).WithHint("the most is %s", f.Text(full)))
			return
		}
	}
	if mask == nil || len(mask) != len(v) {
		return
	}
	for i := range v {
		if v[i]&^mask[i] != 0 {
			c.fail(at.Errorf("its value %s has bits outside of the mask %s, so that no packet matches", hexText(v), hexText(mask)).WithHint("write %s", hexText(under(v, mask))))
			return
		}
	}
}

func under(v, mask Value) Value {
	out := make(Value, len(v))
	for i := range v {
		out[i] = v[i] & mask[i]
	}
	return out
}

// hexText writes a value as one hexadecimal number.
func hexText(v Value) string {
	text := ""
	for _, w := range v {
		if text == "" || text == "0" {
			text = fmt.Sprintf("%x", w)
		} else {
			text += fmt.Sprintf("%08x", w)
		}
	}
	return "0x" + text
}

func (c *checker) prefix(at subject, f *Field, e *Entry) {
	at = at.field(at.pos, f)
	switch {
	case !e.Prefix.IsValid():
		c.fail(at.Errorf("it has no prefix").WithHint("add prefix: 10.0.0.0/8"))
	case e.Prefix.Addr().Is4() != (f.Format == IPv4) || e.Prefix.Addr().Is4In6():
		c.fail(at.Errorf("%s is of the other family", e.Prefix).WithHint("its pipe looks for one of %s", f.Format))
	case e.Prefix != e.Prefix.Masked():
		c.fail(at.Errorf("%s has bits behind its length", e.Prefix).WithHint("write %s", e.Prefix.Masked()))
	}
}

// comparisons are those of conditions.
var comparisons = []Compare{EQ, NE, LT, LE, GT, GE}

func (c *checker) condition(at subject, d *Condition) {
	at = at.in(d.Pos, "condition")
	if d.Field == nil {
		c.fail(at.Errorf("it has no field").WithHint("as in: tcp.seq > meta.0"))
		return
	}
	at = at.field(d.Pos, d.Field)
	c.used.fields[d.Field.Name] = true
	if !slices.Contains(comparisons, d.Compare) {
		c.fail(at.Errorf("%q is no comparison", d.Compare).WithHint("it is one of: %s", commas(comparisons)))
	}
	if !d.Field.Numeric() || d.Field.Format == Port {
		c.fail(at.Errorf("it is no number of at most 32 bits, and conditions compare these").WithHint("match on it instead"))
		return
	}
	if d.With == nil {
		c.value(at, d.Field, Value{d.Value}, nil, "value")
		return
	}
	c.used.fields[d.With.Name] = true
	if !d.With.Numeric() || d.With.Format == Port {
		c.fail(at.Errorf("field %s, which it is compared with, is no number of at most 32 bits", d.With.Name).WithHint("take another, or a number"))
	}
}
