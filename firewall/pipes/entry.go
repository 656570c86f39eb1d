package pipes

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Protocols that have ports, or types.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

// matches says what a row of a classifier asks, as entries of the model do: several where one entry cannot say it, none if
// no packet can match it. Destinations: the row is asked before the route is known.
func (f *fields) matches(e *flowtable.ACLEntry, destinations bool) (all [][]pipe.Match) {
	if unknown(e, destinations) {
		return nil
	}
	var ends [2]pipe.Match
	if e.From != (flowtable.Zones{}) {
		ends[0] = among(f.from, zoneSpans(e.From))
	}
	switch {
	case e.To == flowtable.Zones{}:
	case destinations:
		ends[1] = is(f.local, 1)
	default:
		ends[1] = among(f.to, zoneSpans(e.To))
	}
	for _, addresses := range f.families(e, addressSpans) {
		for _, service := range f.services(e) {
			var m []pipe.Match
			add := func(list ...pipe.Match) {
				for _, x := range list {
					if x.Field != nil {
						m = append(m, x)
					}
				}
			}
			add(ends[0])
			if len(e.Contexts) > 0 {
				spans := make([]pipe.Span, len(e.Contexts))
				for i, id := range e.Contexts {
					spans[i] = span(uint32(id), uint32(id))
				}
				add(among(f.mac, spans))
			}
			add(addresses[0], ends[1], addresses[1])
			add(service...)
			all = append(all, m)
		}
	}
	return all
}

// entries is how many entries matches makes of a row, which it finds out without making them.
func (f *fields) entries(e *flowtable.ACLEntry, destinations bool) int {
	if unknown(e, destinations) {
		return 0
	}
	some := make([]pipe.Span, 1)
	return len(f.services(e)) * len(f.families(e, func(list []flowtable.AddrRange, family uint8) []pipe.Span {
		if slices.ContainsFunc(list, func(r flowtable.AddrRange) bool { return r.First.Is4() == (family == 4) }) {
			return some
		}
		return nil
	}))
}

// unknown says that a row asks for a zone which is not known: before the route is, only the gateway's own is.
func unknown(e *flowtable.ACLEntry, destinations bool) bool {
	return destinations && !e.To.Has(flowtable.ZoneHost)
}

// families says what a row asks of addresses, source and destination, once for each family where it must.
func (f *fields) families(e *flowtable.ACLEntry, spansOf func([]flowtable.AddrRange, uint8) []pipe.Span) (all [][2]pipe.Match) {
	if len(e.Src) == 0 && len(e.Dst) == 0 {
		switch e.Family {
		case 4:
			return [][2]pipe.Match{{{Field: f.version, Value: word(f.version, "4")}, {}}}
		case 6:
			return [][2]pipe.Match{{{Field: f.version, Value: word(f.version, "6")}, {}}}
		}
		return [][2]pipe.Match{{}}
	}
	for i, family := range [2]uint8{4, 6} {
		if e.Family != 0 && e.Family != family {
			continue
		}
		var both [2]pipe.Match
		possible := true
		for end, list := range [2][]flowtable.AddrRange{e.Src, e.Dst} {
			field := [2]*pipe.Field{f.src[i], f.dst[i]}[end]
			if len(list) == 0 {
				continue
			}
			spans := spansOf(list, family)
			if both[end] = among(field, spans); len(spans) == 0 {
				possible = false
			}
		}
		if possible {
			all = append(all, both)
		}
	}
	return all
}

