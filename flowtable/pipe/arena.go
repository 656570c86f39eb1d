package pipe

import (
	"fmt"
	"math/bits"

	"github.com/softdpu/softdpu/bpf"
)

// Arena is the memory in which all tables of prefixes of a program lie. One goroutine may change it.
type Arena struct {
	Roots  []uint64
	Nodes4 []bpf.PipesPipeNode4
	Nodes6 []bpf.PipesPipeNode6

	roots, nodes4, nodes6 buddy
}

// NewArena makes an arena of memory that no table uses.
func NewArena(roots []uint64, nodes4 []bpf.PipesPipeNode4, nodes6 []bpf.PipesPipeNode6) *Arena {
	return &Arena{
		Roots: roots, Nodes4: nodes4, Nodes6: nodes6,
		roots: newBuddy(len(roots)), nodes4: newBuddy(len(nodes4)), nodes6: newBuddy(len(nodes6)),
	}
}

// ArenaSizes is how many roots and nodes a table of so many prefixes and exact parts (0: it has none) takes at the most. Half
// of it is where the next state of the table is built.
func ArenaSizes(prefixes, groups int, six bool) (roots, nodes int) {
	edges := edges4
	if six {
		edges = edges6
	}
	parts := 1 << lpmBits(prefixes)
	if groups > 0 {
		parts = groups + prefixes
	}
	// A prefix has two edges, a part of the table has a node that is not full, and runs of nodes are powers of two.
	parts += prefixes / 2 // of parts that are divided again
	return 2*parts + 2, 4 * ((2*prefixes+edges-1)/edges + min(parts, 2*prefixes) + 1)
}

// buddy hands out runs of places: powers of two, at multiples of their size.
type buddy struct {
	free [32]map[uint32]struct{} // by log2 of the size
}

func newBuddy(n int) (b buddy) {
	for i := range b.free {
		b.free[i] = map[uint32]struct{}{}
	}
	for at := 0; at < n; {
		order := bits.Len(uint(n-at)) - 1
		if at > 0 {
			order = min(order, bits.TrailingZeros(uint(at)))
		}
		b.free[order][uint32(at)] = struct{}{}
		at += 1 << order
	}
	return b
}

// take returns the first place of a run of n.
func (b *buddy) take(n int) (uint32, error) {
	order := bits.Len(uint(n - 1))
	for o := order; o < len(b.free); o++ {
		for at := range b.free[o] {
			delete(b.free[o], at)
			for ; o > order; o-- {
				b.free[o-1][at+1<<(o-1)] = struct{}{}
			}
			return at, nil
		}
	}
	return 0, fmt.Errorf("find room for %d nodes of prefixes: %w", n, ErrFull)
}

// give takes a run of n back.
func (b *buddy) give(at uint32, n int) {
	order := bits.Len(uint(n - 1))
	for ; order+1 < len(b.free); order++ {
		other := at ^ 1<<order
		if _, ok := b.free[order][other]; !ok {
			break
		}
		delete(b.free[order], other)
		at &^= 1 << order
	}
	b.free[order][at] = struct{}{}
}
