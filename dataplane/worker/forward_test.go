package worker_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/testenv"
)

const (
	stageForward = 1
	stageMirror  = 2
)

// to is a handover for the null stage: by that port, at home with that worker.
func to(port uint8, home int) bpf.XDPHandover {
	return bpf.XDPHandover{Cell: noCell, Stages: stageForward, Port: port, Rule: uint32(home+1)<<24 | 7}
}

// TestForward has streams in both directions arrive on both queues, some at home with the worker that gets them and
// some with the other one: all arrive, in order, once, with all their bytes.
func TestForward(t *testing.T) {
	for _, tt := range []struct {
		name          string
		queues, count int
		mtu           int
		homes         [2]int // of what arrives on queue 0 and 1
		handed        bool
		sends         uint64 // hand-overs a packet
	}{
		{"each at home", 2, 0, 1500, [2]int{0, 1}, false, 0},
		{"each at home with the other", 2, 0, 1500, [2]int{1, 0}, true, 1},
		{"no home yet, and one that does not exist", 2, 0, 1500, [2]int{-1, 40}, false, 0},
		{"a worker without a queue", 1, 2, 1500, [2]int{1, 1}, true, 2},
		{"more queues than workers", 2, 1, 1500, [2]int{0, 0}, false, 0},
		{"several frames a packet", 2, 0, 9000, [2]int{1, 0}, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, testenv.Options{Queues: tt.queues, MTU: tt.mtu})
			multi := tt.mtu > 4000
			lan, wan := b.attach(t, "lan", lanID, multi), b.attach(t, "wan", wanID, multi)
			b.run(t, worker.Options{Count: tt.count}, lan, wan)
			b.crew.BePatient()
			length := func(n uint64) int { return shortest + int(n*131)%(tt.mtu+14-shortest+1) }
			count, window := 1500, 64
			if multi {
				count, window = 500, 24
			}
			atServer, atClient := newSink(t, b.server, "s0"), newSink(t, b.client, "c0")
			var out, back []*stream
			var toServer, toClient atomic.Int64
			var wg sync.WaitGroup
			start := func(n *testenv.Namespace, device string, queue int, st *stream, sent *atomic.Int64, k *sink) {
				src := newSource(t, n, device, queue, multi)
				wg.Go(func() {
					if err := pour(src, st, count, sent, k, window); err != nil {
						t.Error(err)
					}
				})
			}
			for q := range tt.queues {
				st := &stream{number: uint8(q), h: to(wanID, tt.homes[q]), length: length}
				out = append(out, st)
				start(b.client, "c0", q, st, &toServer, atServer)
				st = &stream{number: uint8(10 + q), h: to(lanID, tt.homes[q]), length: length}
				back = append(back, st)
				start(b.server, "s0", q, st, &toClient, atClient)
			}
			wg.Wait()
			all := uint64(count * tt.queues)
			until(t, func() error {
				if s, c := atServer.capture.Count(), atClient.capture.Count(); s < int(all) || c < int(all) {
					return fmt.Errorf("%d and %d of %d frames arrived: %+v", s, c, all, b.crew.Status())
				}
				return nil
			})
			for _, end := range []struct {
				k  *sink
				of []*stream
			}{{atServer, out}, {atClient, back}} {
				for st, r := range end.k.stop(t, end.of...) {
					if r.lost != 0 || r.arrived != uint64(count) {
						t.Errorf("stream %d: %d arrived, %d were lost", st.number, r.arrived, r.lost)
					}
				}
			}
			var s worker.Status
			until(t, func() error {
				s = b.crew.Status()
				var packets, sent, over, taken uint64
				for _, w := range s.Workers {
					packets, sent, over, taken = packets+w.Packets, sent+w.Sent, over+w.HandedOver, taken+w.TakenOver
				}
				if packets != 2*all || sent != 2*all || over != taken || over != 2*all*tt.sends {
					return fmt.Errorf("%d packets taken, %d sent, %d handed over, %d taken over; want %d and %d: %+v", packets, sent, over, taken, 2*all, 2*all*tt.sends, s)
				}
				return nil
			})
			if s.Mode != "copy" {
				t.Errorf("mode %q", s.Mode)
			}
			if len(s.Stalls) != 0 {
				t.Errorf("stalls %+v", s.Stalls)
			}
			b.stop(t)
		})
	}
}
