package flowtable

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// TCP tracking, docs/PACKET-PATH.md section 10. d is the leg of the segment's sender, r the leg of
// its receiver: d.Ack is the next sequence number that the sender expects from the receiver, so
// that r.Ack and r's window bound what the sender may send.

const (
	reasonNone      = bpf.XDPReasonREASON_NONE
	reasonTCPState  = bpf.XDPReasonREASON_TCP_STATE
	reasonTCPWindow = bpf.XDPReasonREASON_TCP_WINDOW
)

// ackSlack is how far beyond the expected number an acknowledgement of a handshake may be: a SYN may
// carry data (RFC 7413), and its retransmission may not.
const ackSlack = 65535

// midstreamScale is the window scale of flows whose SYNs were not seen: the largest there is.
const midstreamScale = 14

// openTCP sets up both legs for the SYN that opens a flow.
func openTCP(d, r *bpf.XDPLeg, s *packet.TCP) {
	d.Flags = d.Flags&legXlat | scaleFlags(s)
	d.Win = s.Window
	r.Ack = s.Seq + 1
	r.Flags &^= legWindow
}

// pickUpTCP sets up both legs for a flow whose SYN was not seen.
func pickUpTCP(d, r *bpf.XDPLeg) {
	d.Flags = legScaleSeen | midstreamScale
	r.Flags = legScaleSeen | midstreamScale
}

// isSYN reports whether a segment asks for a connection: SYN, and nothing else that counts.
func isSYN(s *packet.TCP) bool {
	return s.Flags&(packet.SYN|packet.ACK|packet.RST|packet.FIN) == packet.SYN
}

// isMidstream reports whether a segment may start a flow that is picked up: ACK without SYN or RST.
func isMidstream(s *packet.TCP) bool {
	return s.Flags&(packet.ACK|packet.SYN|packet.RST) == packet.ACK
}

// trackTCP returns the state after a segment, and why it is refused if it is: an acknowledgement
// can end the handshake and the segment that carries it be refused all the same. opener tells who
// sent it.
func trackTCP(state bpf.XDPFlowState, d, r *bpf.XDPLeg, opener bool, s *packet.TCP) (bpf.XDPFlowState, bpf.XDPReason) {
	switch state {
	case bpf.XDPFlowStateFLOW_SYN_SENT:
		if opener {
			return trackOpener(d, r, s)
		}
		return trackAnswer(d, r, s)
	case bpf.XDPFlowStateFLOW_SYN_RECEIVED:
		return trackHandshake(d, r, opener, s)
	case bpf.XDPFlowStateFLOW_ESTABLISHED, bpf.XDPFlowStateFLOW_FIN_WAIT:
		return trackEstablished(state, d, r, s)
	default: // TIME_WAIT, CLOSED
		return state, reasonNone
	}
}

// trackOpener is SYN_SENT, a segment of the opener.
func trackOpener(d, r *bpf.XDPLeg, s *packet.TCP) (bpf.XDPFlowState, bpf.XDPReason) {
	const state = bpf.XDPFlowStateFLOW_SYN_SENT
	switch {
	case s.Flags&packet.RST != 0:
		if s.Seq == r.Ack || s.Seq == r.Ack-1 || r.Flags&legWindow != 0 && inWindow(s.Seq, r, d) {
			return bpf.XDPFlowStateFLOW_CLOSED, reasonNone
		}
		return state, reasonTCPWindow
	case isSYN(s): // retransmission, perhaps without the options of the first
		openTCP(d, r, s)
		return state, reasonNone
	default:
		return state, reasonTCPState
	}
}

// trackAnswer is SYN_SENT, a segment of the other end.
func trackAnswer(d, r *bpf.XDPLeg, s *packet.TCP) (bpf.XDPFlowState, bpf.XDPReason) {
	const state = bpf.XDPFlowStateFLOW_SYN_SENT
	acks := s.Flags&packet.ACK != 0 && inRange(s.Ack, d.Ack, ackSlack)
	switch {
	case s.Flags&packet.RST != 0:
		if acks {
			return bpf.XDPFlowStateFLOW_CLOSED, reasonNone
		}
		return state, reasonTCPWindow
	case s.Flags&packet.SYN != 0 && s.Flags&packet.ACK != 0:
		if !acks {
			return state, reasonTCPState
		}
		bothSYNs(d, r, s)
		learnWindow(d, r, s)
		return bpf.XDPFlowStateFLOW_SYN_RECEIVED, reasonNone
	case s.Flags&packet.SYN != 0: // simultaneous open
		bothSYNs(d, r, s)
		return bpf.XDPFlowStateFLOW_SYN_RECEIVED, reasonNone
	case s.Flags&packet.FIN != 0:
		return state, reasonTCPState
	default: // challenge ACK (RFC 5961): the RST that the opener answers with is judged by it
		d.Flags &^= legWindow
		learnWindow(d, r, s)
		return state, reasonNone
	}
}

