package flowtable

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// sort fills the flow's tuple from the packet, or from the one that an ICMP error quotes. done means
// that the packet needs no flow, or is refused.
func (e *Executor) sort(w *work) (reason bpf.XDPReason, done bool) {
	p := &e.p
	w.tuple = Tuple{
		Family: p.Family, Proto: p.Proto, Domain: w.domain,
		Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort,
	}
	if p.Piece == packet.Later {
		// Only its first fragment says that a datagram is ICMP; none but that one has a type.
		w.query = echoRequest(p.Family)
		return reasonNone, false
	}
	if p.Proto != packet.ProtoICMP && p.Proto != packet.ProtoICMPv6 {
		return reasonNone, false
	}
	w.query = echoRequest(p.Family)
	switch p.ICMP.Kind {
	case packet.Query:
		w.tuple.SrcPort = p.ICMP.ID
		w.query = uint16(p.ICMP.Type)<<8 | uint16(p.ICMP.Code)
		return reasonNone, false
	case packet.Reply:
		w.tuple.DstPort = p.ICMP.ID
		w.query = answered(p.Family, p.ICMP.Type)
		return reasonNone, false
	case packet.Error:
		w.failed = true
		reason = e.quoted(w)
		return reason, reason != reasonNone
	case packet.Neighbour, packet.Listener:
		if p.OnLink() && (w.inline() || endsHere(w, &p.Dst)) {
			return e.besideIP(w, ruleND, bpf.XDPPassCausePASS_ND), true
		}
	}
	return bpf.XDPReasonREASON_ICMP_TYPE, true
}

func echoRequest(family uint8) uint16 {
	if family == 4 {
		return packet.EchoRequest4 << 8
	}
	return packet.EchoRequest6 << 8
}

// answered returns the query that a reply of this type answers.
func answered(family, reply uint8) uint16 {
	if family == 4 && reply == packet.Timestamp4+1 {
		return packet.Timestamp4 << 8
	}
	return echoRequest(family)
}

// quoted makes the tuple of an ICMP error that of a packet from the quoted one's destination: the
// error travels with those and counts with them.
func (e *Executor) quoted(w *work) bpf.XDPReason {
	in := &e.p.ICMP.Inner
	query, reply := in.Kind == packet.Query, in.Kind == packet.Reply
	icmp := in.Proto == packet.ProtoICMP || in.Proto == packet.ProtoICMPv6
	if in.Later || icmp && !query && !reply || in.Src == in.Dst || in.Src != e.p.Dst {
		return bpf.XDPReasonREASON_ICMP_NO_FLOW
	}
	w.tuple = Tuple{
		Family: e.p.Family, Proto: in.Proto, Domain: w.domain,
		Src: in.Dst, Dst: in.Src, SrcPort: in.DstPort, DstPort: in.SrcPort,
	}
	switch {
	case query:
		w.tuple.DstPort = in.ID
		w.query = uint16(in.Type)<<8 | uint16(in.Code)
	case reply:
		w.tuple.SrcPort = in.ID
		w.query = answered(e.p.Family, in.Type)
	}
	return reasonNone
}
