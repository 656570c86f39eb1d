package worker_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// A hook holds workers up, or ends them, when a test says so.
type hook struct {
	park [2]atomic.Bool // hold this worker up
	die  [2]atomic.Bool // end it, once
}

func (h *hook) call(id int) {
	for h.park[id].Load() {
		time.Sleep(time.Millisecond)
	}
	if h.die[id].CompareAndSwap(true, false) {
		panic("the test ends it")
	}
}

// TestParked holds one worker up: it is told to be silent, its beats grow old, the ring that stands still is named, and
// the other worker goes on. When it is let go it goes on itself.
func TestParked(t *testing.T) {
	b := newBench(t, testenv.Options{Queues: 2})
	var h hook
	b.run(t, worker.Options{Hook: h.call}, b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false))
	defer h.park[0].Store(false)
	atServer := newSink(t, b.server, "s0")
	first, second := newSource(t, b.client, "c0", 0, false), newSource(t, b.client, "c0", 1, false)
	held := &stream{number: 0, h: to(wanID, 0)}
	free := &stream{number: 1, h: to(wanID, 1)}

	h.park[0].Store(true)
	record := &b.tables.Queues[lanID*64]
	until(t, func() error {
		if s := b.crew.Status().Workers[0].State; s != "silent" {
			return fmt.Errorf("worker 0 is %s", s)
		}
		return nil
	})
	beat := atomic.LoadUint32(&record.Beat)
	for n := range uint64(7) {
		check(t, first.send(held.frame(n)))
		held.sent.Add(1)
	}
	var sent atomic.Int64
	check(t, pour(second, free, 200, &sent, atServer, 32))
	until(t, func() error {
		s := b.crew.Status()
		if len(s.Stalls) != 1 {
			return fmt.Errorf("stalls %+v", s.Stalls)
		}
		if at := s.Stalls[0]; at.Port != "lan" || at.Queue != 0 || at.Ring != "rx" || at.Waiting != 7 || !strings.Contains(at.Why, "worker 0 gives no sign of life") {
			return fmt.Errorf("stall %+v", at)
		}
		if n := atServer.capture.Count(); n < 200 {
			return fmt.Errorf("%d frames passed the other worker", n)
		}
		return nil
	})
	// What is at home with him and comes by the other's queue is dropped, or goes on without him.
	b.crew.SetWorks(map[uint32]worker.Work{8: {Bypass: true}})
	closed, open := to(wanID, 0), to(wanID, 0)
	open.Rule++
	failing := &stream{number: 2, h: closed}
	for n := range uint64(9) {
		check(t, second.send(failing.frame(n)))
	}
	bypass := &stream{number: 3, h: open}
	check(t, pour(second, bypass, 11, &sent, atServer, 32))
	until(t, func() error {
		if s := b.crew.Status().Workers[1]; s.Drops["worker-full"] != 9 {
			return fmt.Errorf("drops %v", s.Drops)
		}
		if n := atServer.capture.Count(); n < 211 {
			return fmt.Errorf("%d frames passed the other worker", n)
		}
		return nil
	})
	until(t, func() error { // others may keep worker 1 from its CPU for a moment
		if s := b.crew.Status().Workers; s[0].State != "silent" || s[1].State == "silent" {
			return fmt.Errorf("worker 0 is %s, worker 1 %s", s[0].State, s[1].State)
		}
		return nil
	})
	if now := atomic.LoadUint32(&record.Beat); now != beat {
		t.Error("a worker that is held up gave a sign of life")
	}
	if !b.logged("port lan queue 0: the rx ring stands still with 7 in it") {
		t.Error("the stall was not logged")
	}
	h.park[0].Store(false)
	until(t, func() error {
		if s := b.crew.Status(); len(s.Stalls) != 0 || s.Workers[0].State == "silent" {
			return fmt.Errorf("%+v", s)
		}
		if n := atServer.capture.Count(); n < 218 {
			return fmt.Errorf("%d frames arrived", n)
		}
		return nil
	})
	if !b.logged("port lan queue 0: the rx ring moves again") {
		t.Error("the end of the stall was not logged")
	}
	for st, r := range atServer.stop(t, held, free, bypass) {
		if r.lost != 0 {
			t.Errorf("stream %d: %d were lost", st.number, r.lost)
		}
	}
}

