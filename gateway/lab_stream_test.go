package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/testenv"
)

// Marks of what a stream sends, behind its headers.
var (
	streamAllowed = []byte("allowed ") // and a number
	streamDenied  = []byte("denied")
)

// A stream sends numbered packets of both families that are allowed, some on one flow and some on new ones,
// and beside each some that are denied, from both ends. What arrives is seen by captures, which lose
// nothing: all that bears the mark of the denied is a packet that should not have passed.
type stream struct {
	sent   atomic.Uint32 // numbers, each in both families
	denied atomic.Uint64 // frames that were sent
	far    *testenv.Capture
	near   *testenv.Capture
	doubts atomic.Uint64 // numbers that arrived more than once

	mu      sync.Mutex
	arrived [2]map[uint32]bool

	stop func() // and judge what the captures have seen
}

func startStream(t *testing.T, l *testenv.Lab) *stream {
	t.Helper()
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	s := &stream{arrived: [2]map[uint32]bool{{}, {}}}
	s.far = must(server.StartCapture("s0", testenv.CaptureOptions{Match: s.look}))
	s.near = must(client.StartCapture("c0", testenv.CaptureOptions{Match: func(frame []byte) bool { return bytes.Contains(frame, streamDenied) }}))

	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var open []interface{ Close() error }
	listen := func(ns *testenv.Namespace, a netip.AddrPort) net.PacketConn {
		c := must(ns.ListenPacket(ctx, "udp", a.String()))
		open = append(open, c)
		return c
	}
	var ones [2]net.PacketConn
	var senders [2]*testenv.Sender
	var frames [2][][]byte
	for i, end := range []struct {
		ns      *testenv.Namespace
		device  string
		gateway string
		from    [2]netip.Addr
		to      [2]netip.Addr
		spoofed [2]netip.Addr
	}{
		{client, "c0", "lan", [2]netip.Addr{client4, client6}, [2]netip.Addr{server4, server6},
			[2]netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}},
		{server, "s0", "wan", [2]netip.Addr{server4, server6}, [2]netip.Addr{client4, client6}, [2]netip.Addr{client4, client6}},
	} {
		senders[i] = must(end.ns.OpenSender(end.device))
		open = append(open, senders[i])
		for family := range end.from {
			w := way{srcMAC: must(end.ns.MAC(end.device)), dstMAC: must(gw.MAC(end.gateway)), src: end.from[family], dst: end.to[family]}
			frames[i] = append(frames[i], w.forbidden(t)...)
			w.src = end.spoofed[family]
			frames[i] = append(frames[i], w.udp(t, 4001, 7, streamDenied))
		}
	}
	for family, to := range []netip.Addr{server4, server6} {
		// Nobody reads: the captures do. Without a socket there would be ICMP errors.
		listen(server, netip.AddrPortFrom(to, 7))
		ones[family] = listen(client, netip.AddrPortFrom([]netip.Addr{client4, client6}[family], 0))
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		for _, c := range open {
			c.Close()
		}
		s.end(t)
	})
	t.Cleanup(s.stop)

	wg.Go(func() {
		for ctx.Err() == nil {
			n := s.sent.Load()
			b := binary.BigEndian.AppendUint32(bytes.Clone(streamAllowed), n)
			for family, to := range []netip.Addr{server4, server6} {
				conn := ones[family]
				if n%4 == 0 {
					c, err := client.ListenPacket(ctx, "udp", netip.AddrPortFrom([]netip.Addr{client4, client6}[family], 0).String())
					if err != nil {
						return
					}
					conn = c
				}
				// What the kernel says of an earlier packet on the socket ends this one's sending.
				for ctx.Err() == nil {
					if _, err := conn.WriteTo(b, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 7))); err == nil {
						break
					}
				}
				if n%4 == 0 {
					conn.Close()
				}
			}
			s.sent.Add(1)
			time.Sleep(time.Millisecond)
		}
	})
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			for range 4 {
				for i, sender := range senders {
					if sender.Send(frames[i][n%len(frames[i])]) == nil {
						s.denied.Add(1)
					}
				}
				n++
			}
			time.Sleep(time.Millisecond)
		}
	})
	return s
}

