package worker_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/testenv"
)

// carries sends frames of a length each way, and waits until they have arrived.
func (b *bench) carries(t *testing.T, length int) {
	t.Helper()
	const n = 40
	for i, way := range []struct {
		from, to         *testenv.Namespace
		device, captured string
		port             uint8
	}{{b.client, b.server, "c0", "s0", wanID}, {b.server, b.client, "s0", "c0", lanID}} {
		k := newSink(t, way.to, way.captured)
		st := &stream{number: uint8(i), h: to(way.port, -1), length: func(uint64) int { return length }}
		var sent atomic.Int64
		src := newSource(t, way.from, way.device, 0, length > 3000)
		check(t, pour(src, st, n, &sent, k, 16))
		src.close()
		until(t, func() error {
			if k.capture.Count() < n {
				return fmt.Errorf("%d of %d arrived: %+v", k.capture.Count(), n, b.crew.Status())
			}
			return nil
		})
		if r := k.stop(t, st)[st]; r.lost != 0 {
			t.Errorf("%d were lost", r.lost)
		}
	}
}

// TestMixedPrograms has a port whose program runs in the driver and one where it runs behind it.
func TestMixedPrograms(t *testing.T) {
	b := newBench(t, testenv.Options{})
	b.run(t, worker.Options{}, b.attach(t, "lan", lanID, false), b.attachAs(t, "wan", wanID, false, link.XDPGenericMode))
	if s := b.crew.Status(); s.Mode != "generic" {
		t.Errorf("mode %q, attempts %+v", s.Mode, s.Attempts)
	}
	b.carries(t, 1000)
}

// TestMTU raises the ports' MTU under a crew whose frames hold no such packet: it takes other memory, and goes on
// counting.
func TestMTU(t *testing.T) {
	b := newBench(t, testenv.Options{})
	ports := []worker.Port{b.attach(t, "lan", lanID, true), b.attach(t, "wan", wanID, true)}
	b.run(t, worker.Options{}, ports...)
	if s := b.crew.Status(); s.Memory.FrameSize != 2048 {
		t.Errorf("memory %+v", s.Memory)
	}
	b.carries(t, 1514)
	for _, end := range []struct {
		node   *testenv.Namespace
		device string
	}{{b.client, "c0"}, {b.gw, "lan"}, {b.gw, "wan"}, {b.server, "s0"}} {
		check(t, end.node.SetMTU(end.device, 9000))
	}
	b.serve(t, ports...)
	if s := b.crew.Status(); s.Memory.FrameSize != 4096 {
		t.Errorf("memory %+v", s.Memory)
	}
	b.carries(t, 9014)
	until(t, func() error {
		s := b.crew.Status().Workers[0]
		var rx, tx uint64
		for _, q := range s.Queues {
			rx, tx = rx+q.RxPackets, tx+q.TxPackets
		}
		if s.Packets != 160 || s.Sent != 160 || rx != 160 || tx != 160 {
			return fmt.Errorf("%d packets, %d sent; by their queues %d and %d", s.Packets, s.Sent, rx, tx)
		}
		return nil
	})
}
