package worker_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/testenv"
)

// TestPorts has a port go and come back, and a device go and another take its place, while another port's traffic
// flows: that loses nothing, and what is for a port that is not there is dropped under its reason.
func TestPorts(t *testing.T) {
	b := newBenchIn(t, testenv.New(t, "three-zone", testenv.Options{Prefix: prefix}), "lan", "wan")
	lan, wan, dmz := b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false), b.attach(t, "dmz", monID, false)
	b.run(t, worker.Options{}, lan, wan, dmz)
	atServer := newSink(t, b.server, "w0")
	st := &stream{number: 0, h: to(wanID, 0)}
	var sent atomic.Int64
	var done atomic.Bool
	flows := make(chan error)
	src := newSource(t, b.client, "l0", 0, false)
	go func() {
		for !done.Load() {
			if err := pour(src, st, 10, &sent, atServer, 64); err != nil {
				flows <- err
				return
			}
			time.Sleep(200 * time.Microsecond)
		}
		flows <- nil
	}()
	for range 3 {
		b.serve(t, lan, wan)
		if b.size(monID, 0) != 0 {
			t.Error("XDP may send to a port that is no more")
		}
		b.serve(t, lan, wan, dmz)
	}
	// The device goes without a word, and is heard of later.
	un := must(b.lab.Unplug("gw", "dmz"))(t)
	time.Sleep(50 * time.Millisecond)
	b.serve(t, lan, wan)
	check(t, un.Replug())
	dmz = b.attach(t, "dmz", monID, false)
	b.serve(t, lan, wan, dmz)
	// And without SetPorts at all, the crew tries again by itself.
	b.serve(t, lan, wan)
	holder := newSource(t, b.gw, "dmz", 0, false)
	if err := b.crew.SetPorts([]worker.Port{lan, wan, dmz}); err == nil || !strings.Contains(err.Error(), "another socket holds the queue") {
		t.Errorf("a port whose queue is held: %v", err)
	}
	holder.close()
	until(t, func() error {
		if b.size(monID, 0) == 0 {
			return errors.New("XDP may not send to a port whose queue is free")
		}
		return nil
	})
	done.Store(true)
	check(t, <-flows)
	until(t, func() error {
		if n := atServer.capture.Count(); uint64(n) < st.sent.Load() {
			return fmt.Errorf("%d of %d arrived", n, st.sent.Load())
		}
		return nil
	})
	if r := atServer.stop(t, st)[st]; r.lost != 0 {
		t.Errorf("%d of %d were lost while other ports came and went", r.lost, st.sent.Load())
	}
	// To a port that is held nothing is sent.
	b.crew.Hold([]worker.Port{lan, dmz})
	for n := range uint64(5) {
		check(t, src.send((&stream{h: to(wanID, 0)}).frame(n)))
	}
	until(t, func() error {
		if s := b.crew.Status().Workers[0]; s.Drops["egress-down"] != 5 {
			return fmt.Errorf("drops %v", s.Drops)
		}
		return nil
	})
}

// TestNoPort counts what is for a port that has no workers, and lets its number be.
func TestNoPort(t *testing.T) {
	b := newBench(t, testenv.Options{})
	b.run(t, worker.Options{}, b.attach(t, "lan", lanID, false))
	b.tables.Cells[0].Leg[0][0] = 3 << 16
	src := newSource(t, b.client, "c0", 0, false)
	st := &stream{h: bpf.XDPHandover{Cell: 0, Stages: stageForward, Port: wanID}}
	for n := range uint64(3) {
		check(t, src.send(st.frame(n)))
	}
	until(t, func() error {
		if s := b.crew.Status().Workers[0]; s.Drops["egress-down"] != 3 || s.Sent != 0 {
			return fmt.Errorf("drops %v, %d sent", s.Drops, s.Sent)
		}
		return nil
	})
	if cell := atomic.LoadUint32(&b.tables.Cells[0].Leg[0][0]); cell != 3<<16 {
		t.Errorf("the cell of packets that were dropped says %#x", cell)
	}
}

