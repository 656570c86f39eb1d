package firewall

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/flowtable"
)

var seed = flag.Uint64("seed", 0, "seed of random policies; 0 takes the time")

// randomPolicy writes a policy over few names, addresses and ports, so that rules overlap.
func randomPolicy(r *rand.Rand) string {
	var b strings.Builder
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	addr := func() string {
		return pick("10.0.0.0/24", "10.0.0.0/8", "10.0.0.7", "10.0.0.100-10.0.1.9", "192.0.2.0/25", "0.0.0.0/0",
			"2001:db8::/32", "2001:db8::7", "2001:db8::1-2001:db8:0:1::", "fe80::/10", "::/0", "10.0.0.8/29")
	}
	list := func(n int, f func() string) string {
		parts := make([]string, 1+r.IntN(n))
		for i := range parts {
			parts[i] = f()
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	mac := func() string { return pick("02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03") }
	b.WriteString("apiVersion: softdpu/v1\nkind: Policy\nzones:\n")
	for i, z := range []string{"a", "b", "c"} {
		fmt.Fprintf(&b, "  %s: {ports: [p%d]", z, i)
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, ", addresses: %s", list(3, addr))
		}
		b.WriteString("}\n")
	}
	b.WriteString("sets:\n")
	for _, s := range []string{"s1", "s2"} {
		fmt.Fprintf(&b, "  %s: {type: prefix, entries: %s}\n", s, list(4, addr))
	}
	fmt.Fprintf(&b, "  empty: {type: prefix, entries: []}\n  m: {type: mac, entries: %s}\n", list(2, mac))
	fmt.Fprintf(&b, "  ports: {type: port, entries: [80, 81, 1000-2000]}\n")
	b.WriteString("workloads:\n")
	for i := range 4 {
		fmt.Fprintf(&b, "  w%d: {labels: {l: %s, k: x}", i, pick("x", "y"))
		fields := r.IntN(3)
		if fields != 1 {
			fmt.Fprintf(&b, ", zone: %s", pick("a", "b", "[a, c]"))
		}
		if fields != 0 {
			fmt.Fprintf(&b, ", addresses: %s", list(3, addr))
		}
		b.WriteString("}\n")
	}
	fmt.Fprintf(&b, "  wm: {macs: %s, labels: {mac: x}}\n", list(2, mac))
	b.WriteString("services:\n  web: [tcp/80, tcp/81, tcp/443]\n  ntp: {proto: udp, port: 123, source_port: [123, 1024-65535]}\n")
	end := func(source bool) string {
		switch r.IntN(8) {
		case 0:
			return "any"
		case 1:
			return pick("a", "b", "c", "host", "[a, b]", "w0", "[w0, w1]", "w2")
		case 2:
			return list(3, addr)
		}
		var fields []string
		some := func(of int, field func() string) {
			if r.IntN(of) == 0 {
				fields = append(fields, field())
			}
		}
		some(2, func() string { return "zone: " + pick("a", "b", "[a, host]", "[b, c]") })
		some(2, func() string { return "addresses: " + list(3, addr) })
		some(4, func() string {
			if source {
				return "set: " + pick("s1", "[s1, s2]", "empty", "m", "[s2, m]")
			}
			return "set: " + pick("s1", "[s1, s2]", "empty")
		})
		some(3, func() string {
			if source {
				return "workload: " + pick("w0", "[w1, w2]", "wm", "[wm, w3]")
			}
			return "workload: " + pick("w0", "[w1, w2]")
		})
		some(5, func() string { return "labels: {k: x}" })
		if len(fields) == 0 {
			return "any"
		}
		return "{" + strings.Join(fields, ", ") + "}"
	}
	service := func() string {
		return pick("tcp/80", "tcp/443", "udp/53", "tcp", "udp/1000-2000", "icmp", "icmp/echo-request", "icmpv6/128", "esp", "gre",
			"proto/47", "proto/1", "web", "ntp", "{proto: tcp, port: {set: ports}}", "{proto: tcp, port: [79, 80-90], source_port: 1024-65535}", "sctp", "ah", "icmp/3/4")
	}
	b.WriteString("nat:\n")
	for i := range r.IntN(8) {
		from, to := end(true), end(false)
		for strings.Contains(from, "host") {
			from = end(true)
		}
		what, services := pick("keep: true", "masquerade: {}", "masquerade: {}", "snat: {addresses: 198.18.0.0/29}", "snat: {addresses: 2001:db8:1::/126, ports: 1-9}",
			"dnat: {to: 10.0.0.7}", "dnat: {servers: [{address: 2001:db8::7}, {address: 2001:db8::8, drain: true}]}",
			"prefix: {inside: 10.0.0.0/25, outside: 192.0.2.0/25}", "prefix: {inside: 2001:db8::/64, outside: 2001:db8:0:1::/64}"), r.IntN(2) == 0
		if strings.HasPrefix(what, "dnat") {
			to = pick("any", "host", list(3, addr), "{set: s1}", "{set: empty}", "{addresses: "+list(2, addr)+", set: [s1, s2]}", "{zone: host, addresses: "+addr()+"}")
		}
		if strings.HasPrefix(what, "prefix") {
			from, services = pick("any", "a", "[a, b]", "{zone: c}"), false
		}
		for !strings.HasPrefix(what, "dnat") && !strings.HasPrefix(what, "keep") && strings.Contains(to, "host") {
			to = end(false)
		}
		fmt.Fprintf(&b, "  - {name: n%d, from: %s, to: %s, %s", i, from, to, what)
		if services {
			fmt.Fprintf(&b, ", service: %s", list(3, service))
		}
		b.WriteString("}\n")
	}
	b.WriteString("rules:\n")
	for i := range 1 + r.IntN(12) {
		fmt.Fprintf(&b, "  - {name: r%d, from: %s, to: %s, action: %s", i, end(true), end(false), pick("allow", "deny", "reject", "allow"))
		if r.IntN(3) > 0 {
			fmt.Fprintf(&b, ", service: %s", list(3, service))
		}
		if r.IntN(6) == 0 {
			b.WriteString(", mode: audit")
		}
		if r.IntN(6) == 0 {
			fmt.Fprintf(&b, ", expires: %s", pick("2026-05-31", "2026-06-01", "2026-06-02"))
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func randomPacket(r *rand.Rand) oraclePacket {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	port := func() uint16 {
		return []uint16{0, 53, 67, 68, 79, 80, 81, 82, 90, 123, 443, 546, 547, 999, 1000, 1024, 2000, 2001, 65535}[r.IntN(19)]
	}
	pk := oraclePacket{from: pick("a", "b", "c", "host"), to: pick("a", "b", "c", "host")}
	addr := func() netip.Addr {
		return netip.MustParseAddr(pick("10.0.0.0", "10.0.0.7", "10.0.0.8", "10.0.0.99", "10.0.0.100", "10.0.1.9", "10.0.1.10", "10.255.255.255",
			"192.0.2.127", "192.0.2.128", "0.0.0.0", "255.255.255.255", "11.0.0.0"))
	}
	if r.IntN(2) == 0 {
		addr = func() netip.Addr {
			return netip.MustParseAddr(pick("2001:db8::", "2001:db8::1", "2001:db8::7", "2001:db8:0:1::", "2001:db8:0:1::1", "2001:db9::", "fe80::1", "::", "::7", "ff02::1"))
		}
	}
	pk.src, pk.dst = addr(), addr()
	pk.mac[0], pk.mac[5] = 2, byte(r.IntN(5))
	pk.proto = []uint8{1, 6, 6, 6, 17, 17, 47, 50, 51, 58, 132, 99}[r.IntN(12)]
	if pk.proto == 1 && pk.src.Is6() {
		pk.proto = 58
	} else if pk.proto == 58 && pk.src.Is4() {
		pk.proto = 1
	}
	switch pk.proto {
	case 6, 17:
		pk.sport, pk.dport = port(), port()
	case 1:
		pk.dport = []uint16{8 << 8, 13 << 8, 3<<8 | 4}[r.IntN(3)]
	case 58:
		pk.dport = 128 << 8
	}
	return pk
}

func (c *Compiled) judge(cl Classifier, pk oraclePacket) oracleVerdict {
	k := Key(pk.src, pk.dst, pk.proto, pk.sport, pk.dport)
	k.From, k.To = uint8(slices.Index(c.Zones, pk.from)), uint8(slices.Index(c.Zones, pk.to))
	k.Context = c.MACs[pk.mac]
	var out oracleVerdict
	v := cl.Classify(&k, func(rule uint32) { out.audited = append(out.audited, c.Rules[rule].Name) })
	out.verdict, out.rule = verdictOf(v), c.Rules[v&0xffffff].Name
	return out
}

// The compiled entries, evaluated in order, decide as the policy's own words do.
func TestCompiledAgreesWithOracle(t *testing.T) {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	r := rand.New(rand.NewPCG(s, 1))
	now := time.Date(2026, 6, 2, 0, 0, 0, 0, time.UTC)
	seen := make(map[TestVerdict]int)
	audited, expired := 0, 0
	for range 400 {
		text := randomPolicy(r)
		p, errs := parseText(t, text)
		if errs != nil {
			t.Fatalf("random policy is wrong: %v\n%s", errs, text)
		}
		c, err := Compile(p, CompileOptions{Now: now})
		if err != nil {
			t.Fatalf("compile: %v\n%s", err, text)
		}
		acl, err := flowtable.CompileACL(c.Entries)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.Rules {
			if c.Rules[i].Expired {
				expired++
			}
		}
		for range 250 {
			pk := randomPacket(r)
			want, got := oracle(p, now, pk), c.judge(linear(c.Entries), pk)
			if !reflect.DeepEqual(want, got) {
				t.Fatalf("packet %+v\noracle   %+v\ncompiled %+v\n%s", pk, want, got, text)
			}
			if got := c.judge(acl, pk); !reflect.DeepEqual(want, got) {
				t.Fatalf("packet %+v\noracle   %+v\npipe     %+v\n%s", pk, want, got, text)
			}
			seen[got.verdict]++
			audited += len(got.audited)
		}
	}
	t.Logf("verdicts %v, audited %d, expired rules %d", seen, audited, expired)
	for _, v := range []TestVerdict{VerdictAllow, VerdictDeny, VerdictReject, VerdictDrop} {
		if seen[v] < 100 {
			t.Errorf("verdict %s came %d times only", v, seen[v])
		}
	}
	if audited < 100 || expired < 10 {
		t.Errorf("audit rules matched %d times, %d rules were expired", audited, expired)
	}
}

// No rule that a warning calls dead ever decides, whatever the packet.
func TestDeadRulesNeverDecide(t *testing.T) {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	r := rand.New(rand.NewPCG(s, 2))
	dead := 0
	for range 300 {
		text := randomPolicy(r)
		p, _ := parseText(t, text)
		c, err := Compile(p, CompileOptions{Now: time.Date(2026, 6, 2, 0, 0, 0, 0, time.UTC)})
		if err != nil {
			t.Fatal(err)
		}
		names := make(map[string]bool)
		for _, w := range c.Warnings {
			if strings.Contains(w.Msg, "can never match") {
				names[strings.Split(w.Msg, `"`)[1]] = true
				dead++
			}
		}
		for range 200 {
			if got := c.judge(linear(c.Entries), randomPacket(r)); names[got.rule] {
				t.Fatalf("rule %s decides and a warning says that it cannot:\n%s", got.rule, text)
			}
		}
	}
	if dead < 50 {
		t.Errorf("only %d dead rules", dead)
	}
}
