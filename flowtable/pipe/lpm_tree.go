package pipe

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

const (
	edges4 = len(bpf.PipesPipeNode4{}.Edge)
	edges6 = len(bpf.PipesPipeNode6{}.Hi)
)

// wide is an address as a number of 128 bits. One of IPv4 is in the upper 32 of them.
type wide struct{ hi, lo uint64 }

func wideOf(a netip.Addr) wide {
	if a.Is4() {
		b := a.As4()
		return wide{hi: uint64(binary.BigEndian.Uint32(b[:])) << 32}
	}
	b := a.As16()
	return wide{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

func (a wide) compare(b wide) int { return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo)) }

// last is the last address of the prefix of so many bits that begins at a.
func (a wide) last(bits uint8) wide {
	if bits >= 64 {
		return wide{a.hi, a.lo | ^uint64(0)>>(bits-64)}
	}
	return wide{a.hi | ^uint64(0)>>bits, ^uint64(0)}
}

// next is the address behind a. There is none behind the last one.
func (a wide) next() (wide, bool) {
	if a.lo++; a.lo == 0 {
		a.hi++
	}
	return a, a != wide{}
}

// mask cuts an address off behind so many bits.
func (a wide) mask(bits uint8) wide {
	if bits >= 64 {
		return wide{a.hi, a.lo &^ (^uint64(0) >> (bits - 64))}
	}
	return wide{a.hi &^ (^uint64(0) >> bits), 0}
}

// prefix is one of a table's.
type prefix struct {
	from  wide
	bits  uint8
	place uint32
}

func (p prefix) compare(q prefix) int {
	return cmp.Or(p.from.compare(q.from), cmp.Compare(p.bits, q.bits))
}

// edge is an address from which on another prefix is the longest.
type edge struct {
	at    wide
	place uint32
}

// cover returns the place of the longest of sorted prefixes, of at most so many bits, that has an address; 0 = none.
func cover(sorted []prefix, a wide, bits uint8) uint32 {
	for n := int(bits); n >= 0; n-- {
		if i, ok := slices.BinarySearchFunc(sorted, prefix{from: a.mask(uint8(n)), bits: uint8(n)}, prefix.compare); ok {
			return sorted[i].place
		}
	}
	return 0
}

// edgesOf appends to edges those of sorted prefixes within the prefix of `bits` bits that begins at from; those longer
// than that count. Base is the place of what covers it whole, and the answer that of its first address.
func edgesOf(edges []edge, sorted []prefix, from wide, bits uint8, base uint32) (_ []edge, first uint32) {
	type open struct {
		end   wide
		place uint32
	}
	end := from.last(bits)
	stack := []open{{end, base}}
	value := base // of the address that has been come to
	first = base
	put := func(at wide, place uint32) {
		if at == from {
			first, value = place, place
			return
		}
		if n := len(edges); n > 0 && edges[n-1].at == at { // a shorter one, that ends or begins here too
			edges = edges[:n-1]
			if value = first; n > 1 {
				value = edges[n-2].place
			}
		}
		if place != value {
			edges = append(edges, edge{at, place})
			value = place
		}
	}
	pop := func() {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if at, ok := top.end.next(); ok && at.compare(end) <= 0 {
			put(at, stack[len(stack)-1].place)
		}
	}
	i, _ := slices.BinarySearchFunc(sorted, prefix{from: from, bits: bits + 1}, prefix.compare)
	for ; i < len(sorted) && sorted[i].from.compare(end) <= 0; i++ {
		p := &sorted[i]
		for stack[len(stack)-1].end.compare(p.from) < 0 {
			pop()
		}
		stack = append(stack, open{p.from.last(p.bits), p.place})
		put(p.from, p.place)
	}
	for len(stack) > 1 {
		pop()
	}
	return edges, first
}

// plant lays edges out as a search tree of nodes that have `width` edges each. First is the place of addresses before the first
// edge. Put stores an edge of a node, and value the place for addresses with so many of its edges at or below them.
func plant(edges []edge, first uint32, nodes, width int, put func(node, i int, at wide), value func(node, below int, place uint32)) {
	next, current := 0, first
	var fill func(node int)
	fill = func(node int) {
		for i := range width + 1 {
			if child := node*(width+1) + 1 + i; child < nodes {
				fill(child)
			}
			value(node, i, current)
			if i == width {
				return
			}
			put(node, i, edges[min(next, len(edges)-1)].at)
			if next < len(edges) {
				current = edges[next].place
				next++
			}
		}
	}
	fill(0)
}
