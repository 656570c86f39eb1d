package oracle

// openTCP is the row "Open" of section 10, or the pick-up of a connection under way.
func (f *flow) openTCP(s *segment) {
	if !s.open() {
		f.midstream, f.state = true, StateEstablished
		return
	}
	f.state = StateSynSent
	f.sentSYN(s)
}

// sentSYN takes what the opener's SYN tells.
func (f *flow) sentSYN(s *segment) {
	f.opener.scale, f.opener.scaled, f.opener.win = s.scale, s.scaled, s.win
	f.other.ack, f.other.known = s.seq+1, false
}

// answeredSYN takes what the other end's SYN tells: from now on windows are scaled, and those of both
// SYNs known.
func (f *flow) answeredSYN(s *segment) {
	f.state = StateSynReceived
	f.other.scale, f.other.scaled = s.scale, s.scaled
	f.opener.ack = s.seq + 1
	f.opener.win, f.opener.known = f.shrink(f.opener.win, &f.opener), true
	f.other.win, f.other.known = f.shrink(s.win, &f.other), true
}

// shift is scale(x).
func (f *flow) shift(l *leg) uint8 {
	switch {
	case f.midstream:
		return 14
	case f.opener.scaled && f.other.scaled:
		return l.scale
	}
	return 0
}

// shrink stores a SYN's window, which is not scaled, as the others are.
func (f *flow) shrink(win uint16, l *leg) uint16 {
	unit := 1 << f.shift(l)
	return uint16((int(win) + unit - 1) / unit)
}

// inside reports whether r's window, if known, holds x.
func (f *flow) inside(x uint32, r *leg) bool {
	if !r.known {
		return true
	}
	ahead := int64(int32(x - r.ack))
	return 0 <= ahead && ahead <= max(int64(r.win)<<f.shift(r), 1)
}

// answers reports whether an acknowledgement fits what is expected, or the 65,535 bytes behind it.
func answers(acked, expected uint32) bool {
	ahead := int32(acked - expected)
	return 0 <= ahead && ahead <= 65535
}

// window is the window rule for a segment that d sent.
func (f *flow) window(s *segment, d *leg) {
	if !s.ack || s.rst {
		return
	}
	win := s.win
	if s.syn {
		win = f.shrink(win, d)
	}
	switch ahead := int32(s.acked - d.ack); {
	case !d.known || ahead > 0:
		d.ack, d.win, d.known = s.acked, win, true
	case ahead == 0:
		d.win = max(d.win, win)
	}
}

// advanceTCP is the table of section 10.
func (f *flow) advanceTCP(s *segment, fromOpener bool) string {
	d, r := &f.opener, &f.other
	if !fromOpener {
		d, r = r, d
	}
	switch f.state {
	case StateSynSent:
		if fromOpener {
			return f.openerSynSent(s, r)
		}
		return f.otherSynSent(s, d)
	case StateSynReceived:
		switch {
		case s.rst:
			return f.reset(s, r)
		case !fromOpener:
			f.window(s, d)
			return ""
		case s.open():
			return ""
		case !answers(s.acked, d.ack):
			return "tcp-state"
		}
		f.state = StateEstablished // also if the segment is refused there
		return f.established(s, d, r)
	case StateEstablished, StateFinWait:
		return f.established(s, d, r)
	}
	return "" // TIME_WAIT, CLOSED
}

func (f *flow) openerSynSent(s *segment, r *leg) string {
	switch {
	case s.open():
		f.sentSYN(s)
		return ""
	case s.rst:
		if s.seq == r.ack || s.seq == r.ack-1 || r.known && f.inside(s.seq, r) {
			f.state = StateClosed
			return ""
		}
		return "tcp-window"
	}
	return "tcp-state"
}

func (f *flow) otherSynSent(s *segment, d *leg) string {
	switch {
	case s.rst:
		if s.ack && answers(s.acked, d.ack) {
			f.state = StateClosed
			return ""
		}
		return "tcp-window"
	case s.open():
		f.answeredSYN(s) // simultaneous open
		return ""
	case s.syn:
		if !answers(s.acked, d.ack) {
			return "tcp-state"
		}
		f.answeredSYN(s)
		d.ack = s.acked
		return ""
	case s.fin:
		return "tcp-state"
	}
	// A challenge: what the other end still has of an earlier connection.
	d.ack, d.win, d.known = s.acked, s.win, true
	return ""
}

func (f *flow) reset(s *segment, r *leg) string {
	if !f.inside(s.seq, r) {
		return "tcp-window"
	}
	f.state = StateClosed
	return ""
}

func (f *flow) established(s *segment, d, r *leg) string {
	if s.rst {
		return f.reset(s, r)
	}
	if s.fin {
		switch end := s.end(); {
		case f.inside(end, r):
			d.fin = true
			f.state = StateFinWait
			if r.fin {
				f.state = StateTimeWait
			}
		case int32(end-r.ack) > 0:
			return "tcp-window"
		}
	}
	f.window(s, d)
	return ""
}
