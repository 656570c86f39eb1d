package gateway

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// maxForwarded is how many packets the gateway's kernel may forward for XDP, of each family.
const maxForwarded = 50

// What people do through a gateway works, and XDP does it: routed and inline, with ordinary and with
// jumbo frames, in both families. The devices are as veth makes them, except for GRO at the far ends and,
// for jumbo frames on kernels that redirect them in generic mode only, for segmentation there.
func TestLabTraffic(t *testing.T) {
	for _, topology := range []string{"client-server", "inline"} {
		for _, mtu := range []int{1500, 9000} {
			t.Run(fmt.Sprintf("%s-%d", topology, mtu), func(t *testing.T) {
				t.Parallel()
				config := labConfig(topology)
				if mtu > 1500 && !jumboInDriver(t) {
					config = fixed(config, "fix_offloads: true")
				}
				r := newRig(t, topology, testenv.Options{Prefix: fmt.Sprintf("t-lab-%s%d", topology[:1], mtu/1000), MTU: mtu}, config, labPolicy)
				passesTraffic(t, r, mtu)
			})
		}
	}
}

// passesTraffic does through the rig what people do, and sees to it that the kernel forwards none of it.
func passesTraffic(t *testing.T, r *rig, mtu int) {
	t.Helper()
	start := r.tally(t)
	transfers(t, r)
	exchanges(t, r, mtu)
	end := r.tally(t).since(start)
	if end.forwarded[0] > maxForwarded || end.forwarded[1] > maxForwarded {
		t.Errorf("the kernel forwarded more than %d packets of a family: %s", maxForwarded, end)
	}
}

// transfers moves bulk data both ways over IPv4 and IPv6.
func transfers(t *testing.T, r *rig) {
	for _, a := range r.addresses() {
		sink, err := r.server.ServeSink(t.Context(), netip.AddrPortFrom(a, 5001))
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close()
		web, err := r.server.ServeHTTP(t.Context(), netip.AddrPortFrom(a, 80))
		if err != nil {
			t.Fatal(err)
		}
		defer web.Close()
		before := r.tally(t)
		up, err := r.client.SendTo(limited(t, sized(time.Minute, 5*time.Minute)), sink.Addr(), sized[int64](64<<20, 1<<30), 1)
		if err != nil {
			t.Fatalf("%v\n%s", err, r.tally(t).since(before))
		}
		down, err := r.client.Download(limited(t, time.Minute), web.URL(16<<20))
		if err != nil {
			t.Fatalf("%v\n%s", err, r.tally(t).since(before))
		}
		n := r.tally(t).since(before)
		t.Logf("%s: %d MiB sent at %.0f Mbit/s, %d MiB downloaded at %.0f: %s", a,
			up.Bytes>>20, up.BitsPerSecond()/1e6, down.Bytes>>20, down.BitsPerSecond()/1e6, n)
		if n.redirected() < 0.99 {
			t.Errorf("%s: XDP redirected less than 99 %%: %s", a, n)
		}
		// What a full ring behind the redirect lost, TCP sent again.
		if share := float64(n.arrived) / float64(n.sent); share < 1-r.maySlip() {
			t.Errorf("%s: only %.3f of the frames arrived: %s", a, share, n)
		}
		// A worker that is behind drops, and TCP sends again.
		for reason, dropped := range n.drops {
			if !slices.Contains(r.mayDrop, reason) || float64(dropped) > r.maySlip()*float64(n.sent) {
				t.Errorf("%s: the gateway dropped something: %v", a, n.drops)
			}
		}
	}
}

