package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/gateway/sim"
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

	translates bool // packets may be translated: the tables say what they become
}

// flowVerdict is what became of a conversation: of its first packet that was allowed, else of its first.
type flowVerdict struct {
	verdict, reason, tier string
	rule                  *firewall.RuleInfo
	nat                   *simNAT // of its source's packets, of the first that was whole
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

// packet reports one packet.
func (r *simReport) packet(c *sim.Captured, o *sim.Outcome) error {
	verdict, reason, rule := gateway.VerdictOf(o.Result.Reason), reasonOf(&o.Result), ruleOf(&o.Result)
	r.count(c, o, verdict, reason, rule)
	nat := natOf(o.NAT, r.flows[o.Conversation.ID])
	if r.json == nil {
		return r.row(c, o, verdict, reason, rule, nat)
	}
	return r.json.Encode(packetOf(c, o, verdict, reason, rule, nat))
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
	if t := o.NAT; f.nat == nil && t != nil && o.Side == o.Conversation.Source && (t.SourceRule != "" || t.DestinationRule != "") {
		f.nat = natOf(t, nil)
	}
	if verdict != "allow" {
		f.refused++
	}
}

// row adds a line to the table for people.
func (r *simReport) row(c *sim.Captured, o *sim.Outcome, verdict, reason string, rule *firewall.RuleInfo, nat *simNAT) error {
	if r.table == nil {
		r.table = r.newTable(">N", ">TIME", "IN", "OUT", "PROTO", "SOURCE", "DESTINATION", "VERDICT", "RULE", "REASON", "ANOMALIES")
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
	cells := []any{c.N, seconds, o.In, dash(out), proto, source, destination}
	if r.translates {
		cells = append(cells, nat.text(source, destination))
	}
	r.table.add(append(cells, verdict, dash(rulePlace(rule)), dash(reason), dash(strings.Join(o.Anomalies, " ")))...)
	if len(r.table.rows) == reportPage {
		return r.page()
	}
	return nil
}

// newTable makes one with what packets become behind their destination, if any are translated.
func (r *simReport) newTable(names ...string) *table {
	if r.translates {
		names = slices.Insert(names, slices.Index(names, "DESTINATION")+1, "BECOMES")
	}
	return newTable(names...)
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
		t := r.newTable(">FLOW", "PROTO", "SOURCE", "DESTINATION", "VERDICT", "RULE", "REASON", ">PACKETS", ">BACK", ">REFUSED", ">BYTES", ">BACK")
		for i := range flows {
			f := &flows[i]
			source, destination := simEnd(f.SrcIP, f.SrcPort), simEnd(f.DestIP, f.DestPort)
			cells := []any{f.FlowID, protocol(f.number), source, destination}
			if r.translates {
				cells = append(cells, f.NAT.text(source, destination))
			}
			t.add(append(cells, f.Verdict, dash(f.rulePlace()), dash(f.Reason), f.Packets[0], f.Packets[1], f.Refused, f.Bytes[0], f.Bytes[1])...)
		}
		fmt.Fprintln(r.w)
		if err := t.write(r.w, r.width); err != nil {
			return err
		}
	}
	return r.words(time.Duration(r.last - r.first))
}

func (f *simFlow) rulePlace() string {
	if f.Rule == "" {
		return ""
	}
	return rulePlace(&firewall.RuleInfo{Rule: &firewall.Rule{Name: f.Rule}, File: f.File, Line: f.Line})
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

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
