package gateway

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// natTold is a policy by which one flow is masqueraded to one of ten ports, and another goes to a server that its
// client knows under another address.
const natTold = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan]}
nat:
  - {name: branch, from: lan, to: {zone: wan, addresses: [10.10.2.2]}, service: udp/7, masquerade: {ports: 20000-20009}, description: to the echo}
  - {name: echo, from: lan, to: {addresses: [203.0.113.7]}, service: udp/7007, dnat: {to: 10.10.2.2, port: 7}}
rules:
  - {name: known, from: lan, to: wan, service: udp/7, action: allow, log: true}
  - {name: unknown, from: lan, to: wan, service: udp/7007, action: allow, log: true}
`

// What is translated is told the same way everywhere: in lists, filters, events, counters and warnings. A flow that is
// translated is one flow.
func TestLabTranslationIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-nattold"}, labMetrics, natTold)
	echo := must(r.server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 7)))
	defer echo.Close()
	talk := func(to string) net.Conn {
		t.Helper()
		conn := must(r.client.Dial(limited(t, 10*time.Second), "udp", to))
		t.Cleanup(func() { conn.Close() })
		testenv.Eventually(t, 10*time.Second, func() error { // the first packets may wait for a neighbour
			var b [16]byte
			_ = conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
			if _, err := conn.Write([]byte("hello")); err != nil {
				return err
			}
			if n, err := conn.Read(b[:]); err != nil || string(b[:n]) != "hello" {
				return fmt.Errorf("%q came back: %w", b[:n], errors.Join(err))
			}
			return nil
		})
		return conn
	}
	source := talk("10.10.2.2:7").LocalAddr().(*net.UDPAddr).AddrPort()
	talk("203.0.113.7:7007")

	one := func(filter string) Flow {
		t.Helper()
		flows := must(r.Flows(t.Context(), filter, 0))
		if len(flows) != 1 {
			t.Fatalf("%d flows are chosen by %q: %+v", len(flows), filter, flows)
		}
		return flows[0]
	}
	f := one("nat branch")
	want := FlowNAT{SrcIP: netip.MustParseAddr("10.10.2.1"), DestIP: server4, DestPort: 7, SourceRule: "branch"}
	if f.NAT != nil {
		want.SrcPort = f.NAT.SrcPort
	}
	if f.NAT == nil || *f.NAT != want || want.SrcPort < 20000 || want.SrcPort > 20009 || f.SrcIP != source.Addr() || f.SrcPort != source.Port() {
		t.Errorf("the flow from %s is %+v, translated to %+v", source, f, f.NAT)
	}
	if got := one(fmt.Sprintf("host 10.10.2.1 and sport %d", want.SrcPort)); got.SrcPort != f.SrcPort {
		t.Errorf("by what it becomes the flow %+v is found", got)
	}
	known := FlowNAT{SrcIP: source.Addr(), DestIP: server4, DestPort: 7, DestinationRule: "echo"}
	if f := one("nat echo"); f.NAT == nil || f.DestIP != netip.MustParseAddr("203.0.113.7") || f.DestPort != 7007 {
		t.Errorf("the flow to another address is %+v", f)
	} else if known.SrcPort = f.SrcPort; *f.NAT != known {
		t.Errorf("its packets become %+v, not %+v", f.NAT, known)
	}

	s := must(r.Status(t.Context()))
	if s.Table.Flows != 2 || s.Table.Translated != 2 || s.Table.Created != 2 {
		t.Errorf("the table has %d flows of %d created, %d of them translated", s.Table.Flows, s.Table.Created, s.Table.Translated)
	}
	n := must(r.NAT(t.Context()))
	if len(n.Rules) != 2 || len(n.Addresses) != 2 {
		t.Fatalf("translation is %+v", n)
	}
	if b := n.Rules[0]; b.Name != "branch" || b.Kind != "masquerade" || b.Line != 7 || b.Flows != 1 || b.Opened != 1 || b.Exhausted != 0 || b.PortsUsed != 1 ||
		b.FullestPercent != 10 || b.FullestOf != "udp" || b.Description != "to the echo" {
		t.Errorf("the first rule is %+v", b)
	}
	if e := n.Rules[1]; e.Name != "echo" || e.Kind != "dnat" || e.Flows != 1 || e.Opened != 1 || e.PortsUsed != 0 || e.FullestOf != "" {
		t.Errorf("the second rule is %+v", e)
	}
	if a := n.Addresses[1]; a.Port != "wan" || a.IP4 != netip.MustParseAddr("10.10.2.1") || a.IP6 != netip.MustParseAddr("fd10:2::1") {
		t.Errorf("at wan is masqueraded to %+v", a)
	}

	// The other nine ports, and then none is left. A policy that is put in force meanwhile counts on.
	for range 5 {
		talk("10.10.2.2:7")
	}
	r.mustReload(t, labMetrics, strings.Replace(natTold, "to the echo", "to the server", 1))
	for range 4 {
		talk("10.10.2.2:7")
	}
	late := must(r.client.Dial(limited(t, 10*time.Second), "udp", "10.10.2.2:7"))
	defer late.Close()
	if _, err := late.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if b := must(r.NAT(t.Context())).Rules[0]; b.Flows != 10 || b.Opened != 10 || b.Exhausted != 1 || b.PortsUsed != 10 || b.FullestPercent != 100 || b.Description != "to the server" {
			return fmt.Errorf("the rule without ports is %+v", b)
		}
		return nil
	})
	if d := r.dropped(t, "nat-exhausted"); d.Packets != 1 {
		t.Errorf("%d packets were dropped for want of a port", d.Packets)
	}
	if notes := strings.Join(must(r.Status(t.Context())).Notes, "\n"); !strings.Contains(notes, "nat rule branch: 100 % of the ports") {
		t.Errorf("the status warns of %q", notes)
	}
	values, _ := r.scrape(t)
	for series, want := range map[string]float64{
		`softdpu_translated_flows`: 11, `softdpu_table_flows`: 22,
		`softdpu_nat_flows{kind="masquerade",rule="branch"}`: 10, `softdpu_nat_flows_opened_total{kind="masquerade",rule="branch"}`: 10,
		`softdpu_nat_exhausted_total{kind="masquerade",rule="branch"}`: 1, `softdpu_nat_conflicts_total{kind="masquerade",rule="branch"}`: 0,
		`softdpu_nat_ports_used{kind="masquerade",rule="branch"}`: 10, `softdpu_nat_fullest_ratio{kind="masquerade",rule="branch"}`: 1,
		`softdpu_nat_flows{kind="dnat",rule="echo"}`: 1,
	} {
		if got, there := values[series]; !there || got != want {
			t.Errorf("%s is %v (%t), not %v", series, got, there, want)
		}
	}

	// One that ends gives its port back, and says what it was.
	if n := must(r.KillFlows(t.Context(), fmt.Sprintf("host 10.10.2.1 and sport %d", want.SrcPort))); n != 1 {
		t.Errorf("%d flows were killed by what they become", n)
	}
	talk("10.10.2.2:7")
	told := map[string]int{}
	testenv.Eventually(t, 10*time.Second, func() error { // the log is written each second
		events, _ := linesSoFar(t, r.config.Events.File)
		clear(told)
		for _, e := range events {
			if e["event_type"] != "flow" {
				continue
			}
			nat, _ := e["nat"].(map[string]any)
			what := fmt.Sprint(e["softdpu"].(map[string]any)["event"])
			switch {
			case nat["source_rule"] == "branch" && nat["src_ip"] == "10.10.2.1" && nat["src_port"] == float64(want.SrcPort) && e["src_port"] == float64(f.SrcPort):
				told[what]++
			case nat["destination_rule"] == "echo" && nat["dest_ip"] == "10.10.2.2" && nat["dest_port"] == 7.0 && e["dest_port"] == 7007.0:
				told["to "+what]++
			}
		}
		if told["flow-start"] != 1 || told["flow-end"] != 1 || told["to flow-start"] != 1 {
			return fmt.Errorf("events tell %v", told)
		}
		return nil
	})
}

// Translated connections go on while flows.max changes from one start to the next, in both directions, and nobody else
// gets their ports.
func TestLabTranslationMovesWithTheTable(t *testing.T) {
	binary := buildSoftdpu(t, thisVersion)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-natmove"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	config := func(max int) string {
		return strings.Replace(labRouted, "on_stop: open", fmt.Sprintf("on_stop: keep\nflows: {max: %d}", max), 1)
	}
	c := write(t, config(20_000), `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}
