package flowtable

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// failureReasons names each way in which a frame can be malformed as users know it.
var failureReasons = [packet.FailureLen]bpf.XDPReason{
	packet.OK:                bpf.XDPReasonREASON_NONE,
	packet.BadEthernet:       bpf.XDPReasonREASON_MALFORMED_ETHERNET,
	packet.BadVLAN:           bpf.XDPReasonREASON_MALFORMED_VLAN,
	packet.BadIPv4:           bpf.XDPReasonREASON_MALFORMED_IPV4,
	packet.BadIPv4Checksum:   bpf.XDPReasonREASON_MALFORMED_IPV4CHECKSUM,
	packet.BadIPv4Options:    bpf.XDPReasonREASON_MALFORMED_IPV4OPTIONS,
	packet.IPv4SourceRoute:   bpf.XDPReasonREASON_IPV4SOURCE_ROUTE,
	packet.BadIPv6:           bpf.XDPReasonREASON_MALFORMED_IPV6,
	packet.BadIPv6Extension:  bpf.XDPReasonREASON_MALFORMED_IPV6EXTENSION,
	packet.IPv6RoutingHeader: bpf.XDPReasonREASON_IPV6ROUTING_HEADER,
	packet.Martian:           bpf.XDPReasonREASON_MARTIAN,
	packet.BadFragment:       bpf.XDPReasonREASON_FRAGMENT_MALFORMED,
	packet.TinyFragment:      bpf.XDPReasonREASON_FRAGMENT_TINY,
	packet.BadTCP:            bpf.XDPReasonREASON_MALFORMED_TCP,
	packet.BadTCPFlags:       bpf.XDPReasonREASON_MALFORMED_TCP_FLAGS,
	packet.BadUDP:            bpf.XDPReasonREASON_MALFORMED_UDP,
	packet.BadICMP:           bpf.XDPReasonREASON_MALFORMED_ICMP,
	packet.BadICMPv6:         bpf.XDPReasonREASON_MALFORMED_ICMPV6,
	packet.BadTransport:      bpf.XDPReasonREASON_MALFORMED_TRANSPORT,
	packet.ForeignICMP:       bpf.XDPReasonREASON_ICMP_TYPE,
}

// refusals names what the classifier's actions other than ACTION_ALLOW do to a packet.
var refusals = [...]bpf.XDPReason{
	bpf.XDPActionACTION_NONE:    bpf.XDPReasonREASON_NO_RULE_MATCHED,
	bpf.XDPActionACTION_ALLOW:   bpf.XDPReasonREASON_NONE,
	bpf.XDPActionACTION_DENY:    bpf.XDPReasonREASON_DENY,
	bpf.XDPActionACTION_REJECT:  bpf.XDPReasonREASON_REJECT,
	bpf.XDPActionACTION_SPOOFED: bpf.XDPReasonREASON_SPOOFED,
}

// refusal returns why a packet with this action is refused, REASON_NONE if it is allowed.
func refusal(a bpf.XDPAction) bpf.XDPReason {
	if int(a) < len(refusals) {
		return refusals[a]
	}
	return bpf.XDPReasonREASON_NO_RULE_MATCHED
}

func actionOf(verdict uint32) bpf.XDPAction {
	return bpf.XDPAction(verdict >> verdictActionShift & verdictActionMask)
}
