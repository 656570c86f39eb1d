package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const edgePipeline = `apiVersion: softdpu/v1
kind: Pipeline
name: edge
root: steer
pipes:
  - name: steer
    kind: control
    miss: policy
    monitor: {count: true}
    entries:
      - {name: no-telnet, priority: 1, match: {port: lan0, ip.proto: tcp, l4.dport: 23}, forward: drop}
      - {name: web, priority: 2, match: {l4.dport: 80-90}, forward: {pipe: hosts}}
  - name: hosts
    kind: basic
    match: [ipv4.src]
    size: 1000
    miss: drop
    entries: [{match: {ipv4.src: 10.10.1.2}, forward: policy}]
`

const rewritingPipeline = `apiVersion: softdpu/v1
kind: Pipeline
name: rewrites
root: all
pipes:
  - name: all
    kind: control
    miss: drop
    forward: policy
    actions: [{do: [{push_vlan: {id: 100}}, {set: ipv4.src, value: 192.0.2.1}]}]
    entries: [{name: everything}]
`

// telnetFrame is a SYN from 10.0.0.1 to port 23 of 10.0.0.2.
const telnetFrame = "0200000000020200000000010800" + "450000280000400040060000" + "0a0000010a000002" + "9c4000170000000100000000500204000000" + "0000"

// What can be said of a file needs neither root nor a gateway.
func TestPipelineOfFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edge.yaml")
	if err := os.WriteFile(file, []byte(edgePipeline), 0o644); err != nil {
		t.Fatal(err)
	}
	rewrites := filepath.Join(t.TempDir(), "rewrites.yaml")
	if err := os.WriteFile(rewrites, []byte(rewritingPipeline), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"check FILE", []string{"edge: 2 pipes, 3 entries, "}},
		{"show FILE", []string{"PIPE   KIND     ENTRY", "no-telnet", "port=lan0 ip.proto=tcp l4.dport=23", "pipe hosts", "(miss)"}},
		{"show FILE --entries 1", []string{"(1 more)"}},
		{"show FILE --plan", []string{"BECAME", "code", "exact"}},
		{"show FILE -o json", []string{`"name": "edge"`, `"became": "exact"`, `"packets": null`}},
		{"show FILE -o mermaid", []string{"flowchart TD", `p_steer -->|"web"| p_hosts`, `p_hosts -.->|"miss"| to_drop`}},
		{"trace FILE ipv4.src=10.10.1.2 ip.proto=tcp l4.dport=80", []string{"steer: web -> hosts: ipv4.src=10.10.1.2 -> policy\n"}},
		{"trace FILE ipv4.src=10.10.1.3 ip.proto=tcp l4.dport=80", []string{"steer: web -> hosts: (miss) -> drop\n"}},
		{"trace FILE port=lan0 ip.proto=tcp l4.dport=23", []string{"steer: no-telnet -> drop\n"}},
		{"trace FILE port=lan0 frame=" + telnetFrame, []string{"steer: no-telnet -> drop\n"}},
		{"trace REWRITES frame=" + telnetFrame, []string{"all: everything -> policy\nleaves as 02000000000202000000000181000064080045000028000040004006"}},
	} {
		code, stdout, stderr := execute(t, append([]string{"pipeline"}, strings.Fields(strings.NewReplacer("FILE", file, "REWRITES", rewrites).Replace(tt.args))...)...)
		for _, want := range tt.want {
			if code != exitYes || !strings.Contains(stdout, want) {
				t.Errorf("%s: exit code %d, says %q, prints\n%s, which lacks %q", tt.args, code, stderr, stdout, want)
			}
		}
	}
	for args, want := range map[string]string{
		"entry add hosts":                                            "needs a FILE, or an entry by flags",
		"entry add hosts FILE --name x":                              "needs a FILE, or an entry by flags",
		"entry add hosts --match ipv4.src":                           "it is FIELD=VALUE",
		"entry update hosts --match ipv4.src=1 --match ipv4.src=2":   "field ipv4.src is given twice",
		"entry remove hosts --name x --forward drop":                 "has no flag --forward",
		"entry remove hosts --name x --socket " + t.TempDir() + "/s": "start it with 'softdpu run -c FILE'",
		"entries hosts --limit -1":                                   "--limit and --after are numbers of entries",
	} {
		code, _, stderr := execute(t, append([]string{"pipeline"}, strings.Fields(strings.Replace(args, "FILE", file, 1))...)...)
		if code != exitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, says %q, want %q", args, code, stderr, want)
		}
	}
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(wrong, []byte(strings.Replace(edgePipeline, "{pipe: hosts}", "{pipe: host}", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"check " + wrong:                                      `wrong.yaml:12:`,
		"show " + wrong:                                       `did you mean "hosts"?`,
		"show " + file + " -o dot":                            "it is table, json or mermaid",
		"trace " + file + " l4.dprt=1":                        `did you mean "l4.dport"?`,
		"trace " + file + " l4.dport":                         "is not FIELD=VALUE",
		"trace " + file + " port=wan0":                        `names no port "wan0"`,
		"trace " + file + " l4.dport=80-90":                   "is a range",
		"trace " + file + " frame=0x":                         "write its bytes in hexadecimal",
		"trace " + file + " l4.dport=80 frame=" + telnetFrame: "the frame says that itself",
		"apply " + file + "x":                                 "no such file",
		"remove":                                              "no softdpu answers",
	} {
		code, _, stderr := execute(t, append([]string{"pipeline"}, append(strings.Fields(args), "--socket", "/nowhere")...)...)
		if strings.HasPrefix(args, "check") {
			code, _, stderr = execute(t, append([]string{"pipeline"}, strings.Fields(args)...)...)
		}
		if code != exitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, says %q, want %q", args, code, stderr, want)
		}
	}
}
