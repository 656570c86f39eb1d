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
// so. A slot that has another flow by now stays as it is, and so does a flow that another policy has judged since:
// it may want more of the worker. XDP writes the epoch before it takes the mark off, so whoever finds the epoch
// unchanged after marking is not overlooked.
func (t *Tables) ready(h *bpf.XDPHandover) bool {
	if h.Cell == noCell {
		return false // of the overflow tables: it never moves up so
	}
	group, slot := int(h.Cell>>3), h.Cell>>1&3
	var core *bpf.XDPFlowCore
	switch {
	case group < t.Groups && group < len(t.Flows4):
		core = &t.Flows4[group].Slot[slot].Core
	case group >= t.Groups && group-t.Groups < len(t.Flows6):
		core = &t.Flows6[group-t.Groups].Slot[slot].Core
	default:
		return false
	}
	for {
		old := atomic.LoadUint64(&core.Word)
		if uint32(old>>wordGeneration) != h.Generation || old&wordState == 0 || old&wordReady != 0 ||
			atomic.LoadUint32(&core.Epoch) != h.Epoch {
			return false
		}
		if atomic.CompareAndSwapUint64(&core.Word, old, old|wordReady) {
			break
		}
	}
	epoch := atomic.LoadUint32(&core.Epoch)
	if epoch == h.Epoch {
		return true
	}
	for {
		old := atomic.LoadUint64(&core.Word)
		if uint32(old>>wordGeneration) != h.Generation || old&wordReady == 0 {
			return false
		}
		if atomic.CompareAndSwapUint64(&core.Word, old, old&^wordReady) {
			// Whose mark it was nobody knows: the other policy's may have wanted it. It is asked once more.
			atomic.StoreUint32(&core.Epoch, epoch-1)
			return false
		}
	}
}
