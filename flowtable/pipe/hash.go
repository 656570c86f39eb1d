package pipe

// HashWords is the hash of a key of 1 to MaxKey words under a secret seed, the same as in bpf/pipe_table.h. The lower
// half chooses buckets, the upper half is the tag of an exact match, and what a hash pipe spreads packets by.
func HashWords(seed uint64, words []uint32) uint64 {
	h := seed ^ uint64(len(words))
	for i := 0; i < len(words); i += 2 {
		pair := uint64(words[i])
		if i+1 < len(words) {
			pair |= uint64(words[i+1]) << 32
		}
		h = (h ^ pair) * 0xc4ceb9fe1a85ec53
		h ^= h >> 29
	}
	h *= 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// SpreadWords is the hash by which hash pipes spread packets: pipe_hash of bpf/pipe_table.h, whose constant
// pipe_spread_seed is the seed.
func SpreadWords(seed uint64, words []uint32) uint32 { return uint32(HashWords(seed, words) >> 32) }
