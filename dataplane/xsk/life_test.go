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
	held := testenv.Holding()
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
		if leaked := held.More(); leaked != "" {
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
