package main

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim"
)

// The objects of `softdpu sim -o json`, one a line.
type (
	simPacket struct {
		Type      string   `json:"type"`
		N         int      `json:"n"`
		Timestamp string   `json:"timestamp"`
		FlowID    int      `json:"flow_id,omitempty"` // of the object "flow" that it belongs to
		In        string   `json:"in"`
		Out       string   `json:"out,omitempty"` // port, or host; absent if it goes nowhere
		Family    uint8    `json:"family,omitempty"`
		EtherType string   `json:"ethertype,omitempty"` // of what is not IP
		VLAN      uint16   `json:"vlan,omitempty"`
		SrcIP     string   `json:"src_ip,omitempty"`
		SrcPort   *uint16  `json:"src_port,omitempty"`
		DestIP    string   `json:"dest_ip,omitempty"`
		DestPort  *uint16  `json:"dest_port,omitempty"`
		Proto     string   `json:"proto,omitempty"` // as EVE names it
		ICMPType  *uint8   `json:"icmp_type,omitempty"`
		ICMPCode  *uint8   `json:"icmp_code,omitempty"`
		Length    int      `json:"length"` // of the frame as captured
		Verdict   string   `json:"verdict"`
		Rule      string   `json:"rule,omitempty"`
		File      string   `json:"file,omitempty"`
		Line      int      `json:"line,omitempty"`
		Reason    string   `json:"reason,omitempty"` // absent if it was allowed
		Pass      string   `json:"pass,omitempty"`   // why the kernel gets it
		Answered  bool     `json:"answered,omitempty"`
		Tier      string   `json:"tier"`
		NAT       *simNAT  `json:"nat,omitempty"` // what it leaves with; absent if it is not translated
		Truncated bool     `json:"truncated,omitempty"`
		Anomalies []string `json:"anomalies,omitempty"`
	}
	simFlow struct {
		Type     string    `json:"type"`
		FlowID   int       `json:"flow_id"`
		Family   uint8     `json:"family"`
		VLAN     uint16    `json:"vlan,omitempty"`
		SrcIP    string    `json:"src_ip"`
		SrcPort  *uint16   `json:"src_port,omitempty"`
		DestIP   string    `json:"dest_ip"`
		DestPort *uint16   `json:"dest_port,omitempty"`
		Proto    string    `json:"proto"`
		In       string    `json:"in"` // port of the source's packets
		Verdict  string    `json:"verdict"`
		Rule     string    `json:"rule,omitempty"`
		File     string    `json:"file,omitempty"`
		Line     int       `json:"line,omitempty"`
		Reason   string    `json:"reason,omitempty"`
		Tier     string    `json:"tier"`
		NAT      *simNAT   `json:"nat,omitempty"` // what its source's packets leave with
		Start    string    `json:"start"`
		End      string    `json:"end"`
		Packets  [2]uint64 `json:"packets"` // of the capture, the source's first
		Bytes    [2]uint64 `json:"bytes"`   // IP total lengths
		Refused  uint64    `json:"refused"` // of the packets, not forwarded

		number uint8 // of the protocol
	}
	simSummary struct {
		Type      string         `json:"type"`
		Engine    string         `json:"engine"`
		Packets   int            `json:"packets"`
		Bytes     int            `json:"bytes"` // of frames as captured
		Flows     int            `json:"flows"`
		Start     string         `json:"start,omitempty"`
		End       string         `json:"end,omitempty"`
		Verdicts  map[string]int `json:"verdicts"`
		Reasons   map[string]int `json:"reasons"`
		Rules     map[string]int `json:"rules"`
		Anomalies map[string]int `json:"anomalies"`
	}
)

func reasonOf(r *sim.Result) string {
	if r.Reason == bpf.XDPReasonREASON_NONE {
		return ""
	}
	return r.Reason.String()
}

// ruleOf returns the rule that decided, nil if none did.
func ruleOf(r *sim.Result) *firewall.RuleInfo {
	if r.RuleID == firewall.RuleNone {
		return nil
	}
	return r.Rule
}

func packetOf(c *sim.Captured, o *sim.Outcome, verdict, reason string, rule *firewall.RuleInfo, nat *simNAT) simPacket {
	h := &o.Headers
	p := simPacket{
		Type: "packet", N: c.N, Timestamp: timestamp(c.Time), In: o.In, Out: o.Out, VLAN: h.VLAN, Length: o.Length,
		Verdict: verdict, Reason: reason, Tier: o.Tier, Truncated: o.Truncated, Anomalies: o.Anomalies,
		Answered: o.Verdict == sim.Answer, NAT: nat,
	}
	if h.Family != 0 {
		p.FlowID, p.Family, p.Proto = o.Conversation.ID, h.Family, eveProtocol(h.Proto)
		p.SrcIP, p.DestIP = h.Src.String(), h.Dst.String()
	} else if h.EtherType != 0 {
		p.EtherType = fmt.Sprintf("0x%04x", h.EtherType)
	}
	if h.Ports {
		p.SrcPort, p.DestPort = &h.SrcPort, &h.DstPort
	}
	if icmp(h) {
		p.ICMPType, p.ICMPCode = &h.ICMPType, &h.ICMPCode
	}
	if rule != nil {
		p.Rule, p.File, p.Line = rule.Name, rule.File, rule.Line
	}
	if o.Passed {
		p.Pass = o.Cause.String()
	}
	if p.Answered {
		p.Out = "" // the packet itself goes nowhere
	}
	return p
}

func icmp(h *sim.Headers) bool {
	return h.Whole && (h.Proto == packet.ProtoICMP || h.Proto == packet.ProtoICMPv6)
}

func flowOf(c *sim.Conversation, f *flowVerdict) simFlow {
	a, b := c.Source, 1-c.Source
	out := simFlow{
		Type: "flow", FlowID: c.ID, Family: c.Family, VLAN: c.VLAN, Proto: eveProtocol(c.Proto), In: c.In[a], number: c.Proto,
		SrcIP: text(c.Addr[a]), DestIP: text(c.Addr[b]), Verdict: f.verdict, Reason: f.reason, Tier: f.tier, NAT: f.nat,
		Start: timestamp(c.First), End: timestamp(c.Last), Refused: f.refused,
		Packets: [2]uint64{c.Packets[a], c.Packets[b]}, Bytes: [2]uint64{c.Bytes[a], c.Bytes[b]},
	}
	if c.Ports {
		out.SrcPort, out.DestPort = &c.Port[a], &c.Port[b]
	}
	if f.rule != nil {
		out.Rule, out.File, out.Line = f.rule.Name, f.rule.File, f.rule.Line
	}
	return out
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// timestamp writes a capture's time as EVE does, in UTC.
func timestamp(ns uint64) string {
	return time.Unix(0, int64(ns)).UTC().Format("2006-01-02T15:04:05.000000000Z07:00")
}

// eveProtocol names an IP protocol as Suricata's EVE does; one without a name is its number in three
// digits.
func eveProtocol(number uint8) string {
	switch name, known := protocolNames[number]; {
	case number == packet.ProtoICMPv6:
		return "IPv6-ICMP"
	case known:
		return strings.ToUpper(name)
	}
	return fmt.Sprintf("%03d", number)
}
