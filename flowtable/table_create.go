package flowtable

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// opening is what a new flow starts with. Its legs' seen is now for both directions, so that idle
// times never compare with a tick of long ago.
type opening struct {
	state    bpf.XDPFlowState
	flags    uint64 // of the flow word
	epoch    uint32
	rule     uint32
	now      uint32 // tick
	from, to uint8
	context  uint16
	leg      [2]bpf.XDPLeg // lo, hi
	outer    *Tuple        // of a translated flow, in its opener's direction, whose alias is there; else nil
}

// ended is what a flow that gave its slot away leaves to its rule. The zero value is no flow.
type ended struct {
	rule           uint32
	packets, bytes uint64
	replies        bpf.XDPFlowCount // of them those that the opener did not send
}

func endedOf(e *entry) ended {
	return ended{
		rule:    e.core.Rule & verdictRuleMask,
		packets: e.count[0].Packets + e.count[1].Packets,
		bytes:   e.count[0].Bytes + e.count[1].Bytes,
		replies: e.count[e.opener()^1],
	}
}

// create finds a place for a new flow (docs/PACKET-PATH.md section 11) and fills it. Ok is false
// if the table has none; left tells of a flow that was evicted for it and has no packets otherwise.
func (t *Table) create(k *flowKey, o *opening) (e entry, left ended, ok bool) {
	c := t.candidates(k)
	full := t.Flows() >= t.cfg.FlowsMax || halfOpen(o.state) && t.HalfOpen() >= t.cfg.HalfOpenMax
	group, free := t.emptier(k.family, &c)

	if free > 0 && !full {
		e = t.freeSlot(k.family, &c, group)
		t.fill(&e, k, o)
		t.counted(k.family, o.state, 1)
		t.Counters.Created++
		return e, ended{}, true
	}
	if t.evict(k.family, &c, &e, &left) {
		t.fill(&e, k, o)
		if halfOpen(o.state) {
			atomic.AddInt64(&t.state.HalfOpen, 1)
		}
		t.Counters.Created++
		return e, left, true
	}
	if free == 0 && !full && o.state != bpf.XDPFlowStateFLOW_MAPPING && t.overflow(k, &e) {
		t.fill(&e, k, o)
		t.counted(k.family, o.state, 1)
		t.Counters.Created++
		t.Counters.Overflowed++
		return e, ended{}, true
	}
	t.Counters.Refused++
	return entry{}, ended{}, false
}

// freeSlot returns the free slot that a creation takes in one of a key's groups, which has one.
func (t *Table) freeSlot(family uint8, c *candidates, group int) (e entry) {
	for i := range uint32(GroupSlots) {
		e = t.at(family, c.group[group], uint8(c.first^i))
		if isFree(e.word()) {
			break
		}
	}
	return e
}

// evict has the oldest half-open flow among the candidates give way: e becomes its entry, which the caller
// fills, and left what it had counted. Its alias goes with it. It reports false if there is none.
func (t *Table) evict(family uint8, c *candidates, e *entry, left *ended) bool {
	oldest, ok := t.oldestHalfOpen(family, c)
	if !ok {
		return false
	}
	*e, *left = oldest, endedOf(&oldest)
	t.dropAlias(e)
	atomic.AddInt64(&t.state.HalfOpen, -1)
	t.Counters.Evicted++
	return true
}

// replace gives the entry to a new flow, in place. The old flow's counts are the caller's to credit.
func (t *Table) replace(e *entry, k *flowKey, o *opening) {
	if halfOpen(stateOf(e.word())) {
		atomic.AddInt64(&t.state.HalfOpen, -1)
	}
	if halfOpen(o.state) {
		atomic.AddInt64(&t.state.HalfOpen, 1)
	}
	t.fill(e, k, o)
}

// reopen gives a flow that is over, e, to its own connection that begins anew. One in the overflow leaves
// it first, and the new one takes whatever place create finds; without one, ok is false and the old flow
// is gone all the same. Left are the counts of the flows that ended; e becomes the new one.
func (t *Table) reopen(e *entry, k *flowKey, o *opening) (left [2]ended, ok bool) {
	left[0] = endedOf(e)
	if outer, ok := e.outer(); ok && (o.outer == nil || *o.outer != outer) {
		t.dropAlias(e)
	}
	if !e.id.Overflow {
		t.replace(e, k, o)
		t.Counters.Reopened++
		return left, true
	}
	t.leaveOverflow(e)
	t.counted(k.family, stateOf(e.word()), -1)
	if *e, left[1], ok = t.create(k, o); ok {
		t.Counters.Created--
		t.Counters.Reopened++
	} else {
		t.Counters.Evicted++
	}
	return left, ok
}

