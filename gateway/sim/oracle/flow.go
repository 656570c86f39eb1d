package oracle

import (
	"net/netip"

	"github.com/softdpu/softdpu/firewall"
)

// State is a flow's state by its name.
type State string

const (
	StateSynSent     State = "syn-sent"
	StateSynReceived State = "syn-received"
	StateNew         State = "new"
	StateEstablished State = "established"
	StateFinWait     State = "fin-wait"
	StateTimeWait    State = "time-wait"
	StateClosed      State = "closed"
	StateReplied     State = "replied"
)

// key names a flow in the direction of one packet.
type key struct {
	src, dst     netip.Addr
	sport, dport uint16
	proto        uint8
	domain       uint16
}

func (k key) reverse() key {
	k.src, k.dst, k.sport, k.dport = k.dst, k.src, k.dport, k.sport
	return k
}

func (f *flow) name() Flow {
	k := f.original
	return Flow{
		Src: netip.AddrPortFrom(k.src, k.sport), Dst: netip.AddrPortFrom(k.dst, k.dport), Proto: k.proto, Domain: k.domain,
		Translated: f.outer != nil, Admitted: f.admitted,
	}
}

func (p *packet) key() key {
	return key{src: p.src, dst: p.dst, sport: p.sport, dport: p.dport, proto: p.proto, domain: p.domain}
}

// flow is a connection.
type flow struct {
	original  key     // in the opener's direction
	outer     *key    // the same as the other end sees it; nil: not translated
	source    string  // nat rule for its source, "" for none
	opening   Opening // zones move with the route
	rule      string
	epoch     int
	revoked   bool
	midstream bool
	admitted  bool // by a mapping: its opening names the end inside
	worked    bool // its packets go to a worker: there is none here that would let them go
	state     State
	opener    leg
	other     leg
}

// leg is what connection tracking knows of one sender.
type leg struct {
	ack    uint32 // next sequence number that it expects from the other end
	known  bool   // ack and win stand for a window
	win    uint16 // unscaled; before both SYNs were seen, that of the opener's SYN
	scale  uint8
	scaled bool // its SYN had the window scale option
	fin    bool
}

// meet looks for a flow in both directions; opener reports whether the packet is the opener's. The far end of
// a translated one knows another tuple than its opener; reason says that a packet bears the wrong one.
func (o *Oracle) meet(k key) (f *flow, opener bool, reason string) {
	if f = o.flows[k]; f != nil {
		return f, true, ""
	}
	if f = o.flows[k.reverse()]; f != nil {
		if f.outer != nil {
			reason = "nat-untranslated"
		}
		return f, false, reason
	}
	if f = o.aliases[k]; f != nil {
		return f, true, "nat-conflict"
	}
	return o.aliases[k.reverse()], false, ""
}

// end takes a flow out, and what it was known by.
func (o *Oracle) end(f *flow) {
	delete(o.flows, f.original)
	if f.outer != nil {
		delete(o.aliases, *f.outer)
	}
}

// open puts a new flow in the place of an old one of the same ends.
func (o *Oracle) open(p *packet, op Opening, j Judgement, outer key, source string) *flow {
	f := &flow{original: p.key(), source: source, opening: op, rule: j.Rule, epoch: o.epoch, state: StateNew}
	if old := o.owner(f.original); old != nil {
		o.end(old)
	}
	if outer != f.original {
		f.outer = &outer
		o.aliases[outer] = f
	}
	for _, k := range []key{f.original, f.original.reverse(), outer, outer.reverse()} {
		o.marks[mark{k.src, k.sport, k.proto}] = true
		if k == outer || o.device(k.src) {
			o.marks[mark{port: k.sport, proto: k.proto}] = true
		}
	}
	o.employ(f, j)
	if p.proto == protoTCP {
		f.openTCP(&p.tcp)
	}
	o.flows[f.original] = f
	return f
}

// known is section 7 from step 2 on. Later fragments have no TCP header and change no state.
func (o *Oracle) known(p *packet, f *flow, fromOpener, later bool) Verdict {
	zone := f.opening.From
	if !fromOpener {
		zone = f.opening.To
	}
	if p.zone != zone {
		return f.refuse("wrong-zone")
	}
	query := p.query(later)
	audit := o.rejudge(f, query)
	if f.revoked {
		return f.refuse("policy-revoked").audited(audit)
	}
	h, more, reason := o.leave(p, f, fromOpener, query)
	audit = append(audit, more...)
	if reason != "" {
		return f.refuse(reason).audited(audit)
	}
	return proceed(p, f, h, fromOpener, later).audited(audit)
}

