package flowtable

import (
	"math/rand/v2"
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// A forestPlan is how boxes are divided among trees.
type forestPlan uint8

const (
	// forestPlain has trees send away what would be copied much, until nothing is left: best where rules are alike.
	forestPlain forestPlan = iota
	// forestShapes divides boxes by which of their addresses are wide, so that what is in a tree can be told apart by
	// the same fields, and is copied: best where prefixes of all lengths cross each other. A tree sends away only
	// where copies take too much room.
	forestShapes
	forestPlans
)

const (
	forestFine   = 300       // ns of a search, that are little enough, so that no other plan is tried
	forestLooks  = 400 << 20 // at boxes, of what trees try that are to hold all of a group: a few seconds at the most
	forestNarrow = 8         // bits that an address has at the least which is not wide
)

// What a search takes, about, in ns of a machine on which 100,000 rules take some 250: the ratios count.
const (
	forestTreeWork = 25
	forestCutWork  = 15
	forestRuleWork = 8
	forestTrials   = 4096 // searches by which a family's work is known
)

// trees makes trees of boxes until none is left. It answers false if they are too many.
func (w *forestWriter) trees(boxes []int32, plan forestPlan) (roots []forestRoot, ok bool) {
	groups := [][]int32{boxes}
	if plan == forestShapes {
		groups = w.shapes(boxes)
	}
	for _, boxes := range groups {
		for len(boxes) > 0 {
			if len(roots) == int(bpf.XDPForestLimitFOREST_TREES) {
				return nil, false
			}
			t, root, rest := w.tree(boxes, plan == forestShapes)
			if len(rest) == len(boxes) {
				return nil, false
			}
			written, ok := t.write(root)
			if !ok {
				return nil, false
			}
			written.tree = uint8(len(roots))
			roots = append(roots, written)
			w.note(written.tree, boxes, t.away)
			boxes = rest
		}
	}
	sortRoots(roots)
	return roots, true
}

// tree makes the next tree of boxes, and returns those that it sends away: none if it is to hold all of them and can.
func (w *forestWriter) tree(boxes []int32, whole bool) (t *forestTree, root forestNode, rest []int32) {
	if whole && w.looks > 0 {
		t := w.newTree(len(boxes), int(bpf.XDPForestLimitFOREST_LEAF))
		t.whole, t.allowed = true, t.allowed/2
		root := t.build(boxes, 0)
		if !t.failed {
			return t, root, nil
		}
	}
	for _, ejects := range [...]bool{true, false} {
		t = w.newTree(len(boxes), int(bpf.XDPForestLimitFOREST_LEAF))
		t.ejects = ejects
		root = t.build(boxes, 0)
		rest = slices.DeleteFunc(slices.Clone(boxes), func(box int32) bool { return !t.away[box] })
		if len(rest) < len(boxes) {
			break
		}
	}
	return t, root, rest
}

// shapes divides boxes by which of their addresses are wide: neither, the destination, the source, both.
func (w *forestWriter) shapes(boxes []int32) [][]int32 {
	wide := func(box int32, hi, lo int) int {
		field, width := lo, 32
		if w.family == 6 {
			field, width = hi, 64
		}
		if r := &w.boxes[box].field[field]; r.last-r.first >= 1<<(width-forestNarrow) {
			return 1
		}
		return 0
	}
	groups := make([][]int32, 4)
	for _, box := range boxes {
		shape := 2*wide(box, forestSrcHi, forestSrcLo) + wide(box, forestDstHi, forestDstLo)
		groups[shape] = append(groups[shape], box)
	}
	return groups
}

// work returns what searches take in trees, on average: half of them for keys in boxes, half for what comes from one box
// and goes to another.
func (w *forestWriter) work(roots []forestRoot, boxes []int32) (ns float64) {
	if len(boxes) == 0 {
		return 0
	}
	random := rand.New(rand.NewPCG(1, 1)) // equal lists make equal forests
	f := &aclForest{forestArena: w.forestArena}
	work := 0
	for trial := range forestTrials {
		box := w.boxes[boxes[random.IntN(len(boxes))]]
		last := box.entry // nothing is asked beyond it
		if trial%2 == 1 {
			other := &w.boxes[boxes[random.IntN(len(boxes))]]
			box.field[forestDstHi], box.field[forestDstLo], last = other.field[forestDstHi], other.field[forestDstLo], forestNowhere-1
		}
		key := box.draw(random)
		for i := 0; i < len(roots) && roots[i].lowest <= last; i++ {
			work += forestTreeWork + f.effort(&key, roots[i].node, w.family, last)
		}
	}
	return float64(work) / forestTrials
}

// draw returns a key that is in a box.
func (b *forestBox) draw(random *rand.Rand) (key forestKey) {
	for i, r := range b.field {
		value := r.first
		if span := r.last - r.first; span == ^uint64(0) {
			value = random.Uint64()
		} else if span > 0 {
			value += random.Uint64N(span + 1)
		}
		key[forestLayout[i].word] |= value << forestLayout[i].low
	}
	return key
}

// effort returns what the search in a tree takes, up to an entry.
func (f *aclForest) effort(key *forestKey, node uint64, family uint8, last uint32) (ns int) {
	for node>>bpf.XDPForestNodeFOREST_BITS_SHIFT&uint64(bpf.XDPForestNodeFOREST_BITS_MASK) != 0 {
		ns += forestCutWork
		node = f.child(key, node)
	}
	at, n := f.leaf(key, node)
	for rule := at; rule < at+n && f.who(int(family/6), rule).Entry <= last; rule++ {
		ns += forestRuleWork
	}
	return ns
}
