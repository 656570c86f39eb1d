package pipe

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// The gateway's own pipes (package firewall/pipes) are described by the same model, and are not compiled from it: their
// classifiers are made of the policy, and what lies between them is written in C.

// Describing is a program that describes the gateway's own pipes and cannot be run: p.Own is set, and became says for
// each pipe, by its number, what it is in the gateway's programs.
func Describing(p *Pipeline, became []Became) *Program {
	prog := &Program{Pipeline: p, Memory: &Memory{}}
	for i, of := range p.Pipes {
		b := &became[i]
		prog.Order = append(prog.Order, i)
		prog.Pipes = append(prog.Pipes, &Planned{Pipe: of, Number: i, Form: b.Form, Why: b.Why, NS: b.ns(), Insns: b.Instructions, ACL: b.ACL})
	}
	return prog
}

// Became is what a pipe of the gateway's own is.
type Became struct {
	Form         Form
	Why          string
	Instructions int
	Entries      int            // of the classifier, or questions of a search
	ACL          *flowtable.ACL // InACL
}

// ns is what the cost model says of it.
func (b *Became) ns() float64 {
	switch b.Form {
	case InACL:
		return costPipe + costClassifier(b.ACL, b.Entries)
	case InSlots:
		return costPipe + costSlot + costHash
	case InFlows:
		return costPipe + costFlow
	}
	return costPipe + costStep*float64(b.Entries)
}

// ownWords are those that the gateway's own pipes note something in.
var ownWords = [...]bpf.PipesPipeWord{
	bpf.PipesPipeWordPIPE_META0, bpf.PipesPipeWordPIPE_META0 + 1, bpf.PipesPipeWordPIPE_META0 + 2, bpf.PipesPipeWordPIPE_META0 + 3,
	bpf.PipesPipeWordPIPE_MARK, bpf.PipesPipeWordPIPE_RAW0, bpf.PipesPipeWordPIPE_RAW0 + 1, bpf.PipesPipeWordPIPE_RAW0 + 2,
}

// OwnField is field number n, from 0 to 7, of the gateway's own pipes: a number that every packet has. Say writes a value of it.
func OwnField(n int, name, help string, say func(uint32) string) *Field {
	return &Field{Name: name, Word: int(ownWords[n]), Bits: 32, Help: help, say: say}
}
