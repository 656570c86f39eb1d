package gateway

import (
	"strconv"
	"strings"
)

// protocols are those that have names, as services of a policy and Suricata's EVE write them.
var protocols = []struct {
	number    uint8
	name, eve string
}{
	{1, "icmp", "ICMP"}, {6, "tcp", "TCP"}, {17, "udp", "UDP"}, {47, "gre", "GRE"}, {50, "esp", "ESP"},
	{51, "ah", "AH"}, {58, "icmpv6", "IPv6-ICMP"}, {132, "sctp", "SCTP"},
}

const (
	protoICMP   = 1
	protoICMPv6 = 58
)

// protoName names an IP protocol as policies do; one without a name is its number.
func protoName(number uint8) string {
	for _, p := range protocols {
		if p.number == number {
			return p.name
		}
	}
	return strconv.Itoa(int(number))
}

// protoEVE names an IP protocol as Suricata does; one without a name is its number in three digits.
func protoEVE(number uint8) string {
	for _, p := range protocols {
		if p.number == number {
			return p.eve
		}
	}
	s := strconv.Itoa(int(number))
	return strings.Repeat("0", 3-len(s)) + s
}

// protoNumber is the inverse of protoName.
func protoNumber(name string) (uint8, bool) {
	for _, p := range protocols {
		if p.name == name {
			return p.number, true
		}
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return uint8(n), err == nil
}

func protoNames() (names []string) {
	for _, p := range protocols {
		names = append(names, p.name)
	}
	return names
}

func isICMP(proto uint8) bool { return proto == protoICMP || proto == protoICMPv6 }
