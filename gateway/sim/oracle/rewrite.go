package oracle

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

const (
	protoDCCP    = 33
	protoUDPLite = 136
)

// leaving is what a packet of a flow is to look like: addresses and ports in its own direction.
type leaving struct {
	key
	source, destination bool // address or port becomes another
}

// leaves says what a packet of the flow looks like on the other side. Came is its key as it arrived.
func (f *flow) leaves(came key, fromOpener bool) leaving {
	l := leaving{key: came}
	if f.outer == nil {
		return l
	}
	if l.key = *f.outer; !fromOpener {
		l.key = f.original.reverse()
	}
	l.source = l.src != came.src || l.sport != came.sport
	l.destination = l.dst != came.dst || l.dport != came.dport
	return l
}

// rewritten returns the frame with the addresses and ports of l, every checksum made anew but those of a
// packet that arrived with a wrong one: it keeps what it was wrong by. If it is to be carried on by the kernel,
// which takes no packet from an address of its own, the source stays; inside an error all is written.
func (p *packet) rewritten(l leaving, later, kernel bool) []byte {
	out := slices.Clone(p.frame)
	if !l.source && !l.destination {
		return out
	}
	ip := out[p.ip : p.ip+p.total]
	l4 := ip[p.total-len(p.payload):]
	outside := l
	if p.icmpKind() == icmpError && !later {
		outside.src, outside.dst = p.src, p.dst
		if l.source {
			outside.src = l.src
		}
		if l.destination {
			outside.dst = l.dst
		}
	}
	if kernel {
		outside.src, outside.sport = p.src, p.about.sport
	}
	sum := summed(p.proto, l4, false)
	if later {
		sum = nil
	}
	keep(sum, p.is4(), ip, l4, func() {
		writeAddresses(ip, outside.src, outside.dst)
		switch {
		case later:
		case p.icmpKind() == icmpError:
			requote(l4[8:], p.is4(), l)
		default:
			writePorts(p.proto, l4, outside.key)
		}
	})
	return out
}

// requote rewrites the packet inside an ICMP error, which travels the other way.
func requote(inner []byte, is4 bool, l leaving) {
	proto, rest := uint8(0), []byte(nil)
	if is4 {
		proto, rest = inner[9], inner[int(inner[0]&15)*4:]
	} else {
		c := extensions(inner[6], inner[40:])
		proto, rest = c.proto, c.rest
	}
	ports := l.reverse()
	keep(summed(proto, rest, true), is4, inner, rest, func() {
		writeAddresses(inner, ports.src, ports.dst)
		writePorts(proto, rest, ports)
	})
}

// writeAddresses writes both into an IP header. That of IPv4 has its checksum made again, which keeps what
// it was wrong by inside an error.
func writeAddresses(ip []byte, src, dst netip.Addr) {
	if src.Is6() {
		copy(ip[8:], src.AsSlice())
		copy(ip[24:], dst.AsSlice())
		return
	}
	header := ip[:int(ip[0]&15)*4]
	before := residue(header)
	copy(header[12:], src.AsSlice())
	copy(header[16:], dst.AsSlice())
	settle(header[10:12], before, header)
}

// writePorts writes ports, or an ICMP query's or reply's identifier, which is the requester's port.
func writePorts(proto uint8, l4 []byte, k key) {
	switch proto {
	case protoTCP, protoUDP:
		binary.BigEndian.PutUint16(l4, k.sport)
		binary.BigEndian.PutUint16(l4[2:], k.dport)
	case protoICMP, protoICMPv6:
		id := k.sport
		if icmpKinds[[2]uint8{proto, l4[0]}] == icmpReply {
			id = k.dport
		}
		binary.BigEndian.PutUint16(l4[4:], id)
	}
}

// checksum is where a transport header has one, and what it is over.
type checksum struct {
	at     int
	pseudo bool // the addresses too
	udp    bool // 0 is none, and is written as 0xffff
}

// summed returns the checksum that a change of addresses or ports is to be made good in; nil if there is none.
// Quoted headers may be cut.
func summed(proto uint8, l4 []byte, quoted bool) *checksum {
	switch proto {
	case protoTCP:
		if len(l4) >= 20 {
			return &checksum{at: 16, pseudo: true}
		}
	case protoUDP:
		if len(l4) >= 8 && (l4[6] != 0 || l4[7] != 0) {
			return &checksum{at: 6, pseudo: true, udp: true}
		}
	case protoICMP:
		return &checksum{at: 2}
	case protoICMPv6:
		return &checksum{at: 2, pseudo: true}
	case protoUDPLite:
		if len(l4) >= 8 && !quoted {
			return &checksum{at: 6, pseudo: true, udp: true}
		}
	case protoDCCP:
		if len(l4) >= 8 && !quoted {
			return &checksum{at: 6, pseudo: true}
		}
	}
	return nil
}

// keep makes a change to a packet and then its transport checksum right, or as wrong as it was.
func keep(c *checksum, is4 bool, ip, l4 []byte, change func()) {
	if c == nil {
		change()
		return
	}
	addresses := ip[12:20]
	if !is4 {
		addresses = ip[8:40]
	}
	if !c.pseudo {
		addresses = nil
	}
	before := residue(addresses, l4)
	change()
	field := l4[c.at : c.at+2]
	settle(field, before, addresses, l4)
	if c.udp && field[0] == 0 && field[1] == 0 {
		field[0], field[1] = 0xff, 0xff
	}
}

// settle writes the checksum with which the parts, field among them, have this residue.
func settle(field []byte, want int, parts ...[]byte) {
	field[0], field[1] = 0, 0
	binary.BigEndian.PutUint16(field, uint16((want-residue(parts...)+0xffff)%0xffff))
}

// residue is the ones' complement sum of parts, from 0 to 0xfffe; 0 where a checksum is right.
func residue(parts ...[]byte) int {
	total := 0
	for _, b := range parts {
		for i, x := range b {
			if i%2 == 0 {
				total += int(x) << 8
			} else {
				total += int(x)
			}
		}
	}
	return total % 0xffff
}
