/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* flow.h: what both families' tables share: clock, gateway state, references into an entry, the flow
 * word and its accounts. */
#ifndef SOFTDPU_FLOW_H
#define SOFTDPU_FLOW_H

#include "parse.h"
#include "ports.h"
#include "tally.h"

#define barrier() asm volatile("" ::: "memory")

/* An entry as the packet at hand sees it, whichever family and table it is in. */
struct flow_ref {
	struct flow_core *core;
	struct flow_ways *ways;
	struct flow_count *count; /* of the packet's direction */
	struct leg *leg; /* of the packet's sender */
	struct leg *peer; /* of the other end */
};

/* What an entry of either family keeps of its two directions. */
struct flow_ways {
	struct flow_count count[2];
	struct leg leg[2];
};
_Static_assert(offsetof(struct flow4, leg) - offsetof(struct flow4, count) ==
		       offsetof(struct flow_ways, leg),
	       "flow4");
_Static_assert(offsetof(struct flow6, leg) - offsetof(struct flow6, count) ==
		       offsetof(struct flow_ways, leg),
	       "flow6");

/* How creation ended. In the first three the flow is there. */
enum insertion {
	INSERT_CREATED,
	INSERT_REOPENED, /* in the place of the same connection's closed flow */
	INSERT_EVICTED, /* in the place of a half-open flow */
	INSERT_EXISTS, /* another CPU was faster: the flow is there */
	INSERT_OVERFLOW, /* in the overflow table */
	INSERT_FULL,
	INSERT_INTERNAL,
	INSERT_TAKEN, /* of an alias: its key is another flow's */
};

/* What a look-up found; above these, enum reason for which the packet is refused. */
enum found {
	FIND_NONE = -1,
	FIND_FLOW = 0,
};

static __always_inline struct sim *sim(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sims, &zero);
}

static __always_inline __u32 now_tick(void)
{
	if (simulate) {
		struct sim *s = sim();

		return s ? s->control.now >> TICK_SHIFT : 0;
	}
	return bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
}

static __always_inline struct gateway_state *gateway_state(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&gateway, &zero);
}

static __always_inline struct table_counter *table_counter(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&table_counters, &zero);
}

/* Comparisons without a branch, for numbers below 1 << 31. The verifier follows every branch of a
 * loop, and eight rounds of a few branches are too many. The barrier keeps the compiler from making
 * branches of them again. */
static __always_inline __u32 less(__u32 a, __u32 b)
{
	opaque(a);
	return (a - b) >> 31;
}

static __always_inline __u32 equal(__u32 a, __u32 b)
{
	opaque(a);
	return ((a ^ b) - 1) >> 31;
}

/* yes if condition is 1, no if it is 0. By multiplication: Linux 6.18's verifier makes two paths of a
 * mask that is 0 or -1. */
static __always_inline __u32 choose(__u32 condition, __u32 yes, __u32 no)
{
	opaque(condition);
	return no + condition * (yes - no);
}

/* The slot of a group to be looked at in round i of a loop. Masked last, where the compiler would not:
 * older verifiers (Linux 6.1) know nothing of an exclusive or with an unknown number. */
static __always_inline __u32 probed_slot(__u32 first, __u32 i)
{
	__u32 at = first ^ i;

	opaque(at);
	return at & 3;
}

static __always_inline __u64 load(const __u64 *word)
{
	return *(volatile const __u64 *)word;
}

static __always_inline __u32 state_of(__u64 word)
{
	return word & WORD_STATE_MASK;
}

static __always_inline bool half_open(__u32 state)
{
	return state >= FLOW_SYN_SENT && state <= FLOW_NEW;
}

/* Whether a SYN opens the connection anew. */
static __always_inline bool over(__u32 state)
{
	return state == FLOW_TIME_WAIT || state == FLOW_CLOSED;
}

/* Moves a flow from the state in *word to another. The generation is part of the compared word, so
 * a flow that was replaced meanwhile is left alone. False: it is no longer this flow. */
