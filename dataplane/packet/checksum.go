package packet

import "encoding/binary"

// Sum adds b to a one's complement sum (RFC 1071), folded to 16 bits. Every part but the last must
// have an even length. The sums of parts can be added; Checksum inverts.
func Sum(b []byte, sum uint32) uint32 {
	acc := uint64(sum)
	for len(b) >= 8 {
		acc += uint64(binary.BigEndian.Uint32(b)) + uint64(binary.BigEndian.Uint32(b[4:]))
		b = b[8:]
	}
	for len(b) >= 2 {
		acc += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		acc += uint64(b[0]) << 8
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint32(acc)
}

// Checksum returns the Internet checksum of b and of what sum already holds. Over a header that
// carries its own right checksum it is 0.
func Checksum(b []byte, sum uint32) uint16 { return ^uint16(Sum(b, sum)) }

// PseudoSum returns the sum of the pseudo header of TCP, UDP and ICMPv6 (RFC 9293 section 3.1, RFC
// 8200 section 8.1) for length bytes of transport header and payload.
func PseudoSum(family uint8, src, dst *Addr, proto uint8, length int) uint32 {
	n := 16
	if family == 4 {
		n = 4
	}
	sum := Sum(src[:n], uint32(proto)+uint32(length>>16)+uint32(length&0xffff))
	return Sum(dst[:n], sum)
}
