//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipebench.c: the tables of pipes by themselves, for tests and benchmarks. Each run of a program takes the next of
 * the keys that Go has laid out. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "pipe_lpm.h"
#include "pipe_meter.h"
#include "pipe_table.h"

/* One key, or a packet for a meter, and how often it was found; the answer to the last question. */
struct pipe_probe {
	__u32 key[PIPE_KEY];
	__u32 length;
	__u32 color;
	__u32 answer;
	__u32 pad;
};

struct pipe_tally {
	__u64 next; /* probe */
	__u64 hits;
	__u64 bytes[4]; /* by colour; the last one is none */
	__u64 last; /* answer */
	__u64 pad;
};

volatile const __u32 probe_mask; /* number of probes - 1 */
volatile const __u32 table_first; /* bucket, or number of a table of prefixes, or of a meter */
volatile const __u32 table_mask;
volatile const __u32 table_words;
volatile const __u32 count_hits;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct pipe_probe);
} pipe_probes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pipe_tally);
} pipe_tallies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pipe_fields);
} probe_fields SEC(".maps");

/* The peer of exact matches: the kernel's own hash. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32[PIPE_KEY]);
	__type(value, struct pipe_entry);
} peer_hash SEC(".maps");

/* The peer of prefixes: the kernel's own trie. */
struct peer_prefix {
	__u32 bits;
	__be32 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct peer_prefix);
	__type(value, __u32);
} peer_trie SEC(".maps");

enum question {
	ASK_NOTHING,
	ASK_FIND,
	ASK_PEER,
	ASK_LPM4,
	ASK_LPM6,
	ASK_GROUP4,
	ASK_GROUP6,
	ASK_HASH,
	ASK_METER,
	ASK_TRIE
};

static __always_inline __u32 ask(struct pipe_fields *f, enum question what)
{
	struct peer_prefix prefix = { 32, __builtin_bswap32(f->key[PIPE_ADDRESS]) };
	struct pipe_entry *e;
	__u32 *found, place;

	switch (what) {
	case ASK_FIND:
		place = pipe_find(f, table_first, table_mask, table_words);
		if (count_hits)
			return place;
		e = bpf_map_lookup_elem(&pipe_entries, &place);
		return e ? e->forward : 0; /* as a packet would go on, and as the peer's does */
	case ASK_PEER:
		e = bpf_map_lookup_elem(&peer_hash, f->key);
		return e ? e->forward : 0;
	case ASK_LPM4:
		return pipe_lpm4(f, table_first);
	case ASK_LPM6:
		return pipe_lpm6(f, table_first);
	case ASK_GROUP4:
		return pipe_group4(f, table_first, table_mask, table_words);
	case ASK_GROUP6:
		return pipe_group6(f, table_first, table_mask, table_words);
	case ASK_HASH:
		return pipe_hash(f, table_words);
	case ASK_METER:
		return pipe_measure(f, table_first);
	case ASK_TRIE:
		found = bpf_map_lookup_elem(&peer_trie, &prefix);
		return found ? *found : 0;
	default:
		return f->key[0];
	}
}

static __always_inline int run(enum question what)
{
	__u32 zero = 0, at, answer, color;
	struct pipe_tally *t = bpf_map_lookup_elem(&pipe_tallies, &zero);
	struct pipe_fields *f = bpf_map_lookup_elem(&probe_fields, &zero);
	struct pipe_entry *e;
	struct pipe_probe *p;

	if (!t || !f)
		return XDP_ABORTED;
	/* The last answer has 32 bits, which the processor does not know: it waits for it, as packets do that have more to
	 * do than look something up, and does not begin with the next look-up meanwhile. */
	at = (t->next++ + (t->last >> 32)) & probe_mask;
	p = bpf_map_lookup_elem(&pipe_probes, &at);
	if (!p)
		return XDP_ABORTED;
	for (int i = 0; i < PIPE_KEY; i++)
		f->key[i] = p->key[i];
	f->word[PIPE_LENGTH] = p->length;
	f->word[PIPE_COLOR] = p->color;
	answer = ask(f, what);
	t->hits += !!answer;
	t->last = answer;
	if (!count_hits)
		return XDP_PASS;
	p->answer = answer;
	color = answer & 3;
	opaque(color);
	if (what == ASK_METER)
		/* two test runs on one CPU may interrupt each other */
		__sync_fetch_and_add(&t->bytes[color & 3], p->length);
	e = bpf_map_lookup_elem(&pipe_entries, &answer);
	if (what == ASK_FIND && e) {
		__sync_fetch_and_add(&e->packets, 1);
		__sync_fetch_and_add(&e->bytes, p->length);
	}
	return XDP_PASS;
}

#define PROGRAM(name, what)                     \
	SEC("xdp") int name(struct xdp_md *ctx) \
	{                                       \
		return run(what);               \
	}

PROGRAM(probe_nothing, ASK_NOTHING)
PROGRAM(probe_find, ASK_FIND)
PROGRAM(probe_peer, ASK_PEER)
PROGRAM(probe_lpm4, ASK_LPM4)
PROGRAM(probe_lpm6, ASK_LPM6)
PROGRAM(probe_group4, ASK_GROUP4)
PROGRAM(probe_group6, ASK_GROUP6)
PROGRAM(probe_hash, ASK_HASH)
PROGRAM(probe_meter, ASK_METER)
PROGRAM(probe_trie, ASK_TRIE)

char program_license[] SEC("license") = "Dual BSD/GPL";
