package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// When the address of masquerading changes, what used the old one ends, and says why; what begins then uses the new one.
func TestLabNATAddressChange(t *testing.T) {
	t.Parallel()
	r := newNATRig(t, "t-lab-nx", strings.Replace(natZones, "to: {zone: wan}, action: allow", "to: {zone: wan}, action: allow, log: true", 1)+natMasquerade)
	gw := r.gw.Name()
	for i, a := range r.addresses() {
		echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		before := newNatTalker(t, r.client, echo.Addr())
		before.goesOn(t, "before")
		bits, address := []string{"/24", "/64"}[i], []string{"10.10.2.9", "fd10:2::9"}[i]
		ip(t, fmt.Sprintf("-n %s addr del %s%s dev wan", gw, gwWAN[i], bits))
		ip(t, fmt.Sprintf("-n %s addr add %s%s dev wan nodad", gw, address, bits))
		testenv.Eventually(t, 10*time.Second, func() error {
			_, seen, err := meeting{network: "tcp", from: r.client, to: netip.AddrPortFrom(a, 80), at: r.server}.hold(t.Context())
			if err == nil && seen.Addr().String() != address {
				err = fmt.Errorf("a new connection was seen as from %s", seen)
			}
			return err
		})
		local := addrPort(before.conn.LocalAddr())
		testenv.Eventually(t, 10*time.Second, func() error {
			events, _ := linesSoFar(t, r.config.Events.File)
			for _, e := range events {
				flow, _ := e["flow"].(map[string]any)
				if e["event_type"] == "flow" && flow["reason"] == "nat-address-gone" && e["src_ip"] == local.Addr().String() && e["src_port"] == float64(local.Port()) {
					return nil
				}
			}
			return fmt.Errorf("no event tells the end of the connection from %s", local)
		})
		if flows := must(r.Flows(t.Context(), fmt.Sprintf("sport %d", local.Port()), 0)); len(flows) > 0 {
			t.Errorf("the old connection is still there: %+v", flows)
		}
		if f := must(r.Flows(t.Context(), "dport 80 and dst "+a.String(), 0)); len(f) == 0 || f[0].NAT == nil || f[0].NAT.SrcIP.String() != address {
			t.Errorf("listed is %+v", f)
		}
		before.conn.Close()
	}
}

// Connections live on, translated as they were, while policies come and go and the gateway is killed and started again;
// and nobody else gets their ports.
func TestLabNATLife(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, thisVersion)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-nl"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	hideFrom(t, l)
	forward := `
  - {name: www4, from: wan, to: {addresses: [203.0.113.5]}, service: tcp/80, dnat: {to: 10.10.1.2, port: 8080}}
  - {name: www6, from: wan, to: {addresses: ["fd20::5"]}, service: tcp/80, dnat: {to: "fd10:1::2", port: 8080}}
`
	first := natZones + natMasquerade + forward
	second := strings.Replace(natZones, "rules:\n", "rules:\n  - {name: first, from: any, to: any, service: tcp/9, action: deny}\n", 1) + `
  - {name: pool4, from: {zone: lan, addresses: [10.10.0.0/16]}, to: wan, snat: {addresses: [203.0.113.8/32], ports: 20000-29999}}
` + natMasquerade
	c := write(t, labRouted, first)
	p := startProcess(t, gw, binary, c)
	p.ready(t)

	var talkers []*natTalker
	for i, a := range serverAddresses(l) {
		echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		inside := must(client.ServeEcho(t.Context(), netip.AddrPortFrom([]netip.Addr{client4, client6}[i], 8080)))
		defer inside.Close()
		outside := netip.MustParseAddr([]string{"203.0.113.5", "fd20::5"}[i])
		addRoute(t, server, outside.String(), gwWAN[i].String())
		talkers = append(talkers, newNatTalker(t, client, echo.Addr()), newNatTalker(t, server, netip.AddrPortFrom(outside, 80)))
	}
	addRoute(t, server, "203.0.113.8", "10.10.2.1")
	others := [2]netip.Addr{addHost(t, client, "c0", "10.10.1.%d", 9), addHost(t, client, "c0", "fd10:1::%d", 9)}
	// Somebody else with the port of a connection that goes on gets another one outside.
	check := func(when string, pool bool) {
		t.Helper()
		for _, w := range talkers {
			w.goesOn(t, when)
		}
		for i, a := range serverAddresses(l) {
			port := addrPort(talkers[2*i].conn.LocalAddr()).Port()
			m := meeting{network: "tcp", from: client, local: netip.AddrPortFrom(others[i], port), to: netip.AddrPortFrom(a, 7), at: server, listen: netip.AddrPortFrom(a, 7)}
			conn, err := m.ask()
			if err != nil {
				t.Errorf("%s: %v", when, err)
				continue
			}
			if _, err := conn.Write([]byte("hello")); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
				t.Errorf("%s: %s with a port that another has: %v", when, others[i], err)
			}
			_ = conn.(*net.TCPConn).SetLinger(0) // the port is needed again
			conn.Close()
			flows := must(p.Flows(t.Context(), fmt.Sprintf("sport %d and dst %s", port, a), 0))
			var outer []string
			for _, f := range flows {
				if f.NAT == nil {
					t.Errorf("%s: not translated: %+v", when, f)
				} else if f.SrcIP == others[i] {
					outer = append(outer, netip.AddrPortFrom(f.NAT.SrcIP, f.NAT.SrcPort).String())
				} else if want := netip.AddrPortFrom(gwWAN[i], port); netip.AddrPortFrom(f.NAT.SrcIP, f.NAT.SrcPort) != want {
					t.Errorf("%s: the connection that goes on is %s:%d outside, want %s", when, f.NAT.SrcIP, f.NAT.SrcPort, want)
				}
			}
			if want := netip.AddrPortFrom(gwWAN[i], port).String(); len(outer) == 0 || outer[0] == want || strings.HasPrefix(outer[0], "203.0.113.8:") != (pool && i == 0) {
				t.Errorf("%s: the other one is %v outside", when, outer)
			}
		}
	}
	reload := func(policy string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), "policy.yaml"), []byte(policy), 0o644); err != nil {
			t.Fatal(err)
		}
		must(p.Reload(t.Context()))
	}
	check("at first", false)
	reload(second)
	check("under another policy", true)
	p.kill()
	for _, w := range talkers {
		w.goesOn(t, "killed")
	}
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	check("started again", true)
	reload(first)
	check("under the first policy again", false)
	for _, w := range talkers {
		w.finish(t)
	}
	p.stop(t)
}

