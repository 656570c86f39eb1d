package pipe

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
)

const (
	// lpmMostBits is the largest part of an address that chooses a search tree. With 2^18 of them a tree of a million prefixes
	// is mostly one node, and a change of several of them copies 2 MiB.
	lpmMostBits = 18
	// lpmPart is how many edges a tree has on average: they fit into one node.
	lpmPart = 8
	// lpmMany is for how many parts it pays to look for those prefixes first that can cover one.
	lpmMany = 1000
	// lpmDivide is from how many edges on a part is divided again, lpmParts how often, and lpmDivided its word's mark.
	lpmDivide, lpmParts, lpmDivided = 16 * lpmPart, 3, 0xffffff
	// lpmOne is for a table of a single tree.
	lpmOne = 32
)

// lpmBits is how many bits of an address choose a search tree in a table of so many prefixes.
func lpmBits(prefixes int) uint8 {
	return uint8(min(bits.Len(uint(2*prefixes/lpmPart)), lpmMostBits))
}

// trie is a table of prefixes without an exact part (abi_pipe.h).
type trie struct {
	arena  *Arena
	six    bool
	word   *uint64 // which packets read
	bits   uint8
	sorted []prefix
	edges  []edge // of the part that is being built
}

// lpmRun is a run of nodes, or of roots.
type lpmRun struct {
	at   uint32
	n    int
	root bool
}

// free gives memory back.
func (t *trie) free(runs []lpmRun) {
	for _, r := range runs {
		switch {
		case r.root:
			t.arena.roots.give(r.at, r.n)
		case t.six:
			t.arena.nodes6.give(r.at, r.n)
		default:
			t.arena.nodes4.give(r.at, r.n)
		}
	}
}

// root is the place of the first root, if there is one.
func (t *trie) root() (at uint32, ok bool) { return uint32(*t.word >> 8), *t.word != 0 }

// change puts sorted prefixes in force, of which only those in `changed` are others than before. It appends what has
// been replaced to gone. An error leaves everything as it was.
func (t *trie) change(sorted, changed []prefix, gone []lpmRun) ([]lpmRun, error) {
	width := lpmBits(len(sorted))
	root, there := t.root()
	if there && t.bits >= width && t.bits <= width+2 {
		width = t.bits // as it is: not anew with every prefix that comes and goes
	}
	parts := make([]bool, 1<<width)
	touched, one := 0, 0
	if !there || width != t.bits {
		touched = len(parts)
	} else {
		for _, p := range changed {
			for i, end := part(p.from, width), part(p.from.last(p.bits), width); i <= end; i++ {
				if !parts[i] {
					parts[i], one = true, i
					touched++
				}
			}
		}
	}
	if touched == 0 {
		return gone, nil
	}
	all := touched == len(parts)
	before := t.sorted
	t.sorted = sorted
	var made []lpmRun
	covers := sorted
	if touched > lpmMany { // few prefixes are so short that they cover parts
		covers = nil
		for _, p := range sorted {
			if p.bits <= width {
				covers = append(covers, p)
			}
		}
	}
	build := func(i int) (word uint64, err error) {
		from := wide{hi: uint64(i) << 32 << (lpmOne - width)}
		word, made, err = t.build(from, width, covers, made, 0)
		return word, err
	}
	undo := func(err error) ([]lpmRun, error) {
		t.sorted = before
		t.free(made)
		return gone, err
	}
	if touched == 1 && there && width == t.bits {
		word, err := build(one)
		if err != nil {
			return undo(err)
		}
		at := &t.arena.Roots[root+uint32(one)]
		gone = t.appendRun(gone, *at)
		atomic.StoreUint64(at, word)
		return gone, nil
	}
	at, err := t.arena.roots.take(len(parts))
	if err != nil {
		return undo(err)
	}
	made = append(made, lpmRun{at, len(parts), true})
	roots := t.arena.Roots[at:][:len(parts)]
	for i := range roots {
		if !all && !parts[i] {
			roots[i] = t.arena.Roots[root+uint32(i)]
			continue
		}
		if roots[i], err = build(i); err != nil {
			return undo(err)
		}
	}
	if there {
		for i, word := range t.arena.Roots[root:][:1<<t.bits] {
			if all || parts[i] {
				gone = t.appendRun(gone, word)
			}
		}
		gone = append(gone, lpmRun{root, 1 << t.bits, true})
	}
	t.bits = width
	atomic.StoreUint64(t.word, uint64(at)<<8|uint64(lpmOne-width))
	return gone, nil
}

