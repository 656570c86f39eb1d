package firewall

import (
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

const mappingZones = head + `zones: {lan: {ports: [a], addresses: [10.1.0.0/16]}, wan: {ports: [b]}, dmz: {ports: [c]}}
rules:
  - {name: in, from: wan, to: {zone: lan, addresses: [10.1.8.0/24]}, service: udp, action: allow}
nat:
`

// What a rule says of mapping and filtering is in its flags and its words.
func TestNATMapping(t *testing.T) {
	for _, tt := range []struct {
		rule, text, mapping, filtering string
		flags                          uint8
	}{
		{"masquerade: {}", "masquerade", MapFlow, "address-and-port-dependent", 0},
		{"masquerade: {mapping: address-and-port-dependent, filtering: address-and-port-dependent}", "masquerade", MapFlow, "address-and-port-dependent", 0},
		{"masquerade: {mapping: endpoint-independent}", "masquerade, mapping endpoint-independent", MapEndpoint, "address-and-port-dependent", natMapping},
		{"masquerade: {ports: 2000-2999, mapping: endpoint-independent, filtering: endpoint-independent}",
			"masquerade ports 2000-2999, mapping endpoint-independent, filtering endpoint-independent", MapEndpoint, "endpoint-independent", natMapping | natFilterAny},
		{"snat: {addresses: 203.0.113.4, mapping: endpoint-independent, filtering: address-dependent}",
			"snat to 203.0.113.4, mapping endpoint-independent, filtering address-dependent", MapEndpoint, "address-dependent", natMapping | natFilterAddress},
		{"dnat: {to: 10.1.0.9}", "dnat to 10.1.0.9", "", "", natHairpin},
	} {
		to := "wan"
		if strings.HasPrefix(tt.rule, "dnat") {
			to = "host"
		}
		c, err := compileText(t, mappingZones+"  - {name: out, from: {zone: lan, addresses: [10.1.0.0/16]}, to: "+to+", "+tt.rule+"}\n", CompileOptions{Now: day})
		if err != nil {
			t.Fatal(err)
		}
		info := c.NATRules[1]
		if info.Text != tt.text || info.Mapping != tt.mapping || info.Filtering != tt.filtering || c.NAT.Rules[1].Flags != tt.flags {
			t.Errorf("%s: %+v, flags %#x", tt.rule, info, c.NAT.Rules[1].Flags)
		}
		if c.NAT.Maps() != (tt.flags&natMapping != 0) || c.NAT.Filters() != (tt.flags&(natFilterAny|natFilterAddress) != 0) {
			t.Errorf("%s: maps %v, filters %v", tt.rule, c.NAT.Maps(), c.NAT.Filters())
		}
	}
}

// Filtering lets nobody in to what is not one port for all.
func TestNATFilteringNeedsMapping(t *testing.T) {
	for _, tt := range []struct{ rule, msg, hint string }{
		{"masquerade: {filtering: endpoint-independent}", "filtering endpoint-independent needs a port that is the same for every destination", "add mapping: endpoint-independent"},
		{"snat: {addresses: 203.0.113.4, mapping: address-and-port-dependent, filtering: address-dependent}", "needs a port that is the same", "take filtering out"},
		{"masquerade: {mapping: full-cone}", `unknown mapping "full-cone"`, "endpoint-independent"},
		{"masquerade: {mapping: endpoint-independent, filtering: none}", `unknown filtering "none"`, "address-dependent"},
	} {
		text := head + "zones: {lan: {ports: [a]}, wan: {ports: [b]}}\nnat:\n  - {name: out, from: lan, to: wan, " + tt.rule + "}\n"
		_, errs := parseText(t, text)
		if len(errs) != 1 || !strings.Contains(errs[0].Msg, tt.msg) || !strings.Contains(errs[0].Hint, tt.hint) || errs[0].Line != 5 {
			t.Errorf("%s: %v", tt.rule, errs)
		}
	}
}

// One address and port is not given out by two kinds of rules.
func TestNATSharedPorts(t *testing.T) {
	const eim = "mapping: endpoint-independent"
	for _, tt := range []struct {
		name, one, two string
		refused        bool
	}{
		{"masquerading to one zone", "to: wan, masquerade: {" + eim + "}", "to: wan, masquerade: {}", true},
		{"masquerading to any", "to: any, masquerade: {}", "to: wan, masquerade: {" + eim + "}", true},
		{"the same mapping", "to: wan, masquerade: {" + eim + "}", "to: wan, masquerade: {" + eim + "}", false},
		{"other ports", "to: wan, masquerade: {ports: 2000-2999, " + eim + "}", "to: wan, masquerade: {ports: 3000-3999}", false},
		{"other zones", "to: wan, masquerade: {" + eim + "}", "to: dmz, masquerade: {}", false},
		{"one pool", "to: wan, snat: {addresses: [203.0.113.4-203.0.113.6]}", "to: dmz, snat: {addresses: [203.0.113.6], " + eim + "}", true},
		{"other pools", "to: wan, snat: {addresses: [203.0.113.4-203.0.113.6]}", "to: wan, snat: {addresses: [203.0.113.7], " + eim + "}", false},
		{"a pool and an address", "to: wan, snat: {addresses: [203.0.113.4]}", "to: wan, masquerade: {" + eim + "}", false},
	} {
		text := mappingZones + "  - {name: one, from: {zone: lan, addresses: [10.1.1.0/24]}, " + tt.one + "}\n  - {name: two, from: lan, " + tt.two + "}\n"
		_, err := compileText(t, text, CompileOptions{Now: day})
		if !tt.refused {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), `p.yaml:8:`) || !strings.Contains(err.Error(), `nat rules "one" and "two" choose among the same addresses and ports`) ||
			!strings.Contains(err.Error(), "the other is in p.yaml:7:") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// Filtering that no rule makes use of is warned of, and what a rule admits is not.
func TestNATFilteringLint(t *testing.T) {
	for _, tt := range []struct {
		name, from string
		warned     bool
	}{
		{"whom the rule admits", "{zone: lan, addresses: [10.1.8.7]}", false},
		{"everybody", "lan", false},
		{"somebody else", "{zone: lan, addresses: [10.1.9.0/24]}", true},
		{"another zone", "dmz", true},
	} {
		c, err := compileText(t, mappingZones+"  - {name: out, from: "+tt.from+", to: wan, masquerade: {mapping: endpoint-independent, filtering: endpoint-independent}}\n", CompileOptions{Now: day})
		if err != nil {
			t.Fatal(err)
		}
		warned := false
		for _, w := range c.Warnings {
			warned = warned || strings.Contains(w.Msg, `nat rule "out" lets others send to what it writes, and no rule allows any of that`)
		}
		if warned != tt.warned {
			t.Errorf("%s: %v", tt.name, c.Warnings)
		}
	}
}

// Management is not handed to a mapping: what is exempt has an answer, though there is no rule for destinations.
func TestNATMappingExemptsManagement(t *testing.T) {
	c, err := compileText(t, mappingZones+"  - {name: out, from: lan, to: wan, masquerade: {mapping: endpoint-independent, filtering: endpoint-independent}}\n",
		CompileOptions{Now: day, Management: Management{From: []Ref{{Name: "wan"}}, Services: []Ref{{Name: "tcp/22"}}}})
	if err != nil {
		t.Fatal(err)
	}
	k := bpf.XDPClassifyKey{Family: 4, Proto: protoTCP, From: 4, To: zoneHost, SrcLo: 0xc0000201, DstLo: 0xcb007105, Sport: 5, Dport: 22}
	if c.NAT.Destinations.Classify(&k, nil) == 0 {
		t.Error("management has no answer")
	}
	if k.Dport = 23; c.NAT.Destinations.Classify(&k, nil) != 0 {
		t.Error("what is no management has an answer")
	}
}
