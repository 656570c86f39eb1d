package firewall

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/flowtable"
)

// A policy that uses every part of translation and is right.
const natPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0], addresses: [10.20.0.0/16, fd20::/48]}
  dmz: {ports: [dmz0], addresses: [10.30.0.0/24, 10.40.0.0/24]}
  wan: {ports: [wan0], untrusted: true}
sets:
  partners: {type: prefix, entries: [192.0.2.0/24]}
workloads:
  pos: {zone: lan, addresses: [10.20.1.0/24]}
services:
  web: [tcp/80, tcp/443]
nat:
  - {name: not-to-vpn, from: lan, to: {zone: wan, addresses: [10.99.0.0/16]}, keep: true}
  - {name: not-from-partners, from: {zone: wan, set: partners}, to: {addresses: [203.0.113.6]}, keep: true}
  - {name: pay, from: pos, to: {zone: wan, set: partners}, service: web, snat: {addresses: 203.0.113.4}}
  - {name: branch, description: CHG-1, owner: net, from: lan, to: wan, masquerade: {ports: 20000-29999}}
  - {name: out, from: {zone: dmz, addresses: [10.30.0.0/24]}, to: wan, snat: {addresses: [203.0.113.8/30, 203.0.113.12/30], ports: 1024-65535, source_limit: 500}}
  - {name: www, from: wan, to: {addresses: [203.0.113.5]}, service: web, dnat: {to: 10.30.0.5, port: 8080}}
  - {name: own, from: wan, to: host, service: tcp/443, dnat: {to: 10.30.0.6, hairpin: false}}
  - {name: farm, from: any, to: {addresses: [203.0.113.6]}, service: tcp/443, dnat: {servers: [{address: 10.30.0.7, weight: 2}, {address: 10.30.0.8, port: 8443, drain: true}], spread: connection}}
  - {name: static, from: dmz, to: wan, prefix: {inside: 10.40.0.0/24, outside: 198.51.100.0/24}}
  - {name: nptv6, from: lan, to: wan, prefix: {inside: fd20::/48, outside: "2001:db8:20::/48"}}
