package oracle

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/softdpu/softdpu/firewall"
)

// IP protocol numbers that the packet path treats apart.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoGRE    = 47
	protoESP    = 50
	protoAH     = 51
	protoICMPv6 = 58
	protoSCTP   = 132
)

// packet is what is read of a frame.
type packet struct {
	port      string
	frame     []byte
	srcMAC    firewall.MAC
	vlan      uint16 // outer VLAN id, 0 = untagged
	zone      string
	domain    uint16
	ethertype uint16
	ip        int // offset of the IP header in frame

	src, dst netip.Addr
	ttl      uint8
	df       bool
	total    int    // length of the IP packet by its own header
	proto    uint8  // of the transport header
	payload  []byte // from the transport header, or what follows the fragment header, to the packet's end

	fragment bool   // one of several
	more     bool   // not the last
	offset   int    // bytes
	length   int    // bytes of payload behind the IP or fragment header
	id       uint32 // identification
	idProto  uint8  // that the IP or fragment header names

	// Ports of the flow key, in the direction of the packet, and of rules.
	sport, dport         uint16
	ruleSport, ruleDport uint16
	icmpType             uint8
	tcp                  segment

	about key // of its flow, in its own direction: of an error the other way from the packet inside
}

func (p *packet) is4() bool { return p.src.Is4() }

func (p *packet) opening() Opening {
	return Opening{From: p.zone, Src: p.src, Dst: p.dst, MAC: p.srcMAC, Proto: p.proto, SrcPort: p.ruleSport, DstPort: p.ruleDport}
}

// readEthernet is section 1 up to and with `not-for-us`.
func (o *Oracle) readEthernet(p *packet) string {
	var eth layers.Ethernet
	if len(p.frame) < 14 {
		return "malformed-ethernet"
	}
	// What gopacket says of 802.3 lengths is of no concern: they are ethertypes that nobody knows.
	_ = eth.DecodeFromBytes(p.frame, gopacket.NilDecodeFeedback)
	p.srcMAC = firewall.MAC(eth.SrcMAC)
	p.ethertype = binary.BigEndian.Uint16(p.frame[12:])
	p.ip = 14
	for tags := 0; p.ethertype == 0x8100 || p.ethertype == 0x88a8; tags++ {
		var tag layers.Dot1Q
		if tags == 2 || tag.DecodeFromBytes(p.frame[p.ip:], gopacket.NilDecodeFeedback) != nil {
			return "malformed-vlan"
		}
		if tags == 0 {
			p.vlan = tag.VLANIdentifier
		}
		p.ethertype = binary.BigEndian.Uint16(p.frame[p.ip+2:])
		p.ip += 4
	}
	if p.zone = zoneOf(o.policy, p.port, p.vlan); p.zone == "" {
		return "vlan-unknown"
	}
	if number, _ := o.world.pair(p.port); number != 0 {
		p.domain = uint16(number)<<12 | p.vlan
	} else if [6]byte(eth.DstMAC) != o.world.port(p.port).MAC && eth.DstMAC[0]&1 == 0 {
		return "not-for-us"
	}
	return ""
}

var (
	loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	class4D   = netip.MustParsePrefix("224.0.0.0/4")
	class4E   = netip.MustParsePrefix("240.0.0.0/4")
	this4     = netip.MustParsePrefix("0.0.0.0/8")
	group6    = netip.MustParsePrefix("ff00::/8")
	broadcast = netip.MustParseAddr("255.255.255.255")
)

