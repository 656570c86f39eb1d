package xsk_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// A cable forwards between the two ports of its end, which share a UMEM, and completes what checksums the
// hosts' kernels left open.
type cable struct {
	e                       *end
	offloaded, done, intact uint64
	err                     error
}

func (c *cable) run(ctx context.Context) {
	sockets := []*xsk.Socket{c.e.ports[0].sockets[0], c.e.ports[1].sockets[0]}
	var poller xsk.Poller
	for _, s := range sockets {
		poller.Add(s, xsk.Readable)
	}
	batch := make([]xsk.Desc, 64)
	for ctx.Err() == nil && c.err == nil {
		for _, s := range sockets {
			s.Reclaim()
		}
		moved := 0
		for i, from := range sockets {
			to := sockets[1-i]
			n := from.Receive(batch)
			eachPacket(batch[:n], func(packet []xsk.Desc) { c.complete(to, packet) })
			sent := to.Transmit(batch[:n])
			c.e.pool.Free(batch[sent:n])
			moved += n
		}
		for _, s := range sockets {
			s.Refill()
			if err := s.Kick(); err != nil {
				c.err = err
			}
		}
		if moved == 0 {
			if _, err := poller.Wait(5 * time.Millisecond); err != nil {
				c.err = err
			}
		}
	}
}

// complete sees to the checksum of an IPv4 TCP packet whose own is the bare sum of the pseudo-header: the
// sender left it to its device, which is a veth and did nothing.
func (c *cable) complete(to *xsk.Socket, packet []xsk.Desc) {
	b := c.e.umem.Frame(packet[0])
	if len(b) < 54 || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[14] != 0x45 || b[23] != 6 {
		return
	}
	length := binary.BigEndian.Uint16(b[16:]) - 20
	sum := uint32(6) + uint32(length)
	for i := 26; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	const start, offset = 34, 16
	switch {
	case binary.BigEndian.Uint16(b[start+offset:]) != uint16(sum):
		c.intact++
	case to.Checksum(packet, start, offset):
		c.offloaded++
	default:
		c.done++
	}
}

// TestForwardTCP puts a worker between two hosts whose kernels leave checksums to their devices.
func TestForwardTCP(t *testing.T) {
	for _, tt := range []struct {
		name string
		mtu  int
		umem xsk.UMEMOptions
	}{
		{"checksums made by the worker", 1500, xsk.UMEMOptions{Mode: xsk.Copy, FrameSize: 2048}},
		{"checksums left to the device", 1500, xsk.UMEMOptions{Mode: xsk.Copy, FrameSize: 2048, TxMetadata: true}},
		{"jumbo packets in several frames", 9000, xsk.UMEMOptions{Mode: xsk.Copy, FrameSize: 2048, MultiBuffer: true}},
		{"jumbo packets, left to the device", 9000, xsk.UMEMOptions{Mode: xsk.Copy, FrameSize: 4096, MultiBuffer: true, TxMetadata: true}},
		{"generic mode", 1500, xsk.UMEMOptions{Mode: xsk.Generic, FrameSize: 2048}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sinceOptions(t, tt.umem)
			l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, MTU: tt.mtu})
			client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, "gw")
			if tt.umem.Mode == xsk.Generic {
				// Generic XDP sees what the sender's stack made, before its device would have segmented it.
				check(t, client.Do(func() error { return setFeature("c0", "tx-tcp-segmentation", false) }))
				check(t, server.Do(func() error { return setFeature("s0", "tx-tcp-segmentation", false) }))
				check(t, client.Do(func() error { return setFeature("c0", "tx-generic-segmentation", false) }))
				check(t, server.Do(func() error { return setFeature("s0", "tx-generic-segmentation", false) }))
				// The sum that GSO packets are left with is another: let the hosts make theirs.
				check(t, client.Do(func() error { return setFeature("c0", "tx-checksum-ip-generic", false) }))
				check(t, server.Do(func() error { return setFeature("s0", "tx-checksum-ip-generic", false) }))
			}
			tt.umem.Frames = 4096
			e := newEnd(t, tt.umem)
			attach := xsk.AttachOptions{Mode: tt.umem.Mode, MultiBuffer: tt.umem.MultiBuffer}
			rings := xsk.SocketOptions{Rx: 512, Tx: 512, Fill: 1024, Completion: 512}
			e.open(t, gw, "lan", 1, attach, rings)
			e.open(t, gw, "wan", 1, attach, rings)
			c := &cable{e: e}
			ctx, cancel := context.WithCancel(t.Context())
			stopped := make(chan struct{})
			go func() { defer close(stopped); c.run(ctx) }()
			transfer(t, client, server, 8<<20)
			cancel()
			<-stopped
			check(t, c.err)
			t.Logf("%d checksums left to the device, %d made by the worker, %d intact", c.offloaded, c.done, c.intact)
			switch {
			case tt.umem.Mode == xsk.Generic:
			case tt.umem.TxMetadata && c.offloaded == 0:
				t.Error("no checksum was left to the device")
			case !tt.umem.TxMetadata && (c.done == 0 || c.offloaded != 0):
				t.Error("no checksum was made by the worker, or some were left to the device")
			}
			for _, p := range e.ports {
				sentAll(t, p.sockets[0])
				if k := must(p.sockets[0].Stats())(t); k.RxInvalid+k.TxInvalid != 0 {
					t.Errorf("%s: the kernel counts %+v", p.device, k)
				}
			}
			if c := e.umem.Census(); c.Caller != 0 || c.Free+c.Kernel != c.Total {
				t.Errorf("census %+v", c)
			}
		})
	}
}

