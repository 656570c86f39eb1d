package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

const setsPolicy = `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}
sets:
  threats: {type: prefix, entries: [192.0.2.0/24]}
  listed: {type: prefix, file: listed.txt}
  shut: {type: port, entries: [5009]}
  spare: {type: mac, entries: []}
services:
  closed: {proto: tcp, port: [5008, {set: shut}]}
rules:
  - {name: no-threats, from: any, to: {set: [threats, listed]}, action: deny}
  - {name: closed, from: {zone: lan}, to: {zone: wan}, service: closed, action: deny}
  - {name: bulk, from: {zone: lan}, to: {zone: wan}, service: [tcp/5001, tcp/5002], action: allow}
tests:
  - {name: the server is open, packet: {in: lan, out: wan, src: 10.10.1.2, dst: 10.10.2.2, service: tcp/5001}, expect: {verdict: allow}}
`

func writeSets(t *testing.T, config string) *Config {
	t.Helper()
	c := write(t, config, setsPolicy)
	if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), "listed.txt"), []byte("198.51.100.7 # Monday\n198.51.100.8\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

// setsRig is a gateway whose sets the test changes, with an echo server on both families.
type setsRig struct {
	*reloadRig
	server *testenv.Namespace
}

func newSetsRig(t *testing.T, prefix string) *setsRig {
	t.Helper()
	l := testenv.New(t, "client-server", testenv.Options{Prefix: prefix})
	r := &setsRig{&reloadRig{client: l.Must(t, "client"), echo: map[uint16]*testenv.Echo{}, signal: make(chan os.Signal, 1)}, l.Must(t, "server")}
	r.testGateway = runWith(t, l, writeSets(t, labRouted), Options{
		Reload: r.signal, now: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) },
	})
	for port, address := range map[uint16]netip.Addr{5001: server4, 5002: server6} {
		r.echo[port] = must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(address, port)))
		t.Cleanup(func() { r.echo[port].Close() })
	}
	return r
}

func entries(texts ...string) SetChange { return SetChange{Entries: texts} }

// cutOff wants that nothing comes back any more.
func cutOff(t *testing.T, c net.Conn, random *rand.Rand) {
	t.Helper()
	if err := swap(c, random, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection to an entry of the set: %v", err)
	}
}

// comesBack wants that what TCP sends again arrives.
func comesBack(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("after the entry was gone: %v", err)
	}
}

