package oracle

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

const testPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0], addresses: [10.0.0.0/16, "2001:db8:1::/48"]}
  dmz: {ports: [lan0], vlans: [20]}
  wan: {ports: [wan0]}
  left: {ports: [br0]}
  left5: {ports: [br0], vlans: [5]}
  right: {ports: [br1]}
sets:
  bad: {type: prefix, entries: [198.51.100.66]}
  printers: {type: mac, entries: ["02:00:00:00:01:09"]}
workloads:
  pos: {zone: lan, addresses: [10.0.1.0/24], labels: {pci: "yes"}}
  scanner: {macs: ["02:00:00:00:01:07"], labels: {scan: "yes"}}
services:
  ssh: [tcp/22]
rules:
  - {name: seen, from: any, to: {set: bad}, action: deny, mode: audit}
  - {name: no-bad, from: any, to: {set: bad}, action: deny}
  - {name: no-telnet, from: lan, to: wan, service: tcp/23, action: reject}
  - {name: past, from: any, to: any, action: deny, expires: 2020-01-01}
  - {name: pays, from: {labels: {pci: "yes"}}, to: {zone: wan, addresses: [203.0.113.0/28]}, service: tcp/443, action: allow}
  - {name: scans, from: scanner, to: wan, service: {proto: udp, port: [1000-1010, 2000], source_port: 99}, action: allow}
  - {name: prints, from: {set: printers}, to: dmz, service: tcp/631, action: allow}
  - {name: web, from: lan, to: wan, service: [tcp/80, udp/53], action: allow}
  - {name: ping, from: [lan, wan], to: [lan, wan], service: [icmp/echo-request, icmp/timestamp-request, icmpv6/echo-request], action: allow}
  - {name: tunnel, from: lan, to: wan, service: [gre, esp, ah, sctp, proto/99], action: allow}
  - {name: resume, from: lan, to: wan, service: tcp/8080, action: allow, midstream: true}
  - {name: local, from: lan, to: host, service: udp/123, action: allow}
  - {name: back, from: wan, to: lan, service: udp/7, action: allow}
  - {name: across, from: [left, left5], to: right, service: [tcp/80, udp/53], action: allow}
