/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* tally.h: how many flows each source has by a rule with a limit. docs/PACKET-PATH.md, section 15.5. */
#ifndef SOFTDPU_TALLY_H
#define SOFTDPU_TALLY_H

#include "ports.h"

#define NO_TALLY (2 * NAT_TALLY_WORDS) /* none of two groups */
#define TALLY_TRIES 16 /* each that fails is another flow's success */

static __always_inline __u64 tally_hash(__u32 rule, __u64 source)
{
	__u64 h = (source ^ hash_seed) * 0xff51afd7ed558ccdull;

	h ^= h >> 32;
	h = (h ^ rule) * 0xc4ceb9fe1a85ec53ull;
	h ^= h >> 29;
	h *= 0x9E3779B97F4A7C15ull;
	return h ^ h >> 32;
}

static __always_inline __u64 *tally_word(struct nat_tallies *g, __u32 at)
{
	opaque(at);
	return &g->word[at & (NAT_TALLY_WORDS - 1)];
}

/* 1 if x, below 2^63, is 0. The compiler makes a branch of not_zero(), and here are many. */
static __always_inline __u32 tally_zero(__u64 x)
{
	opaque(x);
	return (x - 1) >> 63;
}

/* yes if condition is 1, no if it is 0: choose() of flow.h, of which this is part. */
static __always_inline __u32 tally_choice(__u32 condition, __u32 yes, __u32 no)
{
	opaque(condition);
	return no + condition * (yes - no);
}

/* Counts one more flow of a source, the first 8 bytes of its address, by a rule. Returns 1 + the place where
 * it counts, 0: the source has `limit` already, or there is no place. What it has is the sum of all its
 * words: two CPUs that count a source's first flow may have given it one each. */
__translation __u32 take_tally(__u32 rule, __u32 limit, __u64 source)
{
	__u64 h = tally_hash(rule, source), tag = h & ~NAT_TALLY_COUNT, was, *word;
	__u32 i1 = h & (NAT_TALLY_GROUPS - 1), i2 = i1 ^ ((h >> 10 | 1) & (NAT_TALLY_GROUPS - 1));
	struct nat_tallies *one = bpf_map_lookup_elem(&nat_tallies, &i1);
	struct nat_tallies *two = bpf_map_lookup_elem(&nat_tallies, &i2);

	if (!one || !two)
		return 0;
#pragma clang loop unroll(disable)
	for (int try = 0; try < TALLY_TRIES; try++) {
		__u32 sum = 0, flows = 0, own = NO_TALLY, at;
		__u32 room1 = 0, room2 = 0, free1 = NO_TALLY, free2 = NO_TALLY;

#pragma clang loop unroll(disable)
		for (int i = NAT_TALLY_WORDS - 1; i >= 0; i--) {
			__u64 a = read_word(tally_word(one, i)), b = read_word(tally_word(two, i));
			__u32 flows1 = a & NAT_TALLY_COUNT, flows2 = b & NAT_TALLY_COUNT;
			__u32 is_free1 = tally_zero(flows1), is_free2 = tally_zero(flows2);
			__u32 own1 = tally_zero((a ^ tag) >> 24) & (is_free1 ^ 1);
			__u32 own2 = tally_zero((b ^ tag) >> 24) & (is_free2 ^ 1);

			sum += tally_choice(own1, flows1, 0) + tally_choice(own2, flows2, 0);
			own = tally_choice(own2, NAT_TALLY_WORDS + i, own);
			flows = tally_choice(own2, flows2, flows);
			own = tally_choice(own1, i, own);
			flows = tally_choice(own1, flows1, flows);
			room1 += is_free1;
			room2 += is_free2;
			free1 = tally_choice(is_free1, i, free1);
			free2 = tally_choice(is_free2, NAT_TALLY_WORDS + i, free2);
		}
		if (sum >= limit)
			return 0;
		at = own < NO_TALLY ? own : room2 > room1 ? free2 : free1;
		if (at >= NO_TALLY)
			return 0;
		word = tally_word(at < NAT_TALLY_WORDS ? one : two, at);
		was = own < NO_TALLY ? tag | flows : read_word(word);
		if (own >= NO_TALLY && was & NAT_TALLY_COUNT)
			continue; /* it was free */
		if (__sync_val_compare_and_swap(word, was, tag | (flows + 1)) == was)
			return 1 + (at < NAT_TALLY_WORDS ? i1 : i2) * NAT_TALLY_WORDS +
			       (at & (NAT_TALLY_WORDS - 1));
	}
	return 0;
}

/* A flow has ended that counts at this place, if it does anywhere. */
static __always_inline void give_tally(__u32 tally)
{
	__u32 place = tally - 1, index = place / NAT_TALLY_WORDS;
	struct nat_tallies *g = tally ? bpf_map_lookup_elem(&nat_tallies, &index) : NULL;
	__u64 *word, was;

	if (!g)
		return;
	word = tally_word(g, place);
#pragma clang loop unroll(disable)
	for (int try = 0; try < TALLY_TRIES; try++) {
		was = read_word(word);
		if (!(was & NAT_TALLY_COUNT) ||
		    __sync_val_compare_and_swap(word, was, was - 1) == was)
			return;
	}
}

#endif
