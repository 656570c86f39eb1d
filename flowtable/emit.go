package flowtable

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"
)

// What a program may hold. Kernels verify at most one million steps of a program; a generated
// search takes one to three steps an instruction (measured on Linux 6.18 and 6.1), and the rest of
// the program needs its share.
const (
	emitFuncSlots = 28_000  // of one function: jumps reach 32,767
	emitMaxSlots  = 250_000 // of all generated functions
	emitMaxFuncs  = 200     // the kernel takes 256 with those written in C
)

// emitContinue, in the upper half of what a part returns, says that the lower half is no verdict but
// the place at which another part goes on.
const emitContinue = 1 << 32

// emitter writes a search as eBPF functions.
//
// Small pipes are one function, such as classify. A larger search is laid out in an order in which every
// step leads forward, and cut into parts, each a global function that takes the place to begin at
// and returns a verdict or a place in a later part; the first one calls them in turn. Large sets are
// functions of their own, and the largest are searched by the program's own functions in_set4 and in_set6.
// Calls never nest deeper than two below it. The names of all others begin with its own.
type emitter struct {
	acl     *ACL
	name    string
	order   []int32 // nodes of the IPv4 search, then those of the IPv6 search; verdicts are not in it
	split   int     // first place of the IPv6 search
	place   []int32 // of a node in order; -1: verdict
	meets   []bool  // of a node: more than one jump leads to it
	entries []int   // places at which other functions enter, ascending
	regs    map[uint8][emitFields]asm.Register
	packs   []emitPack
	packOf  []int32 // of each large set; -1: it stands in a map
	funcs   []emitted
	slots   int
}

// emitted is one generated function.
type emitted struct {
	name  string
	kind  emitKind
	insns asm.Instructions
}

// emitKind says which prototype a function has.
type emitKind uint8

const (
	emitClassify emitKind = iota // u32 (struct classify_key *)
	emitPart                     // u64 (struct classify_key *, u32 place)
	emitSet                      // u32 (struct classify_key *, u32 set): 1 = inside
)

const (
	emitClassifyName = "classify"
	emitAuditName    = "audit"
	emitSet4Name     = "in_set4"
	emitSet6Name     = "in_set6"
)

func (e *emitter) partName(n int) string { return fmt.Sprintf("%s_part%d", e.name, n) }

// emitACL generates all functions, first the one of the name.
func emitACL(a *ACL, name string) ([]emitted, error) {
	e := &emitter{acl: a, name: name, place: make([]int32, len(a.nodes)), meets: make([]bool, len(a.nodes)), regs: map[uint8][emitFields]asm.Register{}}
	if a.forest != nil {
		whole, err := e.forest()
		return []emitted{{name, emitClassify, whole}}, err
	}
	for i := range e.place {
		e.place[i] = -1
	}
	e.layOut(a.tree4)
	e.split = len(e.order)
	e.layOut(a.tree6)
	jumps := make([]int, len(a.nodes))
	for _, id := range e.order {
		n := &a.nodes[id]
		yes, no := emitJumps(n)
		jumps[n.yes] += yes
		jumps[n.no] += no
	}
	for id, n := range jumps {
		e.meets[id] = n > 1
	}
	e.regs[4] = emitRegisters(a, e.order[:e.split])
	e.regs[6] = emitRegisters(a, e.order[e.split:])

	e.pack()

	whole, err := e.whole()
	if err != nil {
		return nil, err
	}
	if whole == nil {
		if whole, err = e.parts(); err != nil {
			return nil, err
		}
	}
	if err := e.sets(); err != nil {
		return nil, err
	}
	e.funcs = append([]emitted{{name, emitClassify, whole}}, e.funcs...)
	if len(e.funcs) > emitMaxFuncs {
		return nil, fmt.Errorf("the pipe needs %d functions, more than the %d that fit into a program", len(e.funcs), emitMaxFuncs)
	}
	return e.funcs, nil
}

// account adds a function and refuses what no kernel would load.
func (e *emitter) account(f *emitFunc) (asm.Instructions, error) {
	if e.slots += f.slots; e.slots > emitMaxSlots {
		return nil, fmt.Errorf("the pipe needs more than the %d instructions that fit into a program", emitMaxSlots)
	}
	return f.finish()
}

// layOut appends the nodes reachable from root so that every one stands before those it leads to,
// where possible with its yes right behind it.
func (e *emitter) layOut(root int32) {
	const seen = math.MaxInt32
	start := len(e.order)
	var visit func(id int32)
	visit = func(id int32) {
		n := &e.acl.nodes[id]
		if n.op == treeVerdict || e.place[id] >= 0 {
			return
		}
		e.place[id] = seen
		visit(n.no)
		visit(n.yes)
		e.order = append(e.order, id)
	}
	visit(root)
	nodes := e.order[start:]
	for i, j := 0, len(nodes)-1; i < j; i, j = i+1, j-1 {
		nodes[i], nodes[j] = nodes[j], nodes[i]
	}
	for i, id := range nodes {
		e.place[id] = int32(start + i)
	}
}

