package flowtable

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// emitLabel is a place in a function that jumps go to.
type emitLabel int

// emitFunc collects one generated function. Jumps go to labels and get their numeric offsets at the
// end: asm's own symbolic jumps would make every target a symbol, and cut offsets down to 16 bits
// without a word.
type emitFunc struct {
	insns  asm.Instructions
	slots  int   // 8-byte slots that insns take: a 64-bit constant takes two
	places []int // of each label, -1: not placed yet
	jumps  []emitJump
}

type emitJump struct {
	insn  int // index into insns
	slots int // slots up to and with it
	to    emitLabel
}

func (f *emitFunc) add(insns ...asm.Instruction) {
	for _, ins := range insns {
		f.insns = append(f.insns, ins)
		f.slots += int(ins.Width())
	}
}

func (f *emitFunc) label() emitLabel {
	f.places = append(f.places, -1)
	return emitLabel(len(f.places) - 1)
}

func (f *emitFunc) place(l emitLabel) { f.places[l] = f.slots }

// jump adds a jump instruction to l.
func (f *emitFunc) jump(ins asm.Instruction, l emitLabel) {
	f.add(ins)
	f.jumps = append(f.jumps, emitJump{len(f.insns) - 1, f.slots, l})
}

func (f *emitFunc) goTo(l emitLabel) {
	f.jump(asm.Instruction{OpCode: asm.Ja.Op(asm.ImmSource)}, l)
}

// finish resolves the jumps.
func (f *emitFunc) finish() (asm.Instructions, error) {
	for _, j := range f.jumps {
		offset := f.places[j.to] - j.slots
		if f.places[j.to] < 0 || offset < math.MinInt16 || offset > math.MaxInt16 {
			return nil, fmt.Errorf("jump of %d instructions does not fit 16 bits", offset)
		}
		f.insns[j.insn].Offset = int16(offset)
	}
	return f.insns, nil
}

// emitImm32 compares the low half of a register with a constant, unsigned.
func emitImm32(op asm.JumpOp, r asm.Register, value uint64) asm.Instruction {
	return asm.Instruction{
		OpCode: asm.OpCode(asm.Jump32Class).SetJumpOp(op).SetSource(asm.ImmSource),
		Dst:    r, Constant: int64(int32(uint32(value))),
	}
}

// jumpImm compares a whole register with a constant, unsigned, by way of scratch if it does not fit.
func (f *emitFunc) jumpImm(op asm.JumpOp, r asm.Register, value uint64, scratch asm.Register, l emitLabel) {
	if value <= math.MaxInt32 {
		f.jump(asm.Instruction{OpCode: op.Op(asm.ImmSource), Dst: r, Constant: int64(value)}, l)
		return
	}
	f.add(asm.LoadImm(scratch, int64(value), asm.DWord))
	f.jumpReg(op, r, scratch, l)
}

func (f *emitFunc) jumpReg(op asm.JumpOp, r, with asm.Register, l emitLabel) {
	f.jump(asm.Instruction{OpCode: op.Op(asm.RegSource), Dst: r, Src: with}, l)
}

// call adds a call of another function of the program.
func (f *emitFunc) call(name string) { f.add(asm.Call.Label(name)) }

// ret adds a return of a constant of at most 32 bits.
func (f *emitFunc) ret(value uint32) {
	f.add(asm.Mov.Imm32(asm.R0, int32(value)), asm.Return())
}

// jumpUnequal goes to above or below where r is more or less than value, else on.
func (f *emitFunc) jumpUnequal(r asm.Register, value uint64, scratch asm.Register, above, below emitLabel) {
	if value > math.MaxInt32 {
		f.add(asm.LoadImm(scratch, int64(value), asm.DWord))
		f.jumpReg(asm.JGT, r, scratch, above)
		f.jumpReg(asm.JLT, r, scratch, below)
		return
	}
	f.jumpImm(asm.JGT, r, value, scratch, above)
	f.jumpImm(asm.JLT, r, value, scratch, below)
}

// used tells whether a jump leads to l.
func (f *emitFunc) used(l emitLabel) bool {
	return slices.ContainsFunc(f.jumps, func(j emitJump) bool { return j.to == l })
}

// dispatch jumps to the label that belongs to the one of values, ascending, that r holds.
func (f *emitFunc) dispatch(r asm.Register, values []int, labels []emitLabel) {
	if len(values) == 1 {
		f.goTo(labels[0])
		return
	}
	mid := len(values) / 2
	upper := f.label()
	f.jump(emitImm32(asm.JGE, r, uint64(values[mid])), upper)
	f.dispatch(r, values[:mid], labels[:mid])
	f.place(upper)
	f.dispatch(r, values[mid:], labels[mid:])
}
