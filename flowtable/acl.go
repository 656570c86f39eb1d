package flowtable

import "net/netip"

// Zones are a set of zone ids (abi.h: ZONE_*), one bit each. The zero value stands for any zone.
type Zones [4]uint64

// Add puts zone id z into the set.
func (s *Zones) Add(z uint8) { s[z>>6] |= 1 << (z & 63) }

// Has reports whether the set holds zone id z, or is empty and so stands for any.
func (s Zones) Has(z uint8) bool { return s == Zones{} || s[z>>6]>>(z&63)&1 != 0 }

// AddrRange is a closed interval of addresses of one family, First <= Last.
type AddrRange struct{ First, Last netip.Addr }

// U16Range is a closed interval of ports or of ICMP type << 8 | code. {0, 65535} is any.
type U16Range struct{ First, Last uint16 }

// U8Range is a closed interval of IP protocol numbers. {0, 255} is any.
type U8Range struct{ First, Last uint8 }

// ACLEntry is one row of an ACL pipe: it matches when every field does. Empty sets match anything.
type ACLEntry struct {
	From, To Zones
	Src, Dst []AddrRange // alternatives, both families mixed; a family without a range does not match unless the list is empty
	Contexts []uint16    // alternatives: identities of the source MAC
	Proto    U8Range
	SrcPort  U16Range // of TCP and UDP, else 0
	DstPort  U16Range // of TCP and UDP; ICMP and ICMPv6: type << 8 | code; else 0
	Family   uint8    // 4, 6, or 0 for both

	// Verdict is what classify() answers (abi.h: VERDICT_*): rule id, action and flags.
	Verdict uint32
	// Audit entries do not decide: they are reported and evaluation goes on.
	Audit bool
}

// Verdict packs what a deciding entry answers. Rule is below 1 << 24.
func Verdict(rule uint32, action uint32, flags uint32) uint32 { return rule | action<<24 | flags }
