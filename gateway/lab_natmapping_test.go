package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

const natMappings = natZones + `
  - {name: open, from: {zone: lan, addresses: [10.10.1.2, "fd10:1::2"]}, to: wan, masquerade: {mapping: endpoint-independent, filtering: endpoint-independent}}
  - {name: known, from: {zone: lan, addresses: [10.10.1.20, "fd10:1::20"]}, to: wan, masquerade: {mapping: endpoint-independent, filtering: address-dependent}}
  - {name: shut, from: lan, to: wan, masquerade: {mapping: endpoint-independent}}
`

// An end inside leaves as one address and port, whoever it talks to, and so it does after a kill -9. Who may send there is
// what filtering says, and the rules; another one inside may as well, and is known as it is outside.
func TestLabNATMapping(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, thisVersion)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-ne"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	hideFrom(t, l)
	c := write(t, labRouted, natMappings)
	p := startProcess(t, gw, binary, c)
	p.ready(t)

	var before []mapped
	for i, servers := range serverAddresses(l) {
		inside, outside := []string{"10.10.1.%d", "fd10:1::%d"}[i], []string{"10.10.2.%d", "fd10:2::%d"}[i]
		w := mappedWorld{first: listenAt(t, server, servers, 0), other: listenAt(t, server, addHost(t, server, "s0", outside, 30), 0)}
		w.stranger = listenAt(t, server, addHost(t, server, "s0", outside, 31), 0)
		w.near = listenAt(t, server, servers, 0)
		var all []mapped
		for n, host := range []netip.Addr{[]netip.Addr{client4, client6}[i], addHost(t, client, "c0", inside, 20), addHost(t, client, "c0", inside, 21)} {
			m := mapped{mappedWorld: w, name: []string{"open", "known", "shut"}[n], conn: listenAt(t, client, host, 4500), outside: gwWAN[i]}
			m.learn(t)
			m.lets(t)
			all = append(all, m)
		}
		for n, m := range all {
			for _, o := range all[:n] {
				if m.seen == o.seen {
					t.Errorf("%s and %s share %s", m.name, o.name, m.seen)
				}
			}
		}
		if all[0].seen.Port() != 4500 {
			t.Errorf("%s became %s: nobody had its port", all[0].conn.LocalAddr(), all[0].seen)
		}
		// Both behind the gateway, each knows the other as it is outside.
		hairpin(t, &all[2], &all[0])
		before = append(before, all...)
		mappedTCP(t, client, server, []netip.Addr{client4, client6}[i], servers, w.stranger.addr().Addr(), gwWAN[i])
	}

	p.kill()
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	for i := range before {
		m, was := &before[i], before[i].seen
		m.other = listenAt(t, server, m.other.addr().Addr(), 0) // to whom it has not sent
		m.learn(t)
		if m.seen != was {
			t.Errorf("started again, %s is %s outside, and was %s", m.name, m.seen, was)
		}
		m.lets(t)
	}
	status := must(p.NAT(t.Context()))
	for i, filtering := range []string{"endpoint-independent", "address-dependent", "address-and-port-dependent"} {
		// The first has one of TCP as well; each of both families.
		want := []uint64{4, 2, 2}[i]
		if r := status.Rules[i]; r.Mapping != "endpoint-independent" || r.Filtering != filtering || r.Mappings != want {
			t.Errorf("nat rule %+v, want %d mappings and filtering %s", r, want, filtering)
		}
	}
	flows := must(p.Flows(t.Context(), "state mapping and sport 4500 and src 10.10.1.2", 0))
	if len(flows) != 1 || !flows[0].DestIP.IsUnspecified() || flows[0].DestPort != 0 || flows[0].NAT == nil || flows[0].NAT.SrcIP != gwWAN[0] || flows[0].NAT.SourceRule != "open" {
		t.Errorf("the mapping is listed as %+v", flows)
	}
	p.stop(t)
}

// socket is one of UDP.
type socket struct{ *net.UDPConn }

func (s socket) addr() netip.AddrPort { return addrPort(s.LocalAddr()) }

func (s socket) send(t *testing.T, to netip.AddrPort, text string) {
	t.Helper()
	if _, err := s.WriteToUDPAddrPort([]byte(text), to); err != nil {
		t.Errorf("send %q from %s: %v", text, s.addr(), err)
	}
}

// hear expects the next datagram to be this one, and returns where it is from.
func (s socket) hear(t *testing.T, text string) (from netip.AddrPort) {
	t.Helper()
	_ = s.SetReadDeadline(time.Now().Add(testenv.Patience(5 * time.Second)))
	b := make([]byte, 64)
	n, from, err := s.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != text {
		t.Fatalf("%s heard %q from %s, want %q: %v", s.addr(), b[:n], from, text, err)
	}
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
}

