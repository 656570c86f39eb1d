package xsk_test

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// wireVariable names two devices on one wire, as "eth0,eth1", and modeVariable the mode to have their
// sockets in: zero-copy unless it is set. No virtual device of a namespace has zero-copy, so this is for
// machines with devices to spare, real or emulated. What else is on the wire is left alone.
const (
	wireVariable = "SOFTDPU_WIRE"
	modeVariable = "SOFTDPU_WIRE_MODE"
)

// TestWire sends numbered frames from one device to the other, where a worker sends each back.
func TestWire(t *testing.T) {
	near, far, mode := wire(t)
	for _, tt := range []struct {
		name   string
		frames int
		busy   xsk.BusyPoll
	}{
		{"woken", 100_000, xsk.BusyPoll{}},
		{"busy polling", 20_000, xsk.BusyPoll{Time: 20 * time.Microsecond, Budget: 64}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if mode != xsk.ZeroCopy {
				tt.frames /= 5 // a namespace shows the rest
			}
			o := xsk.SocketOptions{Rx: 512, Tx: 512, Fill: 1024, Completion: 512, BusyPoll: tt.busy}
			here := openHere(t, near, mode, o)
			there := openHere(t, far, mode, o)
			stop, stopped := new(atomic.Bool), make(chan struct{})
			go func() { defer close(stopped); sendBack(t, there, stop) }()
			finish := sync.OnceFunc(func() { stop.Store(true); <-stopped })
			defer finish()
			led := newLedger(tt.frames, everyLength)
			exchange(t, here, led)
			finish()
			for _, e := range []*end{here, there} {
				s := e.ports[0].sockets[0]
				sentAll(t, s)
				t.Logf("%s: %v, %+v, %+v", s.Device().Name, s.Attempts(), s.Counters(), must(s.Stats())(t))
				if c := e.umem.Census(); c.Caller != 0 || c.Free+c.Kernel != c.Total {
					t.Errorf("census %+v", c)
				}
			}
		})
	}
	t.Run("frames come back from the device", func(t *testing.T) {
		e := openHere(t, near, mode, small)
		s := e.ports[0].sockets[0]
		check(t, s.Close())
		for end := time.Now().Add(patience); e.pool.Len() != e.umem.Frames(); {
			must(e.umem.Recover(e.pool))(t)
			if time.Now().After(end) {
				t.Fatalf("census %+v", e.umem.Census())
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	t.Run("several frames a packet", func(t *testing.T) {
		sinceLinux(t, 6, 6, "packets of several frames")
		u := must(xsk.NewUMEM(xsk.UMEMOptions{Mode: mode, MultiBuffer: true}))(t)
		defer u.Close()
		p := must(u.NewPool(u.Frames()))(t)
		s, err := xsk.Open(u, p, near, 0, small)
		if err == nil {
			t.Logf("the driver sends %d", s.MaxSegments())
			check(t, s.Close())
		} else if d := must(xsk.Inspect(near))(t); d.ZeroCopySegments != 1 || !strings.Contains(err.Error(), "for packets of one frame only") {
			t.Error(err)
		}
	})
}

// wire returns the two devices and the mode, or leaves the test out.
func wire(t *testing.T) (near, far string, mode xsk.Mode) {
	t.Helper()
	names := os.Getenv(wireVariable)
	if names == "" {
		t.Skipf("no two devices with zero-copy: %s=eth0,eth1 names them", wireVariable)
	}
	near, far, ok := strings.Cut(names, ",")
	if !ok {
		t.Fatalf("%s=%s names no two devices", wireVariable, names)
	}
	return near, far, modeNamed(os.Getenv(modeVariable))
}

// modeNamed returns the mode of that name: zero-copy unless it is one of the others.
func modeNamed(name string) xsk.Mode {
	for _, m := range []xsk.Mode{xsk.Copy, xsk.Generic} {
		if name == m.String() {
			return m
		}
	}
	return xsk.ZeroCopy
}

// openHere opens queue 0 of a device of the process's own namespace.
func openHere(t *testing.T, device string, mode xsk.Mode, o xsk.SocketOptions) *end {
	t.Helper()
	e := newEnd(t, xsk.UMEMOptions{Frames: 4096, FrameSize: 4096, Mode: mode})
	p := &port{device: device}
	e.ports = append(e.ports, p)
	p.redirect = must(xsk.Attach(device, xsk.AttachOptions{Mode: mode}))(t)
	s := must(xsk.Open(e.umem, e.pool, device, 0, o))(t)
	p.sockets = append(p.sockets, s)
	check(t, p.redirect.Add(s))
	if s.Mode() != mode {
		t.Fatalf("%s is in mode %s", device, s.Mode())
	}
	return e
}

// sendBack sends back what comes, until it is stopped.
func sendBack(t *testing.T, e *end, stop *atomic.Bool) {
	s, batch := e.ports[0].sockets[0], make([]xsk.Desc, 64)
	var poller xsk.Poller
	poller.Add(s, xsk.Readable)
	for !stop.Load() {
		s.Reclaim()
		n := s.Receive(batch)
		sent := s.Transmit(batch[:n])
		e.pool.Free(batch[sent:n])
		s.Refill()
		err := s.Kick()
		if n == 0 {
			_, waitErr := poller.Wait(5 * time.Millisecond)
			err = errors.Join(err, waitErr)
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// exchange sends all frames of the ledger, a window of them ahead of what has come back.
func exchange(t *testing.T, e *end, led *ledger) {
	t.Helper()
	const window = 128
	s, batch := e.ports[0].sockets[0], make([]xsk.Desc, 64)
	next, moved := uint64(0), time.Now()
	for led.left > 0 {
		s.Reclaim()
		for next < uint64(len(led.seen)) && int64(next)-led.arrived.Load() < window {
			packet := build(e, frameOf(next, led.length(next)))
			if packet == nil {
				break
			}
			if s.Transmit(packet) == 0 {
				e.pool.Free(packet)
				break
			}
			next++
		}
		n := s.Receive(batch)
		for _, d := range batch[:n] {
			check(t, led.take(e.umem.Frame(d)))
		}
		e.pool.Free(batch[:n])
		s.Refill()
		check(t, s.Kick())
		if n > 0 {
			moved = time.Now()
		} else if time.Since(moved) > patience {
			t.Fatalf("%s; %+v %+v %+v", led.missing(), must(s.Stats())(t), s.Counters(), s.Rings())
		}
	}
}
