package worker

import (
	"fmt"
	"time"
)

const (
	watchEvery = 100 * time.Millisecond
	retryEvery = time.Second
	// recountEvery is how often it is looked how many queues ports have.
	recountEvery = 5 * time.Second
	// stallAfter is for how long a ring may stand still.
	stallAfter = time.Second
)

// watch starts threads again that have ended, tries ports again, and looks whether rings move. It is a goroutine of
// the crew's own.
func (c *Crew) watch() {
	defer close(c.stopped)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case d := <-c.died:
			c.mu.Lock()
			c.restart(d)
			c.mu.Unlock()
		case <-tick.C:
			c.mu.Lock()
			c.look(time.Now())
			c.mu.Unlock()
		}
	}
}

// look is one look of the watchdog. c.mu is held.
func (c *Crew) look(now time.Time) {
	if c.closed {
		return
	}
	for _, s := range c.seats {
		c.lookAt(s, now)
	}
	if now.Sub(c.retried) >= retryEvery {
		c.retried = now
		if now.Sub(c.counted) >= recountEvery {
			c.counted = now
			c.recount()
		}
		if !c.settled() {
			_ = c.follow() // what is wrong was told by refuse, and is tried again
		}
	}
}

// The rings of a socket.
const (
	ringRx = iota
	ringTx
	ringFill
	ringCompletion
)

var ringNames = [...]string{ringRx: "rx", ringTx: "tx", ringFill: "fill", ringCompletion: "completion"}

// watched is what the watchdog knows of one ring.
type watched struct {
	moved uint32
	since time.Time // that it stands, and should not; zero: it does not
	stall *Stall
	down  uint64 // kicks that found the device down, at since
}

// lookAt looks at the rings of one seat.
func (c *Crew) lookAt(s *seat, now time.Time) {
	r := s.socket.Rings()
	var moved [4]uint32
	moved[ringRx], moved[ringTx], moved[ringFill], moved[ringCompletion] = s.socket.Moved()
	waiting := [4]int{r.Rx, r.Tx, r.Fill, r.Completion}
	should := [4]bool{
		ringRx:         r.Rx > 0,
		ringTx:         r.Tx > 0,
		ringFill:       r.Fill == 0,
		ringCompletion: r.Completion >= c.options.Ring,
	}
	for i := range s.rings {
		at := &s.rings[i]
		if !should[i] || moved[i] != at.moved {
			if at.stall != nil {
				c.options.Log(fmt.Sprintf("port %s queue %d: the %s ring moves again, after %s",
					s.port.Name, s.queue, ringNames[i], now.Sub(at.stall.Since).Round(100*time.Millisecond)))
			}
			*at = watched{moved: moved[i]}
			continue
		}
		down := s.published.load(qDown)
		if at.since.IsZero() {
			at.since, at.down = now, down
		}
		if now.Sub(at.since) < stallAfter {
			continue
		}
		stall := &Stall{Port: s.port.Name, Queue: s.queue, Ring: ringNames[i], Waiting: waiting[i], Since: at.since,
			Why: c.why(s, i, down > at.down)}
		if at.stall == nil {
			c.options.Log(fmt.Sprintf("port %s queue %d: the %s ring stands still with %d in it: %s",
				stall.Port, stall.Queue, stall.Ring, stall.Waiting, stall.Why))
		}
		at.stall = stall
	}
}

// why says what is known of why a ring stands still.
func (c *Crew) why(s *seat, ring int, down bool) string {
	w := c.workers[s.worker]
	silent := ""
	if w.silent() {
		silent = fmt.Sprintf("worker %d gives no sign of life: something holds it up, or takes CPU %d", w.id, w.cpu)
	}
	switch {
	case s.broken.Load():
		return fmt.Sprintf("device %s is gone", s.port.Device)
	case ring == ringTx && down:
		return fmt.Sprintf("device %s is down", s.port.Device)
	case silent != "":
		return silent
	case ring == ringTx:
		return fmt.Sprintf("the kernel sends nothing by device %s", s.port.Device)
	case ring == ringFill:
		return fmt.Sprintf("worker %d has no free frame to receive into", w.id)
	}
	return fmt.Sprintf("worker %d takes nothing out of it", w.id)
}

func (w *worker) silentAt(tick uint32) bool { return int32(tick-w.beat.Load()) >= w.crew.silent.Load() }

// silent reports whether a worker has given no sign of life for as long as XDP would wait.
func (w *worker) silent() bool {
	return w.silentAt(nowTick())
}
