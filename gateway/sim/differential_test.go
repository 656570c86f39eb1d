package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
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
			t.Logf("translated: %v; %v", all.Translated, all.Reasons)
			covered(t, all)
		})
	}
}

// unreachable are the reasons that traffic of a stream cannot meet: those of full tables, of tags that
// drivers hide, of the kernel's own path, of workers, of pipelines, and of flows and generations that change under a packet.
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
	bpf.XDPReasonREASON_PIPE_DROP:          true,
	bpf.XDPReasonREASON_PIPE_TTL:           true,
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
	for _, what := range []string{"tcp", "udp", "query", "other", "reply", "error", "later-fragment", "ipv6", "to-kernel", "worker", "answered", "admitted"} {
		if n := all.Translated[what]; n < max(1, all.Packets/20_000) {
			t.Errorf("%d packets of translated flows are %s", n, what)
		}
	}
	missing := all.Missing(20)
	if len(missing) > max(1, len(all.Rules)/1000) {
		t.Errorf("%d of %d rules decided about fewer than 20 packets: %v", len(missing), len(all.Rules), missing)
	}
}

// reading is a stream's traffic on its way through an engine and the oracle.
type reading struct {
	t      *testing.T
	engine Engine
	st     *traffic.Stream
	sim    *Sim
	got    Result
	frame  []byte // of got
}

// choose sends a packet through the engine and says what that chose.
func (r *reading) choose(p *traffic.Packet) (*oracle.Choice, error) {
	switch {
	case p.New == nil:
	case r.sim == nil:
		s, err := New(gatewayOf(r.t, r.engine, &r.st.World, p.New))
		if err != nil {
			return nil, err
		}
		r.sim = s
	default:
		r.sim.cfg.ForceStages = forced(p.New)
		if err := r.sim.Publish(compileFor(r.t, &r.st.World, p.New, r.sim.Policy().Identities)); err != nil {
			return nil, err
		}
	}
	if r.engine == EngineXDP && len(p.Frame) < packet.EthernetLen {
		return nil, nil // the kernel runs no test on such a frame
	}
	var err error
	if r.got, err = r.sim.Packet(uint64(p.Now), p.Port, p.Frame); err != nil {
		return nil, fmt.Errorf("packet %d: %w", p.Index, err)
	}
	r.frame = append(r.frame[:0], r.got.Frame...)
	r.got.Frame = r.frame
	c := &oracle.Choice{Routed: r.sim.routed, Mapping: r.sim.mapping}
	if r.got.Reason != bpf.XDPReasonREASON_NONE {
		c.Reason = r.got.Reason.String()
	}
	if f, ok := r.sim.flowOf(r.sim.ports[p.Port], p.Frame); ok && f.NAT != nil {
		c.Made = true
		c.Src = netip.AddrPortFrom(f.NAT.Outer.Source(), f.NAT.Outer.SrcPort)
		c.Dst = netip.AddrPortFrom(f.NAT.Outer.Destination(), f.NAT.Outer.DstPort)
	}
	return c, nil
}

// mapping returns the port that the engine has for an end inside by a rule with mapping.
func (s *Sim) mapping(rule string, proto uint8, inside netip.AddrPort, outside netip.Addr) (uint16, bool) {
	family := uint8(6)
	if outside.Is4() {
		family = 4
	}
	for id := range s.policy.NATRules {
		r := &s.policy.NATRules[id]
		if r.Name != rule || r.Family != family || r.Destinations {
			continue
		}
		f, found := s.Table().Lookup(flowtable.Tuple{
			Family: family, Proto: proto, Kind: flowtable.KeyMapping, Domain: uint16(id >> 16), DstPort: uint16(id),
			Src: address(inside.Addr()), SrcPort: inside.Port(), Dst: address(outside),
		})
		if found && f.NAT != nil {
			return f.NAT.Outer.SrcPort, true
		}
	}
	return 0, false
}

