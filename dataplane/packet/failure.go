package packet

import "fmt"

// Failure is why a frame is not well formed. flowtable maps each to the reason that users see.
type Failure uint8

const (
	OK Failure = iota

	BadEthernet       // shorter than an Ethernet header
	BadVLAN           // a tag cut short, or a third tag
	BadIPv4           // version, header length or total length
	BadIPv4Checksum   // header checksum
	BadIPv4Options    // an option that does not fit
	IPv4SourceRoute   // loose or strict source route
	BadIPv6           // version or payload length
	BadIPv6Extension  // too many, out of place, or not inside the payload
	IPv6RoutingHeader // type 0 with segments left
	Martian           // an address that may not appear where it stands
	BadFragment       // length not a multiple of 8, empty, or end beyond 65,535
	TinyFragment      // first fragment without a whole transport header, or TCP at offset 8
	BadTCP            // header length
	BadTCPFlags       // a combination that no TCP sends
	BadUDP            // header or length field
	BadICMP           // header, or the packet inside an error
	BadICMPv6         // header, or the packet inside an error
	BadTransport      // ESP, AH, GRE or SCTP header cut short
	ForeignICMP       // ICMP over IPv6 or ICMPv6 over IPv4

	FailureLen // number of values
)

var failureNames = [FailureLen]string{
	OK:                "ok",
	BadEthernet:       "ethernet",
	BadVLAN:           "vlan",
	BadIPv4:           "ipv4",
	BadIPv4Checksum:   "ipv4-checksum",
	BadIPv4Options:    "ipv4-options",
	IPv4SourceRoute:   "ipv4-source-route",
	BadIPv6:           "ipv6",
	BadIPv6Extension:  "ipv6-extension",
	IPv6RoutingHeader: "ipv6-routing-header",
	Martian:           "martian",
	BadFragment:       "fragment",
	TinyFragment:      "fragment-tiny",
	BadTCP:            "tcp",
	BadTCPFlags:       "tcp-flags",
	BadUDP:            "udp",
	BadICMP:           "icmp",
	BadICMPv6:         "icmpv6",
	BadTransport:      "transport",
	ForeignICMP:       "foreign-icmp",
}

// String returns the failure's short name.
func (f Failure) String() string {
	if f < FailureLen {
		return failureNames[f]
	}
	return fmt.Sprintf("unknown-%d", uint8(f))
}
