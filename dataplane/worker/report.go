package worker

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// Status returns how the workers run.
func (c *Crew) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Mode: c.modeName(), Attempts: append([]Attempt{}, c.attempts...), Stalls: []Stall{}}
	if c.memory != nil {
		census := c.memory.umem.Census()
		size, why := c.memory.umem.Pages()
		s.Memory = MemoryStatus{Frames: census.Total, FrameSize: c.memory.size, PageSize: size, Free: census.Spare + census.Free}
		if why != nil {
			s.Memory.WhySmall = why.Error()
		}
	}
	if c.memory != nil {
		for _, id := range slices.Sorted(maps.Keys(c.refused)) {
			r := c.refused[id]
			if a := (Attempt{r.port, c.memory.mode.String(), r.why.Error()}); !slices.Contains(s.Attempts, a) {
				s.Attempts = append(s.Attempts, a)
			}
		}
	}
	for _, w := range c.workers {
		s.Workers = append(s.Workers, c.workerStatus(w))
	}
	for _, seat := range c.seats {
		at := &s.Workers[seat.worker]
		q := c.queueStatus(seat)
		at.Queues = append(at.Queues, q)
		at.Syscalls += q.Kicks
		for i := range seat.rings {
			if stall := seat.rings[i].stall; stall != nil {
				s.Stalls = append(s.Stalls, *stall)
			}
		}
	}
	return s
}

// modeName is that of all sockets; where they differ, by their ports' programs, the one that costs most.
func (c *Crew) modeName() string {
	mode := xsk.Any
	for _, s := range c.seats {
		mode = max(mode, s.socket.Mode())
	}
	if mode == xsk.Any {
		return ""
	}
	return mode.String()
}

func (c *Crew) workerStatus(w *worker) WorkerStatus {
	at := w.published.load
	s := WorkerStatus{ID: int(w.id), CPU: w.cpu, NUMA: w.node, Packets: at(cPackets), Bytes: at(cBytes), Sent: at(cSent),
		HandedOver: at(cHandedOver), TakenOver: at(cTakenOver), Mirrored: at(cMirrored), MirrorLost: at(cMirrorLost),
		MovedUp: at(cMovedUp), Rounds: at(cRounds), IdleRounds: at(cIdleRounds), Wakeups: at(cWakeups),
		Syscalls: at(cSyscalls), Restarts: w.restarts.Load(), Drops: make(map[string]uint64), Queues: []QueueStatus{}}
	for i := range s.Batches {
		s.Batches[i] = at(cBatches + i)
	}
	for i, reason := range dropReasons {
		n := at(i)
		switch i {
		case dropWorkerAbsent:
			n += w.lateAbsent.Load()
		case dropEgressDown:
			n += w.lateDown.Load()
		}
		if n > 0 {
			s.Drops[reason.String()] = n
		}
	}
	switch state := w.state.Load(); {
	case state == restarting:
		s.State = "restarting"
	case w.silent():
		s.State = "silent"
	case state == sleeping:
		s.State = "sleeping"
	default:
		s.State = "polling"
	}
	return s
}

func (c *Crew) queueStatus(s *seat) QueueStatus {
	r, ring := s.socket.Rings(), c.options.Ring
	// In this order, lest more be taken than was sent.
	taken, lost := atomic.LoadUint32(&s.record.Taken), atomic.LoadUint32(&s.record.Lost)
	sent := atomic.LoadUint32(&s.record.Sent)
	q := QueueStatus{Port: s.port.Name, Queue: s.queue,
		Rx: RingStatus{ring, r.Rx}, Tx: RingStatus{ring, r.Tx}, Fill: RingStatus{ring, r.Fill}, Completion: RingStatus{ring, r.Completion},
		Sent: sent, Taken: taken, Lost: lost}
	var h history
	if earlier := c.earlier[keyOf(s)]; earlier != nil {
		h = *earlier
	}
	h.counts.load(s.published)
	if k, err := s.socket.Stats(); err == nil {
		h.kernel = addStats(h.kernel, k)
	}
	q.RxPackets, q.TxPackets, q.TxDone, q.TxNoRoom = h.counts[qRxPackets], h.counts[qTxPackets], h.counts[qTxDone], h.counts[qNoRoom]
	q.Kicks, q.KickAgain, q.KickBusy = h.counts[qKicks], h.counts[qAgain], h.counts[qBusy]
	q.KickDown, q.KickNoMem = h.counts[qDown], h.counts[qNoMemory]
	q.RxDropped, q.RxInvalid, q.TxInvalid = h.kernel.RxDropped, h.kernel.RxInvalid, h.kernel.TxInvalid
	q.RxRingFull, q.FillEmpty, q.TxRingEmpty = h.kernel.RxRingFull, h.kernel.FillEmpty, h.kernel.TxRingEmpty
	return q
}
