package xsk_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// xdpsockVariable names the kernel community's example program, which is run in turn with this package.
const xdpsockVariable = "XDPSOCK"

// rings are those that xdpsock has by itself, but for the fill ring, which leaves frames to send.
var rings = xsk.SocketOptions{Rx: 2048, Tx: 2048, Fill: 2048, Completion: 2048}

// swapped exchanges the addresses of a frame, as who forwards on layer 2 does.
func swapped(b []byte) []byte {
	for i := range 6 {
		b[i], b[6+i] = b[6+i], b[i]
	}
	return b
}

// turn sends back what comes with its addresses exchanged, until it is stopped. It sleeps when there is nothing to
// do, or never.
func turn(t *testing.T, e *end, stop *atomic.Bool, sleeps bool) {
	s, batch := e.ports[0].sockets[0], make([]xsk.Desc, 64)
	var poller xsk.Poller
	poller.Add(s, xsk.Readable)
	for !stop.Load() {
		s.Reclaim()
		n := s.Receive(batch)
		for _, d := range batch[:n] {
			swapped(e.umem.Frame(d))
		}
		sent := s.Transmit(batch[:n])
		e.pool.Free(batch[sent:n])
		s.Refill()
		if err := s.Kick(); err != nil {
			t.Error(err)
			return
		}
		if n == 0 && sleeps {
			if _, err := poller.Wait(5 * time.Millisecond); err != nil {
				t.Error(err)
				return
			}
		}
	}
}

// TestWirePaced forwards frames that come at a rate which the slowest emulated device bears: every one comes back, in
// order, byte for byte.
func TestWirePaced(t *testing.T) {
	near, far, mode := wire(t)
	const rate, window = 20_000, 200
	frames := uint64(100_000)
	if mode != xsk.ZeroCopy {
		frames /= 5
	}
	here, there := openHere(t, near, mode, rings), openHere(t, far, mode, rings)
	stop, stopped := new(atomic.Bool), make(chan struct{})
	go func() { defer close(stopped); turn(t, there, stop, true) }()
	finish := sync.OnceFunc(func() { stop.Store(true); <-stopped })
	defer finish()

	led := newLedger(int(frames), everyLength)
	s, batch := here.ports[0].sockets[0], make([]xsk.Desc, 64)
	next, start, moved := uint64(0), time.Now(), time.Now()
	for led.left > 0 {
		s.Reclaim()
		// A machine that stood still for a moment is not made up for by a burst.
		due := min(uint64(time.Since(start).Seconds()*rate), frames, uint64(led.arrived.Load())+window)
		for ; next < due; next++ {
			packet := build(here, frameOf(next, led.length(next)))
			if packet == nil || s.Transmit(packet) == 0 {
				here.pool.Free(packet)
				break
			}
		}
		n := s.Receive(batch)
		for _, d := range batch[:n] {
			b := here.umem.Frame(d)
			if _, ours := numberOf(b); ours {
				swapped(b)
			}
			check(t, led.take(b))
		}
		here.pool.Free(batch[:n])
		s.Refill()
		check(t, s.Kick())
		if n > 0 {
			moved = time.Now()
		} else if time.Since(moved) > patience {
			t.Fatalf("%s; %+v %+v", led.missing(), must(s.Stats())(t), s.Counters())
		} else {
			time.Sleep(100 * time.Microsecond)
		}
	}
	took := time.Since(start)
	if least := time.Second * time.Duration(frames) / rate; took < least-time.Second/10 {
		t.Errorf("%d frames took %s: that is no %d a second", frames, took, rate)
	}
	finish()
	worker := there.ports[0].sockets[0]
	t.Logf("%d of %d frames came back, in %s mode, in %s: %.0f a second; %+v", int(frames)-led.left, frames, worker.Mode(), took.Round(time.Millisecond),
		float64(frames)/took.Seconds(), worker.Counters())
	for _, x := range []*xsk.Socket{s, worker} {
		sentAll(t, x)
		if k := must(x.Stats())(t); k.RxDropped+k.RxRingFull+k.RxInvalid+k.TxInvalid != 0 {
			t.Errorf("%s: the kernel counts %+v", x.Device().Name, k)
		}
	}
}

