package oracle

import (
	"math/big"

	"github.com/softdpu/softdpu/flowtable/pipe"
)

// act does the entry's action. It is not ok if the packet dies of it.
func (t *turn) act(p *pipe.Pipe, e *pipe.Entry) (ok bool) {
	if e == nil {
		return true
	}
	if p.Kind == pipe.OrderedList {
		for i := range e.List {
			if !t.steps(&e.List[i], nil) {
				return false
			}
		}
		return true
	}
	return len(p.Actions) == 0 || t.steps(&p.Actions[e.Action], e.Values)
}

func (t *turn) steps(a *pipe.Action, operands []pipe.Value) bool {
	for i := range a.Ops {
		op := &a.Ops[i]
		operand := op.Value
		if op.FromEntry {
			operand, operands = operands[0], operands[1:]
		}
		if op.Field != nil && !t.has(op.Field) || op.From != nil && !t.has(op.From) {
			continue
		}
		switch op.Kind {
		case pipe.Set:
			mask := op.Mask
			if mask == nil {
				mask = op.Field.Full()
			}
			for i, v := range t.value(op.Field) {
				t.value(op.Field)[i] = v&^mask[i] | operand[i]&mask[i]
			}
		case pipe.Add:
			if op.From != nil {
				operand = t.value(op.From)
			}
			t.store(op.Field, new(big.Int).Add(number(t.value(op.Field)), number(operand)))
		case pipe.Copy:
			t.copy(op)
		case pipe.TTL:
			if t.After[wordHas]&hasIP == 0 {
				continue
			}
			if t.After[wordTTL] <= 1 {
				t.TTL = true
				return false
			}
			t.After[wordTTL]--
		case pipe.PushVLAN:
			t.push(operand[0])
		case pipe.PopVLAN:
			t.pop()
		}
	}
	return true
}

// number is a value as one number.
func number(v pipe.Value) *big.Int {
	n := new(big.Int)
	for _, w := range v {
		n.Or(n.Lsh(n, 32), big.NewInt(int64(w)))
	}
	return n
}

// store keeps of a number what fits the field.
func (t *turn) store(f *pipe.Field, n *big.Int) {
	n.And(n, number(f.Full()))
	v := t.value(f)
	for i := range v {
		w := new(big.Int).Rsh(n, uint(32*(len(v)-1-i)))
		v[i] = uint32(w.Uint64())
	}
}

// copy moves bits from a field to another.
func (t *turn) copy(op *pipe.Op) {
	ones := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(op.Bits)), big.NewInt(1))
	bits := new(big.Int).Rsh(number(t.value(op.From)), uint(op.FromShift))
	bits.And(bits, ones).Lsh(bits, uint(op.Shift))
	kept := new(big.Int).AndNot(number(t.value(op.Field)), new(big.Int).Lsh(ones, uint(op.Shift)))
	t.store(op.Field, kept.Or(kept, bits))
}

// push adds an outer tag; a packet with two keeps these.
func (t *turn) push(tag uint32) {
	w := &t.After
	switch w[wordVLANs] {
	case 0:
		w[wordHas] |= hasVLAN0
	case 1:
		w[wordHas] |= hasVLAN1
		w[wordID1], w[wordPCP1] = w[wordID0], w[wordPCP0]
	default:
		return
	}
	w[wordVLANs]++
	w[wordID0], w[wordPCP0] = tag&0xfff, tag>>12&7
}

// pop takes the outer tag away; the inner one is the outer one then.
func (t *turn) pop() {
	w := &t.After
	switch w[wordVLANs] {
	case 0:
		return
	case 1:
		w[wordHas] &^= hasVLAN0
	default:
		w[wordHas] &^= hasVLAN1
	}
	w[wordVLANs]--
	w[wordID0], w[wordPCP0] = w[wordID1], w[wordPCP1]
	w[wordID1], w[wordPCP1] = 0, 0
}