// services says what a row asks of protocol and ports: once for each protocol that has what it asks.
func (f *fields) services(e *flowtable.ACLEntry) (all [][]pipe.Match) {
	any16 := flowtable.U16Range{Last: 0xffff}
	if e.SrcPort == any16 && e.DstPort == any16 {
		if e.Proto == (flowtable.U8Range{Last: 0xff}) {
			return [][]pipe.Match{nil}
		}
		return [][]pipe.Match{{f.protocols(e.Proto.First, e.Proto.Last)}}
	}
	first := int(e.Proto.First)
	without := e.SrcPort.First == 0 && e.DstPort.First == 0 // what has no ports has 0
	others := func(end int) {
		if without && first < end {
			all = append(all, []pipe.Match{f.protocols(uint8(first), uint8(end-1))})
		}
	}
	for _, p := range [4]uint8{protoICMP, protoTCP, protoUDP, protoICMPv6} {
		if p < e.Proto.First || p > e.Proto.Last {
			continue
		}
		others(int(p))
		first = int(p) + 1
		m := []pipe.Match{f.protocols(p, p)}
		if p == protoTCP || p == protoUDP {
			all = append(all, append(m, ranges(f.sport, e.SrcPort, e.DstPort, f.dport)...))
		} else if e.SrcPort.First == 0 {
			all = append(all, f.types(m, e.DstPort)...)
		}
	}
	others(int(e.Proto.Last) + 1)
	return all
}

// types says what a range of type << 8 | code is: whole types, and codes of those at its ends.
func (f *fields) types(m []pipe.Match, r flowtable.U16Range) (all [][]pipe.Match) {
	for first := int(r.First); first <= int(r.Last); {
		kind, code := first>>8, first&0xff
		if code == 0 && first|0xff <= int(r.Last) { // as many whole types as there are
			last := (int(r.Last)+1)>>8 - 1
			types := append(m[:len(m):len(m)], within(f.icmpType, uint32(kind), uint32(last)))
			if kind == 0 && last == 0xff {
				types = m
			}
			all = append(all, types)
			first = (last + 1) << 8
			continue
		}
		last := min(first|0xff, int(r.Last))
		all = append(all, append(m[:len(m):len(m)], is(f.icmpType, uint32(kind)), within(f.icmpCode, uint32(code), uint32(last&0xff))))
		first = last + 1
	}
	return all
}

func (f *fields) protocols(first, last uint8) pipe.Match {
	return within(f.proto, uint32(first), uint32(last))
}

func ranges(sport *pipe.Field, s, d flowtable.U16Range, dport *pipe.Field) (m []pipe.Match) {
	for _, x := range []struct {
		field *pipe.Field
		flowtable.U16Range
	}{{sport, s}, {dport, d}} {
		if x.First != 0 || x.Last != 0xffff {
			m = append(m, within(x.field, uint32(x.First), uint32(x.Last)))
		}
	}
	return m
}

func is(f *pipe.Field, v uint32) pipe.Match { return pipe.Match{Field: f, Value: pipe.Value{v}} }

func within(f *pipe.Field, first, last uint32) pipe.Match {
	if first == last {
		return is(f, first)
	}
	return pipe.Match{Field: f, Value: pipe.Value{first}, Last: pipe.Value{last}}
}

func among(f *pipe.Field, spans []pipe.Span) pipe.Match { return pipe.Match{Field: f, Among: spans} }

func span(first, last uint32) pipe.Span {
	return pipe.Span{First: [4]uint32{first}, Last: [4]uint32{last}}
}

func zoneSpans(z flowtable.Zones) (spans []pipe.Span) {
	for id := range 256 {
		if z.Has(uint8(id)) {
			spans = append(spans, span(uint32(id), uint32(id)))
		}
	}
	return spans
}

// addressSpans are the ranges of a list that are of a family; not nil.
func addressSpans(list []flowtable.AddrRange, family uint8) []pipe.Span {
	spans := make([]pipe.Span, 0, len(list))
	for _, r := range list {
		if r.First.Is4() == (family == 4) {
			spans = append(spans, pipe.Span{First: addressWords(r.First), Last: addressWords(r.Last)})
		}
	}
	return spans
}

func addressWords(a netip.Addr) (w [4]uint32) {
	if a.Is4() {
		b := a.As4()
		w[0] = binary.BigEndian.Uint32(b[:])
		return w
	}
	b := a.As16()
	for i := range w {
		w[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	return w
}