// bothSYNs takes what the second SYN, sent by d, tells: now both scales are known, and the windows
// of both SYNs are kept in their units. What d said before, in a challenge, no longer counts.
func bothSYNs(d, r *bpf.XDPLeg, s *packet.TCP) {
	d.Flags = d.Flags&legXlat | scaleFlags(s)
	r.Ack = s.Seq + 1
	r.Win = unscaled(r.Win, r, d)
	d.Win = unscaled(s.Window, d, r)
	r.Flags |= legWindow
	d.Flags |= legWindow
}

func trackHandshake(d, r *bpf.XDPLeg, opener bool, s *packet.TCP) (bpf.XDPFlowState, bpf.XDPReason) {
	const state = bpf.XDPFlowStateFLOW_SYN_RECEIVED
	switch {
	case s.Flags&packet.RST != 0:
		if inWindow(s.Seq, r, d) {
			return bpf.XDPFlowStateFLOW_CLOSED, reasonNone
		}
		return state, reasonTCPWindow
	case opener && s.Flags&packet.ACK != 0:
		if !inRange(s.Ack, d.Ack, ackSlack) {
			return state, reasonTCPState
		}
		return trackEstablished(bpf.XDPFlowStateFLOW_ESTABLISHED, d, r, s)
	default: // SYN of the opener, anything of the other end
		learnWindow(d, r, s)
		return state, reasonNone
	}
}

func trackEstablished(state bpf.XDPFlowState, d, r *bpf.XDPLeg, s *packet.TCP) (bpf.XDPFlowState, bpf.XDPReason) {
	switch {
	case s.Flags&packet.RST != 0:
		if !inWindow(s.Seq, r, d) {
			return state, reasonTCPWindow
		}
		return bpf.XDPFlowStateFLOW_CLOSED, reasonNone
	case s.Flags&packet.FIN != 0:
		end := s.End()
		switch {
		case inWindow(end, r, d):
			d.Flags |= legFIN
			state = bpf.XDPFlowStateFLOW_FIN_WAIT
			if r.Flags&legFIN != 0 {
				state = bpf.XDPFlowStateFLOW_TIME_WAIT
			}
		case int32(end-r.Ack) > 0:
			return state, reasonTCPWindow
		}
	}
	learnWindow(d, r, s)
	return state, reasonNone
}

// learnWindow is the window rule: what the sender of a forwarded segment is ready to receive.
func learnWindow(d, r *bpf.XDPLeg, s *packet.TCP) {
	if s.Flags&packet.ACK == 0 {
		return
	}
	win := s.Window
	if s.Flags&packet.SYN != 0 {
		win = unscaled(win, d, r)
	}
	switch ahead := int32(s.Ack - d.Ack); {
	case d.Flags&legWindow == 0 || ahead > 0:
		d.Ack, d.Win = s.Ack, win
		d.Flags |= legWindow
	case ahead == 0:
		d.Win = max(d.Win, win)
	}
}

// inWindow reports whether x is in the window of r: r expects it, or has room for what precedes it.
func inWindow(x uint32, r, d *bpf.XDPLeg) bool {
	return r.Flags&legWindow == 0 || inRange(x, r.Ack, max(int32(r.Win)<<scale(r, d), 1))
}

func inRange(x, from uint32, length int32) bool {
	ahead := int32(x - from)
	return ahead >= 0 && ahead <= length
}

// scale returns the shift of x's windows; y is the other leg. It counts only if both SYNs had it.
func scale(x, y *bpf.XDPLeg) uint8 {
	if x.Flags&y.Flags&legScaleSeen == 0 {
		return 0
	}
	return x.Flags & legScaleMask
}

// unscaled turns the window of a SYN, which is in bytes, into units of x's scale, rounded up.
func unscaled(win uint16, x, y *bpf.XDPLeg) uint16 {
	s := scale(x, y)
	return uint16((uint32(win) + 1<<s - 1) >> s)
}

func scaleFlags(s *packet.TCP) uint8 {
	if s.HasScale {
		return legScaleSeen | s.Scale
	}
	return 0
}
