package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// What goes wrong with translated packets is told to the right host, with the addresses that it knows: ports that
// nobody listens on, at either end; and the hops to the server.
func TestLabNATErrors(t *testing.T) {
	t.Parallel()
	r := newNATRig(t, "t-lab-ne", natZones+natMasquerade)
	for i, a := range r.addresses() {
		c := must(meeting{network: "udp", from: r.client, to: netip.AddrPortFrom(a, 4000)}.ask())
		isRefused(t, c, "the client, who asked a closed port")
		c.Close()

		// The server goes on talking to a client that has gone.
		saw := make(chan netip.AddrPort, 1)
		m := meeting{network: "udp", from: r.client, to: netip.AddrPortFrom(a, 4001), at: r.server, listen: netip.AddrPortFrom(a, 4001)}
		l := must(m.answer(t.Context(), saw))
		c = must(m.ask())
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		seen := <-saw
		l.Close()
		c.Close()
		back := must(meeting{network: "udp", from: r.server, local: m.to, to: seen}.ask())
		isRefused(t, back, "the server, who answers a client that has gone")
		back.Close()

		answers, err := r.client.Traceroute(t.Context(), a, testenv.TracerouteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var hops []netip.Addr
		for _, h := range answers {
			hops = append(hops, h.From)
		}
		if !slices.Equal(hops, []netip.Addr{gwLAN[i], a}) {
			t.Errorf("hops to %s: %v", a, hops)
		}
	}
	if n := r.tally(t); n.drops["ttl-expired"] != 2 || n.forwarded[0]+n.forwarded[1] > 4 {
		t.Errorf("%s", n)
	}
}

// isRefused writes until the kernel has been told that nobody listens.
func isRefused(t *testing.T, c net.Conn, who string) {
	t.Helper()
	testenv.Eventually(t, 5*time.Second, func() error {
		if _, err := c.Write([]byte("anybody there?")); errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("%s: %s -> %s: %w instead of a refusal", who, c.LocalAddr(), c.RemoteAddr(), err)
		}
		return nil
	})
}

// stub puts a host behind one end of a client-server lab, which becomes its router, on a link of that MTU, with the
// address .2 in the net-th subnets. The host does not own up to its small MTU: who talks to it has to be told.
func stub(t *testing.T, l *testenv.Lab, node string, net, mtu int) (*testenv.Namespace, [2]netip.Addr) {
	t.Helper()
	router, name := l.Must(t, node), fmt.Sprintf("%s-stub%d", l.Prefix, net)
	_ = exec.Command("ip", "netns", "del", name).Run() // what a crash left
	ip(t, "netns add "+name)
	t.Cleanup(func() { ip(t, "netns del "+name) })
	ns := must(testenv.OpenNamespace(name))
	for _, n := range []*testenv.Namespace{ns, router} {
		sysctl(t, n, "ipv6/conf/default/accept_dad", "0")
	}
	for _, setting := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		sysctl(t, router, setting, "1")
	}
	here, there := "-n "+router.Name(), "-n "+name
	for _, args := range []string{
		fmt.Sprintf("link add f0 netns %s mtu %d type veth peer name r0 netns %s mtu %d", name, mtu, router.Name(), mtu),
		fmt.Sprintf("%s addr add 10.10.%d.1/24 dev r0", here, net), fmt.Sprintf("%s addr add fd10:%d::1/64 dev r0 nodad", here, net), here + " link set r0 up",
		fmt.Sprintf("%s addr add 10.10.%d.2/24 dev f0", there, net), fmt.Sprintf("%s addr add fd10:%d::2/64 dev f0 nodad", there, net), there + " link set f0 up",
		fmt.Sprintf("%s route add default via 10.10.%d.1 advmss 1460", there, net), fmt.Sprintf("%s -6 route add default via fd10:%d::1 advmss 1440", there, net),
	} {
		ip(t, args)
	}
	a := [2]netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.10.%d.2", net)), netip.MustParseAddr(fmt.Sprintf("fd10:%d::2", net))}
	testenv.Eventually(t, 5*time.Second, func() error { // both ends of the new link have to notice each other
		for _, a := range a {
			p, err := router.Ping(t.Context(), a, testenv.PingOptions{Timeout: 100 * time.Millisecond})
			if err != nil || p.Received == 0 {
				return fmt.Errorf("%s does not answer: %v", a, err)
			}
		}
		return nil
	})
	return ns, a
}