// When all ports are taken, the next connection is refused, by name, and the operator can see it coming; once one is
// free, it is used. Other protocols are not concerned.
func TestLabNATExhausted(t *testing.T) {
	t.Parallel()
	const ports = 8
	config := labRouted + "flows: {max: 10000, timeouts: {tcp_time_wait: 1s, tcp_closed: 1s}}\n"
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-nh"})
	r := newRigIn(t, l, testenv.Options{}, config, natZones+"  - {name: narrow, from: lan, to: wan, masquerade: {ports: 20000-20007}}\n")
	hideFrom(t, l)
	for i, a := range r.addresses() {
		echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		ask := meeting{network: "tcp", from: r.client, to: echo.Addr()}
		var conns []net.Conn
		for range ports {
			conns = append(conns, must(ask.ask()))
		}
		ask.limit = 500 * time.Millisecond
		if _, err := ask.ask(); err == nil || !os.IsTimeout(errors.Unwrap(err)) {
			t.Errorf("connection %d by %d ports: %v", ports+1, ports, err)
		}
		n, s := r.tally(t), must(r.NAT(t.Context()))
		if len(s.Rules) != 1 || s.Rules[0].Exhausted == 0 || s.Rules[0].Exhausted != n.drops["nat-exhausted"] || s.Rules[0].FullestPercent != 100 {
			t.Errorf("%+v, %s", s, n)
		}
		if notes := strings.Join(must(r.Status(t.Context())).Notes, "; "); !strings.Contains(notes, "narrow") {
			t.Errorf("the status notes %q", notes)
		}
		if _, seen := r.meet(t, meeting{network: "udp", from: r.client, to: netip.AddrPortFrom(a, 9), at: r.server}); seen.Addr() != gwWAN[i] {
			t.Errorf("UDP was seen as from %s", seen)
		}
		_ = conns[3].(*net.TCPConn).SetLinger(0)
		conns[3].Close()
		testenv.Eventually(t, 10*time.Second, func() error {
			c, err := ask.ask()
			if err == nil {
				c.Close()
			}
			return err
		})
		for _, c := range conns {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}
}

// A great many connections share one address to one port of one server: each has a port of its own, for as long as it
// lasts, until there is none left.
func TestLabNATMany(t *testing.T) {
	t.Parallel()
	count := sized(2000, 60_000)
	n := newNatRoom(t, "t-lab-ny")
	g := runIn(t, n.lab, write(t, labRouted, fmt.Sprintf(`apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan]}
rules:
  - {name: out, from: {zone: lan}, to: {zone: wan}, action: allow}
nat:
  - {name: branch, from: lan, to: wan, masquerade: {ports: 5000-%d}}
`, 5000+count-1)))
	server := netip.MustParseAddrPort("10.60.0.1:443")
	host := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 50, byte(i >> 8), byte(i)}), 40000)
	}
	outer, byPort := make([]netip.AddrPort, count), make(map[uint16]int)
	// One step of a batch of connections: their numbers tell which one a segment is of.
	step := func(from, to int, up bool, flags byte, size int) {
		t.Helper()
		side := 1
		if up {
			side = 0
		}
		n.read[side] = len(n.captures[side].Frames())
		for i := from; i < to; i++ {
			src, dst := host(i), server
			seq, ack := uint32(i)<<8, uint32(i)<<8
			if !up {
				src, dst = server, outer[i]
			}
			if flags&tcpSYN == 0 {
				seq++
			}
			if ack++; flags&tcpACK == 0 {
				ack = 0
			}
			if err := n.senders[side].Send(plainTCP(src, dst, flags, seq, ack, size).behind(n.headers[side])); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.captures[side].Wait(limited(t, 10*time.Second), n.read[side]+to-from); err != nil {
			t.Fatalf("connections %d to %d, flags %#x, up %v: %v: %+v", from, to, flags, up, err, must(g.Drops(t.Context(), false)))
		}
		for _, f := range n.captures[side].Frames()[n.read[side]:] {
			p := ipPacket(f.Data[14:])
			i, seen := int(binary.BigEndian.Uint32(p[24:])>>8), tupleOf(p)
			switch {
			case !up && seen != natSeen{server, host(i)}:
				t.Fatalf("an answer to connection %d came as %v", i, seen)
			case up && flags == tcpSYN:
				if other, taken := byPort[seen.src.Port()]; taken {
					t.Fatalf("connections %d and %d both have port %d", other, i, seen.src.Port())
				}
				byPort[seen.src.Port()], outer[i] = i, seen.src
			case up && seen.src != outer[i]:
				t.Fatalf("connection %d came as %s, and then as %s", i, outer[i], seen.src)
			}
		}
	}
	begin := time.Now()
	for from := 0; from < count; from += natBatch {
		if from%(20*natBatch) == 0 {
			n.listen(t)
		}
		to := min(from+natBatch, count)
		step(from, to, true, tcpSYN, 0)
		step(from, to, false, tcpSYN|tcpACK, 0)
		step(from, to, true, tcpACK, 0)
	}
	took := time.Since(begin)
	for from := 0; from < count; from += natBatch {
		if from%(20*natBatch) == 0 {
			n.listen(t)
		}
		to := min(from+natBatch, count)
		step(from, to, true, tcpACK, 100)
		step(from, to, false, tcpACK, 100)
	}
	s := must(g.NAT(t.Context())).Rules[0]
	t.Logf("%d connections at once, opened in %s: %+v", count, took.Round(time.Millisecond), s)
	for port := range byPort {
		if port < 5000 || int(port) >= 5000+count {
			t.Errorf("port %d is not of the rule", port)
		}
	}
	if len(byPort) != count || s.Flows != uint64(count) || s.Opened != uint64(count) || s.Exhausted != 0 || s.Conflicts != 0 {
		t.Errorf("%d connections have %d ports: %+v", count, len(byPort), s)
	}
	// All ports are taken now.
	one := plainTCP(host(count), server, tcpSYN, 1, 0, 0)
	if err := n.senders[0].Send(one.behind(n.headers[0])); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if d := g.dropped(t, "nat-exhausted"); d.Packets != 1 {
			return fmt.Errorf("%d packets were refused for want of a port", d.Packets)
		}
		return nil
	})
}

// plainTCP is a segment of IPv4 with that much payload, of no options and nothing random.
func plainTCP(src, dst netip.AddrPort, flags byte, seq, ack uint32, size int) ipPacket {
	p := make(ipPacket, 40+size)
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], src.Addr().AsSlice())
	copy(p[16:], dst.Addr().AsSlice())
	sumHeader(p[:20])
	binary.BigEndian.PutUint16(p[20:], src.Port())
	binary.BigEndian.PutUint16(p[22:], dst.Port())
	binary.BigEndian.PutUint32(p[24:], seq)
	binary.BigEndian.PutUint32(p[28:], ack)
	p[32], p[33] = 0x50, flags
	binary.BigEndian.PutUint16(p[34:], 0xffff)
	sumSegment(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, p[20:])
	return p
}
