package gateway

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable"
)

// eveTime is RFC 3339 with microseconds.
const eveTime = "2006-01-02T15:04:05.000000Z07:00"

// Types of events, as EVE names them where it has them.
const (
	eveFlowType    = "flow"
	eveDropType    = "drop"
	eveAuditType   = "audit"
	evePolicyType  = "policy"
	eveGatewayType = "gateway"
	evePortType    = "port"

	evePipelineType = "pipeline"
)

// eveEvent is one line of the events file, nested as in Suricata's EVE JSON.
type eveEvent struct {
	Timestamp   string       `json:"timestamp"`
	FlowID      uint64       `json:"flow_id,omitempty"`   // the same at a flow's start and end
	InIface     string       `json:"in_iface,omitempty"`  // port where a packet was dropped,
	OutIface    string       `json:"out_iface,omitempty"` // on its way in or out
	EventType   string       `json:"event_type"`
	VLAN        []uint16     `json:"vlan,omitempty"`
	SrcIP       netip.Addr   `json:"src_ip,omitzero"`
	SrcPort     *uint16      `json:"src_port,omitempty"`
	DestIP      netip.Addr   `json:"dest_ip,omitzero"`
	DestPort    *uint16      `json:"dest_port,omitempty"`
	Proto       string       `json:"proto,omitempty"`
	ICMPType    *uint8       `json:"icmp_type,omitempty"`
	ICMPCode    *uint8       `json:"icmp_code,omitempty"`
	CommunityID string       `json:"community_id,omitempty"`
	Ether       *eveEther    `json:"ether,omitempty"`
	Drop        *eveDrop     `json:"drop,omitempty"`
	Flow        *eveFlow     `json:"flow,omitempty"`
	NAT         *FlowNAT     `json:"nat,omitempty"` // of a translated flow, but for ends that XDP writes
	Policy      *evePolicy   `json:"policy,omitempty"`
	Set         *eveSet      `json:"set,omitempty"`
	Port        *evePort     `json:"port,omitempty"`
	Worker      *eveWorker   `json:"worker,omitempty"`
	Pipeline    *evePipeline `json:"pipeline,omitempty"`
	Softdpu     eveRule      `json:"softdpu"`
}

type eveEther struct {
	SrcMAC  string `json:"src_mac"`
	DestMAC string `json:"dest_mac"`
	Type    uint16 `json:"ether_type"` // of the outermost tag, if there is one
}

type eveDrop struct {
	Len uint64 `json:"len"` // bytes of the frame
}

type eveFlow struct {
	PacketsToServer uint64 `json:"pkts_toserver"`
	PacketsToClient uint64 `json:"pkts_toclient"`
	BytesToServer   uint64 `json:"bytes_toserver"`
	BytesToClient   uint64 `json:"bytes_toclient"`
	Start           string `json:"start"`
	End             string `json:"end,omitempty"` // of the last packet
	State           string `json:"state"`
	Reason          string `json:"reason,omitempty"` // why it ended
}

