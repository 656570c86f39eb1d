package sim

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

const second = uint64(time.Second)

// engines runs a test with each engine that can run here.
func engines(t *testing.T, test func(t *testing.T, engine Engine)) {
	for _, engine := range []Engine{EngineGo, EngineXDP} {
		t.Run(string(engine), func(t *testing.T) {
			if engine == EngineXDP && os.Geteuid() != 0 {
				if os.Getenv("CI") != "" {
					t.Fatal("this test needs root and CI runs it without: it would never run")
				}
				t.Skip("needs root: test runs of programs")
			}
			test(t, engine)
		})
	}
}

func open(t testing.TB, cfg Config) *Sim {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func send(t testing.TB, s *Sim, now uint64, port string, frame []byte) Result {
	t.Helper()
	before := bytes.Clone(frame)
	r, err := s.Packet(now, port, frame)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, frame) {
		t.Error("the caller's frame was changed")
	}
	return r
}

const routedPolicy = `zones: {lan: {ports: [lan]}, wan: {ports: [wan]}, dmz: {ports: [wan], vlans: [20]}}
rules:
  - {name: ping, from: any, to: host, service: icmp, action: allow}
  - {name: no-telnet, from: lan, to: any, service: tcp/23, action: reject}
  - {name: no-smtp, from: lan, to: any, service: tcp/25, action: deny}
  - {name: out, from: lan, to: [wan, dmz], action: allow}
`

func routed(t testing.TB) Config {
	return Config{
		Policy: compile(t, routedPolicy, firewall.CompileOptions{}),
		Ports:  []Port{{Name: "lan", MAC: [6]byte(receiverMAC), MTU: 1500, IP4: netip.MustParseAddr("10.1.0.1")}, {Name: "wan", MTU: 600}},
		Routes: []Route{
			{Prefix: netip.MustParsePrefix("10.1.0.1/32"), Kind: RouteHost},
			{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Port: "lan", MAC: [6]byte{2, 9, 9, 9, 9, 1}},
			{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Port: "wan", MAC: [6]byte{2, 9, 9, 9, 9, 2}},
			{Prefix: netip.MustParsePrefix("10.3.0.0/16"), Port: "wan", VLAN: 20, MAC: [6]byte{2, 9, 9, 9, 9, 3}},
			{Prefix: netip.MustParsePrefix("10.4.0.0/16"), Port: "wan"},
			{Prefix: netip.MustParsePrefix("10.5.0.0/16"), Kind: RouteBlocked},
			{Prefix: netip.MustParsePrefix("10.6.0.0/16"), Kind: RouteElsewhere},
		},
	}
}