// exchanges asks and answers, where every packet counts: only the first to an unknown neighbour may need
// the kernel.
func exchanges(t *testing.T, r *rig, mtu int) {
	const count = 100
	for _, a := range r.addresses() {
		echo, err := r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7))
		if err != nil {
			t.Fatal(err)
		}
		defer echo.Close()
		before := r.tally(t)
		// What ran before may still be closing its connections, and would be counted here.
		testenv.Eventually(t, 5*time.Second, func() error {
			time.Sleep(50 * time.Millisecond)
			now := r.tally(t)
			n := now.since(before)
			if before = now; n.counted > 0 {
				return fmt.Errorf("%d more packets on the flows", n.counted)
			}
			return nil
		})
		for i := range count {
			if err := r.again(func() error {
				_, err := r.client.Exchange(limited(t, 5*time.Second), echo.Addr(), make([]byte, 1+i*13))
				return err
			}); err != nil {
				t.Fatalf("request %d: %v\n%s", i, err, r.tally(t).since(before))
			}
		}
		// In fragments, both ways, by one socket: it numbers its datagrams one after the other.
		if err := r.again(func() error { return echoes(t, r.client, echo.Addr(), 3*mtu, count) }); err != nil {
			t.Fatalf("in fragments: %v\n%s", err, r.tally(t).since(before))
		}
		headers := 20
		if a.Is6() {
			headers = 40
		}
		lost := 0
		for _, size := range []int{56, mtu - headers - 8} {
			p, err := r.client.Ping(t.Context(), a, testenv.PingOptions{Count: count, Size: size, DontFragment: true})
			if lost += count - p.Received; err != nil || lost > 0 && len(r.mayDrop) == 0 {
				t.Errorf("ping %s with %d bytes: %d of %d came back, errors %v, %v", a, size, p.Received, p.Sent, p.Errors, err)
			}
		}
		n := r.tally(t).since(before)
		t.Logf("%s: %d requests, %d in fragments, %d pings: %s", a, count, count, 2*count, n)
		if n.kernel() > 4 || n.forwarded[0]+n.forwarded[1] > 4 {
			t.Errorf("%s: more than the first packets needed the kernel: %s", a, n)
		}
		dropped := uint64(0)
		for reason, packets := range n.drops {
			if dropped += packets; !slices.Contains(r.mayDrop, reason) || packets > count {
				t.Errorf("%s: the gateway dropped something: %v", a, n.drops)
			}
		}
		if lost > int(dropped) {
			t.Errorf("%s: %d pings did not come back, and %d packets were dropped: %s", a, lost, dropped, n)
		}
		// Each way: the plain ones, four fragments of each large one, the pings.
		if want := uint64(2 * (count + 4*count + 2*count)); n.counted != want && dropped == 0 {
			t.Errorf("%s: %d packets on the flows, want %d: %s", a, n.counted, want, n)
		}
	}
}

// maySlip is the share of bulk data that may be dropped. A worker on a busy machine is a slow one.
func (r *rig) maySlip() float64 {
	if len(r.mayDrop) > 0 {
		return 0.1
	}
	return 0.01
}

// again does something anew, where packets of it may have been dropped.
func (r *rig) again(do func() error) error {
	err := do()
	for range 3 {
		if err == nil || len(r.mayDrop) == 0 {
			break
		}
		err = do()
	}
	return err
}

// echoes sends datagrams of that size, one after the other, and waits for each to come back.
func echoes(t *testing.T, ns *testenv.Namespace, to netip.AddrPort, size, count int) error {
	c, err := ns.Dial(t.Context(), "udp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	sent, got := make([]byte, size), make([]byte, size+1)
	for i := range count {
		for j := range sent {
			sent[j] = byte(i + j)
		}
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write(sent); err != nil {
			return fmt.Errorf("datagram %d: %w", i, err)
		}
		n, err := c.Read(got)
		if err != nil || !bytes.Equal(got[:n], sent) {
			return fmt.Errorf("datagram %d: %d bytes came back (%w)", i, n, err)
		}
	}
	return nil
}

// A router is a hop and a bump in the wire is none.
func TestLabTraceroute(t *testing.T) {
	hops := func(t *testing.T, client *testenv.Namespace, dst netip.Addr) (found []string) {
		t.Helper()
		answers, err := client.Traceroute(t.Context(), dst, testenv.TracerouteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range answers {
			found = append(found, fmt.Sprintf("%d %s %d/%d", h.TTL, h.From, h.Type, h.Code))
		}
		return found
	}
	t.Run("routed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-tr"}, labRouted, labPolicy)
		before := r.tally(t)
		for _, want := range []struct {
			dst  netip.Addr
			hops []string
		}{
			{server4, []string{"1 10.10.1.1 11/0", "2 10.10.2.2 3/3"}},
			{server6, []string{"1 fd10:1::1 3/0", "2 fd10:2::2 1/4"}},
		} {
			if got := hops(t, r.client, want.dst); !slices.Equal(got, want.hops) {
				t.Errorf("hops to %s: %q, want %q", want.dst, got, want.hops)
			} else {
				t.Logf("hops to %s: %q", want.dst, got)
			}
		}
		n := r.tally(t).since(before)
		t.Logf("%s", n)
		if n.drops["ttl-expired"] != 2 || len(n.drops) != 1 {
			t.Errorf("two packets should have died of their TTL and nothing else: %v", n.drops)
		}
	})
	t.Run("inline", func(t *testing.T) {
		t.Parallel()
		wire := testenv.New(t, "wire", testenv.Options{Prefix: "t-lab-tw"})
		wireFar := behind(t, wire, 1500)
		r := newRig(t, "inline", testenv.Options{Prefix: "t-lab-ti"}, labInline, labPolicy)
		far := behind(t, r.lab, 1500)
		before := r.tally(t)
		for i, dst := range append(r.addresses(), far...) {
			bare := hops(t, wire.Must(t, "client"), append(serverAddresses(wire), wireFar...)[i])
			got := hops(t, r.client, dst)
			if !slices.Equal(got, bare) {
				t.Errorf("hops to %s: %q, by a bare cable %q", dst, got, bare)
			} else {
				t.Logf("hops to %s: %q, as by a bare cable", dst, got)
			}
			if want := 1 + i/2; len(got) != want {
				t.Errorf("%d hops to %s, want %d", len(got), dst, want)
			}
		}
		if n := r.tally(t).since(before); len(n.drops) > 0 || n.kernel() > 0 || n.forwarded != [2]uint64{} {
			t.Errorf("%s", n)
		}
	})
}

