package worker_test

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/testenv"
)

const (
	wordReady   = 1 << 14
	established = 4
)

// TestMirror sends a flow's packets through the mirror: copies reach the monitor port as far as the rule wants, the
// packets themselves all arrive, and the flow is marked ready when nothing more is wanted of it, unless its slot has
// another flow by then.
func TestMirror(t *testing.T) {
	const packets, limit, generation = 20, 5, 9
	for _, tt := range []struct {
		name   string
		mtu    int
		stages uint8
		limit  uint32
		family int
		gen    uint32 // of the flow in the slot
		epoch  uint32 // of its last judgement; of the packets' 0
		home   int    // 1 is the other worker, who has no queue: it sends through the first
		copies int
		ready  bool
	}{
		{"first packets of an IPv4 flow", 1500, stageMirror, limit, 4, generation, 0, 0, limit, true},
		{"first packets of an IPv6 flow", 1500, stageMirror, limit, 6, generation, 0, 0, limit, true},
		{"another flow has the slot", 1500, stageMirror, limit, 4, generation + 1, 0, 0, limit, false},
		{"the flow was judged again", 1500, stageMirror, limit, 4, generation, 1, 0, limit, false},
		{"a flow that all have to be forwarded of", 1500, stageMirror | stageForward, limit, 4, generation, 0, 0, limit, false},
		{"all packets", 1500, stageMirror, 0, 4, generation, 0, 0, packets, false},
		{"forward alone", 1500, stageForward, limit, 4, generation, 0, 0, 0, false},
		{"through another worker", 1500, stageMirror, limit, 4, generation, 0, 1, limit, true},
		{"packets of several frames", 9000, stageMirror, limit, 4, generation, 0, 0, limit, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBenchIn(t, testenv.New(t, "three-zone", testenv.Options{Prefix: prefix, MTU: tt.mtu}), "lan", "wan")
			multi := tt.mtu > 4000
			b.run(t, worker.Options{Count: 2}, b.attach(t, "lan", lanID, multi), b.attach(t, "wan", wanID, multi), b.attach(t, "dmz", monID, multi))
			b.crew.BePatient()
			b.crew.SetWorks(map[uint32]worker.Work{7: {MirrorPort: monID, MirrorPackets: tt.limit}})

			const group, slot, leg = 3, 2, 1
			cell, core := uint32(group*8+slot*2+leg), &b.tables.Flows4[group].Slot[slot].Core
			if tt.family == 6 {
				cell, core = cell+groups*8, &b.tables.Flows6[group].Slot[slot].Core
			}
			word := &core.Word
			atomic.StoreUint32(&core.Epoch, tt.epoch)
			atomic.StoreUint64(word, uint64(tt.gen)<<32|established)
			number := &b.tables.Cells[cell/8].Leg[slot][leg]
			atomic.StoreUint32(number, packets<<16)

			atServer, atMonitor := newSink(t, b.server, "w0"), newSink(t, b.lab.Must(t, "dmz"), "d0")
			st := &stream{number: 1, length: func(n uint64) int { return shortest + int(n*397)%(tt.mtu+14-shortest+1) },
				h: bpf.XDPHandover{Cell: cell, Generation: generation, Stages: tt.stages, Port: wanID, Rule: uint32(tt.home+1)<<24 | 7}}
			var sent atomic.Int64
			check(t, pour(newSource(t, b.client, "l0", 0, multi), st, packets, &sent, atServer, 16))
			until(t, func() error {
				if s, m := atServer.capture.Count(), atMonitor.capture.Count(); s < packets || m < tt.copies {
					return fmt.Errorf("%d packets and %d copies arrived: %+v", s, m, b.crew.Status())
				}
				if done := atomic.LoadUint32(number); done != packets<<16|packets {
					return fmt.Errorf("the leg's cell says %#x", done)
				}
				if ready := atomic.LoadUint64(word)&wordReady != 0; ready != tt.ready {
					return fmt.Errorf("the flow is ready: %t", ready)
				}
				return nil
			})
			if r := atServer.stop(t, st)[st]; r.lost != 0 {
				t.Errorf("%d packets were lost", r.lost)
			}
			must(atMonitor.capture.Stop())(t)
			if n := atMonitor.capture.Count(); n != tt.copies {
				t.Errorf("%d copies, want %d", n, tt.copies)
			}
			for i, f := range atMonitor.capture.Frames() {
				if n := binary.BigEndian.Uint64(f.Data[14:]); n != uint64(i) || string(f.Data) != string(st.frame(n)) {
					t.Errorf("copy %d is of packet %d, or not its bytes", i, n)
				}
			}
			until(t, func() error {
				var mirrored, lost, up uint64
				for _, w := range b.crew.Status().Workers {
					mirrored, lost, up = mirrored+w.Mirrored, lost+w.MirrorLost, up+w.MovedUp
				}
				if int(mirrored) != tt.copies || lost != 0 || up != 1 && tt.ready || up != 0 && !tt.ready {
					return fmt.Errorf("%d copies counted, %d lost, %d flows ready", mirrored, lost, up)
				}
				return nil
			})
			b.stop(t)
		})
	}
}

// TestMirrorLost has a monitor port that is none: packets go on, and lost copies are counted.
func TestMirrorLost(t *testing.T) {
	b := newBench(t, testenv.Options{})
	b.run(t, worker.Options{}, b.attach(t, "lan", lanID, false), b.attach(t, "wan", wanID, false))
	b.crew.SetWorks(map[uint32]worker.Work{7: {MirrorPort: monID}})
	atServer := newSink(t, b.server, "s0")
	st := &stream{number: 1, h: bpf.XDPHandover{Cell: noCell, Stages: stageMirror, Port: wanID, Rule: 7}}
	var sent atomic.Int64
	check(t, pour(newSource(t, b.client, "c0", 0, false), st, 10, &sent, atServer, 5))
	until(t, func() error {
		s := b.crew.Status().Workers[0]
		if atServer.capture.Count() < 10 || s.MirrorLost != 10 || s.Mirrored != 0 || len(s.Drops) != 0 {
			return fmt.Errorf("%d packets arrived: %+v", atServer.capture.Count(), s)
		}
		return nil
	})
	atServer.stop(t, st)
}
