package pipe

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// nobody is the record at place 0.
var nobody bpf.PipesPipeEntry

// place takes the next place in memory.
func (c *compiler) place() uint32 {
	c.Memory.Entries = append(c.Memory.Entries, nobody)
	return uint32(len(c.Memory.Entries) - 1)
}

// plan chooses what becomes of a pipe, and lays out its memory. Pipes that it leads to need not be planned.
func (c *compiler) plan(pl *Planned) (err error) {
	p := pl.Pipe
	defer func() { pl.End = uint32(len(c.Memory.Entries)) }()
	pl.Miss = c.place()
	if pl.miss, err = c.encode(&p.Miss); err != nil {
		return err
	}
	if err := pl.act(); err != nil {
		return err
	}
	records := make([]bpf.PipesPipeEntry, len(p.Entries))
	for i, e := range p.Entries {
		if p.floods() {
			break
		}
		if records[i], err = c.record(pl, e); err != nil {
			return fmt.Errorf("entry %s: %w", e.title(i), err)
		}
		records[i].Number = uint32(i)
		pl.ages = pl.ages || records[i].Age > 0
		if p.Kind == OrderedList {
			records[i].Action = uint16(len(p.Actions) + i + 1)
		}
	}
	if err := c.share(pl, records); err != nil {
		return err
	}
	for _, m := range p.Match {
		if p.Kind != Hash {
			pl.need |= m.Field.Has
		}
	}
	pl.Places = make([]uint32, len(records))
	pl.First = uint32(len(c.Memory.Entries))
	switch p.Kind {
	case Basic:
		if p.Fixed && c.faster(pl, costExact(len(p.Entries))) {
			return c.search(pl, records)
		}
		return c.exact(pl, records)
	case Control:
		if p.costTuples() == math.MaxFloat64 || c.faster(pl, p.costTuples()) {
			return c.search(pl, records)
		}
		return c.tuples(pl, records)
	case LPM:
		if p.Fixed && c.faster(pl, costTrie+costMemory(len(p.Entries)*entryBytes)) {
			return c.search(pl, records)
		}
		return c.prefixes(pl, records)
	case OrderedList:
		return c.search(pl, records)
	case ACL:
		return c.classifier(pl, records)
	case Hash:
		return c.slots(pl, records)
	case CT:
		pl.Form = InFlows
		return c.one(pl, p.Forward, pl.forward)
	}
	return fmt.Errorf("kind %q is not there yet", p.Kind)
}

// act lays out the pipe's action templates, and behind them the lists of entries.
func (pl *Planned) act() error {
	p := pl.Pipe
	for i := range p.Actions {
		a, err := newAction(&p.Actions[i])
		if err != nil {
			return err
		}
		pl.actions = append(pl.actions, a)
	}
	if p.Kind != OrderedList {
		return nil
	}
	for i, e := range p.Entries {
		list := Action{Name: e.title(i)}
		for _, a := range e.List {
			list.Ops = append(list.Ops, a.Ops...)
		}
		a, err := newAction(&list)
		if err != nil {
			return err
		}
		pl.actions = append(pl.actions, a)
	}
	return nil
}

// share finds out what the entries of a pipe have in common, so that instructions need not ask their records.
func (c *compiler) share(pl *Planned, records []bpf.PipesPipeEntry) error {
	all := records
	if len(all) == 0 || !pl.Pipe.Fixed { // one that comes later and says nothing itself
		later := &Entry{Forward: pl.Pipe.Forward}
		if later.Forward == nil {
			later.Forward = &pl.Pipe.Miss
		}
		if len(pl.actions) > 0 {
			later.Values = []Value{make(Value, pl.actions[0].words)}
		}
		r, err := c.record(pl, later)
		if err != nil {
			return err
		}
		all = append(slices.Clone(records), r)
	}
	pl.common = all[0]
	agree := func(get func(*bpf.PipesPipeEntry) uint32) source {
		from := nowhere
		for i := range all {
			v := get(&all[i])
			if v != get(&pl.common) {
				return fromEntry
			}
			if v != 0 {
				from = always
			}
		}
		return from
	}
	pl.counts = agree(func(r *bpf.PipesPipeEntry) uint32 { return uint32(r.Flags & entryCounts) })
	pl.counter = agree(func(r *bpf.PipesPipeEntry) uint32 { return r.Counter })
	pl.meter = agree(func(r *bpf.PipesPipeEntry) uint32 { return uint32(r.Meter) })
	pl.mirror = agree(func(r *bpf.PipesPipeEntry) uint32 { return uint32(r.Mirror) })
	if pl.Pipe.Fixed || pl.Pipe.Forward != nil {
		if agree(func(r *bpf.PipesPipeEntry) uint32 { return r.Forward }) == always {
			pl.forward = pl.common.Forward
		}
	}
	for i := range records {
		if to := records[i].Forward; to>>forwardShift == toPipe>>forwardShift && to&forwardWord != 0 && !slices.Contains(pl.indirect, to) {
			pl.indirect = append(pl.indirect, to)
		}
	}
	return nil
}

// faster tells whether a pipe may become instructions, and takes less than a table does then.
func (c *compiler) faster(pl *Planned, table float64) bool {
	if c.tables[pl.Number] || len(pl.Pipe.Entries) > c.options.Limits.code() {
		return false
	}
	pl.tree = newTree(pl.items())
	return c.options.Limits.Always || pl.tree.cost() <= table
}