nat:
  - {name: branch, from: lan, to: wan, masquerade: {ports: 20000-20099}}
rules:
  - {name: talk, from: lan, to: wan, service: tcp/17, action: allow}
`)
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	const each = 8 // of each family
	var conns []net.Conn
	for _, a := range serverAddresses(l) {
		echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 17)))
		defer echo.Close()
		for range each {
			conn := must(client.Dial(limited(t, 10*time.Second), "tcp", echo.Addr().String()))
			defer conn.Close()
			conns = append(conns, conn)
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	became := make(map[uint16]uint16) // port of the client's, and what it is outside
	check := func(when string) {
		t.Helper()
		for i, conn := range conns {
			if err := swap(conn, random, 10*time.Second); err != nil {
				t.Fatalf("%s: connection %d: %v\n%s", when, i, err, p.log)
			}
		}
		for _, f := range must(p.Flows(t.Context(), "nat branch", 0)) {
			if port, known := became[f.SrcPort]; known && port != f.NAT.SrcPort {
				t.Errorf("%s: port %d is %d outside, and was %d", when, f.SrcPort, f.NAT.SrcPort, port)
			}
			became[f.SrcPort] = f.NAT.SrcPort
		}
		s := must(p.Status(t.Context()))
		if b := must(p.NAT(t.Context())).Rules[0]; b.Flows != 2*each || b.PortsUsed != 2*each || s.Table.Flows != 2*each || s.Table.Translated != 2*each {
			t.Errorf("%s: the rule is %+v, the table %+v", when, b, s.Table)
		}
	}
	check("at first")
	for _, max := range []int{200_000, 10_000}[:sized(1, 2)] {
		p.kill()
		if err := os.WriteFile(c.File, []byte(config(max)), 0o600); err != nil {
			t.Fatal(err)
		}
		p = startProcess(t, gw, binary, c)
		p.ready(t)
		if start := must(p.Status(t.Context())).Start; start.How != startConversion || start.Carried != 2*each || start.Left != 0 {
			t.Errorf("flows.max %d: began with %+v\n%s", max, start, p.log)
		}
		check(fmt.Sprintf("flows.max %d", max))
	}
	if len(became) != 2*each {
		t.Errorf("%d connections were seen, of %d", len(became), 2*each)
	}
	p.stop(t)
	if out, err := gw.Command(t.Context(), binary, "detach").CombinedOutput(); err != nil {
		t.Errorf("detach: %v: %s", err, out)
	}
}
