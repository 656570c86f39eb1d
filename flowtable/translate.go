package flowtable

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/dataplane/packet"
)

// Rewriting of translated packets, docs/PACKET-PATH.md section 15.8. Checksums are corrected, not computed
// anew: what was wrong stays wrong. RFC 1624, equation 3: the new one is ~(~old + the sum of ~was + is over
// the words that change). An edit is that sum.
type edit uint32

// put writes with over b, which starts at an even offset of what is summed.
func (d *edit) put(b, with []byte) {
	for len(with) >= 2 {
		d.putWord(b, binary.BigEndian.Uint16(with))
		b, with = b[2:], with[2:]
	}
}

// putWord is put of a port, an identifier or a checksum.
func (d *edit) putWord(b []byte, is uint16) {
	was := binary.BigEndian.Uint16(b)
	*d += edit(^was) + edit(is)
	binary.BigEndian.PutUint16(b, is)
}

// sum folds an edit to 16 bits.
func (d edit) sum() uint16 {
	for d > 0xffff {
		d = d>>16 + d&0xffff
	}
	return uint16(d)
}

// correct corrects the checksum at the beginning of b for an edit, which so comes to hold this change too.
func (d *edit) correct(b []byte) { d.putWord(b, d.corrected(b)) }

func (d *edit) corrected(b []byte) uint16 {
	return ^(edit(^binary.BigEndian.Uint16(b)) + edit(d.sum())).sum()
}

// correctUDP is correct for UDP and UDP-Lite, of which 0 says that there is no checksum.
func (d *edit) correctUDP(b []byte) {
	is := d.corrected(b)
	if is == 0 {
		is = 0xffff
	}
	d.putWord(b, is)
}

// Translate writes the addresses and ports of out, in the packet's direction, into a frame and corrects its
// checksums; of an ICMP error into the packet inside, too. It reports false for what is no well-formed IP packet.
func Translate(frame []byte, out *Tuple) bool {
	var p packet.Parsed
	if p.Decode(frame) != packet.OK || p.EtherType != packet.EtherTypeIPv4 && p.EtherType != packet.EtherTypeIPv6 {
		return false
	}
	translate(&p, out, XlatSource|XlatDestination)
	return true
}

// translate writes what the packet leaves with: those of out's addresses and ports that parts (XLAT_*)
// names. Of an ICMP error it writes the packet inside as well, and always whole.
func translate(p *packet.Parsed, out *Tuple, parts uint8) {
	d, _ := putAddresses(p.Frame[p.L3:], out, parts)
	if p.Piece == packet.Later {
		return
	}
	b := p.Frame[p.L4:p.End]
	switch p.Proto {
	case packet.ProtoICMP:
		d = 0 // its checksum has no pseudo-header
		putICMP(p, b, out, parts, &d)
	case packet.ProtoICMPv6:
		putICMP(p, b, out, parts, &d)
	case packet.ProtoTCP, packet.ProtoUDP:
		putPorts(b, p.Proto, out, parts, &d)
	case packet.ProtoUDPLite:
		if len(b) >= 8 {
			d.correctUDP(b[6:])
		}
	case packet.ProtoDCCP:
		if len(b) >= 8 {
			d.correct(b[6:])
		}
	}
}

// putAddresses writes the addresses of an IP header. It returns what that changes in a pseudo-header, and in
// the header itself with its checksum.
func putAddresses(ip []byte, out *Tuple, parts uint8) (pseudo, header edit) {
	src, dst, n := 12, 16, 4
	if out.Family == 6 {
		src, dst, n = 8, 24, 16
	}
	if parts&XlatSource != 0 {
		pseudo.put(ip[src:], out.Src[:n])
	}
	if parts&XlatDestination != 0 {
		pseudo.put(ip[dst:], out.Dst[:n])
	}
	header = pseudo
	if out.Family == 4 {
		header.correct(ip[10:])
	}
	return pseudo, header
}

// putPorts writes the ports of TCP and UDP, and corrects the checksum where there is one: UDP's 0 is none,
// and an ICMP error may quote too little of TCP. D is what changed in the pseudo-header.
func putPorts(b []byte, proto uint8, out *Tuple, parts uint8, d *edit) {
	if parts&XlatSource != 0 {
		d.putWord(b, out.SrcPort)
	}
	if parts&XlatDestination != 0 {
		d.putWord(b[2:], out.DstPort)
	}
	switch {
	case proto == packet.ProtoUDP:
		if b[6]|b[7] != 0 {
			d.correctUDP(b[6:])
		}
	case len(b) >= tcpLen:
		d.correct(b[16:])
	}
}

// putICMP writes the identifier of a query or its reply, or the packet that an error quotes, and corrects
// the checksum.
func putICMP(p *packet.Parsed, b []byte, out *Tuple, parts uint8, d *edit) {
	switch p.ICMP.Kind {
	case packet.Query:
		if parts&XlatSource != 0 {
			d.putWord(b[4:], out.SrcPort)
		}
	case packet.Reply:
		if parts&XlatDestination != 0 {
			d.putWord(b[4:], out.DstPort)
		}
	case packet.Error:
		*d += edit(translateInside(p, out).sum())
	}
	d.correct(b[2:])
}

// translateInside writes the packet that an ICMP error quotes. It went the other way: its source is the
// error's destination. It returns what that changes in the error.
func translateInside(p *packet.Parsed, out *Tuple) edit {
	const both = XlatSource | XlatDestination
	in, quoted := &p.ICMP.Inner, out.reverse()
	pseudo, header := putAddresses(p.Frame[p.L4+icmpLen:], &quoted, both)
	if in.Proto == packet.ProtoICMP {
		pseudo = 0
	}
	b, d := p.Frame[in.L4:p.End], pseudo
	switch {
	case in.Proto == packet.ProtoTCP, in.Proto == packet.ProtoUDP:
		putPorts(b, in.Proto, &quoted, both, &d)
	case in.Kind == packet.Query:
		d.putWord(b[4:], quoted.SrcPort)
		d.correct(b[2:])
	case in.Kind == packet.Reply:
		d.putWord(b[4:], quoted.DstPort)
		d.correct(b[2:])
	}
	return header + d - pseudo
}
