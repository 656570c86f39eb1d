package worker

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// works is what stages are told of rules, by rule id. It is never changed: another takes its place.
type works map[uint32]Work

// mirrorReserve is how many frames a mirror leaves in the pool at most: packets that arrive go before copies.
const mirrorReserve = 2 * batchSize

// mirror is the stage that copies packets to a monitor port. A flow that has had as many copies as its rule asks
// for, and needs no other stage, is marked ready: XDP takes it over.
func (w *worker) mirror(b *batch) {
	var rules works
	for i := range b.packets[:b.count] {
		p := &b.packets[i]
		if p.h.Stages&stageMirror == 0 {
			continue
		}
		if p.h.Copy != 0 { // of a pipeline, which says itself where copies go
			w.copyTo(p.h.Copy, b.of(p))
			continue
		}
		if rules == nil {
			if rules = *w.crew.works.Load(); rules == nil {
				rules = works{}
			}
		}
		work, ok := rules[p.h.Rule&ruleMask]
		if !ok || work.MirrorPort == 0 {
			continue // of a policy that is not in force any more: XDP judges the flow again
		}
		if limit := work.MirrorPackets; limit == 0 || p.h.Nth <= limit {
			w.copyTo(work.MirrorPort, b.of(p))
		}
		if limit := work.MirrorPackets; limit > 0 && p.h.Nth >= limit && p.h.Stages == stageMirror &&
			w.crew.options.Tables.ready(&p.h) {
			w.count[cMovedUp]++
		}
	}
}

// copyTo sends a copy of a packet by a port. A copy for which there is no frame, no room or no port is counted as lost.
func (w *worker) copyTo(port uint8, descs []xsk.Desc) {
	u := w.memory.umem
	need := len(descs)
	if len(w.seats) > 0 {
		need += min(mirrorReserve, w.crew.options.Ring/2)
	}
	if w.pool.Len() < need && len(w.free) > 0 {
		w.freeAll()
	}
	if w.pool.Len() < need {
		w.count[cMirrorLost]++
		return
	}
	fresh := w.fresh[:len(descs)]
	w.pool.Alloc(fresh)
	for i := range fresh {
		d := &fresh[i]
		*w.frame(*d) = frame{cell: noCell, owner: w.id, place: w.id + 1, last: !descs[i].More(), copied: true}
		d.Len, d.Options = descs[i].Len, descs[i].Options&xsk.Continues
		copy(u.Frame(*d), u.Frame(descs[i]))
	}
	// Should another worker send it, that is where he looks for the port.
	*handoverAt(u.Before(fresh[0], handoverLen)) = bpf.XDPHandover{Cell: noCell, Port: port}
	w.send(port, fresh)
}
