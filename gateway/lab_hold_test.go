package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// Datagrams of four fragments arrive whole in whatever order the fragments come, translated or not, in both
// directions. Of fragments whose first never comes 64 are held for a second.
func TestLabFragmentOrders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, prefix, config string
		queues               int
	}{
		{"driver", "t-lab-fo", labRouted, 1},
		{"workers", "t-lab-fow", forced(labRouted), 2},
		{"generic", "t-lab-fog", generic(labRouted), 1},
	} {
		if c.name != "driver" && !long() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "client-server", testenv.Options{Prefix: c.prefix, Queues: c.queues}, c.config, natZones+`
  - {name: plain4, from: lan, to: {zone: wan, addresses: [10.10.2.12]}, keep: true}
  - {name: plain6, from: lan, to: {zone: wan, addresses: ["fd10:2::12"]}, keep: true}
`+natMasquerade)
			hideFrom(t, r.lab)
			up, ask := fragmentOrders(t, r)
			firstNeverComes(t, r, up, ask)
			if c.name != "generic" { // there the kernel has XDP look at what it was passed once more
				byTheKernel(t, r, up, ask)
			}
		})
	}
}

// fragmentOrders returns what it sent with.
func fragmentOrders(t *testing.T, r *rig) (up *testenv.Sender, ask way) {
	t.Helper()
	addRoute(t, r.server, "10.10.1.0/24", "10.10.2.1")
	addRoute(t, r.server, "fd10:1::/64", "fd10:2::1")
	up = must(r.client.OpenSender("c0"))
	down := must(r.server.OpenSender("s0"))
	t.Cleanup(func() { up.Close() })
	defer down.Close()
	ask = way{srcMAC: must(r.client.MAC("c0")), dstMAC: must(r.gw.MAC("lan"))}
	reply := way{srcMAC: must(r.server.MAC("s0")), dstMAC: must(r.gw.MAC("wan"))}
	before, sent := r.tally(t), 0
	for i, base := range []string{"10.10.2.%d", "fd10:2::%d"} {
		client := []netip.Addr{client4, client6}[i]
		for k, server := range []netip.Addr{r.addresses()[i], addHost(t, r.server, "s0", base, 12)} {
			near := must(r.client.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(client, 4000+uint16(k)).String()))
			defer near.Close()
			far := must(r.server.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(server, 7).String()))
			defer far.Close()
			// The neighbours get to know each other, and the test what the server sees.
			seen, err := meets(near, far, netip.AddrPortFrom(server, 7))
			if err != nil {
				t.Fatal(err)
			}
			sent += 2
			ask.src, ask.dst, reply.src, reply.dst = client, server, server, seen.Addr()
			for _, order := range orders(4) {
				if err := inOrder(t, up, ask, 4000+uint16(k), 7, order, far, seen); err != nil {
					t.Errorf("%v: %v\n%s", order, err, r.tally(t).since(before))
				}
				if err := inOrder(t, down, reply, 7, seen.Port(), order, near, netip.AddrPortFrom(server, 7)); err != nil {
					t.Errorf("back, %v: %v\n%s", order, err, r.tally(t).since(before))
				}
				sent += 8
			}
		}
	}
	n := r.tally(t).since(before)
	if n.counted != uint64(sent) || len(n.drops) > 0 || n.forwarded[0]+n.forwarded[1] > maxForwarded {
		t.Errorf("%d packets were sent: %s", sent, n)
	}
	// Of the 24 orders' fragments as many come before the first as behind it.
	if f := must(r.Status(t.Context())).Fragments; f != (FragmentStatus{Released: 2 * 2 * 2 * 24 * 3 / 2}) {
		t.Errorf("fragments: %+v", f)
	}
	return up, ask
}

// byTheKernel has held fragments be too large for their way out: the kernel sends them on in smaller ones.
func byTheKernel(t *testing.T, r *rig, s *testenv.Sender, w way) {
	t.Helper()
	if err := r.gw.SetMTU("wan", 1000); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		for _, p := range must(r.Status(t.Context())).Ports {
			if p.Name == "wan" && p.MTU != 1000 {
				return fmt.Errorf("its MTU is %d", p.MTU)
			}
		}
		return nil
	})
	before := r.tally(t)
	to := netip.MustParseAddrPort("10.10.2.12:9")
	far := must(r.server.ListenPacket(t.Context(), "udp", to.String()))
	defer far.Close()
	w.src, w.dst = client4, to.Addr()
	if err := inOrder(t, s, w, 4009, to.Port(), []int{2, 1, 3, 0}, far, netip.AddrPortFrom(client4, 4009)); err != nil {
		t.Errorf("by the kernel: %v", err)
	}
	if n := r.tally(t).since(before); n.passes["fragmentation-needed"] != 4 || len(n.drops) > 0 {
		t.Errorf("by the kernel: %s", n)
	}
}

