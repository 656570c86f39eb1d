package firewall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A policy that uses every part of the language and is right.
const good = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0], addresses: [10.20.0.0/16, 2001:db8:20::/48]}
  dmz: {ports: [lan0], vlans: [20, 21], description: servers}
  wan: {ports: [wan0], untrusted: true}
sets:
  threats: {type: prefix, entries: [198.51.100.0/24, 203.0.113.7, 192.0.2.1-192.0.2.9]}
  high: {type: port, entries: [8000-8999, 9443]}
  printers: {type: mac, entries: [02:00:00:00:00:01]}
  hosts: {type: name, entries: [example.com]}
workloads:
  pos: {zone: lan, addresses: [10.20.1.0/24], labels: {pci: "yes", site: 7}}
  scanner: {macs: [02:00:00:00:00:02], labels: {pci: "no"}}
services:
  ssh: [tcp/22]
  web: [tcp/80, tcp/443, udp/443]
  ntp: {proto: udp, port: 123, source_port: [123, 1024-65535]}
rules:
  - {name: no-threats, from: any, to: {set: threats}, action: deny, log: true}
  - name: pos-pays
    from: {labels: {pci: "yes"}}
    to: {zone: wan, addresses: [203.0.113.0/28]}
    service: tcp/443
    action: allow
    expires: 2027-06-30
  - {name: scan, from: scanner, to: [lan, dmz], service: [ssh, icmp/echo-request], action: allow, mode: audit}
  - {name: old, from: {zone: lan, workload: [pos]}, to: 192.0.2.0/24, service: {proto: tcp, port: {set: high}}, action: allow, midstream: true}
  - {name: print, from: {set: [printers]}, to: host, action: reject}
tests:
  - {name: pays, packet: {in: lan0, out: wan0, src: 10.20.1.7, dst: 203.0.113.5, service: tcp/443}, expect: {verdict: allow, rule: pos-pays}}
  - name: spoofed
    packet: {in: lan0, out: wan0, src: 10.21.1.7, dst: 203.0.113.5, service: web, dport: 80}
    expect: {verdict: drop}
