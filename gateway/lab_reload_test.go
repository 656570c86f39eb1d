package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

// A reloadRig is a gateway with an echo server behind it, whose policy the test rewrites.
type reloadRig struct {
	*testGateway
	lab    *testenv.Lab
	client *testenv.Namespace
	echo   map[uint16]*testenv.Echo // by port
	signal chan os.Signal
	ahead  atomic.Int64 // of the gateway's clock before the wall's, in ns
}

func newReloadRig(t *testing.T, prefix, policy string, ports ...uint16) *reloadRig {
	t.Helper()
	return newReloadRigIn(t, testenv.New(t, "client-server", testenv.Options{Prefix: prefix}), labRouted, policy, ports...)
}

// newReloadRigIn is newReloadRig in a lab that is up.
func newReloadRigIn(t *testing.T, l *testenv.Lab, config, policy string, ports ...uint16) *reloadRig {
	t.Helper()
	r := &reloadRig{lab: l, client: l.Must(t, "client"), echo: map[uint16]*testenv.Echo{}, signal: make(chan os.Signal, 1)}
	r.testGateway = runWith(t, l, write(t, config, policy), Options{
		Reload: r.signal, now: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) },
	})
	for _, port := range ports {
		echo, err := l.Must(t, "server").ServeEcho(t.Context(), netip.AddrPortFrom(server4, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { echo.Close() })
		r.echo[port] = echo
		echo6, err := l.Must(t, "server").ServeEcho(t.Context(), netip.AddrPortFrom(server6, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { echo6.Close() })
	}
	return r
}

func (r *reloadRig) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(r.config.File), name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// apply puts a policy in force and returns its epoch.
func (r *reloadRig) apply(t *testing.T, policy string) uint32 {
	t.Helper()
	r.write(t, "policy.yaml", policy)
	done, err := r.Reload(t.Context())
	if err != nil {
		t.Fatalf("reload: %v\n%s", err, policy)
	}
	return done.Epoch
}

// reaches waits for a policy's epoch.
func (r *reloadRig) reaches(t *testing.T, epoch uint32) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		if s := must(r.Status(t.Context())); s.Policy.Epoch != epoch {
			return fmt.Errorf("in force is epoch %d, want %d\n%s", s.Policy.Epoch, epoch, r.log)
		}
		return nil
	})
}

func (r *reloadRig) dial(t *testing.T, port uint16) net.Conn {
	t.Helper()
	return r.dialAt(t, r.echo[port].Addr().Addr(), port)
}

