package flowtable

import (
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// forestMarks are the places to which searches come.
type forestMarks [forestArrays]forestBits

func (f *forestArena) newMarks() *forestMarks {
	m := &forestMarks{}
	m[forestInNodes].setTo(0, 0, len(f.memory.Nodes))
	m[forestInRules4].setTo(0, 0, len(f.memory.Rules4))
	m[forestInRules6].setTo(0, 0, len(f.memory.Rules6))
	return m
}

// forestLeafOf returns the rules of a leaf as they are numbered in the maps; ok is false if a node cuts.
func forestLeafOf(node uint64) (at, n uint32, ok bool) {
	return uint32(node), uint32(node >> bpf.XDPForestNodeFOREST_COUNT_SHIFT & uint64(bpf.XDPForestNodeFOREST_COUNT_MASK)),
		node>>bpf.XDPForestNodeFOREST_BITS_SHIFT&uint64(bpf.XDPForestNodeFOREST_BITS_MASK) == 0
}

// childrenOf returns the children of a node that cuts.
func (f *forestArena) childrenOf(node uint64) []uint64 {
	width := node >> bpf.XDPForestNodeFOREST_BITS_SHIFT & uint64(bpf.XDPForestNodeFOREST_BITS_MASK)
	return f.memory.Nodes[uint32(node)-f.base.nodes:][:1<<width]
}

// mark marks what a tree uses.
func (f *forestArena) mark(m *forestMarks, family int, node uint64) {
	at, n, leaf := forestLeafOf(node)
	if leaf {
		if n == 0 {
			return
		}
		if family == 0 {
			m[forestInRules4].set(at-f.base.rules4, forestPlaces(forestInRules4, n))
		} else {
			m[forestInRules6].set(at-f.base.rules6, n)
		}
		return
	}
	if at -= f.base.nodes; m[forestInNodes].has(at) {
		return // by another way
	}
	children := f.childrenOf(node)
	m[forestInNodes].set(at, uint32(len(children)))
	last := uint64(0)
	for _, child := range children {
		if child != last {
			f.mark(m, family, child)
			last = child
		}
	}
}

// sweep gives places back that were taken for a family and are in no tree after all, and, if retire is set, notes
// those that only the earlier version uses.
func (r *forestRevision) sweep(at int, retire bool) {
	old, new := r.newMarks(), r.newMarks()
	was, now := &r.before.family[at], &r.after.family[at]
	for _, lists := range [2][2][]forestRoot{{was.decide, now.decide}, {was.audit, now.audit}} {
		for _, root := range lists[0] {
			if !slices.ContainsFunc(lists[1], func(same forestRoot) bool { return same.node == root.node }) {
				r.mark(old, at, root.node)
			}
		}
		for _, root := range lists[1] {
			if !slices.ContainsFunc(lists[0], func(same forestRoot) bool { return same.node == root.node }) {
				r.mark(new, at, root.node)
			}
		}
	}
	for _, array := range [2]int{forestInNodes, forestInRules4 + at} {
		if retire {
			r.change.retired[array] = append(r.change.retired[array], old[array].without(&new[array])...)
		}
		var taken, none forestBits
		taken.setTo(0, 0, new[array].size)
		none.setTo(0, 0, new[array].size)
		for _, x := range r.taken[array] {
			taken.set(x.at, x.n)
		}
		for _, x := range taken.without(&new[array]) {
			taken.clear(x.at, x.n)
			r.busy[array].clear(x.at, x.n)
		}
		r.taken[array] = taken.without(&none)
	}
}
