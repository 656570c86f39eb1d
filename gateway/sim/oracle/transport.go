package oracle

import (
	"encoding/binary"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// segment is what connection tracking reads of a TCP header.
type segment struct {
	syn, ack, rst, fin bool
	seq, acked         uint32
	win                uint16
	payload            int // bytes
	scale              uint8
	scaled             bool // it has the window scale option
}

// open reports whether s is the segment that opens a connection.
func (s *segment) open() bool { return s.syn && !s.ack }

// end is the sequence number behind s.
func (s *segment) end() uint32 {
	end := s.seq + uint32(s.payload)
	if s.syn {
		end++
	}
	if s.fin {
		end++
	}
	return end
}

// headerLength is the least length of a transport header; 0 for protocols that are not looked at.
func (p *packet) headerLength() int {
	switch p.proto {
	case protoTCP:
		return 20
	case protoUDP, protoICMP, protoICMPv6, protoESP:
		return 8
	case protoGRE:
		return 4
	case protoSCTP, protoAH:
		return 12
	}
	return 0
}

// The flags that may stand together, PSH, ECE and CWR aside.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	_
	flagACK
	flagURG
)

var flagSets = map[uint8]bool{
	flagSYN: true, flagSYN | flagURG: true, flagSYN | flagACK: true,
	flagRST: true, flagRST | flagACK: true,
	flagFIN | flagACK: true, flagFIN | flagACK | flagURG: true,
	flagACK: true, flagACK | flagURG: true,
}

// readTransport is section 5, and what keys and rules need of the header.
func (p *packet) readTransport() string {
	if p.proto == protoICMP && !p.is4() || p.proto == protoICMPv6 && p.is4() {
		return "icmp-type"
	}
	b := p.payload
	short := len(b) < p.headerLength()
	switch p.proto {
	case protoTCP:
		if short || b[12]>>4 < 5 || int(b[12]>>4)*4 > len(b) {
			return "malformed-tcp"
		}
		if !flagSets[b[13]&(flagFIN|flagSYN|flagRST|flagACK|flagURG)] {
			return "malformed-tcp-flags"
		}
		p.readTCP()
	case protoUDP:
		if short {
			return "malformed-udp"
		}
		// A fragmented datagram is longer than its first fragment.
		if n := int(binary.BigEndian.Uint16(b[4:])); n < 8 || n > len(b) && !p.fragment {
			return "malformed-udp"
		}
		p.ports(binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]))
	case protoICMP:
		if short {
			return "malformed-icmp"
		}
		p.readICMP()
	case protoICMPv6:
		if short {
			return "malformed-icmpv6"
		}
		p.readICMP()
	default:
		if short {
			return "malformed-transport"
		}
	}
	return ""
}

func (p *packet) ports(src, dst uint16) {
	p.sport, p.dport, p.ruleSport, p.ruleDport = src, dst, src, dst
}

func (p *packet) readTCP() {
	header := int(p.payload[12]>>4) * 4
	var t layers.TCP
	// An error speaks of options, which the packet path does not judge; the fixed header is read then.
	_ = t.DecodeFromBytes(p.payload[:header], gopacket.NilDecodeFeedback)
	p.ports(uint16(t.SrcPort), uint16(t.DstPort))
	p.tcp = segment{
		syn: t.SYN, ack: t.ACK, rst: t.RST, fin: t.FIN, seq: t.Seq, acked: t.Ack, win: t.Window,
		payload: len(p.payload) - header,
	}
	p.tcp.scale, p.tcp.scaled = windowScale(p.payload[20:header])
}

// windowScale finds the option in front of the first one that is malformed.
func windowScale(b []byte) (scale uint8, found bool) {
	for len(b) > 0 && b[0] != 0 {
		if b[0] == 1 {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			break
		}
		if b[0] == 3 && b[1] == 3 {
			return min(b[2], 14), true
		}
		b = b[b[1]:]
	}
	return 0, false
}

// readICMP takes the identifier as the requester's port.
func (p *packet) readICMP() {
	p.icmpType = p.payload[0]
	p.ruleDport = binary.BigEndian.Uint16(p.payload)
	id := binary.BigEndian.Uint16(p.payload[4:])
	switch p.icmpKind() {
	case icmpQuery:
		p.sport = id
	case icmpReply:
		p.dport = id
	}
}
