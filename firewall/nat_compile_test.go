package firewall

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

func compileNAT(t *testing.T, text string) *Compiled {
	t.Helper()
	c, err := compileText(t, text, CompileOptions{Now: day})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ask returns the name of the rule that a list answers with, "" for none, and the id.
func (c *Compiled) ask(destinations bool, from, to uint8, proto uint8, src, dst string, dport uint16) (string, uint32) {
	list := c.NAT.Sources
	if destinations {
		list = c.NAT.Destinations
	}
	k := Key(netip.MustParseAddr(src), netip.MustParseAddr(dst), proto, 40000, dport)
	k.From, k.To = from, to
	if list == nil {
		return "", 0
	}
	id := list.Classify(&k, nil) & (maxRules - 1)
	if id != 0 && (c.NATRules[id].Destinations != destinations || c.NATRules[id].Family != k.Family) {
		return fmt.Sprintf("%+v", c.NATRules[id]), id
	}
	return c.NATRules[id].Name, id
}

// Which rule each list answers with.
func TestNATLists(t *testing.T) {
	c := compileNAT(t, natPolicy+"rules: [{name: all, from: any, to: any, action: allow}]\n")
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %v", c.Warnings)
	}
	zone := func(name string) uint8 { return uint8(slices.Index(c.Zones, name)) }
	lan, dmz, wan, unknown := zone("lan"), zone("dmz"), zone("wan"), uint8(0)
	for _, tt := range []struct {
		name         string
		destinations bool
		from, to     uint8
		proto        uint8
		src, dst     string
		port         uint16
		want         string
	}{
		{"kept", false, lan, wan, 6, "10.20.0.1", "10.99.0.1", 80, "not-to-vpn"},
		{"kept by a zone", true, lan, unknown, 6, "10.20.0.1", "10.99.0.1", 80, ""},
		{"masqueraded", false, lan, wan, 6, "10.20.0.1", "198.51.100.1", 80, "branch"},
		{"masqueraded, a ping", false, lan, wan, 1, "10.20.0.1", "198.51.100.1", 8 << 8, "branch"},
		{"masqueraded, IPv6", false, lan, wan, 17, "fd20::1", "2001:db8::1", 53, "branch"},
		{"elsewhere", false, lan, dmz, 6, "10.20.0.1", "10.30.0.1", 80, ""},
		{"workload and set", false, lan, wan, 6, "10.20.1.1", "192.0.2.9", 443, "pay"},
		{"another service", false, lan, wan, 6, "10.20.1.1", "192.0.2.9", 22, "branch"},
		{"pool", false, dmz, wan, 6, "10.30.0.9", "198.51.100.1", 80, "out"},
		{"no pool", false, dmz, wan, 6, "10.31.0.9", "198.51.100.1", 80, ""},
		{"forwarded", true, wan, unknown, 6, "198.51.100.1", "203.0.113.5", 80, "www"},
		{"forwarded, of the gateway", true, wan, zoneHost, 6, "198.51.100.1", "203.0.113.5", 443, "www"},
		{"not forwarded", true, wan, unknown, 6, "198.51.100.1", "203.0.113.5", 22, ""},
		{"own address", true, wan, zoneHost, 6, "198.51.100.1", "203.0.113.1", 443, "own"},
		{"not own", true, wan, unknown, 6, "198.51.100.1", "203.0.113.1", 443, ""},
		{"from inside", true, lan, unknown, 6, "10.20.0.1", "203.0.113.6", 443, "farm"},
		{"exempt", true, wan, unknown, 6, "192.0.2.1", "203.0.113.6", 443, "not-from-partners"},
		{"1:1 out", false, dmz, wan, 47, "10.40.0.7", "198.51.100.1", 0, "static"},
		{"1:1 in", true, wan, unknown, 47, "192.0.2.1", "198.51.100.7", 0, "static"},
		{"1:1 in from elsewhere", true, lan, unknown, 47, "10.20.0.1", "198.51.100.7", 0, ""},
		{"NPTv6 in", true, wan, unknown, 6, "2001:db8::1", "2001:db8:20:d550::7", 80, "nptv6"},
	} {
		if got, _ := c.ask(tt.destinations, tt.from, tt.to, tt.proto, tt.src, tt.dst, tt.port); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// What the tables say of each rule.
func TestNATTables(t *testing.T) {
	c := compileNAT(t, natPolicy)
	n := c.NAT
	if len(n.Rules) != len(c.NATRules) || n.Rules[0] != (bpf.XDPNatRule{}) {
		t.Fatalf("%d rules, %d described", len(n.Rules), len(c.NATRules))
	}
	rule := func(name string, family uint8, destinations bool) *bpf.XDPNatRule {
		i := slices.IndexFunc(c.NATRules, func(r NATRuleInfo) bool {
			return r.Name == name && r.Family == family && r.Destinations == destinations
		})
		if i < 1 {
			t.Fatalf("no rule %q", name)
		}
		return &n.Rules[i]
	}
	bytes := func(w [4]uint32) (b [16]byte) {
		for i, x := range w {
			b[4*i], b[4*i+1], b[4*i+2], b[4*i+3] = byte(x), byte(x>>8), byte(x>>16), byte(x>>24)
		}
		return b
	}
	block := func(r *bpf.XDPNatRule) flowtable.NATPorts {
		at := uint32(0)
		for _, p := range n.Ports {
			if at == r.Ports {
				return p
			}
			at += p.Elements
		}
		t.Errorf("no block begins at %d", r.Ports)
		return flowtable.NATPorts{}
	}
	if r := rule("not-to-vpn", 4, false); bpf.XDPNatKind(r.Kind) != bpf.XDPNatKindNAT_KEEP || r.Ports != natNoPorts {
		t.Errorf("not-to-vpn is %+v", r)
	}
	for _, family := range []uint8{4, 6} {
		r := rule("branch", family, false)
		if bpf.XDPNatKind(r.Kind) != bpf.XDPNatKindNAT_MASQUERADE || r.Family != family || block(r) != (flowtable.NATPorts{Elements: 12, First: 20000, Last: 29999}) {
			t.Errorf("branch is %+v", r)
		}
	}
	if r := rule("out", 4, false); bpf.XDPNatKind(r.Kind) != bpf.XDPNatKindNAT_SOURCE || r.Addresses != 8 ||
		bytes(r.Address) != [16]byte{203, 0, 113, 8} || block(r) != (flowtable.NATPorts{Elements: 8 * 12, First: 1024, Last: 65535}) {
		t.Errorf("out is %+v", r)
	}
	if r := rule("www", 4, true); bpf.XDPNatKind(r.Kind) != bpf.XDPNatKindNAT_DESTINATION || r.Flags != natHairpin || block(r).Elements != 12 ||
		r.Buckets == 0 || n.Servers[n.Buckets[r.Bucket]].Port != 8080>>8|8080&0xff<<8 || bytes(n.Servers[n.Buckets[r.Bucket]].Address) != [16]byte{10, 30, 0, 5} {
		t.Errorf("www is %+v", r)
	}
	if r := rule("own", 4, true); r.Flags != 0 || r.Ports != natNoPorts || n.Servers[n.Buckets[r.Bucket]].Port != 0 {
		t.Errorf("own is %+v", r)
	}
	farm := rule("farm", 4, true)
	if farm.Flags != natHairpin|natByConnection {
		t.Errorf("farm is %+v", farm)
	}
	for _, server := range n.Buckets[farm.Bucket : farm.Bucket+farm.Buckets] {
		if bytes(n.Servers[server].Address) != [16]byte{10, 30, 0, 7} {
			t.Errorf("a bucket of farm leads to %v, which drains", bytes(n.Servers[server].Address))
		}
	}
	if r := rule("static", 4, false); bpf.XDPNatKind(r.Kind) != bpf.XDPNatKindNAT_PREFIX_SOURCE || r.Prefix != 24 || r.Adjust != 0 || bytes(r.Address) != [16]byte{198, 51, 100} {
		t.Errorf("static for sources is %+v", r)
	}
	if r := rule("static", 4, true); bpf.XDPNatKind(r.Kind) != bpf.XDPNatKindNAT_PREFIX_DESTINATION || r.Prefix != 24 || bytes(r.Address) != [16]byte{10, 40} {
		t.Errorf("static for destinations is %+v", r)
	}
	out, in := rule("nptv6", 6, false), rule("nptv6", 6, true)
	if out.Adjust == 0 || out.Adjust != ^in.Adjust || out.Prefix != 48 || bytes(out.Address) != [16]byte{0x20, 1, 0xd, 0xb8, 0, 0x20} {
		t.Errorf("nptv6 is %+v and %+v", out, in)
	}
	if total := n.Bitmaps(); total != (1+8+2+1+1)*12 {
		t.Errorf("%d elements of nat_ports", total)
	}
	if c := compileNAT(t, good); c.NAT != nil || len(c.NATRules) != 1 {
		t.Errorf("a policy without nat rules has %+v", c.NAT)
	}
}

// Servers have new flows in proportion to their weights, and one that drains moves nobody else's.
func TestNATSpread(t *testing.T) {
	share := func(drain string) (share map[uint16]int, at []uint16) {
		c := compileNAT(t, head+"zones: {wan: {ports: [b]}}\nnat:\n  - {name: first, from: wan, to: 192.0.2.2, dnat: {to: 10.0.0.9}}\n"+
			"  - {name: farm, from: wan, to: 192.0.2.1, dnat: {servers: [{address: 10.0.0.1}, {address: 10.0.0.2, weight: 3"+drain+"}, {address: 10.0.0.3}]}}\n")
		_, id := c.ask(true, 2, 0, 6, "198.51.100.1", "192.0.2.1", 80)
		r := c.NAT.Rules[id]
		share = make(map[uint16]int)
		at = c.NAT.Buckets[r.Bucket : r.Bucket+r.Buckets]
		for _, server := range at {
			share[server]++
		}
		return share, at
	}
	all, before := share("")
	if n := len(before); n < 1000 || all[1] < n/5-1 || all[1] > n/5+1 || all[2] < n*3/5-1 || all[2] > n*3/5+1 || all[1]+all[2]+all[3] != n {
		t.Errorf("of %d buckets the servers have %v", n, all)
	}
	drained, after := share(", drain: true")
	if drained[2] != 0 || drained[1] != drained[3] && drained[1]-drained[3] != 1 && drained[3]-drained[1] != 1 {
		t.Errorf("with the second drained they have %v", drained)
	}
	moved := 0
	for i := range before {
		if before[i] != 2 && before[i] != after[i] {
			moved++
		}
	}
	if moved > len(before)/10 {
		t.Errorf("%d of %d buckets of others moved", moved, len(before))
	}
}

// The pipes of a program share the maps of large sets.
func TestNATBehindRules(t *testing.T) {
	entries := make([]string, 300)
	for i := range entries {
		entries[i] = fmt.Sprintf("10.%d.%d.0/25", i/250, i%250)
	}
	c := compileNAT(t, head+"zones: {lan: {ports: [a]}, wan: {ports: [b]}}\nsets: {s: {type: prefix, entries: ["+strings.Join(entries, ", ")+"]}}\n"+
		"nat:\n  - {name: kept, from: {set: s}, to: 192.0.2.1, keep: true}\n"+
		"rules: [{name: r, from: {set: s}, to: any, action: allow}]\n")
	rules, err := flowtable.CompileACL(c.Entries)
	if err != nil {
		t.Fatal(err)
	}
	nat, err := c.NATBehind(rules)
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string) // instructions name the nodes
	for name, pipe := range map[string]*flowtable.ACL{"alone": c.NAT.Sources, "behind": nat.Sources, "destinations": nat.Destinations} {
		instructions, err := pipe.Instructions()
		if err != nil {
			t.Fatal(err)
		}
		for other, text := range texts {
			if text == fmt.Sprint(instructions) && other != name {
				t.Errorf("%s and %s have the same nodes", name, other)
			}
		}
		texts[name] = fmt.Sprint(instructions)
	}
	k := Key(netip.MustParseAddr("10.0.7.1"), netip.MustParseAddr("192.0.2.1"), 6, 1, 80)
	k.From, k.To = 2, 3
	if id := nat.Sources.Classify(&k, nil); c.NATRules[id].Name != "kept" {
		t.Errorf("a member of the set has rule %d", id)
	}
}

// Exemptions are asked for where their zones are known.
func TestNATKeep(t *testing.T) {
	c := compileNAT(t, head+`zones: {lan: {ports: [a]}, wan: {ports: [b]}}
nat:
  - {name: both, from: lan, to: 192.0.2.0/24, keep: true}
  - {name: own, from: lan, to: host, service: tcp/22, keep: true}
  - {name: mixed, from: lan, to: [host, wan], service: tcp/80, keep: true}
  - {name: rest, from: any, to: any, dnat: {to: 10.0.0.1}}
  - {name: out, from: any, to: any, masquerade: {}}
`)
	const lan, wan = 2, 3
	for _, tt := range []struct {
		destinations bool
		to           uint8
		dst          string
		port         uint16
		want         string
	}{
		{true, 0, "192.0.2.1", 443, "both"}, {false, wan, "192.0.2.1", 443, "both"},
		{true, zoneHost, "10.0.0.9", 22, "own"}, {true, 0, "10.0.0.9", 22, "rest"}, {false, wan, "10.0.0.9", 22, "out"},
		{true, zoneHost, "10.0.0.9", 80, "mixed"}, {true, 0, "10.0.0.9", 80, "rest"}, {false, wan, "10.0.0.9", 80, "mixed"}, {false, lan, "10.0.0.9", 80, "out"},
	} {
		if got, _ := c.ask(tt.destinations, lan, tt.to, 6, "10.1.1.1", tt.dst, tt.port); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// No nat rule cuts the operator off, or the gateway from its DHCP server.
func TestNATExemptsManagement(t *testing.T) {
	const text = head + `zones: {lan: {ports: [a]}, wan: {ports: [b]}}
nat:
  - {name: everything, from: any, to: any, dnat: {to: 10.0.0.1}}
`
	for _, override := range []bool{false, true} {
		c, err := compileText(t, text, CompileOptions{Now: day, Management: Management{
			From: []Ref{{Name: "lan"}}, Services: []Ref{{Name: "tcp/22"}}, Override: override,
		}})
		if err != nil {
			t.Fatal(err)
		}
		const lan, wan = 2, 3
		managed := ""
		if override {
			managed = "everything"
		}
		for _, tt := range []struct {
			name     string
			from, to uint8
			proto    uint8
			port     uint16
			want     string
		}{
			{"management", lan, zoneHost, 6, 22, managed}, {"from elsewhere", wan, zoneHost, 6, 22, "everything"},
			{"not the gateway", lan, 0, 6, 22, "everything"}, {"another service", lan, zoneHost, 6, 80, "everything"},
			{"not from a DHCP server", wan, zoneHost, 17, 68, "everything"},
		} {
			if got, _ := c.ask(true, tt.from, tt.to, tt.proto, "10.1.1.1", "10.1.1.254", tt.port); got != tt.want {
				t.Errorf("override %v, %s: %q, want %q", override, tt.name, got, tt.want)
			}
		}
		k := Key(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.7"), 17, 67, 68)
		if k.From, k.To = wan, zoneHost; c.NAT.Destinations.Classify(&k, nil)&(maxRules-1) != 0 {
			t.Error("what a DHCP server sends to the gateway is translated")
		}
		if k.To = 0; c.NAT.Destinations.Classify(&k, nil) == 0 {
			t.Error("what a DHCP server sends to others is not translated")
		}
	}
}

// Each part of a rule has its limit, and so counts each family apart.
func TestNATSourceLimits(t *testing.T) {
	c := compileNAT(t, head+`zones: {lan: {ports: [a]}, wan: {ports: [b]}}
nat:
  - {name: plain, from: lan, to: {zone: wan, addresses: [192.0.2.0/24]}, masquerade: {}}
  - {name: branch, from: lan, to: wan, masquerade: {source_limit: 500}}
  - {name: pool, from: wan, to: lan, snat: {addresses: 192.0.2.1, source_limit: 1000000}}
`)
	limits := map[string][]uint32{}
	for id, r := range c.NAT.Rules {
		if info := c.NATRules[id]; id != 0 {
			limits[info.Name] = append(limits[info.Name], r.SourceLimit)
			if info.SourceLimit != int(r.SourceLimit) {
				t.Errorf("rule %q tells of %d flows a source, and has %d", info.Name, info.SourceLimit, r.SourceLimit)
			}
		}
	}
	if want := map[string][]uint32{"plain": {0}, "branch": {500, 500}, "pool": {1_000_000}}; !reflect.DeepEqual(limits, want) {
		t.Errorf("limits are %v, want %v", limits, want)
	}
}

func TestNATWarnings(t *testing.T) {
	const zones = head + `zones: {lan: {ports: [a], addresses: [10.0.0.0/8]}, wan: {ports: [b], untrusted: true}}
sets: {none: {type: prefix, entries: []}, six: {type: prefix, entries: ["2001:db8::/32"]}}
nat:
  - {name: first, from: lan, to: wan, masquerade: {}}
`
	for _, tt := range []struct{ name, rule, msg, hint string }{
		{"covered", "{name: x, from: {zone: lan, addresses: [10.1.0.0/16]}, to: wan, snat: {addresses: 192.0.2.1}}",
			`nat rule "x" can never match`, `covered by nat rule "first" in p.yaml:6`},
		{"half covered", "{name: x, from: lan, to: wan, prefix: {inside: 10.1.0.0/16, outside: 198.18.0.0/16}}", "", ""},
		{"another list", "{name: x, from: lan, to: 192.0.2.1, service: tcp/80, dnat: {to: 10.0.0.1}}", "", ""},
		{"allowed by nothing", "{name: x, from: wan, to: 192.0.2.9, service: tcp/80, dnat: {to: 10.0.0.1, port: 8080}}",
			`no rule allows what nat rule "x" translates`, `zone "lan", for the addresses and ports that are asked for`},
		{"by its inside port", "{name: x, from: wan, to: 192.0.2.1, service: tcp/8443, dnat: {to: 10.0.0.1, port: 443}}", `no rule allows what nat rule "x"`, "as the nat rule names them"},
		{"by a server that drains", "{name: x, from: wan, to: 192.0.2.9, dnat: {servers: [{address: 10.0.0.1}, {address: 172.16.0.1, drain: true}]}}", `no rule allows what nat rule "x"`, `zone "lan"`},
		{"empty set", "{name: x, from: {set: none}, to: any, masquerade: {}}", `nat rule "x" can never match`, "`from` asks"},
		{"families", "{name: x, from: lan, to: {set: six}, snat: {addresses: 192.0.2.1}}", `nat rule "x" can never match`, "no address family in common"},
		{"service", "{name: x, from: lan, to: any, service: icmpv6, snat: {addresses: 192.0.2.1}}", `nat rule "x" can never match`, "no address family in common"},
		{"drained", "{name: x, from: wan, to: 192.0.2.1, dnat: {servers: [{address: 10.0.0.1, drain: true}]}}", `every server of nat rule "x" drains`, "not translated"},
		{"a useless limit", "{name: x, from: wan, to: lan, masquerade: {ports: 2000-2999, source_limit: 1000}}", `source_limit 1000 of nat rule "x" keeps nobody from taking all 1000 ports`, "a fraction"},
		{"a limit", "{name: x, from: wan, to: lan, masquerade: {ports: 2000-2999, source_limit: 999}}", "", ""},
		{"nowhere", "{name: x, from: wan, to: 192.0.2.1, dnat: {to: 172.16.0.1}}", "server 172.16.0.1 is in the addresses of no zone", "spoofed"},
		{"a host's", "{name: x, from: wan, to: lan, snat: {addresses: 10.0.0.9}}", `nat rule "x" writes 10.0.0.9, which is in the addresses of zone "lan"`, "routed to the gateway"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := compileNAT(t, zones+"  - "+tt.rule+`
rules:
  - {name: web, from: any, to: {zone: lan, addresses: [192.0.2.1]}, service: [tcp/80, tcp/443], action: allow}
  - {name: seen, from: any, to: {zone: lan, addresses: [192.0.2.9]}, action: allow, mode: audit}
  - {name: shut, from: any, to: {zone: lan, addresses: [192.0.2.9]}, action: deny}
`)
			var all []string
			for _, w := range c.Warnings {
				if strings.Contains(w.Msg, "set ") {
					continue // not used by the other rows
				}
				all = append(all, w.Error())
				if tt.msg != "" && w.Line == 7 && strings.Contains(w.Msg, tt.msg) && strings.Contains(w.Hint, tt.hint) {
					return
				}
			}
			if tt.msg != "" || len(all) > 0 {
				t.Errorf("warnings: %q", all)
			}
		})
	}
}

// A rule keeps its ids while flows bear them, whatever becomes of its policy and its process.
func TestNATIdentities(t *testing.T) {
	text := func(rules ...string) string {
		return "zones: {lan: {ports: [a]}, wan: {ports: [b]}}\nnat:\n" + strings.Join(rules, "")
	}
	rule := func(name, what string) string {
		return fmt.Sprintf("  - {name: %s, from: {zone: lan, addresses: [10.0.0.0/8]}, to: wan, %s}\n", name, what)
	}
	a, b := rule("a", "masquerade: {}"), rule("b", "snat: {addresses: 192.0.2.1}")
	one := after(t, nil, day, text(a, b))
	if want := [][]uint32{{1}, {2}}; !reflect.DeepEqual(one.NATOrder, want) {
		t.Fatalf("the first policy has ids %v", one.NATOrder)
	}
	saved, err := json.Marshal(one.Identities)
	if err != nil {
		t.Fatal(err)
	}
	var read Identities
	if err := json.Unmarshal(saved, &read); err != nil {
		t.Fatal(err)
	}
	static := rule("static", "prefix: {inside: 10.1.0.0/16, outside: 198.18.0.0/16}")
	static = strings.Replace(static, "{zone: lan, addresses: [10.0.0.0/8]}", "lan", 1)
	for _, previous := range []*Identities{one.Identities, &read} {
		two := after(t, previous, day, text(static, rule("b", "masquerade: {}")))
		if want := [][]uint32{{3, 4}, {2}}; !reflect.DeepEqual(two.NATOrder, want) {
			t.Errorf("the second has ids %v, want %v", two.NATOrder, want)
		}
		if r := two.NATRules[1]; r.Name != "a" || !r.Gone || r.Line != 5 || r.Kind != NATMasquerade {
			t.Errorf("the rule that is gone is %+v", r)
		}
		if two.NAT.Rules[1] != (bpf.XDPNatRule{}) || bpf.XDPNatKind(two.NAT.Rules[2].Kind) != bpf.XDPNatKindNAT_MASQUERADE {
			t.Errorf("rules are %+v", two.NAT.Rules)
		}
		later := day.Add(IdentityRest)
		if any, nat := two.Identities.AnyRested(later.Add(-1)); any || nat {
			t.Error("something has rested too early")
		}
		if any, nat := two.Identities.AnyRested(later); !any || !nat {
			t.Error("nothing has rested")
		}
		if got := after(t, two.Identities.Release(later, &Borne{NAT: map[uint32]bool{1: true}}), later, text(rule("c", "masquerade: {}"))).NATOrder; !reflect.DeepEqual(got, [][]uint32{{5}}) {
			t.Errorf("a new rule has %v while flows bear the old one", got)
		}
		if got := after(t, two.Identities.Release(later, new(Borne)), later, text(rule("c", "masquerade: {}"))).NATOrder; !reflect.DeepEqual(got, [][]uint32{{1}}) {
			t.Errorf("a new rule has %v once no flow bears the old one", got)
		}
		if c := after(t, two.Identities, day, "zones: {lan: {ports: [a]}}\n"); c.NAT != nil || len(c.NATRules) != 5 || c.NATRules[2].Name != "b" {
			t.Errorf("without nat rules: %+v, %+v", c.NAT, c.NATRules)
		}
	}
}

// Sets that change while the gateway runs change nat rules too.
func TestNATWithSets(t *testing.T) {
	p, errs := parseText(t, head+`zones: {lan: {ports: [a]}, wan: {ports: [b]}}
sets: {where: {type: prefix, entries: [192.0.2.1]}, ports: {type: port, entries: [80]}}
nat: [{name: r, from: wan, to: {set: where}, service: {proto: tcp, port: {set: ports}}, dnat: {to: 10.0.0.1}}]
`)
	if errs != nil {
		t.Fatal(errs)
	}
	address, _, _ := ParseEntry(SetPrefix, "192.0.2.2")
	port, _, _ := ParseEntry(SetPort, "81")
	c, err := Compile(p.WithSets(map[string]SetChange{"where": {Added: []Entry{address}}, "ports": {Added: []Entry{port}, Removed: map[Entry]bool{{Ports: flowtable.U16Range{First: 80, Last: 80}}: true}}}), CompileOptions{Now: day})
	if err != nil {
		t.Fatal(err)
	}
	for port, want := range map[uint16]string{80: "", 81: "r"} {
		if got, _ := c.ask(true, 3, 0, 6, "198.51.100.1", "192.0.2.2", port); got != want {
			t.Errorf("port %d: %q, want %q", port, got, want)
		}
	}
}

func TestNATTooMuch(t *testing.T) {
	text := head + "zones: {lan: {ports: [a]}, wan: {ports: [b]}}\nnat:\n"
	for i := range 5 {
		text += fmt.Sprintf("  - {name: r%d, from: 10.%d.0.0/16, to: wan, snat: {addresses: 198.18.%d.0/22}}\n", i, i, 4*i)
	}
	_, err := compileText(t, text, CompileOptions{Now: day})
	if err == nil || !strings.Contains(err.Error(), "p.yaml:9:12: nat rules have more than 4096 addresses together") {
		t.Errorf("five pools: %v", err)
	}
}
