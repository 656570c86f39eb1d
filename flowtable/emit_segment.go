package flowtable

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// emitKey holds the key throughout a function. R0 and R1 are scratch, R2 to R8 hold fields.
const emitKey = asm.R9

const (
	emitFirstReg  = asm.R2
	emitLastReg   = asm.R8
	emitFirstSafe = asm.R6 // what a call leaves alone begins here
)

var emitFamilyOffset = int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.Family))

// emitField is a field of struct classify_key that the search reads.
type emitField uint8

const (
	emitSrcHi emitField = iota
	emitSrcLo
	emitDstHi
	emitDstLo
	emitSrcPort
	emitDstPort
	emitProto
	emitFrom
	emitTo
	emitContext
	emitFields
)

var emitLayout = [emitFields]struct {
	offset uintptr
	size   asm.Size
}{
	emitSrcHi:   {unsafe.Offsetof(bpf.XDPClassifyKey{}.SrcHi), asm.DWord},
	emitSrcLo:   {unsafe.Offsetof(bpf.XDPClassifyKey{}.SrcLo), asm.DWord},
	emitDstHi:   {unsafe.Offsetof(bpf.XDPClassifyKey{}.DstHi), asm.DWord},
	emitDstLo:   {unsafe.Offsetof(bpf.XDPClassifyKey{}.DstLo), asm.DWord},
	emitSrcPort: {unsafe.Offsetof(bpf.XDPClassifyKey{}.Sport), asm.Half},
	emitDstPort: {unsafe.Offsetof(bpf.XDPClassifyKey{}.Dport), asm.Half},
	emitProto:   {unsafe.Offsetof(bpf.XDPClassifyKey{}.Proto), asm.Byte},
	emitFrom:    {unsafe.Offsetof(bpf.XDPClassifyKey{}.From), asm.Byte},
	emitTo:      {unsafe.Offsetof(bpf.XDPClassifyKey{}.To), asm.Byte},
	emitContext: {unsafe.Offsetof(bpf.XDPClassifyKey{}.Context), asm.Half},
}

// load reads a field of the key at base.
func (fd emitField) load(to, base asm.Register) asm.Instruction {
	return asm.LoadMem(to, base, int16(emitLayout[fd].offset), emitLayout[fd].size)
}

// emitLow is the field of each dimension, the lower half of an address; the upper one is one below.
var emitLow = [treeDims]emitField{
	treeSrc: emitSrcLo, treeDst: emitDstLo, treeSrcPort: emitSrcPort, treeDstPort: emitDstPort,
	treeProto: emitProto, treeFrom: emitFrom, treeTo: emitTo, treeContext: emitContext,
}

// emitWide tells whether a dimension is a pair of 64-bit fields in a family.
func emitWide(family, dim uint8) bool { return family == 6 && (dim == treeSrc || dim == treeDst) }

// emitJumps returns how many jumps lead from a node to its yes and to its no.
func emitJumps(n *treeNode) (yes, no int) {
	switch {
	case n.op == treeReport:
		return 1, 0
	case !emitWide(n.family, n.dim) || n.op == treeIn || n.op == treeAtLeast && n.value.lo == 0:
		return 1, 1
	case n.op == treeEqual:
		return 1, 2
	}
	return 2, 2
}

// emitRegisters gives registers to the fields that nodes ask most often. R0 stands for none: such a
// field is read whenever it is asked.
func emitRegisters(a *ACL, nodes []int32) (regs [emitFields]asm.Register) {
	var uses [emitFields]int
	for _, id := range nodes {
		n := &a.nodes[id]
		if n.op != treeAtLeast && n.op != treeEqual {
			continue
		}
		low := emitLow[n.dim]
		if !emitWide(n.family, n.dim) {
			uses[low]++
			continue
		}
		uses[low-1]++
		if n.op == treeEqual || n.value.lo != 0 {
			uses[low]++
		}
	}
	fields := make([]emitField, 0, emitFields)
	for fd := range emitFields {
		if uses[fd] > 0 {
			fields = append(fields, fd)
		}
	}
	slices.SortStableFunc(fields, func(a, b emitField) int { return cmp.Compare(uses[b], uses[a]) })
	for i, fd := range fields {
		if r := emitFirstReg + asm.Register(i); r <= emitLastReg {
			regs[fd] = r
		}
	}
	return regs
}

// emitSegment writes nodes of one family into a function.
//
// The verifier walks all paths, and drops one where it meets a state that it has seen. Registers that
// were compared hold ranges, which differ from path to path; as soon as a comparison's outcome follows
// from such a range, paths no longer count as equal, and their number explodes. So nothing is held
// in registers where paths meet: a field is read when a path asks for it first, and kept only up to
// the next node that more than one jump leads to.
type emitSegment struct {
	*emitter
	f      *emitFunc
	fields [emitFields]asm.Register
	labels map[int32]emitLabel // of the nodes that were jumped to or written
	ahead  int                 // of them not yet written
	held   uint16              // fields in their registers, one bit each
	after  map[int32]uint16    // what is held where a node begins that has one predecessor
}

func newEmitSegment(e *emitter, f *emitFunc, family uint8) *emitSegment {
	return &emitSegment{emitter: e, f: f, fields: e.regs[family], labels: map[int32]emitLabel{}, after: map[int32]uint16{}}
}

// clobber forgets what a call does not preserve.
func (s *emitSegment) clobber() {
	for fd, r := range s.fields {
		if r < emitFirstSafe {
			s.held &^= 1 << fd
		}
	}
}

func (s *emitSegment) label(id int32) emitLabel {
	l, ok := s.labels[id]
	if !ok {
		l = s.f.label()
		s.labels[id] = l
		s.ahead++
	}
	return l
}

