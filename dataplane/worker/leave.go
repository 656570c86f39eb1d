package worker

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// earlierKey and history are what earlier sockets of a queue have counted.
type earlierKey struct {
	port, queue, index int
}

func keyOf(s *seat) earlierKey { return earlierKey{int(s.port.ID), s.queue, s.port.Index} }

type history struct {
	counts seatCounts
	kernel xsk.Stats
}

// How long a socket that closes is waited for.
const (
	// underWay is how long a packet may take from XDP to its socket's ring: the kernel delivers at the end of a
	// poll of the device.
	underWay = 5 * time.Millisecond
	// drainLimit is how long packets of a port that goes may take to leave. Its worker does nothing else meanwhile.
	drainLimit = 20 * time.Millisecond
	// letGo is how long the kernel may take to let go of a queue: some 20 ms where the device still is.
	letGo = 2 * time.Second
)

// shut has XDP send nothing more to a seat.
func (c *Crew) shut(s *seat) {
	atomic.StoreUint32(&s.record.Size, 0)
	if err := c.options.Tables.Sockets.Delete(c.number(s)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		c.logOnce(fmt.Sprintf("port %s queue %d: the socket is not taken from XDP: %v", s.port.Name, s.queue, err))
	}
}

// remove takes seats from their workers, closes their sockets and takes back their frames. c.mu is held.
func (c *Crew) remove(seats []*seat) error {
	if len(seats) == 0 {
		return nil
	}
	left, err := c.vacate(seats, true)
	return errors.Join(err, c.recover(left))
}

// vacate takes seats from their workers, drained if that is asked for, and closes their sockets. It returns those
// of which this is done.
func (c *Crew) vacate(seats []*seat, drain bool) (left []*seat, err error) {
	for _, s := range seats {
		c.shut(s)
	}
	if drain {
		time.Sleep(underWay)
	}
	var errs []error
	for _, s := range seats {
		w := c.workers[s.worker]
		err := c.ask(w, func() {
			if drain {
				w.drain(s)
			}
			w.detach(s)
		})
		if err != nil {
			s.leaving = true
			errs = append(errs, fmt.Errorf("port %s: %w", s.port.Name, err))
			continue
		}
		left = append(left, s)
		c.seats = slices.DeleteFunc(c.seats, func(o *seat) bool { return o == s })
	}
	errs = append(errs, c.routes())
	for _, s := range left {
		errs = append(errs, c.close(s))
	}
	return left, errors.Join(errs...)
}

// drain gives packets that are with one socket a short time to leave. It is the worker's.
func (w *worker) drain(s *seat) {
	for end := time.Now().Add(drainLimit); time.Now().Before(end); {
		w.round()
		k := s.socket.Counters()
		if s.broken.Load() || s.socket.Rings().Rx == 0 && k.TxFrames == k.TxCompleted {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// detach forgets a seat. It is the worker's.
func (w *worker) detach(s *seat) {
	w.flushAll()
	if e := w.egress[s.port.ID]; e != nil && e.seat == s {
		w.egress[s.port.ID] = nil
	}
	w.seats = slices.DeleteFunc(w.seats, func(o *seat) bool { return o == s })
	w.poller.Remove(s.socket)
	s.publish()
}

// close closes the socket of a seat that no worker has any more. What waited in its rx ring is counted.
func (c *Crew) close(s *seat) error {
	w := c.workers[s.worker]
	key := keyOf(s)
	h := c.earlier[key]
	if h == nil {
		h = &history{}
		c.earlier[key] = h
	}
	h.counts.load(s.published)
	if k, err := s.socket.Stats(); err == nil {
		h.kernel = addStats(h.kernel, k)
	}
	w.lateAbsent.Add(uint64(s.socket.Rings().Rx))
	err := s.socket.Close()
	all := atomic.LoadUint32(&s.record.Sent) - atomic.LoadUint32(&s.record.Lost)
	atomic.StoreUint32(&s.record.Taken, all)
	return err
}

// recover waits until the kernel has let go of the frames of closed sockets, gives those of other workers back to
// them, and what came with the seats back to the memory. Without seats they are those of sockets that no worker had.
func (c *Crew) recover(seats []*seat) error {
	u := c.memory.umem
	pool, err := u.NewPool(0)
	if err != nil {
		return err
	}
	defer pool.Close()
	for end := time.Now().Add(letGo); ; time.Sleep(2 * time.Millisecond) {
		err := c.options.In(func() error { _, err := u.Recover(pool); return err })
		if err != nil {
			return err
		}
		if u.Census().Closed == 0 {
			break
		}
		if time.Now().After(end) {
			c.logOnce("the kernel holds frames of a socket that is closed: they are taken back when it lets go")
			break
		}
	}
	// Those of others go back to them. What comes back of a packet that was to be sent is a packet lost.
	descs := make([]xsk.Desc, pool.Len())
	pool.Alloc(descs)
	others := make([][]xsk.Desc, len(c.workers))
	kept := descs[:0]
	for _, d := range descs {
		f := &c.memory.frames[c.memory.index(d)]
		if f.place == frameSent {
			if f.last {
				c.workers[f.by].lateDown.Add(1)
			}
			if f.by != f.owner {
				others[f.owner] = append(others[f.owner], d)
				continue
			}
		}
		f.place = frameFree
		kept = append(kept, d)
	}
	pool.Free(kept)
	var errs []error
	shares, all := make([]int, len(c.workers)), 0
	for _, s := range seats {
		shares[s.worker] += s.share
		all += s.share
	}
	for i, w := range c.workers {
		back, more := others[i], 0
		if all > len(kept) {
			more = shares[i] * (all - len(kept)) / all
		}
		if len(back) == 0 && more == 0 {
			continue
		}
		errs = append(errs, c.ask(w, func() {
			for _, d := range back {
				w.frame(d).place = frameFree
			}
			w.pool.Free(back)
			w.away -= len(back)
			w.pool.Give(pool, more)
		}))
	}
	return errors.Join(errs...)
}

func addStats(a, b xsk.Stats) xsk.Stats {
	return xsk.Stats{RxDropped: a.RxDropped + b.RxDropped, RxInvalid: a.RxInvalid + b.RxInvalid, TxInvalid: a.TxInvalid + b.TxInvalid,
		RxRingFull: a.RxRingFull + b.RxRingFull, FillEmpty: a.FillEmpty + b.FillEmpty, TxRingEmpty: a.TxRingEmpty + b.TxRingEmpty}
}
