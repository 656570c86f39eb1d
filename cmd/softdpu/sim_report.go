package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
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

// simReport prints what became of the packets as they come, then the flows and the summary.
type simReport struct {
	w       io.Writer
	json    *json.Encoder // nil: for people
	width   int
	table   *table
	summary simSummary
	flows   map[int]*flowVerdict
	first   uint64
	last    uint64
}

// flowVerdict is what became of a conversation: of its first packet that was allowed, else of its first.
type flowVerdict struct {
	verdict, reason, tier string
	rule                  *firewall.RuleInfo
	refused               uint64
}

// reportPage is how many packets stand under one line of column names.
const reportPage = 500

func newSimReport(w io.Writer, width int, asJSON bool, engine string) *simReport {
	r := &simReport{w: w, width: width, flows: make(map[int]*flowVerdict)}
	r.summary = simSummary{
		Type: "summary", Engine: engine, Verdicts: map[string]int{"allow": 0, "deny": 0, "reject": 0, "drop": 0},
		Reasons: map[string]int{}, Rules: map[string]int{}, Anomalies: map[string]int{},
	}
	if asJSON {
		r.json = json.NewEncoder(w)
		r.json.SetEscapeHTML(false)
	}
	return r
}

// verdictOf says in a word what a result is to the policy: allow, deny, reject, or drop for a reason of
// the packet's own.
func verdictOf(r *sim.Result) string {
	switch r.Reason {
	case bpf.XDPReasonREASON_NONE:
		return "allow"
	case bpf.XDPReasonREASON_DENY, bpf.XDPReasonREASON_NO_RULE_MATCHED:
		return "deny"
	case bpf.XDPReasonREASON_REJECT:
		return "reject"
	}
	return "drop"
}

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

