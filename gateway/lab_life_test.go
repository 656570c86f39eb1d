package gateway

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
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

// Flags of buildSoftdpu, for a binary of another version, and for one whose tables have another layout.
const (
	thisVersion  = ""
	otherVersion = "-X main.buildVersion=upgraded"
	otherLayout  = "-X github.com/softdpu/softdpu/dataplane.layoutVersion=1000"
)

// builtVariable names a folder of binaries for machines that have no Go to build them: by flags for the linker, they
// are called this.
const builtVariable = "SOFTDPU_BUILT"

var builtNames = map[string]string{thisVersion: "softdpu", otherVersion: "softdpu-upgraded", otherLayout: "softdpu-other-layout"}

// builds holds the binaries of buildSoftdpu, open and without a name, by flags for the linker.
var builds struct {
	sync.Mutex
	file map[string]*os.File
}

// buildSoftdpu builds the binary that operators run, once for each set of flags.
func buildSoftdpu(t *testing.T, ldflags string) string {
	t.Helper()
	testenv.RequireRoot(t)
	builds.Lock()
	defer builds.Unlock()
	if builds.file[ldflags] == nil {
		file := filepath.Join(t.TempDir(), "softdpu")
		if dir := os.Getenv(builtVariable); dir != "" {
			file = filepath.Join(dir, builtNames[ldflags])
		} else if out, err := exec.Command("go", "build", "-ldflags", ldflags, "-o", file, "../cmd/softdpu").CombinedOutput(); err != nil {
			t.Fatalf("build softdpu: %v\n%s", err, out)
		}
		if builds.file == nil {
			builds.file = make(map[string]*os.File)
		}
		builds.file[ldflags] = must(os.Open(file))
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), builds.file[ldflags].Fd())
}

// A process is a gateway in a process of its own.
type process struct {
	*Client
	config *Config
	cmd    *exec.Cmd
	log    *lockedBuffer
	done   chan struct{}
	err    error
}

