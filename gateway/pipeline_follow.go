package gateway

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/pipes"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// A policyFollower makes walks through the policy's own pipes of what the packet path tells a capture: which rule
// decided, why a packet was refused, between which zones. Which flow it belongs to and what nat rules have made of that stands
// in the flow table. It is for one goroutine.
type policyFollower struct {
	rules  *inForce
	table  *flowtable.Table
	ports  [portIDs]*dataplane.Port
	named  *Ruleset // that own was made of
	own    *pipes.Policy
	opened map[flowtable.FlowID]uint32 // flows whose opening packet was told of, by the tick of their creation
	local  map[netip.Addr]bool         // addresses of the gateway
	offset time.Duration               // of the wall clock from that of packets
	p      packet.Parsed
}

// followedFlows is how many openings are kept in mind.
const followedFlows = 1 << 16

func newPolicyFollower(r *reporter) *policyFollower {
	f := &policyFollower{rules: r.rules, table: r.ledger.table, opened: make(map[flowtable.FlowID]uint32)}
	f.look(r.plane)
	return f
}

// look notes which ports there are, and what time it is.
func (f *policyFollower) look(plane *dataplane.Plane) {
	clear(f.ports[:])
	for _, p := range plane.Ports() {
		f.ports[p.ID] = &p
	}
	f.local = make(map[netip.Addr]bool)
	addresses, _ := net.InterfaceAddrs() // without them no packet is taken for the gateway's own
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				f.local[addr.Unmap()] = true
			}
		}
	}
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil {
		f.offset = time.Duration(time.Now().UnixNano() - now.Nano())
	}
}

// policy is the one by which rules are called, as pipes.
func (f *policyFollower) policy() (*Ruleset, *pipes.Policy) {
	if now := f.rules.Names(); now != f.named {
		f.named, f.own = now, now.pipes(0)
	}
	return f.named, f.own
}

// walk is the way of a packet that has arrived; nil: no pipe is asked about it, as about ARP and neighbour discovery.
func (f *policyFollower) walk(head *bpf.XDPTapped, frame []byte) *PipelineWalk {
	kind := bpf.XDPPacketKind(head.Kind)
	if head.Guard != 0 || kind >= bpf.XDPPacketKindPACKET_ND {
		return nil
	}
	w := &PipelineWalk{
		Time: time.Unix(0, int64(head.Time)).Add(f.offset), Length: head.Length, Steps: []PipelineWalkStep{},
		Head: hex.EncodeToString(frame[:min(len(frame), traceHead)]),
	}
	port := f.ports[head.Port]
	if port != nil {
		w.Port = port.Name
	}
	reason := bpf.XDPReason(head.Reason)
	f.p = packet.Parsed{}
	flow, met := f.flow(port, frame)
	forward := string(pipe.ToRoute)
	switch {
	case reason != bpf.XDPReasonREASON_NONE:
		forward = fmt.Sprintf("drop (%s)", reason)
	case head.Pass == 1+uint8(bpf.XDPPassCausePASS_HOST):
		forward = string(pipe.ToHost)
	}
	rules, own := f.policy()
	switch judged := judges[reason]; {
	case judged, reason == bpf.XDPReasonREASON_NONE && kind == bpf.XDPPacketKindPACKET_FLOW && met && f.opens(&flow, head):
		for _, s := range f.opening(rules, own, head, &flow, met && !judged, w.Port) {
			w.Steps = append(w.Steps, walkStep(&s))
		}
		if last := len(w.Steps) - 1; judged && last >= 0 {
			w.Steps[last].Forward = forward
		}
	case met || reason == bpf.XDPReasonREASON_NONE:
		s := PipelineWalkStep{Policy: true, Pipe: pipes.Flows, Entry: "known", Forward: forward}
		if head.Rule != 0 {
			info := rules.rule(head.Rule)
			s.Does, s.File, s.Line = "rule "+info.Name, info.File, info.Line
		}
		w.Steps = append(w.Steps, s)
	}
	w.Forward = forward
	return w
}

// traceHead is how much of a frame is told of.
const traceHead = len(bpf.PipesPipeTrace{}.Head)

// judges are the reasons for which only packets are refused that open a flow, once the rules were asked.
var judges = map[bpf.XDPReason]bool{
	bpf.XDPReasonREASON_NO_RULE_MATCHED: true, bpf.XDPReasonREASON_DENY: true, bpf.XDPReasonREASON_REJECT: true,
	bpf.XDPReasonREASON_SPOOFED: true, bpf.XDPReasonREASON_NOT_SYN: true, bpf.XDPReasonREASON_FLOW_TABLE_FULL: true,
	bpf.XDPReasonREASON_NAT_EXHAUSTED: true, bpf.XDPReasonREASON_NAT_NO_ADDRESS: true, bpf.XDPReasonREASON_NAT_SOURCE_LIMIT: true,
}

func walkStep(s *pipes.Step) PipelineWalkStep {
	return PipelineWalkStep{
		Policy: true, Pipe: s.Pipe, Entry: s.Entry, Audited: s.Audited, Does: s.Does, Forward: s.Forward, File: s.File, Line: s.Line,
	}
}