// fill writes a flow into an entry. Readers see the slot free, then whole.
func (t *Table) fill(e *entry, k *flowKey, o *opening) {
	generation := (e.word() >> WordGenerationBit) + 1
	atomic.StoreUint64(&e.core.Word, WordBusy|generation<<WordGenerationBit)

	*e.count = [2]bpf.XDPFlowCount{}
	*e.leg = o.leg
	e.leg[0].Seen, e.leg[1].Seen = o.now, o.now
	if e.flow4 != nil {
		e.flow4.Key, e.flow4.Xlat = k.v4, [2]uint32{}
	} else {
		e.flow6.Key, e.flow6.Xlat = k.v6, [2][4]uint32{}
	}
	e.core.Epoch, e.core.Rule, e.core.Created = o.epoch, o.rule, o.now
	e.core.From, e.core.To, e.core.Context = o.from, o.to, o.context
	if o.outer != nil {
		e.translate(o.outer, openerOf(o.flags))
	}
	atomic.StoreUint64(&e.core.Word, uint64(o.state)|o.flags|generation<<WordGenerationBit)
}

// counted corrects the counts of flows by n flows in a state, in the order that abi.h asks of flows6.
func (t *Table) counted(family uint8, s bpf.XDPFlowState, n int64) {
	if family == 6 && n < 0 {
		atomic.AddInt64(&t.state.Flows6, n)
	}
	atomic.AddInt64(&t.state.Flows, n)
	if family == 6 && n > 0 {
		atomic.AddInt64(&t.state.Flows6, n)
	}
	if halfOpen(s) {
		atomic.AddInt64(&t.state.HalfOpen, n)
	}
}

// emptier returns which of the two groups has more free slots, the first when equal, and how many.
func (t *Table) emptier(family uint8, c *candidates) (group, free int) {
	var n [2]int
	for i, g := range c.group {
		for s := range uint8(GroupSlots) {
			if e := t.at(family, g, s); isFree(e.word()) {
				n[i]++
			}
		}
	}
	if n[1] > n[0] {
		return 1, n[1]
	}
	return 0, n[0]
}

// oldestHalfOpen returns the half-open flow created first among the candidates.
func (t *Table) oldestHalfOpen(family uint8, c *candidates) (oldest entry, ok bool) {
	for _, g := range c.group {
		for i := range uint32(GroupSlots) {
			e := t.at(family, g, uint8(c.first^i))
			if halfOpen(stateOf(e.word())) && (!ok || int32(e.core.Created-oldest.core.Created) < 0) {
				oldest, ok = e, true
			}
		}
	}
	return oldest, ok
}

// overflow makes an empty entry for the key beside the groups. It reports whether there was room.
func (t *Table) overflow(k *flowKey, e *entry) bool {
	if k.family == 4 {
		if t.overflow4 == nil || t.state.Overflow4 >= t.cfg.OverflowMax {
			return false
		}
		f := new(bpf.XDPFlow4)
		t.overflow4[k.v4] = f
		t.state.Overflow4++
		*e = entry4(f, FlowID{Overflow: true})
		return true
	}
	if t.overflow6 == nil || t.state.Overflow6 >= t.cfg.OverflowMax {
		return false
	}
	f := new(bpf.XDPFlow6)
	t.overflow6[k.v6] = f
	t.state.Overflow6++
	*e = entry6(f, FlowID{Overflow: true})
	return true
}

// leaveOverflow takes an entry out of the overflow.
func (t *Table) leaveOverflow(e *entry) {
	if e.flow4 != nil {
		delete(t.overflow4, e.flow4.Key)
		t.state.Overflow4--
	} else {
		delete(t.overflow6, e.flow6.Key)
		t.state.Overflow6--
	}
}

// moved corrects the count of half-open flows after a change of state.
func (t *Table) moved(before, after bpf.XDPFlowState) {
	if halfOpen(before) && !halfOpen(after) {
		atomic.AddInt64(&t.state.HalfOpen, -1)
	}
}
