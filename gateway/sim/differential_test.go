package sim

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/gateway/sim/oracle"
	"github.com/softdpu/softdpu/gateway/sim/traffic"
	"github.com/softdpu/softdpu/testenv"
)

// docs/PACKET-PATH.md was read three times: for the XDP program, for the Go executor and for the
// oracle, which shares no code with them. Random traffic through random gateways: all three say the
// same of each packet. SOFTDPU_LONG=1 makes it a million packets.
func TestThreeReadings(t *testing.T) {
	const packets = 10_000 // of a stream
	streams := uint64(6)
	if os.Getenv("SOFTDPU_LONG") != "" {
		streams = 100
	}
	seed := uint64(time.Now().UnixNano())
	for _, engine := range []Engine{EngineGo, EngineXDP} {
		t.Run(string(engine), func(t *testing.T) {
			if engine == EngineXDP {
				testenv.RequireRoot(t)
			}
			t.Logf("seeds %d to %d", seed, seed+streams-1)
			all := traffic.NewTally()
			for i := range streams {
				readStream(t, engine, seed+i, packets, all)
			}
			t.Logf("%d packets, %d of them allowed, %d with a smaller MSS, %d rules", all.Packets, all.Allowed, all.Clamped, len(all.Rules))
			covered(t, all)
		})
	}
}

// unreachable are the reasons that traffic of a stream cannot meet: those of full tables, of tags that
// drivers hide, of the kernel's own path, of workers, and of flows and generations that change under a packet.
var unreachable = map[bpf.XDPReason]bool{
	bpf.XDPReasonREASON_NONE:               true,
	bpf.XDPReasonREASON_FLOW_TABLE_FULL:    true,
	bpf.XDPReasonREASON_NEXTHOP_TABLE_FULL: true,
	bpf.XDPReasonREASON_FLOW_GONE:          true,
	bpf.XDPReasonREASON_VLAN_OFFLOADED:     true,
	bpf.XDPReasonREASON_KERNEL_BYPASS:      true,
	bpf.XDPReasonREASON_GENERATION_ABSENT:  true,
	bpf.XDPReasonREASON_INTERNAL:           true,
	bpf.XDPReasonREASON_EGRESS_DOWN:        true,
	bpf.XDPReasonREASON_EGRESS_FULL:        true,
	bpf.XDPReasonREASON_WORKER_FULL:        true,
	bpf.XDPReasonREASON_WORKER_ABSENT:      true,
}

// covered asks for 100 packets of each reason in a million, and for 20 of each rule. One rule in a
// thousand may have fewer: that about two hosts and a protocol without ports is not asked once they have
// a flow that another rule allowed.
func covered(t *testing.T, all *traffic.Tally) {
	t.Helper()
	for r := range bpf.XDPReasonREASON_LEN {
		if unreachable[r] {
			continue
		}
		if n := all.Want(r.String(), max(1, all.Packets/10_000)); n > 0 {
			t.Errorf("reason %v: %d packets, %d are missing", r, all.Reasons[r.String()], n)
		}
	}
	if all.Clamped < all.Packets/200 {
		t.Errorf("the MSS of %d packets was lowered, of %d", all.Clamped, all.Packets)
	}
	missing := all.Missing(20)
	if len(missing) > max(1, len(all.Rules)/1000) {
		t.Errorf("%d of %d rules decided about fewer than 20 packets: %v", len(missing), len(all.Rules), missing)
	}
}

