package worker_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/testenv"
)

// TestSoak has crews of random sizes forward numbered packets of random lengths in both directions, at home with
// either worker, while workers are ended, ports are taken down and up, and leave and come back. What arrives is byte
// for byte what was sent, in order and once; nothing is lost but while something was done to a port or a worker; and
// in the end every frame is in its place. It takes some 5 s, or ten minutes with SOFTDPU_LONG set.
func TestSoak(t *testing.T) {
	duration := 3 * time.Second
	if os.Getenv("SOFTDPU_LONG") != "" {
		duration = 10 * time.Minute
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const jumbo = 4000
	b := newBench(t, testenv.Options{Queues: 2, MTU: jumbo})
	b.expectDeaths = true
	held := testenv.Holding()
	var total soaked
	for end := time.Now().Add(duration); time.Now().Before(end); {
		mtu := []int{1500, jumbo}[r.IntN(2)]
		for _, end := range []struct {
			node   *testenv.Namespace
			device string
		}{{b.client, "c0"}, {b.gw, "lan"}, {b.gw, "wan"}, {b.server, "s0"}} {
			check(t, end.node.SetMTU(end.device, mtu))
		}
		soakCrew(t, b, r, mtu, &total)
		if t.Failed() {
			return
		}
	}
	if total.packets == 0 || total.deaths+total.flaps+total.leaves == 0 {
		t.Errorf("nothing was tried: %+v", total)
	}
	t.Logf("%+v", total)
	b.detach()
	until(t, func() error {
		if leaked := held.More(); leaked != "" {
			return errors.New(leaked)
		}
		return nil
	})
}

type soaked struct{ packets, lost, starved, crews, deaths, flaps, leaves int }

// A soakStream is a stream of which it is known what may be lost.
type soakStream struct {
	stream
	source *source
	sink   *sink
	unsafe [][2]uint64 // numbers sent while something was done
}

func soakCrew(t *testing.T, b *bench, r *rand.Rand, mtu int, total *soaked) {
	t.Helper()
	lan, wan := b.attach(t, "lan", lanID, true), b.attach(t, "wan", wanID, true)
	ports := []worker.Port{lan, wan}
	var h hook
	o := worker.Options{Hook: h.call, Ring: 64 << r.IntN(4), FrameSize: []int{0, 2048, os.Getpagesize()}[r.IntN(3)],
		HugePages: r.IntN(4) == 0, Count: r.IntN(3), Poll: worker.Poll(r.IntN(4) / 3)}
	b.run(t, o, ports...)
	workers := b.crew.Workers()
	t.Logf("%d workers, MTU %d, rings of %d, %d", workers, mtu, o.Ring, o.FrameSize)
	sinks := []*sink{newSink(t, b.server, "s0"), newSink(t, b.client, "c0")}
	length := func(n uint64) int { return shortest + int(n*131)%(mtu+14-shortest+1) }
	var streams []*soakStream
	for q := range 2 {
		streams = append(streams,
			&soakStream{stream: stream{number: uint8(q), h: to(wanID, r.IntN(3)-1), length: length}, source: newSource(t, b.client, "c0", q, true), sink: sinks[0]},
			&soakStream{stream: stream{number: uint8(10 + q), h: to(lanID, r.IntN(3)-1), length: length}, source: newSource(t, b.server, "s0", q, true), sink: sinks[1]})
	}
	for range 4 {
		soakCalm(t, b, streams, sinks, total)
		soakUnrest(t, b, r, &h, workers, ports, streams, total)
		if t.Failed() {
			return
		}
		settle(t, b, streams, sinks)
	}
	soakCalm(t, b, streams, sinks, total)
	b.stop(t)
	for _, s := range streams {
		s.source.close()
	}
	for _, k := range sinks {
		must(k.capture.Stop())(t)
	}
	for _, s := range streams {
		arrived, lost := s.judge(t)
		total.packets, total.lost = total.packets+arrived, total.lost+lost
	}
	total.crews++
}

// soakCalm sends so that nothing may be lost, but for what is counted because a machine that is busy with other
// things keeps a worker from its CPU for so long that it is silent.
func soakCalm(t *testing.T, b *bench, streams []*soakStream, sinks []*sink, total *soaked) {
	t.Helper()
	const n = 150
	before := []int{sinks[0].capture.Count(), sinks[1].capture.Count()}
	starved := func() (packets int) {
		for _, w := range b.crew.Status().Workers {
			packets += int(w.Drops["worker-full"])
		}
		return packets
	}
	atFirst := starved()
	var from []uint64
	for _, s := range streams {
		from = append(from, s.sent.Load())
	}
	var sent [2]atomic.Int64
	var wg sync.WaitGroup
	for _, s := range streams {
		i := slices.Index(sinks, s.sink)
		wg.Go(func() {
			for range n {
				// 12 packets under way in each direction fill no ring of 64, in three frames each.
				lost := 0
				for start := time.Now(); sent[i].Load()-int64(s.sink.capture.Count()-before[i]+lost) >= 12; time.Sleep(50 * time.Microsecond) {
					if time.Since(start) > time.Second {
						lost = starved() - atFirst
						time.Sleep(10 * time.Millisecond)
					}
					if time.Since(start) > patience {
						t.Errorf("stream %d: frame %d waits for earlier ones: %+v", s.number, s.sent.Load(), b.crew.Status())
						return
					}
				}
				if err := s.source.send(s.frame(s.sent.Load())); err != nil {
					t.Error(err)
					return
				}
				s.sent.Add(1)
				sent[i].Add(1)
			}
		})
	}
	wg.Wait()
	lost := 0
	until(t, func() error {
		got := sinks[0].capture.Count() - before[0] + sinks[1].capture.Count() - before[1]
		if got < 4*n {
			lost = starved() - atFirst
		}
		if got+lost < 4*n {
			return fmt.Errorf("%d of %d frames arrived in a calm: %+v", got, 4*n, b.crew.Status())
		}
		return nil
	})
	if lost > 0 {
		total.starved += lost
		for i, s := range streams {
			s.unsafe = append(s.unsafe, [2]uint64{from[i], s.sent.Load()})
		}
	}
}

// soakUnrest does something to a port or a worker while packets flow.
func soakUnrest(t *testing.T, b *bench, r *rand.Rand, h *hook, workers int, ports []worker.Port, streams []*soakStream, total *soaked) {
	t.Helper()
	var done atomic.Bool
	var wg sync.WaitGroup
	for _, s := range streams {
		from := s.sent.Load()
		wg.Go(func() {
			for !done.Load() {
				if err := s.source.send(s.frame(s.sent.Load())); err != nil {
					t.Errorf("stream %d: %v", s.number, err)
					break
				}
				s.sent.Add(1)
				time.Sleep(200 * time.Microsecond)
			}
			s.unsafe = append(s.unsafe, [2]uint64{from, s.sent.Load()})
		})
	}
	time.Sleep(10 * time.Millisecond)
	port := ports[r.IntN(2)]
	switch r.IntN(3) {
	case 0:
		total.deaths++
		id := r.IntN(workers)
		before := b.crew.Status().Workers[id].Restarts
		h.die[id].Store(true)
		until(t, func() error {
			if b.crew.Status().Workers[id].Restarts == before {
				return errors.New("it is not started again")
			}
			return nil
		})
	case 1:
		total.flaps++
		check(t, b.gw.SetUp(port.Device, false))
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
		check(t, b.gw.SetUp(port.Device, true))
	case 2:
		total.leaves++
		b.serve(t, slices.DeleteFunc(slices.Clone(ports), func(p worker.Port) bool { return p == port })...)
		b.serve(t, ports...)
	}
	time.Sleep(10 * time.Millisecond)
	done.Store(true)
	wg.Wait()
}

// settle waits until packets pass again in both directions and by all queues, and no more are under way.
func settle(t *testing.T, b *bench, streams []*soakStream, sinks []*sink) {
	t.Helper()
	until(t, func() error {
		for _, id := range []uint8{lanID, wanID} {
			for q := range 2 {
				if b.size(id, q) == 0 {
					return fmt.Errorf("XDP may not send to port %d queue %d", id, q)
				}
			}
		}
		return nil
	})
	for _, s := range streams {
		from, before := s.sent.Load(), s.sink.capture.Count()
		until(t, func() error {
			if err := s.source.send(s.frame(s.sent.Load())); err != nil {
				return err
			}
			s.sent.Add(1)
			time.Sleep(time.Millisecond)
			if s.sink.capture.Count() == before {
				return fmt.Errorf("stream %d does not pass", s.number)
			}
			return nil
		})
		s.unsafe = append(s.unsafe, [2]uint64{from, s.sent.Load()})
	}
	quiet := 0
	last := []int{-1, -1}
	until(t, func() error {
		now := []int{sinks[0].capture.Count(), sinks[1].capture.Count()}
		if quiet++; !slices.Equal(now, last) {
			quiet, last = 0, now
		}
		time.Sleep(5 * time.Millisecond)
		if quiet < 10 {
			return errors.New("packets still arrive")
		}
		return nil
	})
}

// judge compares what arrived of a stream with what was sent.
func (s *soakStream) judge(t *testing.T) (arrived, lost int) {
	t.Helper()
	next := uint64(0)
	miss := func(to uint64) {
		for n := next; n < to; n++ {
			lost++
			if !slices.ContainsFunc(s.unsafe, func(r [2]uint64) bool { return r[0] <= n && n < r[1] }) {
				t.Errorf("stream %d: frame %d was lost, and nothing was done meanwhile: only to %v", s.number, n, s.unsafe)
			}
		}
	}
	for _, f := range s.sink.capture.Frames() {
		if f.Data[54] != s.number {
			continue
		}
		n := binary.BigEndian.Uint64(f.Data[14:])
		if n < next {
			t.Fatalf("stream %d: frame %d came after frame %d, or twice", s.number, n, next-1)
		}
		if want := s.frame(n); !bytes.Equal(f.Data, want) {
			t.Fatalf("stream %d: frame %d came with %d bytes that are not the %d sent", s.number, n, len(f.Data), len(want))
		}
		miss(n)
		arrived, next = arrived+1, n+1
	}
	miss(s.sent.Load())
	return arrived, lost
}
