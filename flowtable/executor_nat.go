package flowtable

import (
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Translation, docs/PACKET-PATH.md section 15: what the nat rules make of the packet that opens a flow, and
// how the packets of a flow find what was made of theirs.

// leaving returns the tuple with which the packet leaves.
func (w *work) leaving() *Tuple {
	if w.xlat != 0 {
		return &w.out
	}
	return &w.tuple
}

// translate notes with what the packet leaves, if that is another tuple.
func (w *work) translate(out *Tuple, how uint8) {
	w.out, w.xlat = *out, how
	if out.Src != w.tuple.Src || out.SrcPort != w.tuple.SrcPort {
		w.xlat |= XlatSource
	}
	if out.Dst != w.tuple.Dst || out.DstPort != w.tuple.DstPort {
		w.xlat |= XlatDestination
	}
}

// findTranslated meets the flow whose alias a packet has found: it is a reply. Known is false if the alias
// is no longer that of a flow. A SYN that would open a connection anew cannot: its key is the alias's.
func (e *Executor) findTranslated(w *work, of entry, sender uint8) (known bool, reason bpf.XDPReason) {
	flow, ok := e.cfg.Table.follow(of, &w.tuple)
	if !ok {
		return false, reasonNone
	}
	if of.opener() == sender || e.reopens(w, &flow) {
		return false, bpf.XDPReasonREASON_NAT_CONFLICT
	}
	w.flow, w.translated = flow, true
	side := flow.opener() ^ 1
	out := flow.tuple(side)
	w.translate(&out, XlatReply)
	e.meet(w, side)
	return true, reasonNone
}

// Routed returns the destination whose route Process will want for this frame, if it wants one: the packet's
// own, or what translation makes of it. Local is that of the Route: whether the destination in the packet is
// the gateway's own. Ok is false if the frame is no well-formed IP packet of one of the ports. Nothing
// changes.
func (e *Executor) Routed(now uint64, ifindex uint32, frame []byte, local bool) (dst netip.Addr, ok bool) {
	e.w = work{frame: frame, port: e.ports[ifindex], tick: Tick(now), route: Route{Local: local}}
	w, p := &e.w, &e.p
	if w.port == nil || p.DecodeEthernet(frame) != packet.OK ||
		p.EtherType != packet.EtherTypeIPv4 && p.EtherType != packet.EtherTypeIPv6 || p.DecodeIP() != packet.OK {
		return netip.Addr{}, false
	}
	e.foresee(w)
	return address(p.Family, &w.leaving().Dst), true
}

// foresee fills the packet's tuples as far as they say where it goes.
func (e *Executor) foresee(w *work) {
	p := &e.p
	w.tuple.Dst = p.Dst
	if e.arrive(w) != reasonNone || w.inline() {
		return
	}
	if p.Piece != packet.Later && (p.Proto == packet.ProtoICMP || p.Proto == packet.ProtoICMPv6) &&
		(p.ICMP.Kind == packet.Neighbour || p.ICMP.Kind == packet.Listener) {
		return
	}
	if _, done := e.sort(w); done {
		w.tuple.Dst = p.Dst
		return
	}
	if p.Piece == packet.Later {
		k := e.fragmentKey(w)
		d := e.frags.find(&k, w.tick)
		if d == nil {
			return
		}
		d.complete(&w.tuple)
	}
	k := keyOf(&w.tuple)
	if known, reason := e.find(w, &k); !known && reason == reasonNone && !w.failed && p.Piece != packet.Later {
		e.natDestination(w)
	}
}

// ask asks a list of nat rules about the packet that opens a flow. It returns the rule that matched, nil: none
// that concerns packets of this family. Decided tells the latter from no answer at all.
func (e *Executor) ask(list *ACL, w *work, to uint8) (id uint32, rule *bpf.XDPNatRule, decided bool) {
	if list == nil {
		return 0, nil, false
	}
	e.describe(w, &w.tuple, w.zone, to, e.identity(w))
	verdict := list.Classify(&e.key, nil)
	id, rule = e.natRule(verdict&verdictRuleMask, w)
	return id, rule, verdict != 0
}

// natRule returns a nat rule by its id, nil: none that concerns packets of the family at hand.
func (e *Executor) natRule(id uint32, w *work) (uint32, *bpf.XDPNatRule) {
	if id == 0 || int(id) >= len(e.cfg.NAT.Rules) {
		return 0, nil
	}
	rule := &e.cfg.NAT.Rules[id]
	switch kind := bpf.XDPNatKind(rule.Kind); {
	case kind == bpf.XDPNatKindNAT_NONE:
		return 0, nil
	case kind != bpf.XDPNatKindNAT_KEEP && rule.Family != w.tuple.Family:
		return 0, nil
	}
	return id, rule
}

// natDestination asks the destination rules about the packet that opens a flow.
func (e *Executor) natDestination(w *work) bpf.XDPReason {
	n := e.cfg.NAT
	if n == nil || w.inline() || isGroup(w.tuple.Family, &w.tuple.Dst) {
		return reasonNone
	}
	to := uint8(ZoneNone)
	if w.route.Local {
		to = ZoneHost
	}
	id, rule, decided := e.ask(n.Destinations, w, to)
	if rule == nil {
		if !decided && e.filters {
			e.admit(w)
		}
		return reasonNone
	}
	out, ok := w.tuple, true
	switch bpf.XDPNatKind(rule.Kind) {
	case bpf.XDPNatKindNAT_DESTINATION:
		server := e.server(rule, &w.tuple)
		if server == nil {
			return reasonNone
		}
		out.Dst = natAddress(out.Family, &server.Address)
		if server.Port != 0 && (out.Proto == packet.ProtoTCP || out.Proto == packet.ProtoUDP) {
			out.DstPort = swap16(server.Port)
		}
	case bpf.XDPNatKindNAT_PREFIX_DESTINATION:
		ok = putPrefix(rule, &out.Dst)
	default:
		w.kept.destination = id
		return reasonNone
	}
	w.destinationRule, w.translated = id, true
	w.translate(&out, 0)
	if !ok {
		return e.conflict(0, id)
	}
	return reasonNone
}

// server returns where a NAT_DESTINATION sends a flow, nil: it has no bucket.
func (e *Executor) server(rule *bpf.XDPNatRule, t *Tuple) *bpf.XDPNatServer {
	n := e.cfg.NAT
	if rule.Buckets == 0 {
		return nil
	}
	by := *t
	if rule.Flags&natByConnection == 0 {
		by.SrcPort, by.DstPort = 0, 0
	}
	k := keyOf(&by)
	bucket := uint64(rule.Bucket) + uint64(e.cfg.Table.hash(&k)%rule.Buckets)
	if bucket >= uint64(len(n.Buckets)) || int(n.Buckets[bucket]) >= len(n.Servers) {
		return nil
	}
	return &n.Servers[n.Buckets[bucket]]
}

// natSource asks the source rules about the packet that opens a flow, and makes the flow's alias, a, if it
// is translated.
func (e *Executor) natSource(w *work, k *flowKey) (a aliasOpening, made bool, reason bpf.XDPReason) {
	n := e.cfg.NAT
	if n == nil || w.inline() || w.to == ZoneHost {
		return a, false, reasonNone
	}
	if w.admitted {
		w.hairpin = e.behind(w)
	}
	id, rule := w.hairpin, &n.Rules[w.hairpin]
	if id == 0 {
		id, rule, _ = e.ask(n.Sources, w, w.to)
	}
	kind := bpf.XDPNatKindNAT_NONE
	if rule != nil {
		kind = bpf.XDPNatKind(rule.Kind)
	} else if d := w.destinationRule; d != 0 && w.zone == w.to && n.Rules[d].Flags&natHairpin != 0 {
		id, rule, kind = d, &n.Rules[d], bpf.XDPNatKindNAT_MASQUERADE
	}

	out, number, chooses, ok, limit := *w.leaving(), uint32(0), false, true, uint32(0)
	if id != 0 {
		limit = rule.SourceLimit
	}
	switch kind {
	case bpf.XDPNatKindNAT_MASQUERADE:
		if chooses = true; w.hairpin != 0 {
			out.Src = w.tuple.Dst
		} else if out.Src, ok = e.deviceAddress(w); !ok {
			w.sourceRule = id
			return a, false, bpf.XDPReasonREASON_NAT_NO_ADDRESS
		}
	case bpf.XDPNatKindNAT_SOURCE:
		out.Src, number = e.poolAddress(rule, &w.tuple)
		chooses = true
	case bpf.XDPNatKindNAT_PREFIX_SOURCE:
		ok = putPrefix(rule, &out.Src)
	default:
		w.kept.source, id = id, 0
	}
	w.sourceRule = id
	w.translate(&out, 0)
	switch {
	case !ok, out.Src == out.Dst:
		return a, false, e.conflict(id, w.destinationRule)
	case w.xlat == 0:
		return a, false, reasonNone
	}
	a = aliasOpening{
		outer: &w.out, target: k, ports: natNoPorts,
		sourceRule: id, destinationRule: w.destinationRule, now: w.tick,
	}
	if w.admitted {
		a.mapped = mappedDestination
	}
	if reason = e.limited(w, &a, limit); reason != reasonNone {
		return a, false, reason
	}
	maps := rule != nil && rule.Flags&natMapping != 0
	if chooses {
		to := &out
		if maps {
			to = out.withoutRemote()
		}
		a.ports, chooses = e.cfg.Table.natElement(rule.Ports, number, to)
	}
	switch {
	case chooses && maps:
		reason = e.mapSource(w, rule, &a)
	case chooses:
		reason = e.aliasWithPort(&a)
	default:
		reason = e.alias(&a)
	}
	if reason != reasonNone {
		e.cfg.Table.giveTally(a.tally)
	}
	out = w.out
	w.translate(&out, 0)
	return a, reason == reasonNone, reason
}

// deviceAddress returns the address of the device by which the packet leaves.
func (e *Executor) deviceAddress(w *work) (packet.Addr, bool) {
	hop := &e.cfg.Nexthops[w.nexthop]
	a := e.cfg.NATAddresses[bpf.XDPNatDevice{Port: uint16(hop.Port), Vlan: uint16(hop.Dst >> 48)}]
	out := addr6(&a.Ip6)
	if w.tuple.Family == 4 {
		out = addr4(a.Ip4)
	}
	return out, out != packet.Addr{}
}

// poolAddress returns the address of a NAT_SOURCE that a sender has, and its number in the pool.
func (e *Executor) poolAddress(rule *bpf.XDPNatRule, t *Tuple) (packet.Addr, uint32) {
	by := Tuple{Family: t.Family, Src: t.Src}
	n := addrLen(t.Family)
	for i := range n {
		by.Dst[i] = ^t.Src[i]
	}
	k := keyOf(&by)
	number := uint32(0)
	if rule.Addresses > 1 {
		number = e.cfg.Table.hash(&k) % rule.Addresses
	}
	a := natAddress(t.Family, &rule.Address)
	carry := number
	for i := n - 1; i >= 0 && carry != 0; i-- {
		carry += uint32(a[i])
		a[i] = byte(carry)
		carry >>= 8
	}
	return a, number
}

// natAddress returns an address of a nat rule or server.
func natAddress(family uint8, a *[4]uint32) packet.Addr {
	if family == 4 {
		return addr4(a[0])
	}
	return addr6(a)
}

func addrLen(family uint8) int {
	if family == 4 {
		return 4
	}
	return 16
}