// search makes a pipe a search tree.
func (c *compiler) search(pl *Planned, records []bpf.PipesPipeEntry) error {
	pl.Form = InCode
	for _, i := range pl.Pipe.order() {
		pl.Places[i] = c.place()
		c.Memory.Entries[pl.Places[i]] = records[i]
	}
	if pl.tree == nil {
		pl.tree = newTree(pl.items())
	}
	steps := 0
	for i := range records {
		if a := records[i].Action; a > 0 {
			steps += len(pl.actions[a-1].steps)
		}
	}
	pl.alone = pl.Pipe.Fixed && !c.shared[pl.Number] && len(records) <= aloneEntries && steps <= c.options.Limits.function()/aloneSteps
	return nil
}

// Entries that have instructions of their own for what is done on a hit.
const (
	aloneEntries = 16
	aloneSteps   = 100 // instructions that there must be room for to a step of their actions
)

// items returns what the entries of a pipe ask, in the order in which they match.
func (pl *Planned) items() (items []item) {
	p := pl.Pipe
	for _, i := range p.order() {
		e := p.Entries[i]
		it := item{entry: i}
		possible := true
		switch p.Kind {
		case Basic:
			for j, m := range p.Match {
				it.add(m.Field, e.Match[j].Value, m.Mask, nil)
			}
		case LPM:
			it.add(p.Match[0].Field, addressValue(e.Prefix.Addr()), prefixMask(e.Prefix), nil)
			for j, m := range p.Match[1:] {
				it.add(m.Field, e.Match[j].Value, nil, nil)
			}
		case Control:
			for _, m := range e.Match {
				possible = it.add(m.Field, m.Value, m.Mask, m.Last) && possible
			}
			for _, x := range e.Conditions {
				possible = it.condition(&x) && possible
			}
		case OrderedList:
			it.bound(bound{term{wordIndex, ^uint32(0), false}, uint32(e.Index), uint32(e.Index)})
		}
		if possible {
			items = append(items, it)
		}
	}
	return items
}

// prefixMask is the mask of a prefix.
func prefixMask(p netip.Prefix) (v Value) {
	for left := p.Bits(); len(v) < p.Addr().BitLen()/32; left -= 32 {
		v = append(v, uint32(uint64(0xffffffff)<<(32-min(32, max(0, left)))))
	}
	return v
}

// condition asks that a condition holds. It reports whether that can be at all.
func (it *item) condition(x *Condition) bool {
	it.need |= x.Field.Has
	if x.With != nil {
		it.need |= x.With.Has
		it.conditions = append(it.conditions, condition{compare: x.Compare, word: x.Field.Word, with: x.With.Word})
		return true
	}
	b := bound{term: term{x.Field.Word, x.Field.Full()[0], false}}
	b.last = b.term.mask
	switch v := x.Value; {
	case x.Compare == EQ:
		b.first, b.last = v, min(v, b.last)
	case x.Compare == NE && v > b.term.mask:
		return true
	case x.Compare == NE:
		it.conditions = append(it.conditions, condition{compare: NE, word: x.Field.Word, with: -1, value: v})
		return true
	case x.Compare == LT && v == 0, x.Compare == GT && v >= b.last:
		return false
	case x.Compare == LT:
		b.last = min(b.last, v-1)
	case x.Compare == LE:
		b.last = min(b.last, v)
	case x.Compare == GT:
		b.first = v + 1
	case x.Compare == GE:
		b.first = v
	}
	return it.bound(b)
}

// used are the words that the program reads.
func (c *compiler) used() (words uint64) {
	field := func(f *Field) {
		if f == nil {
			return
		}
		if f.Has != 0 {
			words |= 1 << wordHas
		}
		for i := range f.Words() {
			words |= 1 << (f.Word + i)
		}
	}
	for _, n := range c.Order {
		pl := c.Pipes[n]
		for _, m := range pl.Pipe.Match {
			field(m.Field)
		}
		for _, e := range pl.Pipe.Entries {
			for _, m := range e.Match {
				field(m.Field)
			}
			for _, x := range e.Conditions {
				field(x.Field)
				field(x.With)
			}
		}
		for _, f := range pl.Pipe.everyForward() {
			field(f.IndexFrom)
		}
		for _, a := range pl.actions {
			for _, s := range a.steps {
				field(s.Field)
				field(s.From)
				switch s.Kind {
				case TTL:
					words |= 1<<wordTTL | 1<<wordHas
				case PushVLAN, PopVLAN:
					words |= 1<<wordHas | 1<<wordVLANs | 1<<wordVLAN0ID | 1<<wordVLAN0PCP | 1<<wordVLAN1ID | 1<<wordVLAN1PCP
				}
			}
		}
		switch pl.Pipe.Kind {
		case ACL, CT:
			words |= 1<<wordHas | 1<<wordProto | 0xff<<wordIPSrc | 1<<wordSport | 1<<wordDport | 1<<wordICMPType | 1<<wordICMPCode
		case LPM:
			words |= 1 << wordHas
		}
		if pl.Pipe.Algorithm == Random {
			words |= 1 << wordRandom
		}
		if pl.meter != nowhere {
			words |= 1<<wordLength | 1<<wordColor
		}
		words |= 1<<wordTick | 1<<wordLength // misses are counted
	}
	return words
}