`

func TestNATPolicy(t *testing.T) {
	p, errs := parseText(t, natPolicy)
	if errs != nil {
		t.Fatal(errs)
	}
	if len(p.NAT) != 10 {
		t.Fatalf("%d nat rules", len(p.NAT))
	}
	var texts []string
	for i := range p.NAT {
		texts = append(texts, p.NAT[i].Text())
	}
	want := []string{
		"keep", "keep", "snat to 203.0.113.4", "masquerade ports 20000-29999", "snat to 203.0.113.8/29, at most 500 flows a source", "dnat to 10.30.0.5:8080",
		"dnat to 10.30.0.6, no hairpin", "dnat to 10.30.0.7 weight 2, 10.30.0.8:8443 drain, spread connection",
		"prefix 10.40.0.0/24 to 198.51.100.0/24", "prefix fd20::/48 to 2001:db8:20::/48",
	}
	if !reflect.DeepEqual(texts, want) {
		t.Errorf("what rules do is\n%q, want\n%q", texts, want)
	}
	if r := p.NAT[3]; r.Name != "branch" || r.Description != "CHG-1" || r.Owner != "net" || r.Pos.Line != 17 || r.Ports != (flowtable.U16Range{First: 20000, Last: 29999}) {
		t.Errorf("branch is %+v", r)
	}
	if r := p.NAT[5]; r.Ports != defaultNATPorts || !r.Hairpin || r.ByConnection || r.Servers[0].Weight != 1 {
		t.Errorf("what www does not say is %+v", r)
	}
	if len(p.Warnings) > 0 {
		t.Errorf("warnings: %v", p.Warnings)
	}
}

// What a limit adds to the text of a rule, in lists and differences.
func TestNATLimitText(t *testing.T) {
	for what, want := range map[string]string{
		"masquerade: {source_limit: 5}":                               "masquerade at most 5 flows a source",
		"masquerade: {ports: 1024-2047, source_limit: 5}":             "masquerade ports 1024-2047, at most 5 flows a source",
		"snat: {addresses: 203.0.113.4, source_limit: 5}":             "snat to 203.0.113.4, at most 5 flows a source",
		"snat: {addresses: 203.0.113.4, ports: 1-9, source_limit: 5}": "snat to 203.0.113.4 ports 1-9, at most 5 flows a source",
	} {
		p, errs := parseText(t, head+"zones: {lan: {ports: [a]}, wan: {ports: [b]}}\nnat: [{name: one, from: lan, to: wan, "+what+"}]\n")
		if errs != nil || p.NAT[0].Text() != want {
			t.Errorf("%s is %q, want %q; %v", what, p.NAT[0].Text(), want, errs)
		}
	}
}

// Each row changes one place of the good policy and names the error that must come of it.
func TestNATErrors(t *testing.T) {
	rows := []struct {
		name      string
		old, new  string
		at        string // line:column, in the changed text
		msg, hint string // parts of
	}{
		{"a map", "nat:\n", "nat: {}\nx:\n", "13:6", "nat must be a list, not a map", "- name: NAME"},
		{"key", "masquerade: {ports", "masquerad: {ports", "17:72", `unknown key "masquerad" in a nat rule`, `did you mean "masquerade"?`},
		{"no name", "{name: www, from", "{from", "19:5", "nat rule without a name", "add name"},
		{"name twice", "name: www", "name: branch", "19:12", `nat rule "branch" exists already`, "p.yaml:17:12"},
		{"reserved name", "name: www", "name: none", "19:12", "reserved", ""},
		{"name", "name: www", "name: w/w", "19:12", `"w/w" cannot be the name of a nat rule`, "letters"},
		{"no from", "{name: www, from: wan, to", "{name: www, to", "19:12", `nat rule "www" does not say from`, "add from"},
		{"no action", ", masquerade: {ports: 20000-29999}", "", "17:12", `nat rule "branch" does not say what it does`, "keep, masquerade, snat, dnat, prefix"},
		{"two actions", "masquerade: {ports: 20000-29999}", "masquerade: {}, snat: {addresses: 203.0.113.4}", "17:88", "both masquerade and snat", "a rule for each"},
		{"action twice", "masquerade: {ports: 20000-29999}", "masquerade: {}, masquerade: {}", "17:88", `key "masquerade" is given twice`, ""},
		{"no value", "masquerade: {ports: 20000-29999}", "masquerade:", "17:72", "masquerade has no value", "masquerade: {}"},
		{"true", "masquerade: {ports: 20000-29999}", "masquerade: true", "17:84", "masquerade must be a map of keys", "masquerade: {}"},
		{"keep false", "10.99.0.0/16]}, keep: true", "10.99.0.0/16]}, keep: false", "14:85", "keep must be true", "take the rule out"},
		{"masquerade key", "masquerade: {ports", "masquerade: {port", "17:85", `unknown key "port" in masquerade`, `"ports"`},
		{"ports", "20000-29999", "29999-20000", "17:92", "not a range of source ports", "1024-65535"},
		{"no flow a source", "source_limit: 500", "source_limit: 0", "18:158", "source_limit must be a number between 1 and 1000000", ""},
		{"limit of a server", "to: 10.30.0.5, port", "to: 10.30.0.5, source_limit: 5, port", "19:96", `unknown key "source_limit" in dnat`, ""},
		{"port 0", "20000-29999", "0-29999", "17:92", "not a range of source ports", "between 1 and 65535"},
		{"no pool", "snat: {addresses: 203.0.113.4}", "snat: {ports: 1-2}", "16:80", "snat does not say its addresses", "snat: {addresses"},
		{"empty pool", "snat: {addresses: 203.0.113.4}", "snat: {addresses: []}", "16:92", "empty list of addresses", ""},
		{"pool apart", "203.0.113.12/30]", "203.0.113.16/30]", "18:90", "do not follow each other: 203.0.113.8/30 ends before 203.0.113.16/30", "a rule for each range"},
		{"pool of both", "203.0.113.12/30]", "2001:db8::/126]", "18:90", "are of both families: 203.0.113.8/30 and 2001:db8::/126", "a rule for each family"},
		{"large pool", "addresses: 203.0.113.4}", "addresses: 203.0.112.0/21}", "16:92", "more than 1024 addresses", "a few addresses are enough"},
		{"endless pool", "addresses: 203.0.113.4}", "addresses: \"2001:db8::/64\"}", "16:92", "more than 1024 addresses", ""},
		{"multicast pool", "addresses: 203.0.113.4}", "addresses: 224.0.0.1}", "16:92", "224.0.0.1 is a group's address", ""},
		{"loopback", "addresses: 203.0.113.4}", "addresses: 127.0.0.1}", "16:92", "loopback", ""},
		{"gateway's own", "{name: branch, description: CHG-1, owner: net, from: lan", "{name: branch, from: host", "17:26", "what the gateway itself sends is not translated", "zones whose traffic"},
		{"to the gateway", "from: lan, to: wan, masquerade", "from: lan, to: host, masquerade", "17:67", "for the gateway itself keeps its source", ""},
		{"dnat by zone", "to: {addresses: [203.0.113.5]}", "to: wan", "19:32", `not known before it is translated, and so not that it is zone "wan"`, "name its addresses"},
		{"dnat by workload", "to: {addresses: [203.0.113.5]}", "to: pos", "19:32", `that it is zone "lan"`, ""},
		{"dnat to nobody", "dnat: {to: 10.30.0.5, port: 8080}", "dnat: {port: 8080}", "19:80", "dnat does not say where to", "dnat: {to"},
		{"dnat to both", "dnat: {to: 10.30.0.5, port: 8080}", "dnat: {to: 10.30.0.5, servers: []}", "19:105", "both to and servers", ""},
		{"dnat to a prefix", "to: 10.30.0.5,", "to: 10.30.0.0/24,", "19:85", "is not an address", "one address"},
		{"dnat to a port", "to: 10.30.0.5,", "to: \"10.30.0.5:80\",", "19:85", "is not an address", "port: 8080"},
		{"dnat to itself", "to: 10.30.0.5,", "to: 0.0.0.0,", "19:85", "nobody's address", ""},
		{"dnat key", "hairpin: false", "hairpins: false", "20:78", `unknown key "hairpins" in dnat`, `"hairpin"`},
		{"port range", "port: 8080", "port: 8080-8090", "19:102", "port must be a number between 1 and 65535", ""},
		{"port without service", "service: web, dnat: {to", "dnat: {to", "19:66", "server 10.30.0.5 has a port, and nat rule", "add service: tcp/443"},
		{"port of icmp", "service: web, dnat", "service: [web, icmp], dnat", "19:75", "server 10.30.0.5 has a port, and icmp has none", "TCP and UDP alone"},
		{"no servers", "{to: 10.30.0.6, hairpin: false}", "{servers: []}", "20:72", "empty list of servers", ""},
		{"server as word", "{to: 10.30.0.6, hairpin: false}", "{servers: [10.30.0.6]}", "20:73", "a server must be a map of keys", "address, port, weight, drain"},
		{"server of nobody", "{address: 10.30.0.7, weight: 2}", "{weight: 2}", "21:96", "server without an address", "{address: ADDRESS}"},
		{"server twice", "10.30.0.8, port: 8443", "10.30.0.7", "21:139", "server 10.30.0.7 is given twice", "p.yaml:21:106"},
		{"servers of both", "address: 10.30.0.8", `address: "fd20::8"`, "21:139", "servers of both families", "a rule for each"},
		{"weight", "weight: 2", "weight: 0", "21:125", "weight must be a number between 1 and 100", ""},
		{"spread", "spread: connection", "spread: connections", "21:185", `unknown spread "connections"`, `"connection"`},
		{"port beside servers", "spread: connection", "port: 80", "21:183", "port beside servers", "of each server"},
		{"no inside", "{inside: 10.40.0.0/24, outside", "{outside", "22:48", "prefix does not say inside", "prefix: {inside"},
		{"lengths", "198.51.100.0/24", "198.51.100.0/25", "22:80", "not of the same length", "198.51.100.0/24"},
		{"families", "outside: 198.51.100.0/24", `outside: "2001:d00::/24"`, "22:80", "different families", ""},
		{"same", "198.51.100.0/24", "10.40.0.0/24", "22:80", "inside and outside are the same", "keep: true"},
		{"range", "198.51.100.0/24", "198.51.100.0-198.51.100.9", "22:80", "is not a prefix", "its own rule"},
		{"host bits", "198.51.100.0/24", "198.51.100.1/24", "22:80", "has bits set", "198.51.100.0/24"},
		{"everything", "{inside: 10.40.0.0/24, outside: 198.51.100.0/24}", "{inside: 0.0.0.0/1, outside: 128.0.0.0/1}", "22:57", "nobody's address", ""},
		{"long", `{inside: fd20::/48, outside: "2001:db8:20::/48"}`, `{inside: "fd20::/96", outside: "2001:db8:20::/96"}`, "23:56", "fd20::/96 is longer than /64", "RFC 6296"},
		{"prefix of hosts", "static, from: dmz", "static, from: 10.40.0.9", "22:26", "names more than zones", "inside says"},
		{"prefix of a service", "static, from: dmz, to: wan", "static, from: dmz, to: wan, service: web", "22:49", "service on a prefix rule", "keep, snat and dnat"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if strings.Count(natPolicy, row.old) != 1 {
				t.Fatalf("%q stands %d times in the good policy", row.old, strings.Count(natPolicy, row.old))
			}
			_, errs := parseText(t, strings.Replace(natPolicy, row.old, row.new, 1))
			for _, e := range errs {
				if at := fmt.Sprintf("%d:%d", e.Line, e.Column); at == row.at && strings.Contains(e.Msg, row.msg) && strings.Contains(e.Hint, row.hint) && e.File == "p.yaml" {
					return
				}
			}
			t.Errorf("no error at %s with %q and %q; got:\n%v", row.at, row.msg, row.hint, errs)
		})
	}
}

// One list, in the order of the files.
func TestNATInSeveralFiles(t *testing.T) {
	const zones = head + "zones: {lan: {ports: [a]}, wan: {ports: [b]}}\n"
	source := func(name, text string) Source { return Source{Name: name, Text: []byte(text)} }
	p, err := Parse([]Source{
		source("1.yaml", head+"nat: [{name: one, from: lan, to: wan, keep: true}]\n"),
		source("2.yaml", zones+"nat: [{name: two, from: lan, to: wan, masquerade: {}}]\n"),
	}, nil)
	if err != nil || len(p.NAT) != 2 || p.NAT[0].Name != "one" || p.NAT[1].Pos.File != "2.yaml" {
		t.Fatalf("policy of two files: %+v, %v", p, err)
	}
	_, err = Parse([]Source{source("1.yaml", zones+"nat: [{name: one, from: lan, to: wan, keep: true}]\n"),
		source("2.yaml", head+"nat: [{name: one, from: lan, to: wan, masquerade: {}}]\n")}, nil)
	if err == nil || !strings.Contains(err.Error(), "2.yaml:3:14") || !strings.Contains(err.Error(), "first in 1.yaml:4:14") {
		t.Errorf("the same name in two files: %v", err)
	}
}

// RFC 6296, section 3.1 and its example in 3.6: FD01:0203:0405::/48 is known as 2001:0DB8:0001::/48, and word
// 0001 becomes D550.
func TestPrefixAdjustment(t *testing.T) {
	inside, outside := netip.MustParsePrefix("fd01:203:405::/48"), netip.MustParsePrefix("2001:db8:1::/48")
	add := func(a, b uint16) uint16 {
		sum := uint32(a) + uint32(b)
		return uint16(sum + sum>>16)
	}
	out, in := prefixAdjustment(inside, outside), prefixAdjustment(outside, inside)
	if got := add(1, out); got != 0xd550 {
		t.Errorf("subnet 0001 becomes %04x outside, want d550", got)
	}
	if got := add(0xd550, in); got != 1 {
		t.Errorf("subnet d550 becomes %04x inside, want 0001", got)
	}
	// Whatever the prefixes, the sum over all words stays.
	for _, pair := range [][2]string{
		{"fd20::/48", "2001:db8:20::/48"}, {"2001:db8::/32", "2001:db9::/32"}, {"fd00:1:2:3::/64", "2001:db8:ffff:ffff::/64"}, {"fc00::/7", "2000::/7"},
	} {
		from, to := netip.MustParsePrefix(pair[0]), netip.MustParsePrefix(pair[1])
		sum := func(p netip.Prefix) (sum uint16) {
			for a, i := p.Addr().As16(), 0; i < 16; i += 2 {
				sum = add(sum, uint16(a[i])<<8|uint16(a[i+1]))
			}
			return sum
		}
		if got, want := add(sum(to), prefixAdjustment(from, to)), sum(from); got != want {
			t.Errorf("%s to %s: the sum becomes %04x, was %04x", from, to, got, want)
		}
	}
}
