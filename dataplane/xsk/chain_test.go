package xsk_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

func TestFullTxRingTakesWholePackets(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix, MTU: 9000})
	capture := must(l.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{
		Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
	}))(t)
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy, MultiBuffer: true})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{MultiBuffer: true},
		xsk.SocketOptions{Rx: 8, Tx: 8, Fill: 8, Completion: 8}).sockets[0]
	led := newLedger(4, func(uint64) int { return 5000 }) // of three frames each
	var batch []xsk.Desc
	for n := range uint64(4) {
		batch = append(batch, build(e, frameOf(n, led.length(n)))...)
	}
	for len(batch) > 0 {
		want := min(len(batch), 6)
		if n := s.Transmit(batch); n != want {
			t.Fatalf("took %d descriptors of packets of three into a ring of 8, want %d", n, want)
		}
		if n := s.Transmit(batch[want:]); n != 0 {
			t.Fatalf("took %d more", n)
		}
		batch = batch[want:]
		check(t, s.Kick())
		sentAll(t, s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	check(t, capture.Wait(ctx, 4))
	must(capture.Stop())(t)
	for _, f := range capture.Frames() {
		check(t, led.take(f.Data))
	}
}

// TestJumboPacketsSpanFrames sends packets of all kinds of lengths up to the MTU of 9,000, in both
// directions between a socket and the kernel.
func TestJumboPacketsSpanFrames(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix, MTU: 9000})
	lengths := func(payload int) func(uint64) int {
		special := []int{payload - 1, payload, payload + 1, 2*payload - 1, 2 * payload, 2*payload + 1, 9013, 9014}
		return func(n uint64) int {
			if n < uint64(len(special)) {
				return special[n]
			}
			return shortest + int(n*97)%(9014-shortest+1)
		}
	}
	for _, tt := range []struct {
		size int
		mode xsk.Mode
	}{{2048, xsk.Copy}, {4096, xsk.Copy}, {2048, xsk.Generic}} {
		t.Run(fmt.Sprintf("%s, frames of %d", tt.mode, tt.size), func(t *testing.T) {
			e := newEnd(t, xsk.UMEMOptions{Frames: 1024, FrameSize: tt.size, Mode: tt.mode, MultiBuffer: true})
			s := e.open(t, l.Must(t, "server"), "s0", 1, xsk.AttachOptions{Mode: tt.mode, MultiBuffer: true},
				xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 512, Completion: 64}).sockets[0]
			if s.MaxSegments() < 9 {
				t.Errorf("%d segments", s.MaxSegments())
			}
			length := lengths(e.umem.Payload())
			client := l.Must(t, "client")
			sender := must(client.OpenSender("c0"))(t)
			defer sender.Close()
			led := newLedger(500, length)
			go feed(t, led, 8, sender.Send)
			receiveAll(t, e, s, led)
			if c := s.Counters(); c.RxFrames <= c.RxPackets || c.RxPackets < 500 || c.Oversize != 0 {
				t.Errorf("counters %+v", c)
			}

			capture := must(client.StartCapture("c0", testenv.CaptureOptions{
				Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
			}))(t)
			led = newLedger(500, length)
			for n := range uint64(len(led.seen)) {
				check(t, send(e, s, frameOf(n, length(n))))
			}
			sentAll(t, s)
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
		})
	}
}

func TestPacketLongerThanTheBatchIsDropped(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, MTU: 9000})
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy, MultiBuffer: true})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{MultiBuffer: true},
		xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 64, Completion: 64}).sockets[0]
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	check(t, sender.Send(frameOf(0, 9000)))
	check(t, sender.Send(frameOf(1, 3000))) // of two frames
	batch := make([]xsk.Desc, 3)
	var got []byte
	testenv.Eventually(t, patience, func() error {
		n := s.Receive(batch)
		eachPacket(batch[:n], func(packet []xsk.Desc) {
			if b := gather(e.umem, packet); len(b) == 3000 {
				got = b
			}
		})
		e.pool.Free(batch[:n])
		if got == nil {
			return fmt.Errorf("the packet behind has not come: %+v", s.Counters())
		}
		return nil
	})
	if !bytes.Equal(got, frameOf(1, 3000)) {
		t.Error("the packet behind came changed")
	}
	if c := s.Counters(); c.Oversize != 1 {
		t.Errorf("counters %+v", c)
	}
	if c := e.umem.Census(); c.Caller != 0 {
		t.Errorf("census %+v", c)
	}
}

func TestPacketOfTooManyFramesIsDropped(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix, MTU: 9000})
	capture := must(l.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{
		Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
	}))(t)
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy, MultiBuffer: true})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{MultiBuffer: true},
		xsk.SocketOptions{Rx: 8, Tx: 64, Fill: 8, Completion: 64}).sockets[0]
	packet := func(frames int) []xsk.Desc {
		batch := make([]xsk.Desc, frames)
		if e.pool.Alloc(batch) != frames {
			t.Fatal("the pool is empty")
		}
		data := frameOf(uint64(frames), 100*frames)
		for i := range batch {
			batch[i].Len = 100
			copy(e.umem.Frame(batch[i]), data[100*i:])
			batch[i].Options = xsk.Continues
		}
		batch[frames-1].Options = 0
		return batch
	}
	most := s.MaxSegments()
	batch := append(packet(most+1), packet(most)...)
	if n := s.Transmit(batch); n != len(batch) {
		t.Fatalf("took %d of %d", n, len(batch))
	}
	check(t, s.Kick())
	sentAll(t, s)
	if c := s.Counters(); c.TxTooLong != 1 || c.TxPackets != 1 || c.TxFrames != uint64(most) {
		t.Errorf("counters %+v", c)
	}
	if k := must(s.Stats())(t); k.TxInvalid != 0 {
		t.Errorf("the kernel counts %+v", k)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	check(t, capture.Wait(ctx, 1))
	must(capture.Stop())(t)
	if f := capture.Frames(); len(f) != 1 || !bytes.Equal(f[0].Data, frameOf(uint64(most), 100*most)) {
		t.Errorf("%d frames, or changed ones", len(f))
	}
	// A packet whose end is missing stays with the caller.
	part := packet(3)
	if n := s.Transmit(part[:2]); n != 0 {
		t.Errorf("took %d of a packet without an end", n)
	}
	e.pool.Free(part)
}
