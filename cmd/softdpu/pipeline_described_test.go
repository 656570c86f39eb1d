package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/testenv"
)

const tracedPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0], addresses: [10.20.0.0/16]}
  wan: {ports: [wan0]}
nat:
  - {name: not-to-vpn, from: lan, to: {zone: wan, addresses: [10.99.0.0/16]}, keep: true}
  - {name: branch, from: lan, to: wan, masquerade: {}}
  - {name: www, from: any, to: host, service: tcp/80, dnat: {to: 10.20.2.2, port: 8080}}
  - {name: shop, from: wan, to: {addresses: [192.0.2.80]}, service: tcp/443, dnat: {servers: [{address: 10.20.2.5}, {address: 10.20.2.6}]}}
rules:
  - {name: watch, from: lan, to: wan, service: tcp/25, action: allow, mode: audit}
  - {name: no-telnet, from: lan, to: any, service: tcp/23, action: reject}
  - {name: no-smtp, from: lan, to: any, service: tcp/25, action: deny}
  - {name: out, from: lan, to: wan, service: [tcp/443, tcp/80], action: allow}
  - {name: in, from: wan, to: lan, service: [tcp/80, tcp/443], action: allow}
`

// A described packet goes through the policy's own pipes as the kernel's program decides about it.
func TestTraceThroughThePolicy(t *testing.T) {
	dir := simDir(t)
	rows := []struct {
		name     string
		in, to   string // --out where the destination is the gateway's own
		src, dst string
		port     uint16
		walk     string // pipes and entries
	}{
		{"allowed, masqueraded", "lan0", "", "10.20.1.7", "203.0.113.5", 443, "flows: -> nat-in: -> nat-destinations: -> rules: out -> nat-out: -> nat-sources: branch -> route"},
		{"allowed, kept", "lan0", "", "10.20.1.7", "10.99.0.1", 443, "flows: -> nat-in: -> nat-destinations: -> rules: out -> nat-out: -> nat-sources: not-to-vpn -> route"},
		{"audited, denied", "lan0", "", "10.20.1.7", "203.0.113.5", 25, "flows: -> nat-in: -> nat-destinations: -> rules: [watch] no-smtp -> drop (deny)"},
		{"rejected", "lan0", "", "10.20.1.7", "203.0.113.5", 23, "flows: -> nat-in: -> nat-destinations: -> rules: no-telnet -> drop (reject)"},
		{"no rule", "lan0", "", "10.20.1.7", "203.0.113.5", 22, "flows: -> nat-in: -> nat-destinations: -> rules: -> drop (no-rule-matched)"},
		{"management", "lan0", "", "10.20.1.7", "10.20.0.1", 22, "flows: -> nat-in: -> nat-destinations: exempt -> rules: builtin-management -> nat-out: to-host -> route"},
		{"one server", "wan0", "", "198.51.100.9", "192.0.2.2", 80, "flows: -> nat-in: -> nat-destinations: www -> rules: in -> nat-out: -> nat-sources: -> nat-hairpin: -> route"},
		{"several servers", "wan0", "", "198.51.100.9", "192.0.2.80", 443, "flows: -> nat-in: -> nat-destinations: shop -> servers-shop: one of 10.20.2.6:443, 10.20.2.5:443 -> rules: in -> nat-out: -> nat-sources: -> nat-hairpin: -> route"},
		{"martian", "lan0", "", "10.20.1.7", "127.0.0.1", 443, "drop (martian)"},
	}
	le := binary.LittleEndian
	capture := le.AppendUint32(nil, 0xa1b2c3d4)
	capture = append(capture, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0)
	for i, row := range rows {
		frame := simSegment(netip.MustParseAddr(row.src).AsSlice(), netip.MustParseAddr(row.dst).AsSlice(), uint16(5000+i), row.port, packet.SYN)
		capture = le.AppendUint32(capture, uint32(1_700_000_000+i))
		capture = append(capture, 0, 0, 0, 0)
		capture = append(le.AppendUint32(le.AppendUint32(capture, uint32(len(frame))), uint32(len(frame))), frame...)
	}
	for name, text := range map[string]string{"policy.yaml": tracedPolicy, "traced.pcap": string(capture)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	walks := make([]gateway.PipelineWalk, len(rows))
	for i, row := range rows {
		code, stdout, stderr := execute(t, "pipeline", "trace", "-c", "softdpu.yaml", "--routes", "routes.json", "-o", "json", "port="+row.in,
			"ipv4.src="+row.src, "ipv4.dst="+row.dst, "ip.proto=tcp", fmt.Sprintf("l4.sport=%d", 5000+i), fmt.Sprintf("l4.dport=%d", row.port))
		if err := json.Unmarshal([]byte(stdout), &walks[i]); err != nil || code != exitYes {
			t.Fatalf("%s: exit code %d, said %q, %v", row.name, code, stderr, err)
		}
		if got := told(&walks[i]); got != row.walk {
			t.Errorf("%s:\n%s, want\n%s", row.name, got, row.walk)
		}
	}
	testenv.RequireRoot(t)
	code, stdout, stderr := execute(t, "sim", "-r", "traced.pcap", "-c", "softdpu.yaml", "--routes", "routes.json", "--engine", "xdp", "-o", "json")
	if code != exitYes {
		t.Fatalf("exit code %d, said %q", code, stderr)
	}
	n := 0
	for line := range strings.Lines(stdout) {
		var o struct {
			Type, Verdict, Reason, Rule string
			NAT                         *simNAT `json:"nat"`
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		if o.Type != "packet" {
			continue
		}
		w := &walks[n]
		forward := "route"
		if o.Verdict != "allow" {
			forward = fmt.Sprintf("drop (%s)", o.Reason)
		}
		var destination, source string
		if o.NAT != nil {
			destination, source = o.NAT.DestinationRule, o.NAT.SourceRule
		}
		if w.Forward != forward || entryOf(w, "rules") != o.Rule || writes(w, "nat-destinations") != destination || writes(w, "nat-sources") != source {
			t.Errorf("%s: the kernel says %s, the trace %s", rows[n].name, line, told(w))
		}
		n++
	}
	if n != len(rows) {
		t.Errorf("the kernel was asked about %d packets of %d", n, len(rows))
	}
}

// told is a walk in one line, with what was audited in brackets.
func told(w *gateway.PipelineWalk) string {
	var parts []string
	for _, s := range w.Steps {
		entry := s.Entry
		if len(s.Audited) > 0 {
			entry = fmt.Sprintf("%v %s", s.Audited, entry)
		}
		parts = append(parts, strings.TrimRight(s.Pipe+": "+entry, " "))
	}
	return strings.Join(append(parts, w.Forward), " -> ")
}

func entryOf(w *gateway.PipelineWalk, pipe string) string {
	for _, s := range w.Steps {
		if s.Pipe == pipe {
			return s.Entry
		}
	}
	return ""
}

// writes names the nat rule of a list that changes something.
func writes(w *gateway.PipelineWalk, list string) string {
	if entry := entryOf(w, list); entry != "exempt" && entry != "not-to-vpn" {
		return entry
	}
	return ""
}

// A policy of files is shown as pipes, alone and behind a pipeline.
func TestPipelineShowsAPolicy(t *testing.T) {
	dir := simDir(t)
	for name, text := range map[string]string{"policy.yaml": tracedPolicy, "edge.yaml": edgePipeline} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	for args, want := range map[string][]string{
		"--policy policy.yaml":                      {"nat-destinations", "audit: pipe nat-out", "drop (no-rule-matched)", "policy.yaml:14"},
		"-c softdpu.yaml":                           {"builtin-management", "exempt"},
		"edge.yaml -c softdpu.yaml":                 {"no-telnet", "The policy's own pipes:"},
		"--policy policy.yaml --entries 3":          {"more)"},
		"--policy policy.yaml --plan":               {"a consistent hash by way of 4093 buckets", "rows become a search of instructions"},
		"edge.yaml --policy policy.yaml -o json":    {`"name": "edge"`, `"policy": {`, `"name": "servers-shop"`, `"audit": true`},
		"edge.yaml --policy policy.yaml -o mermaid": {`p_hosts -->|"ipv4.src=10.10.1.2"| own_flows`, `own_rules -.->|"miss"| to_drop_20_28no_2drule_2dmatched_29`},
	} {
		code, stdout, stderr := execute(t, append([]string{"pipeline", "show"}, strings.Fields(args)...)...)
		for _, text := range want {
			if code != exitYes || !strings.Contains(stdout, text) {
				t.Errorf("%s: exit code %d, says %q, prints\n%s, which lacks %q", args, code, stderr, stdout, text)
			}
		}
	}
	for args, want := range map[string]string{
		"ipv4.src=10.0.0.1":                               "needs a file with a pipeline, or a policy",
		"--policy policy.yaml ipv4.src=10.0.0.1":          "add port=NAME",
		"--policy policy.yaml port=lan0 l4.dport=80":      "add ipv4.src and ipv4.dst",
		"--policy policy.yaml port=lan1 ipv4.dst=1.2.3.4": `no port "lan1"`,
	} {
		code, _, stderr := execute(t, append([]string{"pipeline", "trace"}, strings.Fields(args)...)...)
		if code != exitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, says %q, want %q", args, code, stderr, want)
		}
	}
}

// On a narrow terminal pipes are lines of their own, and nothing is wider than it is.
func TestPolicyTableIsNarrow(t *testing.T) {
	t.Chdir(simDir(t))
	var out strings.Builder
	shown, err := loadPolicyPipes(&Env{}, &policySource{policies: []string{"policy.yaml"}}, 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := policyTable(shown.Pipeline, true, 80).write(&out, 80); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
			t.Errorf("%q is wider than 80 columns", line)
		}
	}
	for _, want := range []string{"\nrules (acl)\n", "\n  pos-pays ", "PACKETS"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s lacks %q", out.String(), want)
		}
	}
}

// A live packet's way is one line, in which the policy's own pipes begin behind "policy".
func TestWalkInALine(t *testing.T) {
	var out strings.Builder
	w := &gateway.PipelineWalk{Forward: "route", Steps: []gateway.PipelineWalkStep{
		{Pipe: "steer", Entry: "bulk"}, {Pipe: "flows", Policy: true}, {Pipe: "rules", Entry: "all", Audited: []string{"watch"}, Policy: true},
		{Pipe: "nat-sources", Entry: "branch", Does: "masquerade", Policy: true},
	}}
	if err := printWalk(&out, w, false); err != nil {
		t.Fatal(err)
	}
	want := "steer: bulk -> policy -> flows: (miss) -> rules: watch (audit) -> rules: all -> nat-sources: branch (masquerade) -> route\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
