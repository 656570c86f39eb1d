package main

import (
	"fmt"
	"strings"

	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/gateway/pcapng"
	"github.com/softdpu/softdpu/gateway/sim"
)

// captureText is a captured packet in a line: time, direction and port, what it is, its length, and what the
// gateway says of it.
func captureText(p *pcapng.Packet, port string) string {
	way := "in "
	if p.Direction == pcapng.Outbound {
		way = "out"
	}
	return visible(fmt.Sprintf("%s %s %s  %s, %d bytes  %s", p.Time.Format("15:04:05.000000"), way, port, packetText(p.Data), p.Length, p.Comment))
}

// packetText says what a frame is, as far as it can be read.
func packetText(frame []byte) string {
	h := sim.ReadHeaders(frame)
	vlan := ""
	if h.VLAN != 0 {
		vlan = fmt.Sprintf("vlan %d ", h.VLAN)
	}
	if h.Family == 0 {
		if h.EtherType == packet.EtherTypeARP {
			return vlan + "arp"
		}
		return vlan + fmt.Sprintf("ethertype 0x%04x", h.EtherType)
	}
	src, dst, more := h.Src.String(), h.Dst.String(), ""
	if h.Ports {
		src, dst = joinHostPort(src, h.SrcPort), joinHostPort(dst, h.DstPort)
	}
	switch {
	case icmp(&h):
		more = fmt.Sprintf(" type %d code %d", h.ICMPType, h.ICMPCode)
	case h.Whole && h.Proto == packet.ProtoTCP:
		more = " " + tcpFlags(h.TCPFlags)
	case h.Later:
		more = " fragment"
	}
	return vlan + protocol(h.Proto) + " " + src + " > " + dst + more
}

// tcpFlags names flags as tcpdump does.
func tcpFlags(flags uint8) string {
	var b strings.Builder
	for _, f := range []struct {
		bit  uint8
		name byte
	}{{packet.FIN, 'F'}, {packet.SYN, 'S'}, {packet.RST, 'R'}, {0x08, 'P'}, {packet.ACK, '.'}, {packet.URG, 'U'}} {
		if flags&f.bit != 0 {
			b.WriteByte(f.name)
		}
	}
	return "[" + b.String() + "]"
}
