package sim

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
)

func replay(t *testing.T, cfg Config, in string) *Replay {
	t.Helper()
	r, err := NewReplay(open(t, cfg), in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func play(t *testing.T, r *Replay, frame []byte) Outcome {
	t.Helper()
	return playCut(t, r, frame, len(frame))
}

func playCut(t *testing.T, r *Replay, frame []byte, original int) Outcome {
	t.Helper()
	o, err := r.Packet(&Captured{N: 1, Link: LinkEthernet, Data: frame, Original: original})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func tolerant(t *testing.T) Config {
	t.Helper()
	policy, err := Everything()
	if err != nil {
		t.Fatal(err)
	}
	return Config{Policy: policy, Tolerant: true}
}

// The first packet of a conversation comes in by one port, its replies by the other, whoever speaks.
func TestDirections(t *testing.T) {
	const a, b = "10.1.0.2", "192.0.2.1"
	question := udp(t, a, b, 5000, 53, "x")
	unreachable := func(src string, about []byte) []byte {
		return build(t, src, a, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 3)}, gopacket.Payload(about[14:14+28]))
	}
	first := udp(t, a, b, 7000, 7001, strings.Repeat("f", 24))
	fragment := func(offset uint16, more bool, payload []byte) []byte {
		flags := layers.IPv4Flag(0)
		if more {
			flags = layers.IPv4MoreFragments
		}
		b := gopacket.NewSerializeBuffer()
		ip := &layers.IPv4{Version: 4, TTL: 64, Id: 99, Protocol: 17, SrcIP: []byte{10, 1, 0, 2}, DstIP: []byte{192, 0, 2, 1}, FragOffset: offset / 8, Flags: flags}
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, gopacket.Payload(payload)); err != nil {
			t.Fatal(err)
		}
		return append(bytes.Clone(first[:14]), b.Bytes()...)
	}
	arp := func(sender, target byte) []byte {
		f := append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, sender, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, sender, 10, 0, 0, sender)
		return append(f, 0, 0, 0, 0, 0, 0, 10, 0, 0, target)
	}
	steps := []struct {
		name  string
		frame []byte
		in    string
		flow  int
	}{
		{"question", question, "lan", 1},
		{"answer", udp(t, b, a, 53, 5000, "y"), "wan", 1},
		{"another question, from the other end", udp(t, b, a, 6000, 53, "x"), "lan", 2},
		{"its answer", udp(t, a, b, 53, 6000, "x"), "wan", 2},
		{"port unreachable", unreachable(b, question), "wan", 1},
		{"time exceeded on the way", unreachable("198.51.100.9", question), "wan", 1},
		{"ping", echo(t, a, b, true, 9), "lan", 3},
		{"pong", echo(t, b, a, false, 9), "wan", 3},
		{"first fragment", fragment(0, true, first[34:34+16]), "lan", 4},
		{"later fragment", fragment(16, false, first[34+16:]), "lan", 4},
		{"SYN", tcp(t, a, b, 8000, 80, "S", 1, 0), "lan", 5},
		{"SYN and ACK", tcp(t, b, a, 80, 8000, "SA", 1, 2), "wan", 5},
		{"RST", tcp(t, b, a, 80, 8000, "RA", 2, 2), "wan", 5},
		{"a new connection between the same ports, from the server", tcp(t, b, a, 80, 8000, "S", 9, 0), "lan", 6},
		{"who has", arp(1, 2), "lan", 7},
		{"it is at", arp(2, 1), "wan", 7},
		{"answer to a SYN that is not there", tcp(t, b, a, 81, 8001, "SA", 1, 2), "lan", 8},
	}
	r := replay(t, tolerant(t), "lan")
	for _, step := range steps {
		o := play(t, r, step.frame)
		if o.In != step.in || o.Conversation.ID != step.flow {
			t.Errorf("%s: in by %s, flow %d, want %s, %d", step.name, o.In, o.Conversation.ID, step.in, step.flow)
		}
		if o.Verdict != Forward {
			t.Errorf("%s: %v %v", step.name, o.Verdict, o.Reason)
		}
	}
	all := r.Conversations()
	if c := all[7]; c.Source != 1 || c.Port != [2]uint16{81, 8001} {
		t.Errorf("the source of a connection is who sent the SYN: %+v", c)
	}
	if c := all[0]; c.Packets != [2]uint64{1, 3} || c.Bytes != [2]uint64{29, 29 + 56 + 56} || c.Source != 0 {
		t.Errorf("first conversation: %+v", c)
	}
}

