package xsk_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

var small = xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 64, Completion: 64}

// open opens a socket in the namespace.
func open(n *testenv.Namespace, u *xsk.UMEM, p *xsk.Pool, device string, queue int, o xsk.SocketOptions) (s *xsk.Socket, err error) {
	err = n.Do(func() error {
		s, err = xsk.Open(u, p, device, queue, o)
		return err
	})
	return s, err
}

// TestOpenSaysWhyNot asks for what cannot be had.
func TestOpenSaysWhyNot(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, Queues: 2})
	gw := l.Must(t, "gw")
	check(t, gw.SetMTU("wan", 3000))
	check(t, l.Must(t, "server").SetMTU("s0", 3000))
	veth := "driver veth has no zero-copy (xdp-features 0x"
	if !xsk.KernelAtLeast(6, 3) {
		veth = "driver veth refuses it, and before Linux 6.3 the kernel does not say"
	}
	soon := small
	soon.BindTimeout = 50 * time.Millisecond
	for _, tt := range []struct {
		name   string
		umem   xsk.UMEMOptions
		device string
		queue  int
		rings  xsk.SocketOptions
		attach xsk.Mode // of a program that is on the device; Any is none
		is     error
		want   []string
	}{
		{name: "zero-copy of a driver without", umem: xsk.UMEMOptions{Mode: xsk.ZeroCopy}, device: "lan", rings: small,
			is: unix.EOPNOTSUPP, want: []string{"open socket on lan queue 0", "bind in mode zero-copy", veth}},
		{name: "a queue beyond", umem: xsk.UMEMOptions{Mode: xsk.Copy}, device: "lan", queue: 2, rings: small,
			is: unix.EINVAL, want: []string{"lan queue 2", "it has queues 0 to 1"}},
		{name: "another socket on the queue", umem: xsk.UMEMOptions{}, device: "lan", queue: 1, rings: soon,
			is: unix.EBUSY, want: []string{"another socket holds the queue", "ss --xdp"}},
		{name: "an MTU above the frame", umem: xsk.UMEMOptions{FrameSize: 2048}, device: "wan", rings: small,
			want: []string{"its MTU of 3000 makes packets of up to 3022 bytes and a frame holds 1792", "MultiBuffer"}},
		{name: "copy of a generic program", umem: xsk.UMEMOptions{Mode: xsk.Copy}, device: "lan", rings: small, attach: xsk.Generic,
			want: []string{"runs in generic mode", "xdpdrv"}},
		{name: "generic of a native program", umem: xsk.UMEMOptions{Mode: xsk.Generic}, device: "lan", rings: small, attach: xsk.Copy,
			want: []string{"runs in the driver", "xdpgeneric"}},
		{name: "no such device", umem: xsk.UMEMOptions{}, device: "nowhere", rings: small, want: []string{"find device nowhere"}},
		{name: "a ring of 100", umem: xsk.UMEMOptions{}, device: "lan", rings: xsk.SocketOptions{Rx: 100}, want: []string{"rx ring of 100 entries: it must be a power of two"}},
		{name: "busy polling for a nanosecond", umem: xsk.UMEMOptions{}, device: "lan",
			rings: xsk.SocketOptions{BusyPoll: xsk.BusyPoll{Time: 1}}, want: []string{"busy polling of 1ns"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			holder := newEnd(t, xsk.UMEMOptions{Frames: 64, Mode: xsk.Copy})
			held := &port{}
			held.sockets = append(held.sockets, must(open(gw, holder.umem, holder.pool, "lan", 1, small))(t))
			holder.ports = append(holder.ports, held)
			if tt.attach != xsk.Any {
				check(t, gw.Do(func() (err error) {
					held.redirect, err = xsk.Attach("lan", xsk.AttachOptions{Mode: tt.attach})
					return err
				}))
			}
			tt.umem.Frames = 64
			e := newEnd(t, tt.umem)
			s, err := open(gw, e.umem, e.pool, tt.device, tt.queue, tt.rings)
			if err == nil {
				s.Close()
				t.Fatal("it was opened")
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %q is not %q", err, tt.is)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if n := e.pool.Len(); n != 64 {
				t.Errorf("%d frames of 64 are left in the pool", n)
			}
		})
	}
}