type eveRule struct {
	Event    string `json:"event"` // what happened, more exactly than event_type says
	Rule     string `json:"rule,omitempty"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	Reason   string `json:"reason,omitempty"`   // of a deny or drop: the drop reason
	Action   string `json:"action,omitempty"`   // of an audit: what the rule would have done
	By       string `json:"by,omitempty"`       // of a change: what brought it about
	User     string `json:"user,omitempty"`     // who asked for it
	Login    string `json:"login,omitempty"`    // as whom that user has logged in
	Comment  string `json:"comment,omitempty"`  // of that user
	Entry    int    `json:"entry,omitempty"`    // of the history
	Restored int    `json:"restored,omitempty"` // entry whose policy was brought back
	Confirm  string `json:"confirm,omitempty"`  // within which it has to be
	Error    string `json:"error,omitempty"`    // of a change that was refused: the first mistake,
	Errors   int    `json:"errors,omitempty"`   // and how many there are
	Version  string `json:"version,omitempty"`  // of a gateway that starts or stops
}

// eveClock turns ticks into wall-clock time, as it was when the clock was made.
type eveClock struct {
	wall time.Time
	tick uint32
}

func newEveClock() eveClock { return eveClock{time.Now(), dataplane.NowTick()} }

func (c eveClock) at(tick uint32) time.Time {
	return c.wall.Add(time.Duration(int32(tick-c.tick)) << dataplane.TickShift)
}

func (c eveClock) text(tick uint32) string { return c.at(tick).Format(eveTime) }

// describe fills in what events say of a rule and of the two zones.
func (r *Ruleset) describe(event string, rule uint32, from, to uint8) eveRule {
	info := r.rule(rule)
	return eveRule{Event: event, Rule: info.Name, File: info.File, Line: info.Line, From: r.zoneName(from), To: r.zoneName(to)}
}

// packetEvent translates an event that XDP wrote.
func (r *Ruleset) packetEvent(e *bpf.XDPEvent, clock eveClock) eveEvent {
	src, dst := eventAddress(e.Family, &e.Src), eventAddress(e.Family, &e.Dst)
	sport, dport := hostOrder(e.Sport), hostOrder(e.Dport)
	out := eveEvent{
		Timestamp: clock.text(e.Tick), SrcIP: src, DestIP: dst, Proto: protoEVE(e.Proto),
	}
	icmp := &e.Icmp
	if bpf.XDPEventKind(e.Kind) == bpf.XDPEventKindEVENT_FLOW_END {
		icmp = nil // the flow table does not keep it
	}
	out.ports(e.Proto, sport, dport, icmp)
	switch bpf.XDPEventKind(e.Kind) {
	case bpf.XDPEventKindEVENT_DENY:
		out.EventType = eveDropType
		out.Softdpu = r.describe("deny", e.Rule, e.From, e.To)
		out.Softdpu.Reason = bpf.XDPReason(e.Reason).String()
		return out
	case bpf.XDPEventKindEVENT_AUDIT:
		out.EventType = eveAuditType
		out.Softdpu = r.describe("audit", e.Rule, e.From, e.To)
		out.Softdpu.Action = r.rule(e.Rule).Action.String()
		return out
	}
	out.EventType = eveFlowType
	out.FlowID = flowID(src, dst, sport, dport, e.Proto, e.Created)
	out.Flow = &eveFlow{
		PacketsToServer: e.Count[0].Packets, BytesToServer: e.Count[0].Bytes,
		PacketsToClient: e.Count[1].Packets, BytesToClient: e.Count[1].Bytes,
		Start: clock.text(e.Created), State: flowState(e.State).String(),
	}
	if bpf.XDPEventKind(e.Kind) == bpf.XDPEventKindEVENT_FLOW_END {
		out.Softdpu = r.describe("flow-end", e.Rule, e.From, e.To)
		out.Flow.End, out.Flow.Reason = out.Timestamp, endEvicted
		if s := flowState(e.State); s == flowTimeWait || s == flowClosed {
			out.Flow.Reason = endReopened
		}
		return out
	}
	out.Softdpu = r.describe("flow-start", e.Rule, e.From, e.To)
	out.Flow.State = "new"
	return out
}

// endEvent tells the end of a flow that the daemon has ended.
func (r *Ruleset) endEvent(f *flowtable.Flow, now uint32, reason string, clock eveClock) eveEvent {
	t := &f.Tuple
	out := eveEvent{
		Timestamp: clock.text(now), EventType: eveFlowType,
		FlowID: flowID(t.Source(), t.Destination(), t.SrcPort, t.DstPort, t.Proto, f.Created),
		SrcIP:  t.Source(), DestIP: t.Destination(), Proto: protoEVE(t.Proto),
		Flow: &eveFlow{
			PacketsToServer: f.Packets[0], BytesToServer: f.Bytes[0],
			PacketsToClient: f.Packets[1], BytesToClient: f.Bytes[1],
			Start: clock.text(f.Created), End: clock.text(now - flowtable.Ticks(f.Idle(now))),
			State: f.State.String(), Reason: reason,
		},
		NAT:     r.translation(f.NAT),
		Softdpu: r.describe("flow-end", f.Rule, f.From, f.To),
	}
	out.ports(t.Proto, t.SrcPort, t.DstPort, nil)
	return out
}

// ports fills in what the protocol has: ports, or type and code, which a flow's end does not know, and
// the Community ID.
func (e *eveEvent) ports(proto uint8, sport, dport uint16, icmp *uint16) {
	switch {
	case !isICMP(proto):
		e.SrcPort, e.DestPort = &sport, &dport
		e.CommunityID = communityID(proto, e.SrcIP, e.DestIP, sport, dport)
	case icmp != nil:
		e.icmp(*icmp)
	}
}

// icmp fills in type << 8 | code, of a packet of the event's addresses in their direction.
func (e *eveEvent) icmp(query uint16) {
	proto := uint8(protoICMP)
	if e.SrcIP.Is6() {
		proto = protoICMPv6
	}
	kind, code := uint8(query>>8), uint8(query)
	e.ICMPType, e.ICMPCode = &kind, &code
	e.CommunityID = communityID(proto, e.SrcIP, e.DestIP, uint16(kind), uint16(code))
}

// flowID hashes what a flow's start and end have in common to 53 bits, which every JSON reader keeps.
func flowID(src, dst netip.Addr, sport, dport uint16, proto uint8, created uint32) uint64 {
	h := fnv.New64a()
	b := append(src.AsSlice(), dst.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, sport)
	b = binary.BigEndian.AppendUint16(b, dport)
	b = append(b, proto)
	_, _ = h.Write(binary.BigEndian.AppendUint32(b, created)) // never fails
	return h.Sum64() >> 11
}

// eventAddress reads an address that stands in memory as in the packet.
func eventAddress(family uint8, words *[4]uint32) netip.Addr {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	if family == 4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// hostOrder reads a number that stands in memory in network order.
func hostOrder(v uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], v)
	return binary.BigEndian.Uint16(b[:])
}
