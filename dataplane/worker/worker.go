package worker

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// A worker is one thread with a socket on each of its queues. Its round:
//
//	reclaim       what was sent comes back; the legs' cells say so
//	take back     frames that other workers have done with
//	take over     packets that other workers have handed over
//	receive       a batch from each socket: to its home worker, or through the stages
//	flush         to the sockets by which packets leave, and to other workers
//	refill, kick
//
// All of it belongs to the thread; where another may look there are atomics.
type worker struct {
	// Hot: what every batch needs.
	id       uint8
	memory   *memory
	pool     *xsk.Pool
	seats    []*seat
	egress   [portIDs]*egress
	dirty    []*egress // have something to send
	progress progress
	batch    batch
	sent     [batchSize]xsk.Desc
	fresh    [batchSize]xsk.Desc
	free     []xsk.Desc // on their way to the pool
	count    counts

	in, out    []*exchange // packets from, and to, each other worker; nil at its own place
	back, give []*exchange // frames of its own that come back, of others that go back
	bells      []*bell     // of all workers
	outDirty   uint64      // workers that something was put for
	giveDirty  uint64
	away       int // frames of its own that other workers have
	awayMax    int

	// Cold.
	crew      *Crew
	cpu, node int
	poller    xsk.Poller
	now       time.Duration // since the crew's start
	tick      uint32        // of its last sign of life
	beaten    time.Duration // when it last gave a sign of life
	idle      int           // rounds with nothing to do, in a row
	healed    time.Duration

	asked chan *request
	ended chan struct{} // closed when the thread has ended, nil without one; crew.mu guards the variable
	stop  atomic.Bool
	state atomic.Int32
	beat  atomic.Uint32

	published  published
	launched   time.Time // crew.mu guards it, and early
	early      int       // times in a row that it ended soon after it was launched
	restarts   atomic.Uint64
	lateAbsent atomic.Uint64 // packets that were with it, or in its rings, when it or their socket ended
	lateDown   atomic.Uint64 // packets that it had given to a socket that was closed before they were sent
}

// A death is a thread that has ended without being told to.
type death struct {
	worker *worker
	ended  chan struct{}
	why    string
	rested bool // after it, as one that comes soon after another has to
}

// States of a worker, as status tells them.
const (
	polling = iota
	sleeping
	restarting
)

// workerNice is the niceness of workers' threads: the most that there is.
const workerNice = -20

// How a worker finds its rest.
const (
	spinRounds = 64                     // idle rounds before an adaptive worker sleeps
	longSleep  = 20 * time.Millisecond  // at most, since it has to give signs of life
	shortSleep = time.Millisecond       // while something that was sent is not back
	beatEvery  = time.Millisecond       // and counters
	healEvery  = 100 * time.Millisecond // see heal
)

func (w *worker) frame(d xsk.Desc) *frame { return &w.memory.frames[w.memory.index(d)] }

// run is the thread. It returns when it was told to stop; a panic ends it too.
func (w *worker) run(ended chan struct{}) {
	runtime.LockOSThread() // and never unlocked: the thread, which is pinned, ends with the goroutine
	defer func() {
		if why := recover(); why != nil || !w.stop.Load() {
			w.state.Store(restarting)
			w.crew.died <- death{worker: w, ended: ended, why: fmt.Sprint(why)}
		}
		close(ended)
	}()
	if w.cpu >= 0 {
		var set unix.CPUSet
		set.Set(w.cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			w.crew.logOnce(fmt.Sprintf("worker %d is not pinned to CPU %d: %v", w.id, w.cpu, err))
		}
	}
	// Whatever else the machine does must not keep packets waiting: a worker that has nothing to do sleeps.
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, workerNice); err != nil {
		w.crew.logOnce(fmt.Sprintf("workers have no priority over other processes: %v: give the daemon CAP_SYS_NICE", err))
	}
	w.state.Store(polling)
	for !w.stop.Load() {
		if w.crew.options.Hook != nil {
			w.crew.options.Hook(int(w.id))
		}
		select {
		case r := <-w.asked:
			r.do()
		default:
		}
		if w.round() {
			w.idle = 0
			continue
		}
		w.count[cIdleRounds]++
		w.idle++
		if w.crew.options.Poll == Adaptive && w.idle >= spinRounds {
			w.sleep()
		}
	}
	w.publish()
}

