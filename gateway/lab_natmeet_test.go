package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// natZones lets everybody talk; what follows are rules of translation.
const natZones = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24, 10.10.8.0/24, "fd10:1::/64", "fd10:8::/64"]}
  wan: {ports: [wan]}
rules:
  - {name: out, from: {zone: lan}, to: {zone: wan}, action: allow}
  - {name: in, from: {zone: wan}, to: {zone: lan}, action: allow}
  - {name: within, from: {zone: lan}, to: {zone: lan}, action: allow}
nat:
`

const natMasquerade = "  - {name: branch, from: lan, to: wan, masquerade: {}}\n"

// The gateway's addresses, by family.
var (
	gwLAN = [2]netip.Addr{netip.MustParseAddr("10.10.1.1"), netip.MustParseAddr("fd10:1::1")}
	gwWAN = [2]netip.Addr{netip.MustParseAddr("10.10.2.1"), netip.MustParseAddr("fd10:2::1")}
)

// newNATRig starts a gateway that translates. The server knows no way to the client: it can answer only to addresses of
// its own network, and to those for which a route is added.
func newNATRig(t *testing.T, prefix, policy string) *rig {
	t.Helper()
	r := newRig(t, "client-server", testenv.Options{Prefix: prefix}, labRouted, policy)
	hideFrom(t, r.lab)
	return r
}

// hideFrom takes the server's default routes away.
func hideFrom(t *testing.T, l *testenv.Lab) {
	t.Helper()
	server := l.Must(t, "server").Name()
	ip(t, "-n "+server+" route del default")
	ip(t, "-n "+server+" -6 route del default")
}

// A meeting is a conversation of two ends.
type meeting struct {
	network string // tcp, udp
	from    *testenv.Namespace
	local   netip.AddrPort // who asks; the zero value leaves it to the kernel
	to      netip.AddrPort // who is asked
	at      *testenv.Namespace
	listen  netip.AddrPort // who answers; the zero value: who is asked
	limit   time.Duration  // of each step; 0 is 5 s
	brief   bool           // the limit is one for what must not happen
}

// meet holds the meeting, and ends the test if it cannot be held. It returns who asks, as it knows itself and as the
// other end sees it. That the answer comes from whom it asked, its kernel sees to.
func (r *rig) meet(t *testing.T, m meeting) (local, seen netip.AddrPort) {
	t.Helper()
	local, seen, err := m.hold(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, r.tally(t))
	}
	return local, seen
}

func (m meeting) hold(ctx context.Context) (local, seen netip.AddrPort, err error) {
	if !m.listen.IsValid() {
		m.listen = m.to
	}
	saw := make(chan netip.AddrPort, 1)
	listener, err := m.answer(ctx, saw)
	if err != nil {
		return local, seen, err
	}
	defer listener.Close()
	c, err := m.ask()
	if err != nil {
		return local, seen, err
	}
	defer c.Close()
	local = addrPort(c.LocalAddr())
	answer := make([]byte, 5)
	if _, err = c.Write([]byte("hello")); err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if err != nil || string(answer) != "HELLO" {
		return local, seen, fmt.Errorf("%s %s -> %s: answer %q: %w", m.network, local, m.to, answer, err)
	}
	return local, <-saw, nil
}

func (m meeting) patience() time.Duration {
	if m.limit == 0 {
		m.limit = 5 * time.Second
	}
	if m.brief {
		return m.limit
	}
	return testenv.Patience(m.limit)
}

// ask opens the connection, which lasts as long as a step may take.
func (m meeting) ask() (c net.Conn, err error) {
	d := net.Dialer{Timeout: m.patience()}
	if m.local.IsValid() {
		if d.LocalAddr = net.Addr(net.TCPAddrFromAddrPort(m.local)); m.network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(m.local)
		}
	}
	err = m.from.Do(func() error {
		c, err = d.Dial(m.network, m.to.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s from %s: %w", m.network, m.local, err)
	}
	return c, c.SetDeadline(time.Now().Add(m.patience()))
}

// answer listens, and answers the first who asks.
func (m meeting) answer(ctx context.Context, saw chan<- netip.AddrPort) (io.Closer, error) {
	b := make([]byte, 100)
	if m.network == "udp" {
		l, err := m.at.ListenPacket(ctx, "udp", m.listen.String())
		if err != nil {
			return nil, err
		}
		go func() {
			if n, who, err := l.ReadFrom(b); err == nil {
				saw <- addrPort(who)
				_, _ = l.WriteTo([]byte(strings.ToUpper(string(b[:n]))), who) // whoever waits for it notices
			}
		}()
		return l, nil
	}
	l, err := m.at.Listen(ctx, "tcp", m.listen.String())
	if err != nil {
		return nil, err
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		saw <- addrPort(c.RemoteAddr())
		if n, err := c.Read(b); err == nil {
			_, _ = c.Write([]byte(strings.ToUpper(string(b[:n]))))
			_, _ = c.Read(b) // until the other end closes
		}
	}()
	return l, nil
}

func addrPort(a net.Addr) netip.AddrPort {
	p, _ := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// addHost gives the namespace's device another address.
func addHost(t *testing.T, ns *testenv.Namespace, device, format string, n int) netip.Addr {
	t.Helper()
	a := netip.MustParseAddr(fmt.Sprintf(format, n))
	ip(t, fmt.Sprintf("-n %s addr add %s/%d dev %s nodad", ns.Name(), a, a.BitLen(), device))
	return a
}

// addRoute gives the namespace a route.
func addRoute(t *testing.T, ns *testenv.Namespace, to, via string) {
	t.Helper()
	family := "-4"
	if strings.Contains(to, ":") {
		family = "-6"
	}
	ip(t, fmt.Sprintf("-n %s %s route add %s via %s", ns.Name(), family, to, via))
}

// A natTalker exchanges data over a TCP connection until it is ended.
type natTalker struct {
	conn   net.Conn
	rounds chan struct{} // one element a round
	end    chan struct{}
	err    chan error
}

// newNatTalker connects to an echo server.
func newNatTalker(t *testing.T, from *testenv.Namespace, echo netip.AddrPort) *natTalker {
	t.Helper()
	w := &natTalker{rounds: make(chan struct{}), end: make(chan struct{}), err: make(chan error, 1)}
	w.conn = must(from.Dial(limited(t, 5*time.Second), "tcp", echo.String()))
	t.Cleanup(func() { w.conn.Close() })
	go func() { w.err <- w.talk() }()
	return w
}

func (w *natTalker) talk() error {
	sent, got := make([]byte, 3000), make([]byte, 3000)
	for n := byte(0); ; n++ {
		for i := range sent {
			sent[i] = n + byte(i)
		}
		if err := w.conn.SetDeadline(time.Now().Add(testenv.Patience(10 * time.Second))); err != nil {
			return err
		}
		if _, err := w.conn.Write(sent); err != nil {
			return err
		}
		if _, err := io.ReadFull(w.conn, got); err != nil {
			return err
		}
		if string(got) != string(sent) {
			return fmt.Errorf("round %d: other data came back", n)
		}
		select {
		case <-w.end:
			return nil
		case w.rounds <- struct{}{}:
		case <-time.After(time.Millisecond):
		}
	}
}

// goesOn waits until data has gone both ways again that was sent after the call.
func (w *natTalker) goesOn(t *testing.T, when string) {
	t.Helper()
	for range 3 { // the first round may have begun before
		select {
		case <-w.rounds:
		case err := <-w.err:
			w.err <- err
			t.Fatalf("%s: the connection %s -> %s broke: %v", when, w.conn.LocalAddr(), w.conn.RemoteAddr(), err)
		case <-time.After(testenv.Patience(15 * time.Second)):
			t.Fatalf("%s: the connection %s -> %s stands still", when, w.conn.LocalAddr(), w.conn.RemoteAddr())
		}
	}
}

// finish ends it in order.
func (w *natTalker) finish(t *testing.T) {
	t.Helper()
	close(w.end)
	if err := <-w.err; err != nil {
		t.Errorf("the connection %s -> %s broke: %v", w.conn.LocalAddr(), w.conn.RemoteAddr(), err)
	}
}
