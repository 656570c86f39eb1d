package bench

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// xskWorker drives the socket of one queue, from a thread of its own on a CPU of its own.
type xskWorker struct {
	cpu    int
	socket *xsk.Socket
	umem   *xsk.UMEM
	pool   *xsk.Pool
	source *xskSource // of what tx-push sends
	batch  []xsk.Desc
	fill   int // frames that the fill ring is to hold

	packets, bytes uint64     // handled so far
	held           []xsk.Desc // of batch: received, and not taken by the tx ring yet

	asked    atomic.Bool
	stopped  atomic.Bool
	readings chan xskReading
	done     chan error
}

// xskReading is where a worker stands at one moment.
type xskReading struct {
	at             time.Time
	packets, bytes uint64
	held           int
	counters       xsk.Counters
	rings          xsk.Rings
	user, system   time.Duration // of the thread
	hardware       hardwareCounts
}

// start runs a loop on the worker's thread until stop.
func (w *xskWorker) start(loop func(*xskWorker) error) {
	w.readings, w.done = make(chan xskReading, 1), make(chan error, 1)
	go func() { w.done <- w.run(loop) }()
}

func (w *xskWorker) run(loop func(*xskWorker) error) error {
	unpin, err := pin(w.cpu)
	if err != nil {
		return err
	}
	defer unpin()
	counters := openHardware()
	defer counters.close()
	for {
		if err := loop(w); err != nil {
			return fmt.Errorf("drive %s queue %d: %w", w.socket.Device().Name, w.socket.Queue(), err)
		}
		if w.stopped.Load() {
			return nil
		}
		w.asked.Store(false)
		w.readings <- w.reading(counters)
	}
}

func (w *xskWorker) reading(counters *hardware) xskReading {
	r := xskReading{packets: w.packets, bytes: w.bytes, held: len(w.held), counters: w.socket.Counters(), rings: w.socket.Rings()}
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) == nil {
		r.user, r.system = time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
	}
	r.hardware = counters.read()
	r.at = time.Now()
	return r
}

// read asks the worker where it stands, between two of its rounds.
func (w *xskWorker) read() (xskReading, error) {
	w.asked.Store(true)
	select {
	case r := <-w.readings:
		return r, nil
	case err := <-w.done:
		w.done <- err
		if err == nil {
			err = fmt.Errorf("drive %s queue %d: it has stopped", w.socket.Device().Name, w.socket.Queue())
		}
		return xskReading{}, err
	}
}

// stop ends the worker and waits for it.
func (w *xskWorker) stop() error {
	w.stopped.Store(true)
	return <-w.done
}

// goesOn reports whether a loop is to make another round.
func (w *xskWorker) goesOn() bool { return !w.asked.Load() && !w.stopped.Load() }

// drop receives packets and throws them away.
func (w *xskWorker) drop() error {
	s, pool, batch := w.socket, w.pool, w.batch
	for w.goesOn() {
		n := s.Receive(batch)
		if n > 0 {
			bytes := uint64(0)
			for i := range batch[:n] {
				bytes += uint64(batch[i].Len)
			}
			w.packets += uint64(n)
			w.bytes += bytes
			pool.Free(batch[:n])
			s.RefillTo(w.fill)
		}
		if err := s.Kick(); err != nil {
			return err
		}
	}
	return nil
}

// push sends as fast as the kernel takes it, or at the source's rate.
func (w *xskWorker) push() error {
	s, pool := w.socket, w.pool
	for w.goesOn() {
		s.Reclaim()
		batch := w.batch[:pool.Alloc(w.batch[:w.source.due(len(w.batch))])]
		bytes := uint64(0)
		for i := range batch {
			w.source.write(w.umem, &batch[i])
			bytes += uint64(batch[i].Len)
		}
		sent := s.Transmit(batch)
		for i := range batch[sent:] {
			bytes -= uint64(batch[sent+i].Len)
		}
		pool.Free(batch[sent:])
		w.source.sent(sent, len(batch))
		w.packets += uint64(sent)
		w.bytes += bytes
		if err := s.Kick(); err != nil {
			return err
		}
	}
	return nil
}

// forward sends every packet back where it came from, with the two MACs changed over.
func (w *xskWorker) forward() error {
	s, u := w.socket, w.umem
	for w.goesOn() {
		s.Reclaim()
		s.RefillTo(w.fill)
		if len(w.held) == 0 {
			batch := w.batch[:s.Receive(w.batch)]
			bytes := uint64(0)
			for i := range batch {
				if f := u.Frame(batch[i]); len(f) >= 12 {
					swapMACs(f)
				}
				bytes += uint64(batch[i].Len)
			}
			w.packets += uint64(len(batch))
			w.bytes += bytes
			w.held = batch
		}
		// What the tx ring has no room for waits, and what arrives meanwhile waits in the rx ring.
		w.held = w.held[s.Transmit(w.held):]
		if err := s.Kick(); err != nil {
			return err
		}
	}
	return nil
}

// swapMACs changes the destination and the source of an Ethernet frame over.
func swapMACs(f []byte) {
	_ = f[11]
	high, low := binary.LittleEndian.Uint64(f), binary.LittleEndian.Uint32(f[8:])
	// Bytes 0-5 are the destination, 6-11 the source.
	binary.LittleEndian.PutUint64(f, high>>48|uint64(low)<<16|high<<48)
	binary.LittleEndian.PutUint32(f[8:], uint32(high>>16))
}
