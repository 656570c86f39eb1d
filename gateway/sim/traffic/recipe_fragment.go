package traffic

import "time"

var fragmentRecipes = []recipe{
	{name: "fragments", weight: 3, allowed: 4, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		s.planFragments(p, &t)
	}},
	// Of anything that rules decide about: refused datagrams too.
	{name: "fragments-of-rules", weight: 3, allowed: 1, plan: func(s *Stream, p *plan) {
		t := s.pick(false)
		s.planFragments(p, &t)
	}},
	{name: "fragments-of-connection", weight: 1, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoTCP)
		c := &connection{s: s, p: p, t: &t, ends: [2]end{s.newEnd(t.a, t.sport), s.newEnd(t.b, t.dport)}}
		c.open()
		for i := range 2 {
			f := c.send(i, []uint8{ack, fin | ack, rst | ack, syn}[s.r.IntN(4)], 200, c.offset(i), 0)
			p.steps = p.steps[:len(p.steps)-1]
			for _, part := range pieces(f, s.datagramID(), 32, 96) {
				p.add(c.ends[i].at.port, part)
			}
		}
	}},
	{name: "fragment-no-first", weight: 1, reasons: []string{"fragment-no-first"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		parts := pieces(s.opening(&t, 200), s.datagramID(), 64, 128)
		order := [][]int{{1, 0, 2}, {2, 1, 0}, {1}}[s.r.IntN(3)]
		for _, i := range order {
			p.add(t.a.port, parts[i])
		}
	}},
	{name: "fragment-malformed", weight: 1, reasons: []string{"fragment-malformed"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		f := s.opening(&t, 100)
		id := s.datagramID()
		body := f.payload()
		switch s.r.IntN(4) {
		case 0:
			p.add(t.a.port, piece(f, id, s.r.IntN(2)*64, body[:65+s.r.IntN(7)], true))
		case 1:
			p.add(t.a.port, piece(f, id, 64, nil, chance(s.r, 2)))
		case 2:
			p.add(t.a.port, piece(f, id, 65528, body[:8], false))
		default:
			p.add(t.a.port, piece(f, id, 65528-56, body[:64], true))
		}
	}},
	{name: "fragment-end", weight: 1, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		f := s.opening(&t, 100)
		id := s.datagramID()
		body := f.payload()
		p.add(t.a.port, piece(f, id, 0, body[:64], true))
		p.add(t.a.port, piece(f, id, 65528, body[:7], false)) // ends at 65,535
		p.add(t.a.port, piece(f, id, 64, body[:16], true))
	}},
	{name: "fragment-tiny", weight: 1, reasons: []string{"fragment-tiny"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoTCP, protoTCP, protoUDP, protoSCTP, protoESP, protoICMP, protoICMPv6)
		f := s.opening(&t, 100)
		id := s.datagramID()
		body := f.payload()
		if t.proto == protoTCP && chance(s.r, 2) {
			p.add(t.a.port, piece(f, id, 8, body[8:64], chance(s.r, 2)))
			return
		}
		if t.proto == protoTCP && chance(s.r, 2) {
			body[12] = byte(s.r.IntN(16)) << 4
			p.add(t.a.port, piece(f, id, 0, body[:24+8*s.r.IntN(2)], true))
			return
		}
		p.add(t.a.port, piece(f, id, 0, body[:8+8*s.r.IntN(2)], true))
	}},
	{name: "fragment-overlap", weight: 1, reasons: []string{"fragment-overlap"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		f := s.opening(&t, 300)
		id := s.datagramID()
		body := f.payload()
		add := func(from, to int, more bool) { p.add(t.a.port, piece(f, id, from, body[from:to], more)) }
		add(0, 64, true)
		switch s.r.IntN(7) {
		case 0:
			add(56, 96, true)
		case 1:
			add(96, 128, true)
			add(96, 128, true)
		case 2:
			add(0, 64, true)
		case 3:
			add(96, 128, false)
			add(128, 160, true)
		case 4:
			add(128, 160, true)
			add(64, 96, false)
		case 5:
			add(128, 160, false)
			add(192, 200, false)
		default:
			add(128, 192, true)
			add(120, 200, true)
		}
		add(64, 72, true) // of a dead datagram
		if chance(s.r, 3) {
			add(0, 64, true)
		}
	}},
	{name: "fragment-too-many", weight: 1, reasons: []string{"fragment-too-many"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		f := s.opening(&t, 300)
		id := s.datagramID()
		body := f.payload()
		add := func(from int) { p.add(t.a.port, piece(f, id, from, body[:8], true)) }
		p.add(t.a.port, piece(f, id, 0, body[:32], true))
		for i := range 9 {
			add(40 + 16*i)
		}
		add(32) // joins two ranges
		add(40 + 16*8)
	}},
	{name: "fragment-late", weight: 1, reasons: []string{"fragment-no-first"}, plan: func(s *Stream, p *plan) {
		if s.Tally.Recipes["fragment-late"] > s.index/250 {
			return // the clock's jump ends all other datagrams
		}
		t := s.tuple(0)
		parts := pieces(s.opening(&t, 200), s.datagramID(), 64, 128)
		p.add(t.a.port, parts[0])
		p.add(t.a.port, parts[1])
		p.wait(t.a.port, parts[2], 32*time.Second)
		p.add(t.a.port, parts[0])
	}},
}

// planFragments cuts the opening packet into pieces; the first one comes first, the others in any order.
func (s *Stream) planFragments(p *plan, t *tuple) {
	f := s.opening(t, 150+s.r.IntN(600))
	if t.proto == protoTCP && chance(s.r, 4) {
		f.b[f.l4+13] = ack
	}
	if !f.is4() && chance(s.r, 3) {
		f = f.insert(60, f.b[f.ip+6], 0, 1, 4, 0, 0, 0, 0)
	}
	cuts := []int{64, 96, 128}[:1+s.r.IntN(3)]
	parts := pieces(f, s.datagramID(), cuts...)
	rest := parts[1:]
	if chance(s.r, 2) {
		s.r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	}
	for _, part := range parts {
		if chance(s.r, 20) {
			part = part.ttl(1)
		}
		p.add(t.a.port, part)
	}
	if t.b.port != "" && chance(s.r, 3) {
		p.add(t.b.port, s.icmpError(t.b, t.a, parts[s.r.IntN(len(parts))]))
	}
}

// ttl returns a copy with another TTL or hop limit.
func (f frame) ttl(n uint8) frame {
	return f.edit4(func(ip, _ []byte) {
		if ip[0]>>4 == 4 {
			ip[8] = n
		} else {
			ip[7] = n
		}
	})
}
