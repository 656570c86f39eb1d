package cbpf

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// A Hook says on what a filter runs.
type Hook uint8

const (
	XDP Hook = iota // struct xdp_md: the first buffer is read in place
	TC              // struct __sk_buff
)

// loaders are the functions in C that read what the filter does not read in place: (context, offset,
// size), negative if the frame has no such bytes.
var loaders = [...]string{XDP: "tap_load_xdp", TC: "tap_load_tc"}

// Registers that outlive calls. The classic machine's A and X are 32 bits wide, the upper half is 0.
const (
	regContext = asm.R6
	regA       = asm.R7
	regX       = asm.R8
	regLength  = asm.R9
)

// Offsets in struct __sk_buff.
const (
	skbLen         = 0
	skbVLANPresent = 20
)

const (
	maxReach = 0x3fff // offset up to which bytes are read in place: the verifier must know a bound
	maxJump  = 32767  // slots; longer ones would be cut off without an error
)

// place is a label, by number: those of the filter's own instructions first.
type place int

// writer writes one function.
type writer struct {
	hook   Hook
	out    asm.Instructions
	places []int // of each label, in instructions from the start
	jumps  map[int]place
}

// Function returns the body of `u32 matches(context *)`: 1 if the filter takes the frame, 0 if
// not. Jumps are numbers. The body calls one of the functions tap_load_xdp and tap_load_tc if the filter
// loads anything. An error says that the filter is too long for that.
func (p Program) Function(hook Hook) (asm.Instructions, error) {
	w := &writer{hook: hook, places: make([]int, len(p)), jumps: make(map[int]place)}
	refuse := w.label()
	w.add(asm.Mov.Reg(regContext, asm.R1), asm.Mov.Imm32(regA, 0), asm.Mov.Imm32(regX, 0))
	if slices.ContainsFunc(p, Instruction.readsLength) {
		w.length()
	}
	for k, used := range p.memory() {
		if used {
			w.add(asm.StoreImm(asm.RFP, memoryAt(uint32(k)), 0, asm.Word))
		}
	}
	reached := make([]bool, len(p))
	reached[0] = true
	for i, in := range p {
		if !reached[i] {
			continue // the verifier takes no code that nothing reaches
		}
		w.place(place(i))
		switch {
		case in.Code&7 == classRET:
			w.ret(in)
			continue
		case in.Code&7 == classJMP:
			for _, to := range w.jump(i, in) {
				reached[to] = true
			}
			continue
		case in.readsFrame() && in.K > math.MaxInt32: // no frame is that long, and X does not wrap around
			w.ret(Instruction{Code: classRET})
			continue
		}
		w.instruction(in, refuse)
		reached[i+1] = true
	}
	if w.jumpsTo(refuse) {
		w.place(refuse)
		w.add(asm.Mov.Imm32(asm.R0, 0), asm.Return())
	}
	return w.finish()
}

// readsFrame reports whether an instruction loads bytes of the frame.
func (in Instruction) readsFrame() bool {
	mode := in.Code & 0xe0
	return in.Code&7 <= classLDX && (mode == modeABS || mode == modeIND || mode == modeMSH)
}

func (in Instruction) readsLength() bool {
	return in.Code&7 <= classLDX && in.Code&0xe0 == modeLEN
}

// length puts the frame's length into its register, as it will be on the wire.
func (w *writer) length() {
	if w.hook == XDP {
		w.add(asm.FnXdpGetBuffLen.Call(), asm.Mov.Reg32(regLength, asm.R0))
		return
	}
	untagged := w.label()
	w.add(asm.LoadMem(regLength, regContext, skbLen, asm.Word), asm.LoadMem(asm.R0, regContext, skbVLANPresent, asm.Word))
	w.goTo(jump32(asm.JEq, asm.R0, 0), untagged)
	w.add(asm.Add.Imm32(regLength, 4)) // the tag beside it
	w.place(untagged)
}

// memory says which words of scratch memory a program uses. They start as 0.
func (p Program) memory() (used [memoryWords]bool) {
	for _, in := range p {
		class := in.Code & 7
		if class == classST || class == classSTX || class <= classLDX && in.Code&0xe0 == modeMEM {
			used[in.K] = true
		}
	}
	return used
}

func memoryAt(k uint32) int16 { return -4 * int16(memoryWords-k) }

func (w *writer) add(ins ...asm.Instruction) { w.out = append(w.out, ins...) }

func (w *writer) label() place {
	w.places = append(w.places, 0)
	return place(len(w.places) - 1)
}

