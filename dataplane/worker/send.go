package worker

import "github.com/softdpu/softdpu/dataplane/xsk"

// An egress is a port as one worker sends to it: by a socket of its own, or through another worker.
type egress struct {
	port   uint8
	seat   *seat // nil: the port has no queue here
	via    int   // then: the worker that sends
	n      int
	queued bool // in worker.dirty
	descs  [batchSize]xsk.Desc
}

// send puts a packet, which the worker has, on its way to a port.
func (w *worker) send(port uint8, descs []xsk.Desc) {
	e := w.egress[port]
	if e == nil {
		w.drop(descs, dropEgressDown)
		return
	}
	if e.seat == nil {
		if !w.handOver(e.via, descs, toSend) {
			w.drop(descs, dropWorkerFull)
		}
		return
	}
	if e.n+len(descs) > batchSize {
		w.flush(e)
	}
	e.n += copy(e.descs[e.n:], descs)
	if !e.queued {
		e.queued = true
		w.dirty = append(w.dirty, e)
	}
}

// flushAll gives the kernel all that waits to be sent, and other workers what is theirs.
func (w *worker) flushAll() {
	for _, e := range w.dirty {
		w.flush(e)
		e.queued = false
	}
	w.dirty = w.dirty[:0]
	w.publishExchanges()
}

// flush gives the kernel what waits for one port. What it does not take is dropped: to wait for room would let
// one port hold up the others.
func (w *worker) flush(e *egress) {
	descs := e.descs[:e.n]
	e.n = 0
	if len(descs) == 0 {
		return
	}
	s := e.seat
	if s.broken.Load() || w.crew.live[e.port].Load() != uint32(s.port.Index) {
		w.dropAll(descs, dropEgressDown)
		return
	}
	if w.memory.multi {
		descs = w.dropLong(s, descs)
	}
	for i := range descs {
		f := w.frame(descs[i])
		f.place, f.by = frameSent, w.id
	}
	n := s.socket.Transmit(descs)
	for i := range descs[:n] {
		if !descs[i].More() {
			w.count[cSent]++
			if w.frame(descs[i]).copied {
				w.count[cMirrored]++
			}
		}
	}
	if n < len(descs) {
		for i := range descs[n:] {
			w.frame(descs[n+i]).place = w.id + 1
		}
		s.noRoom += uint64(w.dropAll(descs[n:], dropEgressFull))
	}
}

// dropLong drops packets that the kernel would lose because they have too many parts, and returns the others.
func (w *worker) dropLong(s *seat, descs []xsk.Desc) []xsk.Desc {
	most, kept := s.socket.MaxSegments(), 0
	for first := 0; first < len(descs); {
		next := end(descs, first)
		if next-first > most {
			w.drop(descs[first:next], dropEgressFull)
		} else {
			kept += copy(descs[kept:], descs[first:next])
		}
		first = next
	}
	return descs[:kept]
}

// dropAll drops packets under one reason, and returns how many.
func (w *worker) dropAll(descs []xsk.Desc, why int) (packets int) {
	for first := 0; first < len(descs); packets++ {
		next := end(descs, first)
		w.drop(descs[first:next], why)
		first = next
	}
	return packets
}

// drop drops a packet that the worker has. Its number is not published: the next packet of its leg overtakes it.
func (w *worker) drop(descs []xsk.Desc, why int) {
	if w.frame(descs[len(descs)-1]).copied {
		w.count[cMirrorLost]++
	} else {
		w.count[why]++
	}
	for i := range descs {
		w.release(descs[i])
	}
}

// release gives one frame, which the worker has, back to its owner.
func (w *worker) release(d xsk.Desc) {
	f := w.frame(d)
	if f.owner != w.id {
		f.place = frameHanded
		w.give[f.owner].put(xsk.Desc{Addr: d.Addr}) // it has room for all that its owner ever has away
		w.giveDirty |= 1 << f.owner
		return
	}
	w.free = append(w.free, d)
	if len(w.free) == cap(w.free) {
		w.freeAll()
	}
}

// freeAll gives the pool what waits for it.
func (w *worker) freeAll() {
	for i := range w.free {
		w.frame(w.free[i]).place = frameFree
	}
	w.pool.Free(w.free)
	w.free = w.free[:0]
}

// reclaim takes back frames that have been sent, and publishes of which legs packets have left.
func (w *worker) reclaim(s *seat) {
	for {
		n := s.socket.ReclaimTo(w.sent[:])
		for i := range w.sent[:n] {
			w.frame(w.sent[i]).place = w.id + 1
		}
		for i := range w.sent[:n] {
			d := w.sent[i]
			f := w.frame(d)
			if f.cell != noCell {
				w.progress.done(f.cell, f.number)
			}
			w.release(d)
		}
		if n < len(w.sent) {
			break
		}
	}
}

// takeBack takes frames that other workers have done with.
func (w *worker) takeBack() {
	for _, x := range w.back {
		if x == nil {
			continue
		}
		for {
			n := x.take(w.sent[:])
			for i := range w.sent[:n] {
				w.frame(w.sent[i]).place = frameFree
			}
			w.pool.Free(w.sent[:n])
			w.away -= n
			if n < len(w.sent) {
				break
			}
		}
	}
}

// publishExchanges lets other workers have what was put for them. Who waits for packets is woken; frames that go
// back can wait.
func (w *worker) publishExchanges() {
	for to := 0; w.outDirty != 0; to++ {
		if w.outDirty&(1<<to) == 0 {
			continue
		}
		w.outDirty &^= 1 << to
		w.out[to].publish()
		if w.bells[to].ring() {
			w.count[cSyscalls]++
		}
	}
	for to := 0; w.giveDirty != 0; to++ {
		if w.giveDirty&(1<<to) != 0 {
			w.giveDirty &^= 1 << to
			w.give[to].publish()
		}
	}
}