// readIPv4 is section 2.
func (p *packet) readIPv4() string {
	b := p.frame[p.ip:]
	if len(b) < 20 || b[0]>>4 != 4 {
		return "malformed-ipv4"
	}
	header := int(b[0]&15) * 4
	if header < 20 || header > len(b) {
		return "malformed-ipv4"
	}
	p.total = int(binary.BigEndian.Uint16(b[2:]))
	if p.total < header || p.total > len(b) {
		return "malformed-ipv4"
	}
	if sum(b[:header]) != 0xffff {
		return "malformed-ipv4-checksum"
	}
	if reason := ipv4Options(b[20:header]); reason != "" {
		return reason
	}
	// Options are read above: gopacket is more severe about them than the document.
	var ip layers.IPv4
	plain := append([]byte{0x45}, b[1:20]...)
	_ = ip.DecodeFromBytes(plain, gopacket.NilDecodeFeedback)
	p.src, _ = netip.AddrFromSlice(ip.SrcIP)
	p.dst, _ = netip.AddrFromSlice(ip.DstIP)
	switch {
	case p.src == p.dst,
		within(p.src, loopback4, class4D, class4E),
		within(p.dst, loopback4, this4),
		this4.Contains(p.src) && !(p.src.IsUnspecified() && p.dst == broadcast):
		return "martian"
	}
	p.ttl, p.proto, p.idProto, p.id = ip.TTL, uint8(ip.Protocol), uint8(ip.Protocol), uint32(ip.Id)
	p.df = ip.Flags&layers.IPv4DontFragment != 0
	p.more = ip.Flags&layers.IPv4MoreFragments != 0
	p.offset = int(ip.FragOffset) * 8
	p.fragment = p.more || p.offset != 0
	p.payload = b[header:p.total]
	p.length = len(p.payload)
	return ""
}

// sum is the ones' complement sum of b, which has an even length; 0xffff for a right header.
func sum(b []byte) uint16 {
	var total int
	for i := 0; i < len(b); i += 2 {
		total += int(b[i])<<8 | int(b[i+1])
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

func ipv4Options(b []byte) string {
	for len(b) > 0 && b[0] != 0 {
		if b[0] == 1 {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return "malformed-ipv4-options"
		}
		if b[0] == 131 || b[0] == 137 {
			return "ipv4-source-route"
		}
		b = b[b[1]:]
	}
	return ""
}

// readIPv6 is section 3. gopacket reads the fixed header alone: it treats jumbograms and truncated
// chains in its own way.
func (p *packet) readIPv6() string {
	b := p.frame[p.ip:]
	if len(b) < 40 || b[0]>>4 != 6 {
		return "malformed-ipv6"
	}
	p.total = 40 + int(binary.BigEndian.Uint16(b[4:]))
	if p.total > len(b) {
		return "malformed-ipv6"
	}
	p.src, p.dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	p.ttl = b[7]
	chain := extensions(b[6], b[40:p.total])
	if chain.reason != "" {
		return chain.reason
	}
	p.proto, p.payload = chain.proto, chain.rest
	if chain.fragment {
		p.fragment, p.more, p.offset, p.length = true, chain.more, chain.offset, chain.length
		p.id, p.idProto = chain.id, chain.idProto
	}
	switch {
	case p.src == p.dst, p.src.IsLoopback(), p.dst.IsLoopback(), group6.Contains(p.src), p.dst.IsUnspecified(),
		p.src.IsUnspecified() && !(p.proto == protoICMPv6 && group6.Contains(p.dst)):
		return "martian"
	}
	return ""
}

// chain is what a chain of extension headers ends in.
type chain struct {
	reason   string
	proto    uint8
	rest     []byte // behind the last header that was read
	fragment bool   // a fragment header that is not atomic; then:
	more     bool
	offset   int
	length   int
	id       uint32
	idProto  uint8
}

// extensions walks a chain. next is the fixed header's next header, b what follows it.
func extensions(next uint8, b []byte) chain {
	c := chain{reason: "malformed-ipv6-extension"}
	seenFragment := false
	for count := 0; ; count++ {
		c.proto, c.rest = next, b
		switch next {
		case 0, 43, 60, 51, 44:
		default:
			c.reason = ""
			return c
		}
		if count == 6 || next == 0 && count > 0 || next == 44 && seenFragment || len(b) < 8 {
			return c
		}
		length := int(b[1])*8 + 8
		switch next {
		case 51:
			length = int(b[1])*4 + 8
		case 44:
			length = 8
		}
		if length > len(b) {
			return c
		}
		if next == 43 && b[2] == 0 && b[3] != 0 {
			c.reason = "ipv6-routing-header"
			return c
		}
		header := b
		next, b = b[0], b[length:]
		if c.proto != 44 {
			continue
		}
		seenFragment = true
		word := binary.BigEndian.Uint16(header[2:])
		c.more, c.offset, c.length = word&1 != 0, int(word&^7), len(b)
		c.id, c.idProto = binary.BigEndian.Uint32(header[4:]), next
		c.fragment = c.more || c.offset != 0
		if c.offset != 0 {
			return chain{proto: next, rest: b, fragment: true, more: c.more, offset: c.offset, length: c.length, id: c.id, idProto: next}
		}
	}
}