func listenAt(t *testing.T, ns *testenv.Namespace, a netip.Addr, port uint16) socket {
	t.Helper()
	c := must(ns.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(a, port).String()))
	t.Cleanup(func() { c.Close() })
	return socket{c.(*net.UDPConn)}
}

// mappedWorld is who is outside: two servers that a client asks, somebody else, and somebody at the first one's address.
type mappedWorld struct{ first, other, stranger, near socket }

// mapped is an end inside.
type mapped struct {
	mappedWorld
	name    string // of its rule
	conn    socket
	outside netip.Addr     // that it must be seen as
	seen    netip.AddrPort // as what both servers see it
}

// learn asks both servers what they see, as STUN does.
func (m *mapped) learn(t *testing.T) {
	t.Helper()
	var seen [2]netip.AddrPort
	for i, s := range []socket{m.first, m.other} {
		m.conn.send(t, s.addr(), "who am I")
		seen[i] = s.hear(t, "who am I")
		s.send(t, seen[i], "you")
		if from := m.conn.hear(t, "you"); from != s.addr() {
			t.Errorf("%s: %s answered as %s", m.name, s.addr(), from)
		}
	}
	if seen[0] != seen[1] || seen[0].Addr() != m.outside {
		t.Errorf("%s is seen as %s and as %s", m.name, seen[0], seen[1])
	}
	m.seen = seen[0]
}

// lets sees who may send to it. What is refused is sent first: the first that it hears is what it may.
func (m *mapped) lets(t *testing.T) {
	t.Helper()
	m.stranger.send(t, m.seen, "stranger")
	if m.name == "open" {
		if from := m.conn.hear(t, "stranger"); from != m.stranger.addr() {
			t.Errorf("%s hears %s as %s", m.name, m.stranger.addr(), from)
		}
		m.conn.send(t, m.stranger.addr(), "hello")
		if from := m.stranger.hear(t, "hello"); from != m.seen {
			t.Errorf("%s answers as %s, and was asked as %s", m.name, from, m.seen)
		}
	}
	m.near.send(t, m.seen, "near")
	if m.name != "shut" {
		m.conn.hear(t, "near")
	}
	m.first.send(t, m.seen, "again")
	m.conn.hear(t, "again")
}

// hairpin has two ends inside talk by what they are outside.
func hairpin(t *testing.T, a, b *mapped) {
	t.Helper()
	a.conn.send(t, b.seen, "neighbour")
	if from := b.conn.hear(t, "neighbour"); from != a.seen {
		t.Errorf("%s hears %s as %s, want %s", b.name, a.name, from, a.seen)
	}
	b.conn.send(t, a.seen, "yes")
	if from := a.conn.hear(t, "yes"); from != b.seen {
		t.Errorf("%s hears %s as %s, want %s", a.name, b.name, from, b.seen)
	}
}

// mappedTCP listens inside with the port of a connection outwards: a stranger reaches it by what that is outside.
func mappedTCP(t *testing.T, client, server *testenv.Namespace, inside, known, stranger, outside netip.Addr) {
	t.Helper()
	reuse := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience(10*time.Second))
	defer cancel()
	at := must(server.Listen(ctx, "tcp", netip.AddrPortFrom(known, 8000).String()))
	defer at.Close()
	var here net.Listener
	var out, in net.Conn
	err := client.Do(func() (err error) {
		if here, err = (&net.ListenConfig{Control: reuse}).Listen(ctx, "tcp", netip.AddrPortFrom(inside, 4501).String()); err == nil {
			out, err = (&net.Dialer{Control: reuse, LocalAddr: here.Addr()}).DialContext(ctx, "tcp", at.Addr().String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	defer out.Close()
	got := must(at.Accept())
	defer got.Close()
	seen := addrPort(got.RemoteAddr())
	if seen != netip.AddrPortFrom(outside, 4501) {
		t.Errorf("TCP from %s is seen as %s", out.LocalAddr(), seen)
	}
	err = server.Do(func() (err error) {
		in, err = (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(stranger, 0))}).DialContext(ctx, "tcp", seen.String())
		return err
	})
	if err != nil {
		t.Fatalf("a stranger's connection to %s: %v", seen, err)
	}
	defer in.Close()
	came := must(here.Accept())
	defer came.Close()
	if addrPort(came.RemoteAddr()) != addrPort(in.LocalAddr()) {
		t.Errorf("%s comes in as %s", in.LocalAddr(), came.RemoteAddr())
	}
	for _, pair := range [][2]net.Conn{{in, came}, {came, in}, {out, got}} {
		b := make([]byte, 2)
		_ = pair[1].SetReadDeadline(time.Now().Add(testenv.Patience(5 * time.Second)))
		_, err := fmt.Fprint(pair[0], "ok")
		if err == nil {
			_, err = io.ReadFull(pair[1], b)
		}
		if err != nil || string(b) != "ok" {
			t.Errorf("%q from %s to %s: %v", b, pair[0].LocalAddr(), pair[1].LocalAddr(), err)
		}
	}
}