// TestWireBesideXdpsock forwards as fast as frames come back, in turn with xdpsock in the same mode, with the same rings,
// frames and batch.
func TestWireBesideXdpsock(t *testing.T) {
	near, far, mode := wire(t)
	program := os.Getenv(xdpsockVariable)
	if program == "" {
		t.Skipf("no xdpsock to compare with: %s=FILE names it", xdpsockVariable)
	}
	const rounds, long, least = 5, 2 * time.Second, 0.95
	flag := map[xsk.Mode]string{xsk.ZeroCopy: "-z", xsk.Copy: "-c", xsk.Generic: "-S"}[mode]
	for _, tt := range []struct {
		name string
		poll bool
	}{{"without sleep", false}, {"polling", true}} {
		t.Run(tt.name, func(t *testing.T) {
			here := openHere(t, near, mode, rings)
			ours := func() float64 {
				there := openHere(t, far, mode, rings)
				stop, stopped := new(atomic.Bool), make(chan struct{})
				go func() { defer close(stopped); turn(t, there, stop, tt.poll) }()
				finish := sync.OnceFunc(func() { stop.Store(true); <-stopped })
				defer finish()
				rate := echoes(t, here, long)
				finish()
				// Its frames belong to the device until the socket is closed, and the next one needs the queue.
				there.ports[0].shut(t)
				return rate
			}
			args := []string{"-i", far, "-q", "0", "-l", flag}
			if mode != xsk.Generic {
				args = append(args, "-N")
			}
			if tt.poll {
				args = append(args, "-p")
			}
			theirs := func() float64 {
				cmd := exec.Command(program, args...)
				var said bytes.Buffer
				cmd.Stdout, cmd.Stderr = &said, &said
				check(t, cmd.Start())
				defer func() {
					cmd.Process.Signal(syscall.SIGINT)
					cmd.Wait()
					if t.Failed() {
						t.Logf("xdpsock said:\n%s", said.String())
					}
				}()
				return echoes(t, here, long)
			}
			var a, b []float64
			for range rounds {
				a, b = append(a, ours()), append(b, theirs())
			}
			// The best of each: whatever else runs on an emulated machine's host only slows it down.
			ratio := slices.Max(a) / slices.Max(b)
			t.Logf("%s mode: this package %s, xdpsock %s %s; the ratio of the best is %.2f", mode, rates(a), fmt.Sprint(args), rates(b), ratio)
			if ratio < least {
				t.Errorf("%.2f times xdpsock's rate, and not %.2f", ratio, least)
			}
		})
	}
}

func rates(all []float64) string {
	s := "at"
	for _, r := range all {
		s += fmt.Sprintf(" %.0f", r)
	}
	return s + " frames a second"
}

// shut closes the port's sockets and takes its program off, before the test ends.
func (p *port) shut(t *testing.T) {
	t.Helper()
	for _, s := range p.sockets {
		check(t, s.Close())
	}
	check(t, p.redirect.Close())
	p.sockets, p.redirect = nil, nil
}

// echoes returns how many frames a second come back, from the first that does on: always as many are under way as
// no ring loses.
func echoes(t *testing.T, e *end, long time.Duration) float64 {
	t.Helper()
	const window = 128
	s, batch := e.ports[0].sockets[0], make([]xsk.Desc, 64)
	frame := frameOf(1, shortest)
	out, back, moved, began := 0, 0, time.Now(), time.Time{}
	for start := time.Now(); began.IsZero() || time.Since(began) < long; {
		s.Reclaim()
		for out < window {
			packet := build(e, frame)
			if packet == nil || s.Transmit(packet) == 0 {
				e.pool.Free(packet)
				break
			}
			out++
		}
		n := 0
		for _, d := range batch[:s.Receive(batch)] {
			if _, ours := numberOf(e.umem.Frame(d)); ours {
				n++
			}
			e.pool.Free([]xsk.Desc{d})
		}
		s.Refill()
		check(t, s.Kick())
		switch {
		case n > 0 && began.IsZero():
			began, moved = time.Now(), time.Now()
		case n > 0:
			back, moved = back+n, time.Now()
		case time.Since(moved) > 200*time.Millisecond:
			out, moved = 0, time.Now() // nobody forwards yet, or frames were lost when he began
		}
		out = max(0, out-n)
		if began.IsZero() && time.Since(start) > patience {
			t.Fatal("nothing comes back")
		}
	}
	return float64(back) / time.Since(began).Seconds()
}
