/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* work.h: packets that need a worker, and how they get there. docs/PACKET-PATH.md, section 14. */
#ifndef SOFTDPU_WORK_H
#define SOFTDPU_WORK_H

#include "flow.h"

_Static_assert(sizeof(struct handover) == 32, "handover");

/* Number of the cell of p's leg. The slot follows from where the entry lies: an array's elements stand
 * one behind the other. */
static __always_inline __u32 cell_of(const struct packet *p, const struct flow_core *core)
{
	__u32 zero = 0, first = 0;
	__u64 slot, slots;
	void *base;

	if (p->family == 4) {
		base = bpf_map_lookup_elem(&flows4, &zero);
		if (!base)
			return CELL_NONE;
		slot = ((void *)core - base - offsetof(struct flow4, core)) / sizeof(struct flow4);
		slots = ((__u64)group4_mask + 1) * GROUP_SLOTS;
	} else {
		base = bpf_map_lookup_elem(&flows6, &zero);
		if (!base)
			return CELL_NONE;
		slot = ((void *)core - base - offsetof(struct flow6, core)) / sizeof(struct flow6);
		slots = ((__u64)group6_mask + 1) * GROUP_SLOTS;
		first = (group4_mask + 1) * GROUP_SLOTS;
	}
	if (slot >= slots)
		return CELL_NONE; /* an entry of the overflow */
	return (first + slot) * 2 + p->leg - 1;
}

static __always_inline __u32 *cell_at(__u32 number)
{
	__u32 group = number >> 3;
	struct cells *c = bpf_map_lookup_elem(&leg_cells, &group);

	opaque(number);
	return c ? &c->leg[number >> 1 & 3][number & 1] : NULL;
}

/* Whether flows of the rule go on without a worker if there is none. */
static __always_inline bool bypasses(__u32 rule)
{
	struct rule_work *work = bpf_map_lookup_elem(&rule_works, &rule);

	return work && work->bypass;
}

/* The leg is not the worker's any more. False: another CPU has just judged the flow again. It takes READY
 * off before it writes stages, so whoever finds READY behind his own writing has written first. */
static __always_inline bool move_up(const struct packet *p, struct flow_core *core, struct leg *leg)
{
	__u8 stages = leg->stages;

	leg->stages = 0;
	if (likely(__sync_fetch_and_or(&core->word, 0) & WORD_FLAG_READY))
		return true;
	/* which stages is for the next packet to find out */
	leg->stages = stages;
	core->epoch = epoch_of(p) - 1;
	return false;
}

/* What keeps q from getting one more packet. */
static __always_inline int queue_refuses(const volatile struct worker_queue *q, __u32 tick)
{
	__u32 size = q->size;

	if (!size)
		return REASON_WORKER_ABSENT;
	if (q->sent - q->taken - q->lost >= size || (__s32)(tick - q->beat) >= WORKER_SILENT)
		return REASON_WORKER_FULL;
	return REASON_NONE;
}

/* A packet that leaves by a port, of a leg with stages: moves the leg up, or leaves p->stages and what the
 * worker is told in scratch->handover. */
static __noinline int for_worker(struct xdp_md *ctx, struct packet *p, struct port *port,
				 struct flow_ref *f)
{
	struct scratch *s = scratch();
	struct flow_core *core = f->core;
	struct worker_queue *q;
	struct handover *h;
	__u32 *cell, rule, index;
	int reason;

	if (!s)
		return REASON_INTERNAL;
	if (simulate) {
		p->stages = f->leg->stages;
		return REASON_NONE;
	}
	/* no port has number 0, so nobody serves its queues */
	index = ctx->rx_queue_index < QUEUE_MAX ? QUEUE_INDEX(port->id, ctx->rx_queue_index) : 0;
	p->queue = index;
	q = bpf_map_lookup_elem(&worker_queues, &index);
	if (!q)
		return REASON_INTERNAL;
	reason = queue_refuses(q, p->tick);
	h = &s->handover;
	h->cell = cell_of(p, core);
	if (p->word & WORD_FLAG_READY) {
		__u32 numbers;

		cell = cell_at(h->cell);
		numbers = cell ? *(volatile __u32 *)cell : 1;
		/* or nobody is there who would send what was under way */
		if ((numbers >> 16 == (numbers & 0xffff) || reason == REASON_WORKER_ABSENT) &&
		    move_up(p, core, f->leg))
			return REASON_NONE;
	}
	if (unlikely(reason))
		return bypasses(rule_of(core)) ? REASON_NONE : reason;
	rule = *(volatile __u32 *)&core->rule;
	if (!(rule >> 24) &&
	    __sync_val_compare_and_swap(&core->rule, rule, rule | (__u32)q->worker << 24) == rule)
		rule |= (__u32)q->worker << 24;
	p->stages = f->leg->stages;
	h->stages = p->stages;
	h->generation = p->word >> WORD_GEN_SHIFT;
	h->rule = rule;
	h->epoch = core->epoch;
	h->nth = f->ways->count[0].packets + f->ways->count[1].packets + 1;
	h->family = p->family;
	h->arrival = port->id;
	h->proto = p->kind != PACKET_ERROR ? p->proto :
		   p->family == 4	   ? IPPROTO_ICMP :
					     IPPROTO_ICMPV6;
	return REASON_NONE;
}

/* Puts the handover in front of a packet that is ready to leave by port, and is on its way to the socket.
 * It has its number only now: nothing stops it any more. */
static __noinline int hand_over(struct xdp_md *ctx, struct packet *p, __u32 port)
{
	struct scratch *s = scratch();
	struct worker_queue *q;
	struct handover *h;
	__u32 *cell, index = p->queue;

	if (!s)
		return XDP_DROP;
	q = bpf_map_lookup_elem(&worker_queues, &index);
	if (!q || bpf_xdp_adjust_head(ctx, -(int)sizeof(*h)))
		goto internal;
	h = (void *)(long)ctx->data;
	if ((void *)(h + 1) > (void *)(long)ctx->data_end)
		goto internal;
	cell = cell_at(s->handover.cell);
	s->handover.number = cell ? (__sync_fetch_and_add(cell, 1 << 16) >> 16) + 1 : 0;
	s->handover.port = port;
	s->handover.l3 = p->l3;
	s->handover.l4 = p->l4;
	__builtin_memcpy(h, &s->handover, sizeof(*h));
	__sync_fetch_and_add(&q->sent, 1);
	return XDP_REDIRECT;
internal:
	count_reason(REASON_INTERNAL, p->ip_len);
	return XDP_DROP;
}

#endif
