/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* fragment.h: later fragments follow the verdict of their first one. docs/PACKET-PATH.md, section 4;
 * RFC 5722 and RFC 8200 for why an overlap kills the whole datagram. */
#ifndef SOFTDPU_FRAGMENT_H
#define SOFTDPU_FRAGMENT_H

#include "flow.h"

#define FRAGMENT_LIFE 28610 /* ticks: 30 s */

static __always_inline __u32 fragment_index(const struct packet *p)
{
	__u64 h = hash_seed;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		h = (h ^ ((__u64)p->src[i] << 32 | p->dst[i])) * 0xff51afd7ed558ccdull;
		h ^= h >> 29;
	}
	h = (h ^
	     ((__u64)p->frag_id << 32 | (__u32)p->domain << 16 | p->frag_proto << 8 | p->family)) *
	    0xc4ceb9fe1a85ec53ull;
	h ^= h >> 29;
	return h * 0x9E3779B97F4A7C15ull >> 40 & fragment_mask;
}

static __always_inline struct fragment_group *fragment_group(const struct packet *p)
{
	__u32 index = fragment_index(p);

	return bpf_map_lookup_elem(&fragments, &index);
}

/* Age in ticks, FRAGMENT_LIFE if the slot is free or too old. */
static __always_inline __u32 fragment_age(const struct fragment *f, __u32 tick)
{
	__u32 age = (tick - f->tick) & 0x7fffffff;
	__u32 live = less(age, FRAGMENT_LIFE) & (equal(f->family, 0) ^ 1);

	return choose(live, age, FRAGMENT_LIFE);
}

/* Whether f is the live datagram of p; one comparison, for the sake of the verifier. */
static __always_inline bool fragment_of(const struct fragment *f, const struct packet *p)
{
	__be32 differ = f->id ^ p->frag_id;

#pragma unroll
	for (int i = 0; i < 4; i++)
		differ |= (f->src[i] ^ p->src[i]) | (f->dst[i] ^ p->dst[i]);
	differ |= (f->family ^ p->family) | (f->proto ^ p->frag_proto) | (f->domain ^ p->domain);
	return !(differ | equal(fragment_age(f, p->tick), FRAGMENT_LIFE));
}

static __always_inline struct fragment_range *fragment_range(struct fragment *f, __u32 i)
{
	opaque(i);
	return &f->range[i & (FRAGMENT_RANGES - 1)];
}

/* Marks [start, end) as seen. */
static __always_inline int take_range(struct fragment *f, __u32 start, __u32 end, __u32 last)
{
	__u32 n = f->ranges, left = FRAGMENT_RANGES, right = FRAGMENT_RANGES;
	__u32 total = f->total, overlap;

	overlap = less(0, total) & (less(total, end) | (last & (equal(total, end) ^ 1)));
#pragma unroll
	for (__u32 i = 0; i < FRAGMENT_RANGES; i++) {
		__u32 s = f->range[i].start, e = f->range[i].end, used = less(i, n);

		overlap |= used & ((less(start, e) & less(s, end)) | (last & less(end, e)));
		left = choose(used & equal(e, start), i, left);
		right = choose(used & equal(s, end), i, right);
	}
	if (overlap) {
		f->reason = REASON_FRAGMENT_OVERLAP;
		return REASON_FRAGMENT_OVERLAP;
	}
	struct fragment_range *l = fragment_range(f, left), *r = fragment_range(f, right);

	if (left < FRAGMENT_RANGES && right < FRAGMENT_RANGES) {
		l->end = r->end;
		n--;
		*r = *fragment_range(f, n);
		f->ranges = n;
	} else if (left < FRAGMENT_RANGES) {
		l->end = end;
	} else if (right < FRAGMENT_RANGES) {
		r->start = start;
	} else if (n < FRAGMENT_RANGES) {
		l = fragment_range(f, n);
		l->start = start;
		l->end = end;
		f->ranges = n + 1;
	} else {
		return REASON_FRAGMENT_TOO_MANY;
	}
	if (last)
		f->total = end;
	return REASON_NONE;
}

/* A fragment of a datagram that is known: takes its range and says what the first one's verdict was.
 * Leaves the flow key's ports in p. Returns REASON_FRAGMENT_NO_FIRST if the datagram is not known. */
__noinline int fragment_known(struct packet *p)
{
	int reason = REASON_FRAGMENT_NO_FIRST;
	__u32 at = FRAGMENT_SLOTS, rule = 0;
	struct fragment_group *g;

	if (!p)
		return REASON_INTERNAL;
	g = fragment_group(p);
	if (!g)
		return REASON_INTERNAL;
	bpf_spin_lock(&g->lock);
#pragma unroll
	for (__u32 i = 0; i < FRAGMENT_SLOTS; i++) {
		if (fragment_of(&g->slot[i], p)) {
			at = i;
			break;
		}
	}
	if (at < FRAGMENT_SLOTS) {
		struct fragment *f = &g->slot[at];

		reason = f->reason;
		if (reason != REASON_FRAGMENT_OVERLAP) {
			int range = take_range(f, p->frag_off, (__u32)p->frag_off + p->frag_len,
					       !p->more);

			if (range)
				reason = range;
			else
				rule = f->rule;
			/* whole: its identification may be used again at once */
			if (!range && f->total && f->ranges == 1 && f->range[0].end == f->total)
				f->family = 0;
		}
		if (f->transport == IPPROTO_ICMP || f->transport == IPPROTO_ICMPV6) {
			/* should the flow be judged again: what its first packet most likely was */
			p->icmp_type = p->family == 4 ? 8 : 128;
			p->icmp_code = 0;
		}
		p->sport = f->sport;
		p->dport = f->dport;
		p->proto = f->transport;
	}
	bpf_spin_unlock(&g->lock);
	p->verdict = reason ? rule : 0;
	return reason;
}

/* Enters the datagram of a first fragment with the verdict that it met. */
__noinline int fragment_enter(const struct packet *p, int reason)
{
	struct fragment_group *g;
	__u32 best = 0, oldest = 0;

	if (!p)
		return 0;
	g = fragment_group(p);
	if (!g)
		return 0;
	bpf_spin_lock(&g->lock);
#pragma unroll
	for (__u32 i = 0; i < FRAGMENT_SLOTS; i++) {
		__u32 age = fragment_age(&g->slot[i], p->tick) + 1, older = less(oldest, age);

		oldest = choose(older, age, oldest);
		best = choose(older, i, best);
	}
	opaque(best);

	struct fragment *f = &g->slot[best & (FRAGMENT_SLOTS - 1)];

	__builtin_memcpy(f->src, p->src, sizeof(f->src));
	__builtin_memcpy(f->dst, p->dst, sizeof(f->dst));
	f->id = p->frag_id;
	f->domain = p->domain;
	f->proto = p->frag_proto;
	f->family = p->family;
	f->sport = p->sport;
	f->dport = p->dport;
	f->tick = p->tick;
	f->rule = p->verdict & VERDICT_RULE_MASK;
	f->total = 0;
	f->reason = reason;
	f->transport = p->proto;
	f->ranges = 1;
	f->range[0].start = 0;
	f->range[0].end = p->frag_len;
	bpf_spin_unlock(&g->lock);
	return 0;
}

#endif