func TestRouted(t *testing.T) {
	rows := []struct {
		name    string
		frame   []byte
		verdict Verdict
		reason  bpf.XDPReason
		rule    string
		out     string
		pass    bpf.XDPPassCause // valid iff verdict is Pass
	}{
		{"to the wan", udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x"), Forward, 0, "out", "wan", 0},
		{"tagged on the way out", udp(t, "10.1.0.2", "10.3.0.1", 5000, 53, "x"), Forward, 0, "out", "wan", 0},
		{"neighbour unknown", udp(t, "10.1.0.2", "10.4.0.1", 5000, 53, "x"), Pass, 0, "out", "wan", bpf.XDPPassCausePASS_NEIGHBOUR},
		{"blocked", udp(t, "10.1.0.2", "10.5.0.1", 5000, 53, "x"), Drop, bpf.XDPReasonREASON_ROUTE_BLOCKED, "none", "", 0},
		{"by a foreign device", udp(t, "10.1.0.2", "10.6.0.1", 5000, 53, "x"), Drop, bpf.XDPReasonREASON_EGRESS_NOT_A_PORT, "none", "", 0},
		{"no IPv6 route", udp(t, "2001:db8::1", "2001:db8::2", 5000, 53, "x"), Drop, bpf.XDPReasonREASON_NO_ROUTE, "none", "", 0},
		{"for the gateway", echo(t, "10.1.0.2", "10.1.0.1", true, 3), Pass, 0, "ping", "host", bpf.XDPPassCausePASS_HOST},
		{"denied", tcp(t, "10.1.0.2", "192.0.2.1", 5000, 25, "S", 1, 0), Drop, bpf.XDPReasonREASON_DENY, "no-smtp", "", 0},
		{"rejected", tcp(t, "10.1.0.2", "192.0.2.1", 5000, 23, "S", 1, 0), Answer, bpf.XDPReasonREASON_REJECT, "no-telnet", "lan", 0},
		{"not the opening segment", tcp(t, "10.1.0.2", "192.0.2.1", 5001, 80, "A", 1, 1), Drop, bpf.XDPReasonREASON_NOT_SYN, "out", "", 0},
		{"too short", []byte{1, 2, 3}, Drop, bpf.XDPReasonREASON_MALFORMED_ETHERNET, "none", "", 0},
		{"to be fragmented", udp(t, "10.1.0.2", "192.0.2.1", 5000, 54, strings.Repeat("x", 800)), Pass, 0, "out", "wan", bpf.XDPPassCausePASS_FRAGMENT},
	}
	engines(t, func(t *testing.T, engine Engine) {
		cfg := routed(t)
		cfg.Engine = engine
		s := open(t, cfg)
		for i, row := range rows {
			r := send(t, s, uint64(i)*second/10, "lan", row.frame)
			if r.Verdict != row.verdict || r.Reason != row.reason || r.Rule.Name != row.rule || r.Out != row.out {
				t.Errorf("%s: %v %v by %s to %q", row.name, r.Verdict, r.Reason, r.Rule.Name, r.Out)
			}
			if (row.verdict == Pass) != r.Passed || r.Passed && r.Cause != row.pass {
				t.Errorf("%s: passed %t, cause %v", row.name, r.Passed, r.Cause)
			}
			if (r.Frame == nil) != (row.verdict == Drop) {
				t.Errorf("%s: frame %x", row.name, r.Frame)
			}
		}
		if s.Lookup(netip.MustParseAddr("10.3.1.1")) != "wan" || s.Lookup(netip.MustParseAddr("10.1.0.1")) != "host" || s.Lookup(netip.MustParseAddr("10.5.0.1")) != "" {
			t.Error("routes are looked up wrongly")
		}
	})
}

// What leaves is what a router sends: new MACs, a tag where the next hop has one, a lower TTL.
func TestForwardedBytes(t *testing.T) {
	engines(t, func(t *testing.T, engine Engine) {
		cfg := routed(t)
		cfg.Engine = engine
		s := open(t, cfg)
		in := udp(t, "10.1.0.2", "10.3.0.1", 5000, 53, "x")
		out := send(t, s, 0, "lan", in).Frame
		want := append([]byte{2, 9, 9, 9, 9, 3, 0x02, 0x5d, 0, 0, 0, 2, 0x81, 0, 0, 20}, in[12:]...)
		want[18+8]--
		binary.BigEndian.PutUint16(want[18+10:], 0)
		binary.BigEndian.PutUint16(want[18+10:], packet.Checksum(want[18:18+20], 0))
		if !bytes.Equal(out, want) {
			t.Errorf("sent\n%x, want\n%x", out, want)
		}
		answer := ReadHeaders(send(t, s, 0, "lan", tcp(t, "10.1.0.2", "192.0.2.1", 5000, 23, "S", 7, 0)).Frame)
		if answer.Src.String() != "192.0.2.1" || answer.DstPort != 5000 || answer.TCPFlags != packet.RST|packet.ACK {
			t.Errorf("answered with %+v", answer)
		}
	})
}

func TestInlineKeepsBytes(t *testing.T) {
	engines(t, func(t *testing.T, engine Engine) {
		s := open(t, Config{Engine: engine, Policy: compile(t, `zones: {lan: {}, wan: {}}
rules: [{name: out, from: lan, to: wan, action: allow}]
`, firewall.CompileOptions{Ports: []string{"lan", "wan"}, OwnNamePorts: true})})
		frame := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")
		if r := send(t, s, 0, "lan", frame); r.Verdict != Forward || r.Out != "wan" || !bytes.Equal(r.Frame, frame) {
			t.Errorf("%+v", r)
		}
		if r := send(t, s, 0, "wan", udp(t, "192.0.2.1", "10.1.0.2", 53, 5000, "y")); r.Verdict != Forward || r.Out != "lan" || r.Rule.Name != "out" {
			t.Errorf("reply: %+v", r)
		}
		if r := send(t, s, 0, "wan", udp(t, "192.0.2.1", "10.1.0.2", 53, 5001, "y")); r.Reason != bpf.XDPReasonREASON_NO_RULE_MATCHED || r.RuleID != 0 || r.Rule.Name != "none" {
			t.Errorf("unasked: %+v", r)
		}
	})
}

// Flows age by the clock of the packets, on the same packet with both engines.
func TestAgeing(t *testing.T) {
	engines(t, func(t *testing.T, engine Engine) {
		cfg := Config{Engine: engine, Policy: compile(t, `zones: {lan: {}, wan: {}}
rules: [{name: out, from: lan, to: wan, action: allow}]
`, firewall.CompileOptions{Ports: []string{"lan", "wan"}, OwnNamePorts: true})}
		cfg.Timeouts[flowtable.ClassUDP][bpf.XDPFlowStateFLOW_NEW] = flowtable.TimeoutTicks(10 * time.Second)
		cfg.Timeouts[flowtable.ClassUDP][bpf.XDPFlowStateFLOW_REPLIED] = flowtable.TimeoutTicks(20 * 24 * time.Hour)
		s := open(t, cfg)
		start := 1_700_000_000 * second
		question := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")
		answer := udp(t, "192.0.2.1", "10.1.0.2", 53, 5000, "y")
		other := udp(t, "10.1.0.2", "192.0.2.1", 6000, 53, "x")
		send(t, s, start, "lan", question)
		send(t, s, start, "lan", other)
		if r := send(t, s, start-5*second, "wan", answer); r.Verdict != Forward {
			t.Errorf("an answer whose clock went back: %+v", r)
		}
		send(t, s, start+9*second, "lan", question)
		if n := s.Table().Flows(); n != 2 {
			t.Errorf("%d flows before the time-out", n)
		}
		send(t, s, start+11*second, "lan", question)
		if n := s.Table().Flows(); n != 1 {
			t.Errorf("%d flows after the first's time-out", n)
		}
		// 40 days: more than ticks can tell apart at once.
		if r := send(t, s, start+40*24*3600*second, "wan", answer); r.Reason != bpf.XDPReasonREASON_NO_RULE_MATCHED {
			t.Errorf("an answer 40 days later: %+v", r)
		}
	})
}

func TestPublish(t *testing.T) {
	const zones = "zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\nrules: "
	allow := compile(t, zones+"[{name: a, from: lan, to: wan, action: allow}]\n", firewall.CompileOptions{})
	deny := compile(t, zones+"[{name: d, from: lan, to: wan, action: deny}]\n", firewall.CompileOptions{})
	engines(t, func(t *testing.T, engine Engine) {
		s := open(t, Config{Engine: engine, Policy: allow})
		frame := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")
		for i, step := range []struct {
			policy *firewall.Compiled
			reason bpf.XDPReason
		}{{allow, 0}, {deny, bpf.XDPReasonREASON_POLICY_REVOKED}, {allow, 0}} {
			if i > 0 {
				if err := s.Publish(step.policy); err != nil {
					t.Fatal(err)
				}
			}
			if r := send(t, s, 0, "lan", frame); r.Reason != step.reason {
				t.Errorf("step %d: %v", i, r.Reason)
			}
		}
		other := compile(t, "zones: {lan: {ports: [lan]}}\n", firewall.CompileOptions{})
		if err := s.Publish(other); err == nil || !strings.Contains(err.Error(), "zones") {
			t.Errorf("another world was published: %v", err)
		}
	})
}

// An error is enough for its flow to be judged again: by the code of the query that it quotes, which the
// flow does not keep.
func TestErrorMeetsANewPolicy(t *testing.T) {
	query := echo(t, "10.1.0.2", "192.0.2.1", true, 9)
	query[14+20+1] = 3
	quoting := func(code byte) []byte {
		quoted := bytes.Clone(query[14:])
		quoted[20+1] = code
		return build(t, "192.0.2.7", "10.1.0.2", layers.IPProtocolICMPv4,
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeTimeExceeded, 0)}, gopacket.Payload(quoted))
	}
	text := strings.Replace(routedPolicy, "{name: out, from: lan, to: [wan, dmz], action: allow}",
		"{name: threes, from: lan, to: wan, service: icmp/echo-request/3, action: allow}", 1)
	engines(t, func(t *testing.T, engine Engine) {
		for _, row := range []struct {
			code   byte
			reason bpf.XDPReason
			rule   string
		}{{3, bpf.XDPReasonREASON_NONE, "threes"}, {0, bpf.XDPReasonREASON_ICMP_NO_FLOW, "none"}} {
			cfg := routed(t)
			cfg.Engine = engine
			cfg.Ports[1].MAC = [6]byte(receiverMAC)
			s := open(t, cfg)
			if r := send(t, s, second, "lan", query); r.Verdict != Forward {
				t.Fatalf("query: %v %v", r.Verdict, r.Reason)
			}
			if err := s.Publish(compile(t, text, firewall.CompileOptions{})); err != nil {
				t.Fatal(err)
			}
			if r := send(t, s, second, "wan", quoting(row.code)); r.Reason != row.reason || r.Rule.Name != row.rule {
				t.Errorf("error that quotes code %d: %v %v by %s, want %v by %s", row.code, r.Verdict, r.Reason, r.Rule.Name, row.reason, row.rule)
			}
		}
	})
}

