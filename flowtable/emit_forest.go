package flowtable

import (
	"unsafe"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// forestFunctions are the program's own functions that forests call, of each family.
var forestFunctions = [2]struct{ leaf, report string }{
	{"forest_leaf4", "forest_report4"},
	{"forest_leaf6", "forest_report6"},
}

// Registers of a forest's search, beside emitKey. All survive calls.
const (
	emitBest = asm.R6 // the first entry that matched so far, in the upper half, and its verdict; all ones and 0: none
	emitNode = asm.R7
	emitDown = asm.R8 // cuts that may follow
)

// Places below the frame pointer: the number of a map's element, and the address of the bank of roots.
const (
	emitNumber = -4
	emitBank   = -16
)

// forest emits the search of a forest: from each root down to a leaf, whose rules a function of the program
// compares. Where the roots lead stands in memory: only how many there may be stands in the program.
func (e *emitter) forest() (asm.Instructions, error) {
	f := &emitFunc{}
	miss, done := f.label(), f.label()
	families := [2]emitLabel{f.label(), f.label()}
	f.add(asm.Mov.Reg(emitKey, asm.R1))
	f.jumpImm(asm.JEq, emitKey, 0, asm.R0, miss)
	f.add(asm.LoadMem(asm.R0, emitKey, emitFamilyOffset, asm.Byte), asm.LoadImm(emitBest, -1<<32, asm.DWord))
	for i, l := range families {
		f.jump(emitImm32(asm.JEq, asm.R0, uint64(forestFamilies[i])), l)
	}
	f.place(miss)
	f.ret(0)
	root := int16(e.acl.forest.base.roots) * int16(unsafe.Sizeof(bpf.XDPForestRoot{}))
	for i, l := range families {
		f.place(l)
		f.add(
			asm.LoadMem(asm.R1, emitKey, int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.Bank)), asm.Word),
			asm.StoreMem(asm.RFP, emitNumber, asm.R1, asm.Word),
		)
		f.lookUp(bpf.XDPMapForestRoots, miss)
		f.add(asm.StoreMem(asm.RFP, emitBank, asm.R0, asm.DWord))
		decided := f.label()
		for range e.acl.forest.slots[i].decide {
			// What was found before may spare this one and those behind it.
			f.add(
				asm.LoadMem(asm.R1, asm.RFP, emitBank, asm.DWord),
				asm.LoadMem(asm.R2, asm.R1, root+int16(unsafe.Offsetof(bpf.XDPForestRoot{}.Lowest)), asm.Word),
				asm.Mov.Reg(asm.R3, emitBest), asm.RSh.Imm(asm.R3, 32),
			)
			f.jumpReg(asm.JLE, asm.R3, asm.R2, decided)
			next := f.label()
			f.descend(root, next)
			f.atLeaf(forestFunctions[i].leaf, next)
			f.jumpImm(asm.JEq, asm.R0, 0, asm.R0, next)
			f.add(asm.Mov.Reg(emitBest, asm.R0))
			f.place(next)
			root += int16(unsafe.Sizeof(bpf.XDPForestRoot{}))
		}
		f.place(decided)
		for range e.acl.forest.slots[i].audit {
			next := f.label()
			f.add(asm.LoadMem(asm.R1, asm.RFP, emitBank, asm.DWord))
			f.descend(root, next)
			f.atLeaf(forestFunctions[i].report, next)
			f.place(next)
			root += int16(unsafe.Sizeof(bpf.XDPForestRoot{}))
		}
		f.goTo(done)
	}
	f.place(done)
	f.add(asm.Mov.Reg32(asm.R0, emitBest), asm.Return())
	return e.account(f)
}

// lookUp adds r0 = the value of a map at emitNumber, or a jump.
func (f *emitFunc) lookUp(name string, absent emitLabel) {
	f.add(
		asm.LoadMapPtr(asm.R1, 0).WithReference(name),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, emitNumber),
		asm.FnMapLookupElem.Call(),
	)
	f.jumpImm(asm.JEq, asm.R0, 0, asm.R0, absent)
}

