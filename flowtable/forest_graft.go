package flowtable

import (
	"maps"
	"math"
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// forestGraft changes the trees of one family. What is on the way from a root to a leaf that changes is made anew, in
// places that nobody uses; all else is shared with the earlier version. Where a box stands in a tree follows from
// the tree's windows alone, so the leaves with rules of an entry are found as they were when it came.
type forestGraft struct {
	*forestRevision
	at     int
	family *forestFamily
	writer *forestWriter

	origin map[uint32]uint32 // places that were given -> those before; forestNowhere: of an entry that comes
	moved  map[int]bool      // entries of the new list that were there, and got other places
	became map[uint32]uint32 // numbers of entries that go or move -> their new ones; forestNowhere: gone
	touch  []graftBox        // of entries that go or move
	add    []graftBox        // of entries that come

	// of the tree at hand
	tree  uint8
	leaf  int // most rules of a leaf
	batch [2][]graftBox
	memo  map[graftKey]uint64
	masks [][][2]uint64 // of the children at each depth: which boxes of the batch they meet
}

// graftBox is a box and the trees that it is to be brought into, a bit each.
type graftBox struct {
	forestBox
	trees uint32
}

type graftKey struct {
	node  uint64
	boxes [2]uint64
	depth int
}

// items returns entries of a list as items, whose entry is the place in picked, and their builder.
func (g *forestGraft) items(list []ACLEntry, picked []int) ([]treeItem, *treeBuilder) {
	few := make([]ACLEntry, len(picked))
	for k, i := range picked {
		few[k] = list[i]
	}
	tb := newTreeBuilder(nil, forestFamilies[g.at], few)
	return tb.items(), tb
}

// boxes appends the boxes of an item, whose entry has a place, to a list.
func (g *forestGraft) boxes(to []graftBox, it *treeItem, tb *treeBuilder, place, trees uint32) (list []graftBox, checked []int) {
	g.writer.tb = tb
	g.writer.boxes = g.writer.boxes[:0]
	checked = g.writer.item(it, place)
	for _, b := range g.writer.boxes {
		to = append(to, graftBox{b, trees})
	}
	return to, checked
}

// comers gives entries that come their places, and what the maps say of them beside rules.
func (g *forestGraft) comers(come []int) bool {
	items, tb := g.items(g.after.entries, come)
	seats := make([]int, len(items))
	for k := range items {
		seats[k] = come[items[k].entry]
	}
	if !g.seat(seats) {
		return false
	}
	for k := range items {
		it := &items[k]
		place := g.family.places[seats[k]]
		e := &g.after.entries[seats[k]]
		entry, note := bpf.XDPForestEntry{Verdict: e.Verdict}, forestNote{}
		first := len(g.add)
		var checked []int
		if g.add, checked = g.boxes(g.add, it, tb, place, 0); len(checked) > 0 {
			at, ok := g.checks(it, tb, checked)
			if !ok {
				return false
			}
			entry.Check, note.trees = g.base.checks+at, forestChecked
		}
		note.context = g.writer.context(it)
		g.order[place], g.notes[place] = entry, note
		for i := first; i < len(g.add); i++ {
			if e.Audit {
				if len(g.family.audit) == 0 {
					return false
				}
				g.add[i].trees = 1 << forestAuditTree
			} else if !g.choose(&g.add[i]) {
				return false
			}
			g.notes[place].trees |= g.add[i].trees
		}
	}
	return true
}

// leavers notes what entries that go, or get another place, have in trees.
func (g *forestGraft) leavers(gone []int) bool {
	old := g.before.family[g.at].places
	items, tb := g.items(g.before.entries, gone)
	for k := range items {
		place := old[gone[items[k].entry]]
		note := &g.notes[place]
		g.touch, _ = g.boxes(g.touch, &items[k], tb, place, note.trees)
		g.became[forestFirst+place] = forestNowhere
		g.change.retired[forestInOrder] = append(g.change.retired[forestInOrder], forestExtent{place, 1})
		if checks := g.checksOf(place); len(checks) > 0 {
			at := g.order[place].Check - g.base.checks
			g.change.retired[forestInChecks] = append(g.change.retired[forestInChecks], forestExtent{at, uint32(len(checks))})
			for i := range checks {
				g.change.went = append(g.change.went, g.setAt(&checks[i]))
			}
		}
	}
	moved := slices.Sorted(maps.Keys(g.moved))
	items, tb = g.items(g.after.entries, moved)
	for k := range items {
		place := g.family.places[moved[items[k].entry]]
		was := g.origin[place]
		g.touch, _ = g.boxes(g.touch, &items[k], tb, was, g.notes[was].trees)
		g.became[forestFirst+was] = forestFirst + place
		g.order[place], g.notes[place] = g.order[was], g.notes[was]
		g.change.retired[forestInOrder] = append(g.change.retired[forestInOrder], forestExtent{was, 1})
	}
	return true
}

// checks writes the checks of an entry, and the sets that they ask.
func (g *forestGraft) checks(it *treeItem, tb *treeBuilder, checked []int) (uint32, bool) {
	at, ok := g.take(forestInChecks, len(checked))
	if !ok {
		return 0, false
	}
	for i, d := range checked {
		set, ok := g.set(tb.pools[d].sets[it.sets[d]], tb.pools[d].max, d)
		if !ok {
			return 0, false
		}
		c := bpf.XDPForestCheck{First: g.base4 + set.first, Nodes: set.nodes, Field: uint32(emitSetFields[uint8(d)])}
		if set.array == forestInSet6 {
			c.First = g.base6 + set.first
		}
		if i == len(checked)-1 {
			c.Last = 1
		}
		g.memory.Checks[int(at)+i] = c
	}
	return at, true
}

// set returns a large set, which is written unless it is there.
func (g *forestGraft) set(ranges []aclRange, limit aclNum, dim int) (*forestSet, bool) {
	family := forestFamilies[g.at]
	key := g.setKey(ranges, dim, family)
	set := g.known[key]
	if set == nil {
		i := slices.IndexFunc(g.change.came, func(s *forestSet) bool { return s.key == key })
		if i >= 0 {
			set = g.change.came[i]
		}
	}
	if set == nil {
		set = &forestSet{key: key, array: forestInSet4}
		per := set4Edges
		if emitWide(family, uint8(dim)) {
			set.array, per = forestInSet6, set6Edges
		}
		edges, parity := aclEdges(ranges, limit)
		n := (len(edges) + per - 1) / per
		at, ok := g.take(set.array, n)
		if !ok {
			return nil, false
		}
		set.first, set.nodes = at, uint32(n)
		if set.array == forestInSet6 {
			plantSet6(g.set6[at:][:n], edges, parity)
		} else {
			plantSet4(g.set4[at:][:n], edges, parity)
		}
	}
	g.change.came = append(g.change.came, set)
	return set, true
}

// setAt returns the set of a check.
func (g *forestGraft) setAt(c *bpf.XDPForestCheck) *forestSet {
	array, first := g.setOf(c, g.at)
	return g.placed[forestPlaced{array, first}]
}

// choose picks the tree for a box that comes: the one in which the fewest searches meet it.
func (g *forestGraft) choose(b *graftBox) bool {
	best, least, few := -1, math.Inf(1), false
	for i := range g.family.decide {
		s := graftShare{forestArena: g.forestArena, box: &b.forestBox, memo: map[uint64]float64{}}
		share := s.of(g.family.decide[i].node)
		if s.leaves > forestLeaves || few && s.leaves > forestFew {
			continue
		}
		if share < least || !few && s.leaves <= forestFew {
			best, least, few = i, share, s.leaves <= forestFew
		}
	}
	if best < 0 {
		if len(g.family.decide) == g.slots[g.at].decide {
			return false
		}
		used := uint32(0)
		for _, root := range g.family.decide {
			used |= 1 << root.tree
		}
		tree := uint8(0)
		for used>>tree&1 != 0 {
			tree++
		}
		best = len(g.family.decide)
		g.family.decide = append(g.family.decide, forestRoot{lowest: forestNowhere, tree: tree})
	}
	b.trees = 1 << g.family.decide[best].tree
	return true
}

// graftShare finds which share of all keys meets a box in a tree, and in how many leaves it would be.
type graftShare struct {
	*forestArena
	box    *forestBox
	memo   map[uint64]float64
	leaves int
}

func (s *graftShare) of(node uint64) float64 {
	if share, known := s.memo[node]; known || s.leaves > forestLeaves {
		return share
	}
	if _, _, leaf := forestLeafOf(node); leaf {
		s.leaves++
		s.memo[node] = 1
		return 1
	}
	w, children := forestWindowOf(node), s.childrenOf(node)
	first, n := w.children(s.box)
	sum, last, share := 0., ^uint64(0), 0.
	for i := range n {
		if child := children[(first+i)&(len(children)-1)]; child != last {
			last, share = child, s.of(child)
		}
		sum += share
	}
	sum /= float64(len(children))
	s.memo[node] = sum
	return sum
}

// forestWindowOf returns the window of a node that cuts.
func forestWindowOf(node uint64) forestWindow {
	word := uint8(node >> bpf.XDPForestNodeFOREST_WORD_SHIFT & uint64(bpf.XDPForestNodeFOREST_WORD_MASK))
	shift := uint8(node >> bpf.XDPForestNodeFOREST_SHIFT_SHIFT & uint64(bpf.XDPForestNodeFOREST_SHIFT_MASK))
	w := forestWindow{bits: int(node >> bpf.XDPForestNodeFOREST_BITS_SHIFT & uint64(bpf.XDPForestNodeFOREST_BITS_MASK))}
	for field, l := range forestLayout {
		if l.word == word && l.low <= shift && shift-l.low < l.width {
			w.field, w.shift = field, int(shift-l.low)
		}
	}
	return w
}

// trees brings all boxes into the trees.
func (g *forestGraft) trees() bool {
	for _, list := range [2][]forestRoot{g.family.decide, g.family.audit} {
		for i := range list {
			if !g.bring(&list[i]) {
				return false
			}
		}
	}
	g.family.decide = slices.DeleteFunc(g.family.decide, func(root forestRoot) bool { return root.lowest == forestNowhere })
	sortRoots(g.family.decide)
	return true
}

// bring brings boxes into the tree that they are meant for, and takes out what goes.
func (g *forestGraft) bring(root *forestRoot) bool {
	mine := func(b graftBox) bool { return b.trees>>root.tree&1 == 0 }
	touch, add := slices.DeleteFunc(slices.Clone(g.touch), mine), slices.DeleteFunc(slices.Clone(g.add), mine)
	if len(touch)+len(add) == 0 {
		return true
	}
	g.tree, g.leaf = root.tree, int(bpf.XDPForestLimitFOREST_LEAF)
	if root.tree == forestAuditTree {
		g.leaf = int(bpf.XDPForestLimitFOREST_AUDITS)
	}
	for n := 0; len(touch)+len(add) > 0; n++ {
		if n > 0 {
			g.sweep(g.at, false)
		}
		t, a := min(len(touch), forestBatch), min(len(add), forestBatch)
		g.batch = [2][]graftBox{touch[:t], add[:a]}
		touch, add = touch[t:], add[a:]
		g.memo = map[graftKey]uint64{}
		var ok bool
		if root.node, ok = g.apply(root.node, [2]uint64{1<<t - 1, 1<<a - 1}, 0); !ok {
			return false
		}
	}
	root.lowest = g.lowest(root.node)
	return true
}

// lowest returns the first entry of a tree.
func (g *forestGraft) lowest(node uint64) uint32 {
	marks := g.newMarks()
	g.mark(marks, g.at, node)
	lowest := forestNowhere
	for at := range marks[forestInRules4+g.at].all() {
		lowest = min(lowest, g.before.who(g.at, [2]uint32{g.base.rules4, g.base.rules6}[g.at]+uint32(at)).Entry)
	}
	return lowest
}

// apply returns what a node becomes with some boxes of the batch.
func (g *forestGraft) apply(node uint64, boxes [2]uint64, depth int) (uint64, bool) {
	if boxes == [2]uint64{} {
		return node, true
	}
	key := graftKey{node, boxes, depth}
	if became, known := g.memo[key]; known {
		return became, true
	}
	var became uint64
	var ok bool
	if at, n, leaf := forestLeafOf(node); leaf {
		became, ok = g.applyLeaf(node, at, n, boxes, depth)
	} else {
		became, ok = g.applyCut(node, boxes, depth)
	}
	g.memo[key] = became
	return became, ok
}

func (g *forestGraft) applyCut(node uint64, boxes [2]uint64, depth int) (uint64, bool) {
	w, children := forestWindowOf(node), g.childrenOf(node)
	for len(g.masks) <= depth {
		g.masks = append(g.masks, nil)
	}
	if len(g.masks[depth]) < len(children) {
		g.masks[depth] = make([][2]uint64, len(children))
	}
	masks := g.masks[depth][:len(children)]
	clear(masks)
	for kind, list := range g.batch {
		for i := range list {
			if boxes[kind]>>i&1 == 0 {
				continue
			}
			first, n := w.children(&list[i].forestBox)
			for c := range n {
				masks[(first+c)&(len(children)-1)][kind] |= 1 << i
			}
		}
	}
	var fresh []uint64
	var at uint32
	was, met, became := uint64(0), [2]uint64{}, uint64(0)
	for c, mask := range masks {
		if mask == [2]uint64{} {
			continue
		}
		if child := children[c]; child != was || mask != met {
			var ok bool
			if became, ok = g.apply(child, mask, depth+1); !ok {
				return 0, false
			}
			was, met = child, mask
		}
		if became == was {
			continue
		}
		if fresh == nil {
			var ok bool
			if at, ok = g.take(forestInNodes, len(children)); !ok {
				return 0, false
			}
			fresh = g.memory.Nodes[at:][:len(children)]
			copy(fresh, children)
		}
		fresh[c] = became
	}
	if fresh == nil {
		return node, true
	}
	return node&^math.MaxUint32 | uint64(g.base.nodes+at), true
}

func (g *forestGraft) applyLeaf(node uint64, at, n uint32, boxes [2]uint64, depth int) (uint64, bool) {
	list := make([]forestBox, 0, n+8)
	same := true
	for rule := at; rule < at+n; rule++ {
		number, changed := g.became[g.before.who(g.at, rule).Entry]
		if changed {
			same = false
			if number == forestNowhere {
				continue
			}
		}
		b := g.boxAt(rule)
		if changed {
			b.entry = number
		}
		list = append(list, b)
	}
	for i := range g.batch[1] {
		if boxes[1]>>i&1 != 0 {
			list = append(list, g.batch[1][i].forestBox)
			same = false
		}
	}
	if same {
		return node, true
	}
	if len(list) == 0 {
		return 0, true
	}
	slices.SortStableFunc(list, func(a, b forestBox) int { return int(int64(a.entry) - int64(b.entry)) })
	if len(list) > g.leaf || len(list) > int(n) && len(list) > forestBinth && g.cuts > 0 {
		g.cuts--
		return g.grow(list, depth)
	}
	pointers := make([]*forestBox, len(list))
	for i := range list {
		pointers[i] = &list[i]
	}
	return g.writer.rules(pointers)
}

// boxAt returns the box of a rule.
func (g *forestGraft) boxAt(rule uint32) forestBox {
	if g.at == 0 {
		return g.boxOf4(&g.memory.Rules4[rule-g.base.rules4])
	}
	return g.boxOf6(&g.memory.Rules6[rule-g.base.rules6])
}

// grow makes a tree of the boxes of a leaf.
func (g *forestGraft) grow(boxes []forestBox, depth int) (uint64, bool) {
	w := *g.writer
	w.boxes = boxes
	t := w.newTree(len(boxes), g.leaf)
	order := make([]int32, len(boxes))
	for i := range order {
		order[i] = int32(i)
	}
	root := t.build(order, depth)
	if slices.Contains(t.away, true) {
		return 0, false
	}
	written, ok := t.write(root)
	return written.node, ok
}
