package pipe

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

// actionInline is the largest action, in slots, that stands in a pipe whose actions together are more than actionsInline.
const (
	actionInline  = 24
	actionsInline = 4000
)

// actionSlots are those of a pipe's actions, and whether large ones are functions of their own.
func (e *emitter) actionSlots(pl *Planned) (slots []int, apart bool) {
	total := 0
	for i := range pl.actions {
		t := e.text()
		t.steps(pl, &pl.actions[i], nil, t.Label())
		slots = append(slots, t.Slots())
		total += t.Slots()
	}
	return slots, total > min(actionsInline, e.options.Limits.function()/4)
}

// group writes a function that does some of the actions of a pipe: it is given the place of the entry and the number of
// the action, and answers where the packet goes if it dies of it, else 0.
func (e *emitter) group(pl *Planned, actions []int, name string) error {
	t := e.text()
	t.begin()
	ttl, end := t.Label(), t.Label()
	t.Add(asm.Mov.Reg32(regPlace, asm.R2), asm.Mov.Reg32(regForward, asm.R3))
	for _, i := range actions {
		if pl.actions[i].words > 0 {
			t.record(known{})
			break
		}
	}
	labels := make([]label, len(actions))
	for n := range labels {
		labels[n] = t.Label()
	}
	t.Dispatch(regForward, actions, labels)
	for n, i := range actions {
		t.Place(labels[n])
		t.steps(pl, &pl.actions[i], nil, ttl)
		t.GoTo(end)
	}
	t.Place(end)
	t.Return(0)
	t.Place(ttl)
	t.Return(toDrop | reasonTTL)
	insns, err := t.end(function(name, "place", "action"), toDrop)
	e.functions = append(e.functions, insns)
	return err
}

// groups divides the actions of a pipe that do not stand in it over functions, and returns the name of each one's.
func (e *emitter) groups(pl *Planned, slots []int) (names []string, err error) {
	names = make([]string, len(slots))
	room := e.options.Limits.function() / 2
	var group []int
	total, n := 0, 0
	flush := func() {
		if len(group) > 0 && err == nil {
			err = e.group(pl, group, names[group[0]])
		}
		group, total = nil, 0
	}
	for i, size := range slots {
		if size <= actionInline {
			continue
		}
		if size += 4; total+size > room {
			flush()
		}
		if len(group) == 0 {
			n++
		}
		group, total = append(group, i), total+size
		names[i] = fmt.Sprintf("%s_do%d_%d", emitName, pl.Number, n)
	}
	flush()
	return names, err
}

// steps writes an action; the operands that entries give are k's, or stand in the record. A packet whose time to live has
// run out goes to ttl.
func (t *text) steps(pl *Planned, a *action, k *known, ttl label) {
	has := pl.need // what the packet is known to have
	for i := range a.steps {
		st := &a.steps[i]
		skip := t.Label()
		if st.need&^has != 0 {
			t.load(asm.R1, wordHas)
			t.Add(asm.And.Imm32(asm.R1, int32(st.need)))
			t.JumpImm(asm.JNE, asm.R1, st.need, skip)
		}
		switch st.Kind {
		case Set:
			t.set(st, k)
		case Add:
			t.add(st, k)
		case Copy:
			t.copy(st)
		case TTL:
			t.load(asm.R1, wordTTL)
			t.JumpImm(asm.JLE, asm.R1, 1, ttl)
			t.Add(asm.Add.Imm32(asm.R1, -1))
			t.store(wordTTL, asm.R1)
			t.wrote(wroteTTL)
		case PushVLAN:
			t.push(st, k, skip)
		case PopVLAN:
			t.pop(skip)
			has &^= hasVLAN0 | hasVLAN1
		}
		t.Place(skip)
	}
}

// wrote notes what was changed.
func (t *text) wrote(bit uint32) {
	if bit == 0 {
		return
	}
	t.load(asm.R1, wordWritten)
	t.Add(asm.Or.Imm32(asm.R1, int32(bit)))
	t.store(wordWritten, asm.R1)
}

// operand reads a word of a step's operand.
func (t *text) operand(r asm.Register, st *step, i int, k *known) {
	switch {
	case st.at < 0:
		t.Add(asm.Mov.Imm32(r, int32(st.Value[i])))
	case k != nil:
		t.Add(asm.Mov.Imm32(r, int32(k.record.Value[st.at+i])))
	default:
		t.Add(asm.LoadMem(r, regRecord, recordValue+int16(4*(st.at+i)), asm.Word))
	}
}

func (t *text) set(st *step, k *known) {
	full := st.Field.Full()
	for i, all := range full {
		mask := all
		if st.Mask != nil {
			mask &= st.Mask[i]
		}
		if mask == 0 {
			continue
		}
		t.operand(asm.R1, st, i, k)
		t.Add(asm.And.Imm32(asm.R1, int32(mask)))
		if mask != all {
			t.load(asm.R2, st.Field.Word+i)
			t.Add(asm.And.Imm32(asm.R2, int32(^mask)), asm.Or.Reg32(asm.R1, asm.R2))
		}
		t.store(st.Field.Word+i, asm.R1)
	}
	t.wrote(wrote(st.Field))
}

