package pipe

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// Most tables that a control pipe becomes: each is looked up in, or left out since a better entry was found.
const (
	tupleMost  = 48
	tupleLeast = 8 // entries; of fewer the search takes care
)

// tuple is a table of the entries of a control pipe that ask the same fields under the same masks. Entries' ranks, which
// their records hold, tell which of those that were found comes first.
type tuple struct {
	need    uint32
	keys    []term
	entries []int // numbers, in the order in which they match
	first   uint32
	bucket  uint32
	table   *Table
}

const noRank = ^uint32(0)

// tuples makes a control pipe tables of exact matches, as far as its entries are such, and a search for the others.
func (c *compiler) tuples(pl *Planned, records []bpf.PipesPipeEntry) error {
	p := pl.Pipe
	pl.Form, pl.tree = InBuckets, nil
	bySignature := map[string]*tuple{}
	var all []*tuple
	keys := make(map[int][]uint32)
	seen := map[string]bool{}
	var rest []int
	for n, i := range p.order() {
		records[i].Rank = uint32(n)
		e := p.Entries[i]
		need, terms, key, exact := e.tuple()
		if !exact {
			rest = append(rest, i)
			continue
		}
		signature := fmt.Sprint(need, terms)
		t := bySignature[signature]
		if t == nil {
			t = &tuple{need: need, keys: terms}
			bySignature[signature] = t
			all = append(all, t)
		}
		keys[i] = key
		if whole := signature + fmt.Sprint(key); !seen[whole] { // of equal ones the first takes all
			seen[whole] = true
			t.entries = append(t.entries, i)
		} else {
			pl.Places[i] = c.place()
			c.Memory.Entries[pl.Places[i]] = records[i]
		}
	}
	slices.SortStableFunc(all, func(a, b *tuple) int { return cmp.Compare(len(b.entries), len(a.entries)) })
	for i, t := range all {
		if i >= tupleMost || len(t.entries) < tupleLeast {
			rest = append(rest, t.entries...)
			continue
		}
		pl.tuples = append(pl.tuples, t)
	}
	var items []item
	left := make(map[int]bool)
	for _, i := range rest {
		pl.Places[i] = c.place()
		left[i] = true
	}
	for _, it := range pl.items() {
		if left[it.entry] {
			items = append(items, it)
		}
	}
	for _, i := range rest {
		c.Memory.Entries[pl.Places[i]] = records[i]
	}
	if len(items) > 0 {
		pl.tree = newTree(items)
	}
	slices.SortFunc(pl.tuples, func(a, b *tuple) int { return cmp.Compare(records[a.entries[0]].Rank, records[b.entries[0]].Rank) })
	for _, t := range pl.tuples {
		size := len(t.entries)
		t.first, t.bucket = uint32(len(c.Memory.Entries)), uint32(len(c.Memory.Buckets))
		c.Memory.Entries = append(c.Memory.Entries, make([]bpf.PipesPipeEntry, TablePlaces(size))...)
		c.Memory.Buckets = append(c.Memory.Buckets, make([]bpf.PipesPipeBucket, TableBuckets(size))...)
		c.later = append(c.later, func() (err error) {
			t.table, err = NewTable(TableConfig{
				Words: len(t.keys), Size: size, Seed: c.options.Seed,
				Buckets: c.Memory.Buckets[t.bucket : int(t.bucket)+TableBuckets(size)], Entries: c.Memory.Entries, First: t.first,
			})
			if err != nil {
				return err
			}
			batch := make([]Request, size)
			for n, i := range t.entries {
				batch[n].Entry = records[i]
				copy(batch[n].Entry.Key[:], keys[i])
			}
			for n, done := range t.table.Process(batch, nil) {
				if done.Err != nil {
					return fmt.Errorf("%s: %w", p.Entries[t.entries[n]].title(t.entries[n]), done.Err)
				}
				pl.Places[t.entries[n]] = done.Place
			}
			return nil
		})
	}
	return nil
}