// part is the number of the part of a table that an address is in.
func part(a wide, bits uint8) int { return int(a.hi >> 32 >> (lpmOne - bits)) }

// appendRun adds the memory of a part of a table.
func (t *trie) appendRun(gone []lpmRun, word uint64) []lpmRun {
	switch nodes := int(word & lpmDivided); nodes {
	case 0:
		return gone
	case lpmDivided:
		root := lpmRun{uint32(word >> 32), 1 << (word >> 24 & 63), true}
		for _, part := range t.arena.Roots[root.at:][:root.n] {
			gone = t.appendRun(gone, part)
		}
		return append(gone, root)
	default:
		return append(gone, lpmRun{uint32(word >> 24), nodes, false})
	}
}

// build writes the part of a table for the prefix of `bits` bits that begins at from, and returns its word. Covers has all
// prefixes that may cover it, in order; what it has taken is appended to made, with an error too.
func (t *trie) build(from wide, bits uint8, covers []prefix, made []lpmRun, divided int) (uint64, []lpmRun, error) {
	var first uint32
	t.edges, first = edgesOf(t.edges[:0], t.sorted, from, bits, cover(covers, from, bits))
	if len(t.edges) == 0 {
		return uint64(first) << 24, made, nil
	}
	if width := divideBits(len(t.edges)); len(t.edges) > lpmDivide && divided < lpmParts && bits+width <= t.most() {
		return t.divide(from, bits, width, made, divided+1)
	}
	each, space := edges4, &t.arena.nodes4
	if t.six {
		each, space = edges6, &t.arena.nodes6
	}
	run := lpmRun{n: (len(t.edges) + each - 1) / each}
	var err error
	if run.at, err = space.take(run.n); err != nil {
		return 0, made, err
	}
	made = append(made, run)
	if t.six {
		nodes := t.arena.Nodes6[run.at:][:run.n]
		plant(t.edges, first, run.n, each, func(node, i int, at wide) { nodes[node].Hi[i], nodes[node].Lo[i] = at.hi, at.lo },
			func(node, below int, place uint32) { nodes[node].Value[below] = place })
	} else {
		nodes := t.arena.Nodes4[run.at:][:run.n]
		plant(t.edges, first, run.n, each, func(node, i int, at wide) { nodes[node].Edge[i] = uint32(at.hi >> 32) },
			func(node, below int, place uint32) { nodes[node].Value[below] = place })
	}
	return uint64(run.at)<<24 | uint64(run.n), made, nil
}

// most is how many bits can choose a tree.
func (t *trie) most() uint8 {
	if t.six {
		return 64
	}
	return 32
}

// divideBits is how many bits divide a part of so many edges.
func divideBits(edges int) uint8 { return uint8(min(bits.Len(uint(edges/lpmPart)), lpmMostBits)) }

// divide makes a part a table of the next bits.
func (t *trie) divide(from wide, bits, width uint8, made []lpmRun, divided int) (uint64, []lpmRun, error) {
	at, err := t.arena.roots.take(1 << width)
	if err != nil {
		return 0, made, err
	}
	made = append(made, lpmRun{at, 1 << width, true})
	for i := range uint64(1) << width {
		part := wide{hi: from.hi | i<<(64-bits-width)}
		if t.arena.Roots[uint64(at)+i], made, err = t.build(part, bits+width, t.sorted, made, divided); err != nil {
			return 0, made, err
		}
	}
	return uint64(at)<<32 | uint64(width)<<24 | lpmDivided, made, nil
}

