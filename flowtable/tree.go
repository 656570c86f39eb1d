package flowtable

import (
	"crypto/sha256"
	"encoding/binary"
)

// The dimensions of a search tree. The family is not one of them: each has its own tree.
const (
	treeSrc = iota
	treeDst
	treeDstPort
	treeSrcPort
	treeProto
	treeFrom
	treeTo
	treeContext
	treeDims
)

// treeInlineRanges is the largest number of ranges whose search stands in the tree itself. A larger
// set is one question, answered by a search of its own, and stays whole when a cut goes through it; of
// more than aclCodeRanges, that search stands in a map.
const treeInlineRanges = 8

// treeOp says what a node does.
type treeOp uint8

const (
	treeVerdict  treeOp = iota // value.lo is the answer
	treeAtLeast                // is the dimension at least value?
	treeEqual                  // is it value?
	treeIn                     // is it in the set?
	treeReport                 // report rule value.lo and go on with yes
	treeIsFamily               // is the key of family value.lo?
)

// treeNode is one step of a search. Nodes form a graph without cycles: what many places ask alike
// is there once.
type treeNode struct {
	value   aclNum
	yes, no int32
	set     int32 // index into ACL.sets
	op      treeOp
	dim     uint8
	family  uint8 // whose tree; 0 for verdicts and family questions
}

// treeBuilder makes the tree of one family.
//
// A sub-problem is a list of items, first match first. It is either cut in two by one question, each
// half keeping the items that can still match there, or its first item is asked in full and the rest
// follows. Sub-problems are remembered, so that equal ones share their nodes: entries that mean
// anything are copied into many halves, but what becomes of them there is mostly the same.
type treeBuilder struct {
	acl     *ACL
	family  uint8
	pools   [treeDims]*aclPool
	entries []ACLEntry
	memo    map[[sha256.Size]byte]int32
	nodes   map[treeNode]int32
	large   map[[2]int32]int32 // dimension, set id -> index into ACL.sets
	lists   map[treeList]int32 // lists that were seen -> set id
	zoned   map[treeZones]int32
	key     []byte
	cut     treeCutter
}

func newTreeBuilder(acl *ACL, family uint8, entries []ACLEntry) *treeBuilder {
	b := &treeBuilder{
		acl: acl, family: family, entries: entries,
		memo:  map[[sha256.Size]byte]int32{},
		nodes: map[treeNode]int32{},
		large: map[[2]int32]int32{},
		lists: map[treeList]int32{},
		zoned: map[treeZones]int32{},
	}
	addr := aclNum{lo: 1<<32 - 1}
	if family == 6 {
		addr = aclNum{hi: 1<<64 - 1, lo: 1<<64 - 1}
	}
	b.pools = [treeDims]*aclPool{
		treeSrc: newACLPool(addr), treeDst: newACLPool(addr),
		treeDstPort: newACLPool(aclNum{lo: 1<<16 - 1}), treeSrcPort: newACLPool(aclNum{lo: 1<<16 - 1}),
		treeProto: newACLPool(aclNum{lo: 1<<8 - 1}),
		treeFrom:  newACLPool(aclNum{lo: 1<<8 - 1}), treeTo: newACLPool(aclNum{lo: 1<<8 - 1}),
		treeContext: newACLPool(aclNum{lo: 1<<16 - 1}),
	}
	return b
}

// add returns the node that does what n says.
func (b *treeBuilder) add(n treeNode) int32 {
	if n.op != treeVerdict {
		if n.op != treeReport && n.yes == n.no {
			return n.yes
		}
		n.family = b.family
	}
	id, ok := b.nodes[n]
	if !ok {
		id = int32(len(b.acl.nodes))
		b.acl.nodes = append(b.acl.nodes, n)
		b.nodes[n] = id
	}
	return id
}

func (b *treeBuilder) verdict(v uint32) int32 {
	return b.add(treeNode{op: treeVerdict, value: aclNum{lo: uint64(v)}})
}

