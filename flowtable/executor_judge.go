package flowtable

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// classify asks the policy about the opening packet of a flow: t is the opener's direction.
func (e *Executor) classify(w *work, t *Tuple, from, to uint8, context uint16) uint32 {
	e.describe(w, t, from, to, context)
	return e.cfg.Classifier.Classify(&e.key, e.audit)
}

// describe makes the key for rules about the opening packet of a flow.
func (e *Executor) describe(w *work, t *Tuple, from, to uint8, context uint16) {
	k := &e.key
	*k = bpf.XDPClassifyKey{Proto: t.Proto, Family: t.Family, From: from, To: to, Context: context}
	k.SrcHi, k.SrcLo = halves(t.Family, &t.Src)
	k.DstHi, k.DstLo = halves(t.Family, &t.Dst)
	if t.Proto == packet.ProtoICMP || t.Proto == packet.ProtoICMPv6 {
		k.Dport = w.query
	} else {
		k.Sport, k.Dport = t.SrcPort, t.DstPort
	}
}

// identity returns the number of the packet's source MAC, 0 if the policy does not name it.
func (e *Executor) identity(w *work) uint16 { return e.cfg.MACs[[6]byte(w.frame[6:])] }

// halves returns an address as the classifier sees it, in host order.
func halves(family uint8, a *packet.Addr) (hi, lo uint64) {
	if family == 4 {
		return 0, uint64(binary.BigEndian.Uint32(a[:]))
	}
	return binary.BigEndian.Uint64(a[:]), binary.BigEndian.Uint64(a[8:])
}

// rejudge asks the running policy about a known flow, by what the entry keeps of its opening packet,
// and sets or takes off REVOKED. A refused flow keeps its rule: it is what its counts belong to.
func (e *Executor) rejudge(w *work) {
	core := w.flow.core
	opening := w.flow.tuple(w.flow.opener())
	if outer, ok := w.flow.outer(); ok && w.flow.word()&WordInside != 0 {
		opening.Dst, opening.DstPort = outer.Dst, outer.DstPort
	}
	verdict := e.classify(w, &opening, core.From, core.To, core.Context)
	rule := verdict & verdictRuleMask

	core.Epoch = e.cfg.Epoch
	if actionOf(verdict) != bpf.XDPActionACTION_ALLOW {
		setWord(&core.Word, 0, WordRevoked)
		return
	}
	e.Counters.judged(rule, w.tick)
	if old := core.Rule & verdictRuleMask; old != rule {
		counts := endedOf(&w.flow)
		e.Counters.move(old, rule, counts.packets, counts.bytes)
		core.Rule = core.Rule&^verdictRuleMask | rule
	}
	if w.flow.word()&WordRevoked != 0 {
		e.cfg.Table.Counters.Revived++
	}
	off, on := uint64(WordRevoked|WordLog), uint64(0)
	if verdict&VerdictLog != 0 {
		on = WordLog
	}
	legs := w.flow.leg
	stages := e.cfg.Stages.of(rule, core.From, core.To)
	if stages != 0 {
		off |= WordReady
		legs[0].Stages, legs[1].Stages = stages, stages
	} else if legs[0].Stages|legs[1].Stages != 0 {
		on |= WordReady
	}
	setWord(&core.Word, off, on)
	w.rule = rule
}
