package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

const testPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24, "fd10:1::/64"]}
  wan: {ports: [wan]}
rules:
  - {name: web, from: {zone: lan}, to: {zone: wan}, service: tcp/80, action: allow, log: true}
  - {name: names, from: {zone: lan}, to: {zone: wan}, service: udp/53, action: allow, log: true}
  - {name: watched, from: {zone: lan}, to: {zone: wan}, service: tcp/23, action: allow, mode: audit, log: true}
  - {name: no-telnet, from: {zone: lan}, to: {zone: wan}, service: tcp/23, action: deny, log: true}
  - {name: no-mail, from: {zone: lan}, to: {zone: wan}, service: tcp/25, action: reject}
  - {name: ping, from: {zone: lan}, to: [wan, host], service: [icmp/echo-request, icmpv6/echo-request], action: allow}
tests:
  - {name: the web is open, packet: {in: lan, src: 10.10.1.2, dst: 10.10.2.2, service: tcp/80}, expect: {verdict: allow, rule: web}}
  - {name: pings reach the gateway, packet: {in: lan, src: 10.10.1.2, dst: 10.10.1.1, service: icmp/echo-request}, expect: {verdict: allow, rule: ping}}
`

const testConfig = `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan}, wan: {device: wan}}
policy: policy.yaml
management: none
on_stop: open
flows: {max: 1000, timeouts: {udp: 1s, udp_new: 1s, icmp: 1s}}
control: {socket: run/softdpu.sock, group: softdpu-nobody}
events: {file: log/eve.json}
state: state
`

// write puts a configuration and its policy into a directory of the test's own, and loads it.
func write(t testing.TB, config, policy string) *Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for name, text := range map[string]string{"softdpu.yaml": config, "policy.yaml": policy} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := LoadConfig(filepath.Join(dir, "softdpu.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A testGateway runs in the gateway's namespace of a lab.
type testGateway struct {
	*Client
	config *Config
	log    *lockedBuffer
	stop   func()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// runIn starts the gateway and waits until it judges. stop waits until it has ended, and may be called
// twice.
func runIn(t testing.TB, l *testenv.Lab, c *Config) *testGateway {
	t.Helper()
	return runWith(t, l, c, Options{})
}

// runWith is runIn with options, but for Log, Version and Ready.
func runWith(t testing.TB, l *testenv.Lab, c *Config, o Options) *testGateway {
	t.Helper()
	gw := l.Must(t, testenv.Gateway)
	ctx, cancel := context.WithCancel(context.Background())
	log := &lockedBuffer{}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- gw.Do(func() error {
			o.Log, o.Version, o.Ready = slog.New(slog.NewTextHandler(log, nil)), "test", func() { close(ready) }
			return Run(ctx, c, o)
		})
	}()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	select {
	case <-ready:
	case err := <-done:
		cancel()
		t.Fatalf("run: %v\n%s", err, log)
	case <-time.After(30 * time.Second):
		cancel()
		t.Fatalf("not ready:\n%s", log)
	}
	t.Cleanup(stop)
	return &testGateway{checkedClient(t, c.Control.Socket), c, log, stop}
}

func (g *testGateway) rule(t *testing.T, name string) RuleStatus {
	t.Helper()
	rules, err := g.Rules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no rule %s in %+v", name, rules)
	return RuleStatus{}
}

func (g *testGateway) dropped(t *testing.T, reason string) Drop {
	t.Helper()
	drops, err := g.Drops(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range drops {
		if d.Reason == reason {
			return d
		}
	}
	t.Fatalf("no reason %s in %+v", reason, drops)
	return Drop{}
}

// limited ends what should have happened by then, on a slow machine later.
func limited(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience(limit))
	t.Cleanup(cancel)
	return ctx
}

// briefly is how long to wait for what must not happen.
func briefly(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

var (
	client4, server4 = netip.MustParseAddr("10.10.1.2"), netip.MustParseAddr("10.10.2.2")
	client6, server6 = netip.MustParseAddr("fd10:1::2"), netip.MustParseAddr("fd10:2::2")
)

func TestRun(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-gw-run"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	before := settings(t, gw)
	g := runIn(t, l, write(t, testConfig, testPolicy))
	for _, want := range []string{"name=lan", "mode=native", "only root may use the control socket", "tests_passed=2"} {
		if !strings.Contains(g.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, g.log)
		}
	}

	const size = 4 << 20
	for _, a := range []netip.Addr{server4, server6} {
		web, err := server.ServeHTTP(t.Context(), netip.AddrPortFrom(a, 80))
		if err != nil {
			t.Fatal(err)
		}
		defer web.Close()
		names, err := server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 53))
		if err != nil {
			t.Fatal(err)
		}
		defer names.Close()
		if _, err := client.Download(limited(t, 20*time.Second), web.URL(size)); err != nil {
			t.Fatalf("download from %s: %v\n%+v", a, err, must(g.Drops(t.Context(), false)))
		}
		if _, err := client.Exchange(t.Context(), names.Addr(), []byte("who?")); err != nil {
			t.Errorf("UDP to %s: %v", a, err)
		}
		if r, err := client.Ping(t.Context(), a, testenv.PingOptions{}); err != nil || r.Received != 1 {
			t.Errorf("ping %s: %+v, %v", a, r, err)
		}
		if _, err := client.Dial(briefly(t, 300*time.Millisecond), "tcp", netip.AddrPortFrom(a, 23).String()); err == nil || errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("telnet to %s: %v", a, err)
		}
		start := time.Now()
		if _, err := client.Dial(limited(t, 5*time.Second), "tcp", netip.AddrPortFrom(a, 25).String()); !errors.Is(err, unix.ECONNREFUSED) || time.Since(start) > 3*time.Second {
			t.Errorf("mail to %s: %v after %s", a, err, time.Since(start))
		}
	}
	if r, err := client.Ping(t.Context(), netip.MustParseAddr("10.10.1.1"), testenv.PingOptions{}); err != nil || r.Received != 1 {
		t.Errorf("ping the gateway: %+v, %v", r, err)
	}

	checkFlows(t, g, size)
	checkRules(t, g, size)
	checkDrops(t, g)
	checkStatus(t, g)
	checkAgeing(t, g)

	g.stop()
	if after := settings(t, gw); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if _, err := os.Lstat(g.config.Control.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the control socket is still there: %v", err)
	}
	if _, err := g.Status(t.Context()); !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "softdpu run") {
		t.Errorf("without a daemon: %v", err)
	}
	checkEvents(t, g.config.Events.File)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func checkFlows(t *testing.T, g *testGateway, size uint64) {
	flows, err := g.Flows(t.Context(), "proto tcp and dport 80 and dst 10.10.2.0/24", 0)
	if err != nil || len(flows) != 1 {
		t.Fatalf("%d flows, %v", len(flows), err)
	}
	f := flows[0]
	if f.Family != 4 || f.Proto != "tcp" || f.SrcIP != client4 || f.SrcPort < 1024 || f.DestIP != server4 || f.DestPort != 80 ||
		f.From != "lan" || f.To != "wan" || f.State != "time-wait" || f.Revoked || f.Tier != "xdp" ||
		f.WhyNotHigher != "no hardware offload on port wan (veth)" || f.Rule != "web" || f.File != filepath.Join(filepath.Dir(g.config.File), "policy.yaml") ||
		f.Line != 7 || f.Epoch != 1 {
		t.Errorf("%+v", f)
	}
	if f.Packets[0] < 5 || f.Packets[1] < 5 || f.Bytes[0] < 300 || f.Bytes[1] < size || f.AgeS <= 0 || f.AgeS > 30 || f.IdleS > f.AgeS {
		t.Errorf("counts: %+v", f)
	}
	flows, err = g.Flows(t.Context(), "family 6 and rule web", 0)
	if err != nil || len(flows) != 1 || flows[0].SrcIP != client6 || flows[0].DestIP != server6 || flows[0].Bytes[1] < size {
		t.Errorf("IPv6: %+v, %v", flows, err)
	}
	if flows, err = g.Flows(t.Context(), "", 1); err != nil || len(flows) != 1 {
		t.Errorf("limit: %+v, %v", flows, err)
	}
	var fault *FilterError
	if _, err := g.Flows(t.Context(), "dport http", 0); !errors.As(err, &fault) || fault.Column != 7 {
		t.Errorf("bad filter: %v", err)
	}
}

func checkRules(t *testing.T, g *testGateway, size uint64) {
	web := g.rule(t, "web")
	if web.Action != "allow" || web.Mode != "enforce" || web.Line != 7 || web.Builtin || !web.Log || web.Flows != 2 || web.Judged != 2 ||
		web.Bytes < 2*size || web.Packets < 20 || web.LastHit == nil || time.Since(*web.LastHit) > time.Minute {
		t.Errorf("web: %+v", web)
	}
	if r := g.rule(t, "no-telnet"); r.Action != "deny" || r.Packets < 2 || r.Judged != r.Packets || r.Flows != 0 {
		t.Errorf("no-telnet: %+v", r)
	}
	if r := g.rule(t, "watched"); r.Mode != "audit" || r.Judged < 2 || r.Packets != 0 {
		t.Errorf("watched: %+v", r)
	}
	if r := g.rule(t, "none"); r.Action != "deny" || r.Builtin || r.File != "" {
		t.Errorf("none: %+v", r)
	}
	if r := g.rule(t, "builtin-arp"); !r.Builtin || r.Packets == 0 {
		t.Errorf("builtin-arp: %+v", r)
	}
}

func checkDrops(t *testing.T, g *testGateway) {
	if d := g.dropped(t, "deny"); d.Packets < 2 || d.Bytes < 2*60 {
		t.Errorf("deny: %+v", d)
	}
	if d := g.dropped(t, "reject"); d.Packets < 2 {
		t.Errorf("reject: %+v", d)
	}
	drops, err := g.Drops(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range drops {
		if d.Packets == 0 || d.Reason == "none" {
			t.Errorf("shown though nothing was dropped: %+v", d)
		}
	}
	passes, err := g.Passes(t.Context())
	if err != nil || len(passes) != 5 || passes[0].Cause != "host" || passes[0].Packets == 0 {
		t.Errorf("passes: %+v, %v", passes, err)
	}
}

func checkStatus(t *testing.T, g *testGateway) {
	s, err := g.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != "test" || s.PID != os.Getpid() || len(s.Program) != 16 || s.Policy.Rules != 6 || s.Policy.Epoch != 1 || s.Policy.Tests != 2 ||
		strings.Join(s.Policy.Zones, " ") != "host lan wan" {
		t.Errorf("%+v", s)
	}
	if len(s.Ports) != 2 || s.Ports[0].Name != "lan" || s.Ports[0].Mode != "native" || s.Ports[0].Zone != "lan" || !s.Ports[0].Up || s.Ports[0].Driver != "veth" {
		t.Errorf("ports: %+v", s.Ports)
	}
	if s.Table.Created < 6 || s.Table.FlowsMax != 1000 {
		t.Errorf("table: %+v", s.Table)
	}
	testenv.Eventually(t, 5*time.Second, func() error { // one may age between two of the numbers
		s := must(g.Status(t.Context())).Table
		if held := int64(s.Created - s.Evicted - s.Aged); s.Flows != held || held < 2 {
			return fmt.Errorf("table: %+v", s)
		}
		return nil
	})
}

// checkAgeing waits until the UDP flows, whose time-out is one second, are gone. Their rule keeps what
// they counted.
func checkAgeing(t *testing.T, g *testGateway) {
	counted := g.rule(t, "names")
	if counted.Packets != 4 || counted.Flows > 2 { // the first may be gone on a slow machine
		t.Errorf("names: %+v", counted)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		flows, err := g.Flows(t.Context(), "rule names", 0)
		if err == nil && len(flows) > 0 {
			err = fmt.Errorf("%d flows are left", len(flows))
		}
		return err
	})
	if r := g.rule(t, "names"); r.Packets != counted.Packets || r.Bytes != counted.Bytes || r.Flows != 0 {
		t.Errorf("names after ageing: %+v, before: %+v", r, counted)
	}
}

func checkEvents(t *testing.T, file string) {
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Fatalf("events file: %v, %v", info.Mode(), err)
	}
	f := must(os.Open(file))
	defer f.Close()
	kinds := map[string]int{}
	ids := map[string]float64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		var e map[string]any
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", s.Bytes(), err)
		}
		ours, _ := e["softdpu"].(map[string]any)
		event := fmt.Sprint(e["event_type"], " ", ours["event"], " ", ours["rule"])
		kinds[event]++
		if _, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", fmt.Sprint(e["timestamp"])); err != nil {
			t.Error(err)
		}
		if e["event_type"] == "gateway" || e["event_type"] == "policy" {
			continue
		}
		if ours["from"] != "lan" || ours["to"] != "wan" || ours["line"] == nil {
			t.Errorf("%s", s.Bytes())
		}
		if flow, _ := e["flow"].(map[string]any); ours["rule"] == "names" {
			if e["proto"] != "UDP" || e["dest_port"] != 53.0 || ours["event"] == "flow-end" && (flow["reason"] != "aged" || flow["state"] != "replied" || flow["pkts_toclient"] != 1.0) {
				t.Errorf("%s", s.Bytes())
			}
		} else if e["proto"] != "TCP" {
			t.Errorf("%s", s.Bytes())
		} else if flow != nil {
			if ours["event"] == "flow-start" {
				ids[fmt.Sprint(e["src_ip"])] = e["flow_id"].(float64)
			} else if flow["reason"] != "stopped" || flow["state"] != "time-wait" || flow["bytes_toclient"].(float64) < 4<<20 || flow["end"] == nil || e["dest_port"] != 80.0 ||
				ids[fmt.Sprint(e["src_ip"])] != e["flow_id"] {
				t.Errorf("%s", s.Bytes())
			}
		} else if ours["event"] == "deny" && ours["reason"] != "deny" {
			t.Errorf("%s", s.Bytes())
		}
	}
	for event, least := range map[string]int{
		"flow flow-start names": 2, "flow flow-end names": 2, "flow flow-start web": 2, "flow flow-end web": 2, "drop deny no-telnet": 2, "audit audit watched": 2,
		"policy policy-loaded <nil>": 1, "gateway gateway-start <nil>": 1, "gateway gateway-stop <nil>": 1,
	} {
		if kinds[event] < least {
			t.Errorf("%d events %q of %v", kinds[event], event, kinds)
		}
	}
}

var bridgeTimer = regexp.MustCompile(`_timer +[0-9.]+`)

// settings describes what a stop must put back: programs and the sysctls of the ports.
func settings(t *testing.T, gw *testenv.Namespace) string {
	t.Helper()
	var b strings.Builder
	cmd := gw.Command(t.Context(), "ip", "-d", "-o", "link")
	complaints := new(bytes.Buffer) // it has some where namespaces of other tests go meanwhile
	cmd.Stderr = complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, complaints)
	}
	b.Write(bridgeTimer.ReplaceAll(out, nil))
	err = gw.Do(func() error {
		for _, name := range []string{
			"ipv4/ip_forward", "ipv4/conf/lan/forwarding", "ipv4/conf/wan/forwarding", "ipv6/conf/all/forwarding",
			"ipv6/conf/lan/forwarding", "ipv6/conf/lan/force_forwarding", "ipv4/neigh/lan/base_reachable_time_ms",
		} {
			text, _ := os.ReadFile("/proc/sys/net/" + name) // force_forwarding may be missing
			fmt.Fprintf(&b, "%s %s", name, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestControlSocket(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-gw-ctl"})
	c := write(t, testConfig, testPolicy)

	// What a crash left is replaced.
	if err := os.MkdirAll(filepath.Dir(c.Control.Socket), 0o755); err != nil {
		t.Fatal(err)
	}
	stale := must(net.ListenUnix("unix", &net.UnixAddr{Name: c.Control.Socket, Net: "unix"}))
	stale.SetUnlinkOnClose(false)
	stale.Close()
	runIn(t, l, c)
	if info := must(os.Stat(c.Control.Socket)); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}

	// A second daemon is refused and does the first no harm.
	err := l.Must(t, testenv.Gateway).Do(func() error { return Run(t.Context(), c, Options{}) })
	if err == nil || !strings.Contains(err.Error(), c.Control.Socket) || !strings.Contains(err.Error(), "a running softdpu answers") {
		t.Errorf("second run: %v", err)
	}
	web := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", c.Control.Socket)
	}}}
	defer web.CloseIdleConnections()
	for path, want := range map[string]int{"/v1/status": 200, "/v1/passes": 200, "/v1/nothing": 404, "/v1/flows?limit=x": 400, "/v1/flows?filter=(": 400} {
		resp, err := web.Get("http://softdpu" + path)
		if err != nil {
			t.Fatal(err)
		}
		var body any
		if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || resp.StatusCode != want {
			t.Errorf("%s: %s, %v", path, resp.Status, err)
		}
		resp.Body.Close()
	}
}

func TestRefusedBeforeAnythingIsTouched(t *testing.T) {
	testenv.RequireRoot(t)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-gw-bad"})
	gw := l.Must(t, testenv.Gateway)
	before := settings(t, gw)
	change := func(text, from, to string) string {
		if !strings.Contains(text, from) {
			t.Fatalf("no %q", from)
		}
		return strings.Replace(text, from, to, 1)
	}
	tests := []struct {
		name, config, policy string
		want                 []string
	}{
		{"a mistake in the policy", testConfig, change(testPolicy, "action: deny", "action: denied"), []string{"policy.yaml:10:", "denied", "nothing was changed"}},
		{"a failing test", testConfig, change(testPolicy, "rule: web}}", "rule: names}}"), []string{"policy.yaml:14:", `test "the web is open"`, `"web"`}},
		{"a test whose route leads nowhere", testConfig, change(testPolicy, "dst: 10.10.2.2", "dst: 192.0.2.1"), []string{"policy.yaml:14:", "no route leads to 192.0.2.1"}},
		{"a zone's port that the gateway lacks", testConfig, change(testPolicy, "[wan]", "[wan0]"), []string{"policy.yaml:5:", `unknown port "wan0"`}},
		{"a port in no zone", change(testConfig, "wan: {device: wan}", "wan: {device: wan}, dmz: {device: dmz}"), testPolicy, []string{"softdpu.yaml:3:", `port "dmz" belongs to no zone`}},
		{"no policy", change(testConfig, "policy: policy.yaml", "policy: policy.d"), testPolicy, []string{"softdpu.yaml:4:", "policy.d"}},
		{"no device", change(testConfig, "device: wan", "device: wan9"), testPolicy[:strings.Index(testPolicy, "tests:")], []string{"wan9", "no device"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := write(t, tt.config, tt.policy)
			err := gw.Do(func() error { return Run(t.Context(), c, Options{Ready: func() { t.Error("it runs") }}) })
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("does not say %q: %v", want, err)
				}
			}
			if _, err := os.Lstat(c.Control.Socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left a control socket: %v", err)
			}
		})
	}
	if after := settings(t, gw); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
