//go:build !xskdebug

// A debug build of package xsk notes who moves frames, and allocates.

package worker_test

import (
	"sync/atomic"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/testenv"
)

// TestNoAllocs runs rounds of a worker with packets in them: taken from a socket, mirrored, sent, handed over to a
// worker without a queue, taken back from it and sent for it.
func TestNoAllocs(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		b := newBenchIn(t, testenv.New(t, "three-zone", testenv.Options{Prefix: prefix, MTU: mtu}), "lan", "wan")
		multi := mtu > 4000
		b.run(t, worker.Options{Count: 2}, b.attach(t, "lan", lanID, multi), b.attach(t, "wan", wanID, multi), b.attach(t, "dmz", monID, multi))
		b.crew.SetWorks(map[uint32]worker.Work{7: {MirrorPort: monID, MirrorPackets: 1 << 20}})
		atomic.StoreUint64(&b.tables.Flows4[0].Slot[0].Core.Word, established)
		src := newSource(t, b.client, "l0", 0, multi)
		full := func(uint64) int { return mtu + 14 }
		streams := []*stream{
			{number: 0, h: bpf.XDPHandover{Cell: 0, Stages: stageMirror, Port: wanID, Rule: 1<<24 | 7}, length: full},
			{number: 1, h: bpf.XDPHandover{Cell: 1, Stages: stageMirror, Port: wanID, Rule: 2<<24 | 7}, length: full},
			{number: 2, h: to(wanID, 0)},
			{number: 3, h: to(77, 0)}, // no port has that number
		}
		frames := make([][]byte, len(streams))
		for i, st := range streams {
			frames[i] = st.frame(5)
		}
		packets := func() (n uint64) {
			for _, w := range b.crew.Status().Workers {
				n += w.Packets
			}
			return n
		}
		before := packets()
		for range 20 {
			var sendErr error
			for id := range 2 {
				check(t, b.crew.InRounds(id, func(round func() bool) {
					for range 4 {
						for _, f := range frames {
							if sendErr = src.send(f); sendErr != nil {
								return
							}
						}
					}
					if n := testing.AllocsPerRun(10, func() { round() }); n != 0 {
						t.Errorf("worker %d: %v allocations a round", id, n)
					}
				}))
				check(t, sendErr)
			}
		}
		until(t, func() error { return atLeast(packets()-before, 20*2*4*4*9/10) })
		b.stop(t)
	}
}