// everything is all memory of the table, which no packet may look at any more.
func (t *trie) everything(gone []lpmRun) []lpmRun {
	root, there := t.root()
	if !there {
		return gone
	}
	for _, word := range t.arena.Roots[root:][:1<<t.bits] {
		gone = t.appendRun(gone, word)
	}
	return append(gone, lpmRun{root, 1 << t.bits, true})
}

// longest is what a packet finds: longest4 and longest6 of bpf/pipe_lpm.h.
func (a *Arena) longest(table uint64, six bool, address wide) uint32 {
	if table == 0 {
		return 0
	}
	word := atomic.LoadUint64(&a.Roots[table>>8+address.hi>>32>>(table&63)])
	for known := lpmOne - table&63; word&lpmDivided == lpmDivided; {
		width := word >> 24 & 63
		word = atomic.LoadUint64(&a.Roots[word>>32+address.hi<<known>>(64-width)])
		known += width
	}
	first, nodes := uint32(word>>24), uint32(word&0xffffff)
	if nodes == 0 {
		return first
	}
	value := uint32(0)
	for at := uint32(0); at < nodes; {
		count := uint32(0)
		if six {
			n := &a.Nodes6[first+at]
			for i := range n.Hi {
				if address.compare(wide{n.Hi[i], n.Lo[i]}) >= 0 {
					count++
				}
			}
			value = n.Value[count]
			at = at*uint32(edges6+1) + 1 + count
			continue
		}
		n := &a.Nodes4[first+at]
		for _, e := range n.Edge {
			if uint32(address.hi>>32) >= e {
				count++
			}
		}
		value = n.Value[count]
		at = at*uint32(edges4+1) + 1 + count
	}
	return value
}

// merge applies requests for one table to its prefixes: those that are in order, the whole list of them, and which
// changed. Errs has a place for each request.
func (t *trie) merge(batch []PrefixRequest, which []int, done []Completion) (sorted, changed []prefix, err error) {
	most := 32
	if t.six {
		most = 128
	}
	asked := make([]prefix, len(which))
	for i, n := range which {
		p := batch[n].Prefix
		if !p.IsValid() || p.Addr().BitLen() != most {
			return nil, nil, fmt.Errorf("change prefixes: %v does not belong into a table of %d bits", p, most)
		}
		asked[i] = prefix{wideOf(p.Masked().Addr()), uint8(p.Bits()), batch[n].Place}
	}
	order := make([]int, len(which))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return asked[a].compare(asked[b]) })
	sorted = make([]prefix, 0, len(t.sorted)+len(which))
	old := t.sorted
	for i := 0; i < len(order); {
		at := asked[order[i]]
		n, there := slices.BinarySearchFunc(old, at, prefix.compare)
		sorted = append(sorted, old[:n]...)
		if old = old[n:]; there {
			at.place = old[0].place
			old = old[1:]
		}
		touched := false
		for ; i < len(order) && asked[order[i]].compare(at) == 0; i++ {
			n := which[order[i]]
			r, c := &batch[n], &done[n]
			switch {
			case r.Change == InsertEntry && there:
				c.Err, c.Place = ErrDuplicate, at.place
				continue
			case r.Change != InsertEntry && !there:
				c.Err = ErrNotFound
				continue
			case r.Change == RemoveEntry:
				there = false
			default:
				there, at.place, c.Place = true, r.Place, r.Place
			}
			touched = true
		}
		if there {
			sorted = append(sorted, at)
		}
		if touched {
			changed = append(changed, at)
		}
	}
	return append(sorted, old...), changed, nil
}

// PrefixRequest is a change of one prefix. Place is that of its entry, not 0.
type PrefixRequest struct {
	Change Change
	Exact  [lpmExact]uint32 // of a table with an exact part
	Prefix netip.Prefix
	Place  uint32
}
