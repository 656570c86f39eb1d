package xsk_test

import (
	"fmt"
	"testing"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// TestNoAllocs runs whole rounds of a worker, with packets in them.
func TestNoAllocs(t *testing.T) {
	if xsk.Debug {
		t.Log("a debug build notes who moves frames, and allocates")
		return
	}
	l := testenv.New(t, "inline", testenv.Options{Prefix: prefix, MTU: 9000})
	for _, multi := range []bool{false, true} {
		t.Run(fmt.Sprintf("multi-buffer %t", multi), func(t *testing.T) {
			mtu := 1500
			if multi {
				mtu = 9000
			}
			check(t, l.Must(t, "client").SetMTU("c0", mtu))
			check(t, l.Must(t, "gw").SetMTU("lan", mtu))
			e := newEnd(t, xsk.UMEMOptions{Frames: 1024, FrameSize: 2048, Mode: xsk.Copy, MultiBuffer: multi, TxMetadata: xsk.KernelAtLeast(6, 8)})
			s := e.open(t, l.Must(t, "client"), "c0", 1, xsk.AttachOptions{MultiBuffer: multi},
				xsk.SocketOptions{Rx: 256, Tx: 256, Fill: 512, Completion: 256}).sockets[0]
			sender := must(l.Must(t, "gw").OpenSender("lan"))(t)
			defer sender.Close()
			length := mtu / 2
			frame := frameOf(0, length)
			batch, fresh := make([]xsk.Desc, 64), make([]xsk.Desc, 8)
			var poller xsk.Poller
			poller.Add(s, xsk.Readable|xsk.Writable)
			received := 0
			round := func() {
				s.Reclaim()
				e.pool.Free(fresh[:s.ReclaimTo(fresh)])
				n := s.Receive(batch)
				received += n
				if n > 0 {
					s.Checksum(batch[:1], 34, 16)
					e.umem.CompleteChecksum(batch[:1], 34, 16)
				}
				sent := s.Transmit(batch[:n])
				e.pool.Free(batch[sent:n])
				if n := e.pool.Alloc(fresh); n > 0 {
					for i := range fresh[:n] {
						fresh[i].Len = 60
						_ = e.umem.Frame(fresh[i])
					}
					sent := s.Transmit(fresh[:n])
					e.pool.Free(fresh[sent:n])
				}
				s.Refill()
				if err := s.Kick(); err != nil {
					t.Error(err)
				}
				if _, err := poller.Wait(0); err != nil {
					t.Error(err)
				}
				s.Counters()
				s.Rings()
				s.Moved()
				e.umem.Census()
			}
			// What the measured function does not count as its own: sending to it.
			for range 20 {
				for range 16 {
					check(t, sender.Send(frame))
				}
				if n := testing.AllocsPerRun(10, round); n != 0 {
					t.Errorf("%v allocations a round", n)
				}
			}
			if received < 100 {
				t.Errorf("only %d packets were in the rounds", received)
			}
		})
	}
}
