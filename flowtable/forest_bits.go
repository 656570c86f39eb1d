package flowtable

import (
	"iter"
	"math/bits"
)

// forestBits are places of an array, a bit each.
type forestBits struct {
	words []uint64
	size  int
}

// setTo marks places of an array of a size.
func (b *forestBits) setTo(at, n uint32, size int) {
	if b.size != size {
		b.size = size
		b.words = append(b.words, make([]uint64, max(0, (size+63)/64-len(b.words)))...)
	}
	b.set(at, n)
}

func (b *forestBits) has(at uint32) bool { return b.words[at>>6]>>(at&63)&1 != 0 }

// each calls do with the words that a run of places is in, and its bits there.
func (b *forestBits) each(at, n uint32, do func(word *uint64, bits uint64)) {
	for n > 0 {
		from := at & 63
		here := min(n, 64-from)
		do(&b.words[at>>6], (1<<here-1)<<from)
		at, n = at+here, n-here
	}
}

func (b *forestBits) set(at, n uint32) {
	b.each(at, n, func(word *uint64, bits uint64) { *word |= bits })
}

func (b *forestBits) clear(at, n uint32) {
	b.each(at, n, func(word *uint64, bits uint64) { *word &^= bits })
}

// count returns how many places are marked.
func (b *forestBits) count() (n int) {
	for _, word := range b.words {
		n += bits.OnesCount64(word)
	}
	return n
}

// next returns the first place from at on that is marked, or is not; size if there is none.
func (b *forestBits) next(at int, marked bool) int {
	for at < b.size {
		word := b.words[at>>6]
		if !marked {
			word = ^word
		}
		if word >>= at & 63; word != 0 {
			return min(b.size, at+bits.TrailingZeros64(word))
		}
		at = at&^63 + 64
	}
	return b.size
}

// all returns the places that are marked.
func (b *forestBits) all() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i, word := range b.words {
			for ; word != 0; word &= word - 1 {
				if !yield(uint32(64*i + bits.TrailingZeros64(word))) {
					return
				}
			}
		}
	}
}

// take marks a run of n places and returns the first.
func (b *forestBits) take(n int) (at uint32, ok bool) {
	for from := b.next(0, false); from < b.size; {
		end := b.next(from, true)
		if end-from >= n {
			b.set(uint32(from), uint32(n))
			return uint32(from), true
		}
		from = b.next(end, false)
	}
	return 0, false
}

// free returns the places from first to before end that are not marked.
func (b *forestBits) free(first, end uint32) (list []uint32) {
	for at := b.next(int(first), false); at < int(end); at = b.next(at+1, false) {
		list = append(list, uint32(at))
	}
	return list
}

// without returns the runs of places that are marked, but not in other.
func (b *forestBits) without(other *forestBits) (runs []forestExtent) {
	for i, word := range b.words {
		for word &^= other.words[i]; word != 0; {
			from := bits.TrailingZeros64(word)
			n := bits.TrailingZeros64(^(word >> from))
			at := uint32(64*i + from)
			if last := len(runs) - 1; last >= 0 && runs[last].at+runs[last].n == at {
				runs[last].n += uint32(n)
			} else {
				runs = append(runs, forestExtent{at, uint32(n)})
			}
			word &^= (1<<n - 1) << from
		}
	}
	return runs
}
