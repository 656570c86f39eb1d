package xsk_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestSoak runs a cable with random frame sizes and ring sizes through which numbered packets of random
// lengths go, while ports are taken down and up and sockets are closed and opened again. What arrives is
// byte for byte what was sent, in order and once; in the end every frame is in its place. It takes 1 s,
// or ten minutes with SOFTDPU_LONG set; in a debug build 2 s, or two minutes.
func TestSoak(t *testing.T) {
	duration, long := time.Second, 10*time.Minute
	if xsk.Debug {
		duration, long = 2*time.Second, 2*time.Minute
	}
	if os.Getenv("SOFTDPU_LONG") != "" {
		duration = long
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix})
	gw, client, server := l.Must(t, "gw"), l.Must(t, "client"), l.Must(t, "server")
	held := testenv.Holding()
	end := time.Now().Add(duration)
	packets, restarts, flaps, lost := 0, 0, 0, 0
	for time.Now().Before(end) {
		u := xsk.UMEMOptions{Mode: xsk.Copy, Frames: 600 + r.IntN(1000), FrameSize: 2048 << r.IntN(2), Headroom: 8 * r.IntN(30), HugePages: r.IntN(4) == 0}
		u.MultiBuffer = r.IntN(2) == 0 && xsk.KernelAtLeast(6, 6)
		if r.IntN(4) == 0 {
			u.Mode = xsk.Generic
		}
		e := newEnd(t, u)
		attach := xsk.AttachOptions{Mode: u.Mode, MultiBuffer: u.MultiBuffer}
		rings := func() xsk.SocketOptions {
			return xsk.SocketOptions{Rx: 64 << r.IntN(4), Tx: 64 << r.IntN(4), Fill: 128 << r.IntN(2), Completion: 64 << r.IntN(4), BindTimeout: patience}
		}
		lan := e.open(t, gw, "lan", 1, attach, rings())
		wan := e.open(t, gw, "wan", 1, attach, rings())
		for range 5 {
			p, o := soakRound(t, e, lan, wan, client, server, r)
			packets, lost = packets+p, lost+o
			at := []*port{lan, wan}[r.IntN(2)]
			if r.IntN(2) == 0 {
				restarts++
				restart(t, e, at, rings())
			} else {
				flaps++
				check(t, gw.SetUp(at.device, false))
				check(t, gw.SetUp(at.device, true))
			}
		}
		for _, p := range e.ports {
			sentAll(t, p.sockets[0])
		}
		if c := e.umem.Census(); c.Caller != 0 || c.Closed != 0 || c.Free+c.Kernel != c.Total {
			t.Fatalf("census %+v", c)
		}
		e.close(t)
		e.ports = nil
	}
	if packets == 0 || restarts == 0 && flaps == 0 {
		t.Errorf("%d packets, %d restarts, %d flaps: nothing was tried", packets, restarts, flaps)
	}
	t.Logf("%d packets, %d restarts of sockets, %d ports down and up; %d packets were lost while a port came up", packets, restarts, flaps, lost)
	testenv.Eventually(t, patience, func() error {
		if leaked := held.More(); leaked != "" {
			return errors.New(leaked)
		}
		return nil
	})
}

// restart closes a port's socket with whatever is in it and opens another.
func restart(t *testing.T, e *end, p *port, o xsk.SocketOptions) {
	t.Helper()
	check(t, p.redirect.Remove(p.sockets[0]))
	check(t, p.sockets[0].Close())
	p.sockets[0] = must(open(p.node, e.umem, e.pool, p.device, 0, o))(t)
	check(t, p.redirect.Add(p.sockets[0]))
}

// soakRound sends packets from the client through the two ports to the server, a few at a time, and returns
// how many went through, and how many were lost before the first did: a port that comes up takes a moment.
func soakRound(t *testing.T, e *end, lan, wan *port, client, server *testenv.Namespace, r *rand.Rand) (packets, lost int) {
	t.Helper()
	sender := must(client.OpenSender("c0"))(t)
	defer sender.Close()
	capture := must(server.StartCapture("s0", testenv.CaptureOptions{
		Match: func(b []byte) bool { _, ours := numberOf(b); return ours },
	}))(t)
	batch := make([]xsk.Desc, 64)
	pump := func() {
		a, b := lan.sockets[0], wan.sockets[0]
		for _, way := range [][2]*xsk.Socket{{a, b}, {b, a}} {
			way[0].Reclaim()
			way[1].Reclaim()
			n := way[0].Receive(batch)
			sent := way[1].Transmit(batch[:n])
			e.pool.Free(batch[sent:n])
			way[0].Refill()
			check(t, way[0].Kick())
			check(t, way[1].Kick())
		}
	}
	// until waits for so many packets at the server, and reports whether they came.
	until := func(count int, limit time.Duration) bool {
		for end := time.Now().Add(limit); capture.Count() < count; {
			pump()
			if time.Now().After(end) {
				return false
			}
		}
		return true
	}
	length := func(n uint64) int { return shortest + int(n*131)%(1514-shortest+1) }
	number := uint64(0)
	put := func() {
		check(t, sender.Send(frameOf(number, length(number))))
		number++
	}
	for put(); !until(1, 100*time.Millisecond); put() {
		if lost++; lost > 200 {
			t.Fatal("nothing goes through")
		}
	}
	for range 20 {
		before, burst := capture.Count(), 1+r.IntN(32)
		for range burst {
			put()
		}
		if !until(before+burst, patience) {
			t.Fatalf("%d of %d packets came", capture.Count()-before, burst)
		}
	}
	if lost > 0 {
		until(int(number), 100*time.Millisecond) // what was given up may have come late, and been counted for another
	}
	must(capture.Stop())(t)
	led := newLedger(int(number), length)
	for _, f := range capture.Frames() {
		check(t, led.take(f.Data))
	}
	if led.left > lost {
		t.Fatal(led.missing())
	}
	return int(number) - led.left, led.left
}