// Entries cut the connections that they name, of both families, and no other, within a second; their end
// brings them back, whoever brings it about.
func TestLabSets(t *testing.T) {
	t.Parallel()
	r := newSetsRig(t, "t-lab-sets")
	random := rand.New(rand.NewPCG(8, 8))
	first, second := r.dial(t, 5001), r.dial(t, 5002)
	works := func(c net.Conn) {
		t.Helper()
		if err := swap(c, random, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	works(first)
	works(second)

	began := time.Now()
	done, err := r.AddToSet(t.Context(), "threats", SetChange{Entries: []string{"10.10.2.0/24"}, Comment: "CHG-1"})
	if err != nil || done.Added != 1 || done.Entries != 2 || done.Epoch != 2 || done.Until != nil || len(done.Notes) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	took := time.Since(began)
	cutOff(t, first, random)
	works(second)
	if d := r.dropped(t, "policy-revoked"); d.Packets == 0 {
		t.Error("nothing was dropped as policy-revoked")
	}
	t.Logf("in force after %s", took)

	// A reload loses nothing, and a policy that has not the set keeps its entries for one that has.
	if done := must(r.Reload(t.Context())); len(done.Warnings) > 1 { // the set spare is not used
		t.Errorf("warnings %+v", done.Warnings)
	}
	cutOff(t, first, random)
	r.write(t, "policy.yaml", strings.ReplaceAll(setsPolicy, "threats", "risks"))
	if done := must(r.Reload(t.Context())); len(done.Warnings) != 2 || !strings.Contains(fmt.Sprint(done.Warnings), "1 entry that set threats was given at runtime") {
		t.Errorf("warnings %+v", done.Warnings)
	}
	comesBack(t, first)
	sets := must(r.Sets(t.Context()))
	if last := sets[len(sets)-1]; last.Name != "threats" || last.Idle != 1 || last.Entries != 0 {
		t.Errorf("sets are %+v", sets)
	}
	if status := must(r.Status(t.Context())); status.Policy.RuntimeEntries != 1 || len(status.Differs) > 0 {
		t.Errorf("status: %+v, differs %+v", status.Policy, status.Differs)
	}
	r.write(t, "policy.yaml", setsPolicy)
	must(r.Reload(t.Context()))
	_ = first.SetDeadline(time.Time{})
	first.Close()
	if c, err := r.client.Dial(briefly(t, 200*time.Millisecond), "tcp", r.echo[5001].Addr().String()); err == nil {
		c.Close()
		t.Error("a new connection passed")
	}
	if done, err := r.DeleteFromSet(t.Context(), "threats", entries("10.10.2.0/24")); err != nil || done.Removed != 1 || done.Entries != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	first = r.dial(t, 5001)
	works(first)

	// IPv6, for an hour by the clock.
	done, err = r.AddToSet(t.Context(), "listed", SetChange{Entries: []string{server6.String(), "203.0.113.1-203.0.113.9"}, For: "1h"})
	if err != nil || done.Added != 2 || done.Until == nil {
		t.Fatalf("%+v, %v", done, err)
	}
	cutOff(t, second, random)
	works(first)
	checkSetList(t, r.testGateway)
	r.ahead.Store(int64(time.Hour + time.Second))
	comesBack(t, second)
	if sets := must(r.SetEntries(t.Context(), "listed")); len(sets) != 2 {
		t.Errorf("after an hour: %+v", sets)
	}

	// Ports, through the service that names the set.
	must(r.AddToSet(t.Context(), "shut", entries("5001-5002")))
	cutOff(t, first, random)
	if done := must(r.DeleteFromSet(t.Context(), "shut", SetChange{All: true})); done.Removed != 1 {
		t.Errorf("%+v", done)
	}
	comesBack(t, first)

	// MAC addresses, of connections that begin from then on.
	r.apply(t, strings.Replace(setsPolicy, "rules:", "rules:\n  - {name: who, from: {set: spare}, to: any, action: deny}", 1))
	mac := entries(must(r.client.MAC("c0")).String())
	must(r.AddToSet(t.Context(), "spare", mac))
	if c, err := r.client.Dial(briefly(t, 200*time.Millisecond), "tcp", r.echo[5001].Addr().String()); err == nil {
		c.Close()
		t.Error("a connection from a MAC address of the set passed")
	}
	must(r.DeleteFromSet(t.Context(), "spare", mac))
	works(r.dial(t, 5001))
	r.stop()
	checkSetEvents(t, r.config.Events.File)
}

func checkSetList(t *testing.T, g *testGateway) {
	t.Helper()
	list := must(g.SetEntries(t.Context(), "listed"))
	if len(list) != 4 {
		t.Fatalf("listed: %+v", list)
	}
	if e := list[0]; e.Entry != "198.51.100.7" || e.Source != "policy" || !strings.HasSuffix(e.File, "listed.txt") || e.Line != 1 || !e.InForce || e.Until != nil || e.By != "" {
		t.Errorf("the first entry: %+v", e)
	}
	if e := list[3]; e.Source != "runtime" || e.By != "root" || e.Until == nil || e.ExpiresS == nil || *e.ExpiresS > 3600 || *e.ExpiresS < 3500 || e.File != "" {
		t.Errorf("the last entry: %+v", e)
	}
	for _, s := range must(g.Sets(t.Context())) {
		if s.Name == "listed" && (s.Type != "prefix" || s.Entries != 4 || s.Written != 2 || s.Added != 2 || s.Removed != 0 || !s.Used || !strings.HasSuffix(s.Source, "listed.txt") || s.Line != 6) {
			t.Errorf("%+v", s)
		}
	}
}

func checkSetEvents(t *testing.T, file string) {
	t.Helper()
	seen := map[string]int{}
	for _, e := range lines(t, file) {
		if what := e["softdpu"].(map[string]any); what["event"] == "set-changed" {
			set := e["set"].(map[string]any)
			seen[fmt.Sprintf("%s %s +%v -%v ~%v %v", what["by"], set["name"], set["added"], set["removed"], set["expired"], set["comment"])]++
			if e["event_type"] != "policy" || e["policy"].(map[string]any)["epoch"].(float64) < 2 {
				t.Errorf("event %v", e)
			}
		}
	}
	for _, want := range []string{"root threats +1 -0 ~0 CHG-1", "root threats +0 -1 ~0 <nil>", "expiry listed +0 -0 ~2 <nil>", "root shut +0 -1 ~0 <nil>"} {
		if seen[want] != 1 {
			t.Errorf("%d events %q of %v", seen[want], want, seen)
		}
	}
}

// What is wrong is said with its place, and nothing changes; what changes nothing is noted.
func TestLabSetsRefused(t *testing.T) {
	t.Parallel()
	r := newSetsRig(t, "t-lab-setbad")
	many := make([]string, maxSetEntries+1)
	for i := range many {
		many[i] = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
	}
	for _, tt := range []struct {
		name, set string
		change    SetChange
		del       bool
		want      []string
	}{
		{"unknown set", "threat", entries("192.0.2.1"), false, []string{`unknown set "threat"`, `did you mean "threats"?`}},
		{"unknown set of another kind", "other", entries("192.0.2.1"), true, []string{"the policy has: listed, shut, spare, threats"}},
		{"wrong type", "shut", entries("80", "192.0.2.1"), false, []string{"entries:2:1", `"192.0.2.1" is not a port`}},
		{"host bits", "threats", entries("192.0.2.0/24", "10.1.2.3/8"), false, []string{"entries:2:1", "bits set beyond its length", "write 10.0.0.0/8"}},
		{"no entry", "threats", entries(""), false, []string{"is not an address"}},
		{"binary", "threats", entries("\x00\x1b[2J\xff"), false, []string{"is not an address"}},
		{"a very long one", "threats", entries("192.0.2.1", strings.Repeat("1", 1<<20)), false, []string{"entries:2:1", "longer than an entry can be"}},
		{"no entries", "threats", entries(), false, []string{"no entry is given"}},
		{"too many", "threats", entries(many...), false, []string{"100001 entries", "several calls"}},
		{"not for a time", "threats", SetChange{Entries: []string{"10.1.2.3"}, For: "soon"}, false, []string{`"soon" is not for how long`}},
		{"a comment of two lines", "threats", SetChange{Entries: []string{"10.1.2.3"}, Comment: "a\nb"}, false, []string{"one line"}},
		{"inside another", "threats", entries("192.0.2.77"), true, []string{"it lies in 192.0.2.0/24 (policy.yaml:5)", "delete 192.0.2.0/24"}},
		{"all of something", "threats", SetChange{Entries: []string{"10.1.2.3"}, All: true}, true, []string{"leave entries and for out"}},
		{"all added", "threats", SetChange{All: true}, false, []string{"deletion"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			call := r.AddToSet
			if tt.del {
				call = r.DeleteFromSet
			}
			done, err := call(t.Context(), tt.set, tt.change)
			if err == nil {
				t.Fatalf("done: %+v", done)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("says %v, want %q", err, want)
				}
			}
		})
	}
	for _, body := range []string{"", "{", "[]", `{"entries": "x"}`, `{"entries": ["192.0.2.1"], "fro": 1}`, `{"entries": ["192.0.2.1"]} {}`, "\x00\xff", strings.Repeat("[", 100000)} {
		resp, err := r.http.Post("http://softdpu/v1/sets/threats/add", "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var fault apiError
		if err := json.NewDecoder(resp.Body).Decode(&fault); err != nil || resp.StatusCode != http.StatusBadRequest || fault.Error == "" {
			t.Errorf("%.20q: %s, %+v, %v", body, resp.Status, fault, err)
		}
		resp.Body.Close()
	}
	if s := must(r.Status(t.Context())); s.Policy.Epoch != 1 || s.Policy.RuntimeEntries != 0 {
		t.Errorf("in force is %+v", s.Policy)
	}
	if _, err := os.Stat(filepath.Join(r.config.State, "sets")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}

	// What the set has already, in whatever form, changes nothing.
	done := must(r.AddToSet(t.Context(), "threats", entries("192.0.2.0-192.0.2.255")))
	if done.Unchanged != 1 || done.Epoch != 1 || len(done.Notes) != 1 || done.Notes[0] != "192.0.2.0/24 is in the set already, by policy.yaml:5" {
		t.Errorf("%+v", done)
	}
	if done := must(r.DeleteFromSet(t.Context(), "threats", entries("10.9.9.9"))); done.Unchanged != 1 || done.Epoch != 1 || done.Notes[0] != "10.9.9.9 is not in the set" {
		t.Errorf("%+v", done)
	}
	if done := must(r.AddToSet(t.Context(), "spare", entries("02:00:00:00:00:01"))); len(done.Notes) != 2 || done.Notes[0] != "no rule uses the set" || !strings.Contains(done.Notes[1], "MAC address") {
		t.Errorf("%+v", done)
	}

	// An entry that a file has is out until somebody adds it again, whatever is loaded meanwhile.
	done = must(r.DeleteFromSet(t.Context(), "listed", entries("198.51.100.7")))
	if done.Removed != 1 || done.Entries != 1 || !strings.Contains(done.Notes[0], "although listed.txt:1 has it") {
		t.Errorf("%+v", done)
	}
	must(r.Reload(t.Context()))
	list := must(r.SetEntries(t.Context(), "listed"))
	if len(list) != 2 || list[0].Source != "removed" || list[0].InForce || list[0].By != "root" || list[0].Line != 1 {
		t.Errorf("listed: %+v", list)
	}
	if done := must(r.AddToSet(t.Context(), "listed", entries("198.51.100.7"))); done.Added != 1 || done.Entries != 2 {
		t.Errorf("%+v", done)
	}
	// Of two times the longer one counts.
	must(r.AddToSet(t.Context(), "threats", SetChange{Entries: []string{"10.1.1.1"}, For: "1h"}))
	if done := must(r.AddToSet(t.Context(), "threats", SetChange{Entries: []string{"10.1.1.1"}, For: "10m"})); done.Unchanged != 1 || !strings.Contains(done.Notes[0], "is in the set already, until") {
		t.Errorf("%+v", done)
	}
	if done := must(r.AddToSet(t.Context(), "threats", SetChange{Entries: []string{"10.1.1.1"}, For: "2h"})); done.Prolonged != 1 {
		t.Errorf("%+v", done)
	}
	if list := must(r.SetEntries(t.Context(), "threats")); *list[1].ExpiresS < 7000 {
		t.Errorf("threats: %+v", list)
	}

	// What cannot be kept is not put in force.
	half := newLiveStore(stateDir(r.config, "sets")).file("threats") + ".new"
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	epoch := must(r.Status(t.Context())).Policy.Epoch
	if done, err := r.AddToSet(t.Context(), "threats", entries("10.1.1.2")); err == nil || !strings.Contains(err.Error(), "keep set threats") {
		t.Errorf("%+v, %v", done, err)
	}
	if s := must(r.Status(t.Context())); s.Policy.Epoch != epoch || s.Policy.RuntimeEntries != 2 {
		t.Errorf("in force is %+v", s.Policy)
	}
	if err := os.Remove(half); err != nil {
		t.Fatal(err)
	}
	if done := must(r.AddToSet(t.Context(), "threats", entries("10.1.1.2"))); done.Added != 1 || done.Epoch != epoch+1 {
		t.Errorf("%+v", done)
	}
}

// Many callers at once lose nothing, and share what a change costs.
func TestLabSetsBurst(t *testing.T) {
	t.Parallel()
	r := newSetsRig(t, "t-lab-setmany")
	const callers, calls = 20, 5
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for j := range calls {
				text := fmt.Sprintf("10.77.%d.%d", i, j)
				done, err := r.AddToSet(t.Context(), "threats", entries(text))
				if err != nil || done.Added != 1 {
					t.Errorf("%s: %+v, %v", text, done, err)
					return
				}
			}
		})
	}
	wg.Wait()
	epoch := must(r.Status(t.Context())).Policy.Epoch
	t.Logf("%d calls in %s, by %d changes", callers*calls, time.Since(began), epoch-1)
	if s := must(r.Sets(t.Context()))[0]; s.Added != callers*calls {
		t.Errorf("%+v", s)
	}
	if epoch > callers*calls/2 {
		t.Errorf("%d calls made %d changes", callers*calls, epoch-1)
	}
	// An entry is over within a second of its time.
	done := must(r.AddToSet(t.Context(), "listed", SetChange{Entries: []string{"10.78.0.1"}, For: "1s"}))
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := len(must(r.SetEntries(t.Context(), "listed"))); n != 2 {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	})
	t.Logf("over %s after its time", time.Since(*done.Until))
	r.stop()
	sets, err := newLiveStore(stateDir(r.config, "sets")).load(time.Now())
	if err != nil || len(sets["threats"].entries) != callers*calls {
		t.Errorf("kept are %v, %v", sets, err)
	}
	// Who comes too late is told so.
	if _, err := r.AddToSet(t.Context(), "threats", entries("10.77.99.1")); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("after the stop: %v", err)
	}
}