func TestUMEMOptions(t *testing.T) {
	for _, o := range []xsk.UMEMOptions{
		{Frames: -1},
		{FrameSize: 1024},
		{FrameSize: 3000},
		{FrameSize: 1 << 20},
		{FrameSize: 2048, Headroom: 2000},
		{Headroom: 3},
		{Headroom: -8},
		{Mode: xsk.Generic + 1},
	} {
		if u, err := xsk.NewUMEM(o); err == nil {
			t.Errorf("%+v made a UMEM", o)
			u.Close()
		}
	}
	u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 10, FrameSize: 2048, Headroom: 64}))(t)
	if u.Frames() != 10 || u.Payload() != 2048-256-64 {
		t.Errorf("%d frames that hold %d bytes", u.Frames(), u.Payload())
	}
	p := must(u.NewPool(6))(t)
	if _, err := u.NewPool(5); err == nil {
		t.Error("two pools have more frames than there are")
	}
	q := must(u.NewPool(4))(t)
	batch := make([]xsk.Desc, 10)
	if n := p.Alloc(batch); n != 6 {
		t.Errorf("%d frames of 6", n)
	}
	batch[0].Len = 100
	if b := u.Frame(batch[0]); len(b) != 100 || cap(b) != u.Payload() {
		t.Errorf("%d bytes of %d", len(b), cap(b))
	}
	if front, behind := u.Room(batch[0]); front != 256+64 || behind != u.Payload()-100 {
		t.Errorf("room for %d in front and %d behind", front, behind)
	}
	copy(u.Before(batch[0], 3), "abc")
	batch[0].Addr -= 3
	batch[0].Len += 3
	if b := u.Frame(batch[0]); string(b[:3]) != "abc" {
		t.Errorf("%q in front", b[:3])
	}
	p.Free(batch[:6])
	p.Close()
	p.Close()
	r := must(u.NewPool(6))(t)
	if c := u.Census(); c != (xsk.Census{Total: 10, Free: 10}) {
		t.Errorf("census %+v", c)
	}
	r.Close()
	q.Close()
	check(t, u.Close())
	check(t, u.Close())
}

// TestRestart opens and closes a socket on one queue many times, with packets under way both ways. Frames
// come back with each; in the end no descriptor, mapping or pinned page is left.
func TestRestart(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	client := l.Must(t, "client")
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	// Pages that other programs of the machine pin come and go: the least of some looks counts.
	pinned := func() int {
		least := pinnedPages(t)
		for range 20 {
			time.Sleep(5 * time.Millisecond)
			least = min(least, pinnedPages(t))
		}
		return least
	}
	before := pinned()
	files, maps := openFiles(), socketMappings()
	const frames = 512
	restarts := 100
	if xsk.Debug {
		restarts = 20
	}
	u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: frames, FrameSize: 4096, Mode: xsk.Copy}))(t)
	p := must(u.NewPool(frames))(t)
	var redirect *xsk.Redirect
	check(t, client.Do(func() (err error) { redirect, err = xsk.Attach("c0", xsk.AttachOptions{}); return err }))
	batch := make([]xsk.Desc, 64)
	for i := range restarts {
		s := must(open(client, u, p, "c0", 0, small))(t)
		check(t, redirect.Add(s))
		for n := range 20 {
			check(t, sender.Send(frameOf(uint64(n), shortest)))
		}
		testenv.Eventually(t, patience, func() error {
			if r := s.Rings(); r.Rx < 20 {
				return fmt.Errorf("restart %d: %d packets arrived", i, r.Rx)
			}
			return nil
		})
		n := s.Receive(batch[:10]) // ten stay in the ring
		if n != 10 {
			t.Fatalf("restart %d: received %d", i, n)
		}
		if n := s.Transmit(batch[:5]); n != 5 {
			t.Fatalf("restart %d: sent %d", i, n)
		}
		if i%2 == 0 {
			check(t, s.Kick())
		}
		check(t, redirect.Remove(s))
		check(t, s.Close())
		check(t, s.Close())
		p.Free(batch[5:10]) // what was received outlives the socket
		if c := u.Census(); c.Caller != 0 || c.Kernel != 0 || c.Free+c.Closed != frames {
			t.Fatalf("restart %d: census %+v", i, c)
		}
	}
	testenv.Eventually(t, patience, func() error {
		if err := client.Do(func() error { _, err := u.Recover(p); return err }); err != nil {
			return err
		}
		if p.Len() != frames {
			return fmt.Errorf("%d frames of %d came back: %+v", p.Len(), frames, u.Census())
		}
		return nil
	})
	check(t, redirect.Close())
	check(t, u.Close())
	testenv.Eventually(t, patience, func() error {
		if leaked := more(files, openFiles()) + more(maps, socketMappings()); leaked != "" {
			return errors.New(leaked)
		}
		if now := pinnedPages(t); now >= before+frames {
			return fmt.Errorf("%d pages are pinned, %d were before", now, before)
		}
		return nil
	})
}

