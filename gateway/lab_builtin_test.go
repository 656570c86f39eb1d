package gateway

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// join makes the namespace's kernel listen to a group on a device, of which it tells its link at once.
func join(t *testing.T, ns *testenv.Namespace, device string, group netip.Addr) {
	t.Helper()
	index := must(ns.Index(device))
	var fd int
	err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

// listenerReport is a report of version 2 about one group, behind a router alert.
func (w way) listenerReport(t *testing.T, group netip.Addr) []byte {
	t.Helper()
	report := []byte{unix.IPPROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0 /* report: */, 143, 0, 0, 0, 0, 0, 0, 1 /* record: */, 4, 0, 0, 0}
	return w.frame(t, layers.IPProtocolIPv6HopByHop, gopacket.Payload(append(report, group.AsSlice()...)))
}

// about matches reports that name the group.
func about(group netip.Addr) testenv.CaptureOptions {
	return testenv.CaptureOptions{Match: func(frame []byte) bool {
		return len(frame) > 62 && frame[12] == 0x86 && frame[13] == 0xdd && frame[20] == 0 && frame[62] == 143 && bytes.Contains(frame, group.AsSlice())
	}}
}

// Switches that snoop learn who listens to which group by reports: without them a host is not found by
// its neighbours. Those of the gateway itself leave by its ports, and those of hosts reach it, or the
// other side of the wire. What claims to be one and comes from afar does not.
func TestLabListeners(t *testing.T) {
	gateways, hosts := netip.MustParseAddr("ff05::5d:1"), netip.MustParseAddr("ff05::5d:2")
	forged, foreign := netip.MustParseAddr("ff05::5d:3"), netip.MustParseAddr("ff05::5d:4")
	reports := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 0x16}
	forge := func(t *testing.T, r *rig) {
		t.Helper()
		s := must(r.client.OpenSender("c0"))
		defer s.Close()
		local := way{
			srcMAC: must(r.client.MAC("c0")), dstMAC: reports, ttl: 1,
			src: netip.MustParseAddr("fe80::5d"), dst: netip.MustParseAddr("ff02::16"),
		}
		afar, global := local, local
		afar.ttl, global.src = 64, client6
		for _, frame := range [][]byte{afar.listenerReport(t, forged), global.listenerReport(t, foreign), local.listenerReport(t, hosts)} {
			if err := s.Send(frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("routed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-ml"}, labRouted, labPolicy)
		seen := must(r.client.StartCapture("c0", about(gateways)))
		before := r.tally(t)
		join(t, r.gw, "lan", gateways)
		if err := seen.Wait(limited(t, 5*time.Second), 1); err != nil {
			t.Errorf("the client sees no report of the gateway: %v; %s", err, r.tally(t).since(before))
		}
		if _, err := seen.Stop(); err != nil {
			t.Error(err)
		}
		if n := r.tally(t).since(before); len(n.drops) > 0 {
			t.Errorf("the gateway dropped something: %v", n.drops)
		}

		taken := r.rule(t, "builtin-nd").Packets
		forge(t, r)
		testenv.Eventually(t, 5*time.Second, func() error {
			if n := r.tally(t).since(before); n.drops["icmp-type"] != 2 || r.rule(t, "builtin-nd").Packets == taken {
				return fmt.Errorf("one of three reports should have reached the gateway: %s", n)
			}
			return nil
		})
	})
	t.Run("inline", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "inline", testenv.Options{Prefix: "t-lab-mj"}, labInline, labPolicy)
		seen := must(r.server.StartCapture("s0", about(hosts)))
		strays := []*testenv.Capture{must(r.server.StartCapture("s0", about(forged))), must(r.server.StartCapture("s0", about(foreign)))}
		join(t, r.client, "c0", hosts)
		if err := seen.Wait(limited(t, 5*time.Second), 1); err != nil {
			t.Errorf("the server sees no report of the client: %v", err)
		}
		arrived, before := seen.Count(), r.tally(t)
		forge(t, r)
		if err := seen.Wait(limited(t, 5*time.Second), arrived+1); err != nil {
			t.Errorf("the server does not see a report that is right: %v", err)
		}
		testenv.Eventually(t, 5*time.Second, func() error { // what has come may be the client's own, said again
			if n := r.tally(t).since(before); n.drops["icmp-type"] != 2 || len(n.drops) != 1 {
				return fmt.Errorf("two reports should have been dropped, and nothing else: %v", n.drops)
			}
			return nil
		})
		if _, err := seen.Stop(); err != nil {
			t.Error(err)
		}
		for _, c := range strays {
			if n, err := c.Stop(); n != 0 || err != nil {
				t.Errorf("%d reports arrived that should not have (%v)", n, err)
			}
		}
	})
}

