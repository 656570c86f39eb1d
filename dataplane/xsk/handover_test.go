package xsk_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestHandOver has two workers with a socket and a pool each, on one UMEM. Each hands what it receives to
// the other, which sends it on and gives as many frames back. Under the race detector, and in a debug
// build, nothing may touch a frame that it does not have.
func TestHandOver(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	gw := l.Must(t, "gw")
	u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 1024, FrameSize: 2048, Mode: xsk.Copy}))(t)
	type worker struct {
		pool     *xsk.Pool
		socket   *xsk.Socket
		redirect *xsk.Redirect
		in, back chan xsk.Desc
	}
	var workers [2]*worker
	check(t, gw.Do(func() (err error) {
		for i, device := range []string{"lan", "wan"} {
			w := &worker{in: make(chan xsk.Desc, 1024), back: make(chan xsk.Desc, 1024)}
			workers[i] = w
			if w.pool, err = u.NewPool(512); err != nil {
				return err
			}
			if w.redirect, err = xsk.Attach(device, xsk.AttachOptions{}); err != nil {
				return err
			}
			if w.socket, err = xsk.Open(u, w.pool, device, 0, xsk.SocketOptions{Rx: 128, Tx: 128, Fill: 256, Completion: 128}); err != nil {
				return err
			}
			if err := w.redirect.Add(w.socket); err != nil {
				return err
			}
		}
		return nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 2)
	for i, w := range workers {
		other := workers[1-i]
		go func() {
			var one [1]xsk.Desc
			batch := make([]xsk.Desc, 32)
			for ctx.Err() == nil {
				w.socket.Reclaim()
				n := w.socket.Receive(batch)
				for _, d := range batch[:n] {
					other.in <- d
				}
				for len(w.in) > 0 {
					one[0] = <-w.in
					if w.socket.Transmit(one[:]) == 0 {
						w.pool.Free(one[:])
					}
					// Any frame will do for the one that came.
					if w.pool.Alloc(one[:]) == 1 {
						other.back <- one[0]
					}
				}
				for len(w.back) > 0 {
					one[0] = <-w.back
					w.pool.Free(one[:])
				}
				w.socket.Refill()
				if err := w.socket.Kick(); err != nil {
					stopped <- err
					return
				}
				if n == 0 {
					time.Sleep(50 * time.Microsecond)
				}
			}
			stopped <- nil
		}()
	}
	capture := must(l.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{
		Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
	}))(t)
	sender := must(l.Must(t, "client").OpenSender("c0"))(t)
	defer sender.Close()
	led := newLedger(3000, everyLength)
	for n := range uint64(len(led.seen)) {
		for end := time.Now().Add(patience); int(n)-capture.Count() > 64; {
			if time.Now().After(end) {
				t.Fatalf("frame %d: %d arrived", n, capture.Count())
			}
			time.Sleep(50 * time.Microsecond)
		}
		check(t, sender.Send(frameOf(n, everyLength(n))))
	}
	wait, stopWaiting := context.WithTimeout(t.Context(), patience)
	defer stopWaiting()
	check(t, capture.Wait(wait, len(led.seen)))
	must(capture.Stop())(t)
	for _, f := range capture.Frames() {
		check(t, led.take(f.Data))
	}
	cancel()
	for range workers {
		check(t, <-stopped)
	}
	var one [1]xsk.Desc
	for _, w := range workers {
		for _, c := range []chan xsk.Desc{w.in, w.back} {
			for len(c) > 0 {
				one[0] = <-c
				w.pool.Free(one[:])
			}
		}
		sentAll(t, w.socket)
	}
	if c := u.Census(); c.Caller != 0 || c.Free+c.Kernel != c.Total {
		t.Errorf("census %+v", c)
	}
	for i, w := range workers {
		check(t, w.socket.Close())
		check(t, w.redirect.Close())
		if d := w.pool.Len(); d > 512 {
			t.Errorf("worker %d has %d frames, 512 are its own", i, d)
		}
	}
	check(t, u.Close())
	if led.left != 0 {
		t.Error(fmt.Errorf("%s", led.missing()))
	}
}