// TestChecksumRequest looks at what is on the wire of one packet: a device that makes checksums leaves
// them to the veth's other end; where it does not the kernel completes them.
func TestChecksumRequest(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: prefix})
	client, server := l.Must(t, "client"), l.Must(t, "server")
	e := newEnd(t, xsk.UMEMOptions{Frames: 64, FrameSize: 2048, Mode: xsk.Copy, TxMetadata: true})
	s := e.open(t, client, "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 8, Tx: 8, Fill: 8, Completion: 8}).sockets[0]
	if !s.Offloads() {
		t.Fatal("copy mode does not offload")
	}
	frame := frameOf(1, 200)
	const start, offset = 34, 6
	want := naiveSum(frame[start:])
	send := func(t *testing.T) testenv.Frame {
		capture := must(server.StartCapture("s0", testenv.CaptureOptions{
			Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
		}))(t)
		var one [1]xsk.Desc
		if e.pool.Alloc(one[:]) != 1 {
			t.Fatal("the pool is empty")
		}
		one[0].Len = uint32(len(frame))
		copy(e.umem.Frame(one[0]), frame)
		if !s.Checksum(one[:], start, offset) {
			t.Error("the checksum was made here")
		}
		if s.Transmit(one[:]) != 1 {
			t.Fatal("the ring is full")
		}
		sentAll(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		check(t, capture.Wait(ctx, 1))
		must(capture.Stop())(t)
		return capture.Frames()[0]
	}
	if f := send(t); !f.ChecksumPartial {
		t.Error("the packet is not marked as one whose checksum is open")
	}
	check(t, client.Do(func() error { return setFeature("c0", "tx-checksum-ip-generic", false) }))
	f := send(t)
	if got := binary.BigEndian.Uint16(f.Data[start+offset:]); f.ChecksumPartial || got != want {
		t.Errorf("checksum %#04x, want %#04x; open: %t", got, want, f.ChecksumPartial)
	}

	// A packet without room in front, or whose field lies behind the first frame, is done by hand.
	var one [1]xsk.Desc
	if e.pool.Alloc(one[:]) != 1 {
		t.Fatal("the pool is empty")
	}
	one[0].Addr = one[0].Addr &^ 2047
	one[0].Len = uint32(len(frame))
	copy(e.umem.Frame(one[0]), frame)
	if s.Checksum(one[:], start, offset) {
		t.Error("a request was left where there is no room for it")
	}
	if got := binary.BigEndian.Uint16(e.umem.Frame(one[0])[start+offset:]); got != want {
		t.Errorf("checksum %#04x, want %#04x", got, want)
	}
	e.pool.Free(one[:])
}

// naiveSum is RFC 1071's checksum.
func naiveSum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i++ {
		if i%2 == 0 {
			sum += uint32(b[i]) << 8
		} else {
			sum += uint32(b[i])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

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
