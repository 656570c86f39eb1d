package flowtable

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// The packet path, in the order of docs/PACKET-PATH.md:
//
//	arrive    1  zone, routing domain, ARP and ethertypes        executor.go
//	decode    2  IPv4, 3 IPv6, 4.1-2 fragments, 5 transport      dataplane/packet
//	sort      6  ICMP: errors, discovery, queries, replies       executor_icmp.go
//	fragment  4  later fragments follow their first one          executor_fragment.go
//	find      7  the flow, by the packet's or the quoted tuple   executor.go, executor_nat.go
//	miss      8  route, 9 rules, 11 a place in the table         executor.go, executor_route.go, table_create.go
//	nat       15 destination before the route, source at last    executor_nat.go, executor_port.go
//	pursue    7  zone, epoch, revoked, route, size, 10 state     executor.go, executor_judge.go, track.go
//	finish       counters; 12 answer; rewrite                    executor_finish.go, translate.go
//
// A step returns a reason; REASON_NONE means go on. Only finish counts reasons and changes bytes.

// work is the packet at hand beside its headers, and what was found out about it.
type work struct {
	frame  []byte
	port   *bpf.XDPPort
	tick   uint32
	route  Route
	zone   uint8 // of arrival
	domain uint16

	tuple  Tuple  // of the flow, in the packet's direction, as it came
	query  uint16 // type << 8 | code of the query that opens an ICMP flow
	failed bool   // the packet is an ICMP error about the flow's other direction

	flow   entry // valid iff known
	known  bool
	reopen bool  // a SYN that may take the place of flow, which is over
	side   uint8 // leg index of the sender
	opener bool  // the sender opened the flow

	rule    uint32
	action  bpf.XDPAction
	nexthop uint32
	to      uint8
	pass    uint8 // 1 + pass cause
	stages  uint8 // of its leg

	translated                  bool                                 // by its flow or a destination rule: it is not for the host
	xlat                        uint8                                // XLAT_*: what of it changes
	out                         Tuple                                // as it leaves; valid iff xlat is not 0
	sourceRule, destinationRule uint32                               // nat rules that translate it; of NAT_KEEP: none
	admitted                    bool                                 // it is sent to a mapping, which lets it in
	outside                     uint8                                // zone to which that mapping leads
	hairpin                     uint32                               // rule that the sender is behind itself, of those who send to a mapping; 0: none
	kept                        struct{ source, destination uint32 } // nat rules that say NAT_KEEP
}

func (w *work) inline() bool { return w.port.Flags&PortInline != 0 }

func (w *work) passTo(cause bpf.XDPPassCause) { w.pass = 1 + uint8(cause) }

// Process decides about one frame that arrived at now (ns) by the port with this interface index.
// route answers for the packet's destination if it has to be looked up. The frame is rewritten in
// place and Result.Frame aliases it; its capacity must leave 4 bytes for a VLAN tag behind its end
// if the next hop has one. An answer is written to answer, which 256 bytes always suffice.
func (e *Executor) Process(now uint64, ifindex uint32, frame []byte, route Route, answer []byte) Result {
	e.w = work{frame: frame, port: e.ports[ifindex], tick: Tick(now), route: route}
	return e.finish(&e.w, e.decide(&e.w), answer)
}

func (e *Executor) decide(w *work) bpf.XDPReason {
	if w.port == nil {
		return bpf.XDPReasonREASON_INTERNAL
	}
	if f := e.p.DecodeEthernet(w.frame); f != packet.OK {
		return failureReasons[f]
	}
	if reason := e.arrive(w); reason != reasonNone {
		return reason
	}
	switch e.p.EtherType {
	case packet.EtherTypeIPv4, packet.EtherTypeIPv6:
	case packet.EtherTypeARP:
		return e.besideIP(w, ruleARP, bpf.XDPPassCausePASS_ARP)
	default:
		if w.inline() && e.listed(e.p.EtherType) {
			w.nexthop = uint32(w.port.Peer)
			return reasonNone
		}
		return bpf.XDPReasonREASON_ETHERTYPE
	}
	if f := e.p.DecodeIP(); f != packet.OK {
		return failureReasons[f]
	}
	if reason, done := e.sort(w); done {
		return reason
	}
	if e.p.Piece != packet.Whole {
		if reason := e.fragment(w); reason != reasonNone {
			return reason
		}
	}
	reason := e.judge(w)
	if e.p.Piece == packet.First && !w.failed {
		e.enter(w, reason)
	}
	return reason
}

// arrive gives the frame its zone and routing domain, and refuses what is not for this port.
func (e *Executor) arrive(w *work) bpf.XDPReason {
	w.zone, w.domain = w.port.Zone, w.port.Domain
	if e.p.VLAN != 0 {
		w.zone = e.cfg.VLANZones[VLANKey(w.port.Id, e.p.VLAN)]
	}
	if w.zone == ZoneNone {
		return bpf.XDPReasonREASON_VLAN_UNKNOWN
	}
	if w.inline() {
		w.domain = uint16(w.port.Pair)<<12 | e.p.VLAN
		return reasonNone
	}
	if w.frame[0]&1 == 0 && [6]byte(w.frame) != w.port.Mac {
		return bpf.XDPReasonREASON_NOT_FOR_US
	}
	return reasonNone
}

