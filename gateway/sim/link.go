package sim

import (
	"encoding/binary"
	"fmt"
)

// LinkType is what stands in front of the packets of a capture (https://www.tcpdump.org/linktypes.html).
type LinkType uint32

const (
	LinkNull     LinkType = 0 // BSD loopback: protocol family in the byte order of the capturing host
	LinkEthernet LinkType = 1
	LinkPPP      LinkType = 9
	linkRawBSD   LinkType = 12 // raw IP, as OpenBSD and others number it
	linkRawOther LinkType = 14
	LinkPPPHDLC  LinkType = 50
	LinkRaw      LinkType = 101
	LinkLoop     LinkType = 108 // OpenBSD loopback: protocol family in network order
	LinkCooked   LinkType = 113 // Linux "any" device, version 1
	LinkIPv4     LinkType = 228
	LinkIPv6     LinkType = 229
	LinkCooked2  LinkType = 276
)

var linkNames = map[LinkType]string{
	LinkNull: "NULL", LinkEthernet: "EN10MB (Ethernet)", LinkPPP: "PPP", linkRawBSD: "RAW", linkRawOther: "RAW",
	LinkPPPHDLC: "PPP_HDLC", LinkRaw: "RAW", LinkLoop: "LOOP", LinkCooked: "LINUX_SLL", LinkIPv4: "IPV4",
	LinkIPv6: "IPV6", LinkCooked2: "LINUX_SLL2",
}

// foreignLinks names what people are likely to meet and what is not supported.
var foreignLinks = map[LinkType]string{
	3: "AX25", 6: "IEEE802_5 (token ring)", 7: "ARCNET", 8: "SLIP", 10: "FDDI", 51: "PPP_ETHER (PPPoE)", 99: "SYMANTEC", 104: "C_HDLC (Cisco)",
	105: "IEEE802_11 (Wi-Fi)", 107: "FRELAY (frame relay)", 117: "PFLOG", 119: "IEEE802_11_PRISM", 127: "IEEE802_11_RADIOTAP (Wi-Fi)",
	187: "BLUETOOTH_HCI_H4", 192: "PPI", 195: "IEEE802_15_4", 220: "USB_LINUX_MMAPPED", 227: "CAN_SOCKETCAN", 239: "NFLOG",
	249: "USBPCAP", 252: "WIRESHARK_UPPER_PDU", 253: "NETLINK", 274: "ETHERNET_MPACKET",
}

// String returns the link type's name and number.
func (l LinkType) String() string {
	name := linkNames[l]
	if name == "" {
		name = foreignLinks[l]
	}
	if name == "" {
		return fmt.Sprintf("%d", uint32(l))
	}
	return fmt.Sprintf("%d, %s", uint32(l), name)
}

func (l LinkType) check() error {
	if linkNames[l] == "" {
		return fmt.Errorf("link type %s is not supported: Ethernet, raw IP, NULL/loopback, PPP and Linux cooked are", l)
	}
	return nil
}

// Ethernet types that a converted frame may get.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	etherPPP  = 0x880b
	// etherNone is what a frame gets whose link header names a protocol that Ethernet has no number for.
	etherNone = 0xffff
)

// MACs of frames that had none.
var (
	sourceMAC      = [6]byte{0x02, 0x5d, 0, 0, 0xff, 1}
	destinationMAC = [6]byte{0x02, 0x5d, 0, 0, 0xff, 2}
)

// Ethernet returns the packet as an Ethernet frame, built in buf unless it is one already, and how many
// bytes stand in front of the packet in the frame more than in the capture. ok is false if the link
// header is cut.
func (l LinkType) Ethernet(data, buf []byte) (frame []byte, more int, ok bool) {
	if l == LinkEthernet {
		return data, 0, true
	}
	source := sourceMAC
	proto, skip := uint16(etherNone), 0
	switch l {
	case LinkNull, LinkLoop:
		if skip = 4; len(data) >= skip {
			proto = familyType(l, data)
		}
	case LinkPPP, LinkPPPHDLC:
		proto, skip = pppType(data)
	case LinkCooked:
		if skip = 16; len(data) >= skip {
			proto = binary.BigEndian.Uint16(data[14:])
			cookedSource(&source, int(binary.BigEndian.Uint16(data[4:])), data[6:12])
		}
	case LinkCooked2:
		if skip = 20; len(data) >= skip {
			proto = binary.BigEndian.Uint16(data)
			cookedSource(&source, int(data[11]), data[12:18])
		}
	default: // raw IP
		if len(data) > 0 {
			proto = map[byte]uint16{4: etherIPv4, 6: etherIPv6}[data[0]>>4]
		}
		if proto == 0 {
			proto = etherNone
		}
	}
	if skip > len(data) || len(data) == 0 {
		return nil, 0, false
	}
	frame = append(buf[:0], destinationMAC[:]...)
	frame = append(frame, source[:]...)
	frame = binary.BigEndian.AppendUint16(frame, proto)
	return append(frame, data[skip:]...), ethernetLen - skip, true
}

// familyType reads the address family in front of a loopback packet. AF_INET is 2 everywhere, AF_INET6
// is not.
func familyType(l LinkType, data []byte) uint16 {
	family := binary.BigEndian.Uint32(data)
	if l == LinkNull && family > 0xffff {
		family = binary.LittleEndian.Uint32(data)
	}
	switch family {
	case 2:
		return etherIPv4
	case 10, 24, 28, 30:
		return etherIPv6
	}
	return etherNone
}

// pppType reads a PPP header: address and control unless they are left out, and a protocol of one or
// two bytes. What is not IP stays a PPP frame.
func pppType(data []byte) (proto uint16, skip int) {
	if len(data) >= 2 && data[0] == 0xff && data[1] == 0x03 {
		skip = 2
	}
	if len(data) <= skip {
		return etherPPP, skip + 1
	}
	number := uint16(data[skip])
	header := 1
	if number&1 == 0 { // an odd first byte is a whole, compressed protocol
		if len(data) < skip+2 {
			return etherPPP, skip + 2
		}
		number, header = binary.BigEndian.Uint16(data[skip:]), 2
	}
	switch number {
	case 0x0021:
		return etherIPv4, skip + header
	case 0x0057:
		return etherIPv6, skip + header
	}
	return etherPPP, skip
}

// cookedSource takes the sender's address that a cooked capture kept, if it is one of a station.
func cookedSource(to *[6]byte, length int, address []byte) {
	if length == 6 && address[0]&1 == 0 && [6]byte(address) != [6]byte{} {
		*to = [6]byte(address)
	}
}