func (r *reloadRig) dialAt(t *testing.T, server netip.Addr, port uint16) net.Conn {
	t.Helper()
	c, err := r.client.Dial(limited(t, 5*time.Second), "tcp", netip.AddrPortFrom(server, port).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// swap sends random bytes and wants the very same back within the limit.
func swap(c net.Conn, random *rand.Rand, limit time.Duration) error {
	out, in := make([]byte, 1+random.IntN(8000)), []byte(nil)
	for i := range out {
		out[i] = byte(random.Uint32())
	}
	in = make([]byte, len(out))
	_ = c.SetDeadline(time.Now().Add(testenv.Patience(limit))) // a TCP connection takes one
	if _, err := c.Write(out); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, in); err != nil {
		return err
	}
	if !bytes.Equal(in, out) {
		return errors.New("other bytes came back")
	}
	return nil
}

// shuffled is a policy whose zones and rules have other names and another order in each round. What the
// client may do is the same in all but one thing: probes are allowed in odd rounds.
func shuffled(round int, lanPorts, wanPorts string) (text string, names []string) {
	random := rand.New(rand.NewPCG(1, uint64(round)))
	lan, wan := "lan", "wan"
	switch round % 3 {
	case 1:
		lan, wan = fmt.Sprintf("inside%d", round), fmt.Sprintf("outside%d", round)
	case 2:
		lan, wan = "wan", "lan"
	}
	probe := "deny"
	if round%2 == 1 {
		probe = "allow"
	}
	carries := "bulk"
	if round%4 > 1 {
		carries = fmt.Sprintf("bulk-%d", round)
	}
	rules := []string{
		fmt.Sprintf("{name: %s, from: {zone: %s}, to: {zone: %s}, service: [tcp/5001, tcp/5003], action: allow}", carries, lan, wan),
		fmt.Sprintf("{name: probe, from: {zone: %s}, to: {zone: %s}, service: tcp/5002, action: %s}", lan, wan, probe),
		fmt.Sprintf("{name: other-%d, from: any, to: any, service: tcp/6000, action: allow}", round),
	}
	for i := range random.IntN(20) {
		rules = append(rules, fmt.Sprintf("{name: filler-%d, from: {zone: %s}, to: host, service: udp/%d, action: allow}", i, lan, 7000+i))
	}
	random.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	text = fmt.Sprintf("apiVersion: softdpu/v1\nkind: Policy\nzones: {%s: {ports: [%s]}, %s: {ports: [%s]}}\nrules:\n", lan, lanPorts, wan, wanPorts)
	for _, r := range rules {
		text += "  - " + r + "\n"
		name, _, _ := strings.Cut(strings.TrimPrefix(r, "{name: "), ",")
		names = append(names, name)
	}
	return text, names
}

// Connections of both families, whose replies take other ports than their requests, each send between any two
// policies, which differ in names and order: no reset, no lost byte, no packet refused, and what they are counted
// under is a rule of the epoch's policy. Then one cuts ten of them, and no other.
func TestLabReloads(t *testing.T) {
	const cut = 10
	rounds, conns := sized(13, 100), sized(40, 1000)
	first, names := shuffled(0, "lan, lan2", "wan, wan2")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-rl-many"})
	addReturnPath(t, l)
	r := newReloadRigIn(t, l, asymmetricRouted, first, 5001, 5002, 5003)
	epochs := map[uint32][]string{1: names}

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	exchanges := make([]atomic.Int64, conns)
	pause := time.Duration(conns) * 500 * time.Microsecond // all together do not fill the machine
	all := make([]net.Conn, conns)
	for i := range all {
		port := uint16(5001)
		if i < cut {
			port = 5003
		}
		c := r.dialAt(t, []netip.Addr{server4, server6}[i%2], port)
		all[i] = c
		random := rand.New(rand.NewPCG(2, uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := swap(c, random, 20*time.Second); err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				exchanges[i].Add(1)
				time.Sleep(pause)
			}
		})
	}
	before := make([]int64, conns)
	for round := 1; round <= rounds; round++ {
		testenv.Eventually(t, 60*time.Second, func() error { // which are whole: begun and ended under this policy
			for i := range exchanges {
				if n := exchanges[i].Load(); n < before[i]+2 {
					return fmt.Errorf("round %d: connection %d has made %d exchanges since the policy before", round, i, n-before[i])
				}
			}
			return nil
		})
		text, names := shuffled(round, "lan, lan2", "wan, wan2")
		epoch := r.apply(t, text)
		if want := uint32(round + 1); epoch != want {
			t.Fatalf("round %d has epoch %d", round, epoch)
		}
		for i := range exchanges {
			before[i] = exchanges[i].Load()
		}
		epochs[epoch] = names
		if round%2 == 1 {
			r.dial(t, 5002).Close()
		} else if c, err := r.client.Dial(briefly(t, 100*time.Millisecond), "tcp", r.echo[5002].Addr().String()); err == nil {
			c.Close()
			t.Errorf("round %d: a probe passed", round)
		}
		flows, err := r.Flows(t.Context(), "dport 5001 or dport 5003", 0)
		if err != nil || len(flows) != conns {
			t.Fatalf("round %d: %d flows, %v", round, len(flows), err)
		}
		for _, f := range flows {
			if f.Revoked || !slices.Contains(epochs[f.Epoch], f.Rule) || !strings.HasPrefix(f.Rule, "bulk") {
				t.Fatalf("round %d: the policy of epoch %d has no rule %q: %+v", round, f.Epoch, f.Rule, f)
			}
		}
		rules, err := r.Rules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var shown []string
		for _, rule := range rules[firewall.RuleFirst:] {
			shown = append(shown, rule.Name)
		}
		if !slices.Equal(shown, names) {
			t.Fatalf("round %d: rules shows %v, want %v", round, shown, names)
		}
	}
	cancel()
	wg.Wait()
	made := uint64(0)
	for i := range exchanges {
		made += uint64(exchanges[i].Load())
	}
	for device, ns := range map[string]*testenv.Namespace{"s0": l.Must(t, "server"), "c1": r.client} {
		if s := must(ns.DeviceStats(device)); s.RxPackets < made {
			t.Errorf("%d packets came in by %s, of %d exchanges", s.RxPackets, device, made)
		}
	}
	for _, reason := range []string{"wrong-zone", "flow-gone", "generation-absent", "internal"} {
		if d := r.dropped(t, reason); d.Packets > 0 {
			t.Errorf("%d packets were dropped: %s", d.Packets, reason)
		}
	}
	last, _ := shuffled(rounds, "lan, lan2", "wan, wan2")
	r.apply(t, strings.Replace(last, ", tcp/5003", "", 1))
	for i, c := range all {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(6, uint64(i)))
			limit := 20 * time.Second
			if i < cut {
				limit = time.Second
			}
			if err := swap(c, random, limit); i < cut != errors.Is(err, os.ErrDeadlineExceeded) || i >= cut && err != nil {
				t.Errorf("connection %d, of which the first %d are cut: %v", i, cut, err)
			}
		})
	}
	wg.Wait()
	revoked := must(r.Flows(t.Context(), "dport 5003", 0))
	if len(revoked) != cut || slices.ContainsFunc(revoked, func(f Flow) bool { return !f.Revoked }) || r.dropped(t, "policy-revoked").Packets < cut {
		t.Errorf("revoked are %+v", revoked)
	}
	t.Logf("%d exchanges on %d connections through %d reloads", made, conns, rounds)
}

