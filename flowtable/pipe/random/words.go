package random

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// words are what a parser is to find.
func (d *draft) words(line *pipe.Pipeline, w written) (words [bpf.PipesPipeWordPIPE_WORDS]uint32) {
	has := uint32(0)
	set := func(name string, v ...uint32) { copy(words[pipe.LookupField(name).Word:], v) }
	set("port", d.port)
	set("meta.random", d.random)
	set("meta.length", uint32(len(w.frame)))
	set("eth.src", d.src...)
	set("eth.dst", d.dst...)
	set("eth.type", d.innerType())
	set("vlan.count", uint32(len(d.tags)))
	if len(d.tags) > 0 {
		has |= hasVLAN0
		set("vlan.0.id", d.tags[0][0])
		set("vlan.0.pcp", d.tags[0][1])
	}
	if len(d.tags) > 1 {
		has |= hasVLAN1
		set("vlan.1.id", d.tags[1][0])
		set("vlan.1.pcp", d.tags[1][1])
	}
	if d.family != 0 {
		has |= hasIP
		set("ip.proto", d.proto)
		set("ip.ttl", d.ttl)
		set("ip.dscp", d.dscp)
		set("ip.ecn", d.ecn)
		set("ip.length", uint32(len(w.frame)-w.l3))
		set("ip.fragment", d.fragment)
		if d.family == 6 || !d.damaged {
			has |= hasChecksum
		}
		if w.l4 >= 0 {
			has |= d.transportWords(set)
		}
	}
	switch d.family {
	case 4:
		has |= hasIPv4
		set("ip.id", d.id)
		set("ip.df", d.df)
		set("ipv4.src", d.source[0])
		set("ipv4.dst", d.target[0])
	case 6:
		has |= hasIPv6
		set("ipv6.label", d.label)
		set("ipv6.src", d.source[:]...)
		set("ipv6.dst", d.target[:]...)
	}
	for i, r := range line.Raws {
		if at, ok := w.raw(r); ok && at+4 <= len(w.frame) {
			has |= hasRaw0 << i
			words[int(bpf.PipesPipeWordPIPE_RAW0)+i] = binary.BigEndian.Uint32(w.frame[at:])
		}
	}
	words[bpf.PipesPipeWordPIPE_HAS] = has
	return words
}

func (d *draft) transportWords(set func(string, ...uint32)) (has uint32) {
	switch d.proto {
	case protoTCP:
		set("tcp.flags", d.flags)
		set("tcp.seq", d.seq)
		set("tcp.ack", d.ack)
		has = hasTCP | hasPorts
	case protoUDP:
		has = hasUDP | hasPorts
		if d.dport == vxlanPort && len(d.payload) >= 8 && d.payload[0]&8 != 0 {
			has |= hasVXLAN
			set("vxlan.vni", binary.BigEndian.Uint32(d.payload[4:])>>8)
		}
	case protoICMP, protoICMPv6:
		has = hasICMP
		set("icmp.type", d.kind)
		set("icmp.code", d.code)
		if d.echoes() {
			set("icmp.ident", d.echo)
		}
	case protoESP:
		has = hasESP
		set("esp.spi", d.spi)
		set("esp.seq", d.number)
	}
	if has&hasPorts != 0 {
		set("l4.sport", d.sport)
		set("l4.dport", d.dport)
	}
	return has
}
