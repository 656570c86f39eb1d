package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// restart gives a worker whose thread has ended another one, with sockets opened anew: what the thread was about to
// do with the old ones nobody knows. The thread starts when it has them, lest packets take a way around them
// meanwhile, and others overtake these. c.mu is held.
func (c *Crew) restart(d death) {
	w := d.worker
	if c.memory == nil || c.closed || w.ended != nil && w.ended != d.ended {
		return // there is no need, or it was started again already
	}
	if !d.rested && c.rest(d) {
		return
	}
	if w.ended != nil {
		<-w.ended
		c.clean(w)
	}
	c.options.Log(fmt.Sprintf("worker %d has ended and is started again: %s", w.id, d.why))
	var gone []*seat
	for _, s := range c.seats {
		if s.worker == int(w.id) {
			gone = append(gone, s)
		}
	}
	left, err := c.vacate(gone, false)
	errs := []error{err}
	owed := c.owed(w)
	for _, s := range left {
		// The pool has no other user now. What the kernel had of the socket before comes back to it.
		again := c.newSeat(s.port, s.queue)
		again.share = s.share
		if err := c.openSocket(again, w.pool); err != nil {
			errs = append(errs, err, c.closeUnused([]*seat{again}), c.recover([]*seat{s}))
			continue
		}
		errs = append(errs, c.seat([]*seat{again}))
	}
	for to, n := range owed {
		for ; n > 0; n-- {
			// Any frame will do for the one that came.
			var one [1]xsk.Desc
			if w.pool.Alloc(one[:]) == 1 {
				w.frame(one[0]).place = frameHanded
				w.give[to].put(xsk.Desc{Addr: one[0].Addr})
			}
		}
		if w.give[to] != nil {
			w.give[to].publish()
		}
	}
	w.restarts.Add(1)
	c.launch(w)
	if err := errors.Join(errs...); err != nil {
		c.options.Log(fmt.Sprintf("worker %d is not wholly started again: %v", w.id, err))
	}
}

// How long a worker rests before it is started again that ended within earlyEnd of its last start: first shortRest,
// and each time twice as long.
const (
	earlyEnd  = time.Second
	shortRest = 100 * time.Millisecond
	longRest  = 5 * time.Second
)

// rest has XDP send nothing more to a worker that has ended, and reports whether that stays so for a while: the
// death comes again when it is over. c.mu is held.
func (c *Crew) rest(d death) bool {
	w := d.worker
	for _, s := range c.seats {
		if s.worker == int(w.id) {
			c.shut(s)
		}
	}
	if time.Since(w.launched) > earlyEnd {
		w.early = 0
		return false
	}
	rest := min(shortRest<<min(w.early, 10), longRest)
	w.early++
	d.rested = true
	time.AfterFunc(rest, func() {
		select {
		case c.died <- d:
		case <-c.stop:
		}
	})
	return true
}

// owed counts what a worker without sockets owes to each other one: frames that were to be sent by those it had. The
// packets in them are lost.
func (c *Crew) owed(w *worker) []int {
	owed := make([]int, len(c.workers))
	for i := range c.memory.frames {
		if !c.memory.sentBy(i, w.id) {
			continue
		}
		f := &c.memory.frames[i]
		if f.last {
			w.lateDown.Add(1)
		}
		if f.owner != w.id {
			owed[f.owner]++
		}
		f.place = frameFree
	}
	return owed
}