// twoServices allows two ports by rules that log; the second one by what is given.
func twoServices(order int, second string) string {
	rules := []string{
		"{name: first, from: {zone: lan}, to: {zone: wan}, service: tcp/5001, action: allow, log: true}",
		"{name: second, from: {zone: lan}, to: {zone: wan}, service: tcp/5002, action: " + second + ", log: true}",
	}
	if order%2 == 1 {
		slices.Reverse(rules)
	}
	return "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\nrules:\n  - " + strings.Join(rules, "\n  - ") + "\n"
}

// A policy cuts exactly what it no longer allows, the one before brings it back, and names are right
// throughout.
func TestLabRevoke(t *testing.T) {
	t.Parallel()
	r := newReloadRig(t, "t-rl-cut", twoServices(0, "allow"), 5001, 5002)
	random := rand.New(rand.NewPCG(3, 3))
	first, second := r.dial(t, 5001), r.dial(t, 5002)
	works := func(c net.Conn) {
		t.Helper()
		if err := swap(c, random, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	works(first)
	works(second)

	r.apply(t, twoServices(1, "deny"))
	if err := swap(second, random, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection that is no longer allowed: %v", err)
	}
	for range 5 {
		works(first)
	}
	if d := r.dropped(t, "policy-revoked"); d.Packets == 0 {
		t.Error("nothing was dropped as policy-revoked")
	}
	for port, want := range map[int]struct {
		rule    string
		line    int
		revoked bool
	}{5001: {"first", 6, false}, 5002: {"second", 5, true}} {
		flows, err := r.Flows(t.Context(), fmt.Sprintf("dport %d", port), 0)
		if err != nil || len(flows) != 1 {
			t.Fatalf("%+v, %v", flows, err)
		}
		if f := flows[0]; f.Rule != want.rule || f.Line != want.line || f.Revoked != want.revoked || f.Epoch != 2 || f.From != "lan" {
			t.Errorf("%+v", f)
		}
	}
	if rule := r.rule(t, "first"); rule.Flows != 1 || rule.Packets < 10 || rule.Judged < 2 || rule.Line != 6 {
		t.Errorf("first: %+v", rule)
	}

	// Back by SIGHUP: what the client sent meanwhile, TCP sends again.
	r.write(t, "policy.yaml", twoServices(0, "allow"))
	r.signal <- unix.SIGHUP
	r.reaches(t, 3)
	// The bytes of the exchange that timed out come first.
	_ = second.SetDeadline(time.Now().Add(testenv.Patience(20 * time.Second)))
	if n, err := io.ReadAtLeast(second, make([]byte, 8000), 1); err != nil {
		t.Fatalf("after the roll-back: %d bytes, %v", n, err)
	}
	works(first)
	s := must(r.Status(t.Context()))
	if s.Policy.Epoch != 3 || s.Table.Revived != 1 {
		t.Errorf("epoch %d, %d flows revived", s.Policy.Epoch, s.Table.Revived)
	}

	// A rule that is gone is still called by its name, in flows and in the event of the flow's end.
	r.apply(t, strings.NewReplacer("name: first", "name: newer").Replace(twoServices(0, "allow")))
	if flows := must(r.Flows(t.Context(), "rule first", 0)); len(flows) != 1 || flows[0].Epoch != 3 || !strings.HasSuffix(flows[0].File, "policy.yaml") || flows[0].Line != 5 {
		t.Errorf("the flow that is not judged yet: %+v", flows)
	}
	works(first)
	if flows := must(r.Flows(t.Context(), "rule newer", 0)); len(flows) != 1 || flows[0].Epoch != 4 || flows[0].Packets[0] < 8 {
		t.Errorf("the flow that is judged: %+v", flows)
	}
	third := r.dial(t, 5001)
	works(third)
	r.stop()
	checkReloadEvents(t, r.config.Events.File)
}

// checkReloadEvents looks for the starts and ends of the three flows under the rules of their time.
func checkReloadEvents(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var e eveEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		seen[fmt.Sprintf("%s %s:%d", e.Softdpu.Event, e.Softdpu.Rule, e.Softdpu.Line)]++
	}
	for event, want := range map[string]int{
		"flow-start first:5": 1, "flow-start second:6": 1, "flow-start newer:5": 1, "flow-end newer:5": 2, "flow-end second:6": 1,
	} {
		if seen[event] != want {
			t.Errorf("%d events %q, want %d, of %v", seen[event], event, want, seen)
		}
	}
}

// What is wrong with configuration or policy is said with its place, and nothing changes.
func TestLabReloadRefused(t *testing.T) {
	t.Parallel()
	good := twoServices(0, "allow")
	r := newReloadRig(t, "t-rl-bad", good, 5001)
	random := rand.New(rand.NewPCG(4, 4))
	c := r.dial(t, 5001)
	for _, tt := range []struct{ name, file, text, want string }{
		{"no YAML", "policy.yaml", "rules: [", "policy.yaml:1:"},
		{"binary", "policy.yaml", "\x7fELF\x00\x01\xff", "policy.yaml"},
		{"empty", "policy.yaml", "", "policy.yaml: file is empty"},
		{"truncated", "policy.yaml", good[:len(good)-30], "policy.yaml:6:"},
		{"unknown zone", "policy.yaml", strings.Replace(good, "to: {zone: wan}", "to: {zone: van}", 1), `"van"`},
		{"a test that fails", "policy.yaml", good + "tests:\n  - {name: no, packet: {in: lan, out: wan, src: 10.10.1.2, dst: 10.10.2.2, service: tcp/5001}, expect: {verdict: deny}}\n", `policy.yaml:8:`},
		{"a port in no zone", "policy.yaml", "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan]}}\n", `port "wan" belongs to no zone`},
		{"unknown key", "softdpu.yaml", labRouted + "polcy: x\n", `did you mean`},
		{"another size", "softdpu.yaml", labRouted + "flows: {max: 5000}\n", "softdpu.yaml: flows.max has changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.write(t, tt.file, tt.text)
			_, err := r.Reload(t.Context())
			var errs firewall.Errors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("says %v, want %q", err, tt.want)
			}
			if s := must(r.Status(t.Context())); s.Policy.Epoch != 1 || s.Policy.Rules != 2 {
				t.Errorf("in force is %+v", s.Policy)
			}
			if err := swap(c, random, 5*time.Second); err != nil {
				t.Error(err)
			}
			if !strings.Contains(r.log.String(), "reload refused") {
				t.Errorf("the log does not tell:\n%s", r.log)
			}
			r.write(t, "policy.yaml", good)
			r.write(t, "softdpu.yaml", labRouted)
		})
	}
	if drops := must(r.Drops(t.Context(), false)); len(drops) > 0 {
		t.Errorf("packets were dropped: %+v", drops)
	}
	if epoch := r.apply(t, good); epoch != 2 {
		t.Errorf("a good policy has epoch %d", epoch)
	}
	// Whoever only reads cannot change anything; nor can a GET.
	resp, err := r.http.Get("http://softdpu/v1/reload")
	if err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
}