// forbidden is what nobody may send this way, whole: of a rule that denies, of none, in mid-stream, and
// without ports.
func (w way) forbidden(t *testing.T) [][]byte {
	t.Helper()
	return [][]byte{
		w.udp(t, 4000, 6000, streamDenied),
		w.udp(t, 4000, 6001, streamDenied),
		w.tcp(t, 4000, 6000, "S", 1, 0, streamDenied),
		w.tcp(t, 4000, 6001, "A", 1, 1, streamDenied),
		w.echo(t, 4000, 1, streamDenied),
		w.frame(t, layers.IPProtocolGRE, gopacket.Payload(append([]byte{0, 0, 8, 0}, streamDenied...))),
	}
}

// look takes the number of a frame that is allowed, and reports whether it is denied.
func (s *stream) look(frame []byte) bool {
	if i := bytes.Index(frame, streamAllowed); i >= 0 && len(frame) >= i+len(streamAllowed)+4 {
		n, family := binary.BigEndian.Uint32(frame[i+len(streamAllowed):]), 0
		if frame[12] == 0x86 {
			family = 1
		}
		s.mu.Lock()
		if s.arrived[family][n] {
			s.doubts.Add(1)
		}
		s.arrived[family][n] = true
		s.mu.Unlock()
		return false
	}
	return bytes.Contains(frame, streamDenied)
}

// missing lists the numbers from first to before last that have not arrived after a while, those of IPv6
// as negative ones.
func (s *stream) missing(first, last uint32) (list []int) {
	for end := time.Now().Add(testenv.Patience(5 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		list = nil
		s.mu.Lock()
		for n := first; n < last; n++ {
			for family, sign := range []int{1, -1} {
				if !s.arrived[family][n] {
					list = append(list, sign*int(n))
				}
			}
		}
		s.mu.Unlock()
		if len(list) == 0 || time.Now().After(end) {
			return list
		}
	}
}

// count returns how many allowed packets have arrived.
func (s *stream) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.arrived[0]) + len(s.arrived[1])
}

// more waits until that many numbers more are sent.
func (s *stream) more(t *testing.T, n uint32) {
	t.Helper()
	first := s.sent.Load()
	testenv.Eventually(t, 10*time.Second, func() error {
		if s.sent.Load() < first+n {
			return fmt.Errorf("nothing is sent")
		}
		return nil
	})
}

// standsStill fails the test if allowed packets arrive.
func (s *stream) standsStill(t *testing.T, when string) {
	t.Helper()
	arrived := s.count()
	for range 20 { // what is under way arrives, unless it never ends
		time.Sleep(20 * time.Millisecond)
		now := s.count()
		if now == arrived {
			break
		}
		arrived = now
	}
	s.more(t, 50)
	if now := s.count(); now != arrived {
		t.Errorf("%s: %d packets were forwarded", when, now-arrived)
	}
}

// end reads what the captures have seen of the whole test.
func (s *stream) end(t *testing.T) {
	for _, c := range []*testenv.Capture{s.far, s.near} {
		n, err := c.Stop()
		if err != nil {
			t.Errorf("a capture that lost frames proves nothing: %v", err)
		}
		if n > 0 {
			frames := c.Frames()
			t.Errorf("%d denied packets arrived, the first is\n%v", n, gopacket.NewPacket(frames[0].Data, layers.LayerTypeEthernet, gopacket.Default))
		}
	}
	if n := s.doubts.Load(); n > 0 {
		t.Errorf("%d packets arrived twice", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Logf("%d denied packets and %d allowed ones of each family were sent; %d and %d of these arrived",
		s.denied.Load(), s.sent.Load(), len(s.arrived[0]), len(s.arrived[1]))
}
