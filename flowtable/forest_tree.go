package flowtable

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
)

// What trees look like, found by measurement over sets of the ClassBench kinds and of firewall rules
// (docs/CLASSIFIER.md).
const (
	forestBinth  = 6    // boxes that are compared rather than cut
	forestCopies = 8    // children into which a box is copied before it goes to another tree
	forestSmall  = 128  // boxes that are cut without sending any away
	forestGain   = 0.85 // of the boxes, that a cut may leave to compare
	forestStep   = 1.5  // boxes that a cut is worth at the least
	forestGrowth = 4    // times as many boxes that a cut with copies may leave in all
	forestForced = 64   // the same where no leaf has room for them
	forestShare  = 32   // times as many boxes that the leaves of a tree may hold in all
	forestSpare  = 256  // leaves that may be full beside that
)

// forestNode is a node while its tree is made.
type forestNode struct {
	bits, shift, word uint8 // bits 0: a leaf
	at                int32 // children: place in forestTree.nodes; of a leaf: in leaves
}

// forestTree is a tree while it is made. A sub-problem is a list of boxes in the entries' order. It is cut by a
// window of bits of a field: the part of it with each value of the window goes to a child. Boxes that would go
// to many children go to the next tree instead, as those do that no leaf has room for.
type forestTree struct {
	*forestWriter
	nodes   []forestNode
	leaves  [][]int32
	memo    map[[2]uint64]forestNode
	seeds   [2]maphash.Seed
	key     []byte
	away    []bool // of each box: goes to the next tree
	ejects  bool
	whole   bool // holds all, or is given up
	failed  bool // ... which it is
	leaf    int  // most boxes of a leaf
	copied  int  // boxes in leaves
	allowed int  // most of them
}

// auditTree makes the one tree of boxes of audit entries, which sends none away: a packet is reported to all
// that it matches, in their order.
func (w *forestWriter) auditTree(boxes []int32) (roots []forestRoot, ok bool) {
	if len(boxes) == 0 {
		return nil, true
	}
	t := w.newTree(len(boxes), int(bpf.XDPForestLimitFOREST_AUDITS))
	root := t.build(boxes, 0)
	if slices.Contains(t.away, true) {
		return nil, false
	}
	written, ok := t.write(root)
	written.tree = forestAuditTree
	w.note(written.tree, boxes, t.away)
	return []forestRoot{written}, ok
}

// note remembers in which tree boxes are that did not go away.
func (w *forestWriter) note(tree uint8, boxes []int32, away []bool) {
	for _, box := range boxes {
		if !away[box] {
			w.notes[w.boxes[box].entry-forestFirst].trees |= 1 << tree
		}
	}
}

// append adds n places to an array of a forest that is being compiled.
func (f *aclForest) append(array, n int) (at uint32, ok bool) {
	m := &f.memory
	switch array {
	case forestInNodes:
		at, m.Nodes = uint32(len(m.Nodes)), append(m.Nodes, make([]uint64, n)...)
	case forestInRules4:
		at, m.Rules4 = uint32(len(m.Rules4)), append(m.Rules4, make([]bpf.XDPForestRule4, n)...)
	case forestInRules6:
		at, m.Rules6 = uint32(len(m.Rules6)), append(m.Rules6, make([]bpf.XDPForestRule6, n)...)
	}
	return at, true
}

