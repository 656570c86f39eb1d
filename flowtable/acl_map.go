package flowtable

import (
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
)

// aclCodeRanges is the largest number of ranges whose search becomes instructions. Those of a larger set
// would be quicker than a map, and would be verified anew with every change of any rule.
const aclCodeRanges = 128

// Edges of a node (abi.h).
const (
	set4Edges = int(unsafe.Sizeof(bpf.XDPSet4Node{}.Edge) / 4)
	set6Edges = int(unsafe.Sizeof(bpf.XDPSet6Node{}.Hi) / 8)
)

// Sets returns the nodes of the sets that are searched in maps (abi.h: set4_node, set6_node): they belong
// into the program's maps set_nodes4 and set_nodes6, from 0 on, or behind those of the pipes after which it
// was compiled. They must not be changed.
func (a *ACL) Sets() ([]bpf.XDPSet4Node, []bpf.XDPSet6Node) { return a.set4, a.set6 }

// mapSets gives the larger of the sets their places in maps.
func (a *ACL) mapSets() {
	defer a.placeChecks()
	for i := range a.sets {
		s := &a.sets[i]
		if s.mapped = a.forest != nil || len(s.ranges) > aclCodeRanges; !s.mapped {
			continue
		}
		edges, parity := aclEdges(s.ranges, s.max)
		if emitWide(s.family, s.dim) {
			first := len(a.set6)
			s.first = a.base6 + uint32(first)
			s.nodes = uint32((len(edges) + set6Edges - 1) / set6Edges)
			a.set6 = append(a.set6, make([]bpf.XDPSet6Node, s.nodes)...)
			plantSet6(a.set6[first:], edges, parity)
			continue
		}
		first := len(a.set4)
		s.first = a.base4 + uint32(first)
		s.nodes = uint32((len(edges) + set4Edges - 1) / set4Edges)
		a.set4 = append(a.set4, make([]bpf.XDPSet4Node, s.nodes)...)
		plantSet4(a.set4[first:], edges, parity)
	}
}

// plantSet4 and plantSet6 make nodes of a set's edges.
func plantSet4(nodes []bpf.XDPSet4Node, edges []aclNum, parity int) {
	clear(nodes)
	plantTree(edges, parity, len(nodes), set4Edges, func(node, i int, edge aclNum) {
		nodes[node].Edge[i] = uint32(edge.lo)
	}, func(node, below int) { nodes[node].Inside |= 1 << below })
}

func plantSet6(nodes []bpf.XDPSet6Node, edges []aclNum, parity int) {
	clear(nodes)
	plantTree(edges, parity, len(nodes), set6Edges, func(node, i int, edge aclNum) {
		nodes[node].Hi[i], nodes[node].Lo[i] = edge.hi, edge.lo
	}, func(node, below int) { nodes[node].Inside |= 1 << below })
}

// slots is about how many instructions the pipe takes.
func (a *ACL) slots() int {
	const node = 4
	n := node * len(a.nodes)
	for i := range a.sets {
		if s := &a.sets[i]; !s.mapped {
			n += 2 * len(s.ranges) * emitEdgeSlots(aclNum{lo: 1}, emitWide(s.family, s.dim))
		}
	}
	return n
}

// placeChecks tells a forest's checks where their sets are.
func (a *ACL) placeChecks() {
	if a.forest == nil {
		return
	}
	for i := range a.forest.memory.Checks {
		c := &a.forest.memory.Checks[i]
		set := &a.sets[c.First]
		c.First, c.Nodes = set.first, set.nodes
	}
}

// plantTree lays edges out as a search tree of nodes with `of` edges each. Put stores an edge; inside says
// that with so many edges of a node at or below it a value is in the set.
func plantTree(edges []aclNum, parity, nodes, of int, put func(node, i int, edge aclNum), inside func(node, below int)) {
	next := 0
	var plant func(node int)
	plant = func(node int) {
		if node >= nodes {
			return
		}
		for i := range of + 1 {
			plant(node*(of+1) + 1 + i)
			if i == of {
				break
			}
			at := min(next, len(edges)-1)
			if i == 0 && (parity+at)&1 == 1 {
				inside(node, 0)
			}
			put(node, i, edges[at])
			if (parity+at+1)&1 == 1 {
				inside(node, i+1)
			}
			next++
		}
	}
	plant(0)
}
