package oracle

import (
	"net/netip"
	"slices"
	"time"
)

const (
	fragmentLife = 30 * time.Second
	fragmentMax  = 8 // disjoint ranges
)

// datagramKey names a fragmented datagram.
type datagramKey struct {
	src, dst netip.Addr
	id       uint32
	proto    uint8 // that the IP or fragment header names
	domain   uint16
}

// datagram is a fragmented packet whose first fragment was judged.
type datagram struct {
	born    time.Duration
	refused Verdict // of the first fragment; Reason "" if it was allowed
	flow    key     // in the direction of the datagram
	dead    bool    // fragments overlapped
	total   int     // end of the last fragment, 0 = not seen
	ranges  []span  // joined where they touch
}

// span is [first, end) in bytes.
type span struct{ first, end int }

func (p *packet) datagramKey() datagramKey {
	return datagramKey{p.src, p.dst, p.id, p.idProto, p.domain}
}

// checkFragment is section 4, rules 1 and 2.
func (p *packet) checkFragment() string {
	if p.more && p.length%8 != 0 || p.length == 0 || p.offset+p.length > 65535 {
		return "fragment-malformed"
	}
	if p.offset == 8 && p.idProto == protoTCP {
		return "fragment-tiny"
	}
	if p.offset != 0 {
		return ""
	}
	need := p.headerLength()
	if p.proto == protoTCP && len(p.payload) >= need {
		need = int(p.payload[12]>>4) * 4
	}
	if len(p.payload) < need {
		return "fragment-tiny"
	}
	return ""
}

// datagram returns the live entry of the packet's datagram; nil if there is none.
func (o *Oracle) datagram(p *packet, now time.Duration) *datagram {
	d := o.datagrams[p.datagramKey()]
	if d == nil || now-d.born >= fragmentLife {
		return nil
	}
	return d
}

// enter keeps what a first fragment's datagram will need.
func (o *Oracle) enter(p *packet, now time.Duration, v Verdict) {
	v.Frame, v.Audit, v.State, v.Flow = nil, nil, "", Flow{} // the flow goes on, and what is refused belongs to none
	o.datagrams[p.datagramKey()] = &datagram{born: now, refused: v, flow: p.key(), ranges: []span{{0, p.length}}}
}

// later is section 4, rules 4 to 7.
func (o *Oracle) later(p *packet, now time.Duration) Verdict {
	d := o.datagram(p, now)
	if d == nil {
		return drop("fragment-no-first")
	}
	if reason := d.take(span{p.offset, p.offset + p.length}, !p.more); reason != "" {
		return drop(reason)
	}
	if len(d.ranges) == 1 && d.ranges[0].end == d.total {
		delete(o.datagrams, p.datagramKey()) // whole
	}
	if d.refused.Reason != "" {
		return d.refused
	}
	f, opener, reason := o.meet(d.flow)
	if f == nil {
		return drop("fragment-no-first")
	}
	if reason != "" {
		return drop(reason)
	}
	p.about = d.flow
	return o.known(p, f, opener, true)
}

// take is rules 5 and 6.
func (d *datagram) take(s span, last bool) string {
	overlaps := d.total != 0 && (s.end > d.total || last && s.end != d.total)
	for _, r := range d.ranges {
		overlaps = overlaps || s.first < r.end && r.first < s.end || last && s.end < r.end
	}
	if overlaps || d.dead {
		d.dead = true
		return "fragment-overlap"
	}
	joined := append(slices.Clone(d.ranges), s)
	slices.SortFunc(joined, func(a, b span) int { return a.first - b.first })
	for i := 1; i < len(joined); {
		if joined[i-1].end == joined[i].first {
			joined[i-1].end = joined[i].end
			joined = slices.Delete(joined, i, i+1)
			continue
		}
		i++
	}
	if len(joined) > fragmentMax {
		return "fragment-too-many"
	}
	d.ranges = joined
	if last {
		d.total = s.end
	}
	return ""
}