func (w *writer) place(l place) { w.places[l] = len(w.out) }

// goTo adds a jump whose distance is filled in by finish.
func (w *writer) goTo(jump asm.Instruction, to place) {
	w.jumps[len(w.out)] = to
	w.add(jump)
}

func (w *writer) jumpsTo(l place) bool {
	for _, to := range w.jumps {
		if to == l {
			return true
		}
	}
	return false
}

func jumpAlways() asm.Instruction { return asm.Instruction{OpCode: asm.Ja.Op(asm.ImmSource)} }

func jump32(op asm.JumpOp, dst asm.Register, k uint32) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.Jump32Class).SetJumpOp(op).SetSource(asm.ImmSource), Dst: dst, Constant: int64(int32(k))}
}

func (w *writer) finish() (asm.Instructions, error) {
	for at, to := range w.jumps {
		distance := w.places[to] - at - 1
		if distance > maxJump {
			return nil, fmt.Errorf("write filter program: it is too long: jumps reach over %d instructions", maxJump)
		}
		w.out[at].Offset = int16(distance)
	}
	return w.out, nil
}

func (w *writer) ret(in Instruction) {
	if in.Code&0x18 != returnA {
		answer := int32(0)
		if in.K != 0 {
			answer = 1
		}
		w.add(asm.Mov.Imm32(asm.R0, answer), asm.Return())
		return
	}
	no := w.label()
	w.add(asm.Mov.Imm32(asm.R0, 0))
	w.goTo(jump32(asm.JEq, regA, 0), no)
	w.add(asm.Mov.Imm32(asm.R0, 1))
	w.place(no)
	w.add(asm.Return())
}

// jump writes a jump and returns where it may lead.
func (w *writer) jump(i int, in Instruction) []int {
	if in.Code&0xf0 == jmpJA {
		to := i + 1 + int(in.K)
		w.goTo(jumpAlways(), place(to))
		return []int{to}
	}
	op := map[uint16]asm.JumpOp{jmpJEQ: asm.JEq, jmpJGT: asm.JGT, jmpJGE: asm.JGE, jmpJSET: asm.JSet}[in.Code&0xf0]
	yes, no := i+1+int(in.JT), i+1+int(in.JF)
	test := jump32(op, regA, in.K)
	if in.Code&sourceX != 0 {
		test = asm.Instruction{OpCode: asm.OpCode(asm.Jump32Class).SetJumpOp(op).SetSource(asm.RegSource), Dst: regA, Src: regX}
	}
	w.goTo(test, place(yes))
	if in.JF > 0 {
		w.goTo(jumpAlways(), place(no))
	}
	return []int{yes, no}
}

func (w *writer) instruction(in Instruction, refuse place) {
	switch in.Code & 7 {
	case classLD, classLDX:
		w.load(in, refuse)
	case classST:
		w.add(asm.StoreMem(asm.RFP, memoryAt(in.K), regA, asm.Word))
	case classSTX:
		w.add(asm.StoreMem(asm.RFP, memoryAt(in.K), regX, asm.Word))
	case classALU:
		w.alu(in, refuse)
	case classMSC:
		if in.Code&0xf8 == miscTXA {
			w.add(asm.Mov.Reg32(regA, regX))
		} else {
			w.add(asm.Mov.Reg32(regX, regA))
		}
	}
}

func (w *writer) load(in Instruction, refuse place) {
	dst := regA
	if in.Code&7 == classLDX {
		dst = regX
	}
	switch in.Code & 0xe0 {
	case modeIMM:
		w.add(asm.Mov.Imm32(dst, int32(in.K)))
	case modeMEM:
		w.add(asm.LoadMem(dst, asm.RFP, memoryAt(in.K), asm.Word))
	case modeLEN:
		w.add(asm.Mov.Reg32(dst, regLength))
	case modeMSH: // X = 4 * the lower half of a byte
		w.bytes(in, false, refuse)
		w.add(asm.And.Imm32(asm.R0, 0x0f), asm.LSh.Imm32(asm.R0, 2), asm.Mov.Reg32(regX, asm.R0))
	default:
		w.bytes(in, in.Code&0xe0 == modeIND, refuse)
		w.add(asm.Mov.Reg32(regA, asm.R0))
	}
}