// behind puts a host behind the server of a lab with one subnet, which becomes a router, on a link of
// that MTU. It returns the host's addresses. The host's TCP does not own up to the small MTU, so that
// who talks to it has to be told by ICMP.
func behind(t *testing.T, l *testenv.Lab, mtu int) []netip.Addr {
	t.Helper()
	far := l.Prefix + "-far"
	_ = exec.Command("ip", "netns", "del", far).Run() // what a crash left
	ip(t, "netns add "+far)
	t.Cleanup(func() { ip(t, "netns del "+far) })
	server, client := l.Prefix+"-server", l.Prefix+"-client"
	for _, ns := range []string{far, server} {
		sysctl(t, must(testenv.OpenNamespace(ns)), "ipv6/conf/default/accept_dad", "0")
	}
	ip(t, fmt.Sprintf("link add f0 netns %s mtu %d type veth peer name r0 netns %s mtu %d", far, mtu, server, mtu))
	ip(t, "-n "+server+" addr add 10.10.9.1/24 dev r0")
	ip(t, "-n "+server+" addr add fd10:9::1/64 dev r0 nodad")
	ip(t, "-n "+server+" link set r0 up")
	ip(t, "-n "+far+" link set lo up")
	ip(t, "-n "+far+" addr add 10.10.9.2/24 dev f0")
	ip(t, "-n "+far+" addr add fd10:9::2/64 dev f0 nodad")
	ip(t, "-n "+far+" link set f0 up")
	ip(t, "-n "+far+" route add default via 10.10.9.1 advmss 1460")
	ip(t, "-n "+far+" -6 route add default via fd10:9::1 advmss 1440")
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		sysctl(t, l.Must(t, "server"), name, "1")
	}
	ip(t, "-n "+client+" route add 10.10.9.0/24 via 10.10.1.3")
	ip(t, "-n "+client+" -6 route add fd10:9::/64 via fd10:1::3")
	addresses := []netip.Addr{netip.MustParseAddr("10.10.9.2"), netip.MustParseAddr("fd10:9::2")}
	testenv.Eventually(t, 5*time.Second, func() error { // both ends of the new link have to notice each other
		for _, a := range addresses {
			p, err := l.Must(t, "server").Ping(t.Context(), a, testenv.PingOptions{Timeout: 100 * time.Millisecond})
			if err != nil || p.Received == 0 {
				return fmt.Errorf("%s does not answer: %v", a, err)
			}
		}
		return nil
	})
	return addresses
}

