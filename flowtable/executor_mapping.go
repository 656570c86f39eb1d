package flowtable

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// mapSource makes the alias of a flow whose source port is that of a mapping, which is made if it is not
// there.
func (e *Executor) mapSource(w *work, rule *bpf.XDPNatRule, a *aliasOpening) bpf.XDPReason {
	t := e.cfg.Table
	m := mappingOf(&w.tuple, &w.out.Src, a.sourceRule)
	if there, ok := t.use(&m, w.tick); ok {
		outer, _ := there.outer()
		w.out.SrcPort = outer.SrcPort
	} else if reason := e.createMapping(w, &m, a); reason != reasonNone {
		return reason
	}
	a.ports, a.mapped = natNoPorts, a.mapped|mappedSource
	if rule.Flags&natFilterAddress != 0 {
		a.mapped |= mappedPeer
		peer := peerOf(&w.tuple, &w.out.Dst)
		if _, ok := t.use(&peer, w.tick); !ok && !e.enterMapping(w, &peer, nil) {
			return bpf.XDPReasonREASON_FLOW_TABLE_FULL
		}
	}
	return e.alias(a)
}

// createMapping makes a mapping and its alias, with a port among those of a.ports, which w.out gets.
func (e *Executor) createMapping(w *work, m *Tuple, a *aliasOpening) bpf.XDPReason {
	target := keyOf(m)
	outer := Tuple{Family: m.Family, Proto: m.Proto, Kind: KeyMapping, Src: w.out.Src, SrcPort: w.tuple.SrcPort}
	own := aliasOpening{outer: &outer, target: &target, ports: a.ports, sourceRule: a.sourceRule, now: w.tick}
	if reason := e.aliasWithPort(&own); reason != reasonNone {
		return reason
	}
	if !e.enterMapping(w, m, &outer) {
		e.cfg.Table.cancelAlias(&own)
		return bpf.XDPReasonREASON_FLOW_TABLE_FULL
	}
	w.out.SrcPort = outer.SrcPort
	return reasonNone
}

// enterMapping makes an entry in the state FLOW_MAPPING, and reports false if there is no place. Outer is nil
// if it has no alias.
func (e *Executor) enterMapping(w *work, m, outer *Tuple) bool {
	k, to := keyOf(m), w.to
	if w.hairpin != 0 {
		to = w.outside
	}
	_, left, ok := e.cfg.Table.create(&k, &opening{
		state: bpf.XDPFlowStateFLOW_MAPPING, flags: hiOpened(k.sender), epoch: e.cfg.Epoch, rule: w.rule, now: w.tick,
		from: w.zone, to: to, context: e.identity(w), outer: outer,
	})
	e.Counters.credit(&left)
	return ok
}

// admit gives a packet that no rule has another destination for the end inside of the mapping that it is sent
// to, if that lets it in.
func (e *Executor) admit(w *work) {
	if w.tuple.Proto != packet.ProtoTCP && w.tuple.Proto != packet.ProtoUDP {
		return
	}
	t := e.cfg.Table
	outer := Tuple{Family: w.tuple.Family, Proto: w.tuple.Proto, Kind: KeyMapping, Src: w.tuple.Dst, SrcPort: w.tuple.DstPort}
	k := keyOf(&outer)
	found, ok := t.see(&k)
	if !ok || !isAlias(found.word()) {
		return
	}
	m, ok := t.followKey(&found, &k)
	if !ok {
		return
	}
	id, rule := e.natRule(found.alias().source, w)
	if rule == nil || rule.Flags&(natFilterAny|natFilterAddress) == 0 {
		return
	}
	inside := m.tuple(m.opener())
	if rule.Flags&natFilterAny == 0 {
		peer := peerOf(&inside, &w.tuple.Src)
		if _, ok := t.mapping(&peer); !ok {
			return
		}
	}
	w.destinationRule, w.translated, w.admitted, w.outside = id, true, true, m.core.To
	out := w.tuple
	out.Dst, out.DstPort = inside.Src, inside.SrcPort
	w.translate(&out, 0)
}

// behind returns the rule that the opener of a flow that comes in by a mapping is behind itself, if it sends to
// its own side of that, and 0 if it is behind none. Where masquerading leads to is known only of what it wrote.
func (e *Executor) behind(w *work) uint32 {
	if w.zone == w.outside {
		return 0
	}
	id, rule, _ := e.ask(e.cfg.NAT.Sources, w, w.outside)
	if rule == nil {
		return 0
	}
	masquerades := bpf.XDPNatKind(e.cfg.NAT.Rules[w.destinationRule].Kind) == bpf.XDPNatKindNAT_MASQUERADE
	switch bpf.XDPNatKind(rule.Kind) {
	case bpf.XDPNatKindNAT_SOURCE:
		return id
	case bpf.XDPNatKindNAT_MASQUERADE:
		if masquerades {
			return id
		}
	}
	return 0
}
