package oracle

// Behind returns a frame of the far end of a translated flow as that end, which knows the flow by its outer
// tuple, would send it. False: the frame, which bears the original one, is of no such end.
func (o *Oracle) Behind(port string, frame []byte) ([]byte, bool) {
	p, f, reason := o.peek(port, frame)
	if reason != "nat-untranslated" {
		return nil, false
	}
	return p.rewritten(seen(p, f.outer.reverse()), p.offset != 0, false), true
}

// Before returns a frame of the opener of a translated flow as it leaves, to arrive once more. False: it is of
// no such flow.
func (o *Oracle) Before(port string, frame []byte) ([]byte, bool) {
	p, f, reason := o.peek(port, frame)
	if f == nil || f.outer == nil || reason != "" || p.about != f.original {
		return nil, false
	}
	return p.rewritten(seen(p, *f.outer), p.offset != 0, false), true
}

func seen(p *packet, k key) leaving {
	return leaving{key: k, source: k.src != p.about.src || k.sport != p.about.sport, destination: k.dst != p.about.dst || k.dport != p.about.dport}
}

// peek reads a frame and finds its flow, by the tuple that it bears; of a later fragment by that of the last
// first one that was looked at.
func (o *Oracle) peek(port string, frame []byte) (p *packet, f *flow, reason string) {
	p = &packet{port: port, frame: frame}
	if o.readEthernet(p) != "" {
		return p, nil, ""
	}
	switch p.ethertype {
	case 0x0800:
		reason = p.readIPv4()
	case 0x86dd:
		reason = p.readIPv6()
	default:
		return p, nil, ""
	}
	if reason != "" || p.fragment && p.checkFragment() != "" {
		return p, nil, ""
	}
	if p.offset != 0 {
		p.about = o.peeked[p.datagramKey()]
	} else {
		if p.readTransport() != "" {
			return p, nil, ""
		}
		p.about = p.key()
		if p.icmpKind() == icmpError {
			k, _, reason := p.quoted()
			if reason != "" || k.src != p.dst {
				return p, nil, ""
			}
			p.about = k.reverse()
		}
		if p.fragment {
			o.peeked[p.datagramKey()] = p.about
		}
	}
	f, _, reason = o.meet(p.about)
	return p, f, reason
}