`

func world() World {
	route := func(prefix string, r Route) Route {
		r.Prefix = netip.MustParsePrefix(prefix)
		if r.Kind == 0 {
			r.Kind = RoutePort
		}
		return r
	}
	return World{
		Ports: []Port{
			{"lan0", lanMAC, 1500}, {"wan0", wanMAC, 1400},
			{"br0", [6]byte{2, 0, 0, 0, 0, 3}, 1500}, {"br1", [6]byte{2, 0, 0, 0, 0, 4}, 1400},
		},
		Pairs: [][2]string{{"br0", "br1"}},
		Routes: []Route{
			route("0.0.0.0/0", Route{Port: "wan0", MAC: nextMAC}),
			route("10.0.0.0/16", Route{Port: "lan0", MAC: hostMAC}),
			route("10.20.0.0/16", Route{Port: "lan0", VLAN: 20, MAC: hostMAC}),
			route("10.0.0.1/32", Route{Kind: RouteHost}),
			route("192.0.2.0/24", Route{Kind: RouteBlocked}),
			route("198.18.0.0/15", Route{Kind: RouteElsewhere}),
			route("203.0.113.7/32", Route{Port: "wan0"}),
			route("2001:db8:1::/48", Route{Port: "lan0", MAC: hostMAC}),
			route("2001:db8:2::/48", Route{Port: "wan0", MAC: nextMAC}),
		},
		Ethertypes: []uint16{0x88cc},
		Management: firewall.Management{From: []firewall.Ref{{Name: "lan"}}, Services: []firewall.Ref{{Name: "ssh"}, {Name: "udp/161"}}},
		Now:        time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func parsePolicy(t testing.TB, text string) *firewall.Policy {
	t.Helper()
	p, err := firewall.Parse([]firewall.Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newOracle(t testing.TB) *Oracle {
	t.Helper()
	o, err := New(parsePolicy(t, testPolicy), world())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// step is one packet of a scenario and what must become of it.
type step struct {
	port  string
	frame []byte
	// "forward", "pass CAUSE" or a reason
	want  string
	rule  string
	state State
}

func (s step) run(t *testing.T, o *Oracle, i int, now time.Duration) Verdict {
	t.Helper()
	v := o.Packet(now, s.port, s.frame)
	got := v.Reason
	switch v.Verdict {
	case Forward:
		got = Forward
	case Pass:
		got = Pass + " " + v.Pass
	}
	if got != s.want || v.Rule != s.rule || v.State != s.state {
		t.Errorf("packet %d: %q by %q, state %q; want %q by %q, state %q", i+1, got, v.Rule, v.State, s.want, s.rule, s.state)
	}
	if (v.Reason == "") != (v.Verdict == Forward || v.Verdict == Pass) || (v.Frame == nil) != (v.Reason != "") {
		t.Errorf("packet %d: verdict %+v does not hold together", i+1, v)
	}
	return v
}

type scenario struct {
	name  string
	steps []step
}

func runScenarios(t *testing.T, scenarios []scenario) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			o := newOracle(t)
			for i, step := range s.steps {
				step.run(t, o, i, time.Duration(i)*time.Millisecond)
			}
		})
	}
}

var (
	toWeb  = outbound("10.0.0.5", "198.51.100.9")
	toWeb6 = outbound("2001:db8:1::5", "2001:db8:2::9")
)

// What the kernel's own firewall answers to the ten probes of an ordinary stateful policy.
func TestProbes(t *testing.T) {
	syn := toWeb.tcp(4000, 80, "S", 100, 0, 0)
	request := toWeb.udp(5000, 53, 20)
	cut := fragments(toWeb.udp(5001, 53, 40), 24)
	runScenarios(t, []scenario{
		{"syn to an allowed port", []step{{"lan0", syn, Forward, "web", StateSynSent}}},
		{"ack in midstream", []step{{"lan0", toWeb.tcp(4000, 80, "A", 100, 1, 0), "not-syn", "web", ""}}},
		{"syn to another port", []step{{"lan0", toWeb.tcp(4000, 81, "S", 100, 0, 0), "no-rule-matched", "", ""}}},
		{"udp 53", []step{{"lan0", request, Forward, "web", StateNew}}},
		{"udp 54", []step{{"lan0", toWeb.udp(5000, 54, 20), "no-rule-matched", "", ""}}},
		{"ack before the syn/ack", []step{
			{"lan0", syn, Forward, "web", StateSynSent},
			{"lan0", toWeb.tcp(4000, 80, "A", 101, 1, 0), "tcp-state", "web", StateSynSent},
		}},
		{"error about a known flow", []step{
			{"lan0", request, Forward, "web", StateNew},
			{"wan0", toWeb.back().icmp(3, 3, 0, request[14:42]), Forward, "web", StateNew},
		}},
		{"error about an unknown flow", []step{{"wan0", toWeb.back().icmp(3, 3, 0, request[14:42]), "icmp-no-flow", "", ""}}},
		{"both fragments of a datagram", []step{
			{"lan0", cut[0], Forward, "web", StateNew},
			{"lan0", cut[1], Forward, "web", StateNew},
		}},
		{"syn and fin", []step{{"lan0", toWeb.tcp(4000, 80, "SF", 100, 0, 0), "malformed-tcp-flags", "", ""}}},
	})
}

func TestPolicy(t *testing.T) {
	scanner := toWeb
	scanner.from = [6]byte{2, 0, 0, 0, 1, 7}
	printer := outbound("10.0.0.5", "10.20.0.9")
	printer.from = [6]byte{2, 0, 0, 0, 1, 9}
	runScenarios(t, []scenario{
		{"deny", []step{{"lan0", outbound("10.0.0.5", "198.51.100.66").udp(1, 53, 0), "deny", "no-bad", ""}}},
		{"reject", []step{{"lan0", toWeb.tcp(1, 23, "S", 1, 0, 0), "reject", "no-telnet", ""}}},
		{"label", []step{
			{"lan0", outbound("10.0.1.5", "203.0.113.5").tcp(1, 443, "S", 1, 0, 0), Forward, "pays", StateSynSent},
			{"lan0", outbound("10.0.2.5", "203.0.113.5").tcp(1, 443, "S", 1, 0, 0), "no-rule-matched", "", ""},
			{"lan0", outbound("10.0.1.5", "203.0.113.16").tcp(1, 443, "S", 1, 0, 0), "no-rule-matched", "", ""},
		}},
		{"mac", []step{
			{"lan0", scanner.udp(99, 2000, 0), Forward, "scans", StateNew},
			{"lan0", scanner.udp(98, 2000, 0), "no-rule-matched", "", ""},
			{"lan0", scanner.udp(99, 1011, 0), "no-rule-matched", "", ""},
			{"lan0", toWeb.udp(99, 1005, 0), "no-rule-matched", "", ""},
		}},
		{"set of macs", []step{
			{"lan0", printer.tcp(1, 631, "S", 1, 0, 0), Forward, "prints", StateSynSent},
			{"lan0", outbound("10.0.0.5", "10.20.0.9").tcp(2, 631, "S", 1, 0, 0), "no-rule-matched", "", ""},
		}},
		{"spoofed", []step{
			{"lan0", outbound("10.1.0.5", "198.51.100.9").udp(1, 53, 0), "spoofed", "", ""},
			{"lan0", outbound("fe80::1", "ff02::1").udp(1, 53, 0), "no-rule-matched", "", ""},
		}},
		{"management and dhcp", []step{
			{"lan0", outbound("10.0.0.5", "10.0.0.1").tcp(1, 22, "S", 1, 0, 0), "pass host", "builtin-management", StateSynSent},
			{"lan0", outbound("10.0.0.5", "10.0.0.1").udp(1, 161, 0), "pass host", "builtin-management", StateNew},
			{"wan0", ends{nextMAC, wanMAC, "198.51.100.9", "10.0.0.1"}.udp(1, 161, 0), "no-rule-matched", "", ""},
			{"wan0", ends{nextMAC, wanMAC, "198.51.100.9", "255.255.255.255"}.udp(67, 68, 0), "pass host", "builtin-dhcp-client", StateNew},
			{"wan0", ends{nextMAC, wanMAC, "2001:db8:2::1", "ff02::2"}.udp(547, 546, 0), "pass host", "builtin-dhcp-client", StateNew},
			{"wan0", ends{nextMAC, wanMAC, "2001:db8:2::1", "ff02::2"}.udp(67, 68, 0), "no-rule-matched", "", ""},
		}},
		{"other protocols", []step{
			{"lan0", toWeb.packet(47, nil, make([]byte, 4)), Forward, "tunnel", StateNew},
			{"wan0", toWeb.back().packet(47, nil, make([]byte, 4)), Forward, "tunnel", StateReplied},
			{"lan0", toWeb.packet(50, nil, make([]byte, 8)), Forward, "tunnel", StateNew},
			{"lan0", toWeb.packet(99, nil, nil), Forward, "tunnel", StateNew},
			{"lan0", toWeb.packet(98, nil, nil), "no-rule-matched", "", ""},
		}},
	})
	o := newOracle(t)
	v := o.Packet(0, "lan0", outbound("10.0.0.5", "198.51.100.66").udp(1, 53, 0))
	if !slices.Equal(v.Audit, []string{"seen"}) {
		t.Errorf("rules in audit mode: %v, want [seen]", v.Audit)
	}
}

// A new policy is asked on the next packet of every flow.
func TestNewPolicy(t *testing.T) {
	o := newOracle(t)
	request, reply := toWeb.udp(5000, 53, 20), toWeb.back().udp(53, 5000, 20)
	step{"lan0", request, Forward, "web", StateNew}.run(t, o, 0, 0)
	head := "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan0]}, dmz: {ports: [lan0], vlans: [20]}, wan: {ports: [wan0]}, left: {ports: [br0]}, right: {ports: [br1]}}\nservices: {ssh: [tcp/22]}\nrules:\n"
	for i, p := range []struct {
		rules, want, rule string
		state             State
	}{
		{"- {name: no, from: lan, to: wan, action: deny}", "policy-revoked", "web", StateNew},
		{"- {name: dns, from: lan, to: wan, service: udp/53, action: allow}", Forward, "dns", StateReplied},
		{"- {name: unasked, from: wan, to: lan, action: allow}", "policy-revoked", "dns", StateReplied},
	} {
		if err := o.SetPolicy(parsePolicy(t, head+p.rules)); err != nil {
			t.Fatal(err)
		}
		step{"wan0", reply, p.want, p.rule, p.state}.run(t, o, i, 0)
		if p.want == "policy-revoked" {
			step{"wan0", toWeb.back().icmp(3, 3, 0, request[14:42]), "icmp-no-flow", "", ""}.run(t, o, i, 0)
		}
	}
	// An error is enough for a flow to be asked about.
	if err := o.SetPolicy(parsePolicy(t, head+"- {name: all, from: lan, to: any, action: allow}")); err != nil {
		t.Fatal(err)
	}
	step{"wan0", toWeb.back().icmp(3, 3, 0, request[14:42]), Forward, "all", StateReplied}.run(t, o, 8, 0)
	bad := parsePolicy(t, "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [eth7]}}\n")
	if err := o.SetPolicy(bad); err == nil {
		t.Error("a policy for a port that does not exist was taken")
	}
	step{"wan0", reply, Forward, "all", StateReplied}.run(t, o, 9, 0)
}

// A source that comes in by one zone and lives in another: the flow is judged with the zone that its
// replies leave by, and belongs there from then on.
func TestZoneMoves(t *testing.T) {
	in := ends{nextMAC, wanMAC, "10.0.0.9", "10.0.0.5"}
	out := ends{hostMAC, lanMAC, "10.0.0.5", "10.0.0.9"}
	runScenarios(t, []scenario{
		{"not allowed there", []step{
			{"wan0", in.udp(9, 7, 0), Forward, "back", StateNew},
			{"lan0", out.udp(7, 9, 0), "policy-revoked", "back", StateNew},
			{"lan0", out.udp(7, 9, 0), "policy-revoked", "back", StateNew},
			{"wan0", in.udp(9, 7, 0), "wrong-zone", "back", StateNew},
		}},
		{"allowed there", []step{
			{"wan0", in.icmp(8, 0, 5<<16, nil), Forward, "ping", StateNew},
			{"lan0", out.icmp(0, 0, 5<<16, nil), Forward, "ping", StateReplied},
			{"wan0", in.icmp(8, 0, 5<<16, nil), "wrong-zone", "ping", StateReplied},
			{"lan0", in.icmp(8, 0, 5<<16, nil), "not-for-us", "", ""},
		}},
	})
}

func TestFlowsMax(t *testing.T) {
	w := world()
	w.FlowsMax = 1
	o, err := New(parsePolicy(t, testPolicy), w)
	if err != nil {
		t.Fatal(err)
	}
	step{"lan0", toWeb.udp(1, 53, 0), Forward, "web", StateNew}.run(t, o, 0, 0)
	step{"lan0", toWeb.udp(2, 53, 0), "flow-table-full", "web", ""}.run(t, o, 1, 0)
	step{"lan0", toWeb.udp(1, 53, 0), Forward, "web", StateNew}.run(t, o, 2, 0)
	if o.Flows() != 1 {
		t.Errorf("%d flows, want 1", o.Flows())
	}
}