// packet reports one packet.
func (r *simReport) packet(c *sim.Captured, o *sim.Outcome) error {
	verdict, reason, rule := verdictOf(&o.Result), reasonOf(&o.Result), ruleOf(&o.Result)
	r.count(c, o, verdict, reason, rule)
	if r.json == nil {
		return r.row(c, o, verdict, reason, rule)
	}
	h := &o.Headers
	p := simPacket{
		Type: "packet", N: c.N, Timestamp: timestamp(c.Time), In: o.In, Out: o.Out, VLAN: h.VLAN, Length: o.Length,
		Verdict: verdict, Reason: reason, Tier: o.Tier, Truncated: o.Truncated, Anomalies: o.Anomalies,
		Answered: o.Verdict == sim.Answer,
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
	return r.json.Encode(p)
}

func icmp(h *sim.Headers) bool {
	return h.Whole && (h.Proto == packet.ProtoICMP || h.Proto == packet.ProtoICMPv6)
}

func (r *simReport) count(c *sim.Captured, o *sim.Outcome, verdict, reason string, rule *firewall.RuleInfo) {
	s := &r.summary
	if s.Packets == 0 {
		r.first = c.Time
	}
	s.Packets++
	s.Bytes += o.Length
	r.last = max(r.last, c.Time)
	s.Verdicts[verdict]++
	if reason != "" {
		s.Reasons[reason]++
	}
	if rule != nil {
		s.Rules[rule.Name]++
	}
	for _, a := range o.Anomalies {
		s.Anomalies[a]++
	}
	f := r.flows[o.Conversation.ID]
	if f == nil || verdict == "allow" && f.verdict != "allow" {
		refused := uint64(0)
		if f != nil {
			refused = f.refused
		}
		f = &flowVerdict{verdict: verdict, reason: reason, tier: o.Tier, rule: rule, refused: refused}
		r.flows[o.Conversation.ID] = f
	}
	if verdict != "allow" {
		f.refused++
	}
}

// row adds a line to the table for people.
func (r *simReport) row(c *sim.Captured, o *sim.Outcome, verdict, reason string, rule *firewall.RuleInfo) error {
	if r.table == nil {
		r.table = newTable(">N", ">TIME", "IN", "OUT", "PROTO", "SOURCE", "DESTINATION", "VERDICT", "RULE", "REASON", "ANOMALIES")
	}
	h := &o.Headers
	proto, source, destination := "-", "-", "-"
	switch {
	case h.Family != 0:
		proto, source, destination = protocol(h.Proto), h.Src.String(), h.Dst.String()
		if h.Ports {
			source, destination = joinHostPort(source, h.SrcPort), joinHostPort(destination, h.DstPort)
		} else if icmp(h) {
			proto = fmt.Sprintf("%s/%d", proto, h.ICMPType)
		}
	case h.EtherType != 0:
		proto = fmt.Sprintf("0x%04x", h.EtherType)
	}
	seconds := "-" + strconv.FormatFloat(float64(r.first-c.Time)/1e9, 'f', 6, 64)
	if c.Time >= r.first {
		seconds = strconv.FormatFloat(float64(c.Time-r.first)/1e9, 'f', 6, 64)
	}
	out := o.Out
	if o.Verdict == sim.Answer {
		out = "" // the packet itself goes nowhere
	}
	r.table.add(c.N, seconds, o.In, dash(out), proto, source, destination, verdict, dash(rulePlace(rule)), dash(reason), dash(strings.Join(o.Anomalies, " ")))
	if len(r.table.rows) == reportPage {
		return r.page()
	}
	return nil
}

// page prints the table so far and begins another.
func (r *simReport) page() error {
	if r.table == nil || len(r.table.rows) == 0 {
		return nil
	}
	t := r.table
	r.table = nil
	return t.write(r.w, r.width)
}

// finish prints flows and summary.
func (r *simReport) finish(conversations []*sim.Conversation) error {
	if err := r.page(); err != nil {
		return err
	}
	var flows []simFlow
	for _, c := range conversations {
		if f := r.flows[c.ID]; f != nil && c.Family != 0 {
			flows = append(flows, flowOf(c, f))
		}
	}
	s := &r.summary
	s.Flows = len(flows)
	if s.Packets > 0 {
		s.Start, s.End = timestamp(r.first), timestamp(r.last)
	}
	if r.json != nil {
		for i := range flows {
			if err := r.json.Encode(&flows[i]); err != nil {
				return err
			}
		}
		return r.json.Encode(s)
	}
	if len(flows) > 0 {
		t := newTable(">FLOW", "PROTO", "SOURCE", "DESTINATION", "VERDICT", "RULE", "REASON", ">PACKETS", ">BACK", ">REFUSED", ">BYTES", ">BACK")
		for i := range flows {
			f := &flows[i]
			t.add(f.FlowID, protocol(f.number), simEnd(f.SrcIP, f.SrcPort), simEnd(f.DestIP, f.DestPort), f.Verdict, dash(f.rulePlace()), dash(f.Reason),
				f.Packets[0], f.Packets[1], f.Refused, f.Bytes[0], f.Bytes[1])
		}
		fmt.Fprintln(r.w)
		if err := t.write(r.w, r.width); err != nil {
			return err
		}
	}
	return r.words(time.Duration(r.last - r.first))
}

func flowOf(c *sim.Conversation, f *flowVerdict) simFlow {
	a, b := c.Source, 1-c.Source
	out := simFlow{
		Type: "flow", FlowID: c.ID, Family: c.Family, VLAN: c.VLAN, Proto: eveProtocol(c.Proto), In: c.In[a], number: c.Proto,
		SrcIP: text(c.Addr[a]), DestIP: text(c.Addr[b]), Verdict: f.verdict, Reason: f.reason, Tier: f.tier,
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

func (f *simFlow) rulePlace() string {
	if f.Rule == "" {
		return ""
	}
	return rulePlace(&firewall.RuleInfo{Name: f.Rule, File: f.File, Line: f.Line})
}

// words prints the summary for people.
func (r *simReport) words(length time.Duration) error {
	s := &r.summary
	_, err := fmt.Fprintf(r.w, "\n%s in %s, %s: %d allowed, %d denied, %d rejected, %d dropped (engine %s)\n",
		quantity(s.Packets, "packet"), quantity(s.Flows, "flow"), length.Round(time.Microsecond),
		s.Verdicts["allow"], s.Verdicts["deny"], s.Verdicts["reject"], s.Verdicts["drop"], s.Engine)
	for _, list := range []struct {
		name   string
		counts map[string]int
	}{{"rules", s.Rules}, {"reasons", s.Reasons}, {"anomalies", s.Anomalies}} {
		if len(list.counts) == 0 || err != nil {
			continue
		}
		names := slices.SortedFunc(maps.Keys(list.counts), func(a, b string) int {
			if list.counts[a] != list.counts[b] {
				return list.counts[b] - list.counts[a]
			}
			return strings.Compare(a, b)
		})
		for i, name := range names {
			names[i] = fmt.Sprintf("%s %d", name, list.counts[name])
		}
		_, err = fmt.Fprintf(r.w, "  %-10s %s\n", list.name, strings.Join(names, ", "))
	}
	return err
}

// rulePlace writes a rule with where it stands.
func rulePlace(rule *firewall.RuleInfo) string {
	switch {
	case rule == nil:
		return ""
	case rule.File == "" || rule.File == sim.EverythingFile:
		return rule.Name
	}
	return fmt.Sprintf("%s (%s:%d)", rule.Name, rule.File, rule.Line)
}

func simEnd(host string, port *uint16) string {
	if port == nil {
		return host
	}
	return joinHostPort(host, *port)
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
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
