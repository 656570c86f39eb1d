package traffic

import (
	"math"
	"time"

	"github.com/google/gopacket/layers"
)

var talkRecipes = []recipe{
	{name: "tcp", weight: 6, allowed: 6, reasons: []string{"tcp-window"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoTCP)
		s.planTCP(p, &t, false)
	}},
	{name: "tcp-walk", weight: 6, allowed: 3, reasons: []string{"tcp-state", "tcp-window"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoTCP)
		s.planTCP(p, &t, true)
	}},
	{name: "tcp-midstream", weight: 1, reasons: []string{"not-syn"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoTCP)
		flags := []uint8{ack, ack | psh, fin | ack, rst, rst | ack, syn | ack, ack | urg}[s.r.IntN(7)]
		for i := range 1 + s.r.IntN(4) {
			g := segmentTCP{flags: flags, seq: s.r.Uint32(), ack: 7, win: 500, payload: s.r.IntN(20)}
			p.add(t.a.port, s.makeTCP(t.a, t.b, t.sport, t.dport, g))
			if i == 0 {
				p.add(t.b.port, s.makeTCP(t.b, t.a, t.dport, t.sport, segmentTCP{flags: ack, seq: 7, ack: g.seq, win: 100}))
			}
			flags = []uint8{ack, fin | ack, rst}[s.r.IntN(3)]
		}
	}},
	{name: "udp", weight: 4, allowed: 6, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoUDP)
		s.planTalk(p, &t, 2+s.r.IntN(6))
	}},
	{name: "query", weight: 3, allowed: 3, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoICMP, protoICMPv6)
		s.planTalk(p, &t, 2+s.r.IntN(4))
	}},
	{name: "other-protocol", weight: 2, allowed: 2, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoGRE, protoESP, protoAH, protoSCTP, 99)
		s.planTalk(p, &t, 2+s.r.IntN(4))
	}},
}

// planConversation plans what suits a tuple's protocol.
func (s *Stream) planConversation(p *plan, t *tuple) {
	if t.proto == protoTCP {
		s.planTCP(p, t, chance(s.r, 3))
		return
	}
	s.planTalk(p, t, 1+s.r.IntN(4))
}

// planTalk plans n packets of a conversation without states but NEW and REPLIED.
func (s *Stream) planTalk(p *plan, t *tuple, n int) {
	s.remember(t)
	for i := range n {
		fromOpener := i == 0 || s.r.IntN(2) == 0
		if !fromOpener && t.b.port == "" {
			continue
		}
		f := s.message(t, fromOpener, s.size())
		if fromOpener {
			p.add(t.a.port, f)
		} else {
			p.add(t.b.port, f)
		}
		s.maybeError(p, t, f, fromOpener)
	}
}

func (s *Stream) size() int {
	if chance(s.r, 10) {
		return s.r.IntN(1200)
	}
	return s.r.IntN(40)
}

// end is what one end of a TCP connection believes.
type end struct {
	at    station
	port  uint16
	next  uint32 // its next sequence number
	win   uint16
	scale int    // -1: does not scale
	mss   uint16 // 0: it says none
}

func (s *Stream) newEnd(at station, port uint16) end {
	e := end{at: at, port: port, next: s.r.Uint32(), win: uint16(s.r.IntN(30000)), scale: s.r.IntN(17) - 1}
	if chance(s.r, 6) {
		e.next = -uint32(s.r.IntN(30)) // sequence numbers wrap
	}
	if chance(s.r, 3) {
		e.scale = -1
	}
	if chance(s.r, 8) {
		e.win = uint16(s.r.IntN(3))
	}
	e.mss = []uint16{1460, 1440, 1460, 1361, 536, 65535, 40, 0}[s.r.IntN(8)]
	return e
}

func (e *end) options() []layers.TCPOption {
	var out []layers.TCPOption
	if e.mss != 0 {
		if e.mss%2 != 0 { // not where words begin
			out = append(out, layers.TCPOption{OptionType: layers.TCPOptionKindNop})
		}
		out = append(out, layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{byte(e.mss >> 8), byte(e.mss)}})
	}
	if e.scale >= 0 {
		out = append(out, layers.TCPOption{OptionType: layers.TCPOptionKindNop},
			layers.TCPOption{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{byte(e.scale)}})
	}
	return out
}

// connection plans the segments of one tuple.
type connection struct {
	s    *Stream
	p    *plan
	t    *tuple
	ends [2]end
}

// send plans a segment of end i with sequence number and acknowledgement moved away from what is right.
func (c *connection) send(i int, flags uint8, payload int, seq, acked uint32) frame {
	e, o := &c.ends[i], &c.ends[1-i]
	g := segmentTCP{flags: flags, seq: e.next + seq, ack: o.next + acked, win: e.win, payload: payload}
	if flags&ack == 0 {
		g.ack = 0
	}
	if flags&syn != 0 {
		g.options = e.options()
	}
	f := c.s.makeTCP(e.at, o.at, e.port, o.port, g)
	if e.at.port != "" {
		c.p.add(e.at.port, f)
	}
	return f
}

func (c *connection) open() {
	c.send(0, syn, 0, 0, 0)
	c.ends[0].next++
	c.send(1, syn|ack, 0, 0, 0)
	c.ends[1].next++
	c.send(0, ack, 0, 0, 0)
}