// Discovery is for the link that it is on. Sent to somebody behind the gateway it would be carried on by
// the kernel, which admits it unjudged: by a device that is no port nothing else stops it.
func TestLabDiscoveryStays(t *testing.T) {
	t.Parallel()
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-md"}, labRouted, labPolicy)
	for _, command := range []string{
		"ip link add other type veth peer name far", "ip link set other up", "ip link set far up",
		"ip -6 addr add fd99::1/64 dev other nodad", "ip -6 neigh add fd99::5 lladdr 02:00:00:00:00:05 dev other nud permanent",
	} {
		if out, err := r.gw.Command(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	marker := []byte("not on this link")
	far := must(r.gw.StartCapture("far", testenv.CaptureOptions{Match: func(frame []byte) bool { return bytes.Contains(frame, marker) }}))
	s := must(r.client.OpenSender("c0"))
	defer s.Close()
	before := r.tally(t)
	for _, dst := range []string{"fd99::5", "fd10:2::2"} {
		w := way{srcMAC: must(r.client.MAC("c0")), dstMAC: must(r.gw.MAC("lan")), ttl: 255, src: client6, dst: netip.MustParseAddr(dst)}
		advertisement := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)}
		if err := s.Send(w.frame(t, layers.IPProtocolICMPv6, advertisement, gopacket.Payload(append(make([]byte, 20), marker...)))); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := r.tally(t).since(before); n.drops["icmp-type"] != 2 {
			return fmt.Errorf("two advertisements should have been dropped: %s", n)
		}
		return nil
	})
	if n, err := far.Stop(); n != 0 || err != nil {
		t.Errorf("%d advertisements went through the gateway (%v)", n, err)
	}
}

// counts are packets and bytes of a rule.
type counts struct{ packets, bytes uint64 }

func (g *testGateway) counts(t *testing.T, rule string) counts {
	t.Helper()
	r := g.rule(t, rule)
	return counts{r.Packets, r.Bytes}
}

// What comes back counts as replies beside the rule of its flow, while the flow lives and afterwards.
func TestLabCountsReplies(t *testing.T) {
	const pings, size = 3, 100
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-cr"},
		labRouted+"flows: {timeouts: {udp: 1s, udp_new: 1s, icmp: 1s, tcp_time_wait: 2s, tcp_closed: 1s}}\n", labPolicy)
	want := counts{}
	check := func(t *testing.T, what string) {
		t.Helper()
		if got := r.counts(t, "builtin-replies"); got != want {
			t.Errorf("%s: replies count %+v, want %+v", what, got, want)
		}
	}
	check(t, "at first")
	for i, a := range r.addresses() {
		headers := uint64(20 + 20*i)
		if p, err := r.client.Ping(t.Context(), a, testenv.PingOptions{Count: pings, Size: size}); err != nil || p.Received != pings {
			t.Fatalf("ping %s: %+v, %v", a, p, err)
		}
		want.packets, want.bytes = want.packets+pings, want.bytes+pings*(headers+8+size)
		check(t, "ping "+a.String())

		echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		if _, err := r.client.Exchange(limited(t, 5*time.Second), echo.Addr(), make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		want.packets, want.bytes = want.packets+1, want.bytes+headers+8+size
		check(t, "UDP with "+a.String())

		web := must(r.server.ServeHTTP(t.Context(), netip.AddrPortFrom(a, 80)))
		defer web.Close()
		if _, err := r.client.Download(limited(t, 20*time.Second), web.URL(1<<20)); err != nil {
			t.Fatal(err)
		}
		// How many packets a download takes is TCP's affair: what the flow counted once it is over.
		testenv.Eventually(t, 10*time.Second, func() error {
			flows := must(r.Flows(t.Context(), "rule web", 0))
			if len(flows) != 1 || flows[0].State != "time-wait" {
				return fmt.Errorf("flows %+v", flows)
			}
			last := &flows[0]
			now := counts{want.packets + last.Packets[1], want.bytes + last.Bytes[1]}
			if got := r.counts(t, "builtin-replies"); got != now || last.Bytes[1] < 1<<20 {
				return fmt.Errorf("replies count %+v, want %+v", got, now)
			}
			want = now
			return nil
		})
		testenv.Eventually(t, 10*time.Second, func() error { // before the next family's, to tell them apart
			if flows := must(r.Flows(t.Context(), "", 0)); len(flows) > 0 {
				return fmt.Errorf("flows %+v", flows)
			}
			return nil
		})
		check(t, "after the flows with "+a.String()+" ended")
	}
	web := r.rule(t, "web")
	if all := r.rule(t, "ping").Bytes + r.rule(t, "echo").Bytes + web.Bytes; web.Packets == 0 || all <= want.bytes {
		t.Errorf("the flows' own rules count %d bytes, the replies among them %d", all, want.bytes)
	}
}

