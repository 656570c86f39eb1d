package xsk_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

func TestReceiveEveryByte(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix}) // the gateway's ends of the wires say nothing
	for _, tt := range []struct {
		mode, granted xsk.Mode
		ring          int
	}{
		{xsk.Any, xsk.Copy, 64},
		{xsk.Copy, xsk.Copy, 64},
		{xsk.Generic, xsk.Generic, 64},
		{xsk.Copy, xsk.Copy, 1}, // every packet wraps
		{xsk.Copy, xsk.Copy, 4},
	} {
		t.Run(fmt.Sprintf("%s, rings of %d", tt.mode, tt.ring), func(t *testing.T) {
			e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: tt.mode})
			p := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{Mode: tt.mode},
				xsk.SocketOptions{Rx: tt.ring, Tx: tt.ring, Fill: 2 * tt.ring, Completion: tt.ring})
			s := p.sockets[0]
			if s.Mode() != tt.granted || p.redirect.Mode() != tt.granted {
				t.Errorf("socket in mode %s, program in mode %s", s.Mode(), p.redirect.Mode())
			}
			sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
			defer sender.Close()
			frames := 3000
			if tt.ring < 64 {
				frames = 800
			}
			led := newLedger(frames, everyLength)
			go feed(t, led, tt.ring, sender.Send)
			receiveAll(t, e, s, led)
			if k := must(s.Stats())(t); k.RxInvalid != 0 || k.TxInvalid != 0 {
				t.Errorf("the kernel counts %+v", k)
			}
		})
	}
}

func TestSendEveryByte(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	for _, tt := range []struct {
		mode xsk.Mode
		ring int
	}{{xsk.Copy, 64}, {xsk.Generic, 64}, {xsk.Copy, 1}, {xsk.Copy, 4}} {
		t.Run(fmt.Sprintf("%s, rings of %d", tt.mode, tt.ring), func(t *testing.T) {
			capture := must(l.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{
				Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
			}))(t)
			e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: tt.mode})
			s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{Mode: tt.mode},
				xsk.SocketOptions{Rx: tt.ring, Tx: tt.ring, Fill: tt.ring, Completion: tt.ring}).sockets[0]
			led := newLedger(3000, everyLength)
			stayOnACPU(t)
			before := must(l.Must(t, "client").DeviceStats("c0"))(t)
			bytes := uint64(0)
			for n := range uint64(len(led.seen)) {
				check(t, send(e, s, frameOf(n, led.length(n))))
				bytes += uint64(led.length(n))
			}
			sentAll(t, s)
			after := must(l.Must(t, "client").DeviceStats("c0"))(t) // the client's kernel may have sent something too
			if after.TxPackets < before.TxPackets+3000 || after.TxBytes < before.TxBytes+bytes || after.TxDropped != before.TxDropped {
				t.Errorf("the device counted %+v before and %+v after 3000 packets of %d bytes", before, after, bytes)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			check(t, capture.Wait(ctx, len(led.seen)))
			must(capture.Stop())(t)
			for _, f := range capture.Frames() {
				check(t, led.take(f.Data))
			}
			if led.left != 0 {
				t.Error(led.missing())
			}
			if c := s.Counters(); c.KickBusy+c.KickNoBuffers+c.KickDown != 0 {
				t.Errorf("counters %+v", c)
			}
		})
	}
}

// TestQueuesShareAUMEM sends in both directions of both queues at once: each end has one UMEM and one
// worker for its two queues.
func TestQueuesShareAUMEM(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix, Queues: 2})
	const frames = 3000
	type lane struct {
		led  *ledger
		sent int
	}
	var ends [2]*end
	var lanes [2][2]lane // by receiving end and queue
	for i, at := range []struct{ node, device string }{{"client", "c0"}, {"server", "s0"}} {
		ends[i] = newEnd(t, xsk.UMEMOptions{Frames: 2048, FrameSize: 2048, Mode: xsk.Copy})
		ends[i].open(t, l.Must(t, at.node), at.device, 2, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 256, Tx: 256, Fill: 256, Completion: 256})
		for q := range 2 {
			lanes[i][q].led = newLedger(frames, everyLength)
		}
	}
	var wg sync.WaitGroup
	for i := range ends {
		wg.Go(func() {
			e, batch := ends[i], make([]xsk.Desc, 64)
			for end := time.Now().Add(patience); ; {
				done := true
				for q, s := range e.ports[0].sockets {
					s.Reclaim()
					n := s.Receive(batch)
					for _, d := range batch[:n] {
						if err := lanes[i][q].led.take(e.umem.Frame(d)); err != nil {
							t.Errorf("end %d queue %d: %v", i, q, err)
							return
						}
					}
					e.pool.Free(batch[:n])
					// What this end sends on the queue is what the other receives on it.
					out := &lanes[1-i][q]
					for out.sent < frames && out.sent-int(out.led.arrived.Load()) < 128 {
						packet := build(e, frameOf(uint64(out.sent), everyLength(uint64(out.sent))))
						if packet == nil {
							break
						}
						if s.Transmit(packet) == 0 {
							e.pool.Free(packet)
							break
						}
						out.sent++
					}
					s.Refill()
					if err := s.Kick(); err != nil {
						t.Errorf("end %d queue %d: %v", i, q, err)
						return
					}
					done = done && out.led.arrived.Load() == frames && lanes[i][q].led.arrived.Load() == frames
				}
				if done {
					return
				}
				if time.Now().After(end) {
					t.Errorf("end %d: %s, %s", i, lanes[i][0].led.missing(), lanes[i][1].led.missing())
					return
				}
			}
		})
	}
	wg.Wait()
	for _, e := range ends {
		for _, s := range e.ports[0].sockets {
			sentAll(t, s)
		}
		if c := e.umem.Census(); c.Caller != 0 || c.Free+c.Kernel != c.Total {
			t.Errorf("census %+v", c)
		}
	}
}

