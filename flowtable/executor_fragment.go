package flowtable

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

func (e *Executor) fragmentKey(w *work) fragmentKey {
	p := &e.p
	return fragmentKey{
		src: p.Src, dst: p.Dst, id: p.Fragment.ID, domain: w.domain,
		proto: p.Fragment.Proto, family: p.Family,
	}
}

// fragment takes the fragment's range of its datagram. A later one gets the flow key's ports of the
// first, or its refusal by a rule or a state; a first one is refused if the datagram is known already.
// No rule has a part in an overlap.
func (e *Executor) fragment(w *work) bpf.XDPReason {
	f := &e.p.Fragment
	k := e.fragmentKey(w)
	d := e.frags.find(&k, w.tick)
	if d == nil {
		if e.p.Piece == packet.First {
			return reasonNone
		}
		return bpf.XDPReasonREASON_FRAGMENT_NO_FIRST
	}
	if reason := d.take(span{f.Offset, f.Offset + f.Payload}, !f.More); reason != reasonNone {
		return reason
	}
	if d.reason != reasonNone {
		w.rule = d.rule
	}
	d.complete(&w.tuple)
	switch d.reason {
	case bpf.XDPReasonREASON_NO_RULE_MATCHED, bpf.XDPReasonREASON_DENY, bpf.XDPReasonREASON_REJECT:
		e.Counters.rule(d.rule, 1, uint64(e.p.Length))
	}
	return d.reason
}

// complete gives the tuple of a later fragment what only the first one shows.
func (d *datagram) complete(t *Tuple) {
	t.Proto, t.SrcPort, t.DstPort = d.transport, d.srcPort, d.dstPort
}

// enter notes the verdict on a first fragment for those that follow it.
func (e *Executor) enter(w *work, reason bpf.XDPReason) {
	k := e.fragmentKey(w)
	d := e.frags.enter(&k, w.tick, e.p.Fragment.Payload)
	d.transport, d.srcPort, d.dstPort = w.tuple.Proto, w.tuple.SrcPort, w.tuple.DstPort
	d.reason, d.rule = reason, w.rule
}
