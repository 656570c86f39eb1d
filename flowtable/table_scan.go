package flowtable

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// mark is a flow that a scan means to free.
type mark struct {
	e    entry
	word uint64    // as marked
	seen [2]uint32 // as found
}

// Scan frees the flows that were idle for their state's time-out, and those whose handshake took
// longer than that, and calls freed with a last copy of each; its counts are the caller's to credit
// to its rule. It returns their number.
//
// It runs against packets under way: idle flows are marked; grace returns when every packet that
// could have read its flow unmarked is done (on a mapped table an RCU grace period, which
// membarrier(MEMBARRIER_CMD_GLOBAL) waits for); then those are freed that still bear the mark and
// saw no packet, because a hit takes the mark off. Grace is not called if nothing was marked. One
// Scan at a time.
func (t *Table) Scan(now uint32, timeouts *Timeouts, grace func(), freed func(*Flow)) int {
	t.marked = t.marked[:0]
	walk(len(t.groups4), func(g int) {
		group := &t.groups4[g]
		for s := range group.Slot {
			f := &group.Slot[s]
			if word := atomic.LoadUint64(&f.Core.Word); word&WordStateMask != 0 && expired(&f.Core, &f.Leg, word, now, timeouts) {
				t.mark(entry4(f, FlowID{Group: uint32(g), Slot: uint8(s)}), word)
			}
		}
	})
	walk(len(t.groups6), func(g int) {
		group := &t.groups6[g]
		for s := range group.Slot {
			f := &group.Slot[s]
			if word := atomic.LoadUint64(&f.Core.Word); word&WordStateMask != 0 && expired(&f.Core, &f.Leg, word, now, timeouts) {
				t.mark(entry6(f, FlowID{Group: uint32(g), Slot: uint8(s)}), word)
			}
		}
	})
	for _, f := range t.overflow4 {
		if expired(&f.Core, &f.Leg, f.Core.Word, now, timeouts) {
			t.mark(entry4(f, FlowID{Overflow: true}), f.Core.Word)
		}
	}
	for _, f := range t.overflow6 {
		if expired(&f.Core, &f.Leg, f.Core.Word, now, timeouts) {
			t.mark(entry6(f, FlowID{Overflow: true}), f.Core.Word)
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

// streams is how many places of the table a scan reads in turn.
const streams = 4

// walk visits n groups, a power of two, in several streams at once: the CPU fetches the lines of one
// while it waits for another's, and the scan, which is bound by memory, takes about half as long.
func walk(n int, visit func(g int)) {
	part := max(n/streams, 1)
	for g := range part {
		for at := g; at < n; at += part {
			visit(at)
		}
	}
}

// expired reads the word and the two seen of a flow, and created of a half-open TCP connection.
func expired(core *bpf.XDPFlowCore, leg *[2]bpf.XDPLeg, word uint64, now uint32, timeouts *Timeouts) bool {
	s := stateOf(word)
	if s >= bpf.XDPFlowStateFLOW_STATE_LEN || timeouts[s] == 0 {
		return false
	}
	// A handshake that segments keep alive without completing it ends all the same.
	if (s == bpf.XDPFlowStateFLOW_SYN_SENT || s == bpf.XDPFlowStateFLOW_SYN_RECEIVED) &&
		age(now, core.Created) >= timeouts[s] {
		return true
	}
	idle := age(now, atomic.LoadUint32(&leg[0].Seen))
	return idle >= timeouts[s] && age(now, atomic.LoadUint32(&leg[1].Seen)) >= timeouts[s]
}

// mark sets the mark on a flow that did not change since its word was read.
func (t *Table) mark(e entry, word uint64) {
	m := mark{e: e, word: word | WordMarked}
	for i := range m.seen {
		m.seen[i] = atomic.LoadUint32(&e.leg[i].Seen)
	}
	// A flow that still bears the mark of the scan before has lost the race with a hit's update of
	// seen then; it is a candidate like any other now.
	if word == m.word || atomic.CompareAndSwapUint64(&e.core.Word, word, m.word) {
		t.marked = append(t.marked, m)
	}
}

// free frees a marked flow that no packet has touched, else takes the mark off.
func (t *Table) free(m *mark, freed func(*Flow)) bool {
	for i, seen := range m.seen {
		if atomic.LoadUint32(&m.e.leg[i].Seen) != seen {
			atomic.CompareAndSwapUint64(&m.e.core.Word, m.word, m.word&^WordMarked)
			return false
		}
	}
	f := viewOf(&m.e, m.word)
	next := (m.word>>WordGenerationBit + 1) << WordGenerationBit
	if !atomic.CompareAndSwapUint64(&m.e.core.Word, m.word, next) {
		return false
	}
	t.counted(f.State, -1)
	if m.e.id.Overflow {
		if m.e.flow4 != nil {
			delete(t.overflow4, m.e.flow4.Key)
			t.state.Overflow4--
		} else {
			delete(t.overflow6, m.e.flow6.Key)
			t.state.Overflow6--
		}
	}
	freed(&f)
	return true
}
