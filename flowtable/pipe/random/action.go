package random

import (
	"fmt"

	"github.com/softdpu/softdpu/flowtable/pipe"
)

// actions makes the templates of a pipe.
func (g *generator) actions(p *pipe.Pipe) {
	if p.Kind == pipe.OrderedList || p.Kind == pipe.CT || g.one(3) {
		return
	}
	for i := range 1 + g.IntN(3) {
		a := g.action(true)
		if g.one(2) {
			a.Name = fmt.Sprintf("a%d", i)
		}
		p.Actions = append(p.Actions, a)
	}
}

var writable = pipe.Writable()

// action makes a list of steps; entries may have operands of their own.
func (g *generator) action(entries bool) (a pipe.Action) {
	words := 0
	for range g.IntN(5) {
		op := g.step()
		if entries && g.one(3) && (op.Kind == pipe.Set || op.Kind == pipe.PushVLAN || op.Kind == pipe.Add && op.From == nil) {
			width := 1
			if op.Field != nil {
				width = op.Field.Words()
			}
			if words+width <= pipe.MaxValues {
				words += width
				op.FromEntry, op.Value = true, nil
			}
		}
		a.Ops = append(a.Ops, op)
	}
	return a
}

func (g *generator) step() pipe.Op {
	f := pipe.LookupField(writable[g.IntN(len(writable))])
	switch g.IntN(8) {
	case 0:
		return pipe.Op{Kind: pipe.TTL}
	case 1:
		return pipe.Op{Kind: pipe.PopVLAN}
	case 2:
		return pipe.Op{Kind: pipe.PushVLAN, Value: g.operand(nil)}
	case 3:
		op := pipe.Op{Kind: pipe.Add, Field: f}
		if from := g.numeric(); g.one(2) {
			op.From = from
		} else {
			op.Value = g.operand(f)
		}
		return op
	case 4:
		from := g.some(1)[0]
		for from.Only != 0 {
			from = g.some(1)[0]
		}
		op := pipe.Op{Kind: pipe.Copy, Field: f, From: from, Bits: 1 + g.IntN(min(f.Bits, from.Bits))}
		op.Shift, op.FromShift = g.IntN(f.Bits-op.Bits+1), g.IntN(from.Bits-op.Bits+1)
		return op
	}
	op := pipe.Op{Kind: pipe.Set, Field: f}
	if g.one(3) {
		op.Mask = g.bits(f)
	}
	op.Value = under(g.operand(f), op.Mask)
	return op
}

// operand is a value for a field, or a tag.
func (g *generator) operand(f *pipe.Field) pipe.Value {
	if f == nil {
		return pipe.Value{uint32(g.IntN(8)<<12 | g.IntN(4095))}
	}
	return g.likely(f)
}
