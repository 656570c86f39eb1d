package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/dataplane/packet"
)

// simDir makes a folder with a policy, a configuration, routes and a capture of seven packets.
func simDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"softdpu.yaml": `apiVersion: softdpu/v1
kind: Gateway
ports: {lan0: {device: eth1}, wan0: {device: eth0}}
policy: policy.yaml
management: {from: [lan], services: [tcp/22]}
`,
		"inline.yaml": `apiVersion: softdpu/v1
kind: Gateway
ports: {lan0: {device: eth1}, wan0: {device: eth0}}
inline: [[lan0, wan0]]
policy: policy.yaml
management: none
`,
		"policy.yaml": `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0], addresses: [10.20.0.0/16]}
  wan: {ports: [wan0]}
workloads: {pos: {zone: lan, addresses: [10.20.1.0/24]}}
rules:
  - {name: watch, from: lan, to: wan, service: tcp/443, action: deny, mode: audit}
  - {name: no-telnet, from: lan, to: any, service: tcp/23, action: reject}
  - {name: no-smtp, from: lan, to: any, service: tcp/25, action: deny}
  - name: pos-pays
    from: pos
    to: {zone: wan, addresses: [203.0.113.0/28]}
    service: tcp/443
    action: allow
tests:
  - {name: pos may pay, packet: {in: lan0, out: wan0, src: 10.20.1.7, dst: 203.0.113.5, service: tcp/443}, expect: {verdict: allow, rule: pos-pays}}
`,
		"routes.json": `[{"dst":"default","gateway":"192.0.2.1","dev":"eth0","flags":[]},
 {"dst":"192.0.2.0/24","dev":"eth0","protocol":"kernel","scope":"link","prefsrc":"192.0.2.2","flags":[]},
 {"dst":"10.20.0.0/16","dev":"eth1","protocol":"kernel","scope":"link","prefsrc":"10.20.0.1","flags":[]}]
`,
		"in.pcap": string(simCapture()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// simCapture is a capture of seven frames, one a second.
func simCapture() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0)
	client, server := []byte{10, 20, 1, 7}, []byte{203, 0, 113, 5}
	for i, frame := range [][]byte{
		simSegment(client, server, 1000, 443, packet.SYN),
		simSegment(server, client, 443, 1000, packet.SYN|packet.ACK),
		simSegment(client, server, 1001, 23, packet.SYN),
		simSegment(client, server, 1002, 25, packet.SYN),
		simSegment([]byte{10, 20, 9, 7}, server, 1003, 443, packet.SYN),
		simSegment(client, server, 1004, 443, packet.ACK),
		simSegment([]byte{10, 99, 1, 7}, server, 1005, 443, packet.SYN)[:40],
	} {
		b = le.AppendUint32(b, uint32(1_700_000_000+i))
		b = append(b, 0, 0, 0, 0)
		b = le.AppendUint32(le.AppendUint32(b, uint32(len(frame))), 54)
		b = append(b, frame...)
	}
	return b
}

func simSegment(src, dst []byte, sport, dport uint16, flags byte) []byte {
	be := binary.BigEndian
	ip := append(append([]byte{0x45, 0, 0, 40, 0, 1, 0, 0, 64, packet.ProtoTCP, 0, 0}, src...), dst...)
	be.PutUint16(ip[10:], packet.Checksum(ip, 0))
	tcp := be.AppendUint16(be.AppendUint16(nil, sport), dport)
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 16, 0, 0, 0, 0, 0)
	var a, b packet.Addr
	copy(a[:], src)
	copy(b[:], dst)
	be.PutUint16(tcp[16:], packet.Checksum(tcp, packet.PseudoSum(4, &a, &b, packet.ProtoTCP, len(tcp))))
	return append(append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, ip...), tcp...)
}