// round does one round, and reports whether there was something to do.
func (w *worker) round() bool {
	w.count[cRounds]++
	if w.now = time.Since(w.crew.start); w.now-w.beaten >= beatEvery {
		w.live()
	}
	for _, s := range w.seats {
		w.reclaim(s)
	}
	w.progress.publish()
	w.takeBack()
	got := w.takeOver()
	for _, s := range w.seats {
		got += w.receive(s)
	}
	w.flushAll()
	w.freeAll()
	for _, s := range w.seats {
		s.socket.Refill()
		if s.broken.Load() {
			continue
		}
		if err := s.socket.Kick(); err != nil {
			w.breakOff(s)
		}
	}
	return got > 0
}

// breakOff goes on without a socket whose device is gone. The crew closes it when it hears of that.
func (w *worker) breakOff(s *seat) {
	s.broken.Store(true)
	w.poller.Remove(s.socket)
}

// live gives a sign of life, and publishes what it has counted.
func (w *worker) live() {
	w.beaten = w.now
	w.tick = nowTick()
	w.count[cSyscalls]++
	w.beat.Store(w.tick)
	for _, s := range w.seats {
		atomic.StoreUint32(&s.record.Beat, w.tick)
	}
	w.publish()
	if w.now-w.healed >= healEvery {
		w.healed = w.now
		for _, s := range w.seats {
			s.heal()
		}
	}
}

func (w *worker) publish() {
	w.published.store(w.count[:])
	for _, s := range w.seats {
		s.publish()
	}
}

// sleep waits until there is something to do.
func (w *worker) sleep() {
	limit := longSleep
	for _, s := range w.seats {
		if c := s.socket.Counters(); c.TxFrames != c.TxCompleted && w.idle < spinRounds+20 {
			limit = shortSleep
		}
	}
	w.live()
	bell := w.bells[w.id]
	bell.asleep.Store(true)
	if !w.waited() {
		w.state.Store(sleeping)
		_, _ = w.poller.Wait(limit) // an error is that of a socket, which Kick sees too
		w.state.Store(polling)
		w.count[cWakeups]++
		w.count[cSyscalls]++
	}
	if !bell.asleep.Swap(false) {
		bell.quiet() // it was rung
		w.count[cSyscalls]++
	}
	w.now = time.Since(w.crew.start)
	w.live()
}

// waited reports whether others have left something that was not there before they could see that it sleeps.
func (w *worker) waited() bool {
	if len(w.asked) > 0 || w.stop.Load() {
		return true
	}
	for _, x := range w.in {
		if x != nil && !x.empty() {
			return true
		}
	}
	return false
}

// A seat is a queue of a port and the socket on it.
type seat struct {
	port   Port
	queue  int
	worker int
	record *bpf.XDPWorkerQueue
	socket *xsk.Socket
	taken  uint32
	noRoom uint64
	broken atomic.Bool // the socket is of no use any more

	quiet     uint32 // sent when heal looked last
	published published
	counts    seatCounts

	// The crew's.
	pool    *xsk.Pool // with which it was opened, until its worker has it
	share   int       // frames that came with it
	leaving bool      // XDP sends nothing to it any more, but its worker did not answer that was to give it up
	rings   [4]watched
}

func (s *seat) publish() {
	c := s.socket.Counters()
	s.counts.take(&c, s.noRoom)
	s.published.store(s.counts[:])
}

// heal takes as lost what XDP has sent and what has neither arrived nor been counted as lost: nothing is under way
// in a queue by which nothing was sent for a while and in which nothing waits.
func (s *seat) heal() {
	sent := atomic.LoadUint32(&s.record.Sent)
	if sent == s.quiet && s.socket.Rings().Rx == 0 {
		if all := sent - atomic.LoadUint32(&s.record.Lost); all != s.taken && sent == atomic.LoadUint32(&s.record.Sent) {
			s.taken = all
			atomic.StoreUint32(&s.record.Taken, all)
		}
	}
	s.quiet = sent
}

// nowTick returns the clock that XDP reads, in ticks (abi.h).
func nowTick() uint32 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts) // it is there since 2.6.32
	return uint32(uint64(ts.Nano()) >> 20)
}
