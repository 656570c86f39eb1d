package firewall

import (
	"slices"

	"github.com/softdpu/softdpu/flowtable"
)

// disjoint rewrites the entries of one rule so that no packet matches two of them. Entries in audit
// mode need it: each that matches is reported, and a rule is counted once for a packet.
func disjoint(entries []flowtable.ACLEntry, contexts uint16) []flowtable.ACLEntry {
	var out []flowtable.ACLEntry
	for _, e := range entries {
		rest := []flowtable.ACLEntry{e}
		for _, taken := range out {
			var left []flowtable.ACLEntry
			for _, r := range rest {
				left = append(left, subtract(r, taken, contexts)...)
			}
			rest = left
		}
		out = append(out, rest...)
	}
	return out
}

// subtract returns entries for what a matches and b does not: for each field in turn the part of a
// outside b in this field and inside b in those before it. Contexts is the highest MAC identity.
func subtract(a, b flowtable.ACLEntry, contexts uint16) []flowtable.ACLEntry {
	var out []flowtable.ACLEntry
	outside := func(set func(e *flowtable.ACLEntry)) {
		e := a
		set(&e)
		if possible(emptyIsAny(e.Src), emptyIsAny(e.Dst), e.Family) {
			out = append(out, e)
		}
	}
	if b.Family != 0 && a.Family != b.Family {
		if a.Family != 0 {
			return []flowtable.ACLEntry{a}
		}
		outside(func(e *flowtable.ACLEntry) { e.Family = 10 - b.Family })
		a.Family = b.Family
	}
	if a.Proto.Last < b.Proto.First || b.Proto.Last < a.Proto.First {
		return append(out, a)
	}
	if a.Proto.First < b.Proto.First {
		outside(func(e *flowtable.ACLEntry) { e.Proto.Last = b.Proto.First - 1 })
	}
	if b.Proto.Last < a.Proto.Last {
		outside(func(e *flowtable.ACLEntry) { e.Proto.First = b.Proto.Last + 1 })
	}
	a.Proto = flowtable.U8Range{First: max(a.Proto.First, b.Proto.First), Last: min(a.Proto.Last, b.Proto.Last)}
	for _, port := range []func(e *flowtable.ACLEntry) *flowtable.U16Range{
		func(e *flowtable.ACLEntry) *flowtable.U16Range { return &e.SrcPort },
		func(e *flowtable.ACLEntry) *flowtable.U16Range { return &e.DstPort },
	} {
		x, y := *port(&a), *port(&b)
		if x.Last < y.First || y.Last < x.First {
			return append(out, a)
		}
		if x.First < y.First {
			outside(func(e *flowtable.ACLEntry) { port(e).Last = y.First - 1 })
		}
		if y.Last < x.Last {
			outside(func(e *flowtable.ACLEntry) { port(e).First = y.Last + 1 })
		}
		*port(&a) = flowtable.U16Range{First: max(x.First, y.First), Last: min(x.Last, y.Last)}
	}
	for _, zones := range []func(e *flowtable.ACLEntry) *flowtable.Zones{
		func(e *flowtable.ACLEntry) *flowtable.Zones { return &e.From },
		func(e *flowtable.ACLEntry) *flowtable.Zones { return &e.To },
	} {
		x, y := *zones(&a), *zones(&b)
		if y == (flowtable.Zones{}) {
			continue
		}
		var left, common flowtable.Zones
		for z := zoneHost; z <= zoneMax; z++ {
			switch {
			case x.Has(uint8(z)) && y.Has(uint8(z)):
				common.Add(uint8(z))
			case x.Has(uint8(z)):
				left.Add(uint8(z))
			}
		}
		if common == (flowtable.Zones{}) {
			return append(out, a)
		}
		if left != (flowtable.Zones{}) {
			outside(func(e *flowtable.ACLEntry) { *zones(e) = left })
		}
		*zones(&a) = common
	}
	for _, addrs := range []func(e *flowtable.ACLEntry) *[]flowtable.AddrRange{
		func(e *flowtable.ACLEntry) *[]flowtable.AddrRange { return &e.Src },
		func(e *flowtable.ACLEntry) *[]flowtable.AddrRange { return &e.Dst },
	} {
		x, y := *addrs(&a), *addrs(&b)
		if len(y) == 0 {
			continue
		}
		left, common := complementAddresses(y), y
		if len(x) > 0 {
			left, common = intersectAddresses(x, left), intersectAddresses(x, y)
		}
		if len(common) == 0 {
			return append(out, a)
		}
		if len(left) > 0 {
			outside(func(e *flowtable.ACLEntry) { *addrs(e) = left })
		}
		*addrs(&a) = common
	}
	if len(b.Contexts) > 0 {
		var left []uint16
		for id := 0; id <= int(contexts); id++ {
			here := len(a.Contexts) == 0 || slices.Contains(a.Contexts, uint16(id))
			if here && !slices.Contains(b.Contexts, uint16(id)) {
				left = append(left, uint16(id))
			}
		}
		if len(left) > 0 {
			outside(func(e *flowtable.ACLEntry) { e.Contexts = left })
		}
	}
	return out
}

// emptyIsAny turns an entry's way of saying any into a box's.
func emptyIsAny(a []flowtable.AddrRange) []flowtable.AddrRange {
	if len(a) == 0 {
		return nil
	}
	return a
}