// pinnedPages returns how many pages the kernel has pinned, of all programs.
func pinnedPages(t *testing.T) int {
	t.Helper()
	text := must(os.ReadFile("/proc/vmstat"))(t)
	count := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "nr_foll_pin_") {
			count[f[0]] = must(strconv.Atoi(f[1]))(t)
		}
	}
	return count["nr_foll_pin_acquired"] - count["nr_foll_pin_released"]
}

// TestRestartBesideAWorker opens and closes a socket of one pool, and counts frames, while another worker
// forwards on the same UMEM. The race detector must see nothing wrong in it.
func TestRestartBesideAWorker(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	gw, client, server := l.Must(t, "gw"), l.Must(t, "client"), l.Must(t, "server")
	u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 1024, FrameSize: 2048, Mode: xsk.Copy}))(t)
	e := &end{umem: u, pool: must(u.NewPool(512))(t)}
	defer e.close(t)
	rings := xsk.SocketOptions{Rx: 128, Tx: 128, Fill: 128, Completion: 128}
	e.open(t, gw, "lan", 1, xsk.AttachOptions{}, rings)
	e.open(t, gw, "wan", 1, xsk.AttachOptions{}, rings)
	c := &cable{e: e}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.run(ctx) }()
	sender := must(client.OpenSender("c0"))(t)
	defer sender.Close()
	capture := must(server.StartCapture("s0", testenv.CaptureOptions{
		Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
	}))(t)
	p := must(u.NewPool(512))(t)
	for i := range 10 {
		for n := range 20 {
			check(t, sender.Send(frameOf(uint64(20*i+n), shortest)))
		}
		// A device of another namespace: a UMEM does not mind.
		s := must(open(server, u, p, "s0", 0, small))(t)
		u.Census()
		check(t, s.Close())
	}
	wait, stopWaiting := context.WithTimeout(t.Context(), patience)
	defer stopWaiting()
	check(t, capture.Wait(wait, 200))
	must(capture.Stop())(t)
	led := newLedger(200, func(uint64) int { return shortest })
	for _, f := range capture.Frames() {
		check(t, led.take(f.Data))
	}
	cancel()
	<-stopped
	check(t, c.err)
	testenv.Eventually(t, patience, func() error {
		if err := server.Do(func() error { _, err := u.Recover(p); return err }); err != nil {
			return err
		}
		if p.Len() != 512 {
			return fmt.Errorf("%d frames of 512: %+v", p.Len(), u.Census())
		}
		return nil
	})
}

