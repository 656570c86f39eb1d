package flowtable

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

const (
	fin = packet.FIN
	syn = packet.SYN
	rst = packet.RST
	ack = packet.ACK
	urg = packet.URG
)

// step is one segment of a conversation and what tracking makes of it. The opener begins at 1000, the
// other end at 5000.
type step struct {
	opener bool
	flags  uint8
	seq    uint32
	ack    uint32
	win    uint16
	length int
	scale  int8 // of a SYN; -1 = no option
	state  bpf.XDPFlowState
	reason bpf.XDPReason
}

const (
	synSent     = bpf.XDPFlowStateFLOW_SYN_SENT
	synReceived = bpf.XDPFlowStateFLOW_SYN_RECEIVED
	established = bpf.XDPFlowStateFLOW_ESTABLISHED
	finWait     = bpf.XDPFlowStateFLOW_FIN_WAIT
	timeWait    = bpf.XDPFlowStateFLOW_TIME_WAIT
	closed      = bpf.XDPFlowStateFLOW_CLOSED
)

func opener(flags uint8, seq, ack uint32, state bpf.XDPFlowState) step {
	return step{opener: true, flags: flags, seq: seq, ack: ack, win: 1000, scale: -1, state: state}
}

func other(flags uint8, seq, ack uint32, state bpf.XDPFlowState) step {
	return step{flags: flags, seq: seq, ack: ack, win: 2000, scale: -1, state: state}
}

func (s step) refused(r bpf.XDPReason) step { s.reason = r; return s }
func (s step) window(w uint16) step         { s.win = w; return s }
func (s step) scaled(n int8) step           { s.scale = n; return s }
func (s step) data(n int) step              { s.length = n; return s }

var (
	opening0   = opener(syn, 1000, 0, synSent)
	handshake2 = []step{opening0, other(syn|ack, 5000, 1001, synReceived)}
	handshake3 = append(handshake2[:2:2], opener(ack, 1001, 5001, established))
	half       = append(handshake3[:3:3], opener(fin|ack, 1001, 5001, finWait))
	over       = append(half[:4:4], other(fin|ack, 5001, 1002, timeWait))
)

func after(steps []step, more ...step) []step { return append(steps[:len(steps):len(steps)], more...) }

