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
	}
	if w.known {
		r.Leg, r.Word, r.Flow = 1+w.side, w.flow.word(), w.flow.id
		r.Flow.Generation = uint32(r.Word >> WordGenerationBit)
	}
	if reason == reasonNone {
		e.clampMSS(w)
	}
	if reason == reasonNone && w.pass == 0 {
		if frame, ok := e.send(w); ok {
			r.Verdict, r.Frame, r.Port = Forward, frame, e.cfg.Nexthops[w.nexthop].Port
			r.Stages = w.stages
			return r
		}
		reason = bpf.XDPReasonREASON_INTERNAL
		r.Reason = reason
	}
	if reason == reasonNone {
		r.Verdict, r.Pass = Pass, w.pass
		e.Counters.pass(bpf.XDPPassCause(w.pass-1), len(w.frame))
		return r
	}

	e.Counters.reason(reason, len(w.frame))
	switch reason {
	case bpf.XDPReasonREASON_REJECT:
		if n := e.reject(w, answer); n > 0 {
			r.Verdict, r.Frame, r.Port = Answer, answer[:n:n], w.port.Id
		}
	case bpf.XDPReasonREASON_TTL_EXPIRED, bpf.XDPReasonREASON_TOO_BIG:
		// The kernel tells the sender; on an inline port there is no kernel to do so.
		if !w.inline() {
			r.Verdict = Pass
		}
	}
	return r
}

// send rewrites the frame for its next hop. It reports false if the frame leaves no room for that.
func (e *Executor) send(w *work) ([]byte, bool) {
	p := &e.p
	ip := p.EtherType == packet.EtherTypeIPv4 || p.EtherType == packet.EtherTypeIPv6
	if ip && w.port.Flags&PortFixChecksum != 0 && p.Piece == packet.Whole {
		completeChecksum(p)
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
