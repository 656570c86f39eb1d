package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// explainNATPolicy is a policy with nat rules of every kind. Its rules allow everything but telnet.
const explainNATPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0], addresses: [10.20.0.0/16, fd20::/48]}
  wan: {ports: [wan0]}
nat:
  - {name: not-to-vpn, from: lan, to: {zone: wan, addresses: [10.99.0.0/16]}, keep: true}
  - {name: pool, from: {zone: lan, addresses: [10.20.5.0/24]}, to: wan, snat: {addresses: [203.0.113.8/29]}}
  - {name: static, from: lan, to: wan, prefix: {inside: 10.20.7.0/24, outside: 198.51.100.0/24}}
  - {name: six, from: lan, to: wan, prefix: {inside: "fd20::/64", outside: "2001:db8::/64"}}
  - {name: branch, from: lan, to: wan, masquerade: {ports: 2000-65535}}
  - {name: www, from: any, to: host, service: tcp/80, dnat: {to: 10.20.2.2, port: 8080}}
  - {name: farm, from: wan, to: {addresses: [192.0.2.50]}, service: tcp/443, dnat: {servers: [{address: 10.20.2.3}, {address: 10.20.2.4, drain: true}, {address: 10.20.2.5}]}}
  - {name: loop, from: any, to: {addresses: [192.0.2.51]}, dnat: {to: 192.0.2.2}}
  - {name: idle, from: any, to: {addresses: [192.0.2.52]}, dnat: {servers: [{address: 10.20.2.6, drain: true}]}}
rules:
  - {name: no-telnet, from: any, to: any, service: tcp/23, action: deny}
  - {name: all, from: any, to: any, action: allow}
