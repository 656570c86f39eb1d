package worker

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// A Crew is workers and the sockets that they serve. Its methods are safe for concurrent use.
type Crew struct {
	options Options
	start   time.Time
	live    [portIDs]atomic.Uint32 // interface of each port that may be sent to; 0 is none
	liveMu  sync.Mutex             // of its writers, and allowed
	allowed []Port                 // as Hold was told last
	works   atomic.Pointer[works]
	silent  atomic.Int32 // silentAfter; more in tests that a busy machine shall not fail
	died    chan death   // from worker threads
	bells   []*bell

	mu       sync.Mutex // what follows
	wanted   []Port
	memory   *memory // nil: no sockets yet, or no more
	attempts []Attempt
	workers  []*worker
	seats    []*seat
	queues   [portIDs]int      // that a port had when it was looked at last
	unrouted bool              // a worker did not answer that was to be told by which sockets packets leave
	ending   bool              // tearDown has not come to its end: a thread did not
	refused  map[uint8]refusal // ports that have no sockets, or not all, by number
	earlier  map[earlierKey]*history
	retried  time.Time
	counted  time.Time // that queues were
	closed   bool

	logMu  sync.Mutex
	logged map[string]bool

	stop, stopped chan struct{} // of watch
}

// Start makes workers, and sockets on all queues of the ports. A port that cannot have sockets is told of by Log
// and tried again each second; a mode that was asked for by name and cannot be had by all ports is an error.
func Start(o Options, ports []Port) (*Crew, error) {
	if err := o.normal(); err != nil {
		return nil, fmt.Errorf("start workers: %w", err)
	}
	c := &Crew{options: o, start: time.Now(), died: make(chan death, maxWorkers), refused: make(map[uint8]refusal), earlier: make(map[earlierKey]*history),
		logged: make(map[string]bool), stop: make(chan struct{}), stopped: make(chan struct{})}
	c.works.Store(new(works))
	c.silent.Store(silentAfter)
	if err := c.makeWorkers(ports); err != nil {
		c.closeBells()
		return nil, fmt.Errorf("start workers: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = slices.Clone(ports)
	c.Hold(ports)
	// A thread that polls keeps one of the runtime's processors: the others' share stays as it is.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + len(c.workers))
	err := c.build()
	if err != nil {
		err = errors.Join(fmt.Errorf("start workers: %w", err), c.tearDown())
		c.release()
		return nil, err
	}
	go c.watch()
	return c, nil
}

// makeWorkers makes the workers, without threads, memory or sockets.
func (c *Crew) makeWorkers(ports []Port) error {
	cpus, err := chooseCPUs(c.options.CPUs, ports)
	if err != nil {
		return err
	}
	count := c.options.Count
	if count == 0 {
		most := 0
		for _, p := range ports {
			if d, err := c.inspect(p); err == nil {
				most = max(most, d.Queues)
			}
		}
		count = max(1, min(most, len(cpus), maxWorkers))
	}
	for id := range count {
		w := &worker{id: uint8(id), crew: c, cpu: -1, node: -1, asked: make(chan *request, 1),
			published: make(published, counters), free: make([]xsk.Desc, 0, 2*batchSize), dirty: make([]*egress, 0, portIDs)}
		if len(cpus) > 0 {
			w.cpu = cpus[id%len(cpus)]
			w.node = nodeOf(w.cpu)
		}
		w.progress = progress{cells: c.options.Tables.Cells, cell: noCell}
		c.workers = append(c.workers, w)
		b, err := newBell()
		if err != nil {
			return fmt.Errorf("make eventfd: %w", err)
		}
		c.bells = append(c.bells, b)
		w.poller.AddFD(b.fd)
	}
	for _, w := range c.workers {
		w.bells = c.bells
	}
	return nil
}

// Workers returns how many workers there are.
func (c *Crew) Workers() int { return len(c.workers) }

// SetWorks says what stages do for each rule, by rule id. What it is given must not be changed afterwards.
func (c *Crew) SetWorks(rules map[uint32]Work) {
	w := works(rules)
	c.works.Store(&w)
}

// Hold makes that nothing is sent any more by ports that are not among these, or have another device. It never
// waits; Follow does the rest.
func (c *Crew) Hold(ports []Port) {
	c.liveMu.Lock()
	defer c.liveMu.Unlock()
	c.allowed = slices.Clone(ports)
	for id := range c.live {
		i := slices.IndexFunc(ports, func(p Port) bool { return int(p.ID) == id })
		if have := c.live[id].Load(); have != 0 && (i < 0 || have != uint32(ports[i].Index)) {
			c.live[id].CompareAndSwap(have, 0)
		}
	}
}

// allow lets packets leave by the port of a seat, unless Hold has heard meanwhile that it is no more.
func (c *Crew) allow(s *seat) {
	c.liveMu.Lock()
	defer c.liveMu.Unlock()
	if slices.ContainsFunc(c.allowed, func(p Port) bool { return p.ID == s.port.ID && p.Index == s.port.Index }) {
		c.live[s.port.ID].Store(uint32(s.port.Index))
	}
}

// SetPorts makes these the ports, while workers run: Hold, and then Follow.
func (c *Crew) SetPorts(ports []Port) error {
	c.Hold(ports)
	return c.Follow()
}

// Follow gives the ports that Hold was told last their sockets. Packets of ports that stay pass as before, unless all
// need other memory: longer frames, more of them, or without zero-copy. A port that goes is drained as far as its
// device allows; one that comes has sockets when Follow returns, or an error says why not and it is tried again each
// second.
func (c *Crew) Follow() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errors.New("set ports of workers: they are closed")
	}
	c.liveMu.Lock()
	c.wanted = slices.Clone(c.allowed)
	c.liveMu.Unlock()
	if err := c.follow(); err != nil {
		return fmt.Errorf("set ports of workers: %w", err)
	}
	return nil
}