func (c *connection) data(i int) {
	n := c.s.size()
	f := c.send(i, ack|psh, n, 0, 0)
	c.ends[i].next += uint32(n)
	c.s.maybeError(c.p, c.t, f, i == 0)
}

func (c *connection) close(i int) {
	c.send(i, fin|ack, 0, 0, 0)
	c.ends[i].next++
}

// planTCP plans a connection: an orderly one, or a walk through all kinds of segments.
func (s *Stream) planTCP(p *plan, t *tuple, walk bool) {
	s.remember(t)
	c := &connection{s: s, p: p, t: t, ends: [2]end{s.newEnd(t.a, t.sport), s.newEnd(t.b, t.dport)}}
	if walk {
		c.walk()
		return
	}
	c.open()
	for range s.r.IntN(6) {
		c.data(s.r.IntN(2))
	}
	first := s.r.IntN(2)
	switch s.r.IntN(4) {
	case 0:
		c.send(first, rst, 0, 0, 0)
	case 1:
		c.send(first, rst|ack, 0, uint32(s.r.IntN(2)), 0)
	default:
		c.close(first)
		if chance(s.r, 3) {
			c.data(1 - first)
		}
		c.close(1 - first)
		c.send(first, ack, 0, 0, 0)
	}
	if chance(s.r, 3) { // the ports are used again, sometimes from the other side
		c.ends[0] = s.newEnd(t.a, t.sport)
		c.ends[1] = s.newEnd(t.b, t.dport)
		if chance(s.r, 3) {
			c.ends[0], c.ends[1] = c.ends[1], c.ends[0]
		}
		c.open()
	}
}

// offset draws a distance to what is right, mostly none, often at an edge of the other end's window.
func (c *connection) offset(i int) uint32 {
	o := &c.ends[1-i]
	win := uint32(o.win)
	if o.scale > 0 && c.ends[i].scale >= 0 {
		win <<= min(o.scale, 14)
	}
	edges := []uint32{0, 0, 0, 1, math.MaxUint32, win, win + 1, -win, 65535, 65536, 1 << 31, c.s.r.Uint32()}
	return edges[c.s.r.IntN(len(edges))]
}

// walk begins anywhere in a handshake and goes on at random.
func (c *connection) walk() {
	r := c.s.r
	switch r.IntN(5) {
	case 0:
		c.send(0, syn, 0, 0, 0) // both open
		c.ends[0].next++
		c.send(1, syn, 0, 0, 0)
		c.ends[1].next++
		c.send(0, syn|ack, 0, math.MaxUint32, 0)
	case 1:
		c.send(0, syn, r.IntN(2)*8, 0, 0)
		c.ends[0].next++
	case 2:
		c.send(0, syn, 0, 0, 0)
		c.ends[0].next++
		c.send(1, syn|ack, 0, 0, 0)
		c.ends[1].next++
	case 3:
		c.send(0, syn, 0, 0, 0)
		c.ends[0].next++
		c.send(1, ack, 0, 0, c.offset(1)) // challenge
		c.send(0, rst, 0, c.offset(0), 0)
	default:
		c.open()
	}
	flags := []uint8{ack, ack, ack | psh, ack | urg, ack | ece, fin | ack, fin | ack, fin | ack | urg, rst, rst | ack, syn, syn | ack, syn | ece | cwr, syn | urg}
	for range 2 + r.IntN(10) {
		i := r.IntN(2)
		f := flags[r.IntN(len(flags))]
		if chance(r, 6) {
			c.ends[i].win = uint16(r.IntN(3))
		}
		n := 0
		if chance(r, 3) {
			n = r.IntN(30)
		}
		switch {
		case f&syn != 0 && chance(r, 2):
			c.ends[i].next = r.Uint32()
			c.send(i, f, n, 0, c.offset(1-i))
			c.ends[i].next++
		case f == ack && chance(r, 4):
			c.data(i)
		default:
			c.send(i, f, n, c.offset(i), c.offset(1-i))
		}
	}
	if chance(r, 8) {
		last := &c.p.steps[len(c.p.steps)-1]
		last.wait = 2 * time.Second // routes are looked up again
	}
}

// maybeError plans, now and then, what a router or the far end says of a packet.
func (s *Stream) maybeError(p *plan, t *tuple, about frame, fromOpener bool) {
	if !chance(s.r, 12) || t.b.port == "" {
		return
	}
	near, far := t.a, t.b
	if !fromOpener {
		near, far = far, near
	}
	p.add(far.port, s.icmpError(far, near, about))
}

// icmpError makes an error about a frame, from a station to the frame's sender.
func (s *Stream) icmpError(from, to station, about frame) frame {
	quote := about.b[about.ip:]
	quote = quote[:min(len(quote), about.l4-about.ip+8+s.r.IntN(40))]
	kind, code := uint8(3), uint8(s.r.IntN(5))
	if to.addr.Is4() {
		kind = []uint8{3, 3, 11, 12}[s.r.IntN(4)]
	} else {
		kind = []uint8{1, 2, 3, 4}[s.r.IntN(4)]
	}
	if chance(s.r, 2) {
		from.addr = s.router(from)
	}
	if from.addr == to.addr {
		from.addr = from.addr.Next()
	}
	return s.makeICMP(from, to, kind, code, uint32(1280), quote)
}