func TestSimTable(t *testing.T) {
	t.Chdir(simDir(t))
	code, stdout, stderr := execute(t, "sim", "-r", "in.pcap", "--policy", "policy.yaml")
	lines := strings.Split(stdout, "\n")
	for i, cells := range [][]string{
		{"N", "TIME", "IN", "OUT", "PROTO", "SOURCE", "DESTINATION", "VERDICT", "RULE", "REASON", "ANOMALIES"},
		{"1", "0.000000", "lan", "wan", "tcp", "10.20.1.7:1000", "203.0.113.5:443", "allow", "pos-pays", "(policy.yaml:11)", "-", "-"},
		{"2", "1.000000", "wan", "lan", "tcp", "203.0.113.5:443", "10.20.1.7:1000", "allow", "pos-pays", "(policy.yaml:11)", "-", "-"},
		{"3", "2.000000", "lan", "-", "tcp", "10.20.1.7:1001", "203.0.113.5:23", "reject", "no-telnet", "(policy.yaml:9)", "reject", "-"},
		{"4", "3.000000", "lan", "-", "tcp", "10.20.1.7:1002", "203.0.113.5:25", "deny", "no-smtp", "(policy.yaml:10)", "deny", "-"},
		{"5", "4.000000", "lan", "-", "tcp", "10.20.9.7:1003", "203.0.113.5:443", "deny", "-", "no-rule-matched", "-"},
		{"6", "5.000000", "lan", "-", "tcp", "10.20.1.7:1004", "203.0.113.5:443", "drop", "pos-pays", "(policy.yaml:11)", "not-syn", "-"},
		{"7", "6.000000", "lan", "-", "tcp", "10.99.1.7", "203.0.113.5", "drop", "-", "malformed-ipv4", "truncated"},
	} {
		if got := strings.Fields(lines[i]); !slices.Equal(got, cells) {
			t.Errorf("line %d: %q, want %q", i, got, cells)
		}
	}
	for _, part := range []string{
		"1  tcp    10.20.1.7:1000  203.0.113.5:443  allow    pos-pays (policy.yaml:11)",
		"7 packets in 6 flows, 6s: 2 allowed, 2 denied, 1 rejected, 2 dropped (engine go)",
		"rules      pos-pays 3, no-smtp 1, no-telnet 1",
		"reasons    deny 1, malformed-ipv4 1, no-rule-matched 1, not-syn 1, reject 1",
		"anomalies  truncated 1",
	} {
		if !strings.Contains(stdout, part) {
			t.Errorf("it does not print %q", part)
		}
	}
	if code != exitYes || stderr != "" || t.Failed() {
		t.Errorf("exit code %d, said %q, printed:\n%s", code, stderr, stdout)
	}
}

func jsonLines(t *testing.T, text string) (lines []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}

// The engines print the same, line by line, but for the summary's own name of the engine.
func TestSimJSON(t *testing.T) {
	t.Chdir(simDir(t))
	for _, args := range [][]string{
		{"--policy", "policy.yaml"},
		{"-c", "inline.yaml"},
		{"-c", "softdpu.yaml", "--routes", "routes.json"},
		{},
	} {
		code, stdout, stderr := execute(t, append([]string{"sim", "-r", "in.pcap", "-o", "json"}, args...)...)
		if code != exitYes || stderr != "" {
			t.Fatalf("%v: exit code %d: %s", args, code, stderr)
		}
		lines := jsonLines(t, stdout)
		if len(lines) != 7+6+1 {
			t.Fatalf("%v: %d lines:\n%s", args, len(lines), stdout)
		}
		for i, line := range lines {
			if want := []string{"packet", "flow", "summary"}[min(i/7, 1)+i/13]; line["type"] != want {
				t.Errorf("%v: line %d is a %v, want a %s", args, i, line["type"], want)
			}
		}
		if os.Geteuid() == 0 {
			_, xdp, _ := execute(t, append([]string{"sim", "-r", "in.pcap", "-o", "json", "--engine", "xdp"}, args...)...)
			if strings.Replace(xdp, `"engine":"xdp"`, `"engine":"go"`, 1) != stdout {
				t.Errorf("%v: the engines differ:\n%s\nand\n%s", args, stdout, xdp)
			}
		}
		first, sixth, flow, summary := lines[0], lines[5], lines[7], lines[13]
		if len(args) == 0 {
			verdicts := summary["verdicts"].(map[string]any)
			if first["rule"] != "allow-everything" || verdicts["allow"] != 6.0 || verdicts["drop"] != 1.0 {
				t.Errorf("without a policy: %v", summary)
			}
			continue
		}
		for key, want := range map[string]any{
			"n": 1.0, "verdict": "allow", "rule": "pos-pays", "line": 11.0, "tier": "xdp", "src_ip": "10.20.1.7", "src_port": 1000.0,
			"dest_ip": "203.0.113.5", "dest_port": 443.0, "proto": "TCP", "reason": nil, "flow_id": 1.0, "timestamp": "2023-11-14T22:13:20.000000000Z",
		} {
			if first[key] != want {
				t.Errorf("%v: the first packet's %s is %v, want %v", args, key, first[key], want)
			}
		}
		if !strings.HasSuffix(first["file"].(string), "policy.yaml") || !strings.HasPrefix(first["out"].(string), "wan") {
			t.Errorf("%v: %v", args, first)
		}
		if sixth["verdict"] != "drop" || sixth["reason"] != "not-syn" || sixth["out"] != nil {
			t.Errorf("%v: %v", args, sixth)
		}
		if fifth := lines[4]; fifth["reason"] != "no-rule-matched" || fifth["rule"] != nil || fifth["file"] != nil || fifth["line"] != nil {
			t.Errorf("%v: %v", args, fifth)
		}
		if flow["src_port"] != 1000.0 || flow["rule"] != "pos-pays" || flow["proto"] != "TCP" || flow["refused"] != 0.0 {
			t.Errorf("%v: %v", args, flow)
		}
	}
}