// trim leaves out entries that cannot decide: those behind one that takes all, and, in a short list,
// those behind one that takes all that they would.
func (b *treeBuilder) trim(items []treeItem) []treeItem {
	const short = 24
	for i := range items {
		if items[i].decided() && !b.entries[items[i].entry].Audit {
			items = items[:i+1]
			break
		}
	}
	if len(items) > short {
		return items
	}
	kept := make([]treeItem, 0, len(items))
next:
	for _, it := range items {
		for i := range kept {
			if !b.entries[kept[i].entry].Audit && b.contains(&kept[i], &it) {
				continue next
			}
		}
		kept = append(kept, it)
	}
	return kept
}

func (b *treeBuilder) contains(outer, inner *treeItem) bool {
	for d, id := range inner.sets {
		if !b.pools[d].inside(id, outer.sets[d]) {
			return false
		}
	}
	return true
}

// remember returns the place of a sub-problem in the memory of those that were built.
func (b *treeBuilder) remember(items []treeItem) [sha256.Size]byte {
	key := b.key[:0]
	for i := range items {
		e := &b.entries[items[i].entry]
		key = binary.LittleEndian.AppendUint32(key, e.Verdict)
		for _, id := range items[i].sets {
			key = binary.LittleEndian.AppendUint32(key, uint32(id))
		}
		audit := byte(0)
		if e.Audit {
			audit = 1
		}
		key = append(key, audit)
	}
	b.key = key
	return sha256.Sum256(key)
}

// build returns the root of a search through items that adds at most about budget nodes.
// asked is how many items were asked in full since the last cut was looked for.
func (b *treeBuilder) build(items []treeItem, budget, asked int) int32 {
	items = b.trim(items)
	if len(items) == 0 {
		return b.verdict(0)
	}
	if first := &b.entries[items[0].entry]; items[0].decided() {
		if !first.Audit {
			return b.verdict(first.Verdict)
		}
		next := b.build(items[1:], budget-1, asked)
		return b.add(treeNode{op: treeReport, value: aclNum{lo: uint64(first.Verdict)}, yes: next, no: next})
	}
	key := b.remember(items)
	if id, ok := b.memo[key]; ok {
		return id
	}
	id, ok := int32(0), false
	if asked == 0 {
		id, ok = b.divide(items, budget)
	}
	if !ok {
		id = b.ask(items, budget, asked)
	}
	b.memo[key] = id
	return id
}

// divide cuts items in two where that pays and fits the budget.
func (b *treeBuilder) divide(items []treeItem, budget int) (int32, bool) {
	q, ok := b.cut.choose(b, items)
	if !ok {
		return 0, false
	}
	no, yes := b.split(items, q)
	no, yes = b.trim(no), b.trim(yes)
	costNo, costYes := b.costs(no), b.costs(yes)
	if costNo+costYes+1 > budget {
		return 0, false
	}
	budget--
	before := len(b.acl.nodes)
	n := treeNode{op: q.op, dim: uint8(q.dim), value: q.value}
	if q.op == treeIn {
		n.set = b.largeSet(q.dim, q.set)
	}
	n.no = b.build(no, budget*(costNo+1)/(costNo+costYes+2), 0)
	n.yes = b.build(yes, budget-(len(b.acl.nodes)-before), 0)
	return b.add(n), true
}

