package flowtable

import "github.com/softdpu/softdpu/bpf"

// Sum is what of a flow is added up: a part of Flow.
type Sum struct {
	State   bpf.XDPFlowState
	Revoked bool
	Rule    uint32
	From    uint8
	To      uint8
	Context uint16    // identity of the opener's MAC
	Packets [2]uint64 // opener's direction first
	Bytes   [2]uint64 // IP total lengths
	Stages  uint8     // STAGE_*, of either direction
}

// sumOf copies what is added up of a flow, and reports whether there was one for as long as that took.
func sumOf(e *entry, s *Sum) bool {
	word := e.word()
	if !isFlow(word) {
		return false
	}
	o := uint8(0)
	if word&WordHiOpened != 0 {
		o = 1
	}
	s.State, s.Revoked, s.Rule = stateOf(word), word&WordRevoked != 0, e.core.Rule&verdictRuleMask
	s.From, s.To, s.Context = e.core.From, e.core.To, e.core.Context
	s.Packets = [2]uint64{e.count[o].Packets, e.count[o^1].Packets}
	s.Bytes = [2]uint64{e.count[o].Bytes, e.count[o^1].Bytes}
	s.Stages = e.leg[0].Stages | e.leg[1].Stages
	return e.word()>>WordGenerationBit == word>>WordGenerationBit
}

// Sums calls fn for every flow, in no order, with a Sum that is good until fn returns. It is All for who
// needs no more, at a fraction of the time: it passes over families without flows, and reads several
// places of the table in turn. Flows that come or go meanwhile may or may not be among them.
func (t *Table) Sums(fn func(*Sum)) {
	var sum Sum
	four, six := t.holds()
	if four {
		part := max(len(t.groups4)/streams, 1)
		for first := range part {
			for g := first; g < len(t.groups4); g += part {
				for s := range t.groups4[g].Slot {
					e := entry4(&t.groups4[g].Slot[s], FlowID{})
					if sumOf(&e, &sum) {
						fn(&sum)
					}
				}
			}
		}
	}
	if six {
		part := max(len(t.groups6)/streams, 1)
		for first := range part {
			for g := first; g < len(t.groups6); g += part {
				for s := range t.groups6[g].Slot {
					e := entry6(&t.groups6[g].Slot[s], FlowID{})
					if sumOf(&e, &sum) {
						fn(&sum)
					}
				}
			}
		}
	}
	for _, f := range t.overflow4 {
		if e := entry4(f, FlowID{}); sumOf(&e, &sum) {
			fn(&sum)
		}
	}
	for _, f := range t.overflow6 {
		if e := entry6(f, FlowID{}); sumOf(&e, &sum) {
			fn(&sum)
		}
	}
}
