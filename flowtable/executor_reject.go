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

// reject builds the answer to a packet that a rule rejects, and returns its length, 0 if none is due.
func (e *Executor) reject(w *work, out []byte) int {
	p := &e.p
	src := p.Src
	if p.Piece == packet.Later || w.frame[0]&1 != 0 || isGroup(p.Family, &p.Dst) || src == (packet.Addr{}) {
		return 0
	}
	tcp := p.Proto == packet.ProtoTCP
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
	if n := e.prohibited(out[p.L3:], &from); n > 0 {
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

// prohibited writes ICMP 3/13 or ICMPv6 1/1, communication administratively prohibited.
func (e *Executor) prohibited(out []byte, from *packet.Addr) int {
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
	clear(b[:icmpLen])
	copy(b[icmpLen:], p.Frame[p.L3:])
	var sum uint32
	if p.Family == 4 {
		b[0], b[1] = 3, 13
	} else {
		b[0], b[1] = 1, 1
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