// A path whose middle is narrower than its ends works only if somebody says so, and is heard.
func TestLabPathMTU(t *testing.T) {
	check := func(t *testing.T, r *rig, far *testenv.Namespace, addresses []netip.Addr, mtu int) tally {
		t.Helper()
		before := r.tally(t)
		for _, a := range addresses {
			sink, err := far.ServeSink(t.Context(), netip.AddrPortFrom(a, 5001))
			if err != nil {
				t.Fatal(err)
			}
			defer sink.Close()
			if up, err := r.client.SendTo(limited(t, 20*time.Second), sink.Addr(), 8<<20, 2); err != nil {
				t.Errorf("%v\n%s", err, r.tally(t).since(before))
			} else {
				t.Logf("%s: 8 MiB at %.0f Mbit/s", a, up.BitsPerSecond()/1e6)
			}
			echo, err := far.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7))
			if err != nil {
				t.Fatal(err)
			}
			defer echo.Close()
			if got, err := r.client.PathMTU(limited(t, 10*time.Second), echo.Addr()); err != nil || got != mtu {
				t.Errorf("path MTU to %s: %d, %v, want %d\n%s", a, got, err, mtu, r.tally(t).since(before))
			}
		}
		n := r.tally(t).since(before)
		t.Logf("%s", n)
		if n.forwarded[0] > maxForwarded || n.forwarded[1] > maxForwarded {
			t.Errorf("the kernel forwarded more than %d packets of a family: %s", maxForwarded, n)
		}
		return n
	}
	t.Run("routed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-mr"}, labRouted, labPolicy)
		if err := r.gw.SetMTU("wan", 1400); err != nil {
			t.Fatal(err)
		}
		// The server keeps to the small MTU, and does not own up to it.
		ip(t, "-n "+r.server.Name()+" route replace default via 10.10.2.1 mtu lock 1400 advmss 1460")
		ip(t, "-n "+r.server.Name()+" -6 route replace default via fd10:2::1 mtu lock 1400 advmss 1440")
		testenv.Eventually(t, 5*time.Second, func() error {
			for _, p := range must(r.Status(t.Context())).Ports {
				if p.Name == "wan" && p.MTU != 1400 {
					return fmt.Errorf("MTU of wan is %d", p.MTU)
				}
			}
			return nil
		})
		fragmented(t, r)
		n := check(t, r, r.server, r.addresses(), 1400)
		if n.drops["too-big"] < 2 || len(n.drops) != 1 {
			t.Errorf("each family's large packets should have been refused, and nothing else: %v", n.drops)
		}
	})
	t.Run("inline", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "inline", testenv.Options{Prefix: "t-lab-mi"}, labInline, labPolicy)
		far := behind(t, r.lab, 1300)
		n := check(t, r, must(testenv.OpenNamespace(r.lab.Prefix+"-far")), far, 1300)
		if len(n.drops) != 0 || n.kernel() != 0 {
			t.Errorf("something was dropped, or needed the kernel: %s", n)
		}
	})
}

// fragmented sends datagrams that are too large for the way out and may be fragmented, which the kernel
// does.
func fragmented(t *testing.T, r *rig) {
	const count = 10
	c, err := r.server.StartCapture("s0", testenv.CaptureOptions{Match: func(frame []byte) bool {
		return len(frame) > 34 && frame[12] == 8 && frame[13] == 0 && frame[23] == unix.IPPROTO_UDP
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := must(r.client.OpenSender("c0"))
	defer s.Close()
	before := r.tally(t)
	w := way{srcMAC: must(r.client.MAC("c0")), dstMAC: must(r.gw.MAC("lan")), src: client4, dst: server4}
	for range count {
		if err := s.Send(w.udp(t, 1024, 7, make([]byte, 1500-28))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Wait(limited(t, 5*time.Second), 2*count); err != nil {
		t.Error(err)
	}
	got, err := c.Stop()
	n := r.tally(t).since(before)
	if err != nil || got != 2*count || n.passes["fragmentation-needed"] != count || len(n.drops) > 0 {
		t.Errorf("%d datagrams arrived in %d pieces (%v): %s", count, got, err, n)
	}
}

// IPv4 numbers 65,536 datagrams and then begins anew. One that is whole does not stand in the way of the
// next with its number.
func TestLabFragmentNumbers(t *testing.T) {
	const count = 200
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-fn"}, labRouted, labPolicy)
	c, err := r.server.StartCapture("s0", testenv.CaptureOptions{Match: func(frame []byte) bool {
		return len(frame) > 34 && frame[12] == 8 && frame[13] == 0 && frame[23] == unix.IPPROTO_UDP
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := must(r.client.OpenSender("c0"))
	defer s.Close()
	before := r.tally(t)
	w := way{srcMAC: must(r.client.MAC("c0")), dstMAC: must(r.gw.MAC("lan")), src: client4, dst: server4}
	for i := range count {
		for _, piece := range w.fragments(t, uint32(i%4), 600, w.udp(t, 1024, 7, make([]byte, 1000))) {
			if err := s.Send(piece); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Wait(limited(t, 5*time.Second), 2*count); err != nil {
		t.Error(err)
	}
	got, err := c.Stop()
	if n := r.tally(t).since(before); err != nil || got != 2*count || len(n.drops) > 0 {
		t.Errorf("%d of %d fragments arrived (%v): %s", got, 2*count, err, n)
	}
}
