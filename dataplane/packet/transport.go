package packet

import "encoding/binary"

// headerLen is the shortest whole header of the transport protocols that are looked at.
func headerLen(proto uint8) int {
	switch proto {
	case ProtoTCP:
		return 20
	case ProtoUDP, ProtoICMP, ProtoICMPv6, ProtoESP:
		return 8
	case ProtoGRE:
		return 4
	case ProtoSCTP, ProtoAH:
		return 12
	default:
		return 0
	}
}

// checkFragment holds a fragment against the rules that need no memory of its datagram.
func (p *Parsed) checkFragment() Failure {
	f := &p.Fragment
	if f.More && f.Payload%8 != 0 || f.Payload == 0 || f.Offset+f.Payload > 65535 {
		return BadFragment
	}
	if p.Piece == Later {
		if f.Proto == ProtoTCP && f.Offset == 8 {
			return TinyFragment
		}
		return OK
	}
	b := p.Frame[p.L4:p.End]
	if len(b) < headerLen(p.Proto) {
		return TinyFragment
	}
	if p.Proto == ProtoTCP && int(b[12]>>4)*4 > len(b) {
		return TinyFragment
	}
	return OK
}

// decodeTransport reads the transport header of a whole packet or first fragment.
func (p *Parsed) decodeTransport() Failure {
	b := p.Frame[p.L4:p.End]
	short := len(b) < headerLen(p.Proto)
	switch p.Proto {
	case ProtoTCP:
		if short {
			return BadTCP
		}
		return p.decodeTCP(b)
	case ProtoUDP:
		if short {
			return BadUDP
		}
		length := int(binary.BigEndian.Uint16(b[4:]))
		if length < 8 || length > len(b) && p.Piece == Whole {
			return BadUDP
		}
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		return OK
	case ProtoICMP:
		if p.Family != 4 {
			return ForeignICMP
		}
		if short {
			return BadICMP
		}
		return p.decodeICMP(b)
	case ProtoICMPv6:
		if p.Family != 6 {
			return ForeignICMP
		}
		if short {
			return BadICMPv6
		}
		return p.decodeICMP(b)
	default:
		if short {
			return BadTransport
		}
		return OK
	}
}

// flagsKept are the TCP flags that a combination is judged by.
const flagsKept = FIN | SYN | RST | ACK | URG

// validFlags has one bit for each combination of kept flags that TCP sends.
const validFlags = 1<<SYN | 1<<(SYN|URG) | 1<<(SYN|ACK) | 1<<RST | 1<<(RST|ACK) |
	1<<(FIN|ACK) | 1<<(FIN|ACK|URG) | 1<<ACK | 1<<(ACK|URG)

func (p *Parsed) decodeTCP(b []byte) Failure {
	header := int(b[12]>>4) * 4
	if header < 20 || header > len(b) {
		return BadTCP
	}
	flags := b[13] & flagsKept
	if uint64(validFlags)>>flags&1 == 0 {
		return BadTCPFlags
	}
	p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	p.TCP = TCP{
		Seq:       binary.BigEndian.Uint32(b[4:]),
		Ack:       binary.BigEndian.Uint32(b[8:]),
		Window:    binary.BigEndian.Uint16(b[14:]),
		Flags:     flags,
		HeaderLen: header,
		Payload:   len(b) - header,
	}
	if flags&SYN != 0 {
		p.TCP.Scale, p.TCP.HasScale = windowScale(b[20:header])
	}
	return OK
}

// windowScale finds the window scale option (RFC 7323 section 2). Options that do not fit end the
// walk: the receiver decides what it makes of them.
func windowScale(b []byte) (scale uint8, ok bool) {
	for len(b) > 0 {
		switch b[0] {
		case 0:
			return 0, false
		case 1:
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return 0, false
		}
		if b[0] == 3 && b[1] == 3 {
			return min(b[2], 14), true
		}
		b = b[b[1]:]
	}
	return 0, false
}
