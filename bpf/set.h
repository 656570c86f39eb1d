/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* set.h: membership in large sets, called by the generated classifier. abi.h says how they lie in
 * memory. Comparisons are subtractions, because eBPF would branch on each and the verifier follow both
 * ways. */
#ifndef SOFTDPU_SET_H
#define SOFTDPU_SET_H

#include "maps.h"

/* The value of a field of at most 32 bits. */
static __always_inline __u64 short_field(const struct classify_key *key, __u32 field)
{
	switch (field) {
	case SET_SRC:
		return key->src_lo;
	case SET_DST:
		return key->dst_lo;
	case SET_FROM:
		return key->from;
	case SET_TO:
		return key->to;
	case SET_PROTO:
		return key->proto;
	default:
		return key->context;
	}
}

/* Whether a value of at most 32 bits is in the set of so many nodes from `first` on. */
__noinline __u32 in_set4(struct classify_key *key, __u32 first, __u32 nodes, __u32 field)
{
	__u32 at = 0, inside = 0;
	__u64 value;

	if (!key)
		return 0;
	value = short_field(key, field);
	for (int level = 0; level < SET_LEVELS; level++) {
		__u32 slot = first + at, count = SET4_EDGES;
		struct set4_node *n;

		if (at >= nodes)
			break;
		n = bpf_map_lookup_elem(&set_nodes4, &slot);
		if (!n)
			break;
		for (int i = 0; i < SET4_EDGES; i++) {
			__u64 less = value - n->edge[i];

			opaque(less);
			count -= less >> 63;
		}
		inside = n->inside >> count & 1;
		at = at * (SET4_EDGES + 1) + 1 + count;
	}
	return inside;
}

/* 1 if a < b + borrow, of 64 bits each. */
static __always_inline __u64 borrow_of(__u64 a, __u64 b, __u64 borrow)
{
	__u64 less = a - b - borrow;

	opaque(less);
	return ((~a & b) | ((~a | b) & less)) >> 63;
}

/* Whether an IPv6 address is in the set of so many nodes from `first` on. */
__noinline __u32 in_set6(struct classify_key *key, __u32 first, __u32 nodes, __u32 field)
{
	__u32 at = 0, inside = 0;
	__u64 hi, lo;

	if (!key)
		return 0;
	hi = field == SET_SRC ? key->src_hi : key->dst_hi;
	lo = field == SET_SRC ? key->src_lo : key->dst_lo;
	for (int level = 0; level < SET_LEVELS; level++) {
		__u32 slot = first + at, count = SET6_EDGES;
		struct set6_node *n;

		if (at >= nodes)
			break;
		n = bpf_map_lookup_elem(&set_nodes6, &slot);
		if (!n)
			break;
		for (int i = 0; i < SET6_EDGES; i++)
			count -= borrow_of(hi, n->hi[i], borrow_of(lo, n->lo[i], 0));
		inside = n->inside >> count & 1;
		at = at * (SET6_EDGES + 1) + 1 + count;
	}
	return inside;
}

#endif