// readStream sends n packets of a stream through an engine and adds what they reached to all.
func readStream(t *testing.T, engine Engine, seed uint64, n int, all *traffic.Tally) {
	t.Helper()
	r := &reading{t: t, engine: engine}
	st, err := traffic.NewStream(seed, traffic.Options{Choose: r.choose})
	if err != nil {
		t.Fatal(err)
	}
	r.st = st
	defer func() {
		if r.sim == nil {
			return
		}
		if err := r.sim.Close(); err != nil {
			t.Error(err)
		}
	}()
	failures := 0
	counts := map[string]bpf.XDPFlowCount{}
	for range n {
		p, want, err := st.Next()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if engine == EngineXDP && len(p.Frame) < packet.EthernetLen {
			continue
		}
		if difference := r.sim.reads(&p, &want, &r.got); difference != "" {
			t.Errorf("seed %d, packet %d (%s), in by %s: %s\n%x", seed, p.Index, p.Recipe, p.Port, difference, p.Frame)
			if failures++; failures == 5 {
				t.Fatal("and so on")
			}
		}
		if want.Translated && r.got.Verdict == Answer {
			st.Tally.Translated["answered"]++
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
		if got := r.sim.counted(t, id); got != counts[rule] || got.Packets == 0 {
			t.Errorf("seed %d: %s counts %+v, want %+v", seed, rule, got, counts[rule])
		}
	}
	var check flowtable.TallyCheck
	check.Run(r.sim.Table(), nil)
	if n := check.Run(r.sim.Table(), nil); n > 0 {
		t.Errorf("seed %d: %d sources count other flows than they have", seed, n)
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
		port := Port{Name: p.Name, MAC: p.MAC, MTU: p.MTU, MSSClamp: w.MSS[p.Name]}
		for _, d := range w.Devices {
			if d.Port == p.Name && d.VLAN == 0 {
				port.IP4, port.IP6 = d.IP4, d.IP6
			}
		}
		cfg.Ports = append(cfg.Ports, port)
	}
	kinds := map[oracle.RouteKind]RouteKind{
		oracle.RoutePort: RoutePort, oracle.RouteHost: RouteHost,
		oracle.RouteBlocked: RouteBlocked, oracle.RouteElsewhere: RouteElsewhere,
	}
	for _, r := range w.Routes {
		cfg.Routes = append(cfg.Routes, Route{Prefix: r.Prefix, Kind: kinds[r.Kind], Port: r.Port, VLAN: r.VLAN, MAC: r.MAC})
	}
	for _, d := range w.Devices {
		cfg.Devices = append(cfg.Devices, Device{Port: d.Port, VLAN: d.VLAN, IP4: d.IP4, IP6: d.IP6})
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
	if want.Wrong != "" {
		return fmt.Sprintf("%v, reason %q: %s", got.Verdict, reason, want.Wrong)
	}
	if reason != want.Reason || cause != want.Pass || !verdictFits(got, want) {
		return fmt.Sprintf("%v, reason %q, pass %q; want %s, %q, %q", got.Verdict, reason, cause, want.Verdict, want.Reason, want.Pass)
	}
	if want.Reason == "" && (got.Out != want.Out || !bytes.Equal(got.Frame, want.Frame)) {
		return fmt.Sprintf("out by %q:\n%x\nwant %q:\n%x", got.Out, got.Frame, want.Out, want.Frame)
	}
	if got.Verdict == Answer && want.Translated {
		if wrong := s.answers(p, got); wrong != "" {
			return fmt.Sprintf("%s is answered by\n%x\n%s", reason, got.Frame, wrong)
		}
	}
	if worker := got.Tier == "worker"; worker != want.Worker {
		return fmt.Sprintf("%v by tier %q, want by a worker: %v", got.Verdict, got.Tier, want.Worker)
	}
	rule := ""
	if got.RuleID != 0 {
		rule = got.Rule.Name
	}
	if rule != want.Rule {
		return fmt.Sprintf("%v %q by rule %q, want %q", got.Verdict, reason, rule, want.Rule)
	}
	if want.State == "" {
		return ""
	}
	if flow, found := s.Table().Lookup(tupleOfFlow(want)); !found || flow.State.String() != string(want.State) {
		return fmt.Sprintf("%v %q leaves the flow in state %v (%v), want %s", got.Verdict, reason, flow.State, found, want.State)
	}
	return ""
}

// answers says what is wrong with the ICMP error that the gateway itself sends about a packet of a translated
// flow. The sender must know what is quoted: it is the packet as it came.
func (s *Sim) answers(p *traffic.Packet, got *Result) string {
	asked, answer := ReadHeaders(p.Frame), ReadHeaders(got.Frame)
	at := s.ports[p.Port]
	want, from := []byte{11, 0}, at.IP4
	switch tooBig := got.Reason == bpf.XDPReasonREASON_TOO_BIG; {
	case asked.Family == 6 && tooBig:
		want, from = []byte{2, 0}, at.IP6
	case asked.Family == 6:
		want, from = []byte{3, 0}, at.IP6
	case tooBig:
		want = []byte{3, 4}
	}
	switch {
	case asked.Later || asked.isICMP() && asked.icmp() == packet.Error:
		return "such packets are never answered"
	case got.Out != p.Port || !bytes.Equal(got.Frame[:6], p.Frame[6:12]) || answer.VLAN != asked.VLAN:
		return "it does not go back where the packet came from"
	case answer.Src != from || answer.Dst != asked.Src:
		return fmt.Sprintf("it is from %s to %s, want from %s to %s", answer.Src, answer.Dst, from, asked.Src)
	case !answer.Whole || answer.ICMPType != want[0] || answer.ICMPCode != want[1]:
		return fmt.Sprintf("its type and code are %d and %d, want %v", answer.ICMPType, answer.ICMPCode, want)
	case got.Reason == bpf.XDPReasonREASON_TOO_BIG && (mtu(&answer, got.Frame) >= asked.Length || mtu(&answer, got.Frame) < 1280):
		return fmt.Sprintf("an MTU of %d does not help a packet of %d bytes", mtu(&answer, got.Frame), asked.Length)
	case !bytes.HasPrefix(p.Frame[asked.L3:], got.Frame[answer.L4+8:answer.L3+answer.Length]) || answer.L3+answer.Length < answer.L4+8+asked.L4-asked.L3+8:
		return "it does not quote the packet as it came, with 8 bytes behind its header"
	case len(wrongChecksums(got.Frame, &answer)) > 0:
		return "its checksums are wrong"
	}
	return ""
}

// mtu reads that of an ICMP error: IPv4 has it in the low half of the word.
func mtu(h *Headers, frame []byte) int { return int(binary.BigEndian.Uint32(frame[h.L4+4:])) }

// tupleOfFlow is that of the flow that a packet belonged to.
func tupleOfFlow(v *oracle.Verdict) flowtable.Tuple {
	t := flowtable.Tuple{Family: 6, Proto: v.Proto, Src: address(v.Src.Addr()), Dst: address(v.Dst.Addr()), SrcPort: v.Src.Port(), DstPort: v.Dst.Port(), Domain: v.Domain}
	if v.Src.Addr().Is4() {
		t.Family = 4
	}
	return t
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
	// What a translated flow's packets meet, the kernel could not tell of.
	kernel := want.Reason == "ttl-expired" || want.Reason == "too-big"
	if want.Translated {
		return got.Verdict == Drop || kernel && got.Verdict == Answer
	}
	return got.Verdict == Drop || kernel && got.Verdict == Pass
}