// descend follows a tree, whose root is so far behind the bank in R1, down to a leaf, which is then in emitNode.
// The verifier walks a loop as often as it may be run, and knows nothing of the trees: the number of cuts ends it.
func (f *emitFunc) descend(root int16, nowhere emitLabel) {
	const (
		above = 32
		width = uint64(bpf.XDPForestNodeFOREST_BITS_SHIFT) - above
		low   = uint64(bpf.XDPForestNodeFOREST_SHIFT_SHIFT) - above
		word  = uint64(bpf.XDPForestNodeFOREST_WORD_SHIFT) - above
	)
	loop, leaf := f.label(), f.label()
	f.add(
		asm.LoadMem(emitNode, asm.R1, root+int16(unsafe.Offsetof(bpf.XDPForestRoot{}.Node)), asm.DWord),
		asm.Mov.Imm(emitDown, int32(bpf.XDPForestLimitFOREST_DEPTH)),
	)
	f.place(loop)
	f.add(
		asm.Mov.Reg(asm.R1, emitNode), asm.RSh.Imm(asm.R1, above),
		asm.Mov.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, int32(width)), asm.And.Imm(asm.R2, int32(bpf.XDPForestNodeFOREST_BITS_MASK)),
	)
	f.jumpImm(asm.JEq, asm.R2, 0, asm.R0, leaf)
	f.add(asm.Mov.Reg(asm.R3, asm.R1), asm.RSh.Imm(asm.R3, int32(word)), asm.And.Imm(asm.R3, int32(bpf.XDPForestNodeFOREST_WORD_MASK)))
	f.jumpImm(asm.JGE, asm.R3, uint64(unsafe.Sizeof(bpf.XDPClassifyKey{})/8), asm.R0, nowhere)
	f.add(
		asm.LSh.Imm(asm.R3, 3), asm.Mov.Reg(asm.R4, emitKey), asm.Add.Reg(asm.R4, asm.R3),
		asm.LoadMem(asm.R3, asm.R4, 0, asm.DWord),
		asm.RSh.Imm(asm.R1, int32(low)), asm.And.Imm(asm.R1, int32(bpf.XDPForestNodeFOREST_SHIFT_MASK)),
		asm.RSh.Reg(asm.R3, asm.R1),
		asm.Mov.Imm(asm.R1, 1), asm.LSh.Reg(asm.R1, asm.R2), asm.Add.Imm(asm.R1, -1), asm.And.Reg(asm.R3, asm.R1),
		asm.Add.Reg32(asm.R3, emitNode),
		asm.StoreMem(asm.RFP, emitNumber, asm.R3, asm.Word),
	)
	f.lookUp(bpf.XDPMapForestNodes, nowhere)
	f.add(asm.LoadMem(emitNode, asm.R0, 0, asm.DWord), asm.Add.Imm(emitDown, -1))
	f.jumpImm(asm.JNE, emitDown, 0, asm.R0, loop)
	f.place(leaf)
}

// atLeaf calls a function for the leaf in emitNode, unless it is an empty one.
func (f *emitFunc) atLeaf(function string, empty emitLabel) {
	f.add(asm.Mov.Reg(asm.R3, emitNode), asm.RSh.Imm(asm.R3, int32(bpf.XDPForestNodeFOREST_COUNT_SHIFT)), asm.And.Imm(asm.R3, int32(bpf.XDPForestNodeFOREST_COUNT_MASK)))
	f.jumpImm(asm.JEq, asm.R3, 0, asm.R0, empty)
	f.add(
		asm.Mov.Reg(asm.R1, emitKey), asm.Mov.Reg32(asm.R2, emitNode),
		asm.Add.Reg32(asm.R3, asm.R2), asm.Mov.Reg(asm.R4, emitBest), asm.RSh.Imm(asm.R4, 32),
	)
	f.call(function)
}
