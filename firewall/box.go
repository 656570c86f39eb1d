package firewall

import (
	"slices"

	"github.com/softdpu/softdpu/flowtable"
)

// Zone ids of abi.h.
const (
	zoneHost  = 1
	zoneFirst = 2
	zoneMax   = 255
)

// box is one alternative of an endpoint: it matches when every field does.
type box struct {
	zones    flowtable.Zones       // zero: any
	addrs    []flowtable.AddrRange // joined; nil: any
	contexts []uint16              // sorted; nil: any
}

// intersect returns what a and b have in common; false if that is nothing.
func (a box) intersect(b box) (box, bool) {
	out := a
	switch {
	case a.zones == flowtable.Zones{}:
		out.zones = b.zones
	case b.zones != flowtable.Zones{}:
		for i := range out.zones {
			out.zones[i] &= b.zones[i]
		}
		if out.zones == (flowtable.Zones{}) {
			return out, false
		}
	}
	switch {
	case a.addrs == nil:
		out.addrs = b.addrs
	case b.addrs != nil:
		out.addrs = intersectAddresses(a.addrs, b.addrs)
	}
	switch {
	case a.contexts == nil:
		out.contexts = b.contexts
	case b.contexts != nil:
		out.contexts = []uint16{}
		for _, c := range a.contexts {
			if slices.Contains(b.contexts, c) {
				out.contexts = append(out.contexts, c)
			}
		}
	}
	return out, !out.empty()
}

// empty reports whether nothing can match: a list that was asked for and holds nothing.
func (a box) empty() bool {
	return a.addrs != nil && len(a.addrs) == 0 || a.contexts != nil && len(a.contexts) == 0
}

// product returns the common parts of every alternative of a with every one of b.
func product(a, b []box) []box {
	var out []box
	for _, x := range a {
		for _, y := range b {
			if z, some := x.intersect(y); some {
				out = append(out, z)
			}
		}
	}
	return out
}

// mergeBoxes joins alternatives that differ in one field only, in the order of their first one.
func mergeBoxes(in []box) []box {
	in = mergeAlong(in, func(a, b box) bool {
		return a.zones == b.zones && slices.Equal(a.contexts, b.contexts) && (a.contexts == nil) == (b.contexts == nil)
	},
		func(a, b box) box {
			if a.addrs == nil || b.addrs == nil {
				a.addrs = nil
			} else {
				a.addrs = joinAddresses(slices.Concat(a.addrs, b.addrs))
			}
			return a
		})
	in = mergeAlong(in, func(a, b box) bool { return a.zones == b.zones && sameAddresses(a.addrs, b.addrs) },
		func(a, b box) box {
			if a.contexts == nil || b.contexts == nil {
				a.contexts = nil
			} else {
				a.contexts = joinContexts(slices.Concat(a.contexts, b.contexts))
			}
			return a
		})
	return mergeAlong(in, func(a, b box) bool {
		return sameAddresses(a.addrs, b.addrs) && slices.Equal(a.contexts, b.contexts) && (a.contexts == nil) == (b.contexts == nil)
	}, func(a, b box) box {
		if a.zones == (flowtable.Zones{}) || b.zones == (flowtable.Zones{}) {
			a.zones = flowtable.Zones{}
		} else {
			for i := range a.zones {
				a.zones[i] |= b.zones[i]
			}
		}
		return a
	})
}

// mergeAlong folds each element into the first earlier one that alike puts together with it.
func mergeAlong[T any](in []T, alike func(a, b T) bool, join func(a, b T) T) []T {
	var out []T
next:
	for _, x := range in {
		for i := range out {
			if alike(out[i], x) {
				out[i] = join(out[i], x)
				continue next
			}
		}
		out = append(out, x)
	}
	return out
}

func sameAddresses(a, b []flowtable.AddrRange) bool {
	return (a == nil) == (b == nil) && slices.Equal(a, b)
}

func joinContexts(in []uint16) []uint16 {
	slices.Sort(in)
	return slices.Compact(in)
}

// span is one alternative of a service.
type span struct {
	proto    flowtable.U8Range
	family   uint8
	src, dst flowtable.U16Range
}

// spans flattens services into as few alternatives as their protocols and ports allow.
func spans(services []ServiceMatch) []span {
	if len(services) == 0 {
		return []span{{proto: flowtable.U8Range{First: 0, Last: 255}, src: anyPort[0], dst: anyPort[0]}}
	}
	type ports struct {
		proto    flowtable.U8Range
		family   uint8
		src, dst []flowtable.U16Range // joined
	}
	var all []ports
	for _, s := range services {
		if len(s.SrcPorts) > 0 && len(s.DstPorts) > 0 {
			all = append(all, ports{s.Proto, s.Family, joinPorts(s.SrcPorts), joinPorts(s.DstPorts)})
		}
	}
	all = mergeAlong(all, func(a, b ports) bool { return a.proto == b.proto && a.family == b.family && slices.Equal(a.src, b.src) },
		func(a, b ports) ports { a.dst = joinPorts(slices.Concat(a.dst, b.dst)); return a })
	all = mergeAlong(all, func(a, b ports) bool { return a.proto == b.proto && a.family == b.family && slices.Equal(a.dst, b.dst) },
		func(a, b ports) ports { a.src = joinPorts(slices.Concat(a.src, b.src)); return a })
	var out []span
	for _, p := range all {
		for _, s := range p.src {
			for _, d := range p.dst {
				out = append(out, span{p.proto, p.family, s, d})
			}
		}
	}
	return mergeAlong(out, func(a, b span) bool { return a.covers(b) || b.covers(a) }, func(a, b span) span {
		if b.covers(a) {
			return b
		}
		return a
	})
}

func (a span) covers(b span) bool {
	return a.proto.First <= b.proto.First && b.proto.Last <= a.proto.Last &&
		(a.family == 0 || a.family == b.family) &&
		a.src.First <= b.src.First && b.src.Last <= a.src.Last &&
		a.dst.First <= b.dst.First && b.dst.Last <= a.dst.Last
}
