package flowtable

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

const (
	answerTTL = 64
	tcpLen    = 20
	icmpLen   = 8

	// An ICMP answer quotes the IP header and 8 bytes behind it, at most quoteMax and whole words.
	quoteMin = 28
	quoteMax = 128
)

// reply builds the answer to a packet that is refused, and returns its length, 0 if none is due.
func (e *Executor) reply(w *work, reason bpf.XDPReason, out []byte) int {
	p := &e.p
	src := p.Src
	if p.Piece == packet.Later || w.failed || w.frame[0]&1 != 0 || isGroup(p.Family, &p.Dst) || src == (packet.Addr{}) {
		return 0
	}
	tcp := p.Proto == packet.ProtoTCP && reason == bpf.XDPReasonREASON_REJECT
	if tcp && p.TCP.Flags&packet.RST != 0 || !e.answerDue(w) {
		return 0
	}
	// The answer goes back the way the packet came: MACs exchanged, tags kept.
	if len(out) < p.L3+packet.IPv6Len+icmpLen+quoteMax {
		return 0
	}
	copy(out, w.frame[6:12])
	copy(out[6:], w.frame[:6])
	copy(out[12:p.L3], w.frame[12:p.L3])
	if tcp {
		return p.L3 + e.resetTCP(out[p.L3:])
	}
	from := p.Dst
	if !w.inline() {
		from = ownAddress(w.port, p.Family)
	}
	if from == (packet.Addr{}) {
		return 0
	}
	if n := e.quote(out[p.L3:], &from, e.notice(w, reason)); n > 0 {
		return p.L3 + n
	}
	return 0
}

// answerDue reports whether the source has not yet had its ten answers of this second.
func (e *Executor) answerDue(w *work) bool {
	a := words(&e.p.Src)
	h := (a[0] ^ a[1]*31 ^ a[2]*961 ^ a[3]*29791) * 2654435761
	b := &e.rejects[h>>20&(rejectBuckets-1)]
	if w.tick-b.Second >= routeLife {
		b.Second, b.Answers = w.tick, 0
	}
	b.Answers++
	return b.Answers <= rejectRate
}

func ownAddress(port *bpf.XDPPort, family uint8) packet.Addr {
	if family == 4 {
		return addr4(port.Ip4)
	}
	return addr6(&port.Ip6)
}

// resetTCP writes a RST that the sender of the segment accepts (RFC 9293 section 3.10.7.1).
func (e *Executor) resetTCP(out []byte) int {
	p := &e.p
	n := putIP(out, p.Family, &p.Dst, &p.Src, packet.ProtoTCP, tcpLen)
	b := out[n : n+tcpLen]
	clear(b)
	binary.BigEndian.PutUint16(b, p.DstPort)
	binary.BigEndian.PutUint16(b[2:], p.SrcPort)
	b[12] = tcpLen / 4 << 4
	if p.TCP.Flags&packet.ACK != 0 {
		binary.BigEndian.PutUint32(b[4:], p.TCP.Ack)
		b[13] = packet.RST
	} else {
		binary.BigEndian.PutUint32(b[8:], p.TCP.End())
		b[13] = packet.RST | packet.ACK
	}
	sum := packet.PseudoSum(p.Family, &p.Dst, &p.Src, packet.ProtoTCP, tcpLen)
	binary.BigEndian.PutUint16(b[16:], packet.Checksum(b, sum))
	return n + tcpLen
}

// notice is what an ICMP error says: type, code, and the word behind the checksum.
type notice struct {
	typ, code uint8
	word      uint32
}

// notice returns what the sender of a refused packet is told.
func (e *Executor) notice(w *work, reason bpf.XDPReason) notice {
	four := e.p.Family == 4
	switch {
	case reason == bpf.XDPReasonREASON_TTL_EXPIRED && four:
		return notice{typ: 11}
	case reason == bpf.XDPReasonREASON_TTL_EXPIRED:
		return notice{typ: 3}
	case reason == bpf.XDPReasonREASON_TOO_BIG && four:
		return notice{typ: 3, code: 4, word: e.mtu(w)} // RFC 1191: the low half
	case reason == bpf.XDPReasonREASON_TOO_BIG:
		return notice{typ: 2, word: e.mtu(w)}
	case four:
		return notice{typ: 3, code: 13} // communication administratively prohibited
	}
	return notice{typ: 1, code: 1} // likewise
}

// mtu returns the largest packet that the packet's next hop takes, in bytes.
func (e *Executor) mtu(w *work) uint32 { return uint32(e.cfg.Nexthops[w.nexthop].Src >> 48) }

// quote writes an ICMP error about the packet.
func (e *Executor) quote(out []byte, from *packet.Addr, says notice) int {
	p := &e.p
	quote := min(p.L4-p.L3+8, p.Length, quoteMax) &^ 3
	if quote < quoteMin {
		return 0
	}
	proto := uint8(packet.ProtoICMP)
	if p.Family == 6 {
		proto = packet.ProtoICMPv6
	}
	n := putIP(out, p.Family, from, &p.Src, proto, icmpLen+quote)
	b := out[n : n+icmpLen+quote]
	b[0], b[1], b[2], b[3] = says.typ, says.code, 0, 0
	binary.BigEndian.PutUint32(b[4:], says.word)
	copy(b[icmpLen:], p.Frame[p.L3:])
	var sum uint32
	if p.Family == 6 {
		sum = packet.PseudoSum(6, from, &p.Src, proto, len(b))
	}
	binary.BigEndian.PutUint16(b[2:], packet.Checksum(b, sum))
	return n + len(b)
}

// putIP writes an IP header without options and returns its length.
func putIP(out []byte, family uint8, src, dst *packet.Addr, proto uint8, payload int) int {
	if family == 6 {
		b := out[:packet.IPv6Len]
		clear(b)
		b[0] = 6 << 4
		binary.BigEndian.PutUint16(b[4:], uint16(payload))
		b[6], b[7] = proto, answerTTL
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
		return packet.IPv6Len
	}
	b := out[:packet.IPv4Len]
	clear(b)
	b[0] = 4<<4 | packet.IPv4Len/4
	binary.BigEndian.PutUint16(b[2:], uint16(packet.IPv4Len+payload))
	b[8], b[9] = answerTTL, proto
	copy(b[12:], src[:4])
	copy(b[16:], dst[:4])
	binary.BigEndian.PutUint16(b[10:], packet.Checksum(b, 0))
	return packet.IPv4Len
}
