package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

const portsConfig = `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan}, wan: {device: wan}, dmz: {device: dmz}}
policy: policy.yaml
management: none
on_stop: block
control: {socket: softdpu.sock, group: softdpu-nobody}
events: {file: eve.json}
metrics: none
flows: {max: 10000}
`

// portsPolicy lets the lan speak, and the dmz answer.
const portsPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24, "fd10:1::/64"]}
  wan: {ports: [wan]}
  dmz: {ports: [dmz]}
rules:
  - {name: stream, from: {zone: lan}, to: {zone: wan}, service: udp/7, action: allow, log: true}
  - {name: ping, from: {zone: lan}, to: [wan, dmz], service: [icmp/echo-request, icmpv6/echo-request], action: allow, log: true}
`

var dmz4, wan4 = netip.MustParseAddr("10.10.3.2"), netip.MustParseAddr("10.10.2.2")

// A steady flow is a conversation of numbered packets that must not notice what happens beside it.
type steady struct {
	sent, answered atomic.Uint64
	stop           func()
}

// startSteady talks to the echo service of the other node, on one flow.
func startSteady(t *testing.T, from, to *testenv.Namespace, address netip.Addr) *steady {
	t.Helper()
	echo, err := to.ServeEcho(t.Context(), netip.AddrPortFrom(address, 7))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := from.Dial(t.Context(), "udp", netip.AddrPortFrom(address, 7).String())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.UDPConn).SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	s := &steady{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := conn.Write([]byte("steady")); err == nil {
				s.sent.Add(1)
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	wg.Go(func() {
		b := make([]byte, 64)
		for {
			if _, err := conn.Read(b); err != nil {
				return
			}
			s.answered.Add(1)
		}
	})
	s.stop = sync.OnceFunc(func() {
		cancel()
		// The last ones are under way still.
		for n, since := s.answered.Load(), time.Now(); n < s.sent.Load() && time.Since(since) < testenv.Patience(time.Second); time.Sleep(5 * time.Millisecond) {
			if now := s.answered.Load(); now != n {
				n, since = now, time.Now()
			}
		}
		conn.Close()
		wg.Wait()
		echo.Close()
	})
	t.Cleanup(s.stop)
	testenv.Eventually(t, 5*time.Second, func() error {
		if s.answered.Load() < 10 {
			return fmt.Errorf("%d of %d were answered", s.answered.Load(), s.sent.Load())
		}
		return nil
	})
	return s
}

// lost returns how many were not answered from the first on, which may have waited for a neighbour.
func (s *steady) lost() int64 {
	s.stop()
	return int64(s.sent.Load()) - int64(s.answered.Load())
}

// A trespasser sends what no rule allows, from the dmz to the wan, as soon and as long as its device is
// there.
type trespasser struct {
	sent atomic.Uint64
	mark []byte
}

func startTrespasser(t *testing.T, l *testenv.Lab) *trespasser {
	t.Helper()
	dmz := l.Must(t, "dmz")
	near := must(dmz.MAC("d0"))
	gate := must(l.Must(t, testenv.Gateway).MAC("dmz"))
	x := &trespasser{mark: []byte("trespass")}
	var frames [][]byte
	for _, w := range []way{
		{srcMAC: near, dstMAC: gate, src: dmz4, dst: wan4},
		{srcMAC: near, dstMAC: gate, src: netip.MustParseAddr("fd10:3::2"), dst: netip.MustParseAddr("fd10:2::2")},
	} {
		frames = append(frames, w.udp(t, 9, 9, x.mark))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			s, err := dmz.OpenSender("d0")
			if err != nil {
				time.Sleep(100 * time.Microsecond)
				continue
			}
			for ctx.Err() == nil {
				if err = s.Send(frames[x.sent.Load()%2]); err != nil {
					break
				}
				x.sent.Add(1)
				time.Sleep(50 * time.Microsecond)
			}
			s.Close()
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return x
}

// answers waits until a node answers to pings, and returns how long that took.
func answers(t *testing.T, from *testenv.Namespace, to netip.Addr, limit time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	testenv.Eventually(t, limit, func() error {
		r, err := from.Ping(t.Context(), to, testenv.PingOptions{Timeout: 100 * time.Millisecond})
		if err == nil && r.Received == 0 {
			err = fmt.Errorf("no answer from %s", to)
		}
		return err
	})
	return time.Since(start)
}

func (g *testGateway) port(t *testing.T, name string) PortStatus {
	t.Helper()
	for _, p := range must(g.Status(t.Context())).Ports {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("there is no port %s", name)
	return PortStatus{}
}

// becomes waits until a port is as wanted.
func (g *testGateway) becomes(t *testing.T, name, what string, limit time.Duration, is func(*PortStatus) bool) PortStatus {
	t.Helper()
	var p PortStatus
	testenv.Eventually(t, limit, func() error {
		if p = g.port(t, name); !is(&p) {
			return fmt.Errorf("port %s is not %s: %+v\n%s", name, what, p, g.log)
		}
		return nil
	})
	return p
}

func missing(p *PortStatus) bool { return p.Missing != "" && !p.Up }
func present(p *PortStatus) bool { return p.Missing == "" && p.Up }

// A port's device is deleted, moved away, renamed and changed, and comes back. The gateway goes on with the
// other ports, whose flows do not notice, says what is missing, takes the device back by itself, and never
// does anything pass that the policy does not allow.
func TestLabDevices(t *testing.T) {
	l := testenv.New(t, "three-zone", testenv.Options{Prefix: "t-lab-dev"})
	lan, wan, gw := l.Must(t, "lan"), l.Must(t, "wan"), l.Must(t, testenv.Gateway)
	g := runIn(t, l, write(t, strings.Replace(portsConfig, "metrics: none", `metrics: {listen: "127.0.0.1:9469"}`, 1), portsPolicy))
	answers(t, lan, dmz4, 5*time.Second)
	x := startTrespasser(t, l)
	capture, err := wan.StartCapture("w0", testenv.CaptureOptions{Match: func(frame []byte) bool { return bytes.Contains(frame, x.mark) }})
	if err != nil {
		t.Fatal(err)
	}
	s := startSteady(t, lan, wan, wan4)

	for range sized(2, 10) {
		u, err := l.Unplug(testenv.Gateway, "dmz")
		if err != nil {
			t.Fatal(err)
		}
		unplugged := time.Now()
		p := g.becomes(t, "dmz", "missing", 2*time.Second, missing)
		if !strings.Contains(p.Missing, "device dmz is gone") || p.Since.Before(unplugged.Add(-time.Second)) {
			t.Errorf("the port is %+v", p)
		}
		if h := health(t, gw); h.Status != "failing" || len(h.Problems) != 1 || !strings.Contains(h.Problems[0], "port dmz: device dmz is gone, since ") {
			t.Errorf("health is %+v", h)
		}
		if err := u.Replug(); err != nil {
			t.Fatal(err)
		}
		replugged := time.Now()
		g.becomes(t, "dmz", "back", 2*time.Second, present)
		answers(t, lan, dmz4, 2*time.Second)
		t.Logf("the port was back and traffic followed after %s", time.Since(replugged).Round(time.Millisecond))
		testenv.Eventually(t, 2*time.Second, func() error {
			if h := health(t, gw); h.Status != "ok" {
				return fmt.Errorf("health is %+v", h)
			}
			return nil
		})
	}

	// To another namespace and back.
	ip(t, fmt.Sprintf("-n %s link set dmz netns %s", gw.Name(), l.Must(t, "dmz").Name()))
	g.becomes(t, "dmz", "missing", 2*time.Second, missing)
	if out := must(l.Must(t, "dmz").Command(t.Context(), "ip", "-d", "link", "show", "dmz").CombinedOutput()); bytes.Contains(out, []byte("xdp")) {
		t.Errorf("the device that has gone has our program still:\n%s", out)
	}
	ip(t, fmt.Sprintf("-n %s link set dmz netns %s", l.Must(t, "dmz").Name(), gw.Name()))
	plug(t, gw, "dmz")
	g.becomes(t, "dmz", "back", 2*time.Second, present)
	answers(t, lan, dmz4, 2*time.Second)

	// Renamed: it is the same device.
	n := gw.Name()
	for _, step := range []string{"down", "name dmz-new", "up"} {
		ip(t, fmt.Sprintf("-n %s link set %s %s", n, map[bool]string{true: "dmz-new", false: "dmz"}[step == "up"], step))
	}
	ip(t, "-n "+n+" addr replace fd10:3::1/64 dev dmz-new nodad")
	p := g.becomes(t, "dmz", "renamed", 2*time.Second, func(p *PortStatus) bool { return p.Device == "dmz-new" && present(p) })
	if !strings.Contains(strings.Join(p.Notes, "\n"), "was renamed") {
		t.Errorf("it says %q", p.Notes)
	}
	answers(t, lan, dmz4, 2*time.Second)
	ip(t, "-n "+n+" link set dmz-new down")
	g.becomes(t, "dmz", "down", 2*time.Second, func(p *PortStatus) bool { return !p.Up })
	ip(t, "-n "+n+" link set dmz-new name dmz")
	ip(t, "-n "+n+" link set dmz up")
	ip(t, "-n "+n+" addr replace fd10:3::1/64 dev dmz nodad")
	g.becomes(t, "dmz", "called as before", 2*time.Second, func(p *PortStatus) bool { return p.Device == "dmz" && present(p) && len(p.Notes) == 0 })
	answers(t, lan, dmz4, 2*time.Second)

	// MTU and MAC.
	ip(t, "-n "+n+" link set dmz mtu 1400")
	g.becomes(t, "dmz", "of another MTU", 2*time.Second, func(p *PortStatus) bool { return p.MTU == 1400 })
	ip(t, "-n "+n+" link set dmz address 02:00:00:00:00:33")
	g.becomes(t, "dmz", "of another MAC", 2*time.Second, func(p *PortStatus) bool { return p.MAC == "02:00:00:00:00:33" })
	ip(t, "-n "+l.Must(t, "dmz").Name()+" neigh flush dev d0")
	answers(t, lan, dmz4, 2*time.Second)

	if lost := s.lost(); lost != 0 {
		t.Errorf("the flow beside it lost %d of %d packets", lost, s.sent.Load())
	}
	if passed := must(capture.Stop()); passed != 0 || x.sent.Load() == 0 {
		t.Errorf("%d of %d packets passed that no rule allows", passed, x.sent.Load())
	}
	g.stop()
	checkPortEvents(t, g.config.Events.File, []string{
		"port-lost", "port-returned", "port-renamed", "port-down", "port-up", "port-mtu", "port-mac",
	})
}

// plug gives a device of the gateway its addresses again, and brings it up.
func plug(t *testing.T, gw *testenv.Namespace, device string) {
	t.Helper()
	net := map[string]string{"lan": "1", "wan": "2", "dmz": "3"}[device]
	n := gw.Name()
	ip(t, fmt.Sprintf("-n %s link set %s up", n, device))
	ip(t, fmt.Sprintf("-n %s addr replace 10.10.%s.1/24 dev %s", n, net, device))
	ip(t, fmt.Sprintf("-n %s addr replace fd10:%s::1/64 dev %s nodad", n, net, device))
}

// health asks as whoever starts and restarts gateways does.
func health(t *testing.T, gw *testenv.Namespace) (h Health) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return gw.Dial(ctx, network, address)
	}}}
	resp, err := client.Get("http://127.0.0.1:9469/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
		t.Fatal(err)
	}
	return h
}

// checkPortEvents wants each of these among the events of ports.
func checkPortEvents(t *testing.T, file string, want []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var e eveEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.EventType == evePortType && e.Port.Name == "dmz" {
			seen[e.Softdpu.Event] = true
		}
	}
	for _, name := range want {
		if !seen[name] {
			t.Errorf("there is no event %s, but %v", name, seen)
		}
	}
}

// The daemon is killed, and while nobody looks a port's device is made anew, renamed and deleted. What has
// come back is forwarded by nobody; the next start takes everything over, and the flows of the other ports
// notice nothing of it all.
func TestLabDevicesKilled(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "three-zone", testenv.Options{Prefix: "t-lab-devk"})
	lan, wan, gw := l.Must(t, "lan"), l.Must(t, "wan"), l.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(portsConfig, "on_stop: block", "on_stop: open", 1), portsPolicy)
	before := settings(t, gw)
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	answers(t, lan, dmz4, 5*time.Second)
	s := startSteady(t, lan, wan, wan4)
	x := startTrespasser(t, l)
	capture, err := wan.StartCapture("w0", testenv.CaptureOptions{Match: func(frame []byte) bool { return bytes.Contains(frame, x.mark) }})
	if err != nil {
		t.Fatal(err)
	}
	again := func() {
		t.Helper()
		p = startProcess(t, gw, binary, c)
		p.ready(t)
		if log := p.log.String(); !strings.Contains(log, "the run before is taken over") {
			t.Errorf("the start says:\n%s", log)
		}
	}
	port := func() PortStatus {
		t.Helper()
		return (&testGateway{Client: p.Client, config: c, log: p.log}).port(t, "dmz")
	}

	// Made anew.
	p.kill()
	u, err := l.Unplug(testenv.Gateway, "dmz")
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Replug(); err != nil {
		t.Fatal(err)
	}
	sent := x.sent.Load()
	testenv.Eventually(t, 10*time.Second, func() error {
		if n := x.sent.Load() - sent; n < 1000 {
			return fmt.Errorf("%d packets were sent that nobody may forward", n)
		}
		return nil
	})
	again()
	answers(t, lan, dmz4, 2*time.Second)

	// Renamed.
	p.kill()
	n := gw.Name()
	ip(t, "-n "+n+" link set dmz down")
	ip(t, "-n "+n+" link set dmz name dmz-new")
	ip(t, "-n "+n+" link set dmz-new up")
	again()
	if got := port(); got.Device != "dmz-new" || !strings.Contains(strings.Join(got.Notes, "\n"), "was renamed") {
		t.Errorf("the port is %+v", got)
	}
	answers(t, lan, dmz4, 2*time.Second)
	ip(t, "-n "+n+" link set dmz-new down")
	ip(t, "-n "+n+" link set dmz-new name dmz")
	ip(t, "-n "+n+" link set dmz up")
	testenv.Eventually(t, 2*time.Second, func() error {
		if got := port(); got.Device != "dmz" || !got.Up {
			return fmt.Errorf("the port is %+v", got)
		}
		return nil
	})

	// Deleted: what ran goes on.
	p.kill()
	if u, err = l.Unplug(testenv.Gateway, "dmz"); err != nil {
		t.Fatal(err)
	}
	again()
	if got := port(); got.Missing != "device dmz is not there" || got.Up {
		t.Errorf("the port is %+v", got)
	}
	if err := u.Replug(); err != nil {
		t.Fatal(err)
	}
	answers(t, lan, dmz4, 2*time.Second)

	if lost := s.lost(); lost != 0 {
		t.Errorf("the flow beside it lost %d of %d packets", lost, s.sent.Load())
	}
	if passed := must(capture.Stop()); passed != 0 {
		t.Errorf("%d of %d packets passed that no rule allows", passed, x.sent.Load())
	}
	p.stop(t)
	// Interface numbers and what stands on its own are those of the new device.
	for _, name := range []string{"ipv4/conf/dmz/forwarding", "ipv4/neigh/dmz/base_reachable_time_ms"} {
		if got := must(gw.Command(t.Context(), "cat", "/proc/sys/net/"+name).Output()); string(got) != map[bool]string{true: "0\n", false: "30000\n"}[strings.HasSuffix(name, "forwarding")] {
			t.Errorf("%s is left at %s", name, got)
		}
	}
	if after := settings(t, gw); withoutDMZ(after) != withoutDMZ(before) {
		t.Errorf("the host is not as it was:\n%s\nit was:\n%s", after, before)
	}
}

// withoutDMZ leaves the device out that was made anew.
func withoutDMZ(settings string) string {
	var kept []string
	for _, line := range strings.Split(settings, "\n") {
		if !strings.Contains(line, "dmz") && !strings.Contains(line, "d0") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

// One side of an inline pair goes: the other stays, and what should leave by the one that is missing is
// dropped by name. It comes back, and the cable is whole.
func TestLabInlineDevice(t *testing.T) {
	l := testenv.New(t, "inline", testenv.Options{Prefix: "t-lab-devi"})
	client, gw := l.Must(t, "client"), l.Must(t, testenv.Gateway)
	g := runIn(t, l, write(t, labInline+"flows: {max: 10000}\n", labPolicy))
	server := serverAddresses(l)[0]
	answers(t, client, server, 5*time.Second)
	kept := stateOfDevice(t, gw, "lan")
	u, err := l.Unplug(testenv.Gateway, "wan")
	if err != nil {
		t.Fatal(err)
	}
	g.becomes(t, "wan", "missing", 2*time.Second, missing)
	testenv.Eventually(t, 5*time.Second, func() error {
		if r, err := client.Ping(t.Context(), server, testenv.PingOptions{Timeout: 50 * time.Millisecond}); err != nil || r.Received > 0 {
			return fmt.Errorf("ping: %+v, %v", r, err)
		}
		for _, d := range must(g.Drops(t.Context(), false)) {
			if d.Reason == "egress-down" {
				return nil
			}
		}
		return fmt.Errorf("dropped are %+v", must(g.Drops(t.Context(), false)))
	})
	if p := g.port(t, "lan"); !present(&p) {
		t.Errorf("the other side is %+v", p)
	}
	if err := u.Replug(); err != nil {
		t.Fatal(err)
	}
	g.becomes(t, "wan", "back", 2*time.Second, present)
	answers(t, client, server, 2*time.Second)
	if s := stateOfDevice(t, gw, "lan"); s != kept {
		t.Errorf("the other side was %+v and is %+v", kept, s)
	}
}