// split returns what is left of items where the answer to q is no and where it is yes.
func (b *treeBuilder) split(items []treeItem, q treeQuestion) (no, yes []treeItem) {
	p := b.pools[q.dim]
	no, yes = make([]treeItem, 0, len(items)), make([]treeItem, 0, len(items))
	for _, it := range items {
		id := it.sets[q.dim]
		idNo, idYes := id, id
		switch {
		case id == aclAny:
		case q.op == treeAtLeast && len(p.sets[id]) > aclCodeRanges:
			if !p.sets[id][0].first.less(q.value) {
				idNo = aclNone
			}
			if p.sets[id][len(p.sets[id])-1].last.less(q.value) {
				idYes = aclNone
			}
		case q.op == treeAtLeast:
			idNo, idYes = b.narrow(q.dim, id, p.below(id, q.value)), b.narrow(q.dim, id, p.from(id, q.value))
		case q.op == treeEqual:
			if v, one := p.exact(id); one && v == q.value {
				idNo = aclNone
			}
			idYes = aclNone
			if p.has(id, q.value) {
				idYes = aclAny
			}
		case q.op == treeIn:
			if p.inside(id, q.set) {
				idNo = aclNone
			}
			if p.inside(q.set, id) {
				idYes = aclAny
			} else if !p.meet(q.set, id) {
				idYes = aclNone
			}
		}
		if idNo != aclNone {
			it.sets[q.dim] = idNo
			no = append(no, it)
		}
		if idYes != aclNone {
			it.sets[q.dim] = idYes
			yes = append(yes, it)
		}
	}
	return no, yes
}

// narrow returns part, what is left of a set, or the whole set where both are large: then the
// question stays one that is asked elsewhere too.
func (b *treeBuilder) narrow(dim int, whole, part int32) int32 {
	if part != aclNone && len(b.pools[dim].sets[part]) > treeInlineRanges {
		return whole
	}
	return part
}

// ask puts all questions of the first item, then goes on with the rest.
func (b *treeBuilder) ask(items []treeItem, budget, asked int) int32 {
	first := items[0]
	e := &b.entries[first.entry]
	// In a list that no cut helps a shorter one is seldom better off: look again only when an
	// eighth of it is gone.
	if asked++; asked > len(items)/8 {
		asked = 0
	}
	rest := b.build(items[1:], budget-b.cost(&first), asked)
	var id int32
	if e.Audit {
		id = b.add(treeNode{op: treeReport, value: aclNum{lo: uint64(e.Verdict)}, yes: rest, no: rest})
	} else {
		id = b.verdict(e.Verdict)
	}
	// The question asked first is built last: dimensions are ordered so that the one that
	// fails most often stands first.
	for d := treeDims - 1; d >= 0; d-- {
		id = b.askSet(d, first.sets[d], id, rest)
	}
	return id
}

// askSet returns a node that goes to yes if the dimension is in set id, else to no.
func (b *treeBuilder) askSet(dim int, id, yes, no int32) int32 {
	if id == aclAny {
		return yes
	}
	p := b.pools[dim]
	set := p.sets[id]
	if v, one := p.exact(id); one {
		return b.add(treeNode{op: treeEqual, dim: uint8(dim), value: v, yes: yes, no: no})
	}
	if len(set) > treeInlineRanges {
		return b.add(treeNode{op: treeIn, dim: uint8(dim), set: b.largeSet(dim, id), yes: yes, no: no})
	}
	edges, parity := aclEdges(set, p.max)
	return b.search(dim, edges, parity, yes, no)
}

// search is a binary search over the edges of a set: a value with an odd number of edges at or below
// it (parity: those left of edges) is inside.
func (b *treeBuilder) search(dim int, edges []aclNum, parity int, yes, no int32) int32 {
	if len(edges) == 0 {
		if parity&1 == 1 {
			return yes
		}
		return no
	}
	mid := len(edges) / 2
	return b.add(treeNode{
		op: treeAtLeast, dim: uint8(dim), value: edges[mid],
		yes: b.search(dim, edges[mid+1:], parity+mid+1, yes, no),
		no:  b.search(dim, edges[:mid], parity, yes, no),
	})
}

func (b *treeBuilder) largeSet(dim int, id int32) int32 {
	key := [2]int32{int32(dim), id}
	n, ok := b.large[key]
	if !ok {
		n = int32(len(b.acl.sets))
		b.acl.sets = append(b.acl.sets, aclSet{ranges: b.pools[dim].sets[id], max: b.pools[dim].max, dim: uint8(dim), family: b.family})
		b.large[key] = n
	}
	return n
}