// readStream sends n packets of a stream through an engine and adds what they reached to all.
func readStream(t *testing.T, engine Engine, seed uint64, n int, all *traffic.Tally) {
	t.Helper()
	st, err := traffic.NewStream(seed, traffic.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var s *Sim
	failures := 0
	counts := map[string]bpf.XDPFlowCount{}
	for range n {
		p, want, err := st.Next()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case p.New == nil:
		case s == nil:
			if s, err = New(gatewayOf(t, engine, &st.World, p.New)); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
		default:
			s.cfg.ForceStages = forced(p.New)
			if err := s.Publish(compileFor(t, &st.World, p.New, s.Policy().Identities)); err != nil {
				t.Fatal(err)
			}
		}
		if engine == EngineXDP && len(p.Frame) < packet.EthernetLen {
			continue // the kernel runs no test on such a frame
		}
		got, err := s.Packet(uint64(p.Now), p.Port, p.Frame)
		if err != nil {
			t.Fatalf("seed %d, packet %d: %v", seed, p.Index, err)
		}
		if difference := s.reads(&p, &want, &got); difference != "" {
			t.Errorf("seed %d, packet %d (%s), in by %s: %s\n%x", seed, p.Index, p.Recipe, p.Port, difference, p.Frame)
			if failures++; failures == 5 {
				t.Fatal("and so on")
			}
		}
		for _, rule := range want.Beside {
			c := counts[rule]
			bytes := ipLength(p.Frame)
			if rule == want.Rule { // ARP and discovery: the frame
				bytes = uint64(len(p.Frame))
			}
			counts[rule] = bpf.XDPFlowCount{Packets: c.Packets + 1, Bytes: c.Bytes + bytes}
		}
	}
	for rule, id := range map[string]uint32{
		"builtin-arp": firewall.RuleARP, "builtin-nd": firewall.RuleND,
		"builtin-icmp-errors": firewall.RuleICMPErrors, "builtin-replies": firewall.RuleReplies,
	} {
		if got := s.counted(t, id); got != counts[rule] || got.Packets == 0 {
			t.Errorf("seed %d: %s counts %+v, want %+v", seed, rule, got, counts[rule])
		}
	}
	all.Add(fmt.Sprintf("%d/", seed), st.Tally)
}

// ipLength is the length of a frame's IP packet by its header.
func ipLength(frame []byte) uint64 {
	var p packet.Parsed
	p.Decode(frame)
	return uint64(p.Length)
}

// counted is what a built-in rule counted: what the engine has on its account and, of replies, what the
// flows that live have counted.
func (s *Sim) counted(t *testing.T, rule uint32) (sum bpf.XDPFlowCount) {
	t.Helper()
	accounts := make([]bpf.XDPRuleCounter, firewall.RuleFirst)
	switch e := s.engine.(type) {
	case *goEngine:
		accounts = e.executor.Counters.Rules
	case *xdpEngine:
		if err := e.plane.Rules(accounts); err != nil {
			t.Fatal(err)
		}
	}
	sum.Packets, sum.Bytes = accounts[rule].Packets, accounts[rule].Bytes
	if rule == firewall.RuleReplies {
		for f := range s.Table().All() {
			sum.Packets += f.Packets[1]
			sum.Bytes += f.Bytes[1]
		}
	}
	return sum
}

// gatewayOf is the stream's gateway. No flow ends by its time-out: the oracle knows none.
func gatewayOf(t *testing.T, engine Engine, w *oracle.World, policy *traffic.Policy) Config {
	t.Helper()
	cfg := Config{Policy: compileFor(t, w, policy, nil), Engine: engine, Inline: w.Pairs, Ethertypes: w.Ethertypes, ForceStages: forced(policy)}
	for _, p := range w.Ports {
		cfg.Ports = append(cfg.Ports, Port{Name: p.Name, MAC: p.MAC, MTU: p.MTU, MSSClamp: w.MSS[p.Name]})
	}
	kinds := map[oracle.RouteKind]RouteKind{
		oracle.RoutePort: RoutePort, oracle.RouteHost: RouteHost,
		oracle.RouteBlocked: RouteBlocked, oracle.RouteElsewhere: RouteElsewhere,
	}
	for _, r := range w.Routes {
		cfg.Routes = append(cfg.Routes, Route{Prefix: r.Prefix, Kind: kinds[r.Kind], Port: r.Port, VLAN: r.VLAN, MAC: r.MAC})
	}
	cfg.Timeouts = flowtable.UniformTimeouts(flowtable.TimeoutTicks(20 * 24 * time.Hour))
	return cfg
}

// forced are the stages that the configuration wants of all flows under a policy.
func forced(policy *traffic.Policy) uint8 {
	if policy.Worked {
		return bpf.StageForward
	}
	return 0
}

