package flowtable

import (
	"iter"
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// Flow is a copy of one flow, for people: the opener's direction comes first everywhere.
type Flow struct {
	ID      FlowID
	Tuple   Tuple // of the opening packet
	State   bpf.XDPFlowState
	Revoked bool
	Log     bool
	Midst   bool // picked up in midstream
	From    uint8
	To      uint8
	Context uint16 // identity of the opener's MAC
	Rule    uint32
	Epoch   uint32
	Created uint32 // tick
	Packets [2]uint64
	Bytes   [2]uint64 // IP total lengths
	Seen    [2]uint32 // tick of the last packet; of creation, before any
	Nexthop [2]uint16
	Stages  [2]uint8 // what a worker does with the leg's packets; 0: they stay in XDP
	Ready   bool     // the worker has done with it: each leg moves up with its next packet that can
	Home    uint8    // 1 + number of the worker that it belongs to; 0: none has had it
	NAT     *Translation
}

// Translation is what the packets of a translated flow become; nil of one that is not.
type Translation struct {
	Outer                       Tuple  // of its opener's packets, as the other end sees them
	SourceRule, DestinationRule uint32 // ids of nat rules; 0: none
}

// Age returns the time since the flow was created.
func (f *Flow) Age(now uint32) time.Duration { return duration(age(now, f.Created)) }

// Idle returns the time since its last packet in either direction.
func (f *Flow) Idle(now uint32) time.Duration {
	return duration(min(age(now, f.Seen[0]), age(now, f.Seen[1])))
}

func duration(ticks uint32) time.Duration { return time.Duration(ticks) << tickShift }

// viewOf copies a flow. It is whole if the generation is the same before and after, which the caller
// of a mapped table must check.
func viewOf(e *entry, word uint64) Flow {
	o := uint8(0)
	if word&WordHiOpened != 0 {
		o = 1
	}
	f := Flow{
		ID:      e.id,
		Tuple:   e.tuple(o),
		State:   stateOf(word),
		Revoked: word&WordRevoked != 0,
		Log:     word&WordLog != 0,
		Midst:   word&WordMidstream != 0,
		Ready:   word&WordReady != 0,
		Home:    uint8(e.core.Rule >> 24),
		From:    e.core.From,
		To:      e.core.To,
		Context: e.core.Context,
		Rule:    e.core.Rule & verdictRuleMask,
		Epoch:   e.core.Epoch,
		Created: e.core.Created,
	}
	f.ID.Generation = uint32(word >> WordGenerationBit)
	for i := range f.Packets {
		leg := o ^ uint8(i)
		f.Packets[i], f.Bytes[i] = e.count[leg].Packets, e.count[leg].Bytes
		f.Seen[i] = atomic.LoadUint32(&e.leg[leg].Seen)
		f.Nexthop[i] = e.leg[leg].Nexthop
		f.Stages[i] = e.leg[leg].Stages
	}
	if outer, ok := e.outer(); ok {
		f.NAT = &Translation{Outer: outer}
	}
	return f
}

// view copies the flow of an entry, and reports whether there was one for as long as that took. What only
// its alias knows is not in it.
func view(e *entry) (Flow, bool) {
	word := e.word()
	if !isFlow(word) {
		return Flow{}, false
	}
	f := viewOf(e, word)
	after := e.word() // whoever takes the place for another flow leaves the generation until that is written
	return f, isFlow(after) && after>>WordGenerationBit == word>>WordGenerationBit
}

// view is the function view with what the flow's alias knows.
func (t *Table) view(e *entry) (Flow, bool) {
	f, ok := view(e)
	if ok {
		t.Complete(&f)
	}
	return f, ok
}

// Complete adds to a translated flow, as View4 and View6 read it, by which rules it was translated.
func (t *Table) Complete(f *Flow) {
	if f.NAT == nil {
		return
	}
	k := keyOf(&f.NAT.Outer)
	e, ok := t.see(&k)
	if !ok {
		return
	}
	word := e.word()
	a, target := e.alias(), keyOf(&f.Tuple)
	if isAlias(word) && sameKey(&a.target, &target) && e.word()>>WordGenerationBit == word>>WordGenerationBit {
		f.NAT.SourceRule, f.NAT.DestinationRule = a.source, a.destination
	}
}

// Lookup returns the flow that a packet with this tuple, in either direction, belongs to. A translated one
// is found by its original and by its outer tuple.
func (t *Table) Lookup(tuple Tuple) (Flow, bool) {
	k := keyOf(&tuple)
	e, ok := t.see(&k)
	if ok && isAlias(e.word()) {
		e, ok = t.follow(e, &tuple)
	}
	if !ok {
		return Flow{}, false
	}
	return t.view(&e)
}

// View4 reads a flow that was copied out of a kernel hash, beside the groups. It reports false for a copy
// that holds none: an alias is none. See Complete.
func View4(f *bpf.XDPFlow4) (Flow, bool) {
	e := entry4(f, FlowID{Overflow: true})
	return view(&e)
}

// View6 is View4 for IPv6.
func View6(f *bpf.XDPFlow6) (Flow, bool) {
	e := entry6(f, FlowID{Overflow: true})
	return view(&e)
}

// All walks the flows in table order, the overflow last. Flows that come or go meanwhile may or may
// not be among them; none is seen half.
func (t *Table) All() iter.Seq[Flow] {
	return func(yield func(Flow) bool) {
		for e := range t.entries() {
			if f, ok := t.view(&e); ok && !yield(f) {
				return
			}
		}
	}
}

// entries walks all places of the table, free ones too, the overflow last.
func (t *Table) entries() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for g := range t.groups4 {
			for s := range t.groups4[g].Slot {
				if !yield(entry4(&t.groups4[g].Slot[s], FlowID{Group: uint32(g), Slot: uint8(s)})) {
					return
				}
			}
		}
		for g := range t.groups6 {
			for s := range t.groups6[g].Slot {
				if !yield(entry6(&t.groups6[g].Slot[s], FlowID{Group: uint32(g), Slot: uint8(s)})) {
					return
				}
			}
		}
		for _, f := range t.overflow4 {
			if !yield(entry4(f, FlowID{Overflow: true})) {
				return
			}
		}
		for _, f := range t.overflow6 {
			if !yield(entry6(f, FlowID{Overflow: true})) {
				return
			}
		}
	}
}
