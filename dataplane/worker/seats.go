package worker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// bindLimit is how long a queue that somebody holds is tried. Nobody is answered about workers meanwhile.
const bindLimit = 500 * time.Millisecond

func (c *Crew) inspect(p Port) (d xsk.Device, err error) {
	err = c.options.In(func() (err error) {
		d, err = xsk.Inspect(p.Device)
		return err
	})
	if err == nil && d.Index != p.Index {
		err = fmt.Errorf("device %s is interface %d, and was %d", p.Device, d.Index, p.Index)
	}
	return d, err
}

// isOf reports whether a seat is of this port, with this device. serves adds that it is of use.
func (s *seat) isOf(p Port) bool   { return s.port.ID == p.ID && s.port.Index == p.Index }
func (s *seat) serves(p Port) bool { return s.isOf(p) && !s.broken.Load() && !s.leaving }

// served is how many queues of a device workers serve.
func served(d xsk.Device) int { return min(max(1, d.Queues), queueMax) }

// open opens sockets on all queues of a port that have none, or on none of them. c.memory is there.
func (c *Crew) open(p Port) (seats []*seat, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, c.closeUnused(seats), c.recover(nil))
			seats = nil
		}
	}()
	d, err := c.inspect(p)
	if err != nil {
		return nil, absent{err}
	}
	if d.Queues > queueMax {
		c.logOnce(fmt.Sprintf("port %s has %d queues, of which workers serve the first %d: what arrives on others and needs a worker is dropped", p.Name, d.Queues, queueMax))
	}
	if (int(p.ID)+1)*queueMax > len(c.options.Tables.Queues) {
		return nil, fmt.Errorf("its number is %d, and there are records of %d", p.ID, len(c.options.Tables.Queues)/queueMax)
	}
	c.queues[p.ID] = served(d)
	for q := range c.queues[p.ID] {
		if slices.ContainsFunc(c.seats, func(s *seat) bool { return s.port.ID == p.ID && s.queue == q }) {
			continue // or one that its worker has not given up yet
		}
		s, err := c.openQueue(p, q)
		if err != nil {
			return seats, err
		}
		seats = append(seats, s)
	}
	return seats, nil
}

// A refusal is why a port has no sockets, or not all.
type refusal struct {
	port string
	why  error
	text string // as it was told
}

// refuse tells, once, why a port has no sockets, or not all.
func (c *Crew) refuse(p Port, why error) error {
	what := "no workers"
	if slices.ContainsFunc(c.seats, func(s *seat) bool { return s.serves(p) }) {
		what = "queues without workers"
	}
	err := fmt.Errorf("port %s has %s: %w", p.Name, what, why)
	if c.refused[p.ID].text != err.Error() {
		c.options.Log(err.Error())
	}
	c.refused[p.ID] = refusal{p.Name, why, err.Error()}
	return err
}

// accept tells that a port has all sockets, if it was told otherwise.
func (c *Crew) accept(p Port) {
	if _, refused := c.refused[p.ID]; refused {
		delete(c.refused, p.ID)
		c.options.Log(fmt.Sprintf("port %s has workers on all queues", p.Name))
	}
}

var errNoFrames = errors.New("no frames are left")

// openQueue opens a socket on one queue of a port, with a pool made for it.
func (c *Crew) openQueue(p Port, q int) (*seat, error) {
	s := c.newSeat(p, q)
	s.share = min(2*c.options.Ring, c.memory.umem.Census().Spare)
	if s.share < batchSize {
		return nil, absent{fmt.Errorf("%w for queue %d: the packet memory has %d: give it more", errNoFrames, q, c.memory.umem.Frames())}
	}
	var err error
	if s.pool, err = c.memory.umem.NewPool(s.share); err != nil {
		return nil, err
	}
	if err := c.openSocket(s, s.pool); err != nil {
		return nil, errors.Join(err, c.closeUnused([]*seat{s}))
	}
	return s, nil
}

func (c *Crew) newSeat(p Port, q int) *seat {
	return &seat{port: p, queue: q, worker: q % len(c.workers),
		record: &c.options.Tables.Queues[int(p.ID)*queueMax+q], published: make(published, seatCounters)}
}