// opening are the pipes that the packet came to which opened a flow, or which was to.
func (f *policyFollower) opening(rules *Ruleset, own *pipes.Policy, head *bpf.XDPTapped, flow *flowtable.Flow, met bool, port string) []pipes.Step {
	d := &pipes.Decided{
		Port: port, From: rules.zoneName(head.From), To: rules.zoneName(head.To), Asked: true, Rule: firewall.NameNone,
		Destined: packetAddress(&f.p),
	}
	if head.Rule != 0 {
		d.Rule = rules.rule(head.Rule).Name
	}
	switch reason := bpf.XDPReason(head.Reason); reason {
	case bpf.XDPReasonREASON_NONE:
	case bpf.XDPReasonREASON_NAT_EXHAUSTED, bpf.XDPReasonREASON_NAT_NO_ADDRESS, bpf.XDPReasonREASON_NAT_SOURCE_LIMIT:
		d.Late = true
		fallthrough
	default:
		d.Reason = reason.String()
	}
	f.ask(rules, head, d)
	if met && flow.NAT != nil { // this is what became of it, whatever the rules say now
		d.Destination, d.Source = rules.natRule(flow.NAT.DestinationRule).Name, rules.natRule(flow.NAT.SourceRule).Name
		if d.Destination != "" {
			d.Server = netip.AddrPortFrom(flow.NAT.Outer.Destination(), flow.NAT.Outer.DstPort).String()
		}
	}
	steps, _ := own.Walk(d)
	return steps
}

// ask asks the classifiers in force what the packet path does not tell of: rules in audit mode, nat rules that keep things as
// they are, and those of a packet that was refused.
func (f *policyFollower) ask(rules *Ruleset, head *bpf.XDPTapped, d *pipes.Decided) {
	p := &f.p
	if p.Family == 0 {
		return
	}
	src := netip.AddrFrom16(p.Src)
	if p.Family == 4 {
		src = netip.AddrFrom4([4]byte(p.Src[:4]))
	}
	dst := packetAddress(p)
	k := firewall.Key(src, dst, p.Proto, p.SrcPort, p.DstPort)
	if p.Proto == packet.ProtoICMP || p.Proto == packet.ProtoICMPv6 {
		k.Dport = uint16(p.ICMP.Type)<<8 | uint16(p.ICMP.Code)
	}
	k.From, k.To, k.Context = head.From, head.To, rules.Compiled.MACs[firewall.MAC(p.Frame[6:12])]
	rules.ACL.Classify(&k, func(rule uint32) { d.Audited = append(d.Audited, rules.rule(rule).Name) })
	if rules.NAT == nil {
		return
	}
	if rules.NAT.Sources != nil && d.Reason == "" {
		d.Source = rules.natRule(rules.NAT.Sources.Classify(&k, nil) & ruleMask).Name
	}
	if rules.NAT.Destinations == nil || firewall.IsGroup(dst) {
		return
	}
	if k.To = flowtable.ZoneNone; f.local[dst] {
		k.To = flowtable.ZoneHost
	}
	verdict := rules.NAT.Destinations.Classify(&k, nil)
	d.Destination, d.Exempt = rules.natRule(verdict&ruleMask).Name, verdict != 0 && verdict&ruleMask == 0
}

// ruleMask is VERDICT_RULE_MASK of abi.h.
const ruleMask = 1<<24 - 1

func packetAddress(p *packet.Parsed) netip.Addr {
	if p.Family == 4 {
		return netip.AddrFrom4([4]byte(p.Dst[:4]))
	}
	return netip.AddrFrom16([16]byte(p.Dst[:]))
}

// flow finds that of a frame.
func (f *policyFollower) flow(port *dataplane.Port, frame []byte) (flow flowtable.Flow, met bool) {
	p := &f.p
	if port == nil || p.Decode(frame) != packet.OK || p.Piece == packet.Later {
		return flow, false
	}
	t := flowtable.Tuple{
		Family: p.Family, Proto: p.Proto, Domain: port.Domain(p.VLAN), Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort,
	}
	if p.Proto == packet.ProtoICMP || p.Proto == packet.ProtoICMPv6 {
		switch p.ICMP.Kind {
		case packet.Query:
			t.SrcPort = p.ICMP.ID
		case packet.Reply:
			t.DstPort = p.ICMP.ID
		default:
			return flow, false
		}
	}
	return f.table.Lookup(t)
}

// clockSteps is by how many ticks the clock of flows, which goes in steps, may be behind that of captures.
const clockSteps = 12

// opens tells the packet that opened its flow: the first one of it, if it came in the moment of its creation.
func (f *policyFollower) opens(flow *flowtable.Flow, head *bpf.XDPTapped) bool {
	if created, told := f.opened[flow.ID]; told && created == flow.Created {
		return false
	}
	if len(f.opened) == followedFlows {
		clear(f.opened)
	}
	f.opened[flow.ID] = flow.Created
	p := &f.p
	fromOpener := flow.Tuple.Src == p.Src && (p.Proto != packet.ProtoTCP && p.Proto != packet.ProtoUDP || flow.Tuple.SrcPort == p.SrcPort)
	at := flowtable.Tick(head.Time)
	return fromOpener && int32(at-flow.Created) <= clockSteps && int32(flow.Created-at) <= 1
}
