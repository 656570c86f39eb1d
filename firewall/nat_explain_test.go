package firewall

import (
	"net/netip"
	"testing"
)

// Every rule that is asked in vain has a reason, and none behind the one that matches is asked.
func TestTranslationSaysWhyRulesDoNotMatch(t *testing.T) {
	policy, err := Parse([]Source{{Name: "p.yaml", Text: []byte(`apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan0]}, wan: {ports: [wan0]}}
nat:
  - {name: six, from: lan, to: wan, snat: {addresses: "2001:db8::1"}}
  - {name: others, from: {zone: lan, addresses: 10.9.0.0/16}, to: wan, service: udp, masquerade: {}}
  - {name: names, from: any, to: wan, service: udp/53, masquerade: {}}
  - {name: all, from: lan, to: wan, masquerade: {}}
  - {name: behind, from: any, to: any, masquerade: {}}
  - {name: own, from: wan, to: host, service: tcp/443, dnat: {to: 10.1.0.5}}
rules: [{name: all, from: any, to: any, action: allow}]
`)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(policy, CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	zone := func(port string) uint8 { z, _ := c.ZoneOf(port, 0); return z }
	p := &TestPacket{Src: netip.MustParseAddr("10.1.0.7"), Dst: netip.MustParseAddr("203.0.113.5"), Proto: protoTCP, SrcPort: 5000, DstPort: 443}
	got := c.TranslateDestination(p, zone("lan0"), false)
	c.TranslateSource(&got, p, zone("lan0"), zone("wan0"))
	if !got.Masquerade || c.NATRules[got.SourceRule].Name != "all" || len(got.To) != 0 || got.DestinationRule != 0 {
		t.Errorf("it becomes %+v", got)
	}
	check := func(misses []NATMiss, want ...string) {
		t.Helper()
		for i, m := range misses {
			if i < len(want) && m.Rule.Name+": "+m.Why != want[i] {
				t.Errorf("%s: %s, want %s", m.Rule.Name, m.Why, want[i])
			}
		}
		if len(misses) != len(want) {
			t.Errorf("%d rules are asked in vain, want %d", len(misses), len(want))
		}
	}
	check(got.SourceMisses, "six: it translates the other address family", "others: the source address is another, the service is another", "names: the service is another")
	check(got.DestinationMisses, "own: it comes from another zone, the destination is no address of the gateway itself")
	got = c.TranslateDestination(p, zone("wan0"), true)
	if len(got.To) != 1 || got.To[0] != netip.MustParseAddrPort("10.1.0.5:443") || len(got.DestinationMisses) != 0 {
		t.Errorf("it becomes %+v", got)
	}
}
