package flowtable

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

// emitPack is a function that answers for several large sets.
type emitPack struct {
	name string
	sets []int // numbers of the sets, ascending
}

// emitSetSlots is what a set takes beside its edges: dispatch and reading the fields.
const emitSetSlots = 4

// pack distributes the large sets that do not stand in maps over functions.
func (e *emitter) pack() {
	room := 0
	for n := range e.acl.sets {
		set := &e.acl.sets[n]
		if set.mapped {
			e.packOf = append(e.packOf, -1)
			continue
		}
		edges, _ := aclEdges(set.ranges, set.max)
		total := emitSetSlots
		for _, edge := range edges {
			total += emitEdgeSlots(edge, emitWide(set.family, set.dim))
		}
		if room -= total; room < 0 {
			e.packs = append(e.packs, emitPack{name: fmt.Sprintf("%s_set%d", e.name, n)})
			room = emitFuncSlots - emitNodeSlots - total
		}
		p := &e.packs[len(e.packs)-1]
		p.sets = append(p.sets, n)
		e.packOf = append(e.packOf, int32(len(e.packs)-1))
	}
}

// emitSearch writes a binary search of a set: the value at hand is in R2, of IPv6 addresses the upper
// half in R3. Its paths meet at the outcome only (see emitSegment).
type emitSearch struct {
	f       *emitFunc
	wide    bool
	in, out emitLabel
}

// sets emits the functions of the large sets.
func (e *emitter) sets() error {
	for i := range e.packs {
		if err := e.setFunc(&e.packs[i]); err != nil {
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

func (e *emitter) setFunc(p *emitPack) error {
	f := &emitFunc{}
	s := &emitSearch{f: f, in: f.label(), out: f.label()}
	f.add(asm.Mov.Imm32(asm.R0, 0)) // a function's first instruction carries its name: it may not be a jump
	f.jumpImm(asm.JEq, asm.R1, 0, asm.R0, s.out)
	s.choose(e.acl, p.sets)
	f.place(s.out)
	f.ret(0)
	if f.used(s.in) {
		f.place(s.in)
		f.ret(1)
	}
	insns, err := e.account(f)
	e.funcs = append(e.funcs, emitted{p.name, emitSet, insns})
	return err
}

// choose goes on with the one of sets whose number R2 holds.
func (s *emitSearch) choose(a *ACL, sets []int) {
	starts := make([]emitLabel, len(sets))
	for i := range starts {
		starts[i] = s.f.label()
	}
	s.f.dispatch(asm.R2, sets, starts)
	for i, n := range sets {
		set := &a.sets[n]
		edges, parity := aclEdges(set.ranges, set.max)
		s.f.place(starts[i])
		s.load(set)
		s.edges(edges, parity)
	}
}

// load reads the value that is searched in a set.
func (s *emitSearch) load(set *aclSet) {
	low := emitLow[set.dim]
	s.wide = emitWide(set.family, set.dim)
	s.f.add(low.load(asm.R2, asm.R1))
	if s.wide {
		s.f.add((low - 1).load(asm.R3, asm.R1))
	}
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
