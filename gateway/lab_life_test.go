package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

const lifePolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24, "fd10:1::/64"]}
  wan: {ports: [wan]}
rules:
  - {name: refused, from: {zone: lan}, to: any, service: udp/6000, action: deny}
  - {name: stream, from: {zone: lan}, to: {zone: wan}, service: udp/7, action: allow}
`

// buildSoftdpu builds the binary that operators run.
func buildSoftdpu(t *testing.T) string {
	t.Helper()
	testenv.RequireRoot(t)
	file := filepath.Join(t.TempDir(), "softdpu")
	if out, err := exec.Command("go", "build", "-o", file, "../cmd/softdpu").CombinedOutput(); err != nil {
		t.Fatalf("build softdpu: %v\n%s", err, out)
	}
	return file
}

// A process is a gateway in a process of its own.
type process struct {
	*Client
	cmd  *exec.Cmd
	log  *lockedBuffer
	done chan struct{}
	err  error
}

// startProcess starts a gateway in a lab and does not wait for it. It ends with the test. Its mount
// namespace, which shows no bpffs, ends with it, as under `ip netns exec` on a machine without one.
func startProcess(t *testing.T, gw *testenv.Namespace, binary string, c *Config) *process {
	t.Helper()
	p := &process{Client: checkedClient(t, c.Control.Socket), log: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd = exec.Command("unshare", "--mount", "sh", "-c",
		`umount -q /run/softdpu/bpf; exec ip netns exec "$0" "$@"`, gw.Name(), binary, "run", "-c", c.File)
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.kill)
	return p
}

// ready waits until the gateway judges.
func (p *process) ready(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, func() error {
		select {
		case <-p.done:
			t.Fatalf("the gateway ended: %v\n%s", p.err, p.log)
		default:
		}
		if !strings.Contains(p.log.String(), "softdpu runs") {
			return fmt.Errorf("not ready:\n%s", p.log)
		}
		return nil
	})
}

// kill ends the process as nobody can prevent.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// stop ends the process as an operator does.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.done
	if p.err != nil {
		t.Fatalf("stop: %v\n%s", p.err, p.log)
	}
}

// A stream sends numbered packets that are allowed, some on one flow and some on new ones, and beside
// each one that is denied.
type stream struct {
	sent   atomic.Uint32
	denied atomic.Uint32

	mu      sync.Mutex
	arrived map[uint32]bool
}

func startStream(t *testing.T, client, server *testenv.Namespace) *stream {
	t.Helper()
	return startStreamOf(t, client, server, client4, server4, time.Millisecond)
}

// startStreamOf is startStream between two addresses of whatever family, with a pause between packets.
func startStreamOf(t *testing.T, client, server *testenv.Namespace, from, at netip.Addr, pause time.Duration) *stream {
	t.Helper()
	s := &stream{arrived: make(map[uint32]bool)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	listen := func(ns *testenv.Namespace, address netip.Addr, port uint16) net.PacketConn {
		conn, err := ns.ListenPacket(ctx, "udp", netip.AddrPortFrom(address, port).String())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.UDPConn).SetReadBuffer(4 << 20); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	allowed, denied, one := listen(server, at, 7), listen(server, at, 6000), listen(client, from, 0)
	t.Cleanup(func() {
		cancel()
		for _, c := range []net.PacketConn{allowed, denied, one} {
			c.Close()
		}
		wg.Wait()
	})
	wg.Go(func() {
		b := make([]byte, 64)
		for {
			if _, _, err := allowed.ReadFrom(b); err != nil {
				return
			}
			s.mu.Lock()
			s.arrived[binary.BigEndian.Uint32(b)] = true
			s.mu.Unlock()
		}
	})
	wg.Go(func() {
		b := make([]byte, 64)
		for {
			if _, _, err := denied.ReadFrom(b); err != nil {
				return
			}
			s.denied.Add(1)
		}
	})
	wg.Go(func() {
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 7))
		not := net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 6000))
		for ctx.Err() == nil {
			n := s.sent.Load()
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], n)
			conn, fresh := one, n%4 == 0
			if fresh {
				c, err := client.ListenPacket(ctx, "udp", netip.AddrPortFrom(from, 0).String())
				if err != nil {
					continue
				}
				conn = c
			}
			_, err := conn.WriteTo(b[:], to)
			if err == nil {
				_, err = conn.WriteTo([]byte("denied"), not)
			}
			if fresh {
				conn.Close()
			}
			if err == nil || n%4 == 0 {
				s.sent.Add(1)
			}
			time.Sleep(pause)
		}
	})
	return s
}

// missing lists the numbers from first to before last that have not arrived after a while.
func (s *stream) missing(first, last uint32) (list []uint32) {
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		list = nil
		s.mu.Lock()
		for n := first; n < last; n++ {
			if !s.arrived[n] {
				list = append(list, n)
			}
		}
		s.mu.Unlock()
		if len(list) == 0 || time.Now().After(end) {
			return list
		}
	}
}

// count returns how many packets have arrived.
func (s *stream) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.arrived)
}

// A gateway is started, killed before and after it attaches, started again and stopped, while packets
// are sent. None that is denied arrives; from the kill to the next start none that is allowed is missing;
// and what was counted stays counted.
func TestLabLife(t *testing.T) {
	binary := buildSoftdpu(t)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-life"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: block", 1), lifePolicy)
	before := settings(t, gw)
	s := startStream(t, client, server)

	var counted uint64
	for i := range sized(5, 20) {
		p := startProcess(t, gw, binary, c)
		p.ready(t)
		first := s.sent.Load()
		testenv.Eventually(t, 5*time.Second, func() error {
			if s.sent.Load() < first+100 {
				return fmt.Errorf("nothing is sent")
			}
			return nil
		})
		p.kill()
		killed := s.sent.Load()

		early := startProcess(t, gw, binary, c)
		time.Sleep(time.Duration(i) * 50 * time.Millisecond)
		early.kill()
		time.Sleep(100 * time.Millisecond)

		p = startProcess(t, gw, binary, c)
		p.ready(t)
		time.Sleep(100 * time.Millisecond)
		last := s.sent.Load()
		if missing := s.missing(first+2, last); len(missing) > 0 {
			t.Errorf("round %d: of %d..%d, killed at %d, these are missing: %v", i, first, last, killed, missing)
		}
		if !strings.Contains(p.log.String(), "the run before is taken over") {
			t.Errorf("round %d: not taken over:\n%s", i, p.log)
		}
		arrived := s.count()
		if n := p.streamed(t); n < uint64(arrived) || n < counted {
			t.Errorf("round %d: rule stream counted %d packets of %d, and %d a round ago", i, n, arrived, counted)
		} else {
			counted = n
		}
		flows, err := p.Flows(t.Context(), "dport 7", 0)
		if err != nil || len(flows) < int(last-first)/4 {
			t.Errorf("round %d: %d flows, %v", i, len(flows), err)
		}

		p.stop(t)
		time.Sleep(20 * time.Millisecond)
		arrived = s.count()
		time.Sleep(100 * time.Millisecond)
		if now := s.count(); now != arrived {
			t.Errorf("round %d: %d packets were forwarded after the stop", i, now-arrived)
		}
	}
	if n := s.denied.Load(); n > 0 {
		t.Errorf("%d denied packets arrived", n)
	}

	out, err := gw.Command(t.Context(), binary, "detach").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("everything is taken off")) {
		t.Errorf("detach: %v: %s", err, out)
	}
	asBefore(t, gw, before)
}

// streamed returns what the rule of the stream has counted.
func (p *process) streamed(t *testing.T) uint64 {
	t.Helper()
	return (&testGateway{Client: p.Client}).rule(t, "stream").Packets
}

// asBefore checks that a gateway has left nothing.
func asBefore(t *testing.T, gw *testenv.Namespace, before string) {
	t.Helper()
	if after := settings(t, gw); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	var st unix.Stat_t
	if err := unix.Stat(gw.Path(), &st); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/run/softdpu/bpf/*netns-%d*", st.Ino)); len(left) > 0 {
		t.Errorf("pins are left: %v", left)
	}
	if _, err := os.Stat(fmt.Sprintf("/run/softdpu/netns-%d.json", st.Ino)); err == nil {
		t.Error("the state is left")
	}
}

// A start over a run that was left with on_stop: keep takes it over where numbers mean the same, and
// otherwise begins afresh; neither loses a packet. A policy that no longer allows what the flows carry
// cuts them.
func TestLabLifeChanges(t *testing.T) {
	binary := buildSoftdpu(t)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-lifec"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	keep := strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1)
	c := write(t, keep, lifePolicy)
	rewrite := func(file, text string) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := settings(t, gw)
	s := startStream(t, client, server)

	p := startProcess(t, gw, binary, c)
	p.ready(t)
	first := s.sent.Load() + 2
	time.Sleep(100 * time.Millisecond)

	// Another one in the same namespace is refused and does no harm.
	other := write(t, keep+"metrics: none\n", lifePolicy)
	out, err := gw.Command(t.Context(), binary, "run", "-c", other.File).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte(fmt.Sprintf("another softdpu (pid %d) runs in this network namespace", p.cmd.Process.Pid))) {
		t.Errorf("a second gateway: %v\n%s", err, out)
	}
	out, err = gw.Command(t.Context(), binary, "detach").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("stop it first")) {
		t.Errorf("detach of a running gateway: %v\n%s", err, out)
	}

	for _, step := range []struct {
		name, config, policy, says string
	}{
		{"a rule more", keep, lifePolicy + "  - {name: more, from: {zone: lan}, to: {zone: wan}, service: udp/8, action: allow}\n", "is taken over"},
		{"fewer flows", keep + "flows: {max: 1000}\n", lifePolicy, "rules=2"},
		{"many flows", keep + "flows: {max: 1000000}\n", lifePolicy, "of another size"},
		{"rules in another order", keep + "flows: {max: 1000000}\n", strings.Replace(lifePolicy, "rules:\n", "rules:\n  - {name: first, from: any, to: any, service: tcp/9, action: deny}\n", 1), "is taken over"},
		{"zones of other names", keep + "flows: {max: 1000000}\n", strings.NewReplacer("lan: {ports", "inside: {ports", "zone: lan", "zone: inside").Replace(lifePolicy), "is taken over"},
	} {
		p.stop(t)
		rewrite("softdpu.yaml", step.config)
		rewrite("policy.yaml", step.policy)
		p = startProcess(t, gw, binary, c)
		p.ready(t)
		time.Sleep(100 * time.Millisecond)
		if !strings.Contains(p.log.String(), step.says) {
			t.Errorf("%s: does not say %q:\n%s", step.name, step.says, p.log)
		}
		last := s.sent.Load()
		if missing := s.missing(first, last); len(missing) > 0 {
			t.Errorf("%s: missing of %d..%d: %v", step.name, first, last, missing)
		}
	}

	// A start that fails leaves all as it was.
	p.stop(t)
	rewrite("policy.yaml", lifePolicy)
	rewrite("softdpu.yaml", strings.Replace(keep, "device: lan", "device: lan9", 1))
	if out, err := gw.Command(t.Context(), binary, "run", "-c", c.File).CombinedOutput(); err == nil || !bytes.Contains(out, []byte("no device lan9")) {
		t.Errorf("without a device: %v\n%s", err, out)
	}
	time.Sleep(100 * time.Millisecond)
	if missing := s.missing(first, s.sent.Load()-50); len(missing) > 0 {
		t.Errorf("after a start that failed these are missing: %v", missing)
	}

	rewrite("softdpu.yaml", labRouted)
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	p.kill()
	rewrite("policy.yaml", strings.Replace(lifePolicy, "udp/7, action: allow", "udp/7, action: deny", 1))
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	if !strings.Contains(p.log.String(), "is taken over") {
		t.Errorf("not taken over:\n%s", p.log)
	}
	time.Sleep(20 * time.Millisecond)
	arrived := s.count()
	time.Sleep(100 * time.Millisecond)
	if now := s.count(); now != arrived {
		t.Errorf("%d packets of a revoked rule arrived", now-arrived)
	}
	flows, err := p.Flows(t.Context(), "dport 7", 0)
	if err != nil || len(flows) == 0 {
		t.Errorf("%d flows, %v", len(flows), err)
	}
	if n := s.denied.Load(); n > 0 {
		t.Errorf("%d denied packets arrived", n)
	}
	p.stop(t) // on_stop: open
	asBefore(t, gw, before)
}

// Without the flows of the run before, TCP connections go on for as long as the upgrade grace lasts; then
// segments of unknown connections are refused again.
func TestLabLifeGrace(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-lifeg"})
	client, server := l.Must(t, "client"), l.Must(t, "server")
	config := func(flows int, grace string) string {
		return strings.Replace(labRouted, "on_stop: open", fmt.Sprintf("on_stop: keep\nupgrade_grace: %s\nflows: {max: %d}", grace, flows), 1)
	}
	policy := lifePolicy + "  - {name: talk, from: {zone: lan}, to: {zone: wan}, service: tcp/7, action: allow}\n"
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 7)))
	defer echo.Close()

	g := runIn(t, l, write(t, config(1000, "none"), policy))
	var conns [3]net.Conn
	for i := range conns {
		conns[i] = must(client.Dial(limited(t, 5*time.Second), "tcp", echo.Addr().String()))
		defer conns[i].Close()
	}
	talk := func(c net.Conn, limit time.Duration) error {
		if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		b := []byte("still there?")
		if _, err := c.Write(b); err != nil {
			return err
		}
		_, err := c.Read(b)
		return err
	}
	for _, c := range conns {
		if err := talk(c, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	g.stop()

	g = runIn(t, l, write(t, config(100_000, "4s"), policy))
	if err := talk(conns[0], 5*time.Second); err != nil {
		t.Errorf("within the grace: %v\n%s", err, g.log)
	}
	// A policy that is reloaded meanwhile does not end it.
	must(g.Reload(t.Context()))
	if err := talk(conns[2], 2*time.Second); err != nil {
		t.Errorf("within the grace, after a reload: %v\n%s", err, g.log)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(g.log.String(), "the upgrade grace is over") {
			return fmt.Errorf("the grace goes on:\n%s", g.log)
		}
		return nil
	})
	if err := talk(conns[0], 5*time.Second); err != nil {
		t.Errorf("picked up, and after the grace: %v", err)
	}
	if err := talk(conns[1], 500*time.Millisecond); err == nil {
		t.Error("a connection was picked up after the grace")
	}
	if g.dropped(t, "not-syn").Packets == 0 {
		t.Error("nothing was dropped as not-syn")
	}
}

// A stop that blocks leaves the gateway itself reachable for its management, and lets it speak.
func TestLabLifeBlock(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-lifeb"})
	client, gw := l.Must(t, "client"), l.Must(t, testenv.Gateway)
	config := strings.NewReplacer("on_stop: open\n", "", "management: none", "management: {from: [lan], services: [udp/161, tcp/161]}").Replace(labRouted)
	policy := lifePolicy + "  - {name: ping, from: any, to: any, service: icmp/echo-request, action: allow}\n"
	echo := must(gw.ServeEcho(t.Context(), netip.MustParseAddrPort("10.10.1.1:161")))
	defer echo.Close()
	g := runIn(t, l, write(t, config, policy))
	conn := must(client.Dial(limited(t, 5*time.Second), "tcp", echo.Addr().String()))
	defer conn.Close()

	ping := func(from *testenv.Namespace, to string) int {
		r, err := from.Ping(t.Context(), netip.MustParseAddr(to), testenv.PingOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Received
	}
	for _, blocked := range []bool{false, true} {
		if blocked {
			g.stop()
		}
		if n := ping(client, "10.10.2.2"); (n == 0) != blocked {
			t.Errorf("blocked %v: %d pings were forwarded", blocked, n)
		}
		if n := ping(client, "10.10.1.1"); (n == 0) != blocked {
			t.Errorf("blocked %v: %d pings reached the gateway", blocked, n)
		}
		if n := ping(gw, "10.10.2.2"); n != 1 {
			t.Errorf("blocked %v: the gateway's own ping got %d answers", blocked, n)
		}
		if _, err := client.Exchange(limited(t, 5*time.Second), echo.Addr(), []byte("who?")); err != nil {
			t.Errorf("blocked %v: management: %v", blocked, err)
		}
		b := []byte("operator")
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(b); err != nil {
			t.Errorf("blocked %v: the operator's connection: %v", blocked, err)
		}
	}
}