`

func parseText(t testing.TB, text string) (*Policy, Errors) {
	t.Helper()
	p, err := Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
	if err == nil {
		return p, nil
	}
	var errs Errors
	if !errors.As(err, &errs) {
		t.Fatalf("error is %T, not Errors", err)
	}
	return nil, errs
}

func TestGoodPolicy(t *testing.T) {
	p, errs := parseText(t, good)
	if errs != nil {
		t.Fatal(errs)
	}
	if len(p.Zones) != 3 || len(p.Sets) != 4 || len(p.Workloads) != 2 || len(p.Services) != 3 || len(p.Rules) != 5 || len(p.Tests) != 2 {
		t.Fatalf("parts are missing: %+v", p)
	}
	r := p.Rules[1]
	if r.Name != "pos-pays" || p.RulePos(1) != (Pos{File: "p.yaml", Line: 21, Column: 11, Source: strings.Split(good, "\n")[20]}) || r.Action != Allow ||
		!r.Expires.Equal(time.Date(2027, 7, 1, 0, 0, 0, 0, time.UTC)) || r.From.Labels["pci"] != "yes" {
		t.Errorf("rule pos-pays: %+v", r)
	}
	if got := p.Workloads[0].Labels["site"]; got != "7" {
		t.Errorf("a label's value written as a number is %q, not \"7\"", got)
	}
	if got := p.Rules[0].From; !got.Any || p.Rules[2].Audit != true || !p.Rules[3].Midstream || !p.Rules[0].Log {
		t.Errorf("flags of rules: %+v", p.Rules)
	}
	if !reflect.DeepEqual(p.Rules[2].To.Zones, []string{"lan", "dmz"}) {
		t.Errorf("to: [lan, dmz] is %v", p.Rules[2].To.Zones)
	}
	if got := p.Tests[1].Packet; got.DstPort != 80 || got.SrcPort != 49152 || got.Proto != 6 {
		t.Errorf("packet of the second test: %+v", got)
	}
}

// Each row changes one place of the good policy and names the error that must come of it.
func TestErrors(t *testing.T) {
	rows := []struct {
		name      string
		old, new  string
		at        string // line:column, in the changed text
		msg, hint string // parts of
	}{
		{"unknown section", "services:\n", "servces:\n", "15:1", `unknown key "servces"`, `did you mean "services"?`},
		{"api version", "softdpu/v1", "softdpu/v2", "1:13", `unknown apiVersion "softdpu/v2"`, "softdpu/v1"},
		{"kind", "kind: Policy", "kind: Gateway", "2:7", `kind "Gateway", not Policy`, "kind: Policy"},
		{"no kind", "kind: Policy\n", "", "1:1", "does not say its kind", "kind: Policy"},
		{"no version", "apiVersion: softdpu/v1\n", "", "1:1", "apiVersion", "apiVersion: softdpu/v1"},
		{"zone key", "untrusted: true", "untrused: true", "6:24", `unknown key "untrused" in a zone`, `did you mean "untrusted"?`},
		{"bool", "untrusted: true", "untrusted: yes", "6:35", `must be true or false, not "yes"`, ""},
		{"reserved zone", "  wan: {", "  host: {", "6:3", `zone "host" is built in`, ""},
		{"zone any", "  wan: {", "  any: {", "6:3", `zone "any" is built in`, ""},
		{"zone name", "  wan: {", "  w/an: {", "6:3", `"w/an" cannot be the name of a zone`, "letters"},
		{"zone twice", "  wan: {ports: [wan0]", "  lan: {ports: [wan0]", "6:3", `zone "lan" is declared twice`, "p.yaml:4:3"},
		{"port twice", "[wan0]", "[lan0]", "6:17", `untagged frames of port "lan0" belong to zone "lan"`, "p.yaml:4:17"},
		{"vlan twice", "vlans: [20, 21]", "vlans: [20, 20]", "5:36", "VLAN 20 is given twice", ""},
		{"vlan of two", "wan: {ports: [wan0], untrusted", "wan: {ports: [wan0, lan0], vlans: [21], untrusted", "6:23", `VLAN 21 of port "lan0" belong to zone "dmz"`, "p.yaml:5:17"},
		{"port of one twice", "[wan0]", "[wan0, wan0]", "6:23", `port "wan0" belong to zone "wan"`, "p.yaml:6:17"},
		{"vlan range", "vlans: [20, 21]", "vlans: [20, 4095]", "5:36", "between 1 and 4094", ""},
		{"empty vlans", "vlans: [20, 21]", "vlans: []", "5:31", "empty list of VLANs", "untagged"},
		{"host bits", "10.20.0.0/16", "10.20.1.0/16", "4:36", `"10.20.1.0/16" has bits set`, "10.20.0.0/16"},
		{"prefix", "10.20.0.0/16", "10.20.0.0/33", "4:36", "is not a prefix", "10.20.0.0/16"},
		{"set type", "type: port,", "type: prot,", "9:16", `unknown type of set "prot"`, `did you mean "port"?`},
		{"no type", "type: port, ", "", "9:3", `set "high" does not say its type`, "prefix"},
		{"set key", "type: port, entries", "type: port, entires", "9:22", `unknown key "entires"`, `"entries"`},
		{"no entries", "{type: name, entries: [example.com]}", "{type: name}", "11:3", "neither entries nor a file", ""},
		{"both", "entries: [example.com]", "entries: [], file: x", "11:42", "both entries and a file", ""},
		{"no files", "entries: [example.com]", "file: x", "11:29", "cannot be read here", "inline"},
		{"range order", "192.0.2.1-192.0.2.9", "192.0.2.9-192.0.2.1", "8:67", "ends before it begins", "192.0.2.1-192.0.2.9"},
		{"range families", "192.0.2.1-192.0.2.9", "192.0.2.9-2001:db8::1", "8:67", "mixes IPv4 and IPv6", ""},
		{"port number", "9443", "94430", "9:43", `"94430" is not a port`, "65535"},
		{"mac", "[02:00:00:00:00:01]", "[02:00:00:00:01]", "10:35", "not an Ethernet address", "02:00:5e"},
		{"group mac", "[02:00:00:00:00:01]", "[03:00:00:00:00:01]", "10:35", "group address", ""},
		{"host name", "[example.com]", "[http://example.com]", "11:33", "not a host name", ""},
		{"workload zone", "{zone: lan, addresses: [10.20.1.0/24]", "{zone: lam, addresses: [10.20.1.0/24]", "13:15", `unknown zone "lam"`, `did you mean "lan"?`},
		{"workload and zone", "  scanner: {macs", "  dmz: {macs", "14:3", `workload "dmz" is already declared as a zone`, "p.yaml:5:3"},
		{"workload of all", "{macs: [02:00:00:00:00:02], labels", "{labels", "14:3", "would be everyone", ""},
		{"workload any", "  scanner: {macs", "  any: {macs", "14:3", "built-in zone", ""},
		{"label list", "labels: {pci: \"no\"}", "labels: [pci]", "14:48", "must be a map", ""},
		{"label twice", "site: 7", "pci: 7", "13:68", `label "pci" is given twice`, ""},
		{"protocol", "[tcp/22]", "[tpc/22]", "16:9", `unknown protocol "tpc"`, `did you mean "tcp/22"?`},
		{"service port", "[tcp/22]", "[tcp/ssh]", "16:9", `"ssh" is not a port`, ""},
		{"sctp", "[tcp/22]", "[sctp/22]", "16:9", "ports are not available for sctp", "write sctp"},
		{"esp", "[tcp/22]", "[esp/22]", "16:9", "esp has no ports", "write esp"},
		{"proto", "[tcp/22]", "[proto/300]", "16:9", "not a protocol", "proto/47"},
		{"icmp type", "icmp/echo-request", "icmp/echo-reqest", "27:64", `unknown icmp type "echo-reqest"`, `did you mean "icmp/echo-request"?`},
		{"icmp code", "icmp/echo-request", "icmp/8/300", "27:64", `"300" is not an icmp code`, ""},
		{"declared any", "[tcp/22]", "any", "16:8", "cannot be any", ""},
		{"builtin service", "  ssh: [", "  tcp: [", "16:3", "built in", ""},
		{"map proto", "{proto: udp, port: 123", "{proto: esp, port: 123", "18:16", `unknown proto "esp"`, "tcp"},
		{"map no proto", "{proto: udp, port", "{port", "18:8", "without `proto`", ""},
		{"map key", "source_port", "sport", "18:32", `unknown key "sport" in a service`, ""},
		{"rule key", "log: true", "lgo: true", "20:69", `unknown key "lgo" in a rule`, `did you mean "log"?`},
		{"key twice", "action: deny, log", "action: deny, action", "20:69", `key "action" is given twice`, "line 20"},
		{"no name", "{name: no-threats, from", "{from", "20:5", "rule without a name", ""},
		{"name twice", "name: pos-pays", "name: no-threats", "21:11", `rule "no-threats" exists already`, "p.yaml:20:12"},
		{"reserved name", "name: pos-pays", "name: builtin-x", "21:11", "reserved", ""},
		{"name none", "name: pos-pays", "name: none", "21:11", "reserved", ""},
		{"no from", "from: any, to", "to", "20:12", `rule "no-threats" does not say from`, ""},
		{"no action", "action: deny, log", "log", "20:12", "does not say its action", ""},
		{"action", "action: deny", "action: drop", "20:63", `unknown action "drop"`, "allow, deny, reject"},
		{"mode", "mode: audit", "mode: adit", "27:105", `unknown mode "adit"`, `"audit"`},
		{"date", "2027-06-30", "2027-06-31", "26:14", "not a date", "2027-06-30"},
		{"inspect", "log: true", "inspect: {}", "20:69", "inspect is not available in this version yet", ""},
		{"rate", "log: true", "rate: 5", "20:69", "rate is not available in this version yet", ""},
		{"schedule", "log: true", "schedule: x", "20:69", "schedule is not available in this version yet", ""},
		{"encrypt", "log: true", "encrypt: x", "20:69", "encrypt is not available in this version yet", ""},
		{"set", "{set: threats}", "{set: treats}", "20:45", `unknown set "treats"`, `did you mean "threats"?`},
		{"name set", "{set: threats}", "{set: hosts}", "20:45", "names are not available", ""},
		{"port set", "{set: threats}", "{set: high}", "20:45", "holds ports", "{proto: tcp, port: {set: high}}"},
		{"mac set in to", "{set: threats}", "{set: printers}", "20:45", "known of the source only", ""},
		{"mac workload in to", "to: {set: threats}", "to: scanner", "20:39", `workload "scanner" has macs`, ""},
		{"set as word", "to: {set: threats}", "to: threats", "20:39", `unknown zone or workload "threats"`, "write {set: threats}"},
		{"word", "to: host", "to: hots", "29:48", `unknown zone or workload "hots"`, `did you mean "host"?`},
		{"label key", "from: {labels: {pci", "from: {labels: {pic", "22:21", `unknown label "pic"`, `did you mean "pci"?`},
		{"label value", "from: {labels: {pci: \"yes\"}}", "from: {labels: {pci: \"yep\"}}", "22:26", `unknown value of label pci "yep"`, `did you mean "yes"?`},
		{"labels apart", "from: {labels: {pci: \"yes\"}}", "from: {labels: {pci: \"no\", site: 7}}", "22:20", "no workload has all", ""},
		{"mixed list", "to: [lan, dmz]", "to: [lan, 10.0.0.1]", "27:37", "mixes zones, workloads and addresses", ""},
		{"any in list", "to: [lan, dmz]", "to: [lan, any]", "27:43", "any beside others", ""},
		{"empty selector", "to: {set: threats}", "to: {}", "20:39", "to says nothing", "any"},
		{"empty list", "to: {set: threats}", "to: []", "20:39", "matches nothing", "any"},
		{"zone any inside", "to: {zone: wan", "to: {zone: any", "23:16", "any is not a zone", ""},
		{"service name", "[ssh, icmp", "[shs, icmp", "27:59", `unknown service "shs"`, `did you mean "ssh"?`},
		{"midstream deny", "action: allow, midstream", "action: deny, midstream", "28:138", "midstream on a rule that does not allow", ""},
		{"mirror deny", "action: deny, log", "action: deny, mirror: mon0, log", "20:77", "mirror on a rule that does not allow", "capture --point drop"},
		{"mirror audit", "mode: audit", "mode: audit, mirror: mon0", "27:120", "mirror on a rule in audit mode", "take mirror out"},
		{"mirror to a zone", "midstream: true", "mirror: wan0", "28:136", `port "wan0" belongs to zone "wan" and cannot be a monitor port`, "that no zone names"},
		{"mirror nowhere", "midstream: true", "mirror: {packets: 4}", "28:136", "mirror does not say its port", "mirror: PORT"},
		{"mirror of nothing", "midstream: true", "mirror: {port: mon0, packets: 0}", "28:158", `packets must be a number between 1 and 1000000000, not "0"`, ""},
		{"mirror key", "midstream: true", "mirror: {port: mon0, packet: 4}", "28:149", `unknown key "packet" in mirror`, `did you mean "packets"?`},
		{"mirror of two", "midstream: true", "mirror: [mon0, mon1]", "28:136", "must be a single value, not a list", ""},
		{"mirror to no name", "midstream: true", "mirror: m/n", "28:136", `"m/n" cannot be the name of a port`, "letters"},
		{"mss_clamp deny", "action: deny, log", "action: deny, mss_clamp: 1300, log", "20:80", "mss_clamp on a rule that does not allow", "take mss_clamp out"},
		{"mss_clamp audit", "mode: audit", "mode: audit, mss_clamp: 1300", "27:123", "mss_clamp on a rule in audit mode", "take mss_clamp out"},
		{"mss_clamp without TCP", "[ssh, icmp/echo-request], action: allow, mode: audit", "icmp/echo-request, action: allow, mss_clamp: 1300", "27:103", "mss_clamp on a rule without TCP", "only SYNs"},
		{"mss_clamp too small", "midstream: true", "mss_clamp: 87", "28:139", `mss_clamp must be a number between 88 and 65495, not "87"`, ""},
		{"mss_clamp auto", "midstream: true", "mss_clamp: auto", "28:139", `mss_clamp must be a number between 88 and 65495, not "auto"`, ""},
		{"on_failure", "midstream: true", "on_failure: open", "28:140", `unknown on_failure "open"`, "drop, bypass"},
		{"on_failure reject", "host, action: reject", "host, action: reject, on_failure: drop", "29:82", "on_failure on a rule that does not allow", "take on_failure out"},
		{"test rule", "rule: pos-pays", "rule: pos-pay", "31:132", `unknown rule "pos-pay"`, `did you mean "pos-pays"?`},
		{"test verdict", "verdict: drop", "verdict: droop", "34:23", `unknown verdict "droop"`, `"drop"`},
		{"test port", "{in: lan0, out: wan0, src: 10.20", "{in: lan1, out: wan0, src: 10.20", "31:31", `unknown port "lan1"`, `did you mean "lan0"?`},
		{"test address", "src: 10.21.1.7", "src: 10.21.1.0/24", "33:40", "is not an address", "one source"},
		{"test families", "src: 10.21.1.7", "src: fe80::1", "33:54", "different families", ""},
		{"test service", "service: web, dport: 80", "service: web", "33:78", "3 alternatives", ""},
		{"test dport", "dst: 203.0.113.5, service: tcp/443}", "dst: 203.0.113.5, service: tcp/443, dport: 80}", "31:107", "dport 80 is not of", ""},
		{"test without src", "src: 10.20.1.7, ", "", "31:26", "does not say src", ""},
		{"test expects nothing", ", expect: {verdict: allow, rule: pos-pays}", "", "31:12", "expects nothing", ""},
		{"rules as map", "rules:\n", "rules: {}\nx:\n", "19:8", "rules must be a list", ""},
		{"anchor", "type: port", "type: &a port", "9:16", "anchors and aliases", ""},
		{"tag", "type: port", "type: !!str port", "9:16", "tags are not supported", ""},
		{"merge key", "type: port", "<<: {type: port}", "9:10", "merge keys", ""},
		{"syntax", "entries: [8000-8999, 9443]", "entries: [8000-8999, 9443", "9:47", "not YAML", ""},
		{"tab", "  dmz: {", "\tdmz: {", "5:", "not YAML", "spaces"},
		{"not utf-8", "servers", "serv\xffers", "5:58", "UTF-8", ""},
		{"list for a value", "type: port", "type: [port]", "9:16", "must be a single value, not a list", ""},
		{"wrong zone kind", "  dmz: {ports: [lan0], vlans: [20, 21], description: servers}", "  dmz: [lan0]", "5:8", "a zone must be a map of keys, not a list", ""},
		{"interface", "2001:db8:20::/48", "\"fe80::1%eth0\"", "4:50", "names an interface", "fe80::1"},
		{"mapped", "2001:db8:20::/48", "\"::ffff:10.0.0.1\"", "4:50", "IPv6 clothes", "10.0.0.1"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if strings.Count(good, row.old) != 1 {
				t.Fatalf("%q stands %d times in the good policy", row.old, strings.Count(good, row.old))
			}
			text := strings.Replace(good, row.old, row.new, 1)
			_, errs := parseText(t, text)
			if len(errs) == 0 {
				t.Fatal("no error")
			}
			for _, e := range errs {
				if at := fmt.Sprintf("%d:%d", e.Line, e.Column); strings.HasPrefix(at, row.at) &&
					strings.Contains(e.Msg, row.msg) && strings.Contains(e.Hint, row.hint) && e.File == "p.yaml" {
					if lines := strings.Split(text, "\n"); e.Source != lines[e.Line-1] {
						t.Errorf("source line is %q, not %q", e.Source, lines[e.Line-1])
					}
					return
				}
			}
			t.Errorf("no error at %s with %q and %q; got:\n%v", row.at, row.msg, row.hint, errs)
		})
	}
}

func TestRender(t *testing.T) {
	_, errs := parseText(t, strings.Replace(good, "log: true", "lgo: true", 1))
	want := "p.yaml:20:69: unknown key \"lgo\" in a rule\n" +
		"  20 |   - {name: no-threats, from: any, to: {set: threats}, action: deny, lgo: true}\n" +
		"     |                                                                     ^\n" +
		"  = did you mean \"log\"?"
	if got := errs.Error(); got != want {
		t.Errorf("rendered:\n%s\nwant:\n%s", got, want)
	}
	if got, want := errs[0].Error(), `p.yaml:20:69: unknown key "lgo" in a rule (did you mean "log"?)`; got != want {
		t.Errorf("on one line %q, want %q", got, want)
	}
}

func TestRenderLongLine(t *testing.T) {
	source := strings.Repeat("x", 300) + "HERE\x1b[31m" + strings.Repeat("y", 300)
	got := Pos{File: "f", Line: 3, Column: 301, Source: source}.Errorf("wrong").Render()
	lines := strings.Split(got, "\n")
	if len(lines) != 3 || strings.Index(lines[2], "^") != strings.Index(lines[1], "HERE") || strings.Contains(got, "\x1b") {
		t.Errorf("rendered:\n%s", got)
	}
	tabs := Pos{File: "f", Line: 3, Column: 3, Source: "\té="}.Errorf("wrong").Render()
	if !strings.Contains(tabs, "| \té=\n") || !strings.HasSuffix(tabs, "| \t ^") {
		t.Errorf("rendered:\n%q", tabs)
	}
}

func TestAllErrorsAreCollected(t *testing.T) {
	text := strings.NewReplacer("untrusted", "untrused", "type: port", "type: prot", "action: reject", "action: rejct").Replace(good)
	_, errs := parseText(t, text)
	var lines []int
	for _, e := range errs {
		lines = append(lines, e.Line)
	}
	if !reflect.DeepEqual(lines, []int{6, 9, 29}) {
		t.Errorf("errors in lines %v, want 6, 9, 29:\n%v", lines, errs)
	}
}

func TestSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const head = "apiVersion: softdpu/v1\nkind: Policy\n"
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "no *.yaml") {
		t.Errorf("empty directory: %v", err)
	}
	// The rule stands before the zone that it names.
	write("10-rules.yaml", head+"rules:\n  - {name: one, from: lan, to: {set: s}, action: allow}\n")
	write("50-zones.yml", head+"zones:\n  lan: {ports: [lan0]}\nsets:\n  s: {type: prefix, file: sets/s.txt}\n")
	write("60-more.yaml", head+"rules:\n  - {name: two, from: any, to: any, action: deny}\n")
	write("notes.txt", "not a policy")
	write("sets/s.txt", "10.0.0.0/8\n\n  # nothing\n192.0.2.1\r\n")
	p, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Files) != 3 || len(p.Rules) != 2 || p.Rules[0].Name != "one" || p.Rules[1].Name != "two" || len(p.Sets[0].Prefixes) != 2 {
		t.Errorf("policy of three files: %+v", p)
	}
	if p.Sets[0].File != filepath.Join(dir, "sets/s.txt") {
		t.Errorf("set read from %q", p.Sets[0].File)
	}

	write("sets/s.txt", "10.0.0.0/8\n  10.0.0.256 # no\n")
	write("60-more.yaml", head+"rules:\n  - {name: one, from: any, to: any, action: deny}\n")
	_, err = Load(dir)
	var errs Errors
	if !errors.As(err, &errs) || len(errs) != 2 {
		t.Fatalf("want two errors, got %v", err)
	}
	if e := errs[0]; filepath.Base(e.File) != "60-more.yaml" || e.Line != 4 || !strings.Contains(e.Hint, "10-rules.yaml:4:12") {
		t.Errorf("rule of the same name in another file: %v", e)
	}
	if e := errs[1]; filepath.Base(e.File) != "s.txt" || e.Line != 2 || e.Column != 3 {
		t.Errorf("wrong entry of a set's file: %v", e)
	}

	write("sets/s.txt", strings.Repeat("x\n", 100))
	if _, err = Load(dir); !errors.As(err, &errs) || len(errs) != maxSetErrors+2 {
		t.Errorf("a set of nonsense makes %d errors", len(errs))
	}
	if _, err = Load(filepath.Join(dir, "absent.yaml")); err == nil || errors.As(err, new(Errors)) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	write("60-more.yaml", "# nothing\n")
	if _, err = Load(filepath.Join(dir, "60-more.yaml")); err == nil || !strings.Contains(err.Error(), "file is empty") {
		t.Errorf("empty file: %v", err)
	}
}