// What sets were given outlives a kill at any moment, and the connections that it cut stay cut while nobody
// runs and afterwards.
func TestLabSetsOutliveKill(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-setkill"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	c := writeSets(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1))
	before := settings(t, gw)
	var conns []net.Conn
	random := rand.New(rand.NewPCG(9, 9))
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	for _, at := range []netip.AddrPort{netip.AddrPortFrom(server4, 5001), netip.AddrPortFrom(server6, 5002)} {
		echo := must(server.ServeEcho(t.Context(), at))
		defer echo.Close()
		conn := must(client.Dial(limited(t, 5*time.Second), "tcp", at.String()))
		defer conn.Close()
		if err := swap(conn, random, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	must(p.AddToSet(t.Context(), "threats", entries(server4.String())))
	must(p.AddToSet(t.Context(), "threats", SetChange{Entries: []string{"10.5.0.1"}, For: "1s"}))
	must(p.DeleteFromSet(t.Context(), "listed", entries("198.51.100.8")))
	p.kill()
	cutOff(t, conns[0], random)
	time.Sleep(time.Second) // an entry is over while nobody runs
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	cutOff(t, conns[0], random)
	if err := swap(conns[1], random, 5*time.Second); err != nil {
		t.Error(err)
	}
	if list := must(p.SetEntries(t.Context(), "threats")); len(list) != 2 || list[1].Entry != server4.String() || list[1].By != "root" {
		t.Errorf("threats: %+v", list)
	}
	if list := must(p.SetEntries(t.Context(), "listed")); len(list) != 2 || list[1].Source != setRemoved {
		t.Errorf("listed: %+v", list)
	}
	must(p.DeleteFromSet(t.Context(), "threats", entries(server4.String())))
	comesBack(t, conns[0])
	file := newLiveStore(stateDir(c, "sets")).file("listed")
	if info := must(os.Stat(file)); info.Mode() != 0o600 {
		t.Errorf("%s has mode %s", file, info.Mode())
	}

	// A file that is not to be read keeps the gateway from starting, before it touches anything.
	p.kill()
	if err := os.WriteFile(file, []byte("{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = startProcess(t, gw, binary, c)
	<-p.done
	if !strings.Contains(p.log.String(), "listed.json:1: ") || !strings.Contains(p.log.String(), "move the file away") {
		t.Errorf("says %s", p.log)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	p.kill()
	if out, err := gw.Command(t.Context(), binary, "detach").CombinedOutput(); err != nil {
		t.Errorf("detach: %v: %s", err, out)
	}
	if after := settings(t, gw); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// A change of a large set beside many rules is in force as soon as that of a small one, by the command that
// people type.
func TestLabSetsAreQuick(t *testing.T) {
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-setfast"})
	client, server := l.Must(t, "client"), l.Must(t, "server")
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 5001)))
	t.Cleanup(func() { echo.Close() })
	random := rand.New(rand.NewPCG(10, 10))
	var policy strings.Builder
	policy.WriteString(setsPolicy[:strings.Index(setsPolicy, "tests:")])
	for i := range 1000 {
		fmt.Fprintf(&policy, "  - {name: r%d, from: {addresses: 10.30.%d.0/24}, to: {addresses: 10.40.%d.%d}, service: tcp/%d, action: allow}\n",
			i, random.IntN(256), random.IntN(256), random.IntN(256), 1+i%50)
	}
	for _, size := range sized([]int{100_000}, []int{10, 10_000, 100_000}) {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := write(t, labRouted, policy.String())
			var listed strings.Builder
			for i := range size {
				fmt.Fprintf(&listed, "172.%d.%d.%d\n2001:db8:%x::%x\n", 16+i>>15&15, i>>7&255, i<<1&255, i>>8, i&255|1)
			}
			if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), "listed.txt"), []byte(listed.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			g := runIn(t, l, c)
			defer g.stop()
			conn := must(client.Dial(limited(t, 5*time.Second), "tcp", echo.Addr().String()))
			defer conn.Close()
			if err := swap(conn, random, 5*time.Second); err != nil {
				t.Fatal(err)
			}
			run := func(limit time.Duration, input string, args ...string) {
				t.Helper()
				cmd := exec.Command(binary, append([]string{"set", "--socket", c.Control.Socket}, args...)...)
				cmd.Stdin = strings.NewReader(input)
				began := time.Now()
				out, err := cmd.CombinedOutput()
				took := time.Since(began)
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				t.Logf("%s: %s: %s", args[0], took, out)
				if took > limit {
					t.Errorf("%s took %s", args, took)
				}
			}
			second := sized(10*time.Second, time.Second)
			run(second, "", "add", "listed", server4.String())
			cutOff(t, conn, random)
			var many strings.Builder
			for i := range size {
				fmt.Fprintf(&many, "172.%d.%d.%d # %d\n", 16+i>>15&15, i>>7&255, i<<1&255|1, i)
			}
			run(3*second, many.String(), "add", "threats", "-")
			run(second, "", "del", "listed", server4.String())
			comesBack(t, conn)
			run(second, "", "add", "threats", "203.0.113.9")
		})
	}
}