// openSocket opens the socket of a seat.
func (c *Crew) openSocket(s *seat, pool *xsk.Pool) error {
	r := c.options.Ring
	err := c.options.In(func() (err error) {
		s.socket, err = xsk.Open(c.memory.umem, pool, s.port.Device, s.queue,
			xsk.SocketOptions{Rx: r, Tx: r, Fill: r, Completion: r, BusyPoll: c.options.BusyPoll, BindTimeout: bindLimit})
		return err
	})
	if err != nil {
		return err
	}
	if at := s.socket.Device().Index; at != s.port.Index {
		return absent{fmt.Errorf("device %s is interface %d, and was %d", s.port.Device, at, s.port.Index)}
	}
	return nil
}

// closeUnused closes sockets that no worker has.
func (c *Crew) closeUnused(seats []*seat) error {
	var errs []error
	for _, s := range seats {
		if s.socket != nil {
			errs = append(errs, s.socket.Close())
		}
		if s.pool != nil {
			s.pool.Close()
		}
	}
	return errors.Join(errs...)
}

// seat gives sockets to their workers, and then XDP leave to send to them. Those of a worker that does not answer are
// closed; the others do not wait for it.
func (c *Crew) seat(seats []*seat) error {
	var given []*seat
	silent := make(map[int]error)
	for _, s := range seats {
		w := c.workers[s.worker]
		err := silent[s.worker]
		if err == nil {
			err = c.ask(w, func() { w.attach(s) })
		}
		if err != nil {
			silent[s.worker] = errors.Join(err, c.closeUnused([]*seat{s}))
			continue
		}
		if s.pool != nil {
			s.pool.Close() // it is empty
			s.pool = nil
		}
		c.seats = append(c.seats, s)
		given = append(given, s)
	}
	errs := slices.Collect(maps.Values(silent))
	if len(silent) > 0 {
		errs = append(errs, c.recover(nil))
	}
	errs = append(errs, c.routes())
	for _, s := range given {
		c.allow(s)
		if err := c.options.Tables.Sockets.Put(c.number(s), uint32(s.socket.FD())); err != nil {
			s.broken.Store(true) // and tried again
			errs = append(errs, fmt.Errorf("let XDP send to port %s queue %d: %w", s.port.Name, s.queue, err))
			continue
		}
		// XDP counts packets, and a ring has room for descriptors: of the longest packets that is fewer.
		parts := (s.socket.Device().MTU + overhead + payload(c.memory.size) - 1) / payload(c.memory.size)
		atomic.StoreUint32(&s.record.Size, uint32(max(1, min(c.options.Ring, s.socket.Rings().Fill)/parts)))
	}
	return errors.Join(errs...)
}

// attach takes a socket, and the frames that come with it. It is the worker's.
func (w *worker) attach(s *seat) {
	if s.pool != nil {
		s.pool.Give(w.pool, s.pool.Len())
		s.socket.SetPool(w.pool)
	}
	s.taken = atomic.LoadUint32(&s.record.Sent) - atomic.LoadUint32(&s.record.Lost)
	tick := nowTick()
	if w.ended == nil {
		tick -= 2 * silentAfter // XDP waits for the thread's own sign of life
	}
	s.record.Worker = w.id + 1
	atomic.StoreUint32(&s.record.Taken, s.taken)
	atomic.StoreUint32(&s.record.Beat, tick)
	w.seats = append(w.seats, s)
	w.poller.Add(s.socket, xsk.Readable)
}

func (c *Crew) number(s *seat) uint32 { return uint32(s.port.ID)*queueMax + uint32(s.queue) }

// routes tells each worker by which sockets, or through whom, packets leave. One that does not answer is told later.
func (c *Crew) routes() error {
	var errs []error
	c.unrouted = false
	for _, w := range c.workers {
		var table [portIDs]*egress
		for _, s := range c.seats {
			if table[s.port.ID] == nil && c.wants(s) {
				table[s.port.ID] = c.egress(w, s.port.ID)
			}
		}
		if err := c.ask(w, func() {
			w.flushAll()
			w.egress = table
		}); err != nil {
			c.unrouted = true
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// wants reports whether a seat shall stay as it is.
func (c *Crew) wants(s *seat) bool { return slices.ContainsFunc(c.wanted, s.serves) }

// egress returns how a worker sends to a port: on the queue of its own number if there is one.
func (c *Crew) egress(w *worker, port uint8) *egress {
	var all []*seat
	for _, s := range c.seats {
		if s.port.ID == port && c.wants(s) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *seat) int { return a.queue - b.queue })
	for _, s := range all {
		if s.worker == int(w.id) {
			return &egress{port: port, seat: s}
		}
	}
	return &egress{port: port, via: all[int(w.id)%len(all)].worker}
}