// add adds from the least significant word on.
func (t *text) add(st *step, k *known) {
	full := st.Field.Full()
	t.Add(asm.Mov.Imm(asm.R3, 0)) // the carry
	for j := range full {         // from the right
		i := len(full) - 1 - j
		switch {
		case st.From == nil:
			t.operand(asm.R1, st, i, k)
		case j < st.From.Words():
			t.load(asm.R1, st.From.Word+st.From.Words()-1-j)
		default:
			t.Add(asm.Mov.Imm32(asm.R1, 0))
		}
		t.load(asm.R2, st.Field.Word+i)
		t.Add(asm.Add.Reg(asm.R2, asm.R1), asm.Add.Reg(asm.R2, asm.R3), asm.Mov.Reg(asm.R3, asm.R2), asm.RSh.Imm(asm.R3, 32))
		if full[i] != ^uint32(0) {
			t.Add(asm.And.Imm32(asm.R2, int32(full[i])))
		}
		t.store(st.Field.Word+i, asm.R2)
	}
	t.wrote(wrote(st.Field))
}

// piece is what one word of a field gets of another: bits of two words beside each other.
type piece struct {
	word      int // of struct pipe_fields
	mask      uint32
	low, high int // words that it comes from; high may be -1
	right     int // shift of both, together
	left      int
}

// pieces are what a copy moves.
func (st *step) pieces() (list []piece) {
	field, from := st.Field, st.From
	words := field.Words()
	for j := range words { // from the right: bits 32 j and up
		first, last := max(st.Shift, 32*j), min(st.Shift+st.Bits, 32*j+32, field.Bits)
		if first >= last {
			continue
		}
		source := first - st.Shift + st.FromShift
		p := piece{word: field.Word + words - 1 - j, left: first - 32*j, right: source % 32, high: -1}
		p.mask = uint32(1<<(last-first)-1) << p.left
		if source/32 >= from.Words() {
			p.low = -1
		} else {
			p.low = from.Word + from.Words() - 1 - source/32
			if source/32+1 < from.Words() && p.right+(last-first) > 32 {
				p.high = p.low - 1
			}
		}
		list = append(list, p)
	}
	return list
}

// copy reads all that it moves before it writes: the fields may be one.
func (t *text) copy(st *step) {
	pieces := st.pieces()
	regs := []asm.Register{asm.R2, asm.R3, asm.R4, asm.R5}
	for i, p := range pieces {
		r := regs[i]
		t.Add(asm.Mov.Imm32(r, 0))
		if p.low < 0 {
			continue
		}
		t.load(r, p.low)
		if p.high >= 0 {
			t.load(asm.R1, p.high)
			t.Add(asm.LSh.Imm(asm.R1, 32), asm.Or.Reg(r, asm.R1))
		}
		if p.right > 0 {
			t.Add(asm.RSh.Imm(r, int32(p.right)))
		}
		if p.left > 0 {
			t.Add(asm.LSh.Imm(r, int32(p.left)))
		}
		t.Add(asm.And.Imm32(r, int32(p.mask)))
	}
	for i, p := range pieces {
		if p.mask != ^uint32(0) {
			t.load(asm.R1, p.word)
			t.Add(asm.And.Imm32(asm.R1, int32(^p.mask)), asm.Or.Reg32(regs[i], asm.R1))
		}
		t.store(p.word, regs[i])
	}
	t.wrote(wrote(st.Field))
}

// push does nothing to a packet that has two tags.
func (t *text) push(st *step, k *known, skip label) {
	t.load(asm.R3, wordVLANs)
	t.JumpImm(asm.JGE, asm.R3, 2, skip)
	t.load(asm.R1, wordVLAN0ID)
	t.store(wordVLAN1ID, asm.R1)
	t.load(asm.R1, wordVLAN0PCP)
	t.store(wordVLAN1PCP, asm.R1)
	t.operand(asm.R1, st, 0, k)
	t.Add(asm.Mov.Reg32(asm.R2, asm.R1), asm.And.Imm32(asm.R2, 0xfff))
	t.store(wordVLAN0ID, asm.R2)
	t.Add(asm.RSh.Imm32(asm.R1, 12), asm.And.Imm32(asm.R1, 7))
	t.store(wordVLAN0PCP, asm.R1)
	t.Add(asm.Add.Imm32(asm.R3, 1))
	t.store(wordVLANs, asm.R3)
	t.load(asm.R1, wordHas)
	t.Add(
		asm.Mov.Reg32(asm.R2, asm.R1), asm.And.Imm32(asm.R2, int32(hasVLAN0)), asm.LSh.Imm32(asm.R2, vlanShift),
		asm.Or.Reg32(asm.R1, asm.R2), asm.Or.Imm32(asm.R1, int32(hasVLAN0)),
	)
	t.store(wordHas, asm.R1)
	t.wrote(wroteVLAN)
}

// vlanShift is from the bit of the outer tag to that of the inner one.
const vlanShift = 1

func (t *text) pop(skip label) {
	t.load(asm.R3, wordVLANs)
	t.JumpImm(asm.JEq, asm.R3, 0, skip)
	for _, w := range [][2]int{{wordVLAN0ID, wordVLAN1ID}, {wordVLAN0PCP, wordVLAN1PCP}} {
		t.load(asm.R1, w[1])
		t.store(w[0], asm.R1)
		t.storeImm(w[1], 0)
	}
	t.Add(asm.Add.Imm32(asm.R3, -1))
	t.store(wordVLANs, asm.R3)
	t.load(asm.R1, wordHas)
	t.Add(
		asm.Mov.Reg32(asm.R2, asm.R1), asm.RSh.Imm32(asm.R2, vlanShift), asm.And.Imm32(asm.R2, int32(hasVLAN0)),
		asm.And.Imm32(asm.R1, -1-int32(hasVLAN0|hasVLAN1)), asm.Or.Reg32(asm.R1, asm.R2),
	)
	t.store(wordHas, asm.R1)
	t.wrote(wroteVLAN)
}
