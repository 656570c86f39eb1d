/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* drop.h: events about drops that no rule decided, for the reasons that the operator asks for. */
#ifndef SOFTDPU_DROP_H
#define SOFTDPU_DROP_H

#include "judge.h"

_Static_assert(REASON_LEN <= 64, "drop_events has a bit for every reason");

/* Whether drops for this reason are told. Known to the verifier, so what is off is not there. */
static __always_inline bool told(__u32 reason)
{
	return drop_events && drop_events >> (reason & 63) & 1;
}

/* What a parser that gives up leaves as the packet before had it, and an event would show. */
static __always_inline void forget(struct packet *p)
{
	p->proto = 0;
	p->icmp_type = 0;
	p->icmp_code = 0;
	p->zone = ZONE_NONE;
	p->to = ZONE_NONE;
}

/* Whether one more event of this reason may be written in this second. */
static __always_inline bool drop_due(struct drop_log *l, __u32 tick)
{
	if (tick - l->window >= SECOND) {
		l->window = tick;
		l->logged = 0;
	}
	if (l->logged >= event_rate)
		return false;
	l->logged++;
	return true;
}

/* Writes an event about a packet that is dropped at this port. */
static __always_inline void tell_drop(void *ctx, enum hook hook, const struct packet *p,
				      const struct port *port, __u32 reason)
{
	struct drop_log *l;
	struct event *e;

	if (!told(reason) || (reason == REASON_NOT_SYN && p->verdict & VERDICT_LOG))
		return; /* the latter is told already, as the rule's own */
	l = bpf_map_lookup_elem(&drop_logs, &reason);
	if (!l)
		return;
	e = drop_due(l, p->tick) ? bpf_ringbuf_reserve(&events, sizeof(*e), 0) : NULL;
	if (!e) {
		l->unlogged++;
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = EVENT_DROP;
	e->family = p->family;
	e->proto = p->proto;
	e->rule = p->verdict & VERDICT_RULE_MASK;
	__builtin_memcpy(e->src, p->src, sizeof(e->src));
	__builtin_memcpy(e->dst, p->dst, sizeof(e->dst));
	e->sport = p->sport;
	e->dport = p->dport;
	e->icmp = p->icmp_type << 8 | p->icmp_code;
	e->from = p->zone;
	e->to = p->to;
	e->reason = reason;
	e->port = port->id;
	e->packet = p->kind;
	e->guard = hook == HOOK_TC;
	e->vlan = p->vlan;
	e->created = p->tick;
	e->tick = p->tick;
	e->count[0].packets = 1;
	e->count[0].bytes = frame_length(ctx, hook);
	load_bytes(ctx, hook, 0, e->ethernet, sizeof(e->ethernet)); /* or zeroes stay */
	bpf_ringbuf_submit(e, 0);
}

#endif