// firstNeverComes sends more later fragments alone than are held, and waits for the end of those that are.
func firstNeverComes(t *testing.T, r *rig, s *testenv.Sender, w way) {
	t.Helper()
	const most, beyond = 64, 6
	held, start, bytes := must(r.Status(t.Context())).Fragments, time.Now(), uint64(0)
	for range most + beyond {
		piece := pieces(t, w, 4000, 7, make([]byte, 2000), 1200)[1]
		if err := s.Send(piece); err != nil {
			t.Fatal(err)
		}
		bytes += uint64(len(piece))
		fragmentID++
	}
	// dropped returns how many were, and how many bytes of them.
	dropped := func() (packets, size uint64) {
		for _, d := range must(r.Drops(t.Context(), false)) {
			if d.Reason == "fragment-no-first" {
				packets, size = d.Packets, d.Bytes
			}
		}
		return packets, size
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		n, _ := dropped()
		f := must(r.Status(t.Context())).Fragments
		if (n != beyond || f.Held != most) && time.Since(start) < time.Second { // a busy machine may have looked too late
			return fmt.Errorf("while they wait: %+v, %d packets are dropped", f, n)
		}
		return nil
	})
	testenv.Eventually(t, 5*time.Second, func() error {
		n, size := dropped()
		f := must(r.Status(t.Context())).Fragments
		if n != most+beyond || size != bytes || f != (FragmentStatus{Released: held.Released, Expired: most}) {
			return fmt.Errorf("when they have waited: %+v, %d packets of %d bytes are dropped", f, n, size)
		}
		return nil
	})
	if took := time.Since(start); took < time.Second {
		t.Errorf("they waited %s", took)
	}
}

// meets has the ends exchange a datagram each, and returns the address that the far one sees.
func meets(near, far net.PacketConn, to netip.AddrPort) (netip.AddrPort, error) {
	b := make([]byte, 16)
	limit := time.Now().Add(testenv.Patience(5 * time.Second))
	_, err := near.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(to))
	if err != nil {
		return netip.AddrPort{}, err
	}
	_ = far.SetReadDeadline(limit)
	_, from, err := far.ReadFrom(b)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if _, err := far.WriteTo(b, from); err != nil {
		return netip.AddrPort{}, err
	}
	_ = near.SetReadDeadline(limit)
	_, _, err = near.ReadFrom(b)
	return from.(*net.UDPAddr).AddrPort(), err
}

// orders returns the permutations of n numbers.
func orders(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, o := range orders(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(o), at, n-1))
		}
	}
	return all
}

var fragmentID uint32 // of the last datagram that inOrder has sent

// inOrder sends a datagram in fragments, in that order, and waits for it to come to the socket as it was, from whom
// the socket should see.
func inOrder(t *testing.T, s *testenv.Sender, w way, sport, dport uint16, order []int, to net.PacketConn, from netip.AddrPort) error {
	t.Helper()
	const size = 1200
	payload := make([]byte, len(order)*size-8)
	for i := range payload {
		payload[i] = byte(i*7 + i/size + int(fragmentID))
	}
	for n, at := range order {
		if err := s.Send(pieces(t, w, sport, dport, payload, size)[at]); err != nil {
			return fmt.Errorf("send fragment %d: %w", n, err)
		}
	}
	fragmentID++
	got := make([]byte, len(payload)+1)
	_ = to.SetReadDeadline(time.Now().Add(testenv.Patience(5 * time.Second)))
	n, who, err := to.ReadFrom(got)
	if err != nil {
		return err
	}
	if seen := who.(*net.UDPAddr).AddrPort(); !bytes.Equal(got[:n], payload) || seen != from {
		return fmt.Errorf("%d bytes came from %s, not the %d that were sent, from %s", n, seen, len(payload), from)
	}
	return nil
}

// pieces returns a datagram's fragments, as frames.
func pieces(t *testing.T, w way, sport, dport uint16, payload []byte, size int) (frames [][]byte) {
	t.Helper()
	whole := ipPacket(w.udp(t, sport, dport, payload)[14:])
	if !whole.six() {
		binary.BigEndian.PutUint16(whole[4:], uint16(fragmentID))
	}
	for _, p := range whole.cut(fragmentID, size) {
		frames = append(frames, p.behind(slices.Concat(w.dstMAC, w.srcMAC)))
	}
	return frames
}
