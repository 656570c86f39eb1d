package firewall

import (
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

var day = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

func compileText(t testing.TB, text string, opts CompileOptions) (*Compiled, error) {
	t.Helper()
	p, errs := parseText(t, text)
	if errs != nil {
		t.Fatal(errs)
	}
	if opts.Now.IsZero() {
		opts.Now = day
	}
	return Compile(p, opts)
}

const head = "apiVersion: softdpu/v1\nkind: Policy\n"

func TestExamplePolicy(t *testing.T) {
	p, err := Load("testdata/branch.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(p, CompileOptions{Now: day, Ports: []string{"lan0", "wan0"},
		Management: Management{From: []Ref{{Name: "lan"}}, Services: []Ref{{Name: "ssh"}}}})
	if err != nil {
		t.Fatal(err)
	}
	acl, err := flowtable.CompileACL(c.Entries)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range RunTests(c, acl, nil) {
		if !r.Pass || r.Rule != "pos-pays" {
			t.Errorf("test of the example: %v", r.Err)
		}
	}
	if want := []string{"", "host", "lan", "wan"}; !reflect.DeepEqual(c.Zones, want) {
		t.Errorf("zones %v, want %v", c.Zones, want)
	}
	if want := []PortZone{{"lan0", 0, 2}, {"wan0", 0, 3}}; !reflect.DeepEqual(c.Ports, want) {
		t.Errorf("ports %v, want %v", c.Ports, want)
	}
	if r := c.Rules[RuleFirst]; r.Name != "no-threats" || r.Line != 11 || !r.Log || r.Action != Deny || r.File != "testdata/branch.yaml" {
		t.Errorf("first rule %+v", r)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Msg, `service "web" is not used`) {
		t.Errorf("warnings: %v", c.Warnings)
	}
	if !c.NextExpiry.Equal(time.Date(2027, 7, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("next expiry %v", c.NextExpiry)
	}
	// management, spoofing of lan, DHCP (4), two rules
	if len(c.Entries) != 1+1+4+2 {
		t.Errorf("%d entries", len(c.Entries))
	}
	for _, row := range []struct {
		from, to uint8
		src, dst string
		dport    uint16
		want     string
	}{
		{2, 3, "10.20.1.7", "203.0.113.5", 443, `allow: rule "pos-pays", testdata/branch.yaml:12`},
		{2, 3, "10.20.1.7", "203.0.113.16", 443, "deny: no rule matched"},
		{2, 3, "10.20.2.7", "203.0.113.5", 443, "deny: no rule matched"},
		{2, 3, "10.20.1.7", "203.0.113.5", 80, "deny: no rule matched"},
		{2, 3, "10.21.1.7", "203.0.113.5", 443, "drop: spoofed: the source is outside the addresses of its zone"},
		{2, 3, "2001:db8::1", "2001:db8:bad::1", 443, "drop: spoofed: the source is outside the addresses of its zone"},
		{2, 3, "fe80::1", "2001:db8:bad::1", 443, `deny: rule "no-threats", testdata/branch.yaml:11`},
		{3, 2, "203.0.113.5", "203.0.113.200", 443, `deny: rule "no-threats", testdata/branch.yaml:11`},
		{2, 1, "10.20.1.7", "10.20.0.1", 22, `allow: built-in rule "builtin-management"`},
		{3, 1, "203.0.113.5", "10.20.0.1", 22, "deny: no rule matched"},
		{1, 3, "10.20.0.1", "203.0.113.5", 443, "deny: no rule matched"},
	} {
		k := Key(netip.MustParseAddr(row.src), netip.MustParseAddr(row.dst), 6, 50000, row.dport)
		k.From, k.To = row.from, row.to
		for name, cl := range map[string]Classifier{"linear": linear(c.Entries), "pipe": acl} {
			v := cl.Classify(&k, nil)
			if got := fmt.Sprintf("%s: %s", verdictOf(v), c.Explain(v)); got != row.want {
				t.Errorf("%s: %+v\n got %s\nwant %s", name, row, got, row.want)
			}
		}
	}
}

// Addresses of a zone that leave the operator out do not cut him off, unless the configuration says so.
func TestManagementFromForeignAddresses(t *testing.T) {
	const text = head + `zones: {lan: {ports: [a], addresses: [10.9.0.0/16, "fd09::/64"]}, wan: {ports: [b]}}
rules: [{name: all, from: any, to: any, action: allow}]
`
	const managed, foreign = `built-in rule "builtin-management"`, "spoofed: the source is outside the addresses of its zone"
	for _, row := range []struct {
		name     string
		override bool
		src, dst string
		to       uint8
		dport    uint16
		want     string
	}{
		{"ssh to the host", false, "10.0.0.1", "10.0.0.2", 1, 22, managed},
		{"ssh to the host over IPv6", false, "fd00::1", "fd00::2", 1, 22, managed},
		{"another service", false, "10.0.0.1", "10.0.0.2", 1, 443, foreign},
		{"ssh to another", false, "10.0.0.1", "192.0.2.1", 3, 22, foreign},
		{"ssh to the host, overridden", true, "10.0.0.1", "10.0.0.2", 1, 22, foreign},
		{"ssh to the host from inside, overridden", true, "10.9.0.1", "10.0.0.2", 1, 22, `rule "all", p.yaml:4`},
	} {
		c, err := compileText(t, text, CompileOptions{Management: Management{
			From: []Ref{{Name: "lan"}}, Services: []Ref{{Name: "tcp/22"}}, Override: row.override}})
		if err != nil {
			t.Fatal(err)
		}
		acl, err := flowtable.CompileACL(c.Entries)
		if err != nil {
			t.Fatal(err)
		}
		k := Key(netip.MustParseAddr(row.src), netip.MustParseAddr(row.dst), 6, 50000, row.dport)
		k.From, k.To = 2, row.to
		for name, cl := range map[string]Classifier{"linear": linear(c.Entries), "pipe": acl} {
			if got := c.Explain(cl.Classify(&k, nil)); got != row.want {
				t.Errorf("%s, %s: %s, want %s", row.name, name, got, row.want)
			}
		}
	}
}

func TestManagement(t *testing.T) {
	const text = head + `zones: {lan: {ports: [a]}, wan: {ports: [b]}}
services: {ssh: tcp/22}
rules: [{name: nothing, from: any, to: any, action: deny}]
`
	ssh := Key(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 6, 50000, 22)
	ssh.From, ssh.To = 2, 1
	manage := Management{From: []Ref{{Name: "lan"}}, Services: []Ref{{Name: "ssh"}, {Name: "icmp/echo-request"}}}
	for _, row := range []struct {
		name     string
		m        Management
		override bool
		want     string
	}{
		{"a policy cannot cut it off", manage, false, `built-in rule "builtin-management"`},
		{"unless overridden", manage, true, `rule "nothing", p.yaml:5`},
		{"none", Management{}, false, `rule "nothing", p.yaml:5`},
	} {
		row.m.Override = row.override
		c, err := compileText(t, text, CompileOptions{Management: row.m})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Explain(linear(c.Entries).Classify(&ssh, nil)); got != row.want {
			t.Errorf("%s: %s", row.name, got)
		}
	}
	at := Pos{File: "softdpu.yaml", Line: 5, Column: 20}
	c, err := compileText(t, strings.Replace(text, "{ports: [a]}", "{ports: [a], untrusted: true}", 1),
		CompileOptions{Management: Management{From: []Ref{{"lan", at}}, Services: []Ref{{"ssh", at}}}})
	if err != nil || !strings.Contains(c.Warnings.Error(), `softdpu.yaml:5:20: management from the untrusted zone "lan"`) {
		t.Errorf("management from an untrusted zone: %v, %v", err, c)
	}
	_, err = compileText(t, text, CompileOptions{Management: Management{
		From: []Ref{{"lam", at}, {"host", at}}, Services: []Ref{{"shs", at}, {"tcp/x", at}}}})
	for _, want := range []string{`softdpu.yaml:5:20: unknown zone "lam"`, `did you mean "lan"?`, `unknown zone "host"`,
		`unknown service "shs"`, `did you mean "ssh"?`, `"x" is not a port`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestFewEntries(t *testing.T) {
	const zones = head + `zones: {a: {ports: [a]}, b: {ports: [b]}}
sets: {none: {type: prefix, entries: []}, noport: {type: port, entries: []}, nine: {type: prefix, entries: [10.9.0.0/16, 2001:db8::/32]}}
workloads:
  w1: {zone: a, addresses: 10.0.0.0/25, labels: {t: x}}
  w2: {zone: a, addresses: 10.0.0.128/25, labels: {t: x}}
  w3: {zone: b, addresses: 10.0.0.0/24, labels: {t: x}}
  w4: {zone: b, addresses: 10.0.9.0/24}
rules:
`
	for _, row := range []struct {
		name, rule string
		want       int
	}{
		{"any", "from: any, to: any", 1},
		{"adjacent ports are one range", "from: any, to: any, service: [tcp/80, tcp/81, tcp/82-90]", 1},
		{"ports apart are two", "from: any, to: any, service: [tcp/80, tcp/443]", 2},
		{"a wider service holds the narrower", "from: any, to: any, service: [tcp/80, tcp, proto/6]", 1},
		{"tcp and udp are two", "from: any, to: any, service: [tcp/80, udp/80]", 2},
		{"three workloads that make one box", "from: {labels: {t: x}}, to: any", 1},
		{"two boxes", "from: [w1, w4], to: any", 2},
		{"an empty set matches nothing", "from: {set: none}, to: any", 0},
		{"an empty set of ports matches nothing", "from: any, to: any, service: {proto: tcp, port: {set: noport}}", 0},
		{"zones apart", "from: {zone: b, workload: w1}, to: any", 0},
		{"addresses apart", "from: {addresses: 10.0.9.0/24, workload: w1}, to: any", 0},
		{"families apart", "from: 10.0.0.0/8, to: '2001:db8::/32'", 0},
		{"family of the service", "from: 10.0.0.0/8, to: any, service: icmpv6", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := compileText(t, zones+"  - {name: r, action: allow, "+row.rule+"}\n", CompileOptions{})
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, e := range c.Entries {
				if e.Verdict&0xffffff == RuleFirst {
					n++
				}
			}
			if n != row.want {
				t.Errorf("%d entries, want %d: %+v", n, row.want, c.Entries)
			}
			dead := strings.Contains(c.Warnings.Error(), `rule "r" can never match`)
			if dead != (row.want == 0) {
				t.Errorf("warnings: %v", c.Warnings)
			}
		})
	}
	c, err := compileText(t, zones+"  - {name: r, action: allow, from: {set: nine}, to: any, service: icmp}\n", CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if last := c.Entries[len(c.Entries)-1]; len(last.Src) != 1 || last.Family != 4 || !last.Src[0].First.Is4() {
		t.Errorf("icmp from a set of both families: %+v", last)
	}
}

func TestVerdictFlags(t *testing.T) {
	c, err := compileText(t, head+`zones: {a: {ports: [a]}}
rules:
  - {name: r, from: a, to: any, service: tcp, action: allow, log: true, midstream: true}
  - {name: s, from: a, to: any, action: reject, mode: audit}
`, CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := c.Entries[len(c.Entries)-2:]
	if want := flowtable.Verdict(RuleFirst, uint32(bpf.XDPActionACTION_ALLOW), 1<<28|1<<29); e[0].Verdict != want || e[0].Audit {
		t.Errorf("verdict %#x, want %#x", e[0].Verdict, want)
	}
	if want := flowtable.Verdict(RuleFirst+1, uint32(bpf.XDPActionACTION_REJECT), 0); e[1].Verdict != want || !e[1].Audit {
		t.Errorf("verdict %#x, want %#x", e[1].Verdict, want)
	}
	if e[0].From != (flowtable.Zones{1 << 2}) || e[0].To != (flowtable.Zones{}) {
		t.Errorf("zones %v, %v", e[0].From, e[0].To)
	}
}

func TestExpiry(t *testing.T) {
	const text = head + "zones: {a: {ports: [a]}}\nrules: [{name: r, from: any, to: any, action: allow, expires: 2026-06-30}]\n"
	k := Key(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 6, 1, 2)
	for now, want := range map[string]string{
		"2026-06-30T23:59:59Z":      "rule \"r\", p.yaml:4",
		"2026-07-01T00:00:00Z":      "no rule matched",
		"2026-07-01T01:00:00+02:00": "rule \"r\", p.yaml:4",
	} {
		at, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		c, err := compileText(t, text, CompileOptions{Now: at})
		if err != nil {
			t.Fatal(err)
		}
		expired := want == "no rule matched"
		if got := c.Explain(linear(c.Entries).Classify(&k, nil)); got != want || c.Rules[RuleFirst].Expired != expired {
			t.Errorf("at %s: %s, want %s", now, got, want)
		}
		if strings.Contains(c.Warnings.Error(), "has expired") != expired || c.NextExpiry.IsZero() != expired {
			t.Errorf("at %s: warnings %v, next expiry %v", now, c.Warnings, c.NextExpiry)
		}
	}
}

func TestWarnings(t *testing.T) {
	c, err := compileText(t, head+`zones:
  a: {ports: [a], addresses: 10.0.0.0/8}
  b: {}
sets: {s: {type: prefix, entries: []}}
workloads: {w: {zone: a}}
services: {x: tcp/1}
rules:
  - {name: wide, from: a, to: any, action: allow, service: tcp}
  - {name: narrow, from: {zone: a, addresses: 10.1.0.0/16}, to: any, action: deny, service: tcp/80}
  - {name: beyond, from: {zone: a, addresses: 11.0.0.0/8}, to: any, action: allow}
  - {name: audit, from: any, to: any, action: deny, mode: audit}
  - {name: last, from: any, to: any, action: deny}
  - {name: never, from: b, to: any, action: allow}
  - {name: echo, from: any, to: any, action: allow, service: icmp/echo-reply, mode: audit}
  - {name: dhcp, from: host, to: any, action: allow, service: {proto: udp, port: 67, source_port: 68}}
`, CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`p.yaml:5:3: zone "b" has no ports`,
		`p.yaml:6:8: set "s" is not used`,
		`p.yaml:7:13: workload "w" is not used`,
		`p.yaml:8:12: service "x" is not used`,
		`p.yaml:11:12: rule "narrow" can never match (covered by rule "wide" in p.yaml:10)`,
		`p.yaml:12:12: rule "beyond" can never match (covered by the addresses of zone "a")`,
		`p.yaml:15:12: rule "never" can never match (covered by rule "last" in p.yaml:14)`,
		`p.yaml:16:12: rule "echo" can never match`,
		`p.yaml:16:62: no rule is asked about icmp/echo-reply`,
		`p.yaml:17:12: rule "dhcp" can never match (covered by rule "last" in p.yaml:14)`,
	}
	var got []string
	for _, w := range c.Warnings {
		got = append(got, w.Error())
	}
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("warning %d:\n got %s\nwant %s", i, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
}

func TestPorts(t *testing.T) {
	const text = head + `zones: {lan: {ports: [lan0]}, dmz: {ports: [lan0], vlans: [20, 10]}, wan: {ports: [wan0]}}
rules: [{name: r, from: any, to: any, action: allow}]
`
	_, err := compileText(t, text, CompileOptions{Ports: []string{"lan0", "wan1"}})
	if err == nil || !strings.Contains(err.Error(), `p.yaml:3:84: unknown port "wan0"`) || !strings.Contains(err.Error(), `did you mean "lan0"?`) {
		t.Errorf("port that the gateway does not have: %v", err)
	}
	c, err := compileText(t, text, CompileOptions{Ports: []string{"lan0", "wan0"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []PortZone{{"lan0", 0, 3}, {"lan0", 10, 2}, {"lan0", 20, 2}, {"wan0", 0, 4}}; !reflect.DeepEqual(c.Ports, want) {
		t.Errorf("ports %v, want %v", c.Ports, want)
	}
	if z, ok := c.ZoneOf("lan0", 20); !ok || z != 2 {
		t.Errorf("zone of VLAN 20: %d, %v", z, ok)
	}
	if _, ok := c.ZoneOf("lan0", 30); ok {
		t.Error("VLAN 30 has a zone")
	}

	// Without a gateway, as in an offline simulation, zones take the ports of their names.
	c, err = compileText(t, strings.ReplaceAll(text, "dmz: {ports: [lan0], vlans: [20, 10]}, ", "dmz: {ports: [dmz0]}, "),
		CompileOptions{Ports: []string{"lan", "wan"}, OwnNamePorts: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := []PortZone{{"lan", 0, 3}, {"wan", 0, 4}}; !reflect.DeepEqual(c.Ports, want) {
		t.Errorf("ports of their own names %v, want %v", c.Ports, want)
	}
	if !strings.Contains(c.Warnings.Error(), `zone "dmz" has no ports`) {
		t.Errorf("warnings: %v", c.Warnings)
	}
	_, err = compileText(t, head+"zones: {lan: {}, wan: {ports: [lan]}}\n", CompileOptions{Ports: []string{"lan", "wan"}, OwnNamePorts: true})
	if err == nil || !strings.Contains(err.Error(), `port "lan" belongs to zones "lan" and "wan"`) {
		t.Errorf("one port for two zones: %v", err)
	}
}

func TestLimits(t *testing.T) {
	var b strings.Builder
	b.WriteString(head + "zones:\n")
	for i := range 255 {
		fmt.Fprintf(&b, "  z%d: {ports: [p%d]}\n", i, i)
	}
	_, err := compileText(t, b.String(), CompileOptions{})
	if err == nil || !strings.Contains(err.Error(), "policy has 255 zones, more than 254") {
		t.Errorf("255 zones: %v", err)
	}
	text := strings.Replace(b.String(), "  z7: {ports: [p7]}\n", "", 1) + "rules: [{name: r, from: z254, to: any, action: allow}]\n"
	c, err := compileText(t, text, CompileOptions{})
	if err != nil {
		t.Fatalf("254 zones: %v", err)
	}
	if len(c.Zones) != 256 || !c.Entries[len(c.Entries)-1].From.Has(uint8(indexOf(c.Zones, "z254"))) {
		t.Errorf("%d zones", len(c.Zones))
	}
}

func indexOf(words []string, word string) int {
	for i, w := range words {
		if w == word {
			return i
		}
	}
	return -1
}

// A thousand rules are read and compiled in the time that an operator waits without noticing.
func TestThousandRules(t *testing.T) {
	var b strings.Builder
	b.WriteString(head + "zones: {a: {ports: [a]}, b: {ports: [b]}}\nrules:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "  - {name: r%d, from: {zone: a, addresses: [10.%d.%d.0/24]}, to: b, service: [tcp/%d, udp/%d], action: allow}\n", i, i/256, i%256, i+1, i+1)
	}
	start := time.Now()
	c, err := compileText(t, b.String(), CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if len(c.Rules) != int(RuleFirst)+1000 || len(c.Entries) != 2000+4 {
		t.Errorf("%d rules, %d entries", len(c.Rules), len(c.Entries))
	}
	t.Logf("1,000 rules in %v", time.Since(start))
}

func TestCompileIsDeterministic(t *testing.T) {
	text, err := os.ReadFile("testdata/branch.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sources := []Source{{Name: "testdata/branch.yaml", Text: text}}
	var first *Compiled
	for range 20 {
		p, err := Parse(sources, os.ReadFile)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Compile(p, CompileOptions{Now: day})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = c
		}
		if !reflect.DeepEqual(c, first) {
			t.Fatal("two compilations of one policy differ")
		}
	}
}
