package gateway

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// Rules of policyOf.
const (
	streamRule  = "{name: stream, from: {zone: LAN}, to: {zone: WAN}, service: udp/7, action: allow}"
	talkRule    = "{name: TALK, from: {zone: LAN}, to: {zone: WAN}, service: tcp/17, action: allow}"
	refusedRule = "{name: refused, from: {zone: LAN}, to: any, service: udp/6000, action: deny}"
	gapRule     = "{name: gap, from: {zone: LAN}, to: {zone: WAN}, service: tcp/9, action: deny}"
)

// policyOf puts rules together for zones of these names, where TCP is allowed by the rule talk.
func policyOf(lan, wan, talk string, rules ...string) string {
	text := fmt.Sprintf("apiVersion: softdpu/v1\nkind: Policy\nzones: {%s: {ports: [lan], addresses: [10.10.1.0/24, \"fd10:1::/64\"]}, %s: {ports: [wan]}}\nrules:\n", lan, wan)
	for _, r := range rules {
		text += "  - " + strings.NewReplacer("LAN", lan, "WAN", wan, "TALK", talk).Replace(r) + "\n"
	}
	return text
}

// A policy with other names and another order is reloaded, the gateway is killed, and a third policy is
// there when it starts again. Flows are called by the names that they have in it, counts stay with the
// names, nothing is lost and nothing denied arrives.
func TestLabTakeOverAfterReload(t *testing.T) {
	binary := buildSoftdpu(t, thisVersion)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-lifer"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1), policyOf("lan", "wan", "talk", refusedRule, streamRule, talkRule))
	rewrite := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), "policy.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := settings(t, gw)
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 17)))
	defer echo.Close()

	p := startProcess(t, gw, binary, c)
	p.ready(t)
	s := startStream(t, l)
	first := s.sent.Load()
	conn := must(client.Dial(limited(t, 5*time.Second), "tcp", echo.Addr().String()))
	defer conn.Close()
	random := rand.New(rand.NewPCG(7, 7))
	works := func(when string) {
		t.Helper()
		if err := swap(conn, random, 10*time.Second); err != nil {
			t.Fatalf("%s: %v\n%s", when, err, p.log)
		}
	}
	works("at first")
	stream := func() RuleStatus { return (&testGateway{Client: p.Client}).rule(t, "stream") }
	talked := func() RuleStatus { return (&testGateway{Client: p.Client}).rule(t, "talk") }
	n := 0
	testenv.Eventually(t, 5*time.Second, func() error {
		if n = s.count(); n < 100 {
			return errors.New("nothing arrives")
		}
		return nil
	})

	// The zones swap their names, the rules their places, and one has another name and a new one before it.
	rewrite(policyOf("wan", "lan", "chat", gapRule, talkRule, streamRule, refusedRule))
	done := must(p.Reload(t.Context()))
	works("after the reload")
	var killed uint64
	for range 2 { // two flows of the stream end on request, and stay counted
		flows := must(p.Flows(t.Context(), "dport 7 and proto udp", 0))
		// Not those that have more to send: their packets are dropped until the answer comes.
		i := slices.IndexFunc(flows, func(f Flow) bool { return f.Packets[0] == 1 })
		ended := must(p.KillFlows(t.Context(), fmt.Sprintf("proto udp and sport %d", flows[i].SrcPort)))
		killed += uint64(ended)
	}
	beforeKill := stream()
	aged := must(p.Status(t.Context())).Table
	if aged.Killed != killed || killed == 0 {
		t.Errorf("%d flows were killed, and the status says %d", killed, aged.Killed)
	}
	by := map[any]int{}
	testenv.Eventually(t, 5*time.Second, func() error { // the log is written each second
		events, _ := linesSoFar(t, c.Events.File)
		for _, e := range events {
			if e["event_type"] == "policy" {
				by[e["softdpu"].(map[string]any)["by"]]++
			}
		}
		if by["start"] == 0 {
			return errors.New("no policy is loaded by start")
		}
		return nil
	})
	p.kill()
	works("without a gateway")

	// The first names again, and yet another order.
	rewrite(policyOf("inside", "outside", "talk", talkRule, refusedRule, gapRule, streamRule))
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	if !strings.Contains(p.log.String(), "is taken over") {
		t.Errorf("not taken over:\n%s", p.log)
	}
	works("after the take-over")
	time.Sleep(100 * time.Millisecond)

	status := must(p.Status(t.Context()))
	if status.Policy.Epoch <= done.Epoch || status.Table.Killed != killed || status.Table.Aged < aged.Aged || status.Table.Created < aged.Created {
		t.Errorf("epoch %d after %d, table %+v after %+v", status.Policy.Epoch, done.Epoch, status.Table, aged)
	}
	flows := must(p.Flows(t.Context(), "dport 7 or dport 17", 0))
	names := map[string]int{}
	for _, f := range flows {
		names[f.Rule]++
		if f.From != "inside" || f.To != "outside" || f.Revoked {
			t.Fatalf("a flow is %+v", f)
		}
	}
	// Flows that had no packet since the start have the rule that judged them last.
	if names["talk"] != 1 || names["stream"] != len(flows)-1 || names["stream"] < 25 {
		t.Errorf("flows by rule: %v", names)
	}
	last := s.sent.Load()
	if missing := s.missing(first+2, last); len(missing) > 0 {
		t.Errorf("missing of %d..%d: %v", first, last, missing)
	}
	if got := stream(); got.Packets < beforeKill.Packets || beforeKill.Packets < uint64(n) {
		t.Errorf("stream counted %d packets, %d before the kill, when %d had arrived", got.Packets, beforeKill.Packets, n)
	}
	if got := stream(); got.Packets < 2*uint64(last-first) || got.Packets > 2*uint64(s.sent.Load())+20 {
		t.Errorf("stream counted %d packets of %d", got.Packets, 2*(last-first))
	}
	if got := talked(); got.Flows != 1 || got.Packets == 0 {
		t.Errorf("talk counted %+v", got)
	}

	// What the next reload frees is counted anew, and what it keeps is not.
	rewrite(policyOf("inside", "outside", "talk", streamRule, talkRule, refusedRule))
	must(p.Reload(t.Context()))
	if got := stream(); got.Packets < 2*uint64(last-first) {
		t.Errorf("after another reload stream counted %d packets of %d", got.Packets, 2*(last-first))
	}
	works("at the end")

	p.stop(t)
	clear(by)
	for _, e := range lines(t, c.Events.File) {
		if e["event_type"] == "policy" {
			by[e["softdpu"].(map[string]any)["by"]]++
		}
	}
	if by["start"] != 1 || by["take-over"] != 1 {
		t.Errorf("policies were loaded by %v", by)
	}
	out, err := gw.Command(t.Context(), binary, "detach").CombinedOutput()
	if err != nil {
		t.Errorf("detach: %v: %s", err, out)
	}
	asBefore(t, gw, before)
}
