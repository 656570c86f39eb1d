package flowtable

import (
	"math/bits"

	"github.com/softdpu/softdpu/bpf"
)

// The flow hash, the same in bpf/table.h: multiply and xor over the key's little-endian 64-bit
// words, seeded with the table's secret.
const (
	hashFirst = 0xff51afd7ed558ccd
	hashNext  = 0xc4ceb9fe1a85ec53
	hashLast  = 0x9e3779b97f4a7c15
)

func hashStart(w, seed uint64) uint64 {
	h := (w ^ seed) * hashFirst
	return h ^ h>>32
}

func hashWord(h, w uint64) uint64 {
	h = (h ^ w) * hashNext
	return h ^ h>>29
}

func hashEnd(h uint64) uint32 { return uint32(h * hashLast >> 32) }

func pair(a, b uint32) uint64 { return uint64(a) | uint64(b)<<32 }

func tail(lo, hi, domain uint16, proto, kind uint8) uint64 {
	return uint64(lo) | uint64(hi)<<16 | uint64(domain)<<32 | uint64(proto)<<48 | uint64(kind)<<56
}

func hash4(k *bpf.XDPFlow4Key, seed uint64) uint32 {
	h := hashStart(pair(k.Lo, k.Hi), seed)
	return hashEnd(hashWord(h, tail(k.LoPort, k.HiPort, k.Domain, k.Proto, k.Kind)))
}

func hash6(k *bpf.XDPFlow6Key, seed uint64) uint32 {
	h := hashStart(pair(k.Lo[0], k.Lo[1]), seed)
	h = hashWord(h, pair(k.Lo[2], k.Lo[3]))
	h = hashWord(h, pair(k.Hi[0], k.Hi[1]))
	h = hashWord(h, pair(k.Hi[2], k.Hi[3]))
	return hashEnd(hashWord(h, tail(k.LoPort, k.HiPort, k.Domain, k.Proto, k.Kind)))
}

// candidates are the two groups where a key may live. They share the low stripeBits bits, and so
// the lock under which the XDP program creates.
type candidates struct {
	group [2]uint32
	first uint32 // slots are tried in the order first, first^1, first^2, first^3
}

func candidatesOf(hash, mask, stripeBits uint32) candidates {
	g := hash & mask
	return candidates{
		group: [2]uint32{g, g ^ (hash>>18|1)<<stripeBits&mask},
		first: hash >> 30,
	}
}

// log2 of a power of two.
func log2(n int) uint32 { return uint32(bits.TrailingZeros(uint(n))) }
