package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/gateway/sim"
	"github.com/softdpu/softdpu/testenv"
)

// natDir is simDir with a policy that translates, and a capture taken in front of the gateway.
func natDir(t *testing.T) string {
	t.Helper()
	dir := simDir(t)
	le := binary.LittleEndian
	capture := le.AppendUint32(nil, 0xa1b2c3d4)
	capture = append(capture, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0)
	client, web, stranger, own := []byte{10, 20, 1, 7}, []byte{203, 0, 113, 5}, []byte{198, 51, 100, 9}, []byte{192, 0, 2, 2}
	for i, frame := range [][]byte{
		simSegment(client, web, 1000, 443, packet.SYN),
		simSegment(web, client, 443, 1000, packet.SYN|packet.ACK),
		simSegment(client, web, 2000, 443, packet.SYN),
		simSegment(stranger, own, 3000, 80, packet.SYN),
		simSegment(own, stranger, 80, 3000, packet.SYN|packet.ACK),
		simSegment(client, []byte{10, 99, 0, 1}, 4000, 443, packet.SYN),
	} {
		capture = le.AppendUint32(capture, uint32(1_700_000_000+i))
		capture = append(capture, 0, 0, 0, 0)
		capture = le.AppendUint32(le.AppendUint32(capture, uint32(len(frame))), uint32(len(frame)))
		capture = append(capture, frame...)
	}
	for name, text := range map[string]string{
		"policy.yaml": `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0], addresses: [10.20.0.0/16]}
  wan: {ports: [wan0]}
nat:
  - {name: not-to-vpn, from: lan, to: {zone: wan, addresses: [10.99.0.0/16]}, keep: true}
  - {name: branch, from: lan, to: wan, masquerade: {ports: 2000-65535}}
  - {name: www, from: any, to: host, service: tcp/80, dnat: {to: 10.20.2.2, port: 8080}}
rules:
  - {name: all, from: any, to: any, action: allow}
`,
		"nat.pcap": string(capture),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A capture in front of a gateway that translates: what leaves bears other addresses, and replies, which the
// capture knows as the opener does, find their connections.
func TestSimTranslates(t *testing.T) {
	for _, engine := range []string{"go", "xdp"} {
		t.Run(engine, func(t *testing.T) {
			if engine == "xdp" {
				testenv.RequireRoot(t)
			}
			t.Chdir(natDir(t))
			code, stdout, stderr := execute(t, "sim", "-r", "nat.pcap", "-c", "softdpu.yaml", "--routes", "routes.json", "--engine", engine, "-o", "json", "-w", "out.pcap")
			if code != exitYes || stderr != "" {
				t.Fatalf("exit code %d, said %q", code, stderr)
			}
			port := func(n uint16) *uint16 { return &n }
			packets := []*simNAT{
				nil, // its port is not one of the rule's, and is looked at below
				{SrcIP: "203.0.113.5", SrcPort: port(443), DestIP: "10.20.1.7", DestPort: port(1000), SourceRule: "branch"},
				{SrcIP: "192.0.2.2", SrcPort: port(2000), DestIP: "203.0.113.5", DestPort: port(443), SourceRule: "branch"},
				{SrcIP: "198.51.100.9", SrcPort: port(3000), DestIP: "10.20.2.2", DestPort: port(8080), DestinationRule: "www"},
				{SrcIP: "192.0.2.2", SrcPort: port(80), DestIP: "198.51.100.9", DestPort: port(3000), DestinationRule: "www"},
				nil,
			}
			var outs []string
			var flows []*simNAT
			for line := range strings.Lines(stdout) {
				var o struct {
					Type, Verdict, Out, Reason string
					N                          int
					NAT                        *simNAT `json:"nat"`
				}
				if err := json.Unmarshal([]byte(line), &o); err != nil {
					t.Fatal(err)
				}
				switch o.Type {
				case "packet":
					if o.Verdict != "allow" {
						t.Errorf("packet %d: %s %s", o.N, o.Verdict, o.Reason)
					}
					outs = append(outs, o.Out)
					if o.N == 1 {
						if o.NAT == nil || o.NAT.SrcIP != "192.0.2.2" || *o.NAT.SrcPort < 2000 || o.NAT.SourceRule != "branch" {
							t.Errorf("packet 1 leaves with %+v", o.NAT)
						}
						continue
					}
					if !reflect.DeepEqual(o.NAT, packets[o.N-1]) {
						t.Errorf("packet %d leaves with %s", o.N, line)
					}
				case "flow":
					flows = append(flows, o.NAT)
				}
			}
			if got := strings.Join(outs, " "); got != "wan0 lan0 wan0 lan0 wan0 wan0" {
				t.Errorf("packets leave by %s", got)
			}
			if len(flows) != 4 || flows[0] == nil || flows[0].SourceRule != "branch" || flows[2] == nil || flows[2].DestIP != "10.20.2.2" || flows[3] != nil {
				t.Errorf("flows are translated to %+v", flows)
			}
			checkTranslatedCapture(t, "out.pcap")
		})
	}
}

// checkTranslatedCapture reads what sim wrote: sound packets with the addresses with which they leave.
func checkTranslatedCapture(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	capture, err := sim.NewCapture(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"192.0.2.2 203.0.113.5", "203.0.113.5 10.20.1.7", "192.0.2.2 203.0.113.5", "198.51.100.9 10.20.2.2", "192.0.2.2 198.51.100.9", "10.20.1.7 10.99.0.1",
	} {
		var c sim.Captured
		if err := capture.Next(&c); err != nil {
			t.Fatal(err)
		}
		h := sim.ReadHeaders(c.Data)
		if got := h.Src.String() + " " + h.Dst.String(); got != want {
			t.Errorf("packet %d is of %s, want %s", c.N, got, want)
		}
		src, dst := packet.Addr{}, packet.Addr{}
		copy(src[:], h.Src.AsSlice())
		copy(dst[:], h.Dst.AsSlice())
		segment := c.Data[h.L4 : h.L3+h.Length]
		if packet.Checksum(segment, packet.PseudoSum(4, &src, &dst, packet.ProtoTCP, len(segment))) != 0 {
			t.Errorf("packet %d: the checksum of TCP is wrong", c.N)
		}
	}
}

// What masquerading writes can be said where the routes do not tell it, and inline ports translate nothing.
func TestSimAddress(t *testing.T) {
	t.Chdir(natDir(t))
	code, stdout, stderr := execute(t, "sim", "-r", "nat.pcap", "-c", "softdpu.yaml", "--routes", "routes.json", "--address", "wan0=198.18.0.1")
	if code != exitYes || stderr != "" || !strings.Contains(stdout, "198.18.0.1:2000 > *") || !strings.Contains(stdout, "* > 10.20.2.2:8080") {
		t.Errorf("exit code %d, said %q, printed:\n%s", code, stderr, stdout)
	}
	code, stdout, stderr = execute(t, "sim", "-r", "nat.pcap", "--policy", "policy.yaml")
	if code != exitYes || !strings.Contains(stderr, "inline ports translate nothing") || strings.Contains(stdout, "192.0.2.2:2000 >") {
		t.Errorf("exit code %d, said %q, printed:\n%s", code, stderr, stdout)
	}
	for text, want := range map[string]string{"lan0": "write PORT=ADDRESS", "nope=192.0.2.9": `no port "nope"`} {
		if code, _, stderr := execute(t, "sim", "-r", "nat.pcap", "-c", "softdpu.yaml", "--routes", "routes.json", "--address", text); code == exitYes || !strings.Contains(stderr, want) {
			t.Errorf("--address %s: exit code %d, said %q", text, code, stderr)
		}
	}
}