// follow brings seats to what is wanted. c.mu is held.
func (c *Crew) follow() error {
	maps.DeleteFunc(c.refused, func(id uint8, _ refusal) bool {
		return !slices.ContainsFunc(c.wanted, func(p Port) bool { return p.ID == id })
	})
	if c.memory == nil {
		return c.build()
	}
	if c.ending || slices.ContainsFunc(c.wanted, func(p Port) bool { return !c.fits(p) }) {
		return c.anew() // memory of another kind
	}
	var errs []error
	if c.unrouted {
		errs = append(errs, c.routes())
	}
	var gone []*seat
	for _, s := range c.seats {
		i := slices.IndexFunc(c.wanted, s.serves)
		if i < 0 {
			gone = append(gone, s)
			continue
		}
		s.port.Name, s.port.Device = c.wanted[i].Name, c.wanted[i].Device
		c.allow(s) // it may have been gone for a moment
	}
	errs = append(errs, c.remove(gone))
	for _, p := range c.wanted {
		if c.complete(p) {
			c.accept(p)
			continue
		}
		seats, refused := c.open(p)
		if refused != nil {
			if c.options.Mode == xsk.Any && c.memory.mode == xsk.ZeroCopy && isRefusal(refused) ||
				errors.Is(refused, errNoFrames) && c.outgrown() {
				return errors.Join(append(errs, c.anew())...)
			}
			errs = append(errs, c.refuse(p, refused))
			continue
		}
		if len(seats) > 0 {
			errs = append(errs, c.seat(seats))
		}
		if c.complete(p) {
			c.accept(p)
		}
	}
	return errors.Join(errs...)
}

// anew gives up all sockets and the memory, and takes others. While a thread does not end it has what it had, and
// this is tried again. c.mu is held.
func (c *Crew) anew() error {
	err := c.tearDown()
	if c.memory != nil {
		return err
	}
	return errors.Join(err, c.build())
}

// settled reports whether seats are as wanted: no queue of a port waits for a socket, none has one that it should not,
// and all workers know.
func (c *Crew) settled() bool {
	if c.unrouted || c.ending {
		return false
	}
	return !slices.ContainsFunc(c.wanted, func(p Port) bool { return !c.complete(p) }) &&
		!slices.ContainsFunc(c.seats, func(s *seat) bool { return !c.wants(s) })
}

// complete reports whether all queues of a port, as far as they are known, have sockets.
func (c *Crew) complete(p Port) bool {
	have := 0
	for _, s := range c.seats {
		if s.serves(p) {
			have++
		}
	}
	return have >= max(1, c.queues[p.ID])
}

// recount looks how many queues the ports have: somebody may give a device more.
func (c *Crew) recount() {
	for _, p := range c.wanted {
		if d, err := c.inspect(p); err == nil {
			c.queues[p.ID] = served(d)
		}
	}
}

// Close ends the workers. First XDP sends no more packets; what they have is sent as far as that goes.
func (c *Crew) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	for _, s := range c.seats {
		c.shut(s)
	}
	c.mu.Unlock()
	close(c.stop)
	<-c.stopped
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.tearDown(); err != nil {
		return fmt.Errorf("close workers: %w", err)
	}
	c.release()
	return nil
}

// release gives back what Start took last.
func (c *Crew) release() {
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) - len(c.workers))
	c.closeBells()
}

func (c *Crew) closeBells() {
	for _, b := range c.bells {
		b.close()
	}
}

// logOnce logs a text unless it was logged before.
func (c *Crew) logOnce(text string) {
	c.logMu.Lock()
	told := c.logged[text]
	c.logged[text] = true
	c.logMu.Unlock()
	if !told {
		c.options.Log(text)
	}
}

// A request is something that a worker's thread shall do between two rounds.
type request struct {
	fn    func()
	state atomic.Int32 // 0: waits, 1: taken, 2: given up
	done  chan struct{}
}

func (r *request) do() {
	if r.state.CompareAndSwap(0, 1) {
		r.fn()
		close(r.done)
	}
}

// answerLimit is how long a worker may take to do what it is asked.
const answerLimit = 500 * time.Millisecond

// ask has the worker's thread call fn, or calls it if there is no thread. c.mu is held.
func (c *Crew) ask(w *worker, fn func()) error {
	if w.ended == nil {
		fn()
		return nil
	}
	r := &request{fn: fn, done: make(chan struct{})}
	limit := time.NewTimer(answerLimit)
	defer limit.Stop()
	in := w.asked
	for {
		select {
		case in <- r:
			in = nil
			c.bells[w.id].ring()
		case <-r.done:
			return nil
		case <-w.ended:
			if r.state.CompareAndSwap(0, 1) {
				c.clean(w)
				fn()
				return nil
			}
			select {
			case <-r.done:
				return nil
			default:
				return fmt.Errorf("worker %d ended in the midst of a change", w.id)
			}
		case <-limit.C:
			if r.state.CompareAndSwap(0, 2) {
				return fmt.Errorf("worker %d does not answer: something holds it up, or takes its CPU", w.id)
			}
		}
	}
}
