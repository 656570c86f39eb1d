/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipe_lpm.h: longest prefixes of pipes, called by generated instructions. abi_pipe.h says how they lie in memory,
 * flowtable/pipe/lpm.go writes them. */
#ifndef SOFTDPU_PIPE_LPM_H
#define SOFTDPU_PIPE_LPM_H

#include "pipe_table.h"

/* Words of tables without an exact part, by number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PIPE_TRIES);
	__type(key, __u32);
	__type(value, __u64);
} pipe_tries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, __u64);
} pipe_roots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct pipe_node4);
} pipe_nodes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct pipe_node6);
} pipe_nodes6 SEC(".maps");

/* The word of the part of a table that an address is in, by the upper 64 bits of it. A part of many edges is a table
 * again, of the next bits. */
static __always_inline __u64 part_of(__u64 table, __u64 upper)
{
	__u32 at = (table >> 8) + (upper >> 32 >> (table & 63));
	__u32 known = 32 - (table & 63);
	__u64 word;

	if (!table)
		return 0;
	for (int level = 0; level <= PIPE_TRIE_PARTS; level++) {
		__u64 *part = bpf_map_lookup_elem(&pipe_roots, &at);
		__u32 width;

		if (!part)
			return 0;
		word = *(volatile __u64 *)part;
		if ((word & 0xffffff) != 0xffffff)
			return word;
		width = word >> 24 & 63;
		at = (word >> 32) + (upper << (known & 63) >> (-width & 63));
		known += width;
	}
	return 0;
}

static __always_inline __u32 longest4(__u64 table, __u32 address)
{
	__u64 part = part_of(table, (__u64)address << 32);
	__u32 at = 0, nodes = part & 0xffffff, first = part >> 24, value = first;

	if (!nodes)
		return value;
	value = 0;
	for (int level = 0; level < PIPE_TRIE_LEVELS && at < nodes; level++) {
		__u32 place = first + at, count = PIPE_EDGES4;
		struct pipe_node4 *n = bpf_map_lookup_elem(&pipe_nodes4, &place);

		if (!n)
			break;
		for (int i = 0; i < PIPE_EDGES4; i++) {
			__u64 less = (__u64)address - n->edge[i];

			opaque(less);
			count -= less >> 63;
		}
		/* the compiler knows its bounds, and Linux 6.1 does not: let the mask stay */
		opaque(count);
		count &= PIPE_EDGES4;
		value = n->value[count];
		at = at * (PIPE_EDGES4 + 1) + 1 + count;
	}
	return value;
}

/* 1 if a < b + borrow, of 64 bits each. */
static __always_inline __u64 less_of(__u64 a, __u64 b, __u64 borrow)
{
	__u64 less = a - b - borrow;

	opaque(less);
	return ((~a & b) | ((~a | b) & less)) >> 63;
}

static __always_inline __u32 longest6(__u64 table, __u64 hi, __u64 lo)
{
	__u64 part = part_of(table, hi);
	__u32 at = 0, nodes = part & 0xffffff, first = part >> 24, value = first;

	if (!nodes)
		return value;
	value = 0;
	for (int level = 0; level < PIPE_TRIE_LEVELS && at < nodes; level++) {
		__u32 place = first + at, count = PIPE_EDGES6;
		struct pipe_node6 *n = bpf_map_lookup_elem(&pipe_nodes6, &place);

		if (!n)
			break;
		for (int i = 0; i < PIPE_EDGES6; i++)
			count -= less_of(hi, n->hi[i], less_of(lo, n->lo[i], 0));
		opaque(count);
		count &= 7; /* as above */
		if (count > PIPE_EDGES6)
			break;
		value = n->value[count];
		at = at * (PIPE_EDGES6 + 1) + 1 + count;
	}
	return value;
}

/* Place in pipe_entries of the longest prefix of the IPv4 address in f->key[PIPE_ADDRESS], in the table of a number; 0 =
 * none. */
__noinline __u32 pipe_lpm4(struct pipe_fields *f, __u32 number)
{
	__u64 *table = bpf_map_lookup_elem(&pipe_tries, &number);

	return f && table ? longest4(*(volatile __u64 *)table, f->key[PIPE_ADDRESS]) : 0;
}

/* The same of the IPv6 address in f->key from PIPE_ADDRESS on. */
__noinline __u32 pipe_lpm6(struct pipe_fields *f, __u32 number)
{
	__u64 *table = bpf_map_lookup_elem(&pipe_tries, &number);
	const __u32 *a;

	if (!f || !table)
		return 0;
	a = &f->key[PIPE_ADDRESS];
	return longest6(*(volatile __u64 *)table, (__u64)a[0] << 32 | a[1],
			(__u64)a[2] << 32 | a[3]);
}

/* With an exact part: the first `words` words of f->key, at most PIPE_ADDRESS, are looked up like an exact match, and
 * the entry's operands are the word of a table of prefixes. */
static __always_inline __u64 group_table(struct pipe_fields *f, __u32 first, __u32 mask,
					 __u32 words)
{
	__u32 place = pipe_find(f, first, mask, words);
	struct pipe_entry *group = bpf_map_lookup_elem(&pipe_entries, &place);

	return group && place ? *(volatile __u64 *)group->value : 0;
}

__noinline __u32 pipe_group4(struct pipe_fields *f, __u32 first, __u32 mask, __u32 words)
{
	return f ? longest4(group_table(f, first, mask, words), f->key[PIPE_ADDRESS]) : 0;
}

__noinline __u32 pipe_group6(struct pipe_fields *f, __u32 first, __u32 mask, __u32 words)
{
	const __u32 *a;
	__u64 table;

	if (!f)
		return 0;
	table = group_table(f, first, mask, words);
	a = &f->key[PIPE_ADDRESS];
	return longest6(table, (__u64)a[0] << 32 | a[1], (__u64)a[2] << 32 | a[3]);
}

#endif
