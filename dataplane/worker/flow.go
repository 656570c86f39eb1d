package worker

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// Bits of a flow's word, as abi.h has them.
const (
	wordState      = 0xff
	wordReady      = 1 << 14
	wordGeneration = 32
)

// ready marks the flow of a packet as one that needs no worker any more, and reports whether it was this call that did
// so. A slot that has another flow by now stays as it is.
func (t *Tables) ready(h *bpf.XDPHandover) bool {
	if h.Cell == noCell {
		return false // of the overflow tables: it never moves up
	}
	group, slot := int(h.Cell>>3), h.Cell>>1&3
	var word *uint64
	switch {
	case group < t.Groups && group < len(t.Flows4):
		word = &t.Flows4[group].Slot[slot].Core.Word
	case group >= t.Groups && group-t.Groups < len(t.Flows6):
		word = &t.Flows6[group-t.Groups].Slot[slot].Core.Word
	default:
		return false
	}
	for {
		old := atomic.LoadUint64(word)
		if uint32(old>>wordGeneration) != h.Generation || old&wordState == 0 || old&wordReady != 0 {
			return false
		}
		if atomic.CompareAndSwapUint64(word, old, old|wordReady) {
			return true
		}
	}
}