// TestRebindAfterKill kills a process that has the queue, with packets in its rings.
func TestRebindAfterKill(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	client := l.Must(t, "client")
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	for range 3 {
		cmd := client.Command(t.Context(), must(os.Executable())(t))
		cmd.Env = append(os.Environ(), holderVariable+"=c0")
		cmd.Stderr = os.Stderr
		out := must(cmd.StdoutPipe())(t)
		check(t, cmd.Start())
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
			t.Fatalf("the other process says %q: %v", line, err)
		}
		check(t, sender.Send(frameOf(0, shortest)))
		check(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		e := newEnd(t, xsk.UMEMOptions{Frames: 256, Mode: xsk.Copy})
		s := e.open(t, client, "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 128, Completion: 64}).sockets[0]
		led := newLedger(100, everyLength)
		go feed(t, led, 32, sender.Send)
		receiveAll(t, e, s, led)
		check(t, s.Close())
		check(t, e.ports[0].redirect.Close())
		e.ports = nil
	}
}

// TestPortGivenUp closes the socket of one of two ports while the UMEM lives on: its frames serve the
// other port. Then the first port's device vanishes, and even so nothing is lost.
func TestPortGivenUp(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	gw := l.Must(t, "gw")
	e := newEnd(t, xsk.UMEMOptions{Frames: 128, FrameSize: 2048, Mode: xsk.Copy})
	lan := e.open(t, gw, "lan", 1, xsk.AttachOptions{}, small)
	wan := e.open(t, gw, "wan", 1, xsk.AttachOptions{}, small)
	if n := e.pool.Len(); n != 0 {
		t.Fatalf("%d frames are free", n)
	}
	recoverAll := func(want int) {
		t.Helper()
		testenv.Eventually(t, patience, func() error {
			if err := gw.Do(func() error { _, err := e.umem.Recover(e.pool); return err }); err != nil {
				return err
			}
			if n := e.pool.Len(); n != want {
				return fmt.Errorf("%d frames of %d came back", n, want)
			}
			return nil
		})
	}
	check(t, lan.sockets[0].Close())
	if c := e.umem.Census(); c.Closed != 64 || c.Kernel != 64 {
		t.Errorf("census %+v", c)
	}
	recoverAll(64)

	lan.sockets[0] = must(open(gw, e.umem, e.pool, "lan", 0, small))(t)
	check(t, gw.Do(func() error {
		link, err := netlink.LinkByName("lan")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
	var one [1]xsk.Desc
	s := lan.sockets[0]
	testenv.Eventually(t, patience, func() error {
		if s.Receive(one[:]) == 0 && e.pool.Alloc(one[:]) == 0 {
			// All frames are with the kernel: take one from the other port.
			check(t, wan.sockets[0].Close())
			recoverAll(64)
			return errors.New("no frame yet")
		}
		one[0].Len = shortest
		if s.Transmit(one[:]) == 0 {
			e.pool.Free(one[:])
		}
		if err := s.Kick(); !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("a socket without a device says %v", err)
		}
		return nil
	})
	check(t, s.Close())
	recoverAll(128)
}

// TestOpenBesideASocketWithoutADevice shares a UMEM with a socket whose device has vanished.
func TestOpenBesideASocketWithoutADevice(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	gw := l.Must(t, "gw")
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	lan := e.open(t, gw, "lan", 1, xsk.AttachOptions{}, small)
	check(t, gw.Do(func() error {
		link, err := netlink.LinkByName("lan")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
	wan := e.open(t, gw, "wan", 1, xsk.AttachOptions{}, small).sockets[0]
	check(t, wan.Kick())
	testenv.Eventually(t, patience, func() error {
		sender := must(l.Must(t, "server").OpenSender("s0"))(t)
		defer sender.Close()
		if err := sender.Send(frameOf(0, shortest)); err != nil {
			return err
		}
		if wan.Rings().Rx == 0 {
			return errors.New("nothing arrives")
		}
		return nil
	})
	if n := len(wan.Attempts()); n != 1 {
		t.Errorf("attempts %v", wan.Attempts())
	}
	check(t, lan.sockets[0].Close())
}

// TestLinkDown takes the device down and up under a socket: nothing breaks, and what is counted is told.
func TestLinkDown(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	client, gw := l.Must(t, "client"), l.Must(t, "gw")
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, client, "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 128, Completion: 64}).sockets[0]
	check(t, client.SetUp("c0", false))
	packet := build(e, frameOf(0, shortest))
	if s.Transmit(packet) != 1 {
		t.Fatal("the ring is full")
	}
	check(t, s.Kick())
	if c := s.Counters(); c.KickDown == 0 {
		t.Errorf("counters %+v", c)
	}
	check(t, client.SetUp("c0", true))
	sentAll(t, s)
	sender := must(gw.OpenSender("lan"))(t)
	defer sender.Close()
	testenv.Eventually(t, patience, func() error { // the carrier comes back a moment later
		if err := sender.Send(frameOf(0, shortest)); err != nil {
			return err
		}
		if s.Rings().Rx == 0 {
			return errors.New("nothing arrives")
		}
		return nil
	})
	batch := make([]xsk.Desc, 64)
	n := s.Receive(batch)
	e.pool.Free(batch[:n])
}

func TestWait(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, small).sockets[0]
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	var reading, writing xsk.Poller
	reading.Add(s, xsk.Readable)
	writing.Add(s, xsk.Writable)
	start := time.Now()
	if n := must(reading.Wait(30 * time.Millisecond))(t); n != 0 || time.Since(start) < 30*time.Millisecond {
		t.Errorf("%d sockets have packets after %s", n, time.Since(start))
	}
	if n := must(reading.Wait(0))(t); n != 0 {
		t.Errorf("%d sockets have packets", n)
	}
	if n := must(writing.Wait(-1))(t); n != 1 {
		t.Errorf("%d sockets have room", n)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		if err := sender.Send(frameOf(1, shortest)); err != nil {
			t.Error(err)
		}
	}()
	if n := must(reading.Wait(patience))(t); n != 1 {
		t.Errorf("%d sockets have packets", n)
	}
	batch := make([]xsk.Desc, 8)
	n := s.Receive(batch)
	if n != 1 {
		t.Errorf("%d packets", n)
	}
	e.pool.Free(batch[:n])
	// Waiting wakes the kernel to send, as Kick does.
	if s.Transmit(build(e, frameOf(2, shortest))) != 1 {
		t.Error("the ring is full")
	}
	must(writing.Wait(0))(t)
	testenv.Eventually(t, patience, func() error {
		if s.Reclaim() == 0 {
			return errors.New("nothing was sent")
		}
		return nil
	})
	reading.Remove(s)
	if n := must(reading.Wait(0))(t); n != 0 {
		t.Errorf("%d sockets of none", n)
	}
}

// TestBusyPoll receives and sends with the device's NAPI driven by Kick alone.
func TestBusyPoll(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: xsk.Copy})
	o := xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 128, Completion: 64, BusyPoll: xsk.BusyPoll{Time: 20 * time.Microsecond, Budget: 16}}
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, o).sockets[0]
	for option, want := range map[int]int{unix.SO_PREFER_BUSY_POLL: 1, unix.SO_BUSY_POLL: 20} {
		if got := must(unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, option))(t); got != want {
			t.Errorf("option %d is %d, want %d", option, got, want)
		}
	}
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	led := newLedger(2000, everyLength)
	go feed(t, led, 32, sender.Send)
	receiveAll(t, e, s, led)
	for n := range uint64(200) {
		check(t, send(e, s, frameOf(n, everyLength(n))))
	}
	sentAll(t, s)
	if c := s.Counters(); c.Kicks < c.TxPackets {
		t.Errorf("busy polling without system calls: %+v", c)
	}
}

