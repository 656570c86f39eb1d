package flowtable

import (
	"sync/atomic"
)

// mark is a flow that a scan means to free, or an alias.
type mark struct {
	e    entry
	word uint64    // as marked
	seen [2]uint32 // as found, of a flow
}

// takeOff takes the mark off, unless something else has become of the entry. The zero value is none.
func (m *mark) takeOff() {
	if m.word != 0 {
		atomic.CompareAndSwapUint64(&m.e.core.Word, m.word, m.word&^WordMarked)
	}
}

// Scan frees the flows that were idle for the time-out of their protocol and state at tick now, and calls
// freed with a last copy of each; its counts are the caller's to credit to its rule. It returns their
// number.
//
// The first scan of a Table, and the first with other time-outs, looks at every slot of the families that
// hold flows; those after it only where a flow can have expired (schedule). A flow ends with the first
// scan after its time-out, or the next if it came while this one ran.
//
// It runs against packets under way: idle flows are marked; grace returns when every packet that
// could have read its flow unmarked is done (on a mapped table an RCU grace period, which
// membarrier(MEMBARRIER_CMD_GLOBAL) waits for); then those are freed that still bear the mark and
// saw no packet, because a hit takes the mark off. Grace is not called if nothing was marked. One
// Scan at a time, at least every 12 days.
func (t *Table) Scan(now uint32, timeouts *Timeouts, grace func(), freed func(*Flow)) int {
	t.marked = t.marked[:0]
	s := &t.schedule
	s.begin(timeouts)
	if four, _ := t.holds(); four {
		s.due4 = started(s.due4, len(t.groups4), now)
		t.scan4(now)
	} else {
		s.due4 = s.due4[:0]
	}
	if _, six := t.holds(); six {
		s.due6 = started(s.due6, len(t.groups6), now)
		t.scan6(now)
	} else {
		s.due6 = s.due6[:0]
	}
	for _, f := range t.overflow4 {
		e := entry4(f, FlowID{Overflow: true})
		if isAlias(f.Core.Word) {
			t.keepMapped(&e, now)
		}
		if timeouts.Expired(now, f.Key.Proto, &f.Core, &f.Leg) || t.isOrphan(&e, now) {
			t.mark(e, f.Core.Word)
		}
	}
	for _, f := range t.overflow6 {
		e := entry6(f, FlowID{Overflow: true})
		if isAlias(f.Core.Word) {
			t.keepMapped(&e, now)
		}
		if timeouts.Expired(now, f.Key.Proto, &f.Core, &f.Leg) || t.isOrphan(&e, now) {
			t.mark(e, f.Core.Word)
		}
	}
	if len(t.marked) == 0 {
		return 0
	}

	grace()
	n := 0
	for i := range t.marked {
		if t.free(&t.marked[i], freed) {
			n++
		}
	}
	return n
}

// holds reports whether there may be flows of each family. The counts change while they are read: if
// those of IPv6 did, both may. They are never below what a family holds (abi.h), so that a flow is
// overlooked only if it comes meanwhile, and then found by the next scan.
func (t *Table) holds() (four, six bool) {
	before, all := t.Flows6(), t.Flows()
	return all != before || t.Flows6() != before, before != 0
}

// streams is how many places of the table a scan reads in turn: the CPU fetches the lines of one while it
// waits for another's, and the scan, which is bound by memory, takes about half as long.
const streams = 4

// scan4 looks at the IPv4 groups that are due and marks the flows that have expired.
func (t *Table) scan4(now uint32) {
	s := &t.schedule
	groups, due, again := t.groups4, s.due4[:len(t.groups4)], s.revisit(len(t.groups4), now)
	part, never := max(len(groups)/streams, 1), now+horizon
	for first := range part {
		for g := first; g < len(groups); g += part {
			if int32(due[g]-now) > 0 {
				continue
			}
			next := again.of(g)
			for slot := range groups[g].Slot {
				f := &groups[g].Slot[slot]
				word := atomic.LoadUint64(&f.Core.Word)
				// Free slots go the same way: which they are cannot be predicted, and their lines come anyway.
				ticks := s.limit[classes[f.Key.Proto]%ClassLen][word&15]
				end := later(atomic.LoadUint32(&f.Leg[0].Seen), atomic.LoadUint32(&f.Leg[1].Seen)) + ticks
				if ticks == 0 {
					end = never
				}
				early := end
				if 1<<(word&15)&singular != 0 {
					end, early = t.singular(entry4(f, FlowID{}), ticks, never)
				}
				if int32(end-now) <= 0 {
					t.mark(entry4(f, FlowID{Group: uint32(g), Slot: uint8(slot)}), word)
				}
				if int32(early-next) < 0 {
					next = early
				}
			}
			due[g] = next
		}
	}
}

