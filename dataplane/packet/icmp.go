package packet

import "encoding/binary"

// ICMP and ICMPv6 types.
const (
	icmpEchoReply      = 0
	icmpUnreachable    = 3
	icmpTimeExceeded   = 11
	icmpParameter      = 12
	icmpTimestampReply = 14

	icmp6Unreachable = 1
	icmp6Parameter   = 4
	icmp6EchoReply   = 129
	icmp6Query       = 130 // of listeners; the types of MLD (RFC 2710) run from here ...
	icmp6Done        = 132 // ... to here
	icmp6Router      = 133 // solicitation; the neighbour discovery types run from here ...
	icmp6Redirect    = 137 // ... to here
	icmp6Report      = 143 // of MLD version 2 (RFC 3810)
)

// KindOf sorts a message of the family's own ICMP.
func KindOf(family, typ uint8) Kind {
	if family == 4 {
		switch typ {
		case EchoRequest4, Timestamp4:
			return Query
		case icmpEchoReply, icmpTimestampReply:
			return Reply
		case icmpUnreachable, icmpTimeExceeded, icmpParameter:
			return Error
		}
		return Other
	}
	switch {
	case typ == EchoRequest6:
		return Query
	case typ == icmp6EchoReply:
		return Reply
	case typ >= icmp6Unreachable && typ <= icmp6Parameter:
		return Error
	case typ >= icmp6Router && typ <= icmp6Redirect:
		return Neighbour
	case typ >= icmp6Query && typ <= icmp6Done, typ == icmp6Report:
		return Listener
	}
	return Other
}

// OnLink reports whether a message of neighbour or listener discovery is one that no router forwarded,
// as all of them must be, and no fragment. Valid iff ICMP is, and the packet is no Later piece.
func (p *Parsed) OnLink() bool {
	if p.Piece != Whole {
		return false // RFC 6980
	}
	switch p.ICMP.Kind {
	case Neighbour:
		return p.TTL == 255 // RFC 4861 section 6.1
	case Listener:
		// RFC 2710 section 3, RFC 3810 section 5: only who has no address yet reports without one. A
		// router alert stands before it as a rule; nothing is gained by asking for it.
		linkLocal := p.Src[0] == 0xfe && p.Src[1]&0xc0 == 0x80
		return p.TTL == 1 && p.Dst[0] == 0xff && (linkLocal || p.Src == Addr{} && p.ICMP.Type != icmp6Query)
	}
	return false
}

func (p *Parsed) decodeICMP(b []byte) Failure {
	p.ICMP.Type, p.ICMP.Code = b[0], b[1]
	p.ICMP.Kind = KindOf(p.Family, b[0])
	switch p.ICMP.Kind {
	case Query, Reply:
		p.ICMP.ID = binary.BigEndian.Uint16(b[4:])
	case Error:
		in := &p.ICMP.Inner
		*in = Inner{}
		if p.Family == 4 && !in.decodeIPv4(b[8:]) {
			return BadICMP
		}
		if p.Family == 6 && !in.decodeIPv6(b[8:]) {
			return BadICMPv6
		}
		in.L4 += p.L4 + 8
	}
	return OK
}

// decodeIPv4 reads the quoted IPv4 packet as far as its tuple. Lengths, checksum and options inside
// are not looked at: routers quote what they please behind the first 8 bytes of payload (RFC 792).
func (in *Inner) decodeIPv4(b []byte) bool {
	if len(b) < IPv4Len || b[0]>>4 != 4 {
		return false
	}
	header := int(b[0]&0x0f) * 4
	if header < IPv4Len || header > len(b) {
		return false
	}
	copy(in.Src[:4], b[12:16])
	copy(in.Dst[:4], b[16:20])
	in.Proto = b[9]
	in.Later = binary.BigEndian.Uint16(b[6:])&ipv4OffsetMask != 0
	in.L4 = header
	return in.decodeTransport(b[header:], 4)
}

func (in *Inner) decodeIPv6(b []byte) bool {
	if len(b) < IPv6Len || b[0]>>4 != 6 {
		return false
	}
	copy(in.Src[:], b[8:24])
	copy(in.Dst[:], b[24:40])
	var c chain
	if c.walk(b, IPv6Len, b[6]) != OK {
		return false
	}
	in.Proto, in.Later, in.L4 = c.proto, c.later, c.l4
	return in.decodeTransport(b[c.l4:], 6)
}

func (in *Inner) decodeTransport(b []byte, family uint8) bool {
	if len(b) < 8 {
		return false
	}
	switch {
	case in.Later:
	case in.Proto == ProtoTCP, in.Proto == ProtoUDP:
		in.SrcPort, in.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	case in.Proto == ProtoICMP && family == 4, in.Proto == ProtoICMPv6 && family == 6:
		in.Type, in.Code, in.Kind = b[0], b[1], KindOf(family, b[0])
		in.ID = binary.BigEndian.Uint16(b[4:])
	}
	return true
}