func (w *forestWriter) newTree(boxes, leaf int) *forestTree {
	return &forestTree{
		forestWriter: w,
		leaves:       [][]int32{nil},
		memo:         map[[2]uint64]forestNode{},
		seeds:        [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		away:         make([]bool, len(w.boxes)),
		leaf:         leaf,
		allowed:      boxes*forestShare + forestSpare*leaf,
	}
}

// build returns the root of a tree of boxes, depth cuts below the whole tree's.
func (t *forestTree) build(boxes []int32, depth int) forestNode {
	boxes = slices.DeleteFunc(boxes, func(box int32) bool { return t.away[box] })
	if t.failed = t.failed || t.whole && (t.copied > t.allowed || t.looks < 0); t.failed || len(boxes) == 0 {
		return forestNode{}
	}
	key := t.remember(boxes, depth)
	if n, ok := t.memo[key]; ok {
		return n
	}
	n, ok := forestNode{}, false
	if len(boxes) > forestBinth && depth < int(bpf.XDPForestLimitFOREST_DEPTH) && t.copied < t.allowed {
		n, ok = t.cut(boxes, depth)
	}
	if !ok {
		n = t.makeLeaf(boxes)
	}
	t.memo[key] = n
	return n
}

func (t *forestTree) makeLeaf(boxes []int32) forestNode {
	t.failed = t.failed || t.whole && len(boxes) > t.leaf
	for _, box := range boxes[min(len(boxes), t.leaf):] {
		t.away[box] = true
	}
	boxes = boxes[:min(len(boxes), t.leaf)]
	t.leaves = append(t.leaves, slices.Clone(boxes))
	t.copied += len(boxes)
	return forestNode{at: int32(len(t.leaves) - 1)}
}

// remember returns the place of a sub-problem in the memory of those that were solved.
func (t *forestTree) remember(boxes []int32, depth int) (key [2]uint64) {
	t.key = append(t.key[:0], byte(depth))
	for _, box := range boxes {
		t.key = binary.LittleEndian.AppendUint32(t.key, uint32(box))
	}
	for i := range key {
		key[i] = maphash.Bytes(t.seeds[i], t.key)
	}
	return key
}

// cut divides boxes among children where that pays.
func (t *forestTree) cut(boxes []int32, depth int) (forestNode, bool) {
	ejects := t.ejects && len(boxes) > forestSmall
	w, ok := t.choose(boxes, ejects)
	if !ok {
		return forestNode{}, false
	}
	sizes := t.count[:1<<w.bits]
	clear(sizes)
	total := 0
	for _, box := range boxes {
		first, n := w.children(&t.boxes[box])
		if ejects && n > forestCopies {
			t.away[box] = true
			continue
		}
		for i := range n {
			sizes[(first+i)&(1<<w.bits-1)]++
		}
		total += n
	}
	children := make([][]int32, 1<<w.bits)
	room := make([]int32, total)
	for i, n := range sizes {
		children[i], room = room[:0:n], room[n:]
	}
	for _, box := range boxes {
		if t.away[box] {
			continue
		}
		first, n := w.children(&t.boxes[box])
		for i := range n {
			c := (first + i) & (1<<w.bits - 1)
			children[c] = append(children[c], box)
		}
	}
	layout := &forestLayout[w.field]
	node := forestNode{bits: uint8(w.bits), shift: layout.low + uint8(w.shift), word: layout.word, at: int32(len(t.nodes))}
	t.nodes = append(t.nodes, make([]forestNode, 1<<w.bits)...)
	for i, child := range children {
		t.nodes[int(node.at)+i] = t.build(child, depth+1) // build may move nodes
	}
	return node, true
}

// write puts a finished tree into memory and returns where its search begins. It answers false where there is no
// room.
func (t *forestTree) write(root forestNode) (forestRoot, bool) {
	at, ok := t.take(forestInNodes, len(t.nodes))
	if !ok {
		return forestRoot{}, false
	}
	nodes := t.base.nodes + at
	places := make([]uint64, len(t.leaves))
	lowest := forestNowhere
	var boxes []*forestBox
	for i, leaf := range t.leaves {
		boxes = boxes[:0]
		for _, box := range leaf {
			if !t.away[box] {
				boxes = append(boxes, &t.boxes[box])
			}
		}
		if len(boxes) == 0 {
			continue
		}
		lowest = min(lowest, boxes[0].entry)
		if places[i], ok = t.rules(boxes); !ok {
			return forestRoot{}, false
		}
	}
	reference := func(n forestNode) uint64 {
		if n.bits == 0 {
			return places[n.at]
		}
		return uint64(nodes+uint32(n.at)) | uint64(n.bits)<<bpf.XDPForestNodeFOREST_BITS_SHIFT |
			uint64(n.shift)<<bpf.XDPForestNodeFOREST_SHIFT_SHIFT | uint64(n.word)<<bpf.XDPForestNodeFOREST_WORD_SHIFT
	}
	for i, n := range t.nodes {
		t.memory.Nodes[int(at)+i] = reference(n)
	}
	return forestRoot{node: reference(root), lowest: lowest}, true
}

// rules writes a leaf and returns the reference to it.
func (w *forestWriter) rules(boxes []*forestBox) (leaf uint64, ok bool) {
	array, base := forestInRules4, w.base.rules4
	if w.family == 6 {
		array, base = forestInRules6, w.base.rules6
	}
	at, ok := w.take(array, int(forestPlaces(array, uint32(len(boxes)))))
	if !ok {
		return 0, false
	}
	end := at + uint32(len(boxes))
	for i, box := range boxes {
		entry := w.order[box.entry-forestFirst]
		if w.family == 6 {
			rule := box.rule6()
			rule.Entry = entry
			w.memory.Rules6[int(at)+i] = rule
			continue
		}
		w.memory.Rules4[int(at)+i] = box.rule4()
		*w.entry4(end, uint32(i)) = entry
	}
	return uint64(base+at) | uint64(len(boxes))<<bpf.XDPForestNodeFOREST_COUNT_SHIFT, true
}

// forestPlaces returns how many places of an array a leaf of n rules takes.
func forestPlaces(array int, n uint32) uint32 {
	if array == forestInRules4 {
		n += (n + uint32(bpf.XDPForestLimitFOREST_ENTRIES) - 1) / uint32(bpf.XDPForestLimitFOREST_ENTRIES)
	}
	return n
}

// entry4 returns what the entry of rule i of an IPv4 leaf answers, whose rules end at a place.
func (f *forestArena) entry4(end, i uint32) *bpf.XDPForestEntry {
	entries := (*[bpf.XDPForestLimitFOREST_ENTRIES]bpf.XDPForestEntry)(unsafe.Pointer(&f.memory.Rules4[end+i/uint32(bpf.XDPForestLimitFOREST_ENTRIES)]))
	return &entries[i%uint32(bpf.XDPForestLimitFOREST_ENTRIES)]
}
