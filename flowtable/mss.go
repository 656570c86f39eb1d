package flowtable

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Limits of an MSS that is clamped, over IPv4. Linux takes no less than MSSMin from a peer.
const (
	MSSMin = 88
	MSSMax = 65535 - mssOverhead
)

const (
	mssOverhead = 40 // bytes of an IPv4 and a TCP header without options
	mss6Less    = 20 // by which an IPv6 header is longer (abi.h: MSS6_LESS)

	optionMSS = 2
)

// MSSOf returns the MSS over IPv4 that fits an MTU, at least MSSMin.
func MSSOf(mtu int) uint16 { return uint16(min(max(mtu-mssOverhead, MSSMin), MSSMax)) }

// MSS is what SYNs are held to: the most that they may ask for over IPv4, 20 less over IPv6. 0 = whatever they do.
type MSS struct {
	Ports map[uint8]uint16  // of those that come or leave by a port, by its id
	Rules map[uint32]uint16 // of those of a rule's flows, by its id
}

// limit returns the least MSS that ports and rule say, 0 if none does.
func (m *MSS) limit(family, arrival, egress uint8, rule uint32) (limit uint16) {
	for _, of := range [...]uint16{m.Ports[arrival], m.Ports[egress], m.Rules[rule]} {
		if of != 0 && (limit == 0 || of < limit) {
			limit = of
		}
	}
	if limit != 0 && family == 6 {
		limit -= mss6Less
	}
	return limit
}

// SetMSS has SYNs held to another MSS from the next packet on.
func (e *Executor) SetMSS(m MSS) { e.cfg.MSS = m }

// clampMSS lowers the MSS of a SYN that leaves by a port, or that the kernel carries on.
func (e *Executor) clampMSS(w *work) {
	p := &e.p
	if p.EtherType != packet.EtherTypeIPv4 && p.EtherType != packet.EtherTypeIPv6 ||
		p.Proto != packet.ProtoTCP || p.Piece == packet.Later || p.TCP.Flags&packet.SYN == 0 ||
		w.pass == 1+uint8(bpf.XDPPassCausePASS_HOST) {
		return
	}
	limit := e.cfg.MSS.limit(p.Family, w.port.Id, e.cfg.Nexthops[w.nexthop].Port, w.rule)
	if limit != 0 {
		lowerMSS(p, limit, w.port.Flags&PortFixChecksum != 0)
	}
}

// lowerMSS writes limit in the place of a larger MSS and corrects the checksum by that (RFC 1624). Partial: it
// may be the bare pseudo header's sum, which says nothing of the MSS and stays as it is.
func lowerMSS(p *packet.Parsed, limit uint16, partial bool) {
	header := p.Frame[p.L4 : p.L4+p.TCP.HeaderLen]
	at := findOption(header[20:], optionMSS, 4)
	if at < 0 {
		return
	}
	value := header[20+at : 20+at+2]
	was := binary.BigEndian.Uint16(value)
	if was <= limit {
		return
	}
	check := header[16:18]
	have := binary.BigEndian.Uint16(check)
	partial = partial && p.Piece == packet.Whole &&
		uint32(have) == packet.PseudoSum(p.Family, &p.Src, &p.Dst, p.Proto, p.End-p.L4)
	binary.BigEndian.PutUint16(value, limit)
	if partial {
		return
	}
	if at%2 != 0 { // it lies in two words of the sum, as if its bytes were swapped
		was, limit = swap16(was), swap16(limit)
	}
	sum := uint32(^have) + uint32(^was) + uint32(limit)
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(check, ^uint16(sum>>16+sum))
}

// findOption returns where the value of the first TCP option of a kind and length begins, -1 without it. What
// stands behind a malformed option is not found.
func findOption(b []byte, kind, length byte) int {
	for at := 0; at < len(b) && b[at] != 0; {
		switch {
		case b[at] == 1:
			at++
		case at+2 > len(b) || b[at+1] < 2 || at+int(b[at+1]) > len(b):
			return -1
		case b[at] == kind && b[at+1] == length:
			return at + 2
		default:
			at += int(b[at+1])
		}
	}
	return -1
}
