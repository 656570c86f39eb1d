package pipe

import (
	"math"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// term is what a search compares: some bits of a word. Words hold nothing beyond their field's width.
type term struct {
	word int
	mask uint32
	part bool // the word may have other bits
}

func (t term) of(f *bpf.PipesPipeFields) uint32 { return f.Word[t.word] & t.mask }

// bound says that a term is from first to last.
type bound struct {
	term        term
	first, last uint32
}

// condition is a comparison of two words, or of one with a number.
type condition struct {
	compare Compare
	word    int
	with    int // -1: value
	value   uint32
}

func (c *condition) holds(f *bpf.PipesPipeFields) bool {
	a, b := f.Word[c.word], c.value
	if c.with >= 0 {
		b = f.Word[c.with]
	}
	switch c.compare {
	case EQ:
		return a == b
	case NE:
		return a != b
	case LT:
		return a < b
	case LE:
		return a <= b
	case GT:
		return a > b
	}
	return a >= b
}

// item is an entry in a search: all that it asks. Items stand in the order in which they match.
type item struct {
	entry      int
	need       uint32 // enum pipe_has
	bounds     []bound
	conditions []condition
}

func (it *item) free() bool { return it.need == 0 && len(it.bounds) == 0 && len(it.conditions) == 0 }

func (it *item) matches(f *bpf.PipesPipeFields) bool {
	if f.Word[wordHas]&it.need != it.need {
		return false
	}
	for i := range it.bounds {
		if v := it.bounds[i].term.of(f); v < it.bounds[i].first || v > it.bounds[i].last {
			return false
		}
	}
	for i := range it.conditions {
		if !it.conditions[i].holds(f) {
			return false
		}
	}
	return true
}

// add asks that a field, under a mask, is from first to last; last is nil if it is to be first. It reports whether that
// can be at all.
func (it *item) add(f *Field, first, mask, last Value) bool {
	it.need |= f.Has
	full := f.Full()
	for i := range f.Words() {
		m := full[i]
		if mask != nil {
			m &= mask[i]
		}
		if m == 0 {
			continue
		}
		b := bound{term{f.Word + i, m, m != full[i] || f.Only != 0}, first[i] & m, first[i] & m}
		if low := full[i] &^ m; last != nil {
			b.last = last[i] & m
		} else if f.Only == 0 && low&(low+1) == 0 { // a prefix is a range
			b.term, b.last = term{f.Word + i, full[i], false}, b.first|low
		}
		if !it.bound(b) {
			return false
		}
	}
	return true
}

// bound adds a bound to those that there are of its term. It reports whether anything is left.
func (it *item) bound(b bound) bool {
	for i := range it.bounds {
		if had := &it.bounds[i]; had.term == b.term {
			had.first, had.last = max(had.first, b.first), min(had.last, b.last)
			return had.first <= had.last
		}
	}
	it.bounds = append(it.bounds, b)
	return b.first <= b.last
}

// tree is a search: nodes, the root first.
type tree struct {
	nodes []treeNode
	depth float64 // steps of a search in the mean over its leaves: questions, and those that leaves ask
}

// treeNode asks one question, or is a leaf. Children stand behind it.
type treeNode struct {
	kind    nodeKind
	term    term   // atLeast
	value   uint32 // atLeast: is the term this or more?  present: has the packet all these bits?
	yes, no int32
	items   []item // leaf: what is left to ask of each, in order; then it goes on with no; 0: a miss
	size    int    // slots of the node and all below it, at most
}

type nodeKind uint8

const (
	nodeLeaf nodeKind = iota
	nodeAtLeast
	nodePresent
)

const (
	treeLeaf  = 3  // items that are compared one by one rather than cut
	treeChain = 24 // items of a leaf; others are in leaves behind it
	treeCuts  = 16 // places of a term that are tried
	treeSlots = flowtable.TextsSlots / 3
)

// treeGrows are how many times an item may stand in the tree in the mean, before it is compared with others one by one.
var treeGrows = [...]int{16, 4, 1}

// treeBuilder makes a tree: a list of items is cut in two by one question, each half keeping what can still match there.
type treeBuilder struct {
	tree   *tree
	budget int // items in leaves
	leaves int
	steps  int
}

// newTree makes the search of items: the fastest one that is not too large, or the smallest.
func newTree(items []item) *tree {
	var b *treeBuilder
	for _, grows := range treeGrows {
		b = &treeBuilder{tree: &tree{}, budget: max(4096/len(treeGrows), grows*len(items))}
		b.build(items, map[term][2]uint32{}, 0)
		if b.tree.nodes[0].size <= treeSlots {
			break
		}
	}
	b.tree.depth = float64(b.steps) / float64(max(1, b.leaves))
	return b.tree
}

// build adds the search of items where terms are within a region, and returns its root.
func (b *treeBuilder) build(items []item, region map[term][2]uint32, depth int) int32 {
	id := int32(len(b.tree.nodes))
	b.tree.nodes = append(b.tree.nodes, treeNode{})
	if i := slices.IndexFunc(items, func(it item) bool { return it.free() }); i >= 0 {
		items = items[:i+1]
	}
	n := treeNode{}
	need := ^uint32(0)
	for i := range items {
		need &= items[i].need
	}
	switch cut, value, ok := b.choose(items, region); {
	case len(items) > 1 && need != 0:
		n.kind, n.value = nodePresent, need
		less := slices.Clone(items)
		for i := range less {
			less[i].need &^= need
		}
		n.yes = b.build(less, region, depth+1)
		n.no = b.build(nil, region, depth+1)
	case ok:
		n.kind, n.term, n.value = nodeAtLeast, cut, value
		within := region[cut]
		if _, known := region[cut]; !known {
			within = [2]uint32{0, cut.mask}
		}
		n.no = b.half(items, region, cut, [2]uint32{within[0], value - 1}, depth+1)
		n.yes = b.half(items, region, cut, [2]uint32{value, within[1]}, depth+1)
	default:
		n.items = items[:min(len(items), treeChain)]
		b.budget -= len(n.items)
		b.leaves++
		b.steps += depth + leafSteps(items)
		if len(items) > treeChain {
			n.no = b.chain(items[treeChain:])
		}
	}
	n.size = n.slots()
	for _, next := range [2]int32{n.yes, n.no} {
		if next != 0 {
			n.size += b.tree.nodes[next].size
		}
	}
	b.tree.nodes[id] = n
	return id
}

// chain adds leaves for items that are compared one by one.
func (b *treeBuilder) chain(items []item) int32 {
	id := int32(len(b.tree.nodes))
	n := treeNode{items: items[:min(len(items), treeChain)]}
	b.tree.nodes = append(b.tree.nodes, n)
	n.size = n.slots()
	if len(items) > treeChain {
		n.no = b.chain(items[treeChain:])
		n.size += b.tree.nodes[n.no].size
	}
	b.budget -= len(n.items)
	b.tree.nodes[id] = n
	return id
}

// leafSteps is how much a leaf asks: its first item in full, of the others a question or two.
func leafSteps(items []item) int {
	steps := 0
	for i := range items {
		if i == 0 {
			steps += len(items[i].bounds) + len(items[i].conditions)
			if items[i].need != 0 {
				steps++
			}
		} else {
			steps += 2
		}
	}
	return steps
}

// half builds what is left of items where a term is within a narrower region.
func (b *treeBuilder) half(items []item, region map[term][2]uint32, cut term, within [2]uint32, depth int) int32 {
	left := make([]item, 0, len(items))
	for _, it := range items {
		i := slices.IndexFunc(it.bounds, func(x bound) bool { return x.term == cut })
		if i >= 0 {
			x := it.bounds[i]
			if x.last < within[0] || x.first > within[1] {
				continue
			}
			if x.first <= within[0] && x.last >= within[1] { // nothing left to ask
				it.bounds = slices.Delete(slices.Clone(it.bounds), i, i+1)
			}
		}
		left = append(left, it)
	}
	before, known := region[cut]
	region[cut] = within
	id := b.build(left, region, depth)
	if known {
		region[cut] = before
	} else {
		delete(region, cut)
	}
	return id
}

// choose looks for the question that divides items best: the fewest in the larger half, then in both.
func (b *treeBuilder) choose(items []item, region map[term][2]uint32) (cut term, value uint32, ok bool) {
	if len(items) <= treeLeaf || b.budget <= 0 {
		return cut, 0, false
	}
	var terms []term
	edges := map[term][]uint32{}
	for i := range items {
		for _, x := range items[i].bounds {
			if _, seen := edges[x.term]; !seen {
				terms = append(terms, x.term)
			}
			within, known := region[x.term]
			if !known {
				within = [2]uint32{0, x.term.mask}
			}
			if x.first > within[0] {
				edges[x.term] = append(edges[x.term], x.first)
			}
			if x.last < within[1] {
				edges[x.term] = append(edges[x.term], x.last+1)
			}
		}
	}
	best := math.MaxInt
	for _, t := range terms {
		list := edges[t]
		slices.Sort(list)
		list = slices.Compact(list)
		step := max(1, len(list)/treeCuts)
		for at := step / 2; at < len(list); at += step {
			no, yes := 0, 0
			for i := range items {
				first, last := uint32(0), t.mask
				for j := range items[i].bounds {
					if x := &items[i].bounds[j]; x.term == t {
						first, last = x.first, x.last
						break
					}
				}
				if first < list[at] {
					no++
				}
				if last >= list[at] {
					yes++
				}
			}
			if score := 2*max(no, yes) + no + yes; max(no, yes) < len(items) && score < best {
				best, cut, value, ok = score, t, list[at], true
			}
		}
	}
	return cut, value, ok
}

// find returns the first entry that matches; -1: none.
func (t *tree) find(f *bpf.PipesPipeFields) int {
	n := &t.nodes[0]
	for {
		yes := false
		switch n.kind {
		case nodeLeaf:
			for i := range n.items {
				if n.items[i].matches(f) {
					return n.items[i].entry
				}
			}
			if n.no == 0 {
				return -1
			}
		case nodeAtLeast:
			yes = n.term.of(f) >= n.value
		case nodePresent:
			yes = f.Word[wordHas]&n.value == n.value
		}
		if yes {
			n = &t.nodes[n.yes]
		} else {
			n = &t.nodes[n.no]
		}
	}
}

// slots is what the node itself takes at most: see text.tree.
func (n *treeNode) slots() int {
	if n.kind != nodeLeaf {
		return 6
	}
	slots := 2
	for i := range n.items {
		slots += 4 + 3*len(n.items[i].conditions) + 2
		for range n.items[i].bounds {
			slots += 4
		}
	}
	return slots
}
