package flowtable

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// finish counts the packet, once, and makes the bytes that leave.
func (e *Executor) finish(w *work, reason bpf.XDPReason, answer []byte) Result {
	r := Result{
		Reason: reason, Rule: w.rule, Action: w.action,
		From: w.zone, To: w.to, Nexthop: w.nexthop,
		SourceRule: w.sourceRule | w.kept.source, DestinationRule: w.destinationRule | w.kept.destination,
	}
	if w.known {
		r.Leg, r.Word, r.Flow = 1+w.side, w.flow.word(), w.flow.id
		r.Flow.Generation = uint32(r.Word >> WordGenerationBit)
	}
	if reason == reasonNone {
		e.clampMSS(w)
		r.Xlat, r.Outer = w.xlat, w.out
	}
	if reason == reasonNone && w.pass == 0 {
		if frame, ok := e.send(w); ok {
			r.Verdict, r.Frame, r.Port = Forward, frame, e.cfg.Nexthops[w.nexthop].Port
			r.Stages = w.stages
			return r
		}
		reason = bpf.XDPReasonREASON_INTERNAL
		r.Reason, r.Xlat = reason, 0
	}
	if reason == reasonNone {
		if w.xlat != 0 {
			e.translatePassed(w)
			r.Frame = w.frame
		}
		r.Verdict, r.Pass = Pass, w.pass
		e.Counters.pass(bpf.XDPPassCause(w.pass-1), len(w.frame))
		return r
	}

	e.Counters.reason(reason, len(w.frame))
	switch reason {
	case bpf.XDPReasonREASON_REJECT:
		e.answer(w, &r, answer)
	case bpf.XDPReasonREASON_TTL_EXPIRED, bpf.XDPReasonREASON_TOO_BIG:
		// The kernel tells the sender, if it can: on an inline port there is none, and of what a flow is
		// translated to it knows nothing.
		switch {
		case w.xlat != 0:
			e.answer(w, &r, answer)
		case !w.inline():
			r.Verdict = Pass
		}
	}
	return r
}

// answer has the sender told why the packet is refused, if an answer is due.
func (e *Executor) answer(w *work, r *Result, out []byte) {
	if n := e.reply(w, r.Reason, out); n > 0 {
		r.Verdict, r.Frame, r.Port = Answer, out[:n:n], w.port.Id
	}
}

// translatePassed makes of a packet what the kernel gets, which carries it on: its destination is what it
// becomes, and its source is as it came, since the kernel takes no packet from an address of its own. The
// guard writes that (section 15.9).
func (e *Executor) translatePassed(w *work) {
	p := &e.p
	bare := w.port.Flags&PortFixChecksum != 0 && p.Piece == packet.Whole && isBare(p)
	translate(p, &w.out, w.xlat&^XlatSource)
	if bare {
		// The kernel has hardware complete it, or does so itself.
		putBare(p, &p.Src, &w.out.Dst)
	}
}

// send rewrites the frame for its next hop. It reports false if the frame leaves no room for that.
func (e *Executor) send(w *work) ([]byte, bool) {
	p := &e.p
	ip := p.EtherType == packet.EtherTypeIPv4 || p.EtherType == packet.EtherTypeIPv6
	if ip && w.port.Flags&PortFixChecksum != 0 && p.Piece == packet.Whole {
		completeChecksum(p)
	}
	if w.xlat != 0 {
		translate(p, &w.out, w.xlat)
	}
	if w.inline() {
		return w.frame, true
	}
	hop := &e.cfg.Nexthops[w.nexthop]
	lowerTTL(p)
	frame, ok := retag(w.frame, int(p.Tags), p.EtherType, uint16(hop.Dst>>48))
	if ok {
		putMACs(frame, hop.Dst, hop.Src)
	}
	return frame, ok
}
