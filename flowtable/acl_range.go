package flowtable

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// aclNum is the value of one field of a key: an IPv6 address whole, anything else in lo.
type aclNum struct{ hi, lo uint64 }

func (n aclNum) less(m aclNum) bool { return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo }

func (n aclNum) compare(m aclNum) int {
	switch {
	case n.less(m):
		return -1
	case n == m:
		return 0
	}
	return 1
}

// next returns n + 1, which wraps to 0 behind the largest number.
func (n aclNum) next() aclNum {
	lo, carry := bits.Add64(n.lo, 1, 0)
	return aclNum{n.hi + carry, lo}
}

// aclRange is a closed interval.
type aclRange struct{ first, last aclNum }

// Ids of the two sets that every pool holds.
const (
	aclAny  int32 = 0  // every value
	aclNone int32 = -1 // no value: an entry with it cannot match
)

// aclPool holds the distinct sets of one field, each a sorted list of disjoint ranges that do not
// touch, under small ids: equal sets have equal ids, so a sub-problem of the tree is a list of ids.
type aclPool struct {
	max    aclNum // largest value of the field
	sets   [][]aclRange
	single map[aclRange]int32
	many   map[string]int32
	within map[[2]int32]bool
}

func newACLPool(limit aclNum) *aclPool {
	whole := aclRange{last: limit}
	return &aclPool{
		max:    limit,
		sets:   [][]aclRange{{whole}},
		single: map[aclRange]int32{whole: aclAny},
		many:   map[string]int32{},
		within: map[[2]int32]bool{},
	}
}

// union returns the id of the union of ranges in any order, which it sorts in place.
func (p *aclPool) union(ranges []aclRange) int32 {
	slices.SortFunc(ranges, func(a, b aclRange) int { return a.first.compare(b.first) })
	joined := ranges[:0]
	for _, r := range ranges {
		if n := len(joined); n > 0 {
			last := &joined[n-1].last
			if *last == p.max || !last.next().less(r.first) {
				if last.less(r.last) {
					*last = r.last
				}
				continue
			}
		}
		joined = append(joined, r)
	}
	return p.intern(joined)
}

// intern returns the id of a canonical list of ranges; the list is copied.
func (p *aclPool) intern(set []aclRange) int32 {
	switch len(set) {
	case 0:
		return aclNone
	case 1:
		id, ok := p.single[set[0]]
		if !ok {
			id = p.add(set)
			p.single[set[0]] = id
		}
		return id
	}
	key := make([]byte, 0, 32*len(set))
	for _, r := range set {
		for _, n := range [2]aclNum{r.first, r.last} {
			key = binary.LittleEndian.AppendUint64(key, n.hi)
			key = binary.LittleEndian.AppendUint64(key, n.lo)
		}
	}
	id, ok := p.many[string(key)]
	if !ok {
		id = p.add(set)
		p.many[string(key)] = id
	}
	return id
}

func (p *aclPool) add(set []aclRange) int32 {
	p.sets = append(p.sets, slices.Clone(set))
	return int32(len(p.sets) - 1)
}

// below returns what set id asks of values less than t: a range that reaches t-1 is written as open
// upwards, so that the same question has the same id wherever it is asked.
func (p *aclPool) below(id int32, t aclNum) int32 {
	if id == aclAny {
		return id
	}
	set := p.sets[id]
	n, _ := slices.BinarySearchFunc(set, t, func(r aclRange, t aclNum) int { return r.first.compare(t) })
	if n == 0 {
		return aclNone
	}
	last := set[n-1]
	if last.last == p.max {
		return id
	}
	if last.last.next().less(t) {
		return p.intern(set[:n])
	}
	last.last = p.max
	if n == 1 {
		return p.intern([]aclRange{last})
	}
	return p.intern(append(slices.Clone(set[:n-1]), last))
}

// from returns what set id asks of values of at least t; a range that holds t is written as open
// downwards.
func (p *aclPool) from(id int32, t aclNum) int32 {
	if id == aclAny {
		return id
	}
	set := p.sets[id]
	n, _ := slices.BinarySearchFunc(set, t, func(r aclRange, t aclNum) int { return r.last.compare(t) })
	if n == len(set) {
		return aclNone
	}
	first := set[n]
	if t.less(first.first) {
		if n == 0 {
			return id
		}
		return p.intern(set[n:])
	}
	first.first = aclNum{}
	if n == len(set)-1 {
		return p.intern([]aclRange{first})
	}
	return p.intern(append([]aclRange{first}, set[n+1:]...))
}

// has tells whether set id holds n.
func (p *aclPool) has(id int32, n aclNum) bool { return aclSetHas(p.sets[id], n) }

// aclSetHas is the search that the generated code does with compare instructions.
func aclSetHas(set []aclRange, n aclNum) bool {
	lo, hi := 0, len(set)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if set[mid].last.less(n) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo < len(set) && !n.less(set[lo].first)
}

// inside tells whether every value of set a is in set b.
func (p *aclPool) inside(a, b int32) bool {
	if a == b || b == aclAny {
		return true
	}
	if a == aclAny {
		return false
	}
	key := [2]int32{a, b}
	in, ok := p.within[key]
	if !ok {
		in = p.covers(b, a)
		p.within[key] = in
	}
	return in
}

func (p *aclPool) covers(b, a int32) bool {
	outer := p.sets[b]
	for _, r := range p.sets[a] {
		n, _ := slices.BinarySearchFunc(outer, r.first, func(o aclRange, n aclNum) int { return o.last.compare(n) })
		if n == len(outer) || r.first.less(outer[n].first) || outer[n].last.less(r.last) {
			return false
		}
	}
	return true
}

// meet tells whether sets a and b have a value in common.
func (p *aclPool) meet(a, b int32) bool {
	few, many := p.sets[a], p.sets[b]
	if len(few) > len(many) {
		few, many = many, few
	}
	for _, r := range few {
		n, _ := slices.BinarySearchFunc(many, r.first, func(m aclRange, first aclNum) int { return m.last.compare(first) })
		if n < len(many) && !r.last.less(many[n].first) {
			return true
		}
		many = many[n:]
	}
	return false
}

// exact returns the value of a set that holds one.
func (p *aclPool) exact(id int32) (aclNum, bool) {
	set := p.sets[id]
	return set[0].first, len(set) == 1 && set[0].first == set[0].last
}

// aclEdges returns the values at which membership changes and the parity below the first of them:
// 1 if the set begins at 0. A value with an odd sum of parity and edges at or below it is inside.
func aclEdges(set []aclRange, limit aclNum) (edges []aclNum, parity int) {
	edges = make([]aclNum, 0, 2*len(set))
	for _, r := range set {
		if r.first == (aclNum{}) {
			parity = 1
		} else {
			edges = append(edges, r.first)
		}
		if r.last != limit {
			edges = append(edges, r.last.next())
		}
	}
	return edges, parity
}