static __always_inline bool change_state(struct flow_core *core, __u64 *word, __u32 state)
{
	struct gateway_state *gw = gateway_state();

	for (int i = 0; i < 4; i++) {
		__u64 new = (*word & ~(WORD_STATE_MASK | WORD_FLAG_MARKED)) | state;
		__u64 old = __sync_val_compare_and_swap(&core->word, *word, new);

		if (old == *word) {
			if (gw && half_open(state_of(old)) && !half_open(state))
				__sync_fetch_and_add(&gw->half_open, -1);
			*word = new;
			return true;
		}
		if (old >> WORD_GEN_SHIFT != *word >> WORD_GEN_SHIFT || state_of(old) == FLOW_FREE)
			return false;
		*word = old;
	}
	return false;
}

/* Sets or takes off flags of the word under the same rule as change_state. */
static __always_inline bool change_flags(struct flow_core *core, __u64 *word, __u64 off, __u64 on)
{
	for (int i = 0; i < 4; i++) {
		__u64 new = (*word & ~off) | on;
		__u64 old = __sync_val_compare_and_swap(&core->word, *word, new);

		if (old == *word) {
			*word = new;
			return true;
		}
		if (old >> WORD_GEN_SHIFT != *word >> WORD_GEN_SHIFT || state_of(old) == FLOW_FREE)
			return false;
		*word = old;
	}
	return false;
}

static __always_inline void count_rule(__u32 rule, __u64 packets, __u64 bytes)
{
	struct rule_counter *c = bpf_map_lookup_elem(&rules, &rule);

	if (c) {
		c->packets += packets;
		c->bytes += bytes;
	}
}

/* One packet that a built-in rule admits by itself: no verdict of the classifier counts it. */
static __always_inline void count_admitted(__u32 rule, __u64 bytes, __u32 tick)
{
	struct rule_counter *c = bpf_map_lookup_elem(&rules, &rule);

	if (c) {
		c->packets++;
		c->bytes += bytes;
		c->judged++;
		c->last = tick;
	}
}

static __always_inline __u32 rule_of(const struct flow_core *core)
{
	return core->rule & VERDICT_RULE_MASK;
}

/* What a flow that ended has counted goes to its rule, and its replies to their built-in one as well. */
static __always_inline void credit_flow(const struct flow_core *core,
					const struct flow_count *count)
{
	const struct flow_count *replies = core->word & WORD_FLAG_HI_OPENED ? &count[0] : &count[1];

	count_rule(rule_of(core), count[0].packets + count[1].packets,
		   count[0].bytes + count[1].bytes);
	count_rule(RULE_REPLIES, replies->packets, replies->bytes);
}

/* ---- Addresses of both families, for table.h -------------------------------------------------- */

static __always_inline bool greater4(const __be32 *a, const __be32 *b)
{
	return bpf_ntohl(a[0]) > bpf_ntohl(b[0]);
}

static __always_inline void set_address4(struct flow4_key *key, const __be32 *lo, const __be32 *hi)
{
	key->lo = lo[0];
	key->hi = hi[0];
}

static __always_inline bool greater6(const __be32 *a, const __be32 *b)
{
	__u64 ah = (__u64)bpf_ntohl(a[0]) << 32 | bpf_ntohl(a[1]);
	__u64 bh = (__u64)bpf_ntohl(b[0]) << 32 | bpf_ntohl(b[1]);
	__u64 al = (__u64)bpf_ntohl(a[2]) << 32 | bpf_ntohl(a[3]);
	__u64 bl = (__u64)bpf_ntohl(b[2]) << 32 | bpf_ntohl(b[3]);

	return ah != bh ? ah > bh : al > bl;
}

static __always_inline void set_address6(struct flow6_key *key, const __be32 *lo, const __be32 *hi)
{
	__builtin_memcpy(key->lo, lo, 16);
	__builtin_memcpy(key->hi, hi, 16);
}

#define FAMILY 4
#include "table.h"
#define FAMILY 6
#include "table.h"

#define FAMILY 4
#include "alias.h"
#define FAMILY 6
#include "alias.h"

#endif