// costTuples is about what the pipe takes as tables; math.MaxFloat64 if there would be none.
func (p *Pipe) costTuples() float64 {
	sizes := map[string]int{}
	for _, e := range p.Entries {
		if need, keys, _, exact := e.tuple(); exact {
			sizes[fmt.Sprint(need, keys)]++
		}
	}
	cost, rest := 0.0, len(p.Entries)
	for _, n := range sizes {
		if n >= tupleLeast {
			cost += costExact(n)
			rest -= n
		}
	}
	if rest == len(p.Entries) {
		return math.MaxFloat64
	}
	if rest > 0 {
		cost += costRecord + 1.6*costStep*math.Log2(float64(1+rest))
	}
	return cost
}

// tuple returns what an entry of a control pipe asks as an exact match; not exact if it asks for anything else.
func (e *Entry) tuple() (need uint32, keys []term, key []uint32, exact bool) {
	if len(e.Conditions) > 0 || len(e.Match) == 0 {
		return 0, nil, nil, false
	}
	type part struct {
		term
		value uint32
	}
	var parts []part
	for _, m := range e.Match {
		if m.Last != nil {
			return 0, nil, nil, false
		}
		need |= m.Field.Has
		for i, mask := range m.Field.Full() {
			k := term{m.Field.Word + i, mask, m.Field.Only != 0}
			if m.Mask != nil && m.Mask[i]&mask != mask {
				k.mask, k.part = m.Mask[i]&mask, true
			}
			if k.mask != 0 {
				parts = append(parts, part{k, m.Value[i] & k.mask})
			}
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Or(cmp.Compare(a.word, b.word), cmp.Compare(a.mask, b.mask)) })
	for i, p := range parts {
		if i > 0 && parts[i-1].word == p.word { // a field that is asked twice
			return 0, nil, nil, false
		}
		keys, key = append(keys, p.term), append(key, p.value)
	}
	return need, keys, key, len(keys) > 0 && len(keys) <= MaxKey
}

// among returns the place of the first entry that matches.
func (p *Program) among(pl *Planned, f *bpf.PipesPipeFields) (place uint32) {
	best := noRank
	if pl.tree != nil {
		if n := pl.tree.find(f); n >= 0 {
			place = pl.Places[n]
			best = p.Memory.Entries[place].Rank
		}
	}
	for _, t := range pl.tuples {
		if best <= p.Memory.Entries[pl.Places[t.entries[0]]].Rank {
			break
		}
		if f.Word[wordHas]&t.need != t.need {
			continue
		}
		key := make([]uint32, len(t.keys))
		for i, k := range t.keys {
			key[i] = k.of(f)
		}
		if at := t.table.Lookup(key); at != 0 {
			if r := p.Memory.Entries[at].Rank; r < best {
				place, best = at, r
			}
		}
	}
	return place
}

// among leaves the place of the first entry that matches in regPlace, or goes to miss.
func (t *text) among(pl *Planned, miss label) error {
	done := t.Label()
	t.Add(asm.Mov.Imm32(regPlace, 0), asm.Mov.Imm32(regForward, -1)) // the rank of the best one so far
	better := func(next label) {
		t.Add(asm.StoreMem(asm.RFP, stackKey, asm.R0, asm.Word), asm.Mov.Reg32(regRecord, asm.R0))
		t.LookUp(bpf.PipesMapPipeEntries, t.broken)
		t.Add(asm.LoadMem(asm.R1, asm.R0, recordRank, asm.Word))
		t.JumpReg(asm.JGE, asm.R1, regForward, next)
		t.Add(asm.Mov.Reg32(regForward, asm.R1), asm.Mov.Reg32(regPlace, regRecord))
	}
	if pl.tree != nil {
		next := t.Label()
		name := fmt.Sprintf("%s_find%d", emitName, pl.Number)
		if err := t.e.search(pl, name); err != nil {
			return err
		}
		t.Add(asm.Mov.Reg(asm.R1, regFields))
		t.Call(name)
		t.JumpImm(asm.JEq, asm.R0, 0, next)
		better(next)
		t.Place(next)
	}
	for _, u := range pl.tuples {
		next := t.Label()
		t.JumpImm(asm.JLE, regForward, t.e.Memory.Entries[pl.Places[u.entries[0]]].Rank, done)
		t.ask(u.need, u.keys, u.bucket, u.table, next)
		better(next)
		t.Place(next)
	}
	t.Place(done)
	t.JumpImm(asm.JEq, regPlace, 0, miss)
	return nil
}