// Slots that the end of a function can take: for each exit, for each place where it is entered, and
// for the largest node.
const (
	emitExitSlots  = 3
	emitEntrySlots = 2
	emitNodeSlots  = 16
)

// nodes writes the nodes of places from to limit as far as they fit into the function, and returns
// the place behind the last one.
func (s *emitSegment) nodes(from, limit int) int {
	at := from
	for ; at < limit; at++ {
		id := s.order[at]
		need := emitNodeSlots + emitExitSlots*(s.ahead+2) + emitEntrySlots*(len(s.entries)+2)
		if s.f.slots+need > emitFuncSlots {
			break
		}
		s.f.place(s.label(id))
		s.ahead--
		next := int32(-1)
		if at+1 < limit {
			next = s.order[at+1]
		}
		n := &s.acl.nodes[id]
		s.held = 0
		if !s.meets[id] {
			s.held = s.after[id]
		}
		s.node(n, next)
		s.after[n.yes], s.after[n.no] = s.held, s.held
	}
	if at < limit && at > from {
		// The last node may lead on to the one that no longer fits.
		n := &s.acl.nodes[s.order[at-1]]
		if next := s.order[at]; n.yes == next || n.no == next {
			s.f.goTo(s.label(next))
		}
	}
	return at
}

// node writes one node; the node next stands right behind it.
func (s *emitSegment) node(n *treeNode, next int32) {
	f := s.f
	switch n.op {
	case treeReport:
		f.add(asm.Mov.Reg(asm.R1, emitKey), asm.Mov.Imm32(asm.R2, int32(n.value.lo)))
		f.call(emitAuditName)
		s.clobber()
		if n.yes != next {
			f.goTo(s.label(n.yes))
		}
	case treeIn:
		s.inside(int(n.set))
		s.branch(n, next, asm.JNE, asm.JEq, func(op asm.JumpOp, l emitLabel) { f.jump(emitImm32(op, asm.R0, 0), l) })
	case treeAtLeast, treeEqual:
		op, not := asm.JGE, asm.JLT
		if n.op == treeEqual {
			op, not = asm.JEq, asm.JNE
		}
		low := emitLow[n.dim]
		if !emitWide(n.family, n.dim) {
			r := s.field(low)
			s.branch(n, next, op, not, func(op asm.JumpOp, l emitLabel) { f.jump(emitImm32(op, r, n.value.lo), l) })
			return
		}
		high := s.field(low - 1)
		if n.op == treeAtLeast && n.value.lo == 0 {
			s.branch(n, next, op, not, func(op asm.JumpOp, l emitLabel) { f.jumpImm(op, high, n.value.hi, asm.R0, l) })
			return
		}
		if n.op == treeEqual {
			f.jumpImm(asm.JNE, high, n.value.hi, asm.R0, s.label(n.no))
		} else {
			f.jumpUnequal(high, n.value.hi, asm.R0, s.label(n.yes), s.label(n.no))
		}
		r := s.field(low)
		s.branch(n, next, op, not, func(op asm.JumpOp, l emitLabel) { f.jumpImm(op, r, n.value.lo, asm.R0, l) })
	}
}

// inside calls what answers in R0 for a large set.
func (s *emitSegment) inside(n int) {
	f, set := s.f, &s.acl.sets[n]
	f.add(asm.Mov.Reg(asm.R1, emitKey))
	if !set.mapped {
		f.add(asm.Mov.Imm32(asm.R2, int32(n)))
		f.call(s.packs[s.packOf[n]].name)
	} else {
		name := emitSet4Name
		if emitWide(set.family, set.dim) {
			name = emitSet6Name
		}
		f.add(asm.Mov.Imm32(asm.R2, int32(set.first)), asm.Mov.Imm32(asm.R3, int32(set.nodes)), asm.Mov.Imm32(asm.R4, int32(emitSetFields[set.dim])))
		f.call(name)
	}
	s.clobber()
}

// emitSetFields are the fields that can have large sets.
var emitSetFields = map[uint8]bpf.XDPSetField{
	treeSrc: bpf.XDPSetFieldSET_SRC, treeDst: bpf.XDPSetFieldSET_DST, treeContext: bpf.XDPSetFieldSET_CONTEXT,
	treeFrom: bpf.XDPSetFieldSET_FROM, treeTo: bpf.XDPSetFieldSET_TO, treeProto: bpf.XDPSetFieldSET_PROTO,
}

// field returns the register that holds a field, reading it where no node before did.
func (s *emitSegment) field(fd emitField) asm.Register {
	r := s.fields[fd]
	if r == asm.R0 {
		r = asm.R1
	} else if s.held>>fd&1 == 1 {
		return r
	}
	s.held |= 1 << fd
	s.f.add(fd.load(r, emitKey))
	return r
}

// branch writes the jumps of a node, given the condition for yes and its opposite.
func (s *emitSegment) branch(n *treeNode, next int32, op, not asm.JumpOp, jump func(asm.JumpOp, emitLabel)) {
	if n.yes == next {
		jump(not, s.label(n.no))
		return
	}
	jump(op, s.label(n.yes))
	if n.no != next {
		s.f.goTo(s.label(n.no))
	}
}

// exits writes what was jumped to but does not stand in the function: verdicts, and places in later
// parts.
func (s *emitSegment) exits() {
	var ids []int32
	for id, l := range s.labels {
		if s.f.places[l] < 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		s.f.place(s.labels[id])
		if n := &s.acl.nodes[id]; n.op == treeVerdict {
			s.f.ret(uint32(n.value.lo))
			continue
		}
		at := int(s.place[id])
		s.enter(at)
		s.f.add(asm.LoadImm(asm.R0, emitContinue|int64(at), asm.DWord), asm.Return())
	}
}