// scan6 is scan4 for IPv6.
func (t *Table) scan6(now uint32) {
	s := &t.schedule
	groups, due, again := t.groups6, s.due6[:len(t.groups6)], s.revisit(len(t.groups6), now)
	part, never := max(len(groups)/streams, 1), now+horizon
	for first := range part {
		for g := first; g < len(groups); g += part {
			if int32(due[g]-now) > 0 {
				continue
			}
			next := again.of(g)
			for slot := range groups[g].Slot {
				f := &groups[g].Slot[slot]
				word := atomic.LoadUint64(&f.Core.Word)
				// Free slots go the same way: which they are cannot be predicted, and their lines come anyway.
				ticks := s.limit[classes[f.Key.Proto]%ClassLen][word&15]
				end := later(atomic.LoadUint32(&f.Leg[0].Seen), atomic.LoadUint32(&f.Leg[1].Seen)) + ticks
				if ticks == 0 {
					end = never
				}
				early := end
				if 1<<(word&15)&singular != 0 {
					end, early = t.singular(entry6(f, FlowID{}), ticks, never)
				}
				if int32(end-now) <= 0 {
					t.mark(entry6(f, FlowID{Group: uint32(g), Slot: uint8(slot)}), word)
				}
				if int32(early-next) < 0 {
					next = early
				}
			}
			due[g] = next
		}
	}
}

// singular returns when a flow in its handshake, an alias or a mapping ends, and the tick before which it
// cannot end. Ticks is the time-out of its state, never what stands for none: the horizon behind the scan.
func (t *Table) singular(e entry, ticks, never uint32) (end, early uint32) {
	switch word := e.word(); {
	case isMapping(word):
		if ticks == 0 || t.overflow4 == nil && t.besideGroups(e.family()) > 0 {
			return never, never // flows that keep it alive may be where they are not seen
		}
		end = later(atomic.LoadUint32(&e.leg[0].Seen), atomic.LoadUint32(&e.leg[1].Seen)) + ticks
		return end, end
	case !isAlias(word):
		return t.schedule.handshake(ticks, never, e.core)
	case !t.orphan(&e):
		t.keepMapped(&e, never-horizon)
		return never, never
	}
	a := e.alias()
	return a.created + orphanTicks, a.created + orphanTicks
}

// mark sets the mark on a flow, or an alias, that did not change since its word was read.
func (t *Table) mark(e entry, word uint64) {
	m := mark{e: e, word: word | WordMarked}
	if !isAlias(word) {
		for i := range m.seen {
			m.seen[i] = atomic.LoadUint32(&e.leg[i].Seen)
		}
	}
	// A flow that still bears the mark of the scan before has lost the race with a hit's update of
	// seen then; it is a candidate like any other now.
	if word == m.word || atomic.CompareAndSwapUint64(&e.core.Word, word, m.word) {
		t.marked = append(t.marked, m)
	}
}

// free frees a marked flow that no packet has touched, else takes the mark off.
func (t *Table) free(m *mark, freed func(*Flow)) bool {
	if isAlias(m.word) {
		t.freeOrphan(m)
		return false
	}
	for i, seen := range m.seen {
		if atomic.LoadUint32(&m.e.leg[i].Seen) != seen {
			m.takeOff()
			return false
		}
	}
	f := viewOf(&m.e, m.word)
	var own mark
	if f.NAT != nil {
		t.Complete(&f)
		own = t.markAlias(&f)
	}
	next := (m.word>>WordGenerationBit + 1) << WordGenerationBit
	if !atomic.CompareAndSwapUint64(&m.e.core.Word, m.word, next) {
		own.takeOff()
		return false
	}
	if own.word != 0 {
		a := own.e.alias()
		t.keep(&a, &f.Tuple, &f.NAT.Outer, f.Seen)
		t.freeAliasAt(&own.e, own.word, &a)
	}
	t.counted(f.Tuple.Family, f.State, -1)
	if m.e.id.Overflow {
		t.leaveOverflow(&m.e)
	}
	freed(&f)
	return true
}
