package flowtable

import (
	"fmt"
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
)

// Zones are a set of zone ids (abi.h: ZONE_*), one bit each. The zero value stands for any zone.
type Zones [4]uint64

// Add puts zone id z into the set.
func (s *Zones) Add(z uint8) { s[z>>6] |= 1 << (z & 63) }

// Has reports whether the set holds zone id z, or is empty and so stands for any.
func (s Zones) Has(z uint8) bool { return s == Zones{} || s[z>>6]>>(z&63)&1 != 0 }

// AddrRange is a closed interval of addresses of one family, First <= Last, without IPv6 zones. An
// IPv4 address mapped into IPv6 is an IPv6 address.
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

// aclRuleMask is VERDICT_RULE_MASK of abi.h.
const aclRuleMask = 1<<24 - 1

// ACL is a compiled ACL pipe. It is immutable and safe for concurrent use.
type ACL struct {
	nodes []treeNode
	sets  []aclSet
	set4  []bpf.XDPSet4Node // the sets that do not stand in the program
	set6  []bpf.XDPSet6Node
	base4 uint32 // numbers of the first of them in the maps
	base6 uint32
	root  int32
	tree4 int32 // roots of the two families' searches
	tree6 int32

	forest     *aclForest // in the place of all but sets, if the entries are many
	baseForest forestPlace
}

// aclSet is a set too large to stand in the search itself.
type aclSet struct {
	ranges []aclRange // sorted, disjoint, not touching
	max    aclNum     // largest value of the dimension
	dim    uint8
	family uint8

	mapped       bool // it stands in a map: nodes from first on
	first, nodes uint32
}

// CompileACL compiles entries, first match first. They must not be changed afterwards: Revise compares others with them. An error names
// the entry, counted from 0, and what is wrong with it: a range whose end is before its start or of
// two families, an unknown family.
func CompileACL(entries []ACLEntry) (*ACL, error) { return CompileACLAfter(entries) }

// CompileACLAfter is CompileACL for a pipe that shares a program with others, whose nodes stand before its
// own in the maps of large sets (Sets) and of many entries (Forest). A nil one is left out.
func CompileACLAfter(entries []ACLEntry, before ...*ACL) (*ACL, error) {
	for i := range entries {
		if err := entries[i].check(); err != nil {
			return nil, fmt.Errorf("compile ACL entry %d: %w", i, err)
		}
	}
	a := newACL(before)
	if len(entries) > aclCodeEntries && a.plant(entries) {
		return a, nil
	}
	a.code(entries)
	if a.slots() > aclCodeSlots {
		if b := newACL(before); b.plant(entries) {
			return b, nil
		}
	}
	return a, nil
}

// newACL returns an empty pipe whose memory stands behind that of others.
func newACL(before []*ACL) *ACL {
	a := &ACL{}
	for _, b := range before {
		if b == nil {
			continue
		}
		a.base4 = max(a.base4, b.base4+uint32(len(b.set4)))
		a.base6 = max(a.base6, b.base6+uint32(len(b.set6)))
		if b.forest != nil {
			a.baseForest = b.forest.end()
		}
	}
	return a
}

// code makes the pipe one that becomes instructions.
func (a *ACL) code(entries []ACLEntry) {
	a.tree4 = a.grow(4, entries)
	a.tree6 = a.grow(6, entries)
	miss := a.push(treeNode{op: treeVerdict})
	a.root = a.push(treeNode{op: treeIsFamily, value: aclNum{lo: 6}, yes: a.tree6, no: miss})
	a.root = a.push(treeNode{op: treeIsFamily, value: aclNum{lo: 4}, yes: a.tree4, no: a.root})
	a.mapSets()
}

// Nodes of a search beyond those of asking entry by entry, and for how many of the latter.
const (
	aclBudget      = 18_000
	aclBudgetShare = 16
)

// grow adds the search of one family and returns its root.
func (a *ACL) grow(family uint8, entries []ACLEntry) int32 {
	b := newTreeBuilder(a, family, entries)
	items := b.trim(b.items())
	linear := b.costs(items)
	return b.build(items, linear+min(linear*aclBudgetShare, max(aclBudget-linear, linear)), 0)
}

func (a *ACL) push(n treeNode) int32 {
	a.nodes = append(a.nodes, n)
	return int32(len(a.nodes) - 1)
}

func (e *ACLEntry) check() error {
	if e.Family != 0 && e.Family != 4 && e.Family != 6 {
		return fmt.Errorf("family %d is neither 4, 6 nor 0 for both", e.Family)
	}
	if e.Proto.First > e.Proto.Last {
		return fmt.Errorf("protocol range %d-%d ends before it starts", e.Proto.First, e.Proto.Last)
	}
	for _, r := range [2]U16Range{e.SrcPort, e.DstPort} {
		if r.First > r.Last {
			return fmt.Errorf("port range %d-%d ends before it starts", r.First, r.Last)
		}
	}
	for _, list := range [2][]AddrRange{e.Src, e.Dst} {
		for _, r := range list {
			switch {
			case !r.First.IsValid() || !r.Last.IsValid() || r.First.Is4() != r.Last.Is4():
				return fmt.Errorf("address range %v-%v is not of one family", r.First, r.Last)
			case r.First.Zone() != "" || r.Last.Zone() != "":
				return fmt.Errorf("address range %v-%v names an IPv6 zone", r.First, r.Last)
			case r.Last.Less(r.First):
				return fmt.Errorf("address range %v-%v ends before it starts", r.First, r.Last)
			}
		}
	}
	return nil
}
