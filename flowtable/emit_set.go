package flowtable

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

func emitSetName(n int) string { return fmt.Sprintf("classify_set%d", n) }

func emitSetPieceName(n, piece int) string { return fmt.Sprintf("classify_set%d_%d", n, piece) }

// emitSearch writes a binary search of a set: the value at hand is in R2, of IPv6 addresses the upper
// half in R3. Its paths meet at the outcome only (see emitSegment).
type emitSearch struct {
	f       *emitFunc
	wide    bool
	in, out emitLabel
}

// set emits the function of one large set, and those of its pieces where one function cannot hold
// the whole search.
func (e *emitter) set(n int) error {
	set := &e.acl.sets[n]
	edges, parity := aclEdges(set.ranges, set.max)
	wide := emitWide(set.family, set.dim)

	// Pieces of as many edges as surely fit.
	var starts []int
	slots := emitFuncSlots
	for i, edge := range edges {
		if slots += emitEdgeSlots(edge, wide); slots > emitFuncSlots-emitNodeSlots {
			starts = append(starts, i)
			slots = emitEdgeSlots(edge, wide)
		}
	}
	if len(starts) == 1 {
		return e.setFunc(emitSetName(n), set, func(s *emitSearch) { s.edges(edges, parity) })
	}
	if err := e.setFunc(emitSetName(n), set, func(s *emitSearch) { s.pieces(n, edges, starts, 0) }); err != nil {
		return err
	}
	for i, start := range starts {
		end := len(edges)
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		err := e.setFunc(emitSetPieceName(n, i), set, func(s *emitSearch) { s.edges(edges[start:end], parity+start) })
		if err != nil {
			return err
		}
	}
	return nil
}

// emitEdgeSlots is the most that one edge takes: its comparison and a jump.
func emitEdgeSlots(edge aclNum, wide bool) int {
	switch {
	case !wide:
		return 2
	case edge.lo == 0:
		return 4
	}
	return 8
}

func (e *emitter) setFunc(name string, set *aclSet, body func(*emitSearch)) error {
	f := &emitFunc{}
	s := &emitSearch{f: f, wide: emitWide(set.family, set.dim), in: f.label(), out: f.label()}
	low := emitLow[set.dim]
	f.add(asm.Mov.Imm32(asm.R0, 0)) // a function's first instruction carries its name: it may not be a jump
	f.jumpImm(asm.JEq, asm.R1, 0, asm.R0, s.out)
	f.add(low.load(asm.R2, asm.R1))
	if s.wide {
		f.add((low - 1).load(asm.R3, asm.R1))
	}
	body(s)
	f.place(s.out)
	f.ret(0)
	f.place(s.in)
	f.ret(1)
	insns, err := e.account(f)
	e.funcs = append(e.funcs, emitted{name, emitSet, insns})
	return err
}

// answer is the label of the outcome below the first of the edges that are left.
func (s *emitSearch) answer(parity int) emitLabel {
	if parity&1 == 1 {
		return s.in
	}
	return s.out
}

// edges searches edges, at least one, by what stands in R2 and R3; parity is the number of edges below
// them.
func (s *emitSearch) edges(edges []aclNum, parity int) {
	if !s.wide {
		s.halve(edges, parity, func(edge aclNum, l emitLabel) { s.f.jump(emitImm32(asm.JGE, asm.R2, edge.lo), l) })
		return
	}
	mid := len(edges) / 2
	high := edges[mid].hi
	from, to := mid, mid+1
	for from > 0 && edges[from-1].hi == high {
		from--
	}
	for to < len(edges) && edges[to].hi == high {
		to++
	}
	below, above := s.answer(parity), s.answer(parity+to)
	if from > 0 {
		below = s.f.label()
	}
	if to < len(edges) {
		above = s.f.label()
	}
	if same := edges[from:to]; len(same) == 1 && same[0].lo == 0 {
		s.f.jumpImm(asm.JGE, asm.R3, high, asm.R0, above)
		if from == 0 {
			s.f.goTo(below)
		}
	} else {
		s.f.jumpUnequal(asm.R3, high, asm.R0, above, below)
		within := parity + from
		if same[0].lo == 0 {
			same, within = same[1:], within+1
		}
		s.halve(same, within, func(edge aclNum, l emitLabel) { s.f.jumpImm(asm.JGE, asm.R2, edge.lo, asm.R0, l) })
	}
	if from > 0 {
		s.f.place(below)
		s.edges(edges[:from], parity)
	}
	if to < len(edges) {
		s.f.place(above)
		s.edges(edges[to:], parity+to)
	}
}

// halve searches edges, at least one, with a jump that is taken at or above an edge.
func (s *emitSearch) halve(edges []aclNum, parity int, atLeast func(aclNum, emitLabel)) {
	mid := len(edges) / 2
	upper := s.answer(parity + mid + 1)
	last := mid+1 == len(edges)
	if !last {
		upper = s.f.label()
	}
	atLeast(edges[mid], upper)
	if mid == 0 {
		s.f.goTo(s.answer(parity))
	} else {
		s.halve(edges[:mid], parity, atLeast)
	}
	if !last {
		s.f.place(upper)
		s.halve(edges[mid+1:], parity+mid+1, atLeast)
	}
}

// pieces finds the piece of set n that has the edge at or below the value; first is the number of the
// first of those whose starts are given.
func (s *emitSearch) pieces(n int, edges []aclNum, starts []int, first int) {
	if len(starts) == 1 {
		s.f.call(emitSetPieceName(n, first)) // R1 still holds the key
		s.f.add(asm.Return())
		return
	}
	mid := len(starts) / 2
	upper := s.f.label()
	s.atLeast(edges[starts[mid]], upper)
	s.pieces(n, edges, starts[:mid], first)
	s.f.place(upper)
	s.pieces(n, edges, starts[mid:], first+mid)
}

// atLeast jumps to l if the value is at least edge, else goes on.
func (s *emitSearch) atLeast(edge aclNum, l emitLabel) {
	switch {
	case !s.wide:
		s.f.jump(emitImm32(asm.JGE, asm.R2, edge.lo), l)
	case edge.lo == 0:
		s.f.jumpImm(asm.JGE, asm.R3, edge.hi, asm.R0, l)
	default:
		below := s.f.label()
		s.f.jumpUnequal(asm.R3, edge.hi, asm.R0, l, below)
		s.f.jumpImm(asm.JGE, asm.R2, edge.lo, asm.R0, l)
		s.f.place(below)
	}
}