// startProcess starts a gateway in a lab and does not wait for it. It ends with the test. Its mount
// namespace, which shows no bpffs, ends with it, as under `ip netns exec` on a machine without one.
func startProcess(t *testing.T, gw *testenv.Namespace, binary string, c *Config) *process {
	t.Helper()
	p := &process{Client: checkedClient(t, c.Control.Socket), config: c, log: &lockedBuffer{}, done: make(chan struct{})}
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

// A gateway is started, killed before and after it attaches, in a reload, in a take-over and in a stop,
// started again, upgraded to another version and to one with another layout of tables, and stopped, while
// packets are sent. The kernel would forward all of it: before the first start the
// early unit keeps it from that. None
// that is denied arrives at any time; from a kill to the next start none that is allowed is missing; and
// what was counted stays counted.
func TestLabLife(t *testing.T) {
	binary := buildSoftdpu(t, thisVersion)
	upgraded := buildSoftdpu(t, otherVersion)
	other := buildSoftdpu(t, otherLayout)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-life"})
	gw := l.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: block", 1), lifePolicy)
	for _, name := range []string{"ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"} {
		sysctl(t, gw, name, "1")
	}
	if out, err := gw.Command(t.Context(), binary, "block", "-c", c.File).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("block: %v: %s", err, out)
	}
	before := settings(t, gw)
	s := startStream(t, l)
	s.standsStill(t, "before the first start")

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	within := func(limit time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(limit)))) }
	starting := time.Second // that a start takes

	var counted uint64
	for i := range sized(3, 20) {
		begun := time.Now()
		p := startProcess(t, gw, binary, c)
		p.ready(t)
		starting = time.Since(begun)
		first := s.sent.Load() + 2
		s.more(t, 50)
		if i%3 == 1 { // in a reload
			if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			within(50 * time.Millisecond)
		}
		p.kill()
		killed := s.sent.Load()
		for range 2 { // before it attaches, or in taking over
			early := startProcess(t, gw, binary, c)
			within(starting)
			early.kill()
		}
		complete := func(what string) {
			t.Helper()
			last := s.sent.Load()
			if missing := s.missing(first, last); len(missing) > 0 {
				t.Errorf("round %d, %s: of %d..%d, killed at %d, these are missing: %v", i, what, first, last, killed, missing)
			}
		}

		p = startProcess(t, gw, upgraded, c)
		p.ready(t)
		s.more(t, 50)
		complete("upgraded")
		if !strings.Contains(p.log.String(), "the run before is taken over") || !strings.Contains(p.log.String(), "version=upgraded") {
			t.Errorf("round %d: not taken over:\n%s", i, p.log)
		}
		arrived := s.count()
		if n := p.streamed(t); n < uint64(arrived) && i == 0 || n < counted {
			t.Errorf("round %d: rule stream counted %d packets of %d, and %d before", i, n, arrived, counted)
		}
		flows, err := p.Flows(t.Context(), "dport 7", 0)
		if err != nil || len(flows) < int(s.sent.Load()-first)/4 {
			t.Errorf("round %d: %d flows, %v", i, len(flows), err)
		}

		p.kill()
		early := startProcess(t, gw, other, c)
		within(starting)
		early.kill()
		p = startProcess(t, gw, other, c)
		p.ready(t)
		s.more(t, 50)
		complete("with another layout")
		if !strings.Contains(early.log.String()+p.log.String(), "layout") {
			t.Errorf("round %d: does not say that the layout is another one:\n%s\n%s", i, early.log, p.log)
		}

		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if i%3 == 2 { // in the stop
			within(30 * time.Millisecond)
			p.kill()
			continue
		}
		<-p.done
		if p.err != nil {
			t.Errorf("round %d: stop: %v\n%s", i, p.err, p.log)
		}
		s.standsStill(t, fmt.Sprintf("round %d, stopped", i))
	}
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	p.stop(t)
	s.standsStill(t, "at the end")
	s.stop() // from now on the kernel forwards as before

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
	binary := buildSoftdpu(t, thisVersion)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-lifec"})
	gw := l.Must(t, testenv.Gateway)
	keep := strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1)
	c := write(t, keep, lifePolicy)
	rewrite := func(file, text string) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := settings(t, gw)
	s := startStream(t, l)

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
		{"fewer flows", keep + "flows: {max: 100000}\n", lifePolicy, "tables of another size now"},
		{"many flows", keep + "flows: {max: 1000000}\n", lifePolicy, "tables of another size now"},
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
	s.standsStill(t, "revoked")
	flows, err := p.Flows(t.Context(), "dport 7", 0)
	if err != nil || len(flows) == 0 {
		t.Errorf("%d flows, %v", len(flows), err)
	}
	p.stop(t) // on_stop: open
	asBefore(t, gw, before)
}

// Without the flows of the run before, TCP connections go on for as long as the upgrade grace lasts; then
// segments of unknown connections are refused again.
func TestLabLifeGrace(t *testing.T) {
	t.Parallel()
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-lifeg"})
	client, server := l.Must(t, "client"), l.Must(t, "server")
	config := func(grace string) string {
		return strings.Replace(labRouted, "on_stop: open", "on_stop: keep\nupgrade_grace: "+grace, 1)
	}
	policy := lifePolicy + "  - {name: talk, from: {zone: lan}, to: {zone: wan}, service: tcp/7, action: allow}\n"
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 7)))
	defer echo.Close()

	g := runIn(t, l, write(t, config("none"), policy))
	var conns [3]net.Conn
	for i := range conns {
		conns[i] = must(client.Dial(limited(t, 5*time.Second), "tcp", echo.Addr().String()))
		defer conns[i].Close()
	}
	talk := func(c net.Conn, limit time.Duration) error {
		if err := c.SetDeadline(time.Now().Add(testenv.Patience(limit))); err != nil {
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

	// A port of another name: numbers in the tables would mean something else.
	g = runIn(t, l, write(t, strings.Replace(config("4s"), "{lan: {", "{inner: {", 1), strings.Replace(policy, "ports: [lan]", "ports: [inner]", 1)))
	if start := must(g.Status(t.Context())).Start; start.How != startAfresh || !strings.Contains(start.Why, "ports") || start.PickUpUntil == nil {
		t.Errorf("began with %+v", start)
	}
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
	if start := must(g.Status(t.Context())).Start; start.PickUpUntil != nil {
		t.Errorf("after the grace: %+v", start)
	}
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
	t.Parallel()
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
		if err := conn.SetDeadline(time.Now().Add(testenv.Patience(5 * time.Second))); err != nil {
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
