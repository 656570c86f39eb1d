package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestExplainForPeople(t *testing.T) {
	t.Chdir(simDir(t))
	tests := []struct {
		name, args string
		code       int
		want       string
	}{
		{"allowed", "--policy policy.yaml --in lan0 --out wan0 --src 10.20.1.7 --dst 203.0.113.5 --service tcp/443", exitYes, `allow: rule "pos-pays", policy.yaml:11

  packet  tcp 10.20.1.7:49152 -> 203.0.113.5:443
  from    zone lan, port lan0, workload pos
  to      zone wan, port wan0
  audit   rule "watch", policy.yaml:8 would deny it

  11 |   - name: pos-pays
  12 |     from: pos
  13 |     to: {zone: wan, addresses: [203.0.113.0/28]}
  14 |     service: tcp/443
  15 |     action: allow
`},
		{"no rule matched", "--policy policy.yaml --in lan --src 10.20.9.7 --dst 203.0.113.5 --service icmp/echo-request", exitNo, `deny: no rule matched, and what no rule allows is denied

  packet  icmp type 8 code 0, 10.20.9.7 -> 203.0.113.5
  from    zone lan
  to      zone wan

This rule would allow it:
  - {name: NAME, from: lan, to: wan, service: icmp/8, action: allow}
`},
		{"rejected", "-c inline.yaml --in lan0 --src 10.20.9.7 --dst 203.0.113.5 --service tcp/23 --sport 7", exitNo, `reject: rule "no-telnet", policy.yaml:9

  packet  tcp 10.20.9.7:7 -> 203.0.113.5:23
  from    zone lan, port lan0
  to      zone wan, port wan0

  9 |   - {name: no-telnet, from: lan, to: any, service: tcp/23, action: reject}
`},
		{"by the routes", "-c softdpu.yaml --routes routes.json --in wan0 --src 203.0.113.5 --dst 10.20.1.7 --service esp", exitNo, `deny: no rule matched, and what no rule allows is denied

  packet  esp 203.0.113.5 -> 10.20.1.7
  from    zone wan, port wan0
  to      zone lan, workload pos

This rule would allow it:
  - {name: NAME, from: wan, to: lan, service: esp, action: allow}
`},
		{"spoofed", "--policy policy.yaml --in lan --src 10.21.0.1 --dst 203.0.113.5 --service tcp/443", exitNo, `drop: spoofed: 10.21.0.1 is outside the addresses of zone "lan", so no rule is asked

  packet  tcp 10.21.0.1:49152 -> 203.0.113.5:443
  from    zone lan
  to      zone wan
`},
		{"martian", "--policy policy.yaml --in lan --src 10.20.1.7 --dst 127.0.0.1 --service tcp/443", exitNo, `drop: martian: such addresses may not appear in a packet between networks, so no rule is asked

  packet  tcp 10.20.1.7:49152 -> 127.0.0.1:443
  from    zone lan, workload pos
  to      zone wan
`},
		{"martian of IPv6", "--policy policy.yaml --in wan --src ff02::1 --dst 2001:db8::1 --proto 99", exitNo, `drop: martian: such addresses may not appear in a packet between networks, so no rule is asked

  packet  99 ff02::1 -> 2001:db8::1
  from    zone wan
  to      zone lan
`},
		{"ICMP reply", "--policy policy.yaml --in lan --src 10.20.9.7 --dst 203.0.113.5 --service icmp/echo-reply", exitNo, `drop: icmp-no-request: a reply passes with the request that it answers, so no rule is asked

  packet  icmp type 0 code 0, 10.20.9.7 -> 203.0.113.5
  from    zone lan
  to      zone wan
`},
		{"ICMP error", "--policy policy.yaml --in wan --src 2001:db8::1 --dst 2001:db8:1::1 --service icmpv6/2", exitNo, `drop: icmp-no-flow: an error passes with the connection of the packet that it quotes, so no rule is asked

  packet  icmpv6 type 2 code 0, 2001:db8::1 -> 2001:db8:1::1
  from    zone wan
  to      zone lan
`},
		{"ICMP redirect", "--policy policy.yaml --in lan --src 10.20.9.7 --dst 203.0.113.5 --service icmp/5", exitNo, `drop: icmp-type: only queries, and what belongs to a connection, pass, so no rule is asked

  packet  icmp type 5 code 0, 10.20.9.7 -> 203.0.113.5
  from    zone lan
  to      zone wan
`},
		{"discovery", "-c inline.yaml --in lan0 --src fe80::7 --dst ff02::16 --service icmpv6/143", exitYes, `allow: built-in rule "builtin-nd": IPv6 neighbour discovery and multicast listener discovery, if it comes from this link

  packet  icmpv6 type 143 code 0, fe80::7 -> ff02::16
  from    zone lan, port lan0
  to      zone wan, port wan0
`},
		{"discovery from another link", "--policy policy.yaml --in wan --src 2001:db8::1 --dst 2001:db8:1::1 --service icmpv6/136", exitNo, `drop: icmp-type: discovery passes by builtin-nd on its own link, and goes no further, so no rule is asked

  packet  icmpv6 type 136 code 0, 2001:db8::1 -> 2001:db8:1::1
  from    zone wan
  to      zone lan
`},
		{"management", "-c softdpu.yaml --in lan0 --out host --src 10.20.1.7 --dst 10.20.0.1 --service tcp/22", exitYes, `allow: built-in rule "builtin-management": what the gateway's configuration names as its management

  packet  tcp 10.20.1.7:49152 -> 10.20.0.1:22
  from    zone lan, port lan0, workload pos
  to      zone host
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"explain"}, strings.Fields(tt.args)...)...)
			// With a configuration the policy's name is a whole path.
			dir, _ := os.Getwd()
			stdout = strings.ReplaceAll(stdout, dir+"/", "")
			if code != tt.code || stderr != "" || stdout != tt.want {
				t.Errorf("exit code %d, said %q, printed:\n%s\nwant:\n%s", code, stderr, stdout, tt.want)
			}
		})
	}
}

func TestExplainJSON(t *testing.T) {
	t.Chdir(simDir(t))
	args := strings.Fields("explain -o json --policy policy.yaml --in lan --src 10.20.1.7 --dst 203.0.113.5 --service tcp/443")
	code, stdout, stderr := execute(t, args...)
	var x explanation
	if err := json.Unmarshal([]byte(stdout), &x); code != exitYes || err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stderr, stdout)
	}
	if x.Verdict != "allow" || x.Rule != "pos-pays" || x.File != "policy.yaml" || x.Line != 11 || len(x.Source) != 5 || x.Reason != "" {
		t.Errorf("%+v", x)
	}
	if x.From.Zone != "lan" || len(x.From.Workloads) != 1 || x.From.Workloads[0] != "pos" || x.To.Zone != "wan" || len(x.To.Workloads) != 0 {
		t.Errorf("ends: %+v, %+v", x.From, x.To)
	}
	if len(x.Audit) != 1 || x.Audit[0] != (explainedAudit{"watch", "policy.yaml", 8, "deny"}) {
		t.Errorf("audit: %+v", x.Audit)
	}
	args[len(args)-1] = "udp/443"
	if code, stdout, _ = execute(t, args...); code != exitNo || !strings.Contains(stdout, `"reason": "no-rule-matched"`) || strings.Contains(stdout, `"rule"`) {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
}

func TestExplainWrongUse(t *testing.T) {
	t.Chdir(simDir(t))
	if err := os.WriteFile("bad.yaml", []byte("apiVersion: softdpu/v1\nkind: Policy\nzonse: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const packet = " --src 10.20.1.7 --dst 203.0.113.5"
	tests := []struct{ name, args, want string }{
		{"no source", "--policy policy.yaml --in lan --dst 203.0.113.5 --service tcp/443", "needs --src"},
		{"no service", "--policy policy.yaml --in lan" + packet, "needs --service"},
		{"unknown port", "--policy policy.yaml --in lann --service tcp/443" + packet, `unknown port "lann" (did you mean "lan0"?)`},
		{"unknown protocol", "--policy policy.yaml --in lan --service tpc/443" + packet, `unknown protocol "tpc"`},
		{"families", "--policy policy.yaml --in lan --src ::2 --dst 203.0.113.5 --service tcp/443", "of different families"},
		{"both", "--policy policy.yaml --in lan --service tcp/443 --proto 6" + packet, "both service and proto"},
		{"destination unknown", "-c softdpu.yaml --in lan0 --service tcp/443" + packet, "add --out PORT (or --out host), or --routes FILE"},
		{"no VLAN there", "--policy policy.yaml --in lan0 --vlan 7 --out wan --service tcp/443" + packet, `no zone has VLAN 7 on port "lan0"`},
		{"unreadable policy", "--policy none.yaml --in lan --service tcp/443" + packet, "no such file"},
		{"wrong policy", "--policy bad.yaml --in lan --service tcp/443" + packet, `bad.yaml:3:1`},
		{"argument", "lan", `takes no argument "lan"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"explain"}, strings.Fields(tt.args)...)...)
			if code != exitError || !strings.Contains(stderr, tt.want) || stdout != "" {
				t.Errorf("exit code %d, said:\n%s\nprinted:\n%s", code, stderr, stdout)
			}
		})
	}
}

func TestRuleLines(t *testing.T) {
	t.Chdir(t.TempDir())
	const text = `rules:
- description: name comes second
  name: a
  from: any
# the next one
- {name: b,
   from: any}
- name: c
  from: any

`
	if err := os.WriteFile("p.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[int]string{3: "  name: a|  from: any", 6: "- {name: b,|   from: any}", 8: "- name: c|  from: any", 99: ""} {
		if got := strings.Join(ruleLines("p.yaml", line), "|"); got != want {
			t.Errorf("line %d: %q, want %q", line, got, want)
		}
	}
	if lines := ruleLines("gone.yaml", 1); lines != nil {
		t.Errorf("lines of no file: %q", lines)
	}
}
