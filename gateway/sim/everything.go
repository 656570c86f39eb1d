package sim

import (
	"fmt"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
)

// everythingText is the policy of a simulation that was given none.
const everythingText = `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}
rules:
  - {name: allow-everything, from: any, to: any, action: allow, midstream: true}
`

// EverythingFile is the name of the built-in policy of Everything in messages.
const EverythingFile = "built-in"

// Everything returns the policy that allows everything between the ports lan and wan, whatever its
// VLAN. It picks connections up that are under way. Use it with Config.Tolerant.
func Everything() (*firewall.Compiled, error) {
	policy, err := firewall.Parse([]firewall.Source{{Name: EverythingFile, Text: []byte(everythingText)}}, nil)
	if err != nil {
		return nil, fmt.Errorf("make built-in policy: %w", err)
	}
	compiled, err := firewall.Compile(policy, firewall.CompileOptions{})
	if err != nil {
		return nil, fmt.Errorf("make built-in policy: %w", err)
	}
	untagged := compiled.Ports
	for vlan := uint16(1); vlan <= 4094; vlan++ {
		for _, z := range untagged {
			compiled.Ports = append(compiled.Ports, firewall.PortZone{Port: z.Port, VLAN: vlan, Zone: z.Zone})
		}
	}
	return compiled, nil
}

// intolerable are the reasons that say that a packet could not be read, or that something is wrong
// with the gateway and not with the packet.
var intolerable = map[bpf.XDPReason]bool{
	bpf.XDPReasonREASON_NONE:                    true,
	bpf.XDPReasonREASON_MALFORMED_ETHERNET:      true,
	bpf.XDPReasonREASON_MALFORMED_VLAN:          true,
	bpf.XDPReasonREASON_MALFORMED_IPV4:          true,
	bpf.XDPReasonREASON_MALFORMED_IPV4OPTIONS:   true,
	bpf.XDPReasonREASON_MALFORMED_IPV6:          true,
	bpf.XDPReasonREASON_MALFORMED_IPV6EXTENSION: true,
	bpf.XDPReasonREASON_MALFORMED_TCP:           true,
	bpf.XDPReasonREASON_MALFORMED_UDP:           true,
	bpf.XDPReasonREASON_MALFORMED_ICMP:          true,
	bpf.XDPReasonREASON_MALFORMED_ICMPV6:        true,
	bpf.XDPReasonREASON_MALFORMED_TRANSPORT:     true,
	bpf.XDPReasonREASON_FRAGMENT_MALFORMED:      true,
	bpf.XDPReasonREASON_KERNEL_BYPASS:           true,
	bpf.XDPReasonREASON_GENERATION_ABSENT:       true,
	bpf.XDPReasonREASON_INTERNAL:                true,
	bpf.XDPReasonREASON_EGRESS_DOWN:             true,
}

// tolerable reports whether a tolerant simulation allows what was refused for this reason.
func tolerable(r bpf.XDPReason) bool { return !intolerable[r] }
