package gateway

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// An ipPacket is an IP packet as it is on the wire, without its Ethernet header. Its methods expect it to be whole,
// but for what an error quotes.
type ipPacket []byte

func (p ipPacket) six() bool { return p[0]>>4 == 6 }

func (p ipPacket) src() netip.Addr { return p.address(12, 8) }
func (p ipPacket) dst() netip.Addr { return p.address(16, 24) }

func (p ipPacket) address(four, six int) netip.Addr {
	if p.six() {
		return netip.AddrFrom16([16]byte(p[six : six+16]))
	}
	return netip.AddrFrom4([4]byte(p[four : four+4]))
}

// transport returns the protocol, and where its header is. Fragment and destination options are the only extension
// headers.
func (p ipPacket) transport() (proto uint8, at int) {
	if !p.six() {
		return p[9], int(p[0]&15) * 4
	}
	proto, at = p[6], 40
	for proto == unix.IPPROTO_FRAGMENT || proto == unix.IPPROTO_DSTOPTS {
		length := 8
		if proto == unix.IPPROTO_DSTOPTS {
			length = 8 + 8*int(p[at+1])
		}
		proto, at = p[at], at+length
	}
	return proto, at
}

// identification returns where the fragment header has it (IPv6), or 0.
func (p ipPacket) identification() int {
	if p.six() && p[6] == unix.IPPROTO_FRAGMENT {
		return 44
	}
	return 0
}

// fragment returns the offset in bytes and whether more follow.
func (p ipPacket) fragment() (offset int, more bool) {
	if !p.six() {
		f := binary.BigEndian.Uint16(p[6:])
		return int(f&0x1fff) * 8, f&0x2000 != 0
	}
	if at := p.identification(); at != 0 {
		f := binary.BigEndian.Uint16(p[at-2:])
		return int(f &^ 7), f&1 != 0
	}
	return 0, false
}

// behind returns the packet in a frame that begins with those MACs.
func (p ipPacket) behind(macs []byte) []byte {
	ethertype := []byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff}
	if p.six() {
		ethertype = []byte{unix.ETH_P_IPV6 >> 8, unix.ETH_P_IPV6 & 0xff}
	}
	return slices.Concat(macs, ethertype, p)
}

// tag returns what no router changes: the identification of IPv4, the flow label of IPv6.
func (p ipPacket) tag() uint32 {
	if p.six() {
		return binary.BigEndian.Uint32(p) & 0xfffff
	}
	return uint32(binary.BigEndian.Uint16(p[4:]))
}

// isError reports whether it is an ICMP error; quoted is what it quotes.
func (p ipPacket) isError() (quoted ipPacket, ok bool) {
	proto, at := p.transport()
	if offset, _ := p.fragment(); offset > 0 {
		return nil, false
	}
	switch {
	case proto == unix.IPPROTO_ICMP && (p[at] == 3 || p[at] == 11 || p[at] == 12), proto == unix.IPPROTO_ICMPV6 && p[at] < 128:
		return p[at+8:], true
	}
	return nil, false
}

// ports returns source and destination port, or the identifier of a query as the requester's and 0 as the other's.
func (p ipPacket) ports() (src, dst uint16) {
	proto, at := p.transport()
	switch proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		return binary.BigEndian.Uint16(p[at:]), binary.BigEndian.Uint16(p[at+2:])
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		id := binary.BigEndian.Uint16(p[at+4:])
		if p[at] == 8 || p[at] == 13 || p[at] == 128 {
			return id, 0
		}
		return 0, id
	}
	return 0, 0
}

// setPort writes the port or identifier of the requester, who is the source or the destination, and corrects the
// checksum of the transport header as far as it is there, step by step: what was wrong before stays as wrong.
func (p ipPacket) setPort(source bool, port uint16) {
	proto, at := p.transport()
	where, sum := at, 0
	switch proto {
	case unix.IPPROTO_TCP:
		if sum = at + 16; len(p) < at+20 {
			sum = 0
		}
	case unix.IPPROTO_UDP:
		if sum = at + 6; p[sum] == 0 && p[sum+1] == 0 {
			sum = 0
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		where, sum, source = at+4, at+2, true
	default:
		return
	}
	if !source {
		where += 2
	}
	before := binary.BigEndian.Uint16(p[where:])
	binary.BigEndian.PutUint16(p[where:], port)
	if sum == 0 {
		return
	}
	adjust(p[sum:], before, port)
	if proto == unix.IPPROTO_UDP && p[sum] == 0 && p[sum+1] == 0 {
		p[sum], p[sum+1] = 0xff, 0xff
	}
}

// adjust corrects a checksum for a word that has changed (RFC 1624).
func adjust(sum []byte, before, after uint16) {
	s := uint32(^binary.BigEndian.Uint16(sum)) + uint32(^before) + uint32(after)
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	binary.BigEndian.PutUint16(sum, ^uint16(s))
}

// onesSum adds the words of b in one's complement to s, which is already folded or 0.
func onesSum(s uint32, b []byte) uint32 {
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i]) << 8
		if i+1 < len(b) {
			s += uint32(b[i+1])
		}
		s = s&0xffff + s>>16
	}
	return s
}

