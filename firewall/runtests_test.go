package firewall

import (
	"net/netip"
	"strings"
	"testing"
)

func TestRunTests(t *testing.T) {
	const policy = head + `zones: {lan: {ports: [lan0], addresses: 10.0.0.0/8}, dmz: {ports: [lan0], vlans: [20]}, wan: {ports: [wan0]}, vpn: {ports: [t0], vlans: [7]}}
workloads: {desk: {macs: ['02:00:00:00:00:07']}}
services: {web: [tcp/80, tcp/443], dns: {proto: udp, port: 53, source_port: 1024-65535}}
rules:
  - {name: watch, from: any, to: wan, action: deny, mode: audit}
  - {name: desk, from: desk, to: dmz, action: allow}
  - {name: web, from: lan, to: wan, service: [web, dns], action: allow}
  - {name: no, from: lan, to: host, action: reject}
  - {name: ping, from: {zone: [dmz, vpn, wan]}, to: any, service: [icmp/8, icmpv6/128, esp], action: allow}
tests:
`
	route := func(in string, dst netip.Addr) (string, bool) {
		switch {
		case in == "lan0" && dst == netip.MustParseAddr("192.0.2.1"):
			return "wan", true
		case dst == netip.MustParseAddr("192.0.2.9"):
			return "nowhere", true
		}
		return "", false
	}
	for _, row := range []struct {
		name, packet, expect string
		routes               bool
		err                  string // part of the message; "" means that the test passes
		audited              string
	}{
		{"port to port", "{in: lan0, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/443}", "{verdict: allow, rule: web}", false, "", "watch"},
		{"service by name with its port", "{in: lan0, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, service: web, dport: 80}", "{verdict: allow, rule: web}", false, "", "watch"},
		{"source port of the service", "{in: lan0, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, service: dns}", "{verdict: allow}", false, "", "watch"},
		{"source port outside", "{in: lan0, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, proto: udp, dport: 53, sport: 53}", "{verdict: deny, rule: none}", false, "", "watch"},
		{"to the gateway", "{in: lan0, out: host, src: 10.0.0.1, dst: 10.0.0.2, service: tcp/22}", "{verdict: reject, rule: 'no'}", false, "", ""},
		{"spoofed", "{in: lan0, out: wan0, src: 11.0.0.1, dst: 192.0.2.1, service: tcp/443}", "{verdict: drop}", false, "", ""},
		{"vlan", "{in: lan0, vlan: 20, out: wan0, src: 11.0.0.1, dst: 192.0.2.1, service: icmp}", "{verdict: allow, rule: ping}", false, "", "watch"},
		{"only vlan of a port", "{in: t0, out: wan0, src: 11.0.0.1, dst: 192.0.2.1, service: icmp/echo-request}", "{verdict: allow, rule: ping}", false, "", "watch"},
		{"zones by name", "{in: vpn, out: lan, src: '2001:db8::1', dst: '2001:db8::2', service: icmpv6/echo-request}", "{verdict: allow, rule: ping}", false, "", ""},
		{"proto number", "{in: vpn, out: lan, src: 192.0.2.3, dst: 192.0.2.2, proto: 50}", "{verdict: allow, rule: ping}", false, "", ""},
		{"mac", "{in: lan0, out: lan0, out_vlan: 20, mac: '02:00:00:00:00:07', src: 10.0.0.1, dst: 192.0.2.1, proto: gre}", "{verdict: allow, rule: desk}", false, "", ""},
		{"other mac", "{in: lan0, out: lan0, out_vlan: 20, mac: '02:00:00:00:00:08', src: 10.0.0.1, dst: 192.0.2.1, proto: gre}", "{verdict: deny, rule: none}", false, "", ""},
		{"built-in", "{in: host, out: wan0, src: 0.0.0.0, dst: 255.255.255.255, service: udp/67, sport: 68}", "{verdict: allow, rule: builtin-dhcp-client}", false, "", ""},
		{"routed", "{in: lan0, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/443}", "{verdict: allow, rule: web}", true, "", "watch"},

		{"a reply, which no rule is asked about", "{in: lan0, out: lan0, out_vlan: 20, mac: '02:00:00:00:00:07', src: 10.0.0.1, dst: 192.0.2.1, service: icmp/echo-reply}", "{verdict: drop, rule: none}", false, "", ""},
		{"an error, which no rule is asked about", "{in: lan0, out: lan0, out_vlan: 20, mac: '02:00:00:00:00:07', src: 10.0.0.1, dst: 192.0.2.1, service: icmp/3}", "{verdict: drop}", false, "", ""},
		{"a redirect, which never passes", "{in: lan0, out: lan0, out_vlan: 20, mac: '02:00:00:00:00:07', src: 10.0.0.1, dst: 192.0.2.1, service: icmp/5}", "{verdict: drop}", false, "", ""},
		{"an ICMPv6 error", "{in: vpn, out: lan, src: '2001:db8::1', dst: '2001:db8::2', service: icmpv6/2}", "{verdict: drop}", false, "", ""},
		{"a request with that rule", "{in: lan0, out: lan0, out_vlan: 20, mac: '02:00:00:00:00:07', src: 10.0.0.1, dst: 192.0.2.1, service: icmp/echo-request}", "{verdict: allow, rule: desk}", false, "", ""},
		{"a reply that is thought to pass", "{in: lan0, out: lan0, out_vlan: 20, mac: '02:00:00:00:00:07', src: 10.0.0.1, dst: 192.0.2.1, service: icmp/0}", "{verdict: allow}", false, "got drop: no rule is asked, a reply passes with the request", ""},

		{"no routes", "{in: lan0, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/443}", "{verdict: allow}", false, "add out: PORT", ""},
		{"no route", "{in: lan0, src: 10.0.0.1, dst: 192.0.2.2, service: tcp/443}", "{verdict: allow}", true, "no route leads to 192.0.2.2", ""},
		{"route to no zone", "{in: lan0, src: 10.0.0.1, dst: 192.0.2.9, service: tcp/443}", "{verdict: allow}", true, `leads to "nowhere"`, ""},
		{"no vlan", "{in: lan0, vlan: 21, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/443}", "{verdict: allow}", false, `no zone has VLAN 21 on port "lan0"`, ""},
		{"wrong verdict", "{in: lan0, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/443}", "{verdict: deny}", false, `p.yaml:13:`, "watch"},
		{"wrong rule", "{in: lan0, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/443}", "{verdict: allow, rule: ping}", false, `expected allow by rule "ping", got allow: rule "web", p.yaml:9`, "watch"},
		{"a rule where none should be", "{in: lan0, out: wan0, src: 10.0.0.1, dst: 192.0.2.1, service: tcp/443}", "{verdict: deny, rule: none}", false, `expected deny by no rule, got allow`, "watch"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := compileText(t, policy+"  - {name: it, packet: "+row.packet+", expect: "+row.expect+"}\n", CompileOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var routes func(string, netip.Addr) (string, bool)
			if row.routes {
				routes = route
			}
			got := RunTests(c, linear(c.Entries), routes)
			if len(got) != 1 || got[0].Pass != (row.err == "") || got[0].Pass != (got[0].Err == nil) {
				t.Fatalf("results %+v, %v", got, got[0].Err)
			}
			if e := got[0].Err; e != nil && (!strings.Contains(e.Error(), row.err) || !strings.Contains(e.Msg, `test "it"`)) {
				t.Errorf("error %q lacks %q", e.Error(), row.err)
			}
			if audited := strings.Join(got[0].Audited, " "); audited != row.audited {
				t.Errorf("audited %q, want %q", audited, row.audited)
			}
		})
	}
}

// With ports that only the gateway's configuration knows, a test's port may have no zone.
func TestRunTestsUntaggedPort(t *testing.T) {
	c, err := compileText(t, head+`zones: {a: {ports: [p], vlans: [5]}, b: {ports: [p], vlans: [6]}, c: {}}
tests:
  - {name: t, packet: {in: p, out: c, src: 10.0.0.1, dst: 10.0.0.2, proto: 99}, expect: {verdict: deny}}
`, CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := RunTests(c, linear(c.Entries), nil)
	if r[0].Pass || !strings.Contains(r[0].Err.Error(), "untagged frames of port") || !strings.Contains(r[0].Err.Hint, "vlan: ID") {
		t.Errorf("result %+v: %v", r[0], r[0].Err)
	}
}
