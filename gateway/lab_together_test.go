package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// A port that comes with a policy, what a set is given there and a capture go together with a change that is
// taken back: the port leaves with it, the entries wait, and the capture shows whose packets it has, even when
// the number of the port is another's.
func TestLabTogether(t *testing.T) {
	l := testenv.New(t, "three-zone", testenv.Options{Prefix: "t-lab-together"})
	lan, dmz := l.Must(t, "lan"), l.Must(t, "dmz")
	const head, two = "apiVersion: softdpu/v1\nkind: Policy\nzones: ", "{lan: {ports: [lan]}, wan: {ports: [wan]}}\n"
	third := func(name string) (config, policy string) {
		return portsOf("{lan: {device: lan}, wan: {device: wan}, " + name + ": {device: dmz}}"),
			head + "{lan: {ports: [lan]}, wan: {ports: [wan]}, third: {ports: [" + name + "]}}\n" + `sets: {threats: {type: prefix, entries: [198.51.100.0/24]}}
rules:
  - {name: no-threats, from: {set: threats}, to: any, action: deny}
  - {name: talk, from: {zone: lan}, to: {zone: third}, service: udp/7, action: allow}
`
	}
	g := runIn(t, l, write(t, portsOf("{lan: {device: lan}, wan: {device: wan}}"), head+two))
	all := g.take(t, CaptureRequest{Points: []string{"in", "out", "drop"}})
	ofDMZ := func() (n int) {
		for _, line := range all.lines() {
			if strings.Contains(line, " dmz verdict") {
				n++
			}
		}
		return n
	}
	echo, err := dmz.ServeEcho(t.Context(), netip.AddrPortFrom(dmz4, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	conn, err := lan.Dial(t.Context(), "udp", netip.AddrPortFrom(dmz4, 7).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	talks := 0
	talk := func() error {
		talks++
		b, word := make([]byte, 32), fmt.Sprintf("together %d", talks)
		if _, err := conn.Write([]byte(word)); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		for { // the answer to one before may have been late
			if n, err := conn.Read(b); err != nil || string(b[:n]) == word {
				return err
			}
		}
	}

	// shows talks until the capture has a packet of which a line says all these words.
	shows := func(words ...string) {
		t.Helper()
		testenv.Eventually(t, 10*time.Second, func() error {
			if err := talk(); err != nil {
				return err
			}
			for _, line := range all.lines() {
				if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line+" ", w+" ") }) {
					return nil
				}
			}
			return fmt.Errorf("no packet with %q among:\n%s", words, strings.Join(all.lines(), "\n"))
		})
	}

	config, policy := third("dmz")
	g.rewrite(t, config, policy)
	if _, err := g.Apply(t.Context(), ApplyOptions{Confirm: time.Hour}); err != nil {
		t.Fatal(err)
	}
	shows("out dmz", "rule=talk", "out=dmz")

	// What the set is given cuts the flow, and waits when set and port leave.
	if _, err := g.AddToSet(t.Context(), "threats", SetChange{Entries: []string{"10.10.1.2"}, Comment: "CHG-1"}); err != nil {
		t.Fatal(err)
	}
	if err := talk(); err == nil {
		t.Error("who is in the set talks still")
	}
	all.has(t, "in lan", "rule=talk", "reason=policy-revoked")
	back, err := g.Rollback(t.Context(), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(back.Warnings) != 1 || !strings.Contains(back.Warnings[0].Message, "threats was given at runtime") || !strings.Contains(g.log.String(), "threats was given at runtime") {
		t.Errorf("warns of %+v\n%s", back.Warnings, g.log)
	}
	s := must(g.Status(t.Context()))
	if len(s.Ports) != 2 || s.Policy.Unconfirmed != nil || s.Policy.RolledBack == nil {
		t.Errorf("%d ports, policy %+v", len(s.Ports), s.Policy)
	}

	// The device comes again under another name, with the number that the first one had.
	config, policy = third("other")
	g.mustReload(t, config, policy)
	if err := talk(); err == nil {
		t.Error("the entries of the set did not come back with it")
	}
	if _, err := g.DeleteFromSet(t.Context(), "threats", SetChange{Entries: []string{"10.10.1.2"}}); err != nil {
		t.Fatal(err)
	}
	before := ofDMZ()
	shows("out other", "rule=talk", "out=other")
	shows("in other", "rule=talk")
	if n := ofDMZ(); n != before {
		t.Errorf("%d packets of another port are taken for the one that left:\n%s", n-before, strings.Join(all.lines(), "\n"))
	}
	all.finish(t)
	used := 0
	for n, s := range all.statistics {
		if s.Delivered > s.Accepted {
			t.Errorf("interface %d: %+v", n, s)
		}
		if s.Delivered > 0 {
			used++
		}
	}
	if used < 3 { // of the lan, and of both names of the third
		t.Errorf("statistics %+v", all.statistics)
	}
}
