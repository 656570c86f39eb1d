package flowtable

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/dataplane/packet"
)

// lowerTTL lowers TTL or hop limit by one. The IPv4 checksum is corrected, not computed anew: it was
// right (RFC 1624; the TTL is the high byte of its word).
func lowerTTL(p *packet.Parsed) {
	b := p.Frame[p.L3:]
	if p.Family == 6 {
		b[7]--
		return
	}
	b[8]--
	check := uint32(binary.BigEndian.Uint16(b[10:])) + 0x0100
	if check >= 0xffff {
		check++
	}
	binary.BigEndian.PutUint16(b[10:], uint16(check))
}

// putMACs writes a next hop's MACs, which stand in the low 48 bits as in the frame.
func putMACs(frame []byte, dst, src uint64) {
	binary.LittleEndian.PutUint32(frame, uint32(dst))
	binary.LittleEndian.PutUint16(frame[4:], uint16(dst>>32))
	binary.LittleEndian.PutUint32(frame[6:], uint32(src))
	binary.LittleEndian.PutUint16(frame[10:], uint16(src>>32))
}

// retag replaces the frame's VLAN tags by tag (tag control information as it stands in the frame), or
// by none if tag is 0, and returns the frame that results, in the same memory. Its first 12 bytes are
// the caller's to write. It reports false if a tag does not fit behind the frame's end.
func retag(frame []byte, tags int, ethertype, tag uint16) ([]byte, bool) {
	want := 0
	if tag != 0 {
		want = 1
	}
	switch {
	case tags > want:
		frame = frame[(tags-want)*packet.TagLen:]
	case tags < want:
		n := len(frame)
		if cap(frame) < n+packet.TagLen {
			return nil, false
		}
		frame = frame[:n+packet.TagLen]
		copy(frame[packet.EthernetLen+packet.TagLen:], frame[packet.EthernetLen:n])
	}
	if want == 0 {
		binary.BigEndian.PutUint16(frame[12:], ethertype)
		return frame, true
	}
	binary.BigEndian.PutUint16(frame[12:], packet.EtherTypeVLAN)
	binary.LittleEndian.PutUint16(frame[14:], tag)
	binary.BigEndian.PutUint16(frame[16:], ethertype)
	return frame, true
}

// completeChecksum finishes a TCP or UDP checksum that is still the bare pseudo-header sum, as a
// sender leaves it to hardware that a redirected frame never meets. The sum runs to the end of the
// IP packet, not of the padded frame. UDP over IPv4 without a checksum stays without.
func completeChecksum(p *packet.Parsed) {
	if !isBare(p) {
		return
	}
	// The field holds the pseudo header's sum, which so is part of what is summed.
	check := packet.Checksum(p.Frame[p.L4:p.End], 0)
	if check == 0 && p.Proto == packet.ProtoUDP {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(checksumOf(p), check)
}

// checksumOf returns the checksum field of a whole TCP or UDP packet, nil of others.
func checksumOf(p *packet.Parsed) []byte {
	switch p.Proto {
	case packet.ProtoTCP:
		return p.Frame[p.L4+16 : p.L4+18]
	case packet.ProtoUDP:
		return p.Frame[p.L4+6 : p.L4+8]
	}
	return nil
}

// isBare reports whether the checksum of a whole packet is only the sum of its pseudo-header.
func isBare(p *packet.Parsed) bool {
	field := checksumOf(p)
	if field == nil {
		return false
	}
	have := binary.BigEndian.Uint16(field)
	return uint32(have) == packet.PseudoSum(p.Family, &p.Src, &p.Dst, p.Proto, p.End-p.L4) &&
		(have != 0 || p.Proto == packet.ProtoTCP)
}

// putBare writes the sum of the pseudo-header that a packet has once it is from src to dst.
func putBare(p *packet.Parsed, src, dst *packet.Addr) {
	sum := packet.PseudoSum(p.Family, src, dst, p.Proto, p.End-p.L4)
	binary.BigEndian.PutUint16(checksumOf(p), uint16(sum))
}
