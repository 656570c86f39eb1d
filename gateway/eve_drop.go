package gateway

import (
	"encoding/binary"
	"net"

	"github.com/softdpu/softdpu/bpf"
)

// untold are the reasons whose drops are no events of their own: a rule's `log` writes those that it
// gave, and those before the running generation are only counted.
var untold = map[bpf.XDPReason]string{
	bpf.XDPReasonREASON_DENY:              "rules with log: true write theirs",
	bpf.XDPReasonREASON_REJECT:            "rules with log: true write theirs",
	bpf.XDPReasonREASON_VLAN_OFFLOADED:    "it is only counted: softdpu drops",
	bpf.XDPReasonREASON_GENERATION_ABSENT: "it is only counted: softdpu drops",
}

// allDrops are all reasons whose drops can be events, as bits.
func allDrops() (mask uint64) {
	for r := bpf.XDPReasonREASON_NONE + 1; r < bpf.XDPReasonREASON_LEN; r++ {
		if untold[r] == "" {
			mask |= 1 << r
		}
	}
	return mask
}

// dropEvent translates a drop that no rule decided. It says as much of the packet as was read before it
// was dropped. An ICMP error that quotes a packet has the addresses and ports of the flow it speaks of.
func (r *Ruleset) dropEvent(e *bpf.XDPEvent, ports []string, clock eveClock) eveEvent {
	out := eveEvent{
		Timestamp: clock.text(e.Tick), EventType: eveDropType, Drop: &eveDrop{Len: e.Count[0].Bytes},
		Softdpu: eveRule{Event: "drop", Reason: bpf.XDPReason(e.Reason).String(), From: r.zoneName(e.From), To: r.zoneName(e.To)},
	}
	if e.Rule != 0 { // the packet came as far as a rule, or its flow has one
		info := r.rule(e.Rule)
		out.Softdpu.Rule, out.Softdpu.File, out.Softdpu.Line = info.Name, info.File, info.Line
	}
	if i := int(e.Port) - 1; i >= 0 && i < len(ports) {
		if e.Guard != 0 {
			out.OutIface = ports[i]
		} else {
			out.InIface = ports[i]
		}
	}
	if e.Vlan != 0 {
		out.VLAN = []uint16{e.Vlan}
	}
	if e.Ethernet != [14]uint8{} {
		out.Ether = &eveEther{
			DestMAC: net.HardwareAddr(e.Ethernet[:6]).String(), SrcMAC: net.HardwareAddr(e.Ethernet[6:12]).String(),
			Type: binary.BigEndian.Uint16(e.Ethernet[12:]),
		}
	}
	if e.Family == 0 || e.Src == [4]uint32{} && e.Dst == [4]uint32{} {
		return out // not IP, or its header is not to be read
	}
	out.SrcIP, out.DestIP = eventAddress(e.Family, &e.Src), eventAddress(e.Family, &e.Dst)
	if e.Proto == 0 {
		return out
	}
	out.Proto = protoEVE(e.Proto)
	kind := bpf.XDPPacketKind(e.Packet)
	sport, dport := hostOrder(e.Sport), hostOrder(e.Dport)
	switch hasPorts := e.Proto == protoTCP || e.Proto == protoUDP; {
	case hasPorts && (sport != 0 || dport != 0):
		out.ports(e.Proto, sport, dport, nil)
		if kind == bpf.XDPPacketKindPACKET_ERROR {
			errorType, code := uint8(e.Icmp>>8), uint8(e.Icmp)
			out.ICMPType, out.ICMPCode = &errorType, &code
		}
	case hasPorts: // a later fragment, or a header cut short
	case isICMP(e.Proto):
		// type 0 is a reply, or was not read
		if kind == bpf.XDPPacketKindPACKET_REPLY || kind != bpf.XDPPacketKindPACKET_ERROR && e.Icmp != 0 {
			out.icmp(e.Icmp)
		}
	default:
		out.CommunityID = communityID(e.Proto, out.SrcIP, out.DestIP, 0, 0)
	}
	return out
}