func (e *Executor) listed(ethertype uint16) bool {
	for _, t := range e.cfg.Ethertypes {
		if t == ethertype {
			return true
		}
	}
	return false
}

// besideIP sends ARP and discovery on: to the inline peer, or to the kernel.
func (e *Executor) besideIP(w *work, rule uint32, cause bpf.XDPPassCause) bpf.XDPReason {
	w.rule, w.action = rule, bpf.XDPActionACTION_ALLOW
	e.Counters.admitted(rule, uint64(len(w.frame)), w.tick)
	if w.inline() {
		w.nexthop = uint32(w.port.Peer)
	} else {
		w.passTo(cause)
	}
	return reasonNone
}

// judge takes a packet with a tuple from the look-up to the count on its flow.
func (e *Executor) judge(w *work) bpf.XDPReason {
	k := keyOf(&w.tuple)
	known, reason := e.find(w, &k)
	if reason != reasonNone {
		return reason
	}
	if !known {
		if w.failed {
			return bpf.XDPReasonREASON_ICMP_NO_FLOW
		}
		if reason := e.miss(w, &k); reason != reasonNone {
			return reason
		}
	}
	return e.pursue(w)
}

// find looks the flow up. A SYN on one that is over does not find it, but may take its place. Of a translated
// flow the opener's packets are found as they come, and the other end's by the alias.
func (e *Executor) find(w *work, k *flowKey) (known bool, reason bpf.XDPReason) {
	f, ok := e.cfg.Table.see(k)
	if !ok {
		return false, reasonNone
	}
	if isAlias(f.word()) {
		return e.findTranslated(w, f, k.sender)
	}
	outer, translated := f.outer()
	if translated && f.opener() != k.sender {
		return false, bpf.XDPReasonREASON_NAT_UNTRANSLATED
	}
	w.flow = f
	if e.reopens(w, &f) {
		w.reopen = true
		return false, reasonNone
	}
	if w.translated = translated; translated {
		w.translate(&outer, 0)
	}
	e.meet(w, k.sender)
	return true, reasonNone
}

// reopens reports whether the packet is a SYN on a flow that is over.
func (e *Executor) reopens(w *work, f *entry) bool {
	return isOver(stateOf(f.word())) && !w.failed &&
		e.p.Proto == packet.ProtoTCP && e.p.Piece != packet.Later && isSYN(&e.p.TCP)
}

// meet notes which end of the flow the packet comes from.
func (e *Executor) meet(w *work, sender uint8) {
	w.known, w.side = true, sender
	w.opener = w.flow.opener() == sender
}

// miss asks route and rules about the opening packet of a flow, and creates it.
func (e *Executor) miss(w *work, k *flowKey) bpf.XDPReason {
	p := &e.p
	if p.Piece == packet.Later {
		return bpf.XDPReasonREASON_FRAGMENT_NO_FIRST
	}
	icmp := p.Proto == packet.ProtoICMP || p.Proto == packet.ProtoICMPv6
	if icmp && p.ICMP.Kind == packet.Reply {
		return bpf.XDPReasonREASON_ICMP_NO_REQUEST
	}
	if reason := e.natDestination(w); reason != reasonNone {
		return reason
	}
	if reason := e.lookUpRoute(w); reason != reasonNone {
		return reason
	}

	o := opening{
		state: bpf.XDPFlowStateFLOW_NEW, epoch: e.cfg.Epoch, now: w.tick, from: w.zone, to: w.to,
		context: e.identity(w),
	}
	judged := w.tuple
	if w.admitted {
		judged.Dst, judged.DstPort = w.out.Dst, w.out.DstPort
		o.flags |= WordInside
	}
	verdict := e.classify(w, &judged, o.from, o.to, o.context)
	w.rule, w.action = verdict&verdictRuleMask, actionOf(verdict)
	reason := refusal(w.action)
	if reason == reasonNone && p.Proto == packet.ProtoTCP && !isSYN(&p.TCP) &&
		(verdict&VerdictMidstream == 0 || !isMidstream(&p.TCP)) {
		reason = bpf.XDPReasonREASON_NOT_SYN
	}
	e.Counters.judged(w.rule, w.tick)
	if reason != reasonNone {
		e.Counters.rule(w.rule, 1, uint64(p.Length))
		return reason
	}

	o.rule = w.rule
	if verdict&VerdictLog != 0 {
		o.flags |= WordLog
	}
	if k.sender == 1 {
		o.flags |= WordHiOpened
	}
	d, r := &o.leg[k.sender], &o.leg[k.sender^1]
	d.Nexthop, d.Route = uint16(w.nexthop), uint16(w.tick>>2)
	d.Stages = e.cfg.Stages.of(o.rule, o.from, o.to)
	r.Stages = d.Stages
	if p.Proto == packet.ProtoTCP {
		if isSYN(&p.TCP) {
			o.state = bpf.XDPFlowStateFLOW_SYN_SENT
			openTCP(d, r, &p.TCP)
		} else {
			o.state = bpf.XDPFlowStateFLOW_ESTABLISHED
			o.flags |= WordMidstream
			pickUpTCP(d, r)
		}
	}

	a, made, reason := e.natSource(w, k)
	if reason != reasonNone {
		return reason
	}
	if made {
		o.outer = &w.out
	}

	var left [2]ended
	ok := false
	if w.reopen {
		left, ok = e.cfg.Table.reopen(&w.flow, k, &o)
	} else {
		w.flow, left[0], ok = e.cfg.Table.create(k, &o)
	}
	for i := range left {
		e.Counters.credit(&left[i])
	}
	switch {
	case made && ok:
		e.opened(&a)
		if w.admitted {
			inside := w.out.reverse()
			e.cfg.Table.useMapping(&inside, &w.tuple.Dst, w.destinationRule, w.tick)
		}
	case made:
		e.cfg.Table.cancelAlias(&a)
	}
	if !ok {
		return bpf.XDPReasonREASON_FLOW_TABLE_FULL
	}
	e.meet(w, k.sender)
	return reasonNone
}