// TestHugePages has pages of 2 MiB where the machine can give them, and is told why where it cannot.
func TestHugePages(t *testing.T) {
	testenv.RequireRoot(t)
	const limit = "/proc/sys/vm/nr_overcommit_hugepages"
	before := must(os.ReadFile(limit))(t)
	set := func(value string) {
		t.Helper()
		check(t, os.WriteFile(limit, []byte(value), 0))
	}
	t.Cleanup(func() { set(string(before)) })
	if free := hugePagesFree(t); free == 0 {
		set("0")
		u := must(xsk.NewUMEM(xsk.UMEMOptions{Frames: 1024, FrameSize: 4096, HugePages: true}))(t)
		size, why := u.Pages()
		if size != os.Getpagesize() || why == nil || !errors.Is(why, unix.ENOMEM) || !strings.Contains(why.Error(), "vm.nr_hugepages") {
			t.Errorf("pages of %d bytes: %v", size, why)
		}
		check(t, u.Close())
	}
	set("8")
	e := newEnd(t, xsk.UMEMOptions{Frames: 1025, FrameSize: 4096, HugePages: true, Mode: xsk.Copy}) // three pages, the last one mostly unused
	size, why := e.umem.Pages()
	if why != nil {
		t.Fatalf("this machine has no three pages of 2 MiB in one piece: %v", why)
	}
	if size != 2<<20 {
		t.Errorf("pages of %d bytes", size)
	}
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{}, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 1024, Completion: 64}).sockets[0]
	sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
	defer sender.Close()
	led := newLedger(2000, everyLength)
	go feed(t, led, 32, sender.Send)
	receiveAll(t, e, s, led)
}

func hugePagesFree(t *testing.T) int {
	t.Helper()
	text := must(os.ReadFile("/proc/meminfo"))(t)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "HugePages_Free:"); ok {
			return must(strconv.Atoi(strings.TrimSpace(rest)))(t)
		}
	}
	return 0
}

// TestInspect compares what is told of a device with what the lab made.
func TestInspect(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, Queues: 2})
	gw := l.Must(t, "gw")
	inspect := func() (d xsk.Device) {
		t.Helper()
		check(t, gw.Do(func() (err error) { d, err = xsk.Inspect("lan"); return err }))
		return d
	}
	index := must(gw.Index("lan"))(t)
	d := inspect()
	if d.Name != "lan" || d.Index != index || d.Driver != "veth" || !d.Up || d.MTU != 1500 || d.Queues != 2 || d.XDP != xsk.Any {
		t.Errorf("device %+v", d)
	}
	if d.Known && (d.Features&(xsk.FeatureBasic|xsk.FeatureRedirect) == 0 || d.Features&xsk.FeatureZeroCopy != 0) {
		t.Errorf("features %#x", d.Features)
	}
	for _, mode := range []xsk.Mode{xsk.Copy, xsk.Generic} {
		var r *xsk.Redirect
		check(t, gw.Do(func() (err error) { r, err = xsk.Attach("lan", xsk.AttachOptions{Mode: mode}); return err }))
		if d := inspect(); d.XDP != mode {
			t.Errorf("a program runs in mode %s, want %s", d.XDP, mode)
		}
		err := gw.Do(func() error { _, err := xsk.Attach("lan", xsk.AttachOptions{Mode: mode}); return err })
		if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "has an XDP program already") {
			t.Errorf("a second program: %v", err)
		}
		check(t, r.Close())
	}
}