func TestFullRxRingLosesWhatTheKernelCounts(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 128, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 16, Tx: 16, Fill: 128, Completion: 16}).sockets[0]
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	for n := range 50 {
		check(t, sender.Send(frameOf(uint64(n), shortest)))
	}
	testenv.Eventually(t, patience, func() error {
		if k := must(s.Stats())(t); k.RxRingFull != 34 || k.RxDropped != 0 {
			return fmt.Errorf("the kernel counts %+v", k)
		}
		return nil
	})
	if r := s.Rings(); r.Rx != 16 {
		t.Errorf("%d descriptors in an rx ring of 16", r.Rx)
	}
	batch := make([]xsk.Desc, 64)
	if n := s.Receive(batch); n != 16 {
		t.Fatalf("received %d", n)
	}
	for i, d := range batch[:16] {
		if number, ours := numberOf(e.umem.Frame(d)); !ours || number != uint64(i) {
			t.Errorf("frame %d came in place %d: the ring keeps what came first", number, i)
		}
	}
	e.pool.Free(batch[:16])
	s.Refill()
	// It goes on where it stood still.
	check(t, sender.Send(frameOf(99, shortest)))
	testenv.Eventually(t, patience, func() error {
		n := s.Receive(batch)
		defer e.pool.Free(batch[:n])
		for _, d := range batch[:n] {
			if number, ours := numberOf(e.umem.Frame(d)); ours && number == 99 {
				return nil
			}
		}
		return fmt.Errorf("frame 99 has not come")
	})
}

func TestStarvedFillRingLosesWhatTheKernelCounts(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 8, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 64, Completion: 64}).sockets[0]
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	for n := range 20 {
		check(t, sender.Send(frameOf(uint64(n), shortest)))
	}
	testenv.Eventually(t, patience, func() error {
		if k := must(s.Stats())(t); k.RxDropped != 12 || k.FillEmpty != 12 || k.RxRingFull != 0 {
			return fmt.Errorf("the kernel counts %+v", k)
		}
		return nil
	})
	batch := make([]xsk.Desc, 64)
	n := s.Receive(batch)
	if n != 8 {
		t.Errorf("received %d with 8 frames", n)
	}
	e.pool.Free(batch[:n])
	s.Refill()
	led := newLedger(100, everyLength)
	go feed(t, led, 4, sender.Send)
	receiveAll(t, e, s, led)
}

func TestRefillToStopsAtTheLevel(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 32, Tx: 32, Fill: 32, Completion: 32}).sockets[0]
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	if n := s.RefillTo(32) + s.RefillTo(100); n != 0 || s.Rings().Fill != 32 {
		t.Errorf("%d frames more in a ring that Open has filled with %d", n, s.Rings().Fill)
	}
	batch := make([]xsk.Desc, 32)
	take := func(packets int) {
		t.Helper()
		for n := range packets {
			check(t, sender.Send(frameOf(uint64(n), shortest)))
		}
		for got := 0; got < packets; {
			testenv.Eventually(t, patience, func() error {
				n := s.Receive(batch)
				e.pool.Free(batch[:n])
				if got += n; n == 0 {
					return fmt.Errorf("%d of %d have come", got, packets)
				}
				return nil
			})
		}
	}
	take(20)
	for _, tt := range []struct{ level, moved, filled int }{{12, 0, 12}, {8, 0, 12}, {13, 1, 13}, {32, 19, 32}, {-1, 0, 32}} {
		if n := s.RefillTo(tt.level); n != tt.moved || s.Rings().Fill != tt.filled {
			t.Errorf("to %d: %d frames, the ring holds %d, expected %d and %d", tt.level, n, s.Rings().Fill, tt.moved, tt.filled)
		}
	}
	take(32)
	if n := s.Refill(); n != 32 {
		t.Errorf("%d frames into an empty ring of 32", n)
	}
}

func TestFullTxRingLeavesTheRestWithTheCaller(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 8, Tx: 8, Fill: 8, Completion: 8}).sockets[0]
	batch := make([]xsk.Desc, 12)
	if n := e.pool.Alloc(batch); n != 12 {
		t.Fatalf("%d frames", n)
	}
	for i := range batch {
		batch[i].Len = shortest
		copy(e.umem.Frame(batch[i]), frameOf(uint64(i), shortest))
	}
	if n := s.Transmit(batch); n != 8 {
		t.Fatalf("took %d into a ring of 8", n)
	}
	if n := s.Transmit(batch[8:]); n != 0 {
		t.Fatalf("took %d more", n)
	}
	check(t, s.Kick())
	sentAll(t, s)
	if n := s.Transmit(batch[8:]); n != 4 {
		t.Errorf("took %d of 4 when the ring was empty", n)
	}
	check(t, s.Kick())
	sentAll(t, s)
}

// TestSendBufferHoldsTheRing looks whether as many packets may be on their way in copy mode as the tx ring
// has room for. By default the kernel stops at some 50.
func TestSendBufferHoldsTheRing(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Tx: 2048}).sockets[0]
	if size := must(unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF))(t); size < 2048*2048 {
		t.Errorf("a send buffer of %d bytes", size)
	}
}
