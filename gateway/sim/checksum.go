package sim

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/dataplane/packet"
)

// wrongChecksums names the checksums of a frame that are not right: "ipv4-checksum", "tcp-checksum",
// "udp-checksum", "icmp-checksum" or "icmpv6-checksum". Captures taken at the sender have such where the
// device was to fill them in. Those of fragments and of packets that were cut are not looked at.
func wrongChecksums(frame []byte, h *Headers) (wrong []string) {
	if h.Family == 4 && h.L4 <= len(frame) && packet.Checksum(frame[h.L3:h.L4], 0) != 0 {
		wrong = append(wrong, "ipv4-checksum")
	}
	end := h.L3 + h.Length
	if !h.Whole || h.Fragment || end > len(frame) || end < h.L4+transportLen[h.Proto] {
		return wrong
	}
	segment := frame[h.L4:end]
	name, sum := "", uint32(0)
	switch h.Proto {
	case packet.ProtoTCP:
		name = "tcp-checksum"
	case packet.ProtoUDP:
		if binary.BigEndian.Uint16(segment[6:]) == 0 && h.Family == 4 {
			return wrong // the sender made none
		}
		if n := int(binary.BigEndian.Uint16(segment[4:])); n >= 8 && n < len(segment) {
			segment = segment[:n]
		}
		name = "udp-checksum"
	case packet.ProtoICMPv6:
		name = "icmpv6-checksum"
	case packet.ProtoICMP:
		name = "icmp-checksum"
	default:
		return wrong
	}
	if h.Proto != packet.ProtoICMP {
		src, dst := address(h.Src), address(h.Dst)
		sum = packet.PseudoSum(h.Family, &src, &dst, h.Proto, len(segment))
	}
	if packet.Checksum(segment, sum) != 0 {
		wrong = append(wrong, name)
	}
	return wrong
}