// pursue takes a packet of a known flow through section 7, up to the count on its leg.
func (e *Executor) pursue(w *work) bpf.XDPReason {
	core := w.flow.core
	leg, peer := &w.flow.leg[w.side], &w.flow.leg[w.side^1]
	if w.failed {
		// The flow that an error speaks of must be there, which a revoked one is not, before its zones count.
		if e.outdated(core) {
			e.rejudge(w)
		}
		if w.flow.word()&WordRevoked != 0 {
			return bpf.XDPReasonREASON_ICMP_NO_FLOW
		}
	}
	w.rule, w.action = core.Rule&verdictRuleMask, bpf.XDPActionACTION_ALLOW

	if w.zone != *e.zoneOf(w, w.opener) {
		return bpf.XDPReasonREASON_WRONG_ZONE
	}
	if e.outdated(core) {
		e.rejudge(w)
	}
	if w.flow.word()&WordRevoked != 0 {
		return bpf.XDPReasonREASON_POLICY_REVOKED
	}
	if reason := e.reroute(w, leg); reason != reasonNone {
		return reason
	}
	if reason := e.fits(w); reason != reasonNone {
		return reason
	}
	if w.pass == 0 {
		w.stages = leg.Stages // and goes on at once: there are no workers here
	}
	if e.p.Piece != packet.Later && !w.failed {
		if reason := e.track(w, leg, peer); reason != reasonNone {
			return reason
		}
	}
	e.count(w, leg)
	return reasonNone
}

func (e *Executor) outdated(core *bpf.XDPFlowCore) bool { return int32(core.Epoch-e.cfg.Epoch) < 0 }

// zoneOf returns where the flow keeps the zone of the opener or of the other end.
func (e *Executor) zoneOf(w *work, opener bool) *uint8 {
	if opener {
		return &w.flow.core.From
	}
	return &w.flow.core.To
}

// fits checks TTL and MTU of a packet that is not for the host.
func (e *Executor) fits(w *work) bpf.XDPReason {
	if w.nexthop == NexthopHost {
		w.passTo(bpf.XDPPassCausePASS_HOST)
		return reasonNone
	}
	if !w.inline() && e.p.TTL <= 1 {
		return bpf.XDPReasonREASON_TTL_EXPIRED
	}
	if e.p.Length > int(e.mtu(w)) {
		if w.inline() || e.p.Family == 6 || e.p.DontFragment {
			return bpf.XDPReasonREASON_TOO_BIG
		}
		w.passTo(bpf.XDPPassCausePASS_FRAGMENT)
	}
	return reasonNone
}

// track moves the flow's state.
func (e *Executor) track(w *work, leg, peer *bpf.XDPLeg) bpf.XDPReason {
	before := stateOf(w.flow.word())
	after, reason := before, reasonNone
	switch {
	case w.tuple.Proto == packet.ProtoTCP:
		after, reason = trackTCP(before, leg, peer, w.opener, &e.p.TCP)
	case before == bpf.XDPFlowStateFLOW_NEW && !w.opener:
		after = bpf.XDPFlowStateFLOW_REPLIED
	}
	if after != before {
		setWord(&w.flow.core.Word, WordStateMask|WordMarked, uint64(after))
		e.cfg.Table.moved(before, after)
	}
	return reason
}

// count adds the packet to its leg, an ICMP error to its built-in rule too. A hit takes the ageing scan's
// mark off; an error is none.
func (e *Executor) count(w *work, leg *bpf.XDPLeg) {
	n := &w.flow.count[w.side]
	n.Packets++
	n.Bytes += uint64(e.p.Length)
	if w.failed {
		e.Counters.admitted(ruleICMPErrors, uint64(e.p.Length), w.tick)
		return
	}
	storeSeen(leg, w.tick)
	if w.flow.word()&WordMarked != 0 {
		setWord(&w.flow.core.Word, WordMarked, 0)
	}
}