func TestTolerance(t *testing.T) {
	policy, err := Everything()
	if err != nil {
		t.Fatal(err)
	}
	spoiled := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")
	spoiled[24] ^= 0xff
	rows := []struct {
		name      string
		frame     []byte
		tolerated bpf.XDPReason
		reason    bpf.XDPReason
	}{
		{"plain", udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x"), 0, 0},
		{"loopback", tcp(t, "127.0.0.1", "127.0.0.1", 5000, 80, "S", 1, 0), bpf.XDPReasonREASON_MARTIAN, 0},
		{"connection under way", tcp(t, "10.1.0.2", "192.0.2.1", 5000, 80, "PA", 1, 1), 0, 0},
		{"the answer to a SYN alone", tcp(t, "192.0.2.1", "10.1.0.2", 80, 6000, "SA", 1, 1), bpf.XDPReasonREASON_NOT_SYN, 0},
		{"IPv4 checksum", spoiled, bpf.XDPReasonREASON_MALFORMED_IPV4CHECKSUM, 0},
		{"VLAN", append(append([]byte{2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 7, 0x81, 0, 0x0f, 0xfe}, 0x08, 0), udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")[14:]...), 0, 0},
		{"what cannot be read", udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x")[:20], 0, bpf.XDPReasonREASON_MALFORMED_IPV4},
	}
	engines(t, func(t *testing.T, engine Engine) {
		s := open(t, Config{Engine: engine, Policy: policy, Tolerant: true})
		for _, row := range rows {
			r := send(t, s, 0, "lan", row.frame)
			if r.Reason != row.reason || r.Tolerated != row.tolerated {
				t.Errorf("%s: reason %v, tolerated %v", row.name, r.Reason, r.Tolerated)
			}
			if row.reason == 0 && (r.Verdict != Forward || r.Rule.Name != "allow-everything" || r.Out != "wan" || !bytes.Equal(r.Frame, row.frame)) {
				t.Errorf("%s: %+v", row.name, r)
			}
		}
	})
}

func TestWrongConfigurations(t *testing.T) {
	policy, err := Everything()
	if err != nil {
		t.Fatal(err)
	}
	two := []Port{{Name: "lan"}, {Name: "wan"}}
	for _, row := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no policy", Config{}, "no policy"},
		{"engine", Config{Policy: policy, Engine: "dpdk"}, `engine "dpdk"`},
		{"port twice", Config{Policy: policy, Ports: []Port{{Name: "a"}, {Name: "a"}}}, `port "a" is there twice`},
		{"pair of one", Config{Policy: policy, Ports: two, Inline: [][2]string{{"lan", "lan"}}}, "inline pair"},
		{"pair of none", Config{Policy: policy, Ports: two, Inline: [][2]string{{"lan", "x"}}}, "inline pair"},
		{"tolerant router", Config{Policy: policy, Ports: two, Tolerant: true}, "only inline ports"},
		{"route to no port", Config{Policy: policy, Ports: two, Routes: []Route{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Port: "x"}}}, `no port "x"`},
		{"flows", Config{Policy: policy, FlowsMax: -1}, "flows.max"},
	} {
		if s, err := New(row.cfg); err == nil {
			s.Close()
			t.Errorf("%s: no error", row.name)
		} else if !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	s := open(t, Config{Policy: policy})
	if _, err := s.Packet(0, "nowhere", nil); err == nil {
		t.Error("a packet arrived on a port that is not there")
	}
}

// A million packets go through in a differential test: nothing may be allocated for one.
func TestNoAllocs(t *testing.T) {
	engines(t, func(t *testing.T, engine Engine) {
		cfg := routed(t)
		cfg.Engine = engine
		s := open(t, cfg)
		frame, now := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x"), uint64(0)
		if n := testing.AllocsPerRun(200, func() {
			now += 1000
			if _, err := s.Packet(now, "lan", frame); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v allocations a packet", n)
		}
	})
}

// Frames of all lengths reach the program whole.
func TestLongFrames(t *testing.T) {
	engines(t, func(t *testing.T, engine Engine) {
		s := open(t, Config{Engine: engine, Policy: compile(t, `zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}
rules: [{name: out, from: lan, to: wan, action: allow}]
`, firewall.CompileOptions{})})
		for _, n := range []int{0, 1400, 3600, 9000, 65_000} {
			frame := udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, strings.Repeat("z", n))
			if r := send(t, s, 0, "lan", frame); r.Verdict != Forward || !bytes.Equal(r.Frame, frame) {
				t.Errorf("%d bytes: %v %v, %d bytes left", n, r.Verdict, r.Reason, len(r.Frame))
			}
		}
		frame := append(udp(t, "10.1.0.2", "192.0.2.1", 5000, 53, "x"), make([]byte, 100_000)...)
		if r := send(t, s, 0, "lan", frame); r.Verdict != Forward || len(r.Frame) != MaxFrame {
			t.Errorf("padded: %v %v, %d bytes left", r.Verdict, r.Reason, len(r.Frame))
		}
	})
}