// Routed ports: by the route to the sender, addressed to the port.
func TestRoutedReplay(t *testing.T) {
	r := replay(t, routed(t), "")
	if o := play(t, r, udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")); o.In != "lan" || o.Verdict != Forward || o.Out != "wan" {
		t.Errorf("from the lan: in by %s, %v %v", o.In, o.Verdict, o.Reason)
	}
	if o := play(t, r, udp(t, "192.0.2.1", "10.1.0.2", 53, 5000, "y")); o.In != "wan" || o.Verdict != Forward || o.Out != "lan" {
		t.Errorf("reply: in by %s, %v %v", o.In, o.Verdict, o.Reason)
	}
	if o := play(t, r, udp(t, "192.0.2.1", "10.1.0.2", 53, 5001, "y")); o.In != "wan" || o.Reason != bpf.XDPReasonREASON_NO_RULE_MATCHED {
		t.Errorf("from the wan: in by %s, %v %v", o.In, o.Verdict, o.Reason)
	}
	if o := play(t, r, echo(t, "10.1.0.2", "10.1.0.1", true, 1)); o.In != "lan" || !o.Passed {
		t.Errorf("to the gateway: in by %s, %v %v", o.In, o.Verdict, o.Reason)
	}
	if _, err := NewReplay(r.sim, "dmz"); err == nil {
		t.Error("a replay by a port that is not there")
	}
}

// What a capture cut off is reported and does not make a packet malformed; what is written is as short.
func TestTruncated(t *testing.T) {
	r := replay(t, tolerant(t), "lan")
	frame := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, strings.Repeat("x", 400))
	o := playCut(t, r, frame[:60], len(frame))
	if o.Verdict != Forward || !o.Truncated || !slices.Equal(o.Anomalies, []string{"truncated"}) || len(o.Frame) != 60 {
		t.Errorf("%v %v, %v, %d bytes left", o.Verdict, o.Reason, o.Anomalies, len(o.Frame))
	}
	if o := playCut(t, r, frame[:36], len(frame)); o.Verdict != Drop || !o.Truncated {
		t.Errorf("inside the headers: %v %v", o.Verdict, o.Reason)
	}
	routedReplay := replay(t, routed(t), "lan")
	if o := playCut(t, routedReplay, frame[:60], len(frame)); o.Verdict != Forward || len(o.Frame) != 60 || !bytes.HasPrefix(o.Frame, []byte{2, 9, 9, 9, 9, 2}) {
		t.Errorf("routed: %v %v, %d bytes left", o.Verdict, o.Reason, len(o.Frame))
	}
}

func TestAnomalies(t *testing.T) {
	v6 := build(t, "2001:db8::1", "2001:db8::2", layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}, gopacket.Payload("\x00\x01\x00\x01"))
	spoil := func(frame []byte, at int) []byte {
		frame = bytes.Clone(frame)
		frame[at] ^= 0x55
		return frame
	}
	none := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")
	none[40], none[41] = 0, 0
	rows := []struct {
		name  string
		frame []byte
		want  string
	}{
		{"nothing wrong", udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x"), ""},
		{"no UDP checksum", none, ""},
		{"padding", append(tcp(t, "10.1.0.2", "192.0.2.1", 5000, 80, "S", 1, 0), 1, 2, 3, 4, 5, 6), ""},
		{"IPv4", spoil(udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x"), 24), "ipv4-checksum"},
		{"UDP", spoil(udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x"), 40), "udp-checksum"},
		{"TCP", spoil(tcp(t, "10.1.0.2", "192.0.2.1", 5000, 80, "S", 1, 0), 50), "tcp-checksum"},
		{"ICMP", spoil(echo(t, "10.1.0.2", "192.0.2.1", true, 1), 36), "icmp-checksum"},
		{"ICMPv6, right", v6, ""},
		{"ICMPv6", spoil(v6, 56), "icmpv6-checksum"},
		{"loopback", tcp(t, "127.0.0.1", "127.0.0.2", 5000, 80, "S", 1, 0), "martian"},
		{"no IP", append(bytes.Clone(v6[:12]), 0x88, 0xcc, 1, 2), "ethertype"},
	}
	for _, row := range rows {
		o := play(t, replay(t, tolerant(t), "lan"), row.frame)
		if got := strings.Join(o.Anomalies, " "); got != row.want || o.Verdict != Forward {
			t.Errorf("%s: %q, want %q; %v %v", row.name, got, row.want, o.Verdict, o.Reason)
		}
	}
}