func TestTrackTCP(t *testing.T) {
	const badState, badWindow = bpf.XDPReasonREASON_TCP_STATE, bpf.XDPReasonREASON_TCP_WINDOW
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"whole life", after(over, opener(ack, 1002, 5002, timeWait))},

		// SYN_SENT
		{"SYN again", after(nil, opening0, opening0)},
		{"SYN again with another number", after(nil, opening0, opener(syn, 3000, 0, synSent),
			other(syn|ack, 5000, 1001, synSent).refused(badState), other(syn|ack, 5000, 3001, synReceived))},
		{"opener's RST at its SYN", after(nil, opening0, opener(rst, 1000, 0, closed))},
		{"opener's RST behind its SYN", after(nil, opening0, opener(rst, 1001, 0, closed))},
		{"opener's RST elsewhere", after(nil, opening0, opener(rst, 1002, 0, synSent).refused(badWindow))},
		{"opener's ACK before the answer", after(nil, opening0, opener(ack, 1001, 5001, synSent).refused(badState))},
		{"opener's SYN+ACK before the answer", after(nil, opening0, opener(syn|ack, 1000, 5001, synSent).refused(badState))},
		{"opener's FIN before the answer", after(nil, opening0, opener(fin|ack, 1001, 5001, synSent).refused(badState))},
		{"SYN+ACK of less", after(nil, opening0, other(syn|ack, 5000, 1000, synSent).refused(badState))},
		{"SYN+ACK of data with the SYN", after(nil, opening0, other(syn|ack, 5000, 1001+65535, synReceived))},
		{"SYN+ACK of more", after(nil, opening0, other(syn|ack, 5000, 1001+65536, synSent).refused(badState))},
		{"refused", after(nil, opening0, other(rst|ack, 0, 1001, closed))},
		{"RST without ACK", after(nil, opening0, other(rst, 0, 1001, synSent).refused(badWindow))},
		{"RST for another SYN", after(nil, opening0, other(rst|ack, 0, 1000, synSent).refused(badWindow))},
		{"FIN as an answer", after(nil, opening0, other(fin|ack, 5000, 1001, synSent).refused(badState))},
		{"simultaneous open", after(nil, opening0, other(syn, 5000, 0, synReceived),
			opener(syn|ack, 1000, 5001, established), other(syn|ack, 5000, 1001, established))},
		{"challenge, RST, and again", after(nil, opening0, other(ack, 7777, 9999, synSent),
			opener(rst, 9999, 0, closed))},
		{"challenge, RST out of its window", after(nil, opening0, other(ack, 7777, 9999, synSent),
			opener(rst, 9999+2001, 0, synSent).refused(badWindow), opener(rst, 9999+2000, 0, closed))},
		{"challenge, then the answer", after(nil, opening0, other(ack, 7777, 9999, synSent), opening0,
			other(syn|ack, 5000, 1001, synReceived))},

		// SYN_RECEIVED
		{"SYN in the handshake", after(handshake2, opening0.in(synReceived), opener(ack, 1001, 5001, established))},
		{"SYN+ACK again", after(handshake2, other(syn|ack, 5000, 1001, synReceived))},
		{"data before the third segment", after(handshake2, other(ack, 5001, 1001, synReceived).data(10))},
		{"FIN before the third segment", after(handshake2, other(fin|ack, 5001, 1001, synReceived))},
		{"third segment of less", after(handshake2, opener(ack, 1001, 5000, synReceived).refused(badState))},
		{"third segment of data", after(handshake2, opener(ack, 1001, 5001+65535, established))},
		{"third segment of more", after(handshake2, opener(ack, 1001, 5001+65536, synReceived).refused(badState))},
		{"third segment is a FIN", after(handshake2, opener(fin|ack, 1001, 5001, finWait))},
		{"third segment is a FIN beyond the window", after(handshake2,
			opener(fin|ack, 1001, 5001, established).data(2000).refused(badWindow))},
		{"opener's RST in the handshake", after(handshake2, opener(rst, 1001, 0, closed))},
		{"opener's RST out of the window", after(handshake2, opener(rst|ack, 3002, 5001, synReceived).refused(badWindow))},
		{"opener's RST at the window's end", after(handshake2, opener(rst|ack, 3001, 5001, closed))},
		{"the other's RST outside the window of the opener's SYN", after(handshake2, other(rst, 99, 0, synReceived).refused(badWindow))},

		// ESTABLISHED, FIN_WAIT
		{"RST in the window", after(handshake3, opener(rst, 1001+2000, 0, closed))},
		{"RST behind the window", after(handshake3, opener(rst, 1001+2001, 0, established).refused(badWindow))},
		{"RST before the window", after(handshake3, opener(rst, 1000, 0, established).refused(badWindow))},
		{"other's RST in the window", after(handshake3, other(rst|ack, 5001+1000, 1001, closed))},
		{"other's RST behind the window", after(handshake3, other(rst|ack, 5001+1001, 1001, established).refused(badWindow))},
		{"a window of 0 takes one byte", after(handshake3, other(ack, 5001, 1001, established),
			other(ack, 5001, 1002, established).window(0), opener(rst, 1004, 0, established).refused(badWindow), opener(rst, 1003, 0, closed))},
		{"the window moves on", after(handshake3, other(ack, 5001, 1501, established).window(100),
			opener(rst, 1602, 0, established).refused(badWindow), opener(rst, 1601, 0, closed))},
		{"the window does not shrink at the same number", after(handshake3, other(ack, 5001, 1001, established).window(100),
			opener(rst, 3001, 0, closed))},
		{"an old acknowledgement says nothing", after(handshake3, other(ack, 5001, 1501, established),
			other(ack, 5001, 1400, established).window(60000), opener(rst, 1501+2001, 0, established).refused(badWindow))},
		{"SYN in an established flow", after(handshake3, opener(syn, 9000, 0, established), other(ack, 5001, 1001, established))},
		{"SYN+ACK again, late", after(handshake3, other(syn|ack, 5000, 1001, established))},
		{"FIN behind the window", after(handshake3, opener(fin|ack, 1001, 5001, established).data(2000).refused(badWindow))},
		{"FIN at the window's end", after(handshake3, opener(fin|ack, 1001, 5001, finWait).data(1999))},
		{"FIN with URG", after(handshake3, opener(fin|ack|urg, 1001, 5001, finWait))},
		{"old FIN counts nothing", after(handshake3, other(ack, 5001, 1501, established), opener(fin|ack, 1200, 5001, established))},
		{"FIN twice from one side", after(half, opener(fin|ack, 1001, 5001, finWait))},
		{"data after FIN", after(half, other(ack, 5001, 1002, finWait).data(100))},
		{"RST after FIN", after(half, other(rst|ack, 5001, 1002, closed))},
		{"the other's FIN first", after(handshake3, other(fin|ack, 5001, 1001, finWait), opener(fin|ack, 1001, 5002, timeWait))},

		// TIME_WAIT, CLOSED: forwarded
		{"after the end", after(over, opener(rst, 77, 0, timeWait), other(ack, 1, 1, timeWait), opener(fin|ack, 1, 1, timeWait))},
		{"after RST", after(handshake3, opener(rst, 1001, 0, closed), other(ack, 1, 1, closed), opener(rst, 77, 0, closed))},

		// scales
		{"both scales", after(nil, opening0.scaled(2), other(syn|ack, 5000, 1001, synReceived).scaled(3),
			opener(ack, 1001, 5001, established), other(rst, 5001+4001, 0, established).refused(badWindow),
			opener(rst, 1001+2001, 0, established).refused(badWindow), other(rst, 5001+4000, 0, closed))},
		{"windows of SYNs are not scaled", after(nil, opening0.scaled(2), other(syn|ack, 5000, 1001, synReceived).scaled(3).window(2001),
			opener(rst, 1001+2009, 0, synReceived).refused(badWindow), opener(rst, 1001+2008, 0, closed))},
		{"one scale is none", after(nil, opening0.scaled(7), other(syn|ack, 5000, 1001, synReceived),
			opener(ack, 1001, 5001, established), other(rst, 5001+1001, 0, established).refused(badWindow))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var d, r bpf.XDPLeg
			state := synSent
			for i, s := range tc.steps {
				g := s.segment()
				if i == 0 {
					openTCP(&d, &r, &g)
					continue
				}
				mine, theirs := &d, &r
				if !s.opener {
					mine, theirs = &r, &d
				}
				var reason bpf.XDPReason
				state, reason = trackTCP(state, mine, theirs, s.opener, &g)
				if state != s.state || reason != s.reason {
					t.Fatalf("segment %d: %v, %v; want %v, %v\nopener %+v\nother  %+v", i+1, state, reason, s.state, s.reason, d, r)
				}
			}
		})
	}
}