// transportSum returns the checksum that belongs into a transport header which has 0 there.
func transportSum(src, dst netip.Addr, proto uint8, segment []byte) uint16 {
	s := uint32(0)
	if proto != unix.IPPROTO_ICMP {
		s = onesSum(onesSum(s, src.AsSlice()), dst.AsSlice())
		s = onesSum(s, binary.BigEndian.AppendUint32(nil, uint32(len(segment))))
		s = onesSum(s, []byte{0, proto})
	}
	return ^uint16(onesSum(s, segment))
}

// sumAt is where a protocol's header has its checksum; -1: nowhere.
func sumAt(proto uint8) int {
	switch proto {
	case unix.IPPROTO_TCP:
		return 16
	case unix.IPPROTO_UDP:
		return 6
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return 2
	}
	return -1
}

// sumSegment writes the checksum.
func sumSegment(src, dst netip.Addr, proto uint8, segment []byte) {
	at := sumAt(proto)
	if at < 0 {
		return
	}
	segment[at], segment[at+1] = 0, 0
	sum := transportSum(src, dst, proto, segment)
	if proto == unix.IPPROTO_UDP && sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(segment[at:], sum)
}

// wrap puts a random IP header of that tag before a segment whose checksum is right.
func wrap(r *rand.Rand, src, dst netip.Addr, proto uint8, tag uint32, segment []byte) ipPacket {
	ttl := byte(2 + r.IntN(254))
	if src.Is6() {
		p := make(ipPacket, 40, 48+len(segment))
		binary.BigEndian.PutUint32(p, 6<<28|uint32(r.IntN(256))<<20|tag)
		p[6], p[7] = proto, ttl
		copy(p[8:], src.AsSlice())
		copy(p[24:], dst.AsSlice())
		if r.IntN(8) == 0 {
			p[6] = unix.IPPROTO_DSTOPTS
			p = append(p, proto, 0, 1, 4, 0, 0, 0, 0) // padding alone
		}
		p = append(p, segment...)
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
		return p
	}
	header := 20
	if r.IntN(8) == 0 {
		header = 28
	}
	p := make(ipPacket, header, header+len(segment))
	p[0], p[1] = 0x40|byte(header/4), byte(r.IntN(256))
	binary.BigEndian.PutUint16(p[2:], uint16(header+len(segment)))
	binary.BigEndian.PutUint16(p[4:], uint16(tag))
	p[6] = byte(r.IntN(2)) << 6 // "don't fragment"
	p[8], p[9] = ttl, proto
	copy(p[12:], src.AsSlice())
	copy(p[16:], dst.AsSlice())
	if header > 20 {
		copy(p[20:], []byte{1, 1, 94, 4, byte(r.IntN(256)), byte(r.IntN(256)), 1, 0}) // an experimental option (RFC 4727)
	}
	sumHeader(p[:header])
	return append(p, segment...)
}

// cut makes fragments of a packet without options, the first ones with that many bytes of payload. Their identification
// is that of an IPv4 packet, or id.
func (p ipPacket) cut(id uint32, size int) (pieces []ipPacket) {
	header := 20
	if p.six() {
		header = 40
	}
	payload := p[header:]
	for at := 0; at < len(payload); at += size {
		piece := payload[at:min(at+size, len(payload))]
		more := uint16(0)
		if at+size < len(payload) {
			more = 1
		}
		var f ipPacket
		f = append(f, p[:header]...)
		if p.six() {
			f[6] = unix.IPPROTO_FRAGMENT
			f = append(f, p[6], 0)
			f = binary.BigEndian.AppendUint16(f, uint16(at)|more)
			f = binary.BigEndian.AppendUint32(f, id)
			f = append(f, piece...)
			binary.BigEndian.PutUint16(f[4:], uint16(len(f)-40))
		} else {
			f = append(f, piece...)
			binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
			binary.BigEndian.PutUint16(f[6:], more<<13|uint16(at/8))
			sumHeader(f[:20])
		}
		pieces = append(pieces, f)
	}
	return pieces
}

// quote returns what an error says of the packet: its header with a lower TTL, and at least that many bytes behind it.
func (p ipPacket) quote(r *rand.Rand, behind int) ipPacket {
	_, at := p.transport()
	q := append(ipPacket(nil), p[:min(len(p), at+behind)]...)
	if p.six() {
		q[7] = byte(1 + r.IntN(int(q[7])))
		return q
	}
	q[8] = byte(1 + r.IntN(int(q[8])))
	sumHeader(q[:int(q[0]&15)*4])
	return q
}
