package flowtable

import (
	"sync/atomic"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
)

// Rezone gives a flow other zones, its opener's and its other end's. It reports whether it did: f must be as
// the flow is now, and not one beside the groups.
//
// It runs against packets under way. The zones stand in one word with the tick of the flow's creation, so
// that a slot which gets another flow meanwhile is left alone.
func (t *Table) Rezone(f *Flow, from, to uint8) bool {
	if f.ID.Overflow {
		return false
	}
	e := t.at(f.ID.Family, f.ID.Group, f.ID.Slot)
	if word := e.word(); !isFlow(word) || uint32(word>>WordGenerationBit) != f.ID.Generation {
		return false
	}
	was := zoneWord(f, f.From, f.To)
	return atomic.CompareAndSwapUint64((*uint64)(unsafe.Pointer(&e.core.Created)), was, zoneWord(f, from, to))
}

// zoneWord is the word of a flow's core that holds its zones.
func zoneWord(f *Flow, from, to uint8) uint64 {
	core := bpf.XDPFlowCore{Created: f.Created, From: from, To: to, Context: f.Context}
	return *(*uint64)(unsafe.Pointer(&core.Created))
}
