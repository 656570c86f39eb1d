package xsk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

const prefix = "t-lab-xsk"

// receiveAll receives on the socket until the ledger is full.
func receiveAll(t *testing.T, e *end, s *xsk.Socket, l *ledger) {
	t.Helper()
	batch := make([]xsk.Desc, 64)
	var poller xsk.Poller
	poller.Add(s, xsk.Readable)
	for end := time.Now().Add(patience); l.left > 0; {
		n := s.Receive(batch)
		eachPacket(batch[:n], func(packet []xsk.Desc) {
			if err := l.take(gather(e.umem, packet)); err != nil {
				t.Fatal(err)
			}
		})
		e.pool.Free(batch[:n])
		s.Refill()
		check(t, s.Kick())
		if n == 0 {
			must(poller.Wait(10 * time.Millisecond))(t)
			if time.Now().After(end) {
				t.Fatalf("%s; the kernel counts %+v", l.missing(), must(s.Stats())(t))
			}
		}
	}
}

// build makes a packet of frames from the pool, or returns nil if there are too few.
func build(e *end, data []byte) []xsk.Desc {
	// As much as the kernel would put into a frame.
	size := e.umem.Payload()
	packet := make([]xsk.Desc, (len(data)+size-1)/size)
	if n := e.pool.Alloc(packet); n < len(packet) {
		e.pool.Free(packet[:n])
		return nil
	}
	for i := range packet {
		part := data[i*size : min(len(data), (i+1)*size)]
		packet[i].Len = uint32(len(part))
		copy(e.umem.Frame(packet[i]), part)
		if i < len(packet)-1 {
			packet[i].Options = xsk.Continues
		}
	}
	return packet
}

// send sends one packet on the socket, and waits for room where there is none.
func send(e *end, s *xsk.Socket, data []byte) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		s.Reclaim()
		if packet := build(e, data); packet != nil {
			if s.Transmit(packet) == len(packet) {
				return s.Kick()
			}
			e.pool.Free(packet)
		}
		if err := s.Kick(); err != nil {
			return err
		}
	}
	return fmt.Errorf("no room for a packet of %d bytes: %+v", len(data), s.Rings())
}

// sentAll waits until all that the socket sent came back.
func sentAll(t *testing.T, s *xsk.Socket) {
	t.Helper()
	testenv.Eventually(t, patience, func() error {
		s.Reclaim()
		if err := s.Kick(); err != nil {
			return err
		}
		if c := s.Counters(); c.TxCompleted != c.TxFrames {
			return fmt.Errorf("%d of %d frames came back", c.TxCompleted, c.TxFrames)
		}
		return nil
	})
}

// everyLength is that of frames of all lengths that an MTU of 1,500 allows.
func everyLength(n uint64) int { return shortest + int(n)%(1514-shortest+1) }

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

// TestBadDescriptorsHurtNobodyElse puts descriptors into the tx ring that the kernel refuses.
func TestBadDescriptorsHurtNobodyElse(t *testing.T) {
	if xsk.Debug {
		t.Log("a debug build panics before the kernel sees them: TestDebugBuildRefuses")
		return
	}
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	capture := must(l.Must(t, "server").StartCapture("s0", testenv.CaptureOptions{
		Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
	}))(t)
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 8, Tx: 64, Fill: 8, Completion: 64}).sockets[0]
	bad := []struct {
		name string
		make func(d *xsk.Desc)
	}{
		{"longer than its frame", func(d *xsk.Desc) { d.Len = 2048 }},
		{"very long", func(d *xsk.Desc) { d.Len = 1<<32 - 1 }},
		{"across the frame's end", func(d *xsk.Desc) { d.Addr += 2048 - 256 - 30 }},
		{"an option that nobody knows", func(d *xsk.Desc) { d.Options = 1 << 31 }},
	}
	var one [1]xsk.Desc
	put := func(number uint64, change func(*xsk.Desc)) {
		if e.pool.Alloc(one[:]) != 1 {
			t.Fatal("the pool is empty")
		}
		one[0].Len = shortest
		copy(e.umem.Frame(one[0]), frameOf(number, shortest))
		change(&one[0])
		if s.Transmit(one[:]) != 1 {
			t.Fatal("the ring is full")
		}
	}
	good := func(*xsk.Desc) {}
	put(0, good)
	for i, b := range bad {
		put(1000, b.make)
		put(uint64(i+1), good)
	}
	testenv.Eventually(t, patience, func() error {
		check(t, s.Kick())
		s.Reclaim()
		if r, c := s.Rings(), s.Counters(); r.Tx != 0 || c.TxCompleted < uint64(len(bad)+1) {
			return fmt.Errorf("%d descriptors are not sent, %d frames came back of %d good ones", r.Tx, c.TxCompleted, len(bad)+1)
		}
		if k := must(s.Stats())(t); k.TxInvalid != uint64(len(bad)) {
			return fmt.Errorf("the kernel counts %d bad descriptors of %d", k.TxInvalid, len(bad))
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	check(t, capture.Wait(ctx, len(bad)+1))
	must(capture.Stop())(t)
	for i, f := range capture.Frames() {
		if !bytes.Equal(f.Data, frameOf(uint64(i), shortest)) {
			t.Errorf("packet %d is %x", i, f.Data)
		}
	}
	if n := len(capture.Frames()); n != len(bad)+1 {
		t.Errorf("%d packets arrived, %d were good", n, len(bad)+1)
	}
}

// TestMetadataThatIsNotThere sends a packet that asks for metadata in a UMEM without any. Linux 6.18 never
// gets past it, and says with every try that its frame was sent.
func TestMetadataThatIsNotThere(t *testing.T) {
	if xsk.Debug {
		t.Log("a debug build panics before the kernel sees it: TestDebugBuildRefuses")
		return
	}
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 16, FrameSize: 2048, Mode: xsk.Copy})
	p := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 8, Tx: 8, Fill: 8, Completion: 8})
	s := p.sockets[0]
	var one [1]xsk.Desc
	if e.pool.Alloc(one[:]) != 1 {
		t.Fatal("the pool is empty")
	}
	one[0].Len, one[0].Options = shortest, 2 // XDP_TX_METADATA
	s.Transmit(one[:])
	refused := 0
	for range 5 {
		if err := s.Kick(); errors.Is(err, unix.EINVAL) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
		s.Reclaim()
	}
	if k := must(s.Stats())(t); refused == 0 && k.TxInvalid == 0 {
		t.Errorf("nobody minds: the kernel counts %+v", k)
	}
	check(t, s.Close())
	testenv.Eventually(t, patience, func() error {
		if err := p.node.Do(func() error { _, err := e.umem.Recover(e.pool); return err }); err != nil {
			return err
		}
		if e.pool.Len() != 16 {
			return fmt.Errorf("%d frames of 16: %+v", e.pool.Len(), e.umem.Census())
		}
		return nil
	})
	all := make([]xsk.Desc, 17)
	n := e.pool.Alloc(all)
	defer e.pool.Free(all[:n])
	seen := map[uint64]bool{}
	for _, d := range all[:n] {
		if seen[d.Addr] {
			t.Errorf("the frame at %#x is in the pool twice", d.Addr)
		}
		seen[d.Addr] = true
	}
}
