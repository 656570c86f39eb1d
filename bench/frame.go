package bench

import (
	"encoding/binary"
	"net/netip"
)

// conn is one connection of a trace, from the side that opens it.
type conn struct {
	src, dst     netip.Addr
	sport, dport uint16
	tcp          bool
}

// frameSpec says how a packet of a connection looks in a frame.
type frameSpec struct {
	dstMAC, srcMAC [6]byte
	vlan           uint16 // 0 = untagged
	flags          byte   // TCP
	seq, ack       uint32 // TCP
	id             uint16 // IPv4
	fragment       uint16 // IPv4: flags and offset field
	badChecksum    bool   // IPv4: a wrong header checksum
	proto          byte   // of a packet that is neither TCP nor UDP, and holds zeros; 0 = as the connection says
	partial        bool   // TCP, UDP: the checksum is the bare pseudo-header sum, as stacks leave it to devices
	size           int    // of the frame in bytes, the tag included; headers must fit
}

const (
	flagSYN = 0x02
	flagACK = 0x10
	flagPSH = 0x08
)

func (c conn) reply() conn {
	c.src, c.dst, c.sport, c.dport = c.dst, c.src, c.dport, c.sport
	return c
}

// appendFrame appends the frame of one packet, all of its checksums right unless spec says otherwise.
// It is written by hand, and not with gopacket, because a trace has a million of them.
func appendFrame(b []byte, c conn, s frameSpec) []byte {
	start := len(b)
	b = append(b, make([]byte, s.size)...)
	f := b[start:]
	copy(f[0:6], s.dstMAC[:])
	copy(f[6:12], s.srcMAC[:])
	at := 12
	if s.vlan != 0 {
		binary.BigEndian.PutUint16(f[at:], 0x8100)
		binary.BigEndian.PutUint16(f[at+2:], s.vlan)
		at += 4
	}
	proto := byte(17)
	if c.tcp {
		proto = 6
	}
	if s.proto != 0 {
		proto = s.proto
	}
	var ip, transport []byte
	if c.src.Is4() {
		binary.BigEndian.PutUint16(f[at:], 0x0800)
		ip = f[at+2:]
		ip[0] = 0x45
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[4:], s.id)
		binary.BigEndian.PutUint16(ip[6:], s.fragment)
		ip[8], ip[9] = 64, proto
		src, dst := c.src.As4(), c.dst.As4()
		copy(ip[12:], src[:])
		copy(ip[16:], dst[:])
		check := ^sum(0, ip[:20])
		if s.badChecksum {
			check ^= 0x5555
		}
		binary.BigEndian.PutUint16(ip[10:], check)
		transport = ip[20:]
	} else {
		binary.BigEndian.PutUint16(f[at:], 0x86dd)
		ip = f[at+2:]
		ip[0] = 0x60
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
		ip[6], ip[7] = proto, 64
		src, dst := c.src.As16(), c.dst.As16()
		copy(ip[8:], src[:])
		copy(ip[24:], dst[:])
		transport = ip[40:]
	}
	if s.fragment&0x1fff != 0 || s.proto != 0 {
		return b // a later fragment has no transport header
	}
	binary.BigEndian.PutUint16(transport[0:], c.sport)
	binary.BigEndian.PutUint16(transport[2:], c.dport)
	check := transport[6:]
	if c.tcp {
		binary.BigEndian.PutUint32(transport[4:], s.seq)
		binary.BigEndian.PutUint32(transport[8:], s.ack)
		transport[12], transport[13] = 5<<4, s.flags
		binary.BigEndian.PutUint16(transport[14:], 65535)
		check = transport[16:]
	} else {
		binary.BigEndian.PutUint16(transport[4:], uint16(len(transport)))
	}
	pseudo := uint32(proto) + uint32(len(transport))
	if c.src.Is4() {
		pseudo = uint32(sum(pseudo, ip[12:20]))
	} else {
		pseudo = uint32(sum(pseudo, ip[8:40]))
	}
	if s.partial {
		binary.BigEndian.PutUint16(check, sum(pseudo, nil))
		return b
	}
	binary.BigEndian.PutUint16(check, ^sum(pseudo, transport))
	return b
}

// sum adds b's 16-bit words to start in one's complement; an odd last byte counts as the upper one.
func sum(start uint32, b []byte) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		start += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		start += uint32(b[0]) << 8
	}
	for start > 0xffff {
		start = start>>16 + start&0xffff
	}
	return uint16(start)
}
