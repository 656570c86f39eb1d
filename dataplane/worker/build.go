package worker

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// absent is the error of a port that cannot have sockets now, whatever their mode.
type absent struct{ error }

func (a absent) Unwrap() error { return a.error }

// isRefusal reports whether a port cannot have sockets of this mode.
func isRefusal(err error) bool {
	var a absent
	if errors.As(err, &a) {
		return false
	}
	for _, passing := range []error{unix.ENODEV, unix.ENETDOWN, unix.EBUSY, unix.ENXIO} {
		if errors.Is(err, passing) {
			return false
		}
	}
	return true
}

// build takes packet memory, opens sockets on all wanted ports in the best mode that all of them have, and starts
// the threads. c.mu is held, and c.memory is nil.
func (c *Crew) build() error {
	c.attempts = nil
	modes := []xsk.Mode{c.options.Mode}
	if c.options.Mode == xsk.Any {
		modes = []xsk.Mode{xsk.ZeroCopy, xsk.Copy}
	}
	for i, mode := range modes {
		last := i == len(modes)-1
		seats, err := c.buildAs(mode, last && c.options.Mode == xsk.Any)
		for _, a := range c.attempts {
			said := "granted"
			if a.Error != "" {
				said = a.Error
			}
			c.logOnce(fmt.Sprintf("workers: port %s in mode %s: %s", a.Port, a.Mode, said))
		}
		if err == nil {
			return c.begin(seats)
		}
		if last {
			return err
		}
	}
	return nil
}

// buildAs takes memory and opens sockets in one mode. A port that refuses the mode ends that, unless others shall go
// on without it.
func (c *Crew) buildAs(mode xsk.Mode, without bool) (seats []*seat, err error) {
	if c.memory, err = newMemory(c.memoryOptions(mode)); err != nil {
		return nil, err
	}
	if size, why := c.memory.umem.Pages(); why != nil {
		c.logOnce(fmt.Sprintf("workers: packet memory has pages of %d bytes: %v", size, why))
	}
	for _, p := range c.wanted {
		opened, err := c.open(p)
		seats = append(seats, opened...)
		switch {
		case err == nil:
			c.attempts = append(c.attempts, Attempt{Port: p.Name, Mode: opened[0].socket.Mode().String()})
			c.accept(p)
		case !isRefusal(err):
			_ = c.refuse(p, err) // and tried again
		default:
			c.attempts = append(c.attempts, Attempt{p.Name, mode.String(), err.Error()})
			if without {
				_ = c.refuse(p, err)
				continue
			}
			err = errors.Join(fmt.Errorf("port %s: %w", p.Name, err), c.closeUnused(seats), c.memory.umem.Close())
			c.memory = nil
			return nil, err
		}
	}
	return seats, nil
}

// memoryOptions says what memory the wanted ports need.
func (c *Crew) memoryOptions(mode xsk.Mode) xsk.UMEMOptions {
	o := xsk.UMEMOptions{Frames: c.options.Frames, FrameSize: c.options.FrameSize, HugePages: c.options.HugePages,
		Mode: mode, AnyProgram: c.options.Mode == xsk.Any}
	longest, queues, most := 0, 0, 1
	for _, p := range c.wanted {
		d, err := c.inspect(p)
		if err != nil {
			continue // open tells
		}
		longest = max(longest, d.MTU+overhead)
		queues += served(d)
		most = max(most, served(d))
	}
	if o.FrameSize == 0 {
		o.FrameSize = 2048
		if longest > payload(o.FrameSize) {
			o.FrameSize = min(4096, os.Getpagesize())
		}
	}
	o.MultiBuffer = longest > payload(o.FrameSize)
	if o.Frames == 0 {
		o.Frames = (queues+most)*2*c.options.Ring + len(c.workers)*c.options.Ring/2
	}
	return o
}

// outgrown reports whether the ports have come to need more memory than there is, and its size is not the operator's.
func (c *Crew) outgrown() bool {
	return c.options.Frames == 0 && c.memoryOptions(c.memory.mode).Frames > c.memory.umem.Frames()
}

// payload is how much of a packet a frame holds, in bytes.
func payload(frameSize int) int { return frameSize - kernelHeadroom }

