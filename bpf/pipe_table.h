/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipe_table.h: exact matches of pipes, called by generated instructions. abi_pipe.h says how they lie in memory,
 * flowtable/pipe/table.go writes them. */
#ifndef SOFTDPU_PIPE_TABLE_H
#define SOFTDPU_PIPE_TABLE_H

#include "pipes.h"

#ifndef opaque
#define opaque(x) asm volatile("" : "+r"(x))
#endif

volatile const __u64 pipe_seed; /* secret of the hash of exact matches */
volatile const __u64 pipe_spread_seed; /* secret of the hash by which pipes spread packets */

/* Two words of a key; of the last pair of an odd number the second one is 0. */
static __always_inline __u64 key_pair(const __u32 *key, __u32 i, __u32 words)
{
	__u64 pair = *(const __u64 *)&key[2 * i];
	__u64 odd = (__u64)(2 * i + 1) - words; /* the upper bit is set if the pair has both */

	opaque(odd);
	return pair & ((__u64)((__s64)odd >> 63) | 0xffffffff);
}

/* The hash of a key of 1 to PIPE_KEY words. HashWords in flowtable/pipe/hash.go is the same. */
static __always_inline __u64 hash_words(const __u32 *key, __u32 words, __u64 seed)
{
	__u64 h = seed ^ words;

	for (__u32 i = 0; i < PIPE_KEY / 2 && 2 * i < words; i++) {
		h = (h ^ key_pair(key, i, words)) * 0xc4ceb9fe1a85ec53;
		h ^= h >> 29;
	}
	h *= 0x9e3779b97f4a7c15;
	return h ^ h >> 32;
}

/* Place of the entry that a bucket has under a tag; 0 = none. Branches would depend on what no predictor knows. */
static __always_inline __u32 probe(__u32 bucket, __u64 tag)
{
	struct pipe_bucket *b = bpf_map_lookup_elem(&pipe_buckets, &bucket);
	__u64 place = 0;

	if (!b)
		return 0;
	for (int i = 0; i < PIPE_BUCKET; i++) {
		__u64 slot = ((volatile struct pipe_bucket *)b)->slot[i];
		__u64 other = slot >> 32 ^ tag;
		__u64 same = other - 1;

		opaque(same);
		place |= slot & (__u64)((__s64)same >> 63);
	}
	return place;
}

/* The place, if its entry has the key; else 0. */
static __always_inline __u32 with_key(const __u32 *key, __u32 place, __u32 words)
{
	struct pipe_entry *e = bpf_map_lookup_elem(&pipe_entries, &place);
	__u64 other = 0;

	if (!e || !place)
		return 0;
	for (__u32 i = 0; i < PIPE_KEY / 2 && 2 * i < words; i++)
		other |= key_pair(key, i, words) ^ *(__u64 *)&e->key[2 * i];
	return other ? 0 : place;
}

/* Place in pipe_entries of the entry whose key is the first `words` words of f->key, in the buckets from `first` to
 * first + mask; 0 = none. */
__noinline __u32 pipe_find(struct pipe_fields *f, __u32 first, __u32 mask, __u32 words)
{
	__u32 at, place;
	__u64 h, tag;

	if (!f)
		return 0;
	h = hash_words(f->key, words, pipe_seed);
	tag = h >> 32;
	tag += !tag;
	at = h & mask;
	place = with_key(f->key, probe(first + at, tag), words);
	if (place)
		return place;
	at ^= ((__u32)tag * PIPE_OTHER >> 8 | 1) & mask;
	return with_key(f->key, probe(first + at, tag), words);
}

/* A hash of the first `words` words of f->key, by which packets are spread. */
__noinline __u32 pipe_hash(struct pipe_fields *f, __u32 words)
{
	return f ? hash_words(f->key, words, pipe_spread_seed) >> 32 : 0;
}

#endif