// Every ICMP error that is let through for a flow's sake counts, the gateway's own among them.
func TestLabCountsErrors(t *testing.T) {
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-ce"}, labRouted, labPolicy)
	errors := func(frame []byte) bool {
		return len(frame) > 54 && (frame[12] == 8 && frame[13] == 0 && frame[23] == unix.IPPROTO_ICMP && (frame[34] == 3 || frame[34] == 11) ||
			frame[12] == 0x86 && frame[13] == 0xdd && frame[20] == unix.IPPROTO_ICMPV6 && frame[54] >= 1 && frame[54] <= 4)
	}
	seen := must(r.client.StartCapture("c0", testenv.CaptureOptions{Match: errors}))
	check := func(t *testing.T, what string, atLeast int) {
		t.Helper()
		testenv.Eventually(t, 5*time.Second, func() error { // the capture reads behind the one who asked
			want := counts{}
			for _, f := range seen.Frames() {
				want.packets++
				want.bytes += uint64(f.Length - 14)
			}
			if got := r.counts(t, "builtin-icmp-errors"); got != want || want.packets < uint64(atLeast) {
				return fmt.Errorf("%s: errors count %+v, %+v arrived, want at least %d", what, got, want, atLeast)
			}
			// An error counts with what its flow's other end sends.
			if got := r.rule(t, "builtin-replies").Packets; got < want.packets {
				return fmt.Errorf("%s: %d replies, %d errors", what, got, want.packets)
			}
			return nil
		})
	}
	check(t, "at first", 0)
	for i, a := range r.addresses() {
		// The gateway, then the server.
		hops, err := r.client.Traceroute(t.Context(), a, testenv.TracerouteOptions{})
		if err != nil || len(hops) != 2 {
			t.Fatalf("hops to %s: %+v, %v", a, hops, err)
		}
		check(t, "traceroute to "+a.String(), 2*(i+1))
	}
	if got := r.rule(t, "builtin-icmp-errors").Packets; got != 4 {
		t.Errorf("two hops of two families are %d errors", got)
	}
	if err := r.gw.SetMTU("wan", 1400); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		for _, p := range must(r.Status(t.Context())).Ports {
			if p.Name == "wan" && p.MTU != 1400 {
				return fmt.Errorf("MTU of wan is %d", p.MTU)
			}
		}
		return nil
	})
	for i, a := range r.addresses() {
		echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		if got, err := r.client.PathMTU(limited(t, 10*time.Second), echo.Addr()); err != nil || got != 1400 {
			t.Errorf("path MTU to %s: %d, %v", a, got, err)
		}
		check(t, "path MTU to "+a.String(), 5+i)
	}
	if _, err := seen.Stop(); err != nil {
		t.Error(err)
	}
}

// A policy whose addresses leave the operator out does not cut him off.
func TestLabManagement(t *testing.T) {
	t.Parallel()
	const policy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.99.0.0/16, "fd99::/64"]}
  wan: {ports: [wan]}
rules:
  - {name: all, from: any, to: any, action: allow}
`
	config := func(override bool) string {
		return fmt.Sprintf(`apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan}, wan: {device: wan}}
policy: policy.yaml
management: {from: [lan], services: [tcp/22]}
override_management: %v
on_stop: open
control: {socket: softdpu.sock, group: softdpu-nobody}
events: {file: eve.json}
state: state
`, override)
	}
	for name, override := range map[string]bool{"kept": false, "overridden": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-m" + name[:1]}, config(override), policy)
			reach := func(a netip.Addr, port uint16) error {
				web := must(r.gw.ServeHTTP(t.Context(), netip.AddrPortFrom(a, port)))
				defer web.Close()
				_, err := r.client.Download(limited(t, time.Second), web.URL(10_000))
				return err
			}
			for _, a := range []netip.Addr{netip.MustParseAddr("10.10.1.1"), netip.MustParseAddr("fd10:1::1")} {
				before := r.dropped(t, "spoofed").Packets
				err := reach(a, 22)
				spoofed := r.dropped(t, "spoofed").Packets - before
				if override && (err == nil || spoofed == 0) || !override && (err != nil || spoofed != 0) {
					t.Errorf("%s, port 22: %v, %d spoofed packets", a, err, spoofed)
				}
				before = r.dropped(t, "spoofed").Packets
				if err := reach(a, 443); err == nil || r.dropped(t, "spoofed").Packets == before {
					t.Errorf("%s, port 443: %v, %d spoofed packets", a, err, r.dropped(t, "spoofed").Packets-before)
				}
			}
			if got := r.rule(t, "builtin-management"); (got.Judged > 0) == override {
				t.Errorf("management decided %d times", got.Judged)
			}
			if got := r.rule(t, "all").Judged; got != 0 {
				t.Errorf("another rule decided %d times", got)
			}
		})
	}
}
