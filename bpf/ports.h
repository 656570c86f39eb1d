/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ports.h: which source ports translated flows have taken. docs/PACKET-PATH.md, section 15.5. */
#ifndef SOFTDPU_PORTS_H
#define SOFTDPU_PORTS_H

#include "packet.h"

#define NO_PORT 0x10000

/* 1 if x is not 0, without a branch. */
static __always_inline __u32 not_zero(__u64 x)
{
	opaque(x);
	return (x | -x) >> 63;
}

/* Number of the lowest bit that is set; there is one. */
static __always_inline __u32 lowest_bit(__u64 x)
{
	x &= -x;
	return not_zero(x & 0xaaaaaaaaaaaaaaaaull) | not_zero(x & 0xccccccccccccccccull) << 1 |
	       not_zero(x & 0xf0f0f0f0f0f0f0f0ull) << 2 | not_zero(x & 0xff00ff00ff00ff00ull) << 3 |
	       not_zero(x & 0xffff0000ffff0000ull) << 4 | not_zero(x >> 32) << 5;
}

static __always_inline __u64 *taken_word(struct nat_bitmap *b, __u32 word)
{
	opaque(word);
	return &b->taken[word & 1023];
}

static __always_inline __u64 *full_word(struct nat_bitmap *b, __u32 word)
{
	opaque(word);
	return &b->full[word & 15];
}

static __always_inline __u64 read_word(const __u64 *word)
{
	return *(volatile const __u64 *)word;
}

/* Whether the port is free in an element of nat_ports. */
__translation __u32 port_free(__u32 element, __u32 port)
{
	struct nat_bitmap *b = bpf_map_lookup_elem(&nat_ports, &element);

	return b && !(read_word(taken_word(b, port >> 6)) >> (port & 63) & 1);
}

/* Notes that a word has no bit left; another CPU may give one back meanwhile. */
static __always_inline void note_full(struct nat_bitmap *b, __u32 word)
{
	__u64 full = 1ull << (word & 63);

	__sync_fetch_and_or(full_word(b, word >> 6), full);
	if (read_word(taken_word(b, word)) != ~0ull)
		__sync_fetch_and_and(full_word(b, word >> 6), ~full);
}

/* The first free port from `start` on, or one that has just been taken; NO_PORT if there is none. */
__translation __u32 next_port(__u32 element, __u32 start)
{
	struct nat_bitmap *b = bpf_map_lookup_elem(&nat_ports, &element);
	__u32 word = start >> 6 & 1023, at = 0;
	__u64 free;

	if (!b)
		return NO_PORT;
	free = ~read_word(taken_word(b, word)) & ~0ull << (start & 63);
	if (free)
		return word << 6 | lowest_bit(free);
	for (__u32 i = 0; i <= 16; i++) {
		at = ((word >> 6) + i) & 15;
		opaque(at);
		free = ~read_word(full_word(b, at));
		/* behind the start's word first, it and those before it at last */
		if (i == 0)
			free &= ~0ull << (word & 63) << 1;
		if (free)
			break;
	}
	if (!free)
		return NO_PORT;
	word = (at & 15) << 6 | lowest_bit(free);
	free = ~read_word(taken_word(b, word));
	if (free)
		return word << 6 | lowest_bit(free);
	/* who gave a port back said so when others had taken it already */
	note_full(b, word);
	return word << 6;
}

/* Takes a port. 0: another CPU was faster. */
__translation __u32 take_port(__u32 element, __u32 port)
{
	struct nat_bitmap *b = bpf_map_lookup_elem(&nat_ports, &element);
	__u32 word = port >> 6;
	__u64 bit = 1ull << (port & 63), before;

	if (!b)
		return 0;
	before = __sync_fetch_and_or(taken_word(b, word), bit);
	if (before & bit)
		return 0;
	if ((before | bit) == ~0ull)
		note_full(b, word);
	return 1;
}

static __always_inline void give_port(__u32 element, __u32 port)
{
	struct nat_bitmap *b = bpf_map_lookup_elem(&nat_ports, &element);
	__u32 word = port >> 6;

	if (!b)
		return;
	__sync_fetch_and_and(taken_word(b, word), ~(1ull << (port & 63)));
	__sync_fetch_and_and(full_word(b, word >> 6), ~(1ull << (word & 63)));
}

#endif