func TestSimWrites(t *testing.T) {
	t.Chdir(simDir(t))
	if code, _, stderr := execute(t, "sim", "-c", "softdpu.yaml", "--routes", "routes.json", "-r", "in.pcap", "-w", "out.pcap"); code != exitYes {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	_, stdout, _ := execute(t, "sim", "-r", "out.pcap", "-o", "json")
	lines := jsonLines(t, stdout)
	if len(lines) != 2+1+1 || lines[0]["timestamp"] != "2023-11-14T22:13:20.000000000Z" || lines[1]["src_port"] != 443.0 {
		t.Fatalf("what left:\n%s", stdout)
	}
	b, err := os.ReadFile("out.pcap")
	if err != nil {
		t.Fatal(err)
	}
	if frame := b[40:]; frame[0] != 0x02 || frame[1] != 0x5e || frame[22] != 63 {
		t.Errorf("the first frame does not go to a next hop with its TTL lowered: %x", frame[:34])
	}
}

func TestSimWrongUse(t *testing.T) {
	dir := simDir(t)
	t.Chdir(dir)
	whole, err := os.ReadFile("in.pcap")
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"cut.pcap": whole[:150], "wifi.pcap": append(append([]byte(nil), whole[:20]...), 105, 0, 0, 0), "text.pcap": []byte("hello, world")} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct{ name, args, want string }{
		{"no capture", "sim", "needs a capture: -r FILE"},
		{"capture as an argument", "sim in.pcap", "read a capture with -r"},
		{"unknown engine", "sim -r in.pcap --engine xdq", "did you mean xdp?"},
		{"unreadable capture", "sim -r none.pcap", "none.pcap: no such file"},
		{"no capture at all", "sim -r text.pcap", "text.pcap: read capture: neither pcap nor pcapng"},
		{"link type", "sim -r wifi.pcap", "link type 105, IEEE802_11 (Wi-Fi) is not supported"},
		{"cut", "sim -r cut.pcap", "cut.pcap: read packet 2: the capture ends inside it"},
		{"unknown port", "sim -r in.pcap --in lann", "there are lan, wan; did you mean lan?"},
		{"routed without routes", "sim -r in.pcap -c softdpu.yaml", "port lan0 is routed: give the gateway's routes with --routes"},
		{"routes without use", "sim -r in.pcap --routes routes.json", "--routes without -c"},
		{"bad routes", "sim -r in.pcap -c softdpu.yaml --routes policy.yaml", "not what `ip -j route show table all` prints"},
		{"unwritable", "sim -r in.pcap -w none/out.pcap", "write capture: open none/out.pcap"},
		{"unreadable policy", "sim -r in.pcap --policy none.yaml", "none.yaml: no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if code, _, stderr := execute(t, strings.Fields(tt.args)...); code != exitError || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit code %d, said:\n%s", code, stderr)
			}
		})
	}
	// What stood before the cut is printed all the same.
	if _, stdout, _ := execute(t, "sim", "-r", "cut.pcap"); !strings.Contains(stdout, "1 packet in 1 flow") {
		t.Errorf("before the cut:\n%s", stdout)
	}
}

func TestSimReadsStandardInput(t *testing.T) {
	t.Chdir(simDir(t))
	var out, complaints strings.Builder
	env := &Env{Stdin: strings.NewReader(string(simCapture())), Stdout: &out, Stderr: &complaints, Getenv: os.Getenv, Width: func() int { return 0 }}
	if code := run(t.Context(), env, []string{"sim", "-r", "-", "--policy", "policy.yaml"}); code != exitYes || !strings.Contains(out.String(), "7 packets in 6 flows") {
		t.Errorf("exit code %d: %s%s", code, complaints.String(), out.String())
	}
}