// A rule ends by itself when its last day is over, whatever stands in the files then.
func TestLabExpiry(t *testing.T) {
	t.Parallel()
	tomorrow := time.Now().UTC().AddDate(0, 0, 1).Format("2006-01-02")
	policy := twoServices(0, "allow, expires: "+tomorrow)
	r := newReloadRig(t, "t-rl-exp", policy, 5001, 5002)
	random := rand.New(rand.NewPCG(5, 5))
	first, second := r.dial(t, 5001), r.dial(t, 5002)
	for _, c := range []net.Conn{first, second} {
		if err := swap(c, random, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if s := must(r.Status(t.Context())); s.Policy.NextExpiry == nil {
		t.Fatalf("nothing expires: %+v", s.Policy)
	}
	r.write(t, "policy.yaml", "rules: [")
	r.ahead.Store(int64(72 * time.Hour))
	r.reaches(t, 2)
	if rule := r.rule(t, "second"); !rule.Expired {
		t.Errorf("%+v\n%s", rule, r.log)
	}
	if err := swap(second, random, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection by the rule that has expired: %v", err)
	}
	if err := swap(first, random, 5*time.Second); err != nil {
		t.Error(err)
	}
	time.Sleep(2 * expiryInterval)
	if s := must(r.Status(t.Context())); s.Policy.Epoch != 2 || s.Policy.NextExpiry != nil {
		t.Errorf("afterwards: %+v", s.Policy)
	}
}
