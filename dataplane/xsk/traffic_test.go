package xsk_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// prefix is another one in a debug build, which may be tested at the same time.
var prefix = map[bool]string{false: "t-lab-xsk", true: "t-lab-xskd"}[xsk.Debug]

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

// build makes a packet of frames from the pool, or returns nil if there are too few.
func build(e *end, data []byte) []xsk.Desc {
	// As much as the kernel would put into a frame.
	size := e.umem.Payload()
	packet := make([]xsk.Desc, (len(data)+size-1)/size)
	if n := e.pool.Alloc(packet); n < len(packet) {
		e.pool.Free(packet[:n])
		return nil
	}
	for i := range packet {
		part := data[i*size : min(len(data), (i+1)*size)]
		packet[i].Len = uint32(len(part))
		copy(e.umem.Frame(packet[i]), part)
		if i < len(packet)-1 {
			packet[i].Options = xsk.Continues
		}
	}
	return packet
}

// send sends one packet on the socket, and waits for room where there is none.
func send(e *end, s *xsk.Socket, data []byte) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		s.Reclaim()
		if packet := build(e, data); packet != nil {
			if s.Transmit(packet) == len(packet) {
				return s.Kick()
			}
			e.pool.Free(packet)
		}
		if err := s.Kick(); err != nil {
			return err
		}
	}
	return fmt.Errorf("no room for a packet of %d bytes: %+v", len(data), s.Rings())
}

// sentAll waits until all that the socket sent came back.
func sentAll(t *testing.T, s *xsk.Socket) {
	t.Helper()
	testenv.Eventually(t, patience, func() error {
		s.Reclaim()
		if err := s.Kick(); err != nil {
			return err
		}
		if c := s.Counters(); c.TxCompleted != c.TxFrames {
			return fmt.Errorf("%d of %d frames came back", c.TxCompleted, c.TxFrames)
		}
		return nil
	})
}

// everyLength is that of frames of all lengths that an MTU of 1,500 allows.
func everyLength(n uint64) int { return shortest + int(n)%(1514-shortest+1) }

var small = xsk.SocketOptions{Rx: 64, Tx: 64, Fill: 64, Completion: 64, BindTimeout: patience}

// open opens a socket in the namespace.
func open(n *testenv.Namespace, u *xsk.UMEM, p *xsk.Pool, device string, queue int, o xsk.SocketOptions) (s *xsk.Socket, err error) {
	err = n.Do(func() error {
		s, err = xsk.Open(u, p, device, queue, o)
		return err
	})
	return s, err
}
