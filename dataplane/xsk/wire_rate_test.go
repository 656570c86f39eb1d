package xsk_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
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
func turn(u *xsk.UMEM, pool *xsk.Pool, s *xsk.Socket, stop *atomic.Bool, sleeps bool) error {
	batch := make([]xsk.Desc, 64)
	var poller xsk.Poller
	poller.Add(s, xsk.Readable)
	for !stop.Load() {
		s.Reclaim()
		n := s.Receive(batch)
		for _, d := range batch[:n] {
			swapped(u.Frame(d))
		}
		sent := s.Transmit(batch[:n])
		pool.Free(batch[sent:n])
		s.Refill()
		if err := s.Kick(); err != nil {
			return err
		}
		if n == 0 && sleeps {
			if _, err := poller.Wait(5 * time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// forwarderVariable makes the test program one that turns frames of a device until it is killed: "DEVICE MODE SLEEPS".
const forwarderVariable = "XSK_TEST_FORWARD"

// forwarder is that program. Its worker has a thread to itself, as a gateway's has.
func forwarder(what string) error {
	runtime.LockOSThread()
	var device, name string
	var sleeps bool
	if _, err := fmt.Sscan(what, &device, &name, &sleeps); err != nil {
		return err
	}
	mode := modeNamed(name)
	u, err := xsk.NewUMEM(xsk.UMEMOptions{Frames: 4096, FrameSize: 4096, Mode: mode})
	if err != nil {
		return err
	}
	p, err := u.NewPool(u.Frames())
	if err != nil {
		return err
	}
	r, err := xsk.Attach(device, xsk.AttachOptions{Mode: mode})
	if err != nil {
		return err
	}
	s, err := xsk.Open(u, p, device, 0, rings)
	if err != nil {
		return err
	}
	if err := r.Add(s); err != nil {
		return err
	}
	return turn(u, p, s, new(atomic.Bool), sleeps)
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
	go func() {
		defer close(stopped)
		if err := turn(there.umem, there.pool, there.ports[0].sockets[0], stop, true); err != nil {
			t.Error(err)
		}
	}()
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
	const rounds, long, least = 7, 2 * time.Second, 0.95
	flag := map[xsk.Mode]string{xsk.ZeroCopy: "-z", xsk.Copy: "-c", xsk.Generic: "-S"}[mode]
	for _, tt := range []struct {
		name string
		poll bool
	}{{"without sleep", false}, {"polling", true}} {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{"-i", far, "-q", "0", "-l", flag}
			if mode != xsk.Generic {
				args = append(args, "-N")
			}
			if tt.poll {
				args = append(args, "-p")
			}
			// Both are processes of their own, so that the sender weighs on neither.
			beside := func(cmd *exec.Cmd) float64 {
				var said bytes.Buffer
				cmd.Stdout, cmd.Stderr = &said, &said
				check(t, cmd.Start())
				defer func() {
					cmd.Process.Signal(syscall.SIGINT)
					cmd.Wait()
					if t.Failed() {
						t.Logf("%s said:\n%s", cmd.Path, said.String())
					}
				}()
				return echoes(t, near, mode, long)
			}
			ours := func() float64 {
				cmd := exec.Command("/proc/self/exe")
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %t", forwarderVariable, far, mode, tt.poll))
				return beside(cmd)
			}
			theirs := func() float64 { return beside(exec.Command(program, args...)) }
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

// echoes returns how many frames a second come back to the device, from the first that does on: always as many are
// under way as no ring loses.
func echoes(t *testing.T, device string, mode xsk.Mode, long time.Duration) float64 {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		e := openHere(t, device, mode, rings)
		back, took := echo(t, e, long)
		e.ports[0].shut(t)
		if back > 0 {
			return float64(back) / took.Seconds()
		}
		// What was sent to a device before anybody had opened it may hold up an emulated wire.
		if time.Now().After(end) {
			t.Fatal("nothing comes back")
		}
	}
}

// echo sends and receives, and gives up when nothing has come back for a second at first.
func echo(t *testing.T, e *end, long time.Duration) (back int, took time.Duration) {
	t.Helper()
	const window = 128
	s, batch := e.ports[0].sockets[0], make([]xsk.Desc, 64)
	frame := frameOf(1, shortest)
	out, moved := 0, time.Now()
	var began time.Time
	for start := time.Now(); ; {
		s.Reclaim()
		for out < window {
			packet := build(e, frame)
			if packet == nil || s.Transmit(packet) == 0 {
				e.pool.Free(packet)
				break
			}
			out++
		}
		n, ours := s.Receive(batch), 0
		for _, d := range batch[:n] {
			if _, ok := numberOf(e.umem.Frame(d)); ok {
				ours++
			}
		}
		e.pool.Free(batch[:n])
		s.Refill()
		check(t, s.Kick())
		now := time.Now()
		switch {
		case ours > 0 && began.IsZero():
			began, moved = now, now
		case ours > 0:
			back, moved = back+ours, now
		case now.Sub(moved) > 200*time.Millisecond:
			out, moved = 0, now // nobody forwards yet, or frames were lost when he began
		}
		out = max(0, out-ours)
		if began.IsZero() && now.Sub(start) > time.Second || !began.IsZero() && now.Sub(began) > long {
			return back, now.Sub(began)
		}
	}
}