func (s step) in(state bpf.XDPFlowState) step { s.state = state; return s }

func (s step) segment() packet.TCP {
	g := packet.TCP{Seq: s.seq, Ack: s.ack, Window: s.win, Flags: s.flags, HeaderLen: 20, Payload: s.length}
	if s.flags&syn != 0 && s.scale >= 0 {
		g.Scale, g.HasScale = uint8(s.scale), true
	}
	return g
}

func TestMidstreamWindows(t *testing.T) {
	var d, r bpf.XDPLeg
	pickUpTCP(&d, &r)
	g := packet.TCP{Seq: 100, Ack: 900, Window: 10, Flags: ack}
	if state, reason := trackTCP(established, &d, &r, true, &g); state != established || reason != reasonNone {
		t.Fatalf("%v, %v", state, reason)
	}
	if got := int(d.Win) << scale(&d, &r); got != 10<<14 || d.Ack != 900 || r.Flags&legWindow != 0 {
		t.Errorf("window %d at %d, want %d at 900 and the other's unknown", got, d.Ack, 10<<14)
	}
	// Unknown: anything is inside.
	g = packet.TCP{Seq: 12345678, Ack: 900, Flags: fin | ack}
	if state, reason := trackTCP(established, &d, &r, true, &g); state != finWait || reason != reasonNone {
		t.Errorf("FIN: %v, %v", state, reason)
	}
}

func TestNumbersWrap(t *testing.T) {
	var d, r bpf.XDPLeg
	g := packet.TCP{Seq: 0xffffffff, Flags: syn, Window: 10}
	openTCP(&d, &r, &g)
	g = packet.TCP{Seq: 0xfffffff0, Ack: 0, Flags: syn | ack, Window: 100}
	state, reason := trackTCP(synSent, &r, &d, false, &g)
	if state != synReceived || reason != reasonNone {
		t.Fatalf("SYN+ACK of 0: %v, %v", state, reason)
	}
	g = packet.TCP{Seq: 100, Flags: rst}
	if state, reason = trackTCP(state, &d, &r, true, &g); state != closed {
		t.Errorf("RST at the window's end: %v, %v", state, reason)
	}
}