// TestPortsWhileParked has a port go and come back while one of two workers is held up: the other serves it at once, and
// that one does so too when it is let go, without being told again.
func TestPortsWhileParked(t *testing.T) {
	b := newBench(t, testenv.Options{Queues: 2})
	var h hook
	lan, wan := b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false)
	b.run(t, worker.Options{Hook: h.call}, lan, wan)
	defer h.park[1].Store(false)
	h.park[1].Store(true)
	if err := b.crew.SetPorts([]worker.Port{lan}); err == nil || !strings.Contains(err.Error(), "worker 1 does not answer") {
		t.Errorf("a port is taken from a worker that is held up: %v", err)
	}
	if err := b.crew.SetPorts([]worker.Port{lan, wan}); err == nil || !strings.Contains(err.Error(), "worker 1 does not answer") {
		t.Errorf("a port is given to a worker that is held up: %v", err)
	}
	until(t, func() error { // the kernel may hold the queue for the socket before for so long that it is tried again
		if b.size(wanID, 0) == 0 {
			return errors.New("the worker that answers does not serve the port")
		}
		return nil
	})
	if b.size(wanID, 1) != 0 {
		t.Error("XDP may send to a worker that has not got the socket")
	}
	h.park[1].Store(false)
	until(t, func() error {
		if b.size(wanID, 1) == 0 {
			return errors.New("XDP may not send to the worker that was held up")
		}
		return nil
	})
	atServer := newSink(t, b.server, "s0")
	streams := []*stream{{number: 0, h: to(wanID, 0)}, {number: 1, h: to(wanID, 1)}}
	for q, st := range streams {
		var sent atomic.Int64
		check(t, pour(newSource(t, b.client, "c0", q, false), st, 50, &sent, atServer, 32))
	}
	until(t, func() error {
		if n := atServer.capture.Count(); n < 100 {
			return fmt.Errorf("%d of 100 arrived, drops %v and %v", n, b.crew.Status().Workers[0].Drops, b.crew.Status().Workers[1].Drops)
		}
		return nil
	})
	atServer.stop(t, streams...)
}

// TestBackAtOnce has a port go and come back before anybody has closed its sockets: packets leave by it again.
func TestBackAtOnce(t *testing.T) {
	b := newBench(t, testenv.Options{})
	lan, wan := b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false)
	b.run(t, worker.Options{}, lan, wan)
	b.crew.Hold([]worker.Port{lan})
	b.crew.Hold([]worker.Port{lan, wan})
	b.serve(t, lan, wan)
	atServer := newSink(t, b.server, "s0")
	st := &stream{h: to(wanID, 0)}
	var sent atomic.Int64
	check(t, pour(newSource(t, b.client, "c0", 0, false), st, 20, &sent, atServer, 32))
	until(t, func() error {
		if n := atServer.capture.Count(); n < 20 {
			return fmt.Errorf("%d of 20 arrived, drops %v", n, b.crew.Status().Workers[0].Drops)
		}
		return nil
	})
	atServer.stop(t, st)
}

// TestHeldQueue has somebody hold the second queue of a port: however often it is tried, the frames for its first one are
// not used up.
func TestHeldQueue(t *testing.T) {
	b := newBench(t, testenv.Options{Queues: 2})
	lan, wan := b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false)
	b.run(t, worker.Options{}, lan)
	free := b.crew.Status().Memory.Free
	holder := newSource(t, b.gw, "wan", 1, false)
	for range 3 {
		if err := b.crew.SetPorts([]worker.Port{lan, wan}); err == nil || !strings.Contains(err.Error(), "another socket holds the queue") {
			t.Errorf("a port whose queue is held: %v", err)
		}
	}
	if now := b.crew.Status().Memory.Free; now != free {
		t.Errorf("%d frames are free, and %d were", now, free)
	}
	why := func() (texts []string) {
		for _, a := range b.crew.Status().Attempts {
			if a.Port == "wan" && a.Error != "" {
				texts = append(texts, a.Error)
			}
		}
		return texts
	}
	if texts := why(); len(texts) != 1 || !strings.Contains(texts[0], "another socket holds the queue") {
		t.Errorf("the status says %q", texts)
	}
	holder.close()
	until(t, func() error {
		if b.size(wanID, 0) == 0 || b.size(wanID, 1) == 0 {
			return errors.New("XDP may not send to a port whose queue is free")
		}
		return nil
	})
	if texts := why(); len(texts) != 0 {
		t.Errorf("the status still says %q", texts)
	}
	if !b.logged("port wan has no workers: ") || !b.logged("port wan has workers on all queues") {
		t.Error("that it had no workers, and has some again, was not logged")
	}
}

// TestOutgrown adds more ports than there was memory for: all are served.
func TestOutgrown(t *testing.T) {
	b := newBenchIn(t, testenv.New(t, "three-zone", testenv.Options{Prefix: prefix}), "lan", "wan")
	lan, wan, dmz := b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false), b.attach(t, "dmz", monID, false)
	b.run(t, worker.Options{}, lan)
	frames := b.crew.Status().Memory.Frames
	b.serve(t, lan, wan, dmz)
	if now := b.crew.Status().Memory.Frames; now <= frames {
		t.Errorf("%d frames, and %d before", now, frames)
	}
	atServer := newSink(t, b.server, "w0")
	st := &stream{h: to(wanID, 0)}
	var sent atomic.Int64
	check(t, pour(newSource(t, b.client, "l0", 0, false), st, 50, &sent, atServer, 32))
	until(t, func() error {
		if n := atServer.capture.Count(); n < 50 || b.size(monID, 0) == 0 {
			return fmt.Errorf("%d of 50 arrived", n)
		}
		return nil
	})
	atServer.stop(t, st)
}
