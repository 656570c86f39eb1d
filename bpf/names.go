package bpf

import "fmt"

// reasonNames holds the names that users see; enum reason in abi.h says what each means.
var reasonNames = [XDPReasonREASON_LEN]string{
	XDPReasonREASON_NONE:                    "none",
	XDPReasonREASON_NO_RULE_MATCHED:         "no-rule-matched",
	XDPReasonREASON_DENY:                    "deny",
	XDPReasonREASON_REJECT:                  "reject",
	XDPReasonREASON_POLICY_REVOKED:          "policy-revoked",
	XDPReasonREASON_SPOOFED:                 "spoofed",
	XDPReasonREASON_FLOW_TABLE_FULL:         "flow-table-full",
	XDPReasonREASON_FLOW_GONE:               "flow-gone",
	XDPReasonREASON_NOT_SYN:                 "not-syn",
	XDPReasonREASON_TCP_STATE:               "tcp-state",
	XDPReasonREASON_TCP_WINDOW:              "tcp-window",
	XDPReasonREASON_ICMP_NO_FLOW:            "icmp-no-flow",
	XDPReasonREASON_ICMP_NO_REQUEST:         "icmp-no-request",
	XDPReasonREASON_ICMP_TYPE:               "icmp-type",
	XDPReasonREASON_WRONG_ZONE:              "wrong-zone",
	XDPReasonREASON_NOT_FOR_US:              "not-for-us",
	XDPReasonREASON_MARTIAN:                 "martian",
	XDPReasonREASON_TTL_EXPIRED:             "ttl-expired",
	XDPReasonREASON_TOO_BIG:                 "too-big",
	XDPReasonREASON_NO_ROUTE:                "no-route",
	XDPReasonREASON_ROUTE_BLOCKED:           "route-blocked",
	XDPReasonREASON_EGRESS_NOT_A_PORT:       "egress-not-a-port",
	XDPReasonREASON_NEXTHOP_TABLE_FULL:      "nexthop-table-full",
	XDPReasonREASON_ETHERTYPE:               "ethertype",
	XDPReasonREASON_VLAN_UNKNOWN:            "vlan-unknown",
	XDPReasonREASON_VLAN_OFFLOADED:          "vlan-offloaded",
	XDPReasonREASON_MALFORMED_ETHERNET:      "malformed-ethernet",
	XDPReasonREASON_MALFORMED_VLAN:          "malformed-vlan",
	XDPReasonREASON_MALFORMED_IPV4:          "malformed-ipv4",
	XDPReasonREASON_MALFORMED_IPV4CHECKSUM:  "malformed-ipv4-checksum",
	XDPReasonREASON_MALFORMED_IPV4OPTIONS:   "malformed-ipv4-options",
	XDPReasonREASON_IPV4SOURCE_ROUTE:        "ipv4-source-route",
	XDPReasonREASON_MALFORMED_IPV6:          "malformed-ipv6",
	XDPReasonREASON_MALFORMED_IPV6EXTENSION: "malformed-ipv6-extension",
	XDPReasonREASON_IPV6ROUTING_HEADER:      "ipv6-routing-header",
	XDPReasonREASON_MALFORMED_TCP:           "malformed-tcp",
	XDPReasonREASON_MALFORMED_TCP_FLAGS:     "malformed-tcp-flags",
	XDPReasonREASON_MALFORMED_UDP:           "malformed-udp",
	XDPReasonREASON_MALFORMED_ICMP:          "malformed-icmp",
	XDPReasonREASON_MALFORMED_ICMPV6:        "malformed-icmpv6",
	XDPReasonREASON_MALFORMED_TRANSPORT:     "malformed-transport",
	XDPReasonREASON_FRAGMENT_MALFORMED:      "fragment-malformed",
	XDPReasonREASON_FRAGMENT_TINY:           "fragment-tiny",
	XDPReasonREASON_FRAGMENT_OVERLAP:        "fragment-overlap",
	XDPReasonREASON_FRAGMENT_NO_FIRST:       "fragment-no-first",
	XDPReasonREASON_FRAGMENT_TOO_MANY:       "fragment-too-many",
	XDPReasonREASON_KERNEL_BYPASS:           "kernel-bypass",
	XDPReasonREASON_GENERATION_ABSENT:       "generation-absent",
	XDPReasonREASON_INTERNAL:                "internal",
	XDPReasonREASON_EGRESS_DOWN:             "egress-down",
	XDPReasonREASON_WORKER_FULL:             "worker-full",
	XDPReasonREASON_WORKER_ABSENT:           "worker-absent",
	XDPReasonREASON_EGRESS_FULL:             "egress-full",
	XDPReasonREASON_NAT_EXHAUSTED:           "nat-exhausted",
	XDPReasonREASON_NAT_CONFLICT:            "nat-conflict",
	XDPReasonREASON_NAT_NO_ADDRESS:          "nat-no-address",
	XDPReasonREASON_NAT_TO_HOST:             "nat-to-host",
	XDPReasonREASON_NAT_UNTRANSLATED:        "nat-untranslated",
	XDPReasonREASON_NAT_SOURCE_LIMIT:        "nat-source-limit",
	XDPReasonREASON_PIPE_DROP:               "pipe-drop",
	XDPReasonREASON_PIPE_TTL:                "pipe-ttl",
}

// String returns the reason's kebab-case name, as in events, `drops` and `sim`.
func (r XDPReason) String() string { return name(reasonNames[:], uint32(r)) }

var passNames = [XDPPassCausePASS_LEN]string{
	XDPPassCausePASS_HOST:      "host",
	XDPPassCausePASS_ARP:       "arp",
	XDPPassCausePASS_ND:        "neighbour-discovery",
	XDPPassCausePASS_NEIGHBOUR: "neighbour-unknown",
	XDPPassCausePASS_FRAGMENT:  "fragmentation-needed",
}

// String returns the kebab-case name of why a packet went to the kernel.
func (c XDPPassCause) String() string { return name(passNames[:], uint32(c)) }

var stateNames = [XDPFlowStateFLOW_STATE_LEN]string{
	XDPFlowStateFLOW_FREE:         "free",
	XDPFlowStateFLOW_SYN_SENT:     "syn-sent",
	XDPFlowStateFLOW_SYN_RECEIVED: "syn-received",
	XDPFlowStateFLOW_NEW:          "new",
	XDPFlowStateFLOW_ESTABLISHED:  "established",
	XDPFlowStateFLOW_FIN_WAIT:     "fin-wait",
	XDPFlowStateFLOW_TIME_WAIT:    "time-wait",
	XDPFlowStateFLOW_CLOSED:       "closed",
	XDPFlowStateFLOW_REPLIED:      "replied",
	XDPFlowStateFLOW_ALIAS:        "alias",
	XDPFlowStateFLOW_MAPPING:      "mapping",
}

// String returns the kebab-case name of a flow's state.
func (s XDPFlowState) String() string { return name(stateNames[:], uint32(s)) }

func name(names []string, i uint32) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown-%d", i)
}
