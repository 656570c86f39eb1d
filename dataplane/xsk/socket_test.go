package xsk_test

import (
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// receiveAll receives on the socket until the ledger is full.
func receiveAll(t *testing.T, e *end, s *xsk.Socket, l *ledger) {
	t.Helper()
	batch := make([]xsk.Desc, 64)
	var poller xsk.Poller
	poller.Add(s, xsk.Readable)
	for end := time.Now().Add(patience); l.left > 0; {
		n := s.Receive(batch)
		eachPacket(batch[:n], func(packet []xsk.Desc) {
			if err := l.take(gather(e.umem, packet)); err != nil {
				t.Fatal(err)
			}
		})
		e.pool.Free(batch[:n])
		s.Refill()
		check(t, s.Kick())
		if n == 0 {
			must(poller.Wait(10 * time.Millisecond))(t)
			if time.Now().After(end) {
				t.Fatalf("%s; the kernel counts %+v", l.missing(), must(s.Stats())(t))
			}
		}
	}
}

// sendAll sends frames of the ledger's numbers and lengths on the socket, and waits until all came back.
func sendAll(t *testing.T, e *end, s *xsk.Socket, frames int, length func(uint64) int) {
	t.Helper()
	var one [1]xsk.Desc
	end := time.Now().Add(patience)
	for number := 0; number < frames; {
		s.Reclaim()
		for number < frames && e.pool.Alloc(one[:]) == 1 {
			one[0].Len = uint32(length(uint64(number)))
			copy(e.umem.Frame(one[0]), frameOf(uint64(number), int(one[0].Len)))
			if s.Transmit(one[:]) == 0 {
				e.pool.Free(one[:])
				break
			}
			number++
		}
		check(t, s.Kick())
		if time.Now().After(end) {
			t.Fatalf("sent %d of %d frames; %+v", number, frames, s.Counters())
		}
	}
	testenv.Eventually(t, patience, func() error {
		s.Reclaim()
		check(t, s.Kick())
		return sentAll(s)
	})
}

func TestReceiveEveryByte(t *testing.T) {
	l := testenv.New(t, "wire", testenv.Options{Prefix: "t-lab-xsk"})
	server := l.Must(t, "server")
	for _, mode := range []xsk.Mode{xsk.Any, xsk.Copy, xsk.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			e := newEnd(t, xsk.UMEMOptions{Frames: 256, FrameSize: 2048, Mode: mode})
			p := e.open(t, server, "s0", 1, xsk.AttachOptions{Mode: mode}, xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 128, Completion: 64})
			s := p.sockets[0]
			t.Log(s.Attempts(), s.Mode(), p.redirect.Attempts())
			sender := must(l.Must(t, "client").OpenSender("c0"))(t)
			defer sender.Close()
			length := func(n uint64) int { return shortest + int(n)%(1514-shortest+1) }
			led := newLedger(3000, length)
			go func() {
				for n := range len(led.seen) {
					if n%32 == 31 {
						time.Sleep(time.Millisecond)
					}
					if err := sender.Send(frameOf(uint64(n), length(uint64(n)))); err != nil {
						t.Error(err)
						return
					}
				}
			}()
			receiveAll(t, e, s, led)
			t.Logf("%+v %+v", must(s.Stats())(t), s.Counters())
		})
	}
}