// TestStall takes a port down by which packets leave: the ring that stands still is named, and why, until the port is up.
func TestStall(t *testing.T) {
	b := newBench(t, testenv.Options{})
	b.run(t, worker.Options{}, b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false))
	atServer := newSink(t, b.server, "s0")
	src := newSource(t, b.client, "c0", 0, false)
	st := &stream{h: to(wanID, 0)}
	check(t, b.gw.SetUp("wan", false))
	for n := range uint64(5) {
		check(t, src.send(st.frame(n)))
		st.sent.Add(1)
	}
	until(t, func() error {
		s := b.crew.Status()
		if len(s.Stalls) != 1 {
			return fmt.Errorf("stalls %+v", s.Stalls)
		}
		if at := s.Stalls[0]; at.Port != "wan" || at.Queue != 0 || at.Ring != "tx" || at.Waiting != 5 || at.Why != "device wan is down" {
			return fmt.Errorf("stall %+v", at)
		}
		return nil
	})
	check(t, b.gw.SetUp("wan", true))
	until(t, func() error {
		if s := b.crew.Status(); len(s.Stalls) != 0 {
			return fmt.Errorf("stalls %+v", s.Stalls)
		}
		return nil
	})
	if !b.logged("port wan queue 0: the tx ring stands still with 5 in it: device wan is down") || !b.logged("port wan queue 0: the tx ring moves again") {
		t.Error("the stall was not logged")
	}
	atServer.stop(t, st)
}

