package flowtable

import "github.com/softdpu/softdpu/bpf"

// alias makes the alias of the flow that a packet opens, whose outer tuple a names. A flow that keeps its
// tuple has none.
func (e *Executor) alias(w *work, a *aliasOpening) (made bool, reason bpf.XDPReason) {
	if w.xlat == 0 {
		return false, reasonNone
	}
	switch e.createAlias(a) {
	case aliasMade, aliasOwn:
		return true, reasonNone
	case aliasFull:
		return false, bpf.XDPReasonREASON_FLOW_TABLE_FULL
	}
	return false, e.conflict(w)
}

// aliasWithPort is alias of a flow whose source port, or identifier, is chosen among those of a.ports. Of
// the tries the first is for the port that it has.
func (e *Executor) aliasWithPort(w *work, a *aliasOpening) (made bool, reason bpf.XDPReason) {
	t := e.cfg.Table
	out, h := w.out, t.hash(a.target)
	for i := range uint32(natTries) {
		port := w.tuple.SrcPort
		if i > 0 || !t.natPorts.take(a.ports, port) {
			var ok bool
			if port, ok = t.natPorts.next(a.ports, uint16(h+i*natSpread)); !ok {
				break
			}
			if !t.natPorts.take(a.ports, port) {
				continue
			}
		}
		out.SrcPort = port
		w.translate(&out, 0)
		if w.xlat == 0 {
			t.natPorts.give(a.ports, port)
			return false, reasonNone
		}
		switch e.createAlias(a) {
		case aliasMade:
			return true, reasonNone
		case aliasFull:
			t.natPorts.give(a.ports, port)
			return false, bpf.XDPReasonREASON_FLOW_TABLE_FULL
		}
	}
	if n := e.Counters.nat(a.sourceRule); n != nil {
		n.Exhausted++
	}
	return false, bpf.XDPReasonREASON_NAT_EXHAUSTED
}

// createAlias makes an alias. The key of its own flow, which is not there yet, is taken as well.
func (e *Executor) createAlias(a *aliasOpening) aliasResult {
	if k := keyOf(a.outer); sameKey(&k, a.target) {
		return aliasTaken
	}
	made := e.cfg.Table.createAlias(a)
	e.Counters.credit(&a.left)
	return made
}

// conflict refuses a flow whose translation cannot be, and counts it with the rule whose it is: that of the
// source if it changes.
func (e *Executor) conflict(w *work) bpf.XDPReason {
	id := w.destinationRule
	if w.xlat&XlatSource != 0 {
		id = w.sourceRule
	}
	if n := e.Counters.nat(id); n != nil {
		n.Conflicts++
	}
	return bpf.XDPReasonREASON_NAT_CONFLICT
}

// opened counts a new flow with the rules that translate it.
func (e *Executor) opened(w *work) {
	if n := e.Counters.nat(w.sourceRule); n != nil && w.xlat&XlatSource != 0 {
		n.Flows++
	}
	if n := e.Counters.nat(w.destinationRule); n != nil && w.xlat&XlatDestination != 0 && w.destinationRule != w.sourceRule {
		n.Flows++
	}
}
