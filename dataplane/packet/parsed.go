package packet

import "encoding/binary"

// Ethernet types.
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeARP  = 0x0806
	EtherTypeVLAN = 0x8100
	EtherTypeIPv6 = 0x86dd
	EtherTypeQinQ = 0x88a8
)

// IP protocol numbers.
const (
	ProtoHopByHop    = 0
	ProtoICMP        = 1
	ProtoTCP         = 6
	ProtoUDP         = 17
	ProtoRouting     = 43
	ProtoFragment    = 44
	ProtoDCCP        = 33
	ProtoGRE         = 47
	ProtoESP         = 50
	ProtoAH          = 51
	ProtoICMPv6      = 58
	ProtoNone        = 59
	ProtoDestination = 60
	ProtoSCTP        = 132
	ProtoUDPLite     = 136
)

// Lengths of headers, in bytes.
const (
	EthernetLen = 14
	TagLen      = 4
	IPv4Len     = 20
	IPv6Len     = 40
)

// Addr is an IP address as it stands in the packet. IPv4 takes the first four bytes; the others are 0.
type Addr [16]byte

// Piece says what part of a datagram a packet is.
type Piece uint8

const (
	Whole Piece = iota // not fragmented; an atomic IPv6 fragment is whole
	First              // offset 0, more follow
	Later              // offset above 0: there is no transport header
)

// Parsed is one frame's headers. Decode fills it; fields hold rubbish of an earlier frame where their
// comment's condition does not hold. It keeps a reference to the frame.
type Parsed struct {
	Frame []byte

	// Valid once DecodeEthernet returned OK.
	EtherType uint16 // behind the tags
	VLAN      uint16 // outer VLAN id; 0 = untagged or priority tag
	Tags      uint8  // VLAN tags, 0 to 2
	L3        int    // offset behind Ethernet header and tags

	// Valid once DecodeIP returned OK.
	Family       uint8 // 4 or 6
	TTL          uint8 // or hop limit
	Proto        uint8 // of the transport header; of a Later piece, what the last header read says
	DontFragment bool  // IPv4 only, else false
	Src, Dst     Addr
	Length       int // IP packet, header included, in bytes
	End          int // offset of its end in the frame: what follows is padding
	L4           int // offset of the transport header; of a Later piece, of its payload
	Piece        Piece
	Fragment     Fragment // valid iff Piece is not Whole

	// Valid iff Piece is not Later.
	SrcPort, DstPort uint16 // of TCP and UDP, else 0
	TCP              TCP    // valid iff Proto is TCP
	ICMP             ICMP   // valid iff Proto is ICMP or ICMPv6
}

// Fragment is where a packet belongs in its datagram.
type Fragment struct {
	ID      uint32 // as it stands in the packet, read little-endian; IPv4: 16 bits
	Proto   uint8  // IPv4: the protocol field; IPv6: the fragment header's next header
	More    bool   // more fragments follow
	Offset  int    // of the payload in the datagram's, in bytes
	Payload int    // bytes behind the IPv4 header or the IPv6 fragment header
}

// TCP flags. PSH, ECE and CWR are ignored and so left out of TCP.Flags.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	ACK = 0x10
	URG = 0x20
)

// TCP is a TCP header.
type TCP struct {
	Seq, Ack  uint32
	Window    uint16 // as it stands, unscaled
	Flags     uint8  // FIN, SYN, RST, ACK, URG
	Scale     uint8  // window scale option, at most 14; valid iff HasScale
	HasScale  bool   // only looked for in segments with SYN
	HeaderLen int    // bytes, options included
	Payload   int    // bytes; of a First piece, those in this fragment
}

// End returns the sequence number behind the segment: payload, SYN and FIN count.
func (t *TCP) End() uint32 {
	end := t.Seq + uint32(t.Payload)
	if t.Flags&SYN != 0 {
		end++
	}
	if t.Flags&FIN != 0 {
		end++
	}
	return end
}

// Query types that other packages compare with.
const (
	EchoRequest4 = 8
	Timestamp4   = 13
	EchoRequest6 = 128
)

// Kind sorts ICMP and ICMPv6 messages by what a stateful filter does with them.
type Kind uint8

const (
	Other     Kind = iota // redirects, router discovery of IPv4, ...
	Query                 // echo request, timestamp: opens a flow
	Reply                 // echo reply, timestamp reply: needs its flow
	Error                 // speaks of the packet that it quotes
	Neighbour             // ICMPv6 router and neighbour discovery
	Listener              // ICMPv6 multicast listener discovery
)

// ICMP is an ICMP or ICMPv6 header.
type ICMP struct {
	Type, Code uint8
	Kind       Kind
	ID         uint16 // identifier; valid iff Kind is Query or Reply
	Inner      Inner  // valid iff Kind is Error
}

// Inner is the packet that an ICMP error quotes. Its family is that of the error.
type Inner struct {
	Src, Dst         Addr
	Proto            uint8
	L4               int    // offset in the frame of its transport header, of which 8 bytes are there
	Later            bool   // a later fragment: no transport header, nothing below is valid
	SrcPort, DstPort uint16 // of TCP and UDP, else 0
	Kind             Kind   // of ICMP over IPv4 and ICMPv6 over IPv6, else Other
	Type, Code       uint8  // of ICMP over IPv4 and ICMPv6 over IPv6
	ID               uint16 // valid iff Kind is Query or Reply
}

// Decode reads the headers of a whole frame. What is neither IPv4 nor IPv6 is OK once its Ethernet
// header is: EtherType tells, and the IP fields are not valid. The frame is not changed and must
// outlive p.
func (p *Parsed) Decode(frame []byte) Failure {
	if f := p.DecodeEthernet(frame); f != OK {
		return f
	}
	if p.EtherType != EtherTypeIPv4 && p.EtherType != EtherTypeIPv6 {
		return OK
	}
	return p.DecodeIP()
}

// DecodeEthernet reads the Ethernet header and up to two VLAN tags.
func (p *Parsed) DecodeEthernet(frame []byte) Failure {
	p.Frame = frame
	if len(frame) < EthernetLen {
		return BadEthernet
	}
	p.EtherType = binary.BigEndian.Uint16(frame[12:])
	p.VLAN, p.Tags, p.L3 = 0, 0, EthernetLen
	for p.EtherType == EtherTypeVLAN || p.EtherType == EtherTypeQinQ {
		if p.Tags == 2 || len(frame) < p.L3+TagLen {
			return BadVLAN
		}
		if p.Tags == 0 {
			p.VLAN = binary.BigEndian.Uint16(frame[p.L3:]) & 0x0fff
		}
		p.EtherType = binary.BigEndian.Uint16(frame[p.L3+2:])
		p.L3 += TagLen
		p.Tags++
	}
	return OK
}

// DecodeIP reads what follows the Ethernet header of a frame whose EtherType is IPv4 or IPv6.
func (p *Parsed) DecodeIP() Failure {
	var f Failure
	if p.EtherType == EtherTypeIPv4 {
		f = p.decodeIPv4()
	} else {
		f = p.decodeIPv6()
	}
	if f != OK {
		return f
	}
	if p.Piece != Whole {
		if f := p.checkFragment(); f != OK {
			return f
		}
	}
	p.SrcPort, p.DstPort = 0, 0
	if p.Piece == Later {
		return OK
	}
	return p.decodeTransport()
}