// A path that narrows behind the gateway is found through it, by who was translated and by who talks to them.
//
//	near --1400-- client --- gw --- server --1300-- far
func TestLabNATPathMTU(t *testing.T) {
	t.Parallel()
	r := newNATRig(t, "t-lab-nu", natZones+natMasquerade)
	near, nearAddresses := stub(t, r.lab, "client", 8, 1400)
	far, farAddresses := stub(t, r.lab, "server", 9, 1300)
	for _, route := range [][2]string{{"10.10.8.0/24", "10.10.1.2"}, {"fd10:8::/64", "fd10:1::2"}, {"10.10.9.0/24", "10.10.2.2"}, {"fd10:9::/64", "fd10:2::2"}} {
		addRoute(t, r.gw, route[0], route[1])
	}
	before := r.tally(t)
	for i, a := range farAddresses {
		sink := must(far.ServeSink(t.Context(), netip.AddrPortFrom(a, 5001)))
		defer sink.Close()
		echo := must(far.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		if _, err := r.client.SendTo(limited(t, 20*time.Second), sink.Addr(), 4<<20, 2); err != nil {
			t.Errorf("up: %v\n%s", err, r.tally(t))
		}
		if mtu, err := r.client.PathMTU(limited(t, 10*time.Second), echo.Addr()); err != nil || mtu != 1300 {
			t.Errorf("path MTU to %s: %d, %v\n%s", a, mtu, err, r.tally(t))
		}
		// What the server sends to the one behind the client meets the narrow link behind the gateway.
		web := must(r.server.ServeHTTP(t.Context(), netip.AddrPortFrom(r.addresses()[i], 80)))
		defer web.Close()
		if _, err := near.Download(limited(t, 20*time.Second), web.URL(4<<20)); err != nil {
			t.Errorf("down to %s: %v\n%s", nearAddresses[i], err, r.tally(t))
		}
		// The server has been told, about the only address that it knows.
		if got := pathMTU(t, r.server, gwWAN[i]); got != 1400 {
			t.Errorf("the server's path MTU to %s is %d", gwWAN[i], got)
		}
	}
	n := r.tally(t).since(before)
	t.Logf("%s", n)
	if n.drops["too-big"] > 0 || n.forwarded[0]+n.forwarded[1] > maxForwarded {
		t.Errorf("dropped, or forwarded by the kernel: %s", n)
	}
}

// pathMTU returns what a namespace's kernel believes.
func pathMTU(t *testing.T, ns *testenv.Namespace, to netip.Addr) (mtu int) {
	t.Helper()
	c := must(ns.Dial(t.Context(), "udp", netip.AddrPortFrom(to, 9).String()))
	defer c.Close()
	raw := must(c.(*net.UDPConn).SyscallConn())
	level, option := unix.IPPROTO_IP, unix.IP_MTU
	if to.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	if err := raw.Control(func(fd uintptr) { mtu = must(unix.GetsockoptInt(int(fd), level, option)) }); err != nil {
		t.Fatal(err)
	}
	return mtu
}

// The gateway's own link is the narrow one: it says so itself, to both ends, and of packets that may be fragmented its
// kernel makes translated pieces.
func TestLabNATTooBig(t *testing.T) {
	t.Parallel()
	r := newNATRig(t, "t-lab-nb", natZones+natMasquerade)
	narrow := func(port string) {
		if err := r.gw.SetMTU(port, 1400); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 5*time.Second, func() error {
			for _, p := range must(r.Status(t.Context())).Ports {
				if p.Name == port && p.MTU != 1400 {
					return fmt.Errorf("MTU of %s is %d", port, p.MTU)
				}
			}
			return nil
		})
	}
	// Who is at the other end of a narrow link keeps to its MTU, and does not own up to it.
	keeps := func(ns *testenv.Namespace, route4, route6, how4, how6 string) {
		ip(t, "-n "+ns.Name()+" route replace "+route4+how4)
		ip(t, "-n "+ns.Name()+" -6 route replace "+route6+how6)
	}
	narrow("wan")
	keeps(r.server, "10.10.2.0/24 dev s0", "fd10:2::/64 dev s0", " mtu lock 1400", " mtu lock 1400")
	for _, a := range r.addresses() {
		echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		if a.Is4() {
			if err := r.client.Do(func() error { return fragmentable(t, r, a) }); err != nil {
				t.Errorf("%v\n%s", err, r.tally(t))
			}
		}
		if mtu, err := r.client.PathMTU(limited(t, 10*time.Second), echo.Addr()); err != nil || mtu != 1400 {
			t.Errorf("path MTU to %s: %d, %v\n%s", a, mtu, err, r.tally(t))
		}
	}
	if n := r.tally(t); n.drops["too-big"] < 2 || n.passes["fragmentation-needed"] == 0 {
		t.Errorf("%s", n)
	}
	if err := r.gw.SetMTU("wan", 1500); err != nil {
		t.Fatal(err)
	}
	keeps(r.server, "10.10.2.0/24 dev s0", "fd10:2::/64 dev s0", "", "")
	narrow("lan")
	keeps(r.client, "default via 10.10.1.1", "default via fd10:1::1", " mtu lock 1400 advmss 1460", " mtu lock 1400 advmss 1440")
	for i, a := range r.addresses() {
		web := must(r.server.ServeHTTP(t.Context(), netip.AddrPortFrom(a, 80)))
		defer web.Close()
		if _, err := r.client.Download(limited(t, 20*time.Second), web.URL(4<<20)); err != nil {
			t.Errorf("down: %v\n%s", err, r.tally(t))
		}
		if got := pathMTU(t, r.server, gwWAN[i]); got != 1400 {
			t.Errorf("the server's path MTU to %s is %d", gwWAN[i], got)
		}
	}
}