// whole emits the search as one function. It returns nil when that would be too large.
func (e *emitter) whole() (asm.Instructions, error) {
	f := &emitFunc{}
	miss, v4, v6 := f.label(), f.label(), f.label()
	f.add(asm.Mov.Reg(emitKey, asm.R1))
	f.jumpImm(asm.JEq, emitKey, 0, asm.R0, miss)
	f.add(asm.LoadMem(asm.R0, emitKey, emitFamilyOffset, asm.Byte))
	f.jump(emitImm32(asm.JEq, asm.R0, 4), v4)
	f.jump(emitImm32(asm.JEq, asm.R0, 6), v6)
	f.place(miss)
	f.ret(0)
	for _, t := range []struct {
		family   uint8
		at       emitLabel
		root     int32
		from, to int
	}{{4, v4, e.acl.tree4, 0, e.split}, {6, v6, e.acl.tree6, e.split, len(e.order)}} {
		f.place(t.at)
		if t.from == t.to {
			f.ret(uint32(e.acl.nodes[t.root].value.lo))
			continue
		}
		s := newEmitSegment(e, f, t.family)
		if s.nodes(t.from, t.to) < t.to {
			return nil, nil
		}
		s.exits()
	}
	return e.account(f)
}

// parts emits the search as several functions and returns the one that calls them.
func (e *emitter) parts() (asm.Instructions, error) {
	var ends []int
	for at := 0; at < len(e.order); {
		family, limit := uint8(4), e.split
		if at >= e.split {
			family, limit = 6, len(e.order)
		}
		if at == 0 || at == e.split {
			e.enter(at)
		}
		end, err := e.part(len(ends), family, at, limit)
		if err != nil {
			return nil, err
		}
		ends = append(ends, end)
		at = end
	}
	return e.caller(ends)
}

// enter notes that another function goes on at a place.
func (e *emitter) enter(place int) {
	i := len(e.entries)
	for i > 0 && e.entries[i-1] > place {
		i--
	}
	if i > 0 && e.entries[i-1] == place {
		return
	}
	e.meets[e.order[place]] = true
	e.entries = append(e.entries, 0)
	copy(e.entries[i+1:], e.entries[i:])
	e.entries[i] = place
}

// part emits one part that begins at a place and returns the place behind it.
func (e *emitter) part(n int, family uint8, from, limit int) (int, error) {
	f := &emitFunc{}
	absent, dispatch := f.label(), f.label()
	f.add(asm.Mov.Reg(emitKey, asm.R1))
	f.jumpImm(asm.JEq, emitKey, 0, asm.R0, absent)
	f.add(asm.Mov.Reg32(asm.R1, asm.R2)) // the place: R2 is a field from here on
	s := newEmitSegment(e, f, family)
	f.goTo(dispatch)
	end := s.nodes(from, limit)
	f.place(dispatch)
	for len(e.entries) > 0 && e.entries[0] < from {
		e.entries = e.entries[1:]
	}
	mine := 0
	for mine < len(e.entries) && e.entries[mine] < end {
		mine++
	}
	labels := make([]emitLabel, mine)
	for i, place := range e.entries[:mine] {
		labels[i] = s.label(e.order[place])
	}
	f.dispatch(asm.R1, e.entries[:mine], labels)
	f.place(absent)
	f.ret(0)
	s.exits()
	insns, err := e.account(f)
	e.funcs = append(e.funcs, emitted{e.partName(n), emitPart, insns})
	return end, err
}

// caller emits the function that calls the parts; ends are the places behind each.
func (e *emitter) caller(ends []int) (asm.Instructions, error) {
	f := &emitFunc{}
	miss, begin, done := f.label(), f.label(), f.label()
	f.add(asm.Mov.Reg(emitKey, asm.R1))
	f.jumpImm(asm.JEq, emitKey, 0, asm.R0, miss)
	f.add(asm.LoadMem(asm.R1, emitKey, emitFamilyOffset, asm.Byte))
	for _, t := range []struct {
		family uint64
		root   int32
	}{{4, e.acl.tree4}, {6, e.acl.tree6}} {
		if at := e.place[t.root]; at >= 0 {
			f.add(asm.Mov.Imm32(asm.R0, at))
			f.jump(emitImm32(asm.JEq, asm.R1, t.family), begin)
		} else {
			f.add(asm.Mov.Imm32(asm.R0, int32(e.acl.nodes[t.root].value.lo)))
			f.jump(emitImm32(asm.JEq, asm.R1, t.family), done)
		}
	}
	f.place(miss)
	f.ret(0)
	f.place(begin)
	for i, end := range ends {
		next := f.label()
		if i < len(ends)-1 {
			f.jump(emitImm32(asm.JGE, asm.R0, uint64(end)), next)
		}
		f.add(asm.Mov.Reg(asm.R1, emitKey), asm.Mov.Reg32(asm.R2, asm.R0))
		f.call(e.partName(i))
		f.add(asm.Mov.Reg(asm.R1, asm.R0), asm.RSh.Imm(asm.R1, 32))
		f.jumpImm(asm.JEq, asm.R1, 0, asm.R0, done)
		f.place(next)
	}
	f.add(asm.Mov.Imm32(asm.R0, 0)) // the last part has nowhere to go on
	f.place(done)
	f.add(asm.Return())
	return e.account(f)
}