// TestKilled ends workers in the midst of traffic through both of them. They are back soon, nothing comes twice or
// out of order, what is lost is counted, and all frames are in their places in the end.
func TestKilled(t *testing.T) {
	b := newBench(t, testenv.Options{Queues: 2})
	b.expectDeaths = true
	var h hook
	b.run(t, worker.Options{Hook: h.call}, b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false))
	atServer := newSink(t, b.server, "s0")
	streams := []*stream{{number: 0, h: to(wanID, 1)}, {number: 1, h: to(wanID, 0)}}
	var done atomic.Bool
	var wg sync.WaitGroup
	for q, st := range streams {
		src := newSource(t, b.client, "c0", q, false)
		wg.Go(func() {
			for !done.Load() {
				if err := src.send(st.frame(st.sent.Load())); err != nil {
					t.Error(err)
					return
				}
				if st.sent.Add(1)%8 == 0 {
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
	const kills = 6
	for i := range kills {
		id := i % 2
		size := func() uint32 { return b.size(lanID, id) }
		until(t, func() error {
			if size() == 0 {
				return errors.New("XDP may not send")
			}
			return nil
		})
		h.die[id].Store(true)
		at := time.Now()
		until(t, func() error {
			if n := b.crew.Status().Workers[id].Restarts; n != uint64(i/2+1) || size() == 0 {
				return fmt.Errorf("%d restarts", n)
			}
			return nil
		})
		took := time.Since(at)
		t.Logf("worker %d was back after %s", id, took.Round(time.Millisecond))
		before := atServer.capture.Count()
		until(t, func() error {
			if n := atServer.capture.Count(); n < before+100 {
				return fmt.Errorf("%d frames since", n-before)
			}
			return nil
		})
	}
	done.Store(true)
	wg.Wait()
	b.stop(t)
	var arrived uint64
	for st, r := range atServer.stop(t, streams...) {
		t.Logf("stream %d: %d sent, %d lost", st.number, st.sent.Load(), r.lost)
		arrived += r.arrived
	}
	if arrived == 0 {
		t.Error("nothing arrived")
	}
}

// TestModes looks at what is tried and said of it.
func TestModes(t *testing.T) {
	b := newBench(t, testenv.Options{})
	lan, wan := b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false)
	o := worker.Options{Tables: b.tables, In: b.gw.Do, Ring: 256}
	for _, tt := range []struct {
		name   string
		change func(*worker.Options)
		want   []string
	}{
		{"zero-copy on veth", func(o *worker.Options) { o.Mode = xsk.ZeroCopy }, []string{"port lan", "zero-copy", "driver veth has no zero-copy"}},
		{"generic where the program is native", func(o *worker.Options) { o.Mode = xsk.Generic }, []string{"port lan", "xdpgeneric"}},
		{"a CPU that is not there", func(o *worker.Options) { o.CPUs = []int{4000} }, []string{"CPU 4000"}},
		{"too many workers", func(o *worker.Options) { o.Count = 65 }, []string{"65 workers", "1 to 64"}},
		{"odd rings", func(o *worker.Options) { o.Ring = 100 }, []string{"power of two"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := o
			tt.change(&o)
			c, err := worker.Start(o, []worker.Port{lan, wan})
			if err == nil {
				c.Close()
				t.Fatal("it starts")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
	b.run(t, worker.Options{HugePages: true}, lan, wan)
	s := b.crew.Status()
	if len(s.Attempts) != 2 || s.Attempts[0].Mode != "copy" || s.Attempts[0].Error != "" {
		// The refusal of zero-copy comes first.
		if len(s.Attempts) != 3 || s.Attempts[0].Mode != "zero-copy" || s.Attempts[0].Error == "" || s.Attempts[2].Mode != "copy" {
			t.Errorf("attempts %+v", s.Attempts)
		}
	}
	if s.Mode != "copy" || s.Memory.Frames == 0 || s.Memory.Free == 0 {
		t.Errorf("status %+v", s)
	}
	if !b.logged("port lan in mode zero-copy: ") || !b.logged("port wan in mode copy: granted") {
		t.Error("the modes were not logged")
	}
	if s.Memory.PageSize != 2<<20 && (s.Memory.WhySmall == "" || !b.logged("packet memory has pages of")) {
		t.Errorf("why pages are small is not told: %+v", s.Memory)
	}
}

// TestAdaptive looks at what an idle worker does.
func TestAdaptive(t *testing.T) {
	for _, poll := range []worker.Poll{worker.Adaptive, worker.Always} {
		t.Run(poll.String(), func(t *testing.T) {
			b := newBench(t, testenv.Options{})
			b.run(t, worker.Options{Poll: poll}, b.attach(t, "lan", lanID, false))
			record := &b.tables.Queues[lanID*64]
			beat := atomic.LoadUint32(&record.Beat)
			until(t, func() error {
				if now := atomic.LoadUint32(&record.Beat); now-beat < 100 {
					return fmt.Errorf("beat %d ticks on", now-beat)
				}
				return nil
			})
			s := b.crew.Status().Workers[0]
			if sleeps := s.Wakeups > 0; sleeps != (poll == worker.Adaptive) || s.IdleRounds == 0 {
				t.Errorf("%d wakeups, %d idle rounds", s.Wakeups, s.IdleRounds)
			}
			if poll == worker.Adaptive && s.IdleRounds > 5000 {
				t.Errorf("%d idle rounds in a tenth of a second", s.IdleRounds)
			}
		})
	}
}

// TestFull has one worker take nothing from the other, though it gives signs of life: what it has no room for is dropped,
// or goes on without it, as its rule says.
func TestFull(t *testing.T) {
	b := newBench(t, testenv.Options{Queues: 2})
	b.run(t, worker.Options{}, b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false))
	open := to(wanID, 0)
	open.Rule++
	b.crew.SetWorks(map[uint32]worker.Work{8: {Bypass: true}})
	atServer := newSink(t, b.server, "s0")
	src := newSource(t, b.client, "c0", 1, false)
	var let atomic.Bool
	held, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- b.crew.InRounds(0, func(func() bool) {
			close(held)
			for !let.Load() {
				b.crew.Beat(0)
				time.Sleep(time.Millisecond)
			}
		})
	}()
	defer let.Store(true)
	<-held
	record := &b.tables.Queues[lanID*64+1]
	send := func(st *stream, count int) {
		for n := range count {
			check(t, src.send(st.frame(uint64(n))))
			st.sent.Add(1)
			if n%64 == 63 || n == count-1 {
				until(t, func() error {
					if sent, taken := atomic.LoadUint32(&record.Sent), atomic.LoadUint32(&record.Taken); sent != taken || sent == 0 {
						return fmt.Errorf("%d of %d were taken", taken, sent)
					}
					return nil
				})
			}
		}
	}
	waits, bypass, failing := &stream{number: 0, h: open}, &stream{number: 1, h: open}, &stream{number: 2, h: to(wanID, 0)}
	room := b.crew.HandedRoom()
	send(waits, room)
	send(bypass, 20)
	send(failing, 9)
	until(t, func() error {
		if n := atServer.capture.Count(); n != 20 {
			return fmt.Errorf("%d of 20 went on without the worker that is full", n)
		}
		return nil
	})
	let.Store(true)
	check(t, <-ended)
	until(t, func() error {
		if n := atServer.capture.Count(); n != room+20 {
			return fmt.Errorf("%d of %d arrived", n, room+20)
		}
		if n := b.crew.Status().Workers[1].Drops["worker-full"]; n != 9 {
			return fmt.Errorf("%d of 9 were dropped", n)
		}
		return nil
	})
	for st, r := range atServer.stop(t, waits, bypass) {
		if r.lost != 0 {
			t.Errorf("stream %d: %d were lost", st.number, r.lost)
		}
	}
}