// fragmentable sends datagrams of 1,500 bytes that may be fragmented, and waits for each to come back.
func fragmentable(t *testing.T, r *rig, to netip.Addr) error {
	c, err := net.Dial("udp", netip.AddrPortFrom(to, 7).String())
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	}); err != nil {
		return err
	}
	sent, got := make([]byte, 1472), make([]byte, 2000)
	for i := range 10 {
		sent[7] = byte(i)
		_ = c.SetDeadline(time.Now().Add(testenv.Patience(5 * time.Second)))
		if _, err := c.Write(sent); err != nil {
			return err
		}
		if n, err := c.Read(got); err != nil || n != len(sent) || got[7] != sent[7] {
			return fmt.Errorf("datagram %d: %d bytes came back: %w", i, n, err)
		}
	}
	return nil
}

// What a rule keeps is not translated, nor is what no rule names.
func TestLabNATKept(t *testing.T) {
	t.Parallel()
	r := newNATRig(t, "t-lab-nk", natZones+`
  - {name: not-to-vpn4, from: lan, to: {zone: wan, addresses: [10.10.2.12]}, keep: true}
  - {name: not-to-vpn6, from: lan, to: {zone: wan, addresses: ["fd10:2::12"]}, keep: true}
  - {name: tcp-only, from: lan, to: wan, service: tcp/1-65535, masquerade: {}}
`)
	addRoute(t, r.server, "10.10.1.0/24", "10.10.2.1")
	addRoute(t, r.server, "fd10:1::/64", "fd10:2::1")
	for i, base := range []string{"10.10.2.%d", "fd10:2::%d"} {
		for _, c := range []struct {
			network string
			to      netip.Addr
			kept    bool
		}{{"tcp", r.addresses()[i], false}, {"udp", r.addresses()[i], true}, {"tcp", addHost(t, r.server, "s0", base, 12), true}} {
			local, seen := r.meet(t, meeting{network: c.network, from: r.client, to: netip.AddrPortFrom(c.to, 80), at: r.server})
			if (seen == local) != c.kept {
				t.Errorf("%s to %s: %s was seen as %s", c.network, c.to, local, seen)
			}
		}
	}
}
