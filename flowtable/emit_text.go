package flowtable

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Most slots of 8 bytes of what is generated for pipelines. Jumps reach 32,767, and are silently wrong beyond.
const (
	TextSlots  = 16_384 // of one function
	TextsSlots = 65_536 // of all of a program's
)

// Text is a generated function. Jumps go to labels and get their numbers at the end.
type Text struct {
	f     emitFunc
	slots int
}

// NewText returns an empty function that may have so many slots; 0: TextSlots.
func NewText(slots int) *Text {
	if slots == 0 {
		slots = TextSlots
	}
	return &Text{slots: slots}
}

// TextLabel is a place in a Text.
type TextLabel = emitLabel

// Slots are how many slots its instructions take so far.
func (t *Text) Slots() int { return t.f.slots }

// Add appends instructions other than jumps.
func (t *Text) Add(insns ...asm.Instruction) { t.f.add(insns...) }

// Label returns a new label, which has no place yet.
func (t *Text) Label() TextLabel { return t.f.label() }

// Place puts a label behind what was added so far.
func (t *Text) Place(l TextLabel) { t.f.place(l) }

// Used tells whether a jump leads to a label.
func (t *Text) Used(l TextLabel) bool { return t.f.used(l) }

// GoTo jumps.
func (t *Text) GoTo(l TextLabel) { t.f.goTo(l) }

// JumpImm jumps if the lower half of a register and a number are so, unsigned.
func (t *Text) JumpImm(op asm.JumpOp, r asm.Register, value uint32, l TextLabel) {
	t.f.jump(emitImm32(op, r, uint64(value)), l)
}

// JumpReg jumps if the lower halves of two registers are so, unsigned.
func (t *Text) JumpReg(op asm.JumpOp, r, with asm.Register, l TextLabel) {
	t.f.jump(asm.Instruction{OpCode: asm.OpCode(asm.Jump32Class).SetJumpOp(op).SetSource(asm.RegSource), Dst: r, Src: with}, l)
}

// JumpNull jumps if a pointer is none.
func (t *Text) JumpNull(r asm.Register, l TextLabel) { t.f.jumpImm(asm.JEq, r, 0, asm.R0, l) }

// Call calls another function of the program.
func (t *Text) Call(name string) { t.f.call(name) }

// Return answers a number.
func (t *Text) Return(value uint32) { t.f.ret(value) }

// Dispatch jumps to the label that belongs to the one of values, ascending, which the lower half of a register holds. It
// must hold one of them.
func (t *Text) Dispatch(r asm.Register, values []int, labels []TextLabel) {
	t.f.dispatch(r, values, labels)
}

// LookUp sets r0 to the value of a map whose number stands in the word below the frame pointer, or jumps.
func (t *Text) LookUp(name string, absent TextLabel) { t.f.lookUp(name, absent) }

// Finish returns the instructions of a global function of a type. It is an error if the function is too large.
func (t *Text) Finish(fn *btf.Func) (asm.Instructions, error) {
	if err := t.f.prune(); err != nil {
		return nil, fmt.Errorf("function %s: %w", fn.Name, err)
	}
	if t.f.slots > t.slots {
		return nil, fmt.Errorf("function %s has %d instructions, more than %d", fn.Name, t.f.slots, t.slots)
	}
	insns, err := t.f.finish()
	if err != nil {
		return nil, fmt.Errorf("function %s: %w", fn.Name, err)
	}
	insns[0] = btf.WithFuncMetadata(insns[0], fn).WithSymbol(fn.Name)
	return insns, nil
}

// Function returns the pipe as Instructions do, under another name than classify.
func (a *ACL) Function(name string) (asm.Instructions, error) {
	return a.instructions(classifier(name), nil)
}

// prune takes out what no path leads to, which the verifier refuses.
func (f *emitFunc) prune() error {
	at := make([]int, f.slots+1) // instruction that begins in a slot
	slot := 0
	for i, ins := range f.insns {
		at[slot] = i
		slot += int(ins.Width())
	}
	at[slot] = len(f.insns)
	jumps := make(map[int]emitLabel, len(f.jumps))
	for _, j := range f.jumps {
		if f.places[j.to] < 0 {
			return fmt.Errorf("a jump leads nowhere")
		}
		jumps[j.insn] = j.to
	}
	reached := make([]bool, len(f.insns))
	for list := []int{0}; len(list) > 0; {
		i := list[len(list)-1]
		list = list[:len(list)-1]
		for i < len(f.insns) && !reached[i] {
			reached[i] = true
			op := f.insns[i].OpCode
			if l, ok := jumps[i]; ok {
				list = append(list, at[f.places[l]])
			}
			if op.Class().IsJump() && (op.JumpOp() == asm.Exit || op.JumpOp() == asm.Ja) {
				break
			}
			i++
		}
		if i == len(f.insns) {
			return fmt.Errorf("it has no end")
		}
	}
	moved := make([]int, f.slots+1) // slot that what began in a slot begins in, or what comes behind it
	kept := &emitFunc{places: make([]int, len(f.places))}
	slot = 0
	for i, ins := range f.insns {
		moved[slot] = kept.slots
		slot += int(ins.Width())
		if !reached[i] {
			continue
		}
		if l, ok := jumps[i]; ok {
			kept.jump(ins, l)
		} else {
			kept.add(ins)
		}
	}
	moved[slot] = kept.slots
	for l, p := range f.places {
		if kept.places[l] = p; p >= 0 {
			kept.places[l] = moved[p]
		}
	}
	*f = *kept
	return nil
}