`

func TestExplainSaysBothSidesOfATranslation(t *testing.T) {
	t.Chdir(simDir(t))
	if err := os.WriteFile("policy.yaml", []byte(explainNATPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	const routed = "-c softdpu.yaml --routes routes.json "
	for _, tt := range []struct {
		name, args string
		code       int
		want       []string // lines
	}{
		{"masquerade", routed + "--in lan0 --src 10.20.1.7 --dst 203.0.113.5 --service tcp/443", exitYes, []string{
			`  nat     source becomes 192.0.2.2, its port chosen from 2000-65535 when the flow opens: 49152 if that is free: nat rule "branch", policy.yaml:11`,
			`          4 rules before it did not match, which -o json lists`,
			`  nat     destination stays: no nat rule matched`,
			`          not "loop", policy.yaml:14: the destination address is another`,
			`          and 3 rules more, which -o json lists`,
		}},
		{"masquerade by a port whose address is not known", "-c softdpu.yaml --in lan0 --out wan0 --src 10.20.1.7 --dst 203.0.113.5 --service tcp/443 --sport 53", exitYes, []string{
			`  nat     source becomes the address of port wan0 at that time, its port chosen from 2000-65535 when the flow opens: nat rule "branch", policy.yaml:11`,
		}},
		{"masquerade by a port whose address is given", "-c softdpu.yaml --address wan0=192.0.2.77 --in lan0 --out wan0 --src 10.20.1.7 --dst 203.0.113.5 --service icmp/echo-request", exitYes, []string{
			`  nat     source becomes 192.0.2.77, its identifier chosen from 2000-65535 when the flow opens: as it was if that is free: nat rule "branch", policy.yaml:11`,
		}},
		{"a pool and a protocol without ports", routed + "--in lan0 --src 10.20.5.7 --dst 203.0.113.5 --service esp", exitYes, []string{
			`  nat     source becomes one of 203.0.113.8 to 203.0.113.15, for this sender always the same; it has no port, so only one sender at a time can speak to this destination: nat rule "pool", policy.yaml:8`,
		}},
		{"kept", routed + "--in lan0 --src 10.20.1.7 --dst 10.99.1.1 --service tcp/443", exitYes, []string{
			`  nat     source stays: nat rule "not-to-vpn", policy.yaml:7`,
		}},
		{"a prefix from inside", routed + "--in lan0 --src 10.20.7.9 --dst 203.0.113.5 --service tcp/443", exitYes, []string{
			`  nat     source becomes 198.51.100.9: nat rule "static", policy.yaml:9`,
		}},
		{"a prefix from outside", routed + "--in wan0 --src 203.0.113.5 --dst 198.51.100.9 --service tcp/443", exitYes, []string{
			`  to      zone lan`,
			`  nat     source stays: no nat rule matched`,
			`          not "branch", policy.yaml:11: it comes from another zone, it goes to another zone`,
			`  nat     destination becomes 10.20.7.9:443: nat rule "static", policy.yaml:9`,
		}},
		{"a prefix that cannot hold the address", "-c softdpu.yaml --in lan0 --out wan0 --src fd20::ffff:ffff:ffff:ffff --dst 2001:db8:9::1 --service tcp/443", exitNo, []string{
			`drop: nat-conflict: nat rule "six" finds no word in the source that can keep checksums as they are`,
			`  nat     source cannot be translated: nat rule "six", policy.yaml:10`,
		}},
		{"port forwarding to whatever address the gateway has", routed + "--in wan0 --src 203.0.113.5 --dst 192.0.2.2 --service tcp/80", exitYes, []string{
			`allow: rule "all", policy.yaml:18`,
			`  packet  tcp 203.0.113.5:49152 -> 192.0.2.2:80`,
			`  to      zone lan`,
			`  nat     destination becomes 10.20.2.2:8080: nat rule "www", policy.yaml:12`,
		}},
		{"hairpin", routed + "--in lan0 --src 10.20.1.7 --dst 192.0.2.2 --service tcp/80", exitYes, []string{
			`  nat     source becomes 10.20.0.1 (hairpin: the server lives in the same zone), its port chosen from 1024-65535 when the flow opens: 49152 if that is free: nat rule "www", policy.yaml:12`,
			`  nat     destination becomes 10.20.2.2:8080: nat rule "www", policy.yaml:12`,
		}},
		{"a drained server", routed + "--in wan0 --src 203.0.113.5 --dst 192.0.2.52 --service tcp/443", exitYes, []string{
			`  nat     destination stays: every server of nat rule "idle", policy.yaml:15 drains`,
		}},
		{"to the gateway itself", routed + "--in wan0 --src 203.0.113.5 --dst 192.0.2.51 --service tcp/443", exitNo, []string{
			`drop: nat-to-host: nat rule "loop" sends it to an address of the gateway itself, so no rule is asked`,
			`  nat     source stays: the packet is refused, and no nat rule is asked for its source`,
			`  nat     destination becomes 192.0.2.2:443: nat rule "loop", policy.yaml:14`,
		}},
		{"management", routed + "--in lan0 --src 10.20.1.7 --dst 10.20.0.1 --service tcp/22", exitYes, []string{
			`  nat     source stays: what is for the gateway itself keeps its source`,
			`  nat     destination stays: no nat rule matched`,
		}},
		{"refused", routed + "--in lan0 --src 10.20.1.7 --dst 203.0.113.5 --service tcp/23", exitNo, []string{
			`deny: rule "no-telnet", policy.yaml:17`,
			`  nat     source stays: the packet is refused, and no nat rule is asked for its source`,
		}},
		{"inline", "-c inline.yaml --in lan0 --src 10.20.1.7 --dst 203.0.113.5 --service tcp/443", exitYes, []string{
			`  nat     source stays`,
			`  nat     destination stays: inline ports pass packets on as they are`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"explain"}, strings.Fields(tt.args)...)...)
			dir, _ := os.Getwd()
			stdout = strings.ReplaceAll(stdout, dir+"/", "")
			if code != tt.code || stderr != "" {
				t.Errorf("exit code %d, said %q", code, stderr)
			}
			for _, line := range tt.want {
				if !strings.Contains("\n"+stdout, "\n"+line+"\n") {
					t.Errorf("no line %q in:\n%s", line, stdout)
				}
			}
		})
	}
}

// Which port a mapping has, and whom it lets in, only the running gateway knows; that it may is said.
func TestExplainMapping(t *testing.T) {
	t.Chdir(simDir(t))
	const branch = "name: branch, from: lan, to: wan, masquerade: {ports: 2000-65535}"
	if !strings.Contains(explainNATPolicy, branch) {
		t.Fatal("the policy is another")
	}
	text := strings.Replace(explainNATPolicy, branch, strings.Replace(branch, "5535}", "5535, mapping: endpoint-independent, filtering: address-dependent}", 1), 1)
	if err := os.WriteFile("policy.yaml", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	routed := "-c softdpu.yaml --routes routes.json "
	for args, want := range map[string]string{
		routed + "--in lan0 --src 10.20.1.7 --dst 203.0.113.5 --service udp/53":         `its port chosen from 2000-65535 when the first flow opens, and then the same for every destination: 49152 if that is free: nat rule "branch"`,
		routed + "--in wan0 --src 203.0.113.5 --dst 192.0.2.2 --proto udp --dport 4500": `destination stays: no nat rule matched, but if an end inside has this address and port by nat rule "branch", whose filtering is address-dependent, it may become that`,
	} {
		if _, stdout, stderr := execute(t, append([]string{"explain"}, strings.Fields(args)...)...); !strings.Contains(stdout, want) {
			t.Errorf("%s: no %q in\n%s%s", args, want, stdout, stderr)
		}
	}
	_, stdout, _ := execute(t, append([]string{"explain"}, strings.Fields(routed+"--in lan0 --src 10.20.1.7 --dst 10.20.0.1 --service tcp/22")...)...)
	if strings.Contains(stdout, "end inside") {
		t.Errorf("management is told to be handed to a mapping:\n%s", stdout)
	}
}

// In JSON the sides have fields of their own, and every rule that was asked is there.
func TestExplainTranslationAsJSON(t *testing.T) {
	t.Chdir(simDir(t))
	var many strings.Builder
	for i := range 12 {
		fmt.Fprintf(&many, "  - {name: other%d, from: lan, to: {zone: wan, addresses: [10.98.%d.0/24]}, keep: true}\n", i, i)
	}
	text := strings.Replace(explainNATPolicy, "nat:\n", "nat:\n"+many.String(), 1)
	if err := os.WriteFile("policy.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := strings.Fields("explain -c softdpu.yaml --routes routes.json --in wan0 --src 203.0.113.5 --dst 192.0.2.50 --service tcp/443")
	code, stdout, stderr := execute(t, append(args, "-o", "json")...)
	var x explanation
	if err := json.Unmarshal([]byte(stdout), &x); err != nil || code != exitYes || stderr != "" {
		t.Fatalf("exit code %d, said %q: %v", code, stderr, err)
	}
	d, s := &x.NAT.Destination, &x.NAT.Source
	if d.Rule != "farm" || d.Kind != "dnat" || d.Line != 25 || d.IP != "" || len(d.OneOf) != 2 || strings.Contains(fmt.Sprint(d.OneOf), "10.20.2.4") {
		t.Errorf("the destination is told as %+v", d)
	}
	if s.Rule != "" || len(s.Asked) != 17 || s.Asked[16].Rule != "branch" || s.Asked[16].Why == "" {
		t.Errorf("the source is told as %+v", s)
	}
	// People are told of some.
	_, stdout, _ = execute(t, args...)
	if !strings.Contains(stdout, "          and 14 rules more, which -o json lists\n") {
		t.Errorf("it prints:\n%s", stdout)
	}
}