// query is type << 8 | code of the ICMP query that a packet of a known flow speaks of. A flow keeps
// neither, as types and codes share it: it is judged again by those of the packet at hand. A reply
// answers a query of code 0, and a later fragment, which has no type, is taken for an echo request's.
func (p *packet) query(later bool) uint16 {
	switch {
	case later && p.is4():
		return 8 << 8
	case later:
		return 128 << 8
	case p.icmpKind() != icmpReply:
		return p.ruleDport
	}
	return queryOf[p.icmpType] << 8
}

// queryOf says which type of ICMP query one of reply answers.
var queryOf = map[uint8]uint16{0: 8, 14: 13, 129: 128}

// asked is the opening of a flow as it is judged again.
func (f *flow) asked(query uint16) Opening {
	op := f.opening
	if op.Proto == protoICMP || op.Proto == protoICMPv6 {
		op.DstPort = query
	}
	return op
}

// rejudge is step 3: a flow of an older policy is asked about again, query as packet.query says. It
// returns the rules in audit mode that matched.
func (o *Oracle) rejudge(f *flow, query uint16) []string {
	if f.epoch == o.epoch {
		return nil
	}
	j := o.Judge(f.asked(query))
	f.epoch, f.revoked = o.epoch, j.Reason != ""
	if !f.revoked {
		f.rule = j.Rule
		o.employ(f, j)
	}
	return j.Audit
}

// employ gives a flow that is allowed to a worker, if section 14 asks for that. One that has it keeps it
// until it is done.
func (o *Oracle) employ(f *flow, j Judgement) {
	if (o.worked || j.Worker) && f.opening.From != firewall.NameHost && f.opening.To != firewall.NameHost {
		f.worked = true
	}
}

// leave is step 5: where the packet goes, and whether the flow may go there.
func (o *Oracle) leave(p *packet, f *flow, fromOpener bool, query uint16) (h hop, audit []string, reason string) {
	if h, reason = o.route(p.port, p.vlan, p.src, f.leaves(p.about, fromOpener).dst); reason != "" {
		return h, nil, reason
	}
	if h.host() && f.outer != nil {
		return h, nil, "nat-to-host"
	}
	end := &f.opening.To
	if !fromOpener {
		end = &f.opening.From
	}
	if *end == h.zone {
		return h, nil, ""
	}
	// The zone is the flow's also if it may not go there: a later policy is asked about where it goes.
	*end = h.zone
	j := o.Judge(f.asked(query))
	if j.Reason != "" {
		f.revoked = true
		return h, j.Audit, "policy-revoked"
	}
	f.rule = j.Rule
	o.employ(f, j)
	return h, j.Audit, ""
}

// proceed is section 7 from step 6 on.
func proceed(p *packet, f *flow, h hop, fromOpener, later bool) Verdict {
	cause, reason := limits(p, h)
	if reason != "" {
		return f.refuse(reason)
	}
	if !later {
		if reason := f.advance(p, fromOpener); reason != "" {
			return f.refuse(reason)
		}
	}
	v := forward(p, f, h, cause, fromOpener, later)
	if !fromOpener {
		v.Beside = append(v.Beside, ruleReplies)
	}
	return v
}

// limits is step 6. A cause says why the packet, if it is allowed, goes to the kernel.
func limits(p *packet, h hop) (cause, reason string) {
	if h.host() {
		return "host", ""
	}
	if !h.peer && p.ttl <= 1 {
		return "", "ttl-expired"
	}
	if p.total > h.port.MTU {
		if h.peer || !p.is4() || p.df {
			return "", "too-big"
		}
		return "fragmentation-needed", ""
	}
	if !h.peer && h.mac == [6]byte{} {
		return "neighbour-unknown", ""
	}
	return "", ""
}

// advance is step 7: the state behind the packet.
func (f *flow) advance(p *packet, fromOpener bool) string {
	if p.proto == protoTCP {
		return f.advanceTCP(&p.tcp, fromOpener)
	}
	if !fromOpener {
		f.state = StateReplied
	}
	return ""
}
