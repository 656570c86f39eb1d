package packet

import "encoding/binary"

// maxExtensions bounds the extension headers of a packet, so that the XDP program's loop is bounded.
const maxExtensions = 6

// chain is where a walk over IPv6 extension headers ended.
type chain struct {
	proto    uint8    // first header that is no extension; of a later fragment, what its fragment header says
	l4       int      // offset of that header
	fragment Fragment // valid iff fragmented
	fragmented,
	later bool
}

// decodeIPv6 reads the IPv6 header and its extension headers, then looks at the addresses.
func (p *Parsed) decodeIPv6() Failure {
	b := p.Frame[p.L3:]
	if len(b) < IPv6Len || b[0]>>4 != 6 {
		return BadIPv6
	}
	payload := int(binary.BigEndian.Uint16(b[4:]))
	if payload > len(b)-IPv6Len {
		return BadIPv6
	}
	p.Family, p.TTL, p.DontFragment = 6, b[7], false
	p.Length, p.End = IPv6Len+payload, p.L3+IPv6Len+payload
	copy(p.Src[:], b[8:24])
	copy(p.Dst[:], b[24:40])

	var c chain
	if f := c.walk(p.Frame[:p.End], p.L3+IPv6Len, b[6]); f != OK {
		return f
	}
	p.Proto, p.L4, p.Piece = c.proto, c.l4, Whole
	if c.fragmented {
		p.Fragment = c.fragment
		p.Piece = piece(&p.Fragment)
	}
	if martian6(&p.Src, &p.Dst, p.Proto) {
		return Martian
	}
	return OK
}

// walk follows the chain of extension headers that starts at offset at with a header of type next and
// ends within b. Behind the fragment header of a later fragment nothing is looked at.
func (c *chain) walk(b []byte, at int, next uint8) Failure {
	for n := 0; ; n++ {
		switch next {
		case ProtoHopByHop, ProtoRouting, ProtoDestination, ProtoAH, ProtoFragment:
		default:
			c.proto, c.l4 = next, at
			return OK
		}
		if n == maxExtensions || len(b)-at < 8 || next == ProtoHopByHop && n > 0 {
			return BadIPv6Extension
		}
		h := b[at:]
		size := 8
		switch next {
		case ProtoAH:
			size = (int(h[1]) + 2) * 4
		case ProtoFragment:
			if c.fragmented {
				return BadIPv6Extension
			}
			c.fragmented = true
			word := binary.BigEndian.Uint16(h[2:])
			c.fragment = Fragment{
				ID:      binary.LittleEndian.Uint32(h[4:]),
				Proto:   h[0],
				More:    word&1 != 0,
				Offset:  int(word &^ 7),
				Payload: len(b) - at - 8,
			}
			if c.fragment.Offset != 0 {
				c.later, c.proto, c.l4 = true, h[0], at+8
				return OK
			}
		default:
			size = (int(h[1]) + 1) * 8
		}
		if size > len(h) {
			return BadIPv6Extension
		}
		if next == ProtoRouting && h[2] == 0 && h[3] != 0 {
			return IPv6RoutingHeader
		}
		next = h[0]
		at += size
	}
}

var loopback6 = Addr{15: 1}

func martian6(src, dst *Addr, proto uint8) bool {
	switch {
	case *src == *dst, *src == loopback6, *dst == loopback6, src[0] == 0xff, *dst == Addr{}:
		return true
	default:
		return *src == Addr{} && (proto != ProtoICMPv6 || dst[0] != 0xff)
	}
}
