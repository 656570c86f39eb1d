package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// An operator has one connection through the gateway and one to it, under a policy that allows both.
type operator struct {
	*Client
	config    *Config
	client    *testenv.Namespace
	through   net.Conn
	to        net.Conn
	reachable string // address through the gateway that new connections may go to
	random    *rand.Rand
	unread    map[net.Conn]int
}

const (
	operatorConfig = "management: {from: [lan], services: [tcp/161]}"
	operatorPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan]}
rules:
  - {name: talk, from: {zone: lan}, to: {zone: wan}, service: tcp/5001, action: allow}
`
)

func operatorFiles(t *testing.T) *Config {
	t.Helper()
	return write(t, strings.NewReplacer("management: none", operatorConfig, "on_stop: open", "on_stop: keep").Replace(labRouted), operatorPolicy)
}

func newOperator(t *testing.T, l *testenv.Lab, c *Config) *operator {
	t.Helper()
	for _, name := range []string{"client", "server", testenv.Gateway} {
		// Where the kernel can, TCP tries again every second. Elsewhere this takes longer.
		_ = l.Must(t, name).Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_rto_max_ms", []byte("1000"), 0) })
	}
	o := &operator{Client: NewClient(c.Control.Socket), config: c, client: l.Must(t, "client"), random: rand.New(rand.NewPCG(9, 9)), unread: map[net.Conn]int{}}
	far := must(l.Must(t, "server").ServeEcho(t.Context(), netip.AddrPortFrom(server4, 5001)))
	near := must(l.Must(t, testenv.Gateway).ServeEcho(t.Context(), netip.MustParseAddrPort("10.10.1.1:161")))
	o.reachable = far.Addr().String()
	for conn, address := range map[*net.Conn]string{&o.through: o.reachable, &o.to: near.Addr().String()} {
		c := must(o.client.Dial(limited(t, 5*time.Second), "tcp", address))
		*conn = c
		t.Cleanup(func() { c.Close() })
	}
	t.Cleanup(func() { far.Close(); near.Close() })
	return o
}

// cutOff rewrites the files so that they allow the operator nothing.
func (o *operator) cutOff(t *testing.T) {
	t.Helper()
	o.rewrite(t, "policy.yaml", strings.Replace(operatorPolicy, "action: allow", "action: deny", 1))
	config := must(os.ReadFile(o.config.File))
	o.rewrite(t, "softdpu.yaml", strings.Replace(string(config), operatorConfig, "management: none", 1))
}

func (o *operator) rewrite(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(o.config.File), name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// isCut wants neither connection to answer, nor a new one to be made.
func (o *operator) isCut(t *testing.T) {
	t.Helper()
	for name, c := range o.conns() {
		b := []byte("is anybody there?")
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond)) // a TCP connection takes one
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		o.unread[c] += len(b)
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the connection %s the gateway: %d bytes, %v", name, n, err)
		}
	}
	if c, err := o.client.Dial(briefly(t, 200*time.Millisecond), "tcp", o.reachable); err == nil {
		c.Close()
		t.Fatal("a new connection is made")
	}
}

// goesOn wants what was sent meanwhile to be answered by both connections, and more after it.
func (o *operator) goesOn(t *testing.T, when string) {
	t.Helper()
	for name, c := range o.conns() {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // TCP tries again after 1, 2, 4 s ...
		got := make([]byte, o.unread[c])
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte("is anybody there?"), len(got)/17)) {
			t.Fatalf("%s the connection %s the gateway: %v, %q", when, name, err, got)
		}
		o.unread[c] = 0
		if err := swap(c, o.random, 20*time.Second); err != nil {
			t.Fatalf("%s the connection %s the gateway: %v", when, name, err)
		}
	}
}

func (o *operator) conns() map[string]net.Conn {
	return map[string]net.Conn{"through": o.through, "to": o.to}
}

// entries lists the history, the oldest first, in few words.
func (o *operator) entries(t *testing.T) (out []string) {
	t.Helper()
	for _, e := range slices.Backward(must(o.History(t.Context()))) {
		text := fmt.Sprintf("%d %s", e.Entry, e.By)
		if e.Restored != 0 {
			text += fmt.Sprintf(" to %d", e.Restored)
		}
		text += " " + e.Result
		if e.Confirm != "" {
			text += " " + e.Confirm
		}
		if e.Current {
			text += " *"
		}
		out = append(out, text)
	}
	return out
}

func (o *operator) wantEntries(t *testing.T, want ...string) {
	t.Helper()
	if got := o.entries(t); !slices.Equal(got, want) {
		t.Errorf("the history is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// comesBack waits until the policy is in force that an entry had.
func (o *operator) comesBack(t *testing.T, to int) *Status {
	t.Helper()
	var s *Status
	testenv.Eventually(t, 30*time.Second, func() (err error) {
		if s, err = o.Status(t.Context()); err == nil && (s.Policy.RolledBack == nil || s.Policy.RolledBack.To != to) {
			err = fmt.Errorf("in force is entry %d", s.Policy.Entry)
		}
		return err
	})
	return s
}

// A change that cuts the operator off comes back in time, and what the operator had open goes on.
func TestLabConfirm(t *testing.T) {
	t.Parallel()
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-conf"})
	hup := make(chan os.Signal, 1)
	g := runWith(t, l, operatorFiles(t), Options{Reload: hup})
	o := newOperator(t, l, g.config)
	o.goesOn(t, "at first")

	o.cutOff(t)
	const window = 4 * time.Second
	start := time.Now()
	done := must(o.Apply(t.Context(), ApplyOptions{Confirm: window, Comment: "CHG-1: tidy up"}))
	if done.Entry != 2 || done.ComesBack == nil || !slices.ContainsFunc(done.Warnings, func(m Mistake) bool { return strings.Contains(m.Message, "if it dies") }) {
		t.Errorf("%+v", done)
	}
	o.isCut(t)
	// Nothing else is changed meanwhile.
	var conflict *Conflict
	if _, err := o.Reload(t.Context()); !errors.As(err, &conflict) || !strings.Contains(err.Error(), "waits to be confirmed") {
		t.Errorf("a second change: %v", err)
	}
	hup <- unix.SIGHUP
	testenv.Eventually(t, 5*time.Second, func() error {
		if e := must(o.History(t.Context())); len(e) != 4 {
			return fmt.Errorf("%d entries", len(e))
		}
		return nil
	})
	if s := must(o.Status(t.Context())).Policy; s.Unconfirmed == nil || s.Unconfirmed.Before != 1 || s.Unconfirmed.LeftS > window.Seconds() || s.Entry != 2 || s.RolledBack != nil {
		t.Errorf("while it waits: %+v", s)
	}
	o.comesBack(t, 1)
	if took := time.Since(start); took < window {
		t.Errorf("it came back after %s", took)
	}
	o.goesOn(t, "when it has come back")
	s := must(o.Status(t.Context()))
	if s.Policy.Entry != 5 || s.Policy.Unconfirmed != nil || s.Policy.RolledBack.By != byNotConfirmed || len(s.Differs) != 2 || s.Table.Revived < 2 {
		t.Errorf("when it has come back: %+v, %v differ, %d revived", s.Policy, s.Differs, s.Table.Revived)
	}
	o.wantEntries(t, "1 start in-force", "2 control socket in-force rolled-back", "3 control socket refused", "4 signal refused", "5 not-confirmed to 1 in-force *")
	if e := must(o.History(t.Context()))[3]; e.User != "root" || e.Comment != "CHG-1: tidy up" || e.Changes == nil || e.Changes.Rules.Changed != 1 {
		t.Errorf("%+v", e)
	}

	// The files are still those that cut off. A signal does not bring them back; whoever says so does.
	hup <- unix.SIGHUP
	testenv.Eventually(t, 5*time.Second, func() error {
		if e := must(o.History(t.Context()))[0]; e.Entry != 6 || e.Result != resultRefused || !strings.Contains(e.Errors[0].Message, "still those that were rolled back") {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	o.goesOn(t, "after the signal")
	must(o.Apply(t.Context(), ApplyOptions{Confirm: time.Minute}))
	if c := must(o.Confirm(t.Context())); c.Entry != 7 {
		t.Errorf("confirmed is %+v", c)
	}
	if _, err := o.Confirm(t.Context()); !errors.As(err, &conflict) {
		t.Errorf("confirmed twice: %v", err)
	}
	if s := must(o.Status(t.Context())); s.Policy.Unconfirmed != nil || s.Policy.RolledBack != nil || len(s.Differs) != 0 {
		t.Errorf("once confirmed: %+v, %v differ", s.Policy, s.Differs)
	}
	o.isCut(t)
	// Before that was the one that had come back.
	if back := must(o.Rollback(t.Context(), 0, "no, not tidy")); back.Restored != 5 {
		t.Errorf("rolled back to %+v", back)
	}
	o.goesOn(t, "rolled back")
	g.stop()
	checkConfirmEvents(t, g.config.Events.File)
}

// checkConfirmEvents wants each change and each refused one in the events.
func checkConfirmEvents(t *testing.T, file string) {
	t.Helper()
	var got []string
	for _, e := range lines(t, file) {
		if e["event_type"] != "policy" {
			continue
		}
		s := e["softdpu"].(map[string]any)
		text := fmt.Sprint(s["event"], " ", s["by"], " ", s["entry"])
		for _, key := range []string{"restored", "user", "confirm", "comment"} {
			if v, there := s[key]; there {
				text += fmt.Sprint(" ", v)
			}
		}
		if s["event"] == "policy-refused" && (s["error"] == nil || s["errors"] != 1.0) {
			t.Errorf("refused without a reason: %v", e)
		}
		got = append(got, text)
	}
	want := []string{
		"policy-loaded start 1", "policy-loaded control socket 2 root 4s CHG-1: tidy up", "policy-refused control socket 3 root", "policy-refused signal 4",
		"policy-loaded not-confirmed 5 1", "policy-refused signal 6", "policy-loaded control socket 7 root 1m0s", "policy-confirmed control socket 7 root",
		"policy-loaded rollback 8 5 root no, not tidy",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The gateway is killed while the change waits. Started again in time it goes on waiting; started too
// late it starts with the policy before. It keeps to it through further starts, and the operator's
// connections go on.
func TestLabConfirmKilled(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	for _, late := range []bool{false, true} {
		t.Run(map[bool]string{false: "in time", true: "too late"}[late], func(t *testing.T) {
			l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-confk"})
			gw := l.Must(t, testenv.Gateway)
			c := operatorFiles(t)
			p := startProcess(t, gw, binary, c)
			p.ready(t)
			o := newOperator(t, l, c)
			o.goesOn(t, "at first")
			o.cutOff(t)
			window := 3 * time.Second
			if late {
				window = time.Second
			}
			start := time.Now()
			must(o.Apply(t.Context(), ApplyOptions{Confirm: window}))
			p.kill()
			o.isCut(t) // XDP goes on
			if late {
				time.Sleep(time.Until(start.Add(window + 500*time.Millisecond)))
			}
			p = startProcess(t, gw, binary, c)
			p.ready(t)
			first := must(o.Status(t.Context()))
			if !late && time.Since(start) < window {
				if first.Policy.Entry != 2 || first.Policy.Unconfirmed == nil || !strings.Contains(p.log.String(), "a change waits to be confirmed") {
					t.Errorf("started again: %+v\n%s", first.Policy, p.log)
				}
			}
			s := o.comesBack(t, 1)
			if took := time.Since(start); took < window {
				t.Errorf("it came back after %s", took)
			}
			if late && s.Policy.Epoch != first.Policy.Epoch {
				t.Error("it did not start with the policy before")
			}
			o.goesOn(t, "when it has come back")
			o.wantEntries(t, "1 start in-force", "2 control socket in-force rolled-back", "3 not-confirmed to 1 in-force *")

			// Neither a crash nor a stop brings it back.
			for _, end := range []func(){func() { p.kill() }, func() { p.stop(t) }} {
				if end(); !late {
					break
				}
				p = startProcess(t, gw, binary, c)
				p.ready(t)
				if s := must(o.Status(t.Context())); s.Policy.RolledBack == nil || s.Policy.Entry != 3 || len(s.Differs) != 2 || !strings.Contains(p.log.String(), "it was rolled back to") {
					t.Errorf("started again: %+v, %v differ\n%s", s.Policy, s.Differs, p.log)
				}
				o.goesOn(t, "started again")
			}
			// Files that somebody has changed are put in force by a start, as ever.
			o.rewrite(t, "policy.yaml", strings.Replace(operatorPolicy, "name: talk", "name: talks", 1))
			p.kill()
			p = startProcess(t, gw, binary, c)
			p.ready(t)
			if s := must(o.Status(t.Context())); s.Policy.RolledBack != nil || s.Policy.Entry != 4 || len(s.Differs) != 0 {
				t.Errorf("started with other files: %+v, %v differ", s.Policy, s.Differs)
			}
			if e := must(o.History(t.Context()))[0]; e.By != byTakeOver || e.Changes == nil || e.Changes.Rules.Added != 1 || e.Changes.Rules.Removed != 1 {
				t.Errorf("%+v", e)
			}
			if err := swap(o.through, o.random, 20*time.Second); err != nil {
				t.Error(err)
			}
			p.stop(t)
			if out, err := gw.Command(context.Background(), binary, "detach").CombinedOutput(); err != nil {
				t.Errorf("detach: %v: %s", err, out)
			}
		})
	}
}

// Policies whose zones and rules have other names and another order are rolled back and forth, over starts
// in between: connections lose nothing, and are called what the policy in force calls them.
func TestLabRollback(t *testing.T) {
	t.Parallel()
	const rounds = 5
	first, _ := shuffled(0, "lan", "wan")
	r := newReloadRig(t, "t-lab-roll", first, 5001, 5002)
	random := rand.New(rand.NewPCG(10, 10))
	conn := r.dial(t, 5001)
	probe := func(round int) {
		t.Helper()
		limit := briefly(t, 300*time.Millisecond)
		if round%2 == 1 {
			limit = limited(t, 5*time.Second)
		}
		c, err := r.client.Dial(limit, "tcp", r.echo[5002].Addr().String())
		if err == nil {
			c.Close()
		}
		if (err == nil) != (round%2 == 1) {
			t.Errorf("under the policy of round %d a probe: %v", round, err)
		}
	}
	works := func(round int) {
		t.Helper()
		if err := swap(conn, random, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		_, names := shuffled(round, "lan", "wan")
		flows := must(r.Flows(t.Context(), "dport 5001", 0))
		if len(flows) != 1 || !slices.Contains(names, flows[0].Rule) || !strings.HasPrefix(flows[0].Rule, "bulk") || flows[0].Revoked {
			t.Fatalf("under the policy of round %d: %+v", round, flows)
		}
	}
	for round := 1; round < rounds; round++ {
		text, _ := shuffled(round, "lan", "wan")
		r.apply(t, text)
		works(round)
		probe(round)
	}
	// Entry n+1 is the policy of round n.
	for round := rounds - 2; round >= 0; round-- {
		if done := must(r.Rollback(t.Context(), 0, "")); done.Restored != round+1 {
			t.Fatalf("rolled back to %d, not %d", done.Restored, round+1)
		}
		works(round)
		probe(round)
	}
	var conflict *Conflict
	if _, err := r.Rollback(t.Context(), 0, ""); !errors.As(err, &conflict) || !strings.Contains(err.Error(), "nothing that was in force before") {
		t.Errorf("behind the first: %v", err)
	}
	if done := must(r.Rollback(t.Context(), 4, "")); done.Restored != 4 {
		t.Errorf("%+v", done)
	}
	works(3)
	d := must(r.Diff(t.Context(), 0, 4))
	if !d.Same || d.From.Hash != d.To.Hash || d.From.Entry != 11 {
		t.Errorf("in force differs from what was rolled back to: %+v", d)
	}
	if d := must(r.Diff(t.Context(), 0, 0)); d.Same || d.To.What != sideFiles || d.Changes.Rules.Added == 0 {
		t.Errorf("the files do not differ: %+v", d)
	}
	if e := must(r.History(t.Context())); len(e) != 11 || e[0].Restored != 4 || !e[0].Current {
		t.Errorf("%d entries, the last is %+v", len(e), e[0])
	}

	checkPolicyRequests(t, r.testGateway)

	// The history outlives the gateway.
	config := r.config
	if d := must(r.Diff(t.Context(), 1, 3)); d.Same {
		t.Errorf("entries 1 and 3 do not differ: %+v", d)
	}
	was := must(r.History(t.Context()))
	r.stop()
	g := runIn(t, r.lab, must(LoadConfig(config.File)))
	is := must(g.History(t.Context()))
	if fmt.Sprint(was[0].Hash, was[0].Time.UnixNano()) != fmt.Sprint(is[0].Hash, is[0].Time.UnixNano()) || len(is) != len(was) {
		t.Errorf("the history was %d entries, and is %d: %+v", len(was), len(is), is[0])
	}
	if s := must(g.Status(t.Context())); s.Policy.Hash != d.From.Hash || s.Policy.RolledBack == nil {
		t.Errorf("started with %+v", s.Policy)
	}
}

// checkPolicyRequests wants what is asked wrongly, or by others, to be refused, and to change nothing.
func checkPolicyRequests(t *testing.T, g *testGateway) {
	t.Helper()
	before := must(g.Status(t.Context())).Policy
	dir := must(os.MkdirTemp("", "policy"))
	defer os.RemoveAll(dir)
	for _, err := range []error{os.Chmod(g.config.Control.Socket, 0o666), os.Chmod(dir, 0o755), os.Symlink(g.config.Control.Socket, dir+"/s"), os.Chmod(filepath.Dir(g.config.Control.Socket), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		path   string
		uid    int
		status int
		want   string
	}{
		{"/v1/policy/rollback", 65534, 403, "only root may change"},
		{"/v1/policy/confirm", 65534, 403, "only root may change"},
		{"/v1/reload?confirm=2m", 65534, 403, "only root may change"},
		{"/v1/policy/confirm", 0, 409, "no change waits"},
		{"/v1/policy/rollback?entry=99", 0, 409, "no entry 99"},
		{"/v1/policy/rollback?entry=-1", 0, 400, "is not the number of an entry"},
		{"/v1/policy/rollback?entry=99999999999999999999", 0, 400, "is not the number of an entry"},
		{"/v1/policy/rollback?entry=1&comment=a%0Ab", 0, 400, "one line of text"},
		{"/v1/policy/rollback?entry=1&comment=%ff", 0, 400, "one line of text"},
		{"/v1/reload?comment=" + strings.Repeat("x", commentMost+1), 0, 400, "more than 500"},
		{"/v1/reload?confirm=2", 0, 400, "is not a duration"},
		{"/v1/reload?confirm=1ms", 0, 400, "between 1s and 24h"},
		{"/v1/reload?confirm=-2m", 0, 400, "between 1s and 24h"},
		{"/v1/reload?%zz", 0, 400, "read the query"},
		{"/v1/policy/history", 0, 405, "does not answer to POST"},
	} {
		if status, body := postAs(t, tt.uid, dir+"/s", tt.path); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%.60s by user %d: %d %s", tt.path, tt.uid, status, body)
		}
	}
	if after := must(g.Status(t.Context())).Policy; after.Epoch != before.Epoch || after.Entry != before.Entry {
		t.Errorf("in force was %+v, and is %+v", before, after)
	}
}

// A history that cannot be kept keeps nobody from changing the policy, but for the promise to come back.
func TestLabHistoryUnwritable(t *testing.T) {
	t.Parallel()
	c := write(t, labRouted, twoServices(0, "allow"))
	if err := os.WriteFile(c.State, []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-histu"})
	g := runIn(t, l, c)
	r := &reloadRig{testGateway: g}
	s := must(g.Status(t.Context()))
	if s.Policy.Entry == 0 || !strings.Contains(s.Policy.HistoryError, "state") || !strings.Contains(g.log.String(), "cannot be written") {
		t.Errorf("%+v\n%s", s.Policy, g.log)
	}
	r.write(t, "policy.yaml", twoServices(1, "deny"))
	var conflict *Conflict
	if done, err := g.Apply(t.Context(), ApplyOptions{Confirm: time.Minute}); !errors.As(err, &conflict) || !strings.Contains(err.Error(), "nothing could come back") {
		t.Errorf("a promise that cannot be kept: %+v, %v", done, err)
	}
	done, err := g.Reload(t.Context())
	if err != nil || done.Epoch != 2 || !slices.ContainsFunc(done.Warnings, func(m Mistake) bool { return strings.Contains(m.Message, "could not be written") }) {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := g.Rollback(t.Context(), 0, ""); !errors.As(err, &conflict) || !strings.Contains(err.Error(), "something wrong with the history") {
		t.Errorf("%v", err)
	}
	// Once there is room again it is kept again.
	if err := os.Remove(c.State); err != nil {
		t.Fatal(err)
	}
	must(g.Reload(t.Context()))
	r.write(t, "policy.yaml", twoServices(0, "allow"))
	must(g.Apply(t.Context(), ApplyOptions{Confirm: time.Minute}))
	if back := must(g.Rollback(t.Context(), 0, "")); back.Epoch != 5 {
		t.Errorf("%+v", back)
	}
	if s := must(g.Status(t.Context())); !strings.Contains(s.Policy.HistoryError, "began anew") || s.Policy.Unconfirmed != nil {
		t.Errorf("%+v", s.Policy)
	}
}