// bytes loads 1, 2 or 4 bytes of the frame, in network order, into R0.
func (w *writer) bytes(in Instruction, indirect bool, refuse place) {
	size, kind := int32(4), asm.Word
	switch in.Code & 0x18 {
	case sizeH:
		size, kind = 2, asm.Half
	case sizeB:
		size, kind = 1, asm.Byte
	}
	slow, done := w.label(), w.label()
	if w.hook == XDP && !indirect && in.K <= maxReach {
		// The pointers are read each time: what is known of them dies with them, and the ways that meet
		// behind the load look alike to the verifier.
		w.add(
			asm.LoadMem(asm.R2, regContext, 0, asm.Word), // data
			asm.LoadMem(asm.R3, regContext, 4, asm.Word), // data_end
			asm.Mov.Reg(asm.R5, asm.R2), asm.Add.Imm(asm.R5, int32(in.K)+size),
			asm.Mov.Imm(asm.R4, int32(in.K)),
		)
		w.goTo(asm.Instruction{OpCode: asm.JGT.Op(asm.RegSource), Dst: asm.R5, Src: asm.R3}, slow)
		w.inPlace(int16(in.K), size, kind, done)
		w.fetch(size, slow, refuse)
		w.place(done)
		return
	}
	// R4: the offset, of more than 32 bits at most by one
	if indirect {
		w.add(asm.Mov.Reg32(asm.R4, regX), asm.Add.Imm(asm.R4, int32(in.K)))
	} else {
		w.add(asm.Mov.Imm(asm.R4, int32(in.K)))
	}
	if w.hook == XDP {
		w.goTo(asm.Instruction{OpCode: asm.JGT.Op(asm.ImmSource), Dst: asm.R4, Constant: maxReach}, slow)
		w.add(
			asm.LoadMem(asm.R2, regContext, 0, asm.Word), // data
			asm.LoadMem(asm.R3, regContext, 4, asm.Word), // data_end
			asm.Add.Reg(asm.R2, asm.R4),
			asm.Mov.Reg(asm.R5, asm.R2), asm.Add.Imm(asm.R5, size),
		)
		w.goTo(asm.Instruction{OpCode: asm.JGT.Op(asm.RegSource), Dst: asm.R5, Src: asm.R3}, slow)
		w.inPlace(0, size, kind, done)
	}
	w.fetch(size, slow, refuse)
	w.place(done)
}

// inPlace loads from R2 into R0, and goes on behind fetch.
func (w *writer) inPlace(offset int16, size int32, kind asm.Size, done place) {
	w.add(asm.LoadMem(asm.R0, asm.R2, offset, kind))
	if size > 1 {
		w.add(asm.HostTo(asm.BE, asm.R0, kind))
	}
	w.goTo(jumpAlways(), done)
}

// fetch has C load from the offset in R4 into R0.
func (w *writer) fetch(size int32, slow, refuse place) {
	w.place(slow)
	w.goTo(asm.Instruction{OpCode: asm.JGT.Op(asm.ImmSource), Dst: asm.R4, Constant: math.MaxInt32}, refuse)
	w.add(
		asm.Mov.Reg(asm.R1, regContext), asm.Mov.Reg32(asm.R2, asm.R4), asm.Mov.Imm32(asm.R3, size),
		asm.Call.Label(loaders[w.hook]),
	)
	w.goTo(asm.Instruction{OpCode: asm.JSLT.Op(asm.ImmSource), Dst: asm.R0}, refuse)
}

func (w *writer) alu(in Instruction, refuse place) {
	op := map[uint16]asm.ALUOp{
		aluADD: asm.Add, aluSUB: asm.Sub, aluMUL: asm.Mul, aluDIV: asm.Div, aluOR: asm.Or, aluAND: asm.And,
		aluLSH: asm.LSh, aluRSH: asm.RSh, aluNEG: asm.Neg, aluMOD: asm.Mod, aluXOR: asm.Xor,
	}[in.Code&0xf0]
	if op == asm.Neg {
		w.add(asm.Mul.Imm32(regA, -1))
		return
	}
	if in.Code&sourceX == 0 {
		w.add(op.Imm32(regA, int32(in.K)))
		return
	}
	switch op {
	case asm.Div, asm.Mod:
		w.goTo(jump32(asm.JEq, regX, 0), refuse)
		w.add(op.Reg32(regA, regX))
	case asm.LSh, asm.RSh:
		far, done := w.label(), w.label()
		w.goTo(jump32(asm.JGT, regX, 31), far)
		w.add(op.Reg32(regA, regX))
		w.goTo(jumpAlways(), done)
		w.place(far)
		w.add(asm.Mov.Imm32(regA, 0))
		w.place(done)
	default:
		w.add(op.Reg32(regA, regX))
	}
}
