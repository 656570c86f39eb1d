package pipe

import "fmt"

// action is an action template, or the list of an entry of an ordered list, as it runs.
type action struct {
	name  string
	steps []step
	words int // operands that entries give, in words
}

// step is one op. An operand that entries give begins at a word of an entry's values.
type step struct {
	*Op
	need uint32 // enum pipe_has: without these it does nothing
	at   int    // -1: the operand is the op's own
}

// newAction lays out the operands of a template.
func newAction(a *Action) (action, error) {
	compiled := action{name: a.Name}
	for i := range a.Ops {
		s := step{Op: &a.Ops[i], at: -1}
		width := 1
		switch s.Kind {
		case TTL:
			s.need = hasIP
		case PushVLAN, PopVLAN:
		default:
			s.need = s.Field.Has
			width = s.Field.Words()
			if s.From != nil {
				s.need |= s.From.Has
			}
		}
		if s.FromEntry {
			s.at = compiled.words
			compiled.words += width
		}
		compiled.steps = append(compiled.steps, s)
	}
	if compiled.words > MaxValues {
		return compiled, fmt.Errorf("action %s leaves %d words of operands to entries, more than %d", a.Name, compiled.words, MaxValues)
	}
	return compiled, nil
}

// operand returns a word of a step's operand; values are the entry's.
func (s *step) operand(i int, values []uint32) uint32 {
	if s.at >= 0 {
		return values[s.at+i]
	}
	return s.Value[i]
}

// wrote is the bit of PIPE_WRITTEN for a change of a field.
func wrote(f *Field) uint32 {
	switch w := f.Word; {
	case w >= wordEthSrc && w < wordEthType:
		return wroteEth
	case w >= wordVLAN0ID && w <= wordVLAN1PCP:
		return wroteVLAN
	case w == wordTTL:
		return wroteTTL
	case w == wordDSCP || w == wordECN:
		return wroteTOS
	case w >= wordIPSrc && w < wordSport:
		return wroteIP
	case w == wordSport || w == wordDport:
		return wrotePorts
	}
	return 0
}
