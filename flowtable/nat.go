package flowtable

import (
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// NAT is what a policy translates: two ACL pipes with actions. docs/PACKET-PATH.md, section 15. It is
// immutable.
type NAT struct {
	// Destinations and Sources answer with the id of a rule; nil: no rule.
	Destinations, Sources *ACL
	Rules                 []bpf.XDPNatRule   // by id, from 1; [0] is none
	Buckets               []uint16           // of consistent hashing: indices of Servers
	Servers               []bpf.XDPNatServer // of all rules
	Ports                 []NATPorts         // blocks of nat_ports, one behind the other
}

// NATPorts is a block of elements of nat_ports with the same ports to choose from.
type NATPorts struct {
	Elements    uint32
	First, Last uint16 // allowed; {0, 65535} are all
}

// Bitmaps returns how many elements nat_ports has.
func (n *NAT) Bitmaps() int {
	count := 0
	for i := range n.Ports {
		count += int(n.Ports[i].Elements)
	}
	return count
}

// allowed returns the ports to choose from, by element of nat_ports. A nil NAT has none.
func (n *NAT) allowed() (ports []U16Range) {
	if n == nil {
		return nil
	}
	for _, block := range n.Ports {
		for range block.Elements {
			ports = append(ports, U16Range{block.First, block.Last})
		}
	}
	return ports
}

// Flags of a nat rule (abi.h: NAT_*).
const (
	natHairpin       = 0x01
	natByConnection  = 0x02
	natMapping       = 0x04
	natFilterAny     = 0x08
	natFilterAddress = 0x10
)

// Maps reports whether some rule has endpoint-independent mappings, and Filters whether it lets others in by
// them than the other ends of flows. A nil NAT has no rule.
func (n *NAT) Maps() bool    { return n.has(natMapping) }
func (n *NAT) Filters() bool { return n.has(natFilterAny | natFilterAddress) }

func (n *NAT) has(flags uint8) bool {
	return n != nil && slices.ContainsFunc(n.Rules, func(r bpf.XDPNatRule) bool { return r.Flags&flags != 0 })
}

// NewBitmaps returns nat_ports with every allowed port free and every other one taken.
func (n *NAT) NewBitmaps() []bpf.XDPNatBitmap {
	bitmaps := make([]bpf.XDPNatBitmap, 0, n.Bitmaps())
	for _, block := range n.Ports {
		var one bpf.XDPNatBitmap
		for port := range 1 << 16 {
			if port < int(block.First) || port > int(block.Last) {
				one.Taken[port>>6] |= 1 << (port & 63)
			}
		}
		for w, taken := range one.Taken {
			if taken == ^uint64(0) {
				one.Full[w>>6] |= 1 << (w & 63)
			}
		}
		for range block.Elements {
			bitmaps = append(bitmaps, one)
		}
	}
	return bitmaps
}
