package packet

import "encoding/binary"

const (
	ipv4DontFragment = 0x4000
	ipv4MoreFollow   = 0x2000
	ipv4OffsetMask   = 0x1fff

	optionEnd         = 0
	optionNoOp        = 1
	optionLooseRoute  = 131
	optionStrictRoute = 137
)

// decodeIPv4 reads the IPv4 header: bounds, checksum, options, addresses, in this order.
func (p *Parsed) decodeIPv4() Failure {
	b := p.Frame[p.L3:]
	if len(b) < IPv4Len || b[0]>>4 != 4 {
		return BadIPv4
	}
	header := int(b[0]&0x0f) * 4
	length := int(binary.BigEndian.Uint16(b[2:]))
	if header < IPv4Len || header > len(b) || length < header || length > len(b) {
		return BadIPv4
	}
	if Checksum(b[:header], 0) != 0 {
		return BadIPv4Checksum
	}
	if f := checkOptions(b[IPv4Len:header]); f != OK {
		return f
	}
	p.Family, p.TTL, p.Proto = 4, b[8], b[9]
	p.Src, p.Dst = Addr{}, Addr{}
	copy(p.Src[:4], b[12:16])
	copy(p.Dst[:4], b[16:20])
	if martian4(b[12:16], b[16:20]) {
		return Martian
	}

	p.Length, p.End, p.L4 = length, p.L3+length, p.L3+header
	word := binary.BigEndian.Uint16(b[6:])
	p.DontFragment = word&ipv4DontFragment != 0
	p.Fragment = Fragment{
		ID:      uint32(binary.LittleEndian.Uint16(b[4:])),
		Proto:   p.Proto,
		More:    word&ipv4MoreFollow != 0,
		Offset:  int(word&ipv4OffsetMask) * 8,
		Payload: length - header,
	}
	p.Piece = piece(&p.Fragment)
	return OK
}

func piece(f *Fragment) Piece {
	switch {
	case f.Offset != 0:
		return Later
	case f.More:
		return First
	default:
		return Whole
	}
}

// checkOptions walks the options; the first that is wrong names the failure.
func checkOptions(b []byte) Failure {
	for len(b) > 0 {
		switch b[0] {
		case optionEnd:
			return OK
		case optionNoOp:
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return BadIPv4Options
		}
		if b[0] == optionLooseRoute || b[0] == optionStrictRoute {
			return IPv4SourceRoute
		}
		b = b[b[1]:]
	}
	return OK
}

func martian4(src, dst []byte) bool {
	s, d := binary.BigEndian.Uint32(src), binary.BigEndian.Uint32(dst)
	switch {
	case s == d, s>>24 == 127, d>>24 == 127:
		return true
	case s>>28 >= 14: // 224.0.0.0/4 and 240.0.0.0/4
		return true
	case s>>24 == 0 && (s != 0 || d != 0xffffffff):
		return true
	default:
		return d>>24 == 0
	}
}
