package flowtable

import "github.com/softdpu/softdpu/bpf"

// alias makes the alias of the flow that a packet opens, whose outer tuple a names.
func (e *Executor) alias(a *aliasOpening) bpf.XDPReason {
	switch e.createAlias(a) {
	case aliasOwn:
		e.cfg.Table.giveTally(a.tally) // the alias counts already, if it does
		fallthrough
	case aliasMade:
		return reasonNone
	case aliasFull:
		return bpf.XDPReasonREASON_FLOW_TABLE_FULL
	}
	return e.conflict(a.sourceRule, a.destinationRule)
}

// aliasWithPort is alias of a flow whose source port, or identifier, is chosen among those of a.ports, and
// written into the outer tuple. Of the tries the first is for the port that stands there. Ports whose tuples are another flow's stay taken until it
// is done, so that each try is for another one; those who have them took them elsewhere, and would not give
// them back here.
func (e *Executor) aliasWithPort(a *aliasOpening) bpf.XDPReason {
	t := e.cfg.Table
	var others [natTries]uint16
	tried := 0
	defer func() {
		for _, port := range others[:tried] {
			t.natPorts.give(a.ports, port)
		}
	}()
	first, h := a.outer.SrcPort, t.hash(a.target)
	for i := range uint32(natTries) {
		port := first
		if i > 0 || !t.natPorts.take(a.ports, port) {
			var ok bool
			if port, ok = t.natPorts.next(a.ports, uint16(h+i*natSpread)); !ok {
				break
			}
			if !t.natPorts.take(a.ports, port) {
				continue
			}
		}
		a.outer.SrcPort = port
		switch e.createAlias(a) {
		case aliasMade:
			return reasonNone
		case aliasFull:
			t.natPorts.give(a.ports, port)
			return bpf.XDPReasonREASON_FLOW_TABLE_FULL
		}
		others[tried] = port
		tried++
	}
	if n := e.Counters.nat(a.sourceRule); n != nil {
		n.Exhausted++
	}
	return bpf.XDPReasonREASON_NAT_EXHAUSTED
}

// limited counts a flow that is about to be translated for its source, if its rule has a limit, or refuses it. A
// connection that is opened anew ends the one before it, which still counts.
func (e *Executor) limited(w *work, a *aliasOpening, limit uint32) bpf.XDPReason {
	if limit == 0 {
		return reasonNone
	}
	if w.reopen {
		limit++
	}
	tally, ok := e.cfg.Table.takeTally(a.sourceRule, limit, tallySource(&w.tuple.Src))
	if !ok {
		if n := e.Counters.nat(a.sourceRule); n != nil {
			n.Limited++
		}
		return bpf.XDPReasonREASON_NAT_SOURCE_LIMIT
	}
	a.tally = tally
	return reasonNone
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

// conflict refuses a flow whose translation cannot be, and counts it with the rule for its source, if that
// translates, else with the one for its destination.
func (e *Executor) conflict(source, destination uint32) bpf.XDPReason {
	id := source
	if id == 0 {
		id = destination
	}
	if n := e.Counters.nat(id); n != nil {
		n.Conflicts++
	}
	return bpf.XDPReasonREASON_NAT_CONFLICT
}

// opened counts a new flow with the rules that translate it.
func (e *Executor) opened(a *aliasOpening) {
	if n := e.Counters.nat(a.sourceRule); n != nil {
		n.Flows++
	}
	if n := e.Counters.nat(a.destinationRule); n != nil && a.destinationRule != a.sourceRule {
		n.Flows++
	}
}
