package firewall

import (
	"net/netip"
	"strings"
	"testing"
)

// A policy's tests say what its packets become.
func TestNATExpectations(t *testing.T) {
	const rules = "rules: [{name: all, from: any, to: any, action: allow}]\ntests:\n"
	route := func(_ string, dst netip.Addr) (string, bool) {
		switch dst.String() {
		case "203.0.113.1", "10.30.0.1":
			return NameHost, true
		case "203.0.113.9":
			return "", false
		}
		if dst.Is4() && dst.As4()[0] == 10 {
			return "dmz", true
		}
		return "wan", true
	}
	const more = "  - {name: to-itself, from: wan, to: 203.0.113.7, dnat: {to: 10.30.0.1}}\n"
	for _, row := range []struct {
		name, packet, expect string
		routes               bool
		err                  string // part of the message; "" means that the test passes
	}{
		{"masquerade", "{in: lan, out: wan, src: 10.20.0.1, dst: 198.51.100.1, service: tcp/80}", "{verdict: allow, nat: {src: masquerade}}", false, ""},
		{"nothing asked", "{in: lan, out: wan, src: 10.20.0.1, dst: 198.51.100.1, service: tcp/80}", "{verdict: allow}", false, ""},
		{"exempt", "{in: lan, out: wan, src: 10.20.0.1, dst: 10.99.0.1, service: tcp/80}", "{verdict: allow, nat: none}", false, ""},
		{"pool", "{in: dmz, out: wan, src: 10.30.0.1, dst: 192.0.2.1, service: tcp/80}", "{verdict: allow, nat: {src: 203.0.113.15, dst: 192.0.2.1}}", false, ""},
		{"server", "{in: wan, out: dmz, src: 198.51.100.1, dst: 203.0.113.5, service: tcp/443}", "{verdict: allow, rule: all, nat: {src: 198.51.100.1, dst: '10.30.0.5:8080'}}", false, ""},
		{"server that the route leads to", "{in: wan, src: 198.51.100.1, dst: 203.0.113.5, service: tcp/443}", "{verdict: allow, nat: {dst: 10.30.0.5}}", true, ""},
		{"the gateway's own address", "{in: wan, src: 198.51.100.1, dst: 203.0.113.1, service: tcp/443}", "{verdict: allow, nat: {dst: '10.30.0.6:443'}}", true, ""},
		{"and what is for itself", "{in: wan, src: 198.51.100.1, dst: 203.0.113.1, service: tcp/22}", "{verdict: allow, nat: none}", true, ""},
		{"hairpin", "{in: dmz, out: dmz, src: 10.30.0.9, dst: 203.0.113.6, service: tcp/443}", "{verdict: allow, nat: {src: masquerade, dst: 10.30.0.7}}", false, ""},
		{"1:1 out", "{in: dmz, out: wan, src: 10.40.0.9, dst: 192.0.2.1, service: gre}", "{verdict: allow, nat: {src: 198.51.100.9}}", false, ""},
		{"1:1 in", "{in: wan, out: dmz, src: 192.0.2.1, dst: 198.51.100.9, service: esp}", "{verdict: allow, nat: {dst: 10.40.0.9}}", false, ""},
		{"NPTv6", "{in: wan, out: lan, src: '2001:db8::9', dst: '2001:db8:20:cf48::7', service: tcp/80}", "{verdict: allow, nat: {dst: 'fd20:0:0:1::7'}}", false, ""},
		{"the gateway itself", "{in: host, out: wan, src: 203.0.113.1, dst: 203.0.113.5, service: tcp/80}", "{verdict: allow, nat: none}", false, ""},

		{"not that server", "{in: wan, out: dmz, src: 198.51.100.1, dst: 203.0.113.6, service: tcp/443}", "{verdict: allow, nat: {dst: 10.30.0.8}}", false, `expected nat dst 10.30.0.8, got destination 10.30.0.7:443 by nat rule "farm", p.yaml:21`},
		{"not that port", "{in: wan, out: dmz, src: 198.51.100.1, dst: 203.0.113.5, service: tcp/443}", "{verdict: allow, nat: {dst: '10.30.0.5:443'}}", false, `got destination 10.30.0.5:8080 by nat rule "www"`},
		{"not of the pool", "{in: dmz, out: wan, src: 10.30.0.1, dst: 192.0.2.1, service: tcp/80}", "{verdict: allow, nat: {src: 203.0.113.16}}", false, `got source 203.0.113.8/29 by nat rule "out"`},
		{"not masqueraded", "{in: lan, out: dmz, src: 10.20.0.1, dst: 10.30.0.1, service: tcp/80}", "{verdict: allow, nat: {src: masquerade}}", false, "got source 10.20.0.1 as it was"},
		{"translated", "{in: lan, out: wan, src: 10.20.0.1, dst: 198.51.100.1, service: tcp/80}", "{verdict: allow, nat: none}", false, `expected nat none, got a masqueraded source by nat rule "branch", p.yaml:17`},
		{"destination translated", "{in: wan, out: dmz, src: 198.51.100.1, dst: 203.0.113.5, service: tcp/80}", "{verdict: allow, nat: none}", false, "expected nat none, got destination 10.30.0.5:8080"},
		{"becomes the gateway", "{in: wan, src: 198.51.100.1, dst: 203.0.113.7, service: tcp/80}", "{verdict: allow}", true, `got drop: nat-to-host: nat rule "to-itself"`},
		{"said to stay", "{in: wan, out: host, src: 198.51.100.1, dst: 203.0.113.5, service: tcp/80}", "{verdict: allow}", false, `nat rule "www", p.yaml:19 makes the destination 10.30.0.5:8080, and out says host`},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := compileNAT(t, natPolicy+more+rules+"  - {name: it, packet: "+row.packet+", expect: "+row.expect+"}\n")
			routes := route
			if !row.routes {
				routes = nil
			}
			got := RunTests(c, linear(c.Entries), routes)[0]
			if got.Pass != (row.err == "") || got.Pass != (got.Err == nil) {
				t.Fatalf("result %+v, %v", got, got.Err)
			}
			if got.Err != nil && (!strings.Contains(got.Err.Msg, row.err) || got.Err.Line != 27) {
				t.Errorf("error %q lacks %q", got.Err.Error(), row.err)
			}
		})
	}
}

func TestNATExpectationErrors(t *testing.T) {
	for _, row := range []struct{ expect, msg, hint string }{
		{"{verdict: deny, nat: none}", "nat beside verdict deny", "take nat out"},
		{"{verdict: allow, nat: {}}", "nat says nothing", "masquerade"},
		{"{verdict: allow, nat: yes}", "nat must be a map of keys", "src, dst"},
		{"{verdict: allow, nat: {source: 10.0.0.1}}", `unknown key "source" in nat`, "src"},
		{"{verdict: allow, nat: {dst: 10.0.0.0/8}}", "is not an address", "the server's address"},
		{"{verdict: allow, nat: {src: masquerad}}", "is not an address", "or masquerade"},
	} {
		_, errs := parseText(t, natPolicy+"tests:\n  - {name: it, packet: {in: lan, out: wan, src: 10.20.0.1, dst: 192.0.2.1, service: tcp/80}, expect: "+row.expect+"}\n")
		if len(errs) != 1 || errs[0].Line != 25 || !strings.Contains(errs[0].Msg, row.msg) || !strings.Contains(errs[0].Hint, row.hint) {
			t.Errorf("%s: %v", row.expect, errs)
		}
	}
}