// compileFor compiles a policy that follows another, whose identities it keeps; nil: it is the first.
func compileFor(t *testing.T, w *oracle.World, policy *traffic.Policy, previous *firewall.Identities) *firewall.Compiled {
	t.Helper()
	ports := []string{traffic.MonitorPort}
	for _, p := range w.Ports {
		ports = append(ports, p.Name)
	}
	c, err := firewall.Compile(policy.Parsed, firewall.CompileOptions{Now: w.Now, Management: w.Management, Ports: ports, Previous: previous})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// reads says in what the engine differs from the oracle, "" if in nothing. Both name a rule that is gone,
// too: flows and datagrams in fragments bear it.
func (s *Sim) reads(p *traffic.Packet, want *oracle.Verdict, got *Result) string {
	reason, cause := got.Reason.String(), ""
	if got.Reason == bpf.XDPReasonREASON_NONE {
		reason = ""
	}
	if got.Passed {
		cause = got.Cause.String()
	}
	if reason != want.Reason || cause != want.Pass || !verdictFits(got, want) {
		return fmt.Sprintf("%v, reason %q, pass %q; want %s, %q, %q", got.Verdict, reason, cause, want.Verdict, want.Reason, want.Pass)
	}
	if want.Reason == "" && (got.Out != want.Out || !bytes.Equal(got.Frame, want.Frame)) {
		return fmt.Sprintf("out by %q:\n%x\nwant %q:\n%x", got.Out, got.Frame, want.Out, want.Frame)
	}
	if worker := got.Tier == "worker"; worker != want.Worker {
		return fmt.Sprintf("%v by tier %q, want by a worker: %v", got.Verdict, got.Tier, want.Worker)
	}
	var parsed packet.Parsed
	decoded := parsed.Decode(p.Frame) == packet.OK
	ip := decoded && (parsed.EtherType == packet.EtherTypeIPv4 || parsed.EtherType == packet.EtherTypeIPv6)
	later := ip && parsed.Piece == packet.Later
	rule := ""
	if got.RuleID != 0 {
		rule = got.Rule.Name
	}
	if rule != want.Rule {
		return fmt.Sprintf("%v %q by rule %q, want %q", got.Verdict, reason, rule, want.Rule)
	}
	if want.State == "" || later {
		return ""
	}
	tuple, ok := s.tupleOf(p.Port, &parsed)
	if !ok {
		return ""
	}
	if flow, found := s.Table().Lookup(tuple); !found || flow.State.String() != string(want.State) {
		return fmt.Sprintf("%v %q leaves the flow in state %v (%v), want %s", got.Verdict, reason, flow.State, found, want.State)
	}
	return ""
}

// verdictFits compares verdicts of the same reason. What the engine makes of a refused packet depends on
// more than the oracle knows: the rate of answers, and whether the kernel is there to send an ICMP error.
func verdictFits(got *Result, want *oracle.Verdict) bool {
	switch want.Verdict {
	case oracle.Forward:
		return got.Verdict == Forward
	case oracle.Pass:
		return got.Verdict == Pass
	case oracle.Reject:
		return got.Verdict == Drop || got.Verdict == Answer
	}
	kernel := want.Reason == "ttl-expired" || want.Reason == "too-big"
	return got.Verdict == Drop || kernel && got.Verdict == Pass
}

// tupleOf returns the tuple of a packet's flow; false of an ICMP error, whose flow is another's.
func (s *Sim) tupleOf(port string, p *packet.Parsed) (flowtable.Tuple, bool) {
	t := flowtable.Tuple{Family: p.Family, Proto: p.Proto, Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort}
	if at := s.ports[port]; at.peer != nil {
		t.Domain = uint16(at.entry.Pair)<<12 | p.VLAN
	}
	if p.Proto == packet.ProtoICMP || p.Proto == packet.ProtoICMPv6 {
		switch p.ICMP.Kind {
		case packet.Query:
			t.SrcPort = p.ICMP.ID
		case packet.Reply:
			t.DstPort = p.ICMP.ID
		default:
			return t, false
		}
	}
	return t, true
}