// fits reports whether packets of a port's MTU can be had with the memory that there is.
func (c *Crew) fits(p Port) bool {
	d, err := c.inspect(p)
	return err != nil || c.memory.multi || d.MTU+overhead <= payload(c.memory.size)
}

// begin makes pools and exchanges, starts the threads and seats the sockets.
func (c *Crew) begin(seats []*seat) error {
	n := len(c.workers)
	handed, away := exchangeSizes(n)
	for _, w := range c.workers {
		var err error
		own := min(c.options.Ring/2, c.memory.umem.Census().Spare/n) // for copies; the rest comes with sockets
		if w.pool, err = c.memory.umem.NewPool(own); err != nil {
			return errors.Join(err, c.closeUnused(seats))
		}
		w.memory, w.away, w.awayMax = c.memory, 0, away
		w.in, w.out = make([]*exchange, n), make([]*exchange, n)
		w.back, w.give = make([]*exchange, n), make([]*exchange, n)
	}
	for i, from := range c.workers {
		for j, to := range c.workers {
			if i == j {
				continue
			}
			from.out[j] = newExchange(handed)
			to.in[i] = from.out[j]
			from.give[j] = newExchange(away)
			to.back[i] = from.give[j]
		}
	}
	for _, w := range c.workers {
		c.launch(w)
	}
	return c.seat(seats)
}

// launch starts a worker's thread.
func (c *Crew) launch(w *worker) {
	w.stop.Store(false)
	w.launched = time.Now()
	w.idle, w.beaten = 0, 0
	w.beat.Store(nowTick())
	w.ended = make(chan struct{})
	go w.run(w.ended)
}

// clean takes back what a thread had that has ended, and makes the worker ready for another. c.mu is held.
func (c *Crew) clean(w *worker) {
	w.ended = nil
	for i := range c.workers {
		if w.out[i] != nil {
			w.out[i].publish()
			w.give[i].publish()
		}
	}
	w.outDirty, w.giveDirty = 0, 0
	for _, e := range w.egress {
		if e != nil {
			e.n, e.queued = 0, false
		}
	}
	w.dirty, w.free = w.dirty[:0], w.free[:0]
	w.progress.cell = noCell
	for i := range w.memory.frames {
		if w.memory.placeOf(i) != w.id+1 {
			continue
		}
		if f := &w.memory.frames[i]; f.last && !f.copied {
			w.lateAbsent.Add(1)
		}
		w.release(xsk.Desc{Addr: uint64(i) << w.memory.shift})
	}
	w.freeAll()
	w.publishExchanges()
}

// stopLimit is how long a thread may take to end.
const stopLimit = 5 * time.Second

// tearDown ends the threads, closes all sockets and gives the memory back. It is an error if a frame is not where it
// must be. c.mu is held.
func (c *Crew) tearDown() error {
	if c.memory == nil {
		return nil
	}
	c.ending = true
	err := c.remove(slices.Clone(c.seats))
	for _, w := range c.workers {
		w.stop.Store(true)
		c.bells[w.id].ring()
	}
	limit := time.After(stopLimit)
	for _, w := range c.workers {
		if w.ended == nil {
			continue
		}
		select {
		case <-w.ended:
			c.clean(w)
		case <-limit:
			// Its memory must stay.
			return errors.Join(err, fmt.Errorf("worker %d does not end: something holds it up, or takes its CPU", w.id))
		}
	}
	if len(c.seats) > 0 {
		err = c.remove(slices.Clone(c.seats)) // of one that was held up for a while
	}
	errs := []error{err}
	for i := range c.memory.frames {
		if f := &c.memory.frames[i]; f.place == frameHanded {
			f.place = frameFree
			c.workers[f.owner].pool.Free([]xsk.Desc{{Addr: uint64(i) << c.memory.shift}})
		}
	}
	for _, w := range c.workers {
		w.pool.Close()
		w.memory, w.pool = nil, nil
		w.egress = [portIDs]*egress{}
	}
	census := c.memory.umem.Census()
	if census.Caller > 0 {
		errs = append(errs, fmt.Errorf("%d of %d frames are nowhere: %+v", census.Caller, census.Total, census))
	}
	errs = append(errs, c.memory.umem.Close())
	c.memory, c.ending, c.unrouted = nil, false, false
	return errors.Join(errs...)
}
