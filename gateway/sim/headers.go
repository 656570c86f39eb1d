package sim

import (
	"encoding/binary"
	"net/netip"

	"github.com/softdpu/softdpu/dataplane/packet"
)

// Headers is what can be read of a frame, whether or not the packet path would accept it.
type Headers struct {
	EtherType uint16 // behind the tags; valid iff the frame is longer than an Ethernet header
	VLAN      uint16 // outer VLAN id, 0 = untagged
	Family    uint8  // 4 or 6; 0 = the rest is not valid
	Proto     uint8
	Src, Dst  netip.Addr
	Ports     bool // SrcPort and DstPort are valid: TCP, UDP or SCTP
	SrcPort   uint16
	DstPort   uint16
	TCPFlags  uint8 // valid iff Whole and Proto is TCP
	ICMPType  uint8 // valid iff Whole and Proto is ICMP or ICMPv6
	ICMPCode  uint8
	ICMPID    uint16
	Length    int  // of the IP packet, as its header says
	L3, L4    int  // offsets
	Whole     bool // the transport header is there
	// Fragment is set for all fragments, Later for those without a transport header.
	Fragment, Later bool
	FragmentID      uint32

	inner bool // quoted by an ICMP error: 8 bytes of transport are all that need be there
}

// transportLen is how much of a transport header must be there to be read.
var transportLen = map[uint8]int{
	packet.ProtoTCP: 20, packet.ProtoUDP: 8, packet.ProtoSCTP: 12, packet.ProtoICMP: 8, packet.ProtoICMPv6: 8,
	packet.ProtoESP: 8, packet.ProtoGRE: 4, packet.ProtoAH: 12,
}

// ReadHeaders reads a frame's headers as far as they go, without judging them. Unlike package packet's
// decoder, which refuses, it goes on where one can still tell who speaks to whom.
func ReadHeaders(frame []byte) (h Headers) {
	if len(frame) < ethernetLen {
		return h
	}
	at := 12
	for tags := 0; ; tags++ {
		if len(frame) < at+2 {
			return h
		}
		h.EtherType = binary.BigEndian.Uint16(frame[at:])
		if tags == 2 || h.EtherType != packet.EtherTypeVLAN && h.EtherType != packet.EtherTypeQinQ {
			break
		}
		if len(frame) < at+4 {
			return h
		}
		if tags == 0 {
			h.VLAN = binary.BigEndian.Uint16(frame[at+2:]) & 0x0fff
		}
		at += 4
	}
	h.L3 = at + 2
	switch h.EtherType {
	case etherIPv4:
		h.ipv4(frame)
	case etherIPv6:
		h.ipv6(frame)
	}
	return h
}

func (h *Headers) ipv4(frame []byte) {
	b := frame[h.L3:]
	if len(b) < 20 || b[0]>>4 != 4 || b[0]&0x0f < 5 {
		return
	}
	h.Family, h.Proto = 4, b[9]
	h.Src, h.Dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	h.Length = int(binary.BigEndian.Uint16(b[2:]))
	h.L4 = h.L3 + int(b[0]&0x0f)*4
	piece := binary.BigEndian.Uint16(b[6:])
	h.Fragment, h.Later = piece&0x3fff != 0, piece&0x1fff != 0
	h.FragmentID = uint32(binary.BigEndian.Uint16(b[4:]))
	h.transport(frame)
}

func (h *Headers) ipv6(frame []byte) {
	b := frame[h.L3:]
	if len(b) < 40 || b[0]>>4 != 6 {
		return
	}
	h.Family, h.Proto = 6, b[6]
	h.Src, h.Dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	h.Length = 40 + int(binary.BigEndian.Uint16(b[4:]))
	at := 40
	for range 16 {
		length := 0
		switch h.Proto {
		case packet.ProtoHopByHop, packet.ProtoRouting, packet.ProtoDestination:
			if len(b) < at+2 {
				return
			}
			length = int(b[at+1])*8 + 8
		case packet.ProtoAH:
			if len(b) < at+2 {
				return
			}
			length = int(b[at+1])*4 + 8
		case packet.ProtoFragment:
			if len(b) < at+8 {
				return
			}
			piece := binary.BigEndian.Uint16(b[at+2:])
			h.Fragment, h.Later = piece&0xfff9 != 0, piece&0xfff8 != 0
			h.FragmentID = binary.BigEndian.Uint32(b[at+4:])
			length = 8
		default:
			h.L4 = h.L3 + at
			h.transport(frame)
			return
		}
		h.Proto = b[at]
		if at += length; h.Later {
			h.L4 = h.L3 + at
			return
		}
	}
}

func (h *Headers) transport(frame []byte) {
	need := transportLen[h.Proto]
	if h.inner {
		need = min(need, 8)
	}
	if h.Later || len(frame) < h.L4+need {
		return
	}
	h.Whole = true
	b := frame[h.L4:]
	switch h.Proto {
	case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoSCTP:
		h.Ports = true
		h.SrcPort, h.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		if h.Proto == packet.ProtoTCP && !h.inner {
			h.TCPFlags = b[13]
		}
	case packet.ProtoICMP, packet.ProtoICMPv6:
		h.ICMPType, h.ICMPCode, h.ICMPID = b[0], b[1], binary.BigEndian.Uint16(b[4:])
	}
}

// icmp says what an ICMP message is; only queries, replies and errors belong to a conversation.
func (h *Headers) icmp() packet.Kind {
	switch {
	case h.Proto == packet.ProtoICMP && (h.ICMPType == 8 || h.ICMPType == 13),
		h.Proto == packet.ProtoICMPv6 && h.ICMPType == 128:
		return packet.Query
	case h.Proto == packet.ProtoICMP && (h.ICMPType == 0 || h.ICMPType == 14),
		h.Proto == packet.ProtoICMPv6 && h.ICMPType == 129:
		return packet.Reply
	case h.Proto == packet.ProtoICMP && (h.ICMPType == 3 || h.ICMPType == 11 || h.ICMPType == 12),
		h.Proto == packet.ProtoICMPv6 && h.ICMPType >= 1 && h.ICMPType <= 4:
		return packet.Error
	}
	return packet.Other
}

// isICMP reports whether the transport header is one of ICMP.
func (h *Headers) isICMP() bool {
	return h.Whole && (h.Proto == packet.ProtoICMP || h.Proto == packet.ProtoICMPv6)
}

// quoted reads the packet inside an ICMP error: its first 8 bytes of transport suffice.
func (h *Headers) quoted(frame []byte) (in Headers, ok bool) {
	in = Headers{EtherType: h.EtherType, VLAN: h.VLAN, L3: h.L4 + 8, inner: true}
	if h.Family == 4 {
		in.ipv4(frame)
	} else {
		in.ipv6(frame)
	}
	return in, in.Family != 0 && in.Whole
}
