/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* judge.h: the policy's word on the opening packet of a flow, events about it, and the flow's
 * creation. Shared by XDP and the egress guard. docs/PACKET-PATH.md, sections 7.3 and 9. */
#ifndef SOFTDPU_JUDGE_H
#define SOFTDPU_JUDGE_H

#include "flow.h"
#include "forest.h"

#define SECOND 954 /* ticks */

/* Whether one more event of this rule may be written in this second. */
static __always_inline bool event_due(__u32 rule, __u32 tick)
{
	struct rule_counter *c = bpf_map_lookup_elem(&rules, &rule);

	if (!c)
		return false;
	if (tick - c->log_window >= SECOND) {
		c->log_window = tick;
		c->logged = 0;
	}
	if (c->logged >= event_rate) {
		c->unlogged++;
		return false;
	}
	c->logged++;
	return true;
}

/* A new event of a rule, to be filled and submitted. NULL: the rule has written enough in this second,
 * or the reader is behind; either way it is counted. */
static __always_inline struct event *new_event(__u32 kind, __u32 rule, __u32 tick)
{
	struct event *e;

	if (!event_due(rule, tick))
		return NULL;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		struct rule_counter *c = bpf_map_lookup_elem(&rules, &rule);

		if (c)
			c->unlogged++;
		return NULL;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = kind;
	e->rule = rule;
	e->tick = tick;
	return e;
}

/* Writes an event about the packet at hand, which opens a flow or is refused. */
__noinline int emit_packet(const struct packet *p, __u32 rule, __u32 kind, __u32 reason)
{
	struct event *e;

	if (!p)
		return 0;
	e = new_event(kind, rule, p->tick);
	if (!e)
		return 0;
	e->family = p->family;
	e->proto = p->proto;
	__builtin_memcpy(e->src, p->src, sizeof(e->src));
	__builtin_memcpy(e->dst, p->dst, sizeof(e->dst));
	e->sport = p->sport;
	e->dport = p->dport;
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6)
		e->icmp = p->icmp_type << 8 | p->icmp_code;
	e->from = p->zone;
	e->to = p->to;
	e->reason = reason;
	e->created = p->tick;
	e->count[0].packets = 1;
	e->count[0].bytes = p->ip_len;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* Writes the end of a flow that gave way to a new one. */
static __always_inline void emit_end(__u8 proto, const struct packet *p,
				     const struct flow_core *core, const struct flow_count *count,
				     const __be32 *lo, const __be32 *hi, __u32 words,
				     __be16 lo_port, __be16 hi_port)
{
	__u32 hi_opened = !!(core->word & WORD_FLAG_HI_OPENED), rule = rule_of(core);
	struct event *e;

	e = new_event(EVENT_FLOW_END, rule, p->tick);
	if (!e)
		return;
	e->family = p->family;
	e->proto = proto;
	e->state = state_of(core->word);
	for (int i = 0; i < 4; i++) {
		if (i >= words)
			break;
		e->src[i] = hi_opened ? hi[i] : lo[i];
		e->dst[i] = hi_opened ? lo[i] : hi[i];
	}
	e->sport = hi_opened ? hi_port : lo_port;
	e->dport = hi_opened ? lo_port : hi_port;
	e->from = core->from;
	e->to = core->to;
	e->created = core->created;
	e->count[0] = count[hi_opened & 1];
	e->count[1] = count[(hi_opened & 1) ^ 1];
	bpf_ringbuf_submit(e, 0);
}

/* An audit rule with this verdict matched: count it, log it and go on. Called by the generated
 * classifier. */
__noinline int audit(struct classify_key *key, __u32 verdict)
{
	__u32 rule = verdict & VERDICT_RULE_MASK, tick = now_tick();
	struct rule_counter *c = bpf_map_lookup_elem(&rules, &rule);
	struct event *e;

	if (!key || !c)
		return 0;
	c->judged++;
	c->last = tick;
	if (!(verdict & VERDICT_LOG))
		return 0;
	e = new_event(EVENT_AUDIT, rule, tick);
	if (!e)
		return 0;
	e->family = key->family;
	e->proto = key->proto;
	if (key->family == 4) {
		e->src[0] = bpf_htonl(key->src_lo);
		e->dst[0] = bpf_htonl(key->dst_lo);
	} else {
		e->src[0] = bpf_htonl(key->src_hi >> 32);
		e->src[1] = bpf_htonl(key->src_hi);
		e->src[2] = bpf_htonl(key->src_lo >> 32);
		e->src[3] = bpf_htonl(key->src_lo);
		e->dst[0] = bpf_htonl(key->dst_hi >> 32);
		e->dst[1] = bpf_htonl(key->dst_hi);
		e->dst[2] = bpf_htonl(key->dst_lo >> 32);
		e->dst[3] = bpf_htonl(key->dst_lo);
	}
	if (key->proto == IPPROTO_ICMP || key->proto == IPPROTO_ICMPV6) {
		e->icmp = key->dport;
	} else {
		e->sport = bpf_htons(key->sport);
		e->dport = bpf_htons(key->dport);
	}
	e->from = key->from;
	e->to = key->to;
	e->created = tick;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* The policy's classifier. Go puts the compiled pipeline's instructions in its place; as it stands
 * it refuses everything. */
__noinline __u32 classify(struct classify_key *key)
{
	if (!key)
		return 0;
	return no_pipe(key);
}

static __always_inline void set_address(__u64 *hi, __u64 *lo, const __be32 *a, __u8 family)
{
	if (family == 4) {
		*hi = 0;
		*lo = bpf_ntohl(a[0]);
	} else {
		*hi = (__u64)bpf_ntohl(a[0]) << 32 | bpf_ntohl(a[1]);
		*lo = (__u64)bpf_ntohl(a[2]) << 32 | bpf_ntohl(a[3]);
	}
}

/* Type and code of the query that opened an ICMP flow, whichever of its packets this is. */
static __always_inline __u16 query(const struct packet *p)
{
	__u8 type = p->icmp_type;

	if (p->family == 4)
		type = type == 0 ? 8 : type == 14 ? 13 : type;
	else if (type == 129)
		type = 128;
	return type << 8 | (p->icmp_type == type ? p->icmp_code : 0);
}

/* What the rules are asked about the opening packet of p's flow: p itself, or its mirror image if the
 * opener is the other end. They know original tuples alone, but of what comes in through a mapping. */
static __always_inline void set_key(struct classify_key *key, const struct packet *p, bool mirrored,
				    __u8 from, __u8 to, __u16 context)
{
	bool reply = have_nat && p->xlat & XLAT_REPLY;
	const __be32 *src = reply ? p->out_src : p->src, *dst = reply ? p->out_dst : p->dst;
	__be16 sport = reply ? p->out_sport : p->sport, dport = reply ? p->out_dport : p->dport;

	if (have_mapping && p->xlat & XLAT_INSIDE) {
		/* the end inside as itself, on its packets too, and the other one as itself */
		src = p->src;
		sport = p->sport;
		dst = p->out_dst;
		dport = p->out_dport;
	}

	set_address(&key->src_hi, &key->src_lo, mirrored ? dst : src, p->family);
	set_address(&key->dst_hi, &key->dst_lo, mirrored ? src : dst, p->family);
	key->proto = p->proto;
	key->family = p->family;
	key->from = from;
	key->to = to;
	key->context = context;
	key->bank = p->edition >> 32;
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		key->sport = 0;
		key->dport = query(p);
	} else {
		key->sport = bpf_ntohs(mirrored ? dport : sport);
		key->dport = bpf_ntohs(mirrored ? sport : dport);
	}
}

static __always_inline __u32 judge(const struct packet *p, bool mirrored, __u8 from, __u8 to,
				   __u16 context)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	set_key(&s->key, p, mirrored, from, to, context);
	return classify(&s->key);
}

static __always_inline __u32 action_of(__u32 verdict)
{
	return verdict >> VERDICT_ACTION_SHIFT & VERDICT_ACTION_MASK;
}

static __always_inline int refusal(__u32 action)
{
	switch (action) {
	case ACTION_ALLOW:
		return REASON_NONE;
	case ACTION_DENY:
		return REASON_DENY;
	case ACTION_REJECT:
		return REASON_REJECT;
	case ACTION_SPOOFED:
		return REASON_SPOOFED;
	}
	return REASON_NO_RULE_MATCHED;
}

/* Counts a rule that decided, and the packet if it was refused. */
static __always_inline void count_judged(const struct packet *p, __u32 verdict, bool refused)
{
	__u32 rule = verdict & VERDICT_RULE_MASK;
	struct rule_counter *c = bpf_map_lookup_elem(&rules, &rule);

	if (!c)
		return;
	c->judged++;
	c->last = p->tick;
	if (refused) {
		c->packets++;
		c->bytes += p->ip_len;
	}
}

/* STAGE_* that the running policy asks for a flow between these zones. */
static __always_inline __u8 stages_of(__u32 rule, __u8 from, __u8 to)
{
	struct rule_work *work;

	if (from == ZONE_HOST || to == ZONE_HOST)
		return 0;
	work = bpf_map_lookup_elem(&rule_works, &rule);
	return force_stages | (work ? work->stages : 0);
}

/* Gives a flow another rule. Where there are workers its home, in the same word, may be set on another
 * CPU. */
static __always_inline void set_rule(struct flow_core *core, __u32 rule)
{
	if (!have_workers) {
		core->rule = (core->rule & ~VERDICT_RULE_MASK) | rule;
		return;
	}
	for (int i = 0; i < 3; i++) {
		__u32 old = *(volatile __u32 *)&core->rule;
		__u32 new = (old & ~VERDICT_RULE_MASK) | rule;

		if (__sync_val_compare_and_swap(&core->rule, old, new) == old)
			break;
	}
}

/* Judges a known flow again under the running policy. Leaves REVOKED set or taken off. */
__noinline int rejudge(struct flow_core *core, struct flow_ways *ways, struct packet *p)
{
	__u64 off = WORD_FLAG_REVOKED | WORD_FLAG_LOG, on;
	__u32 verdict, rule, old;
	__u8 stages = 0;

	if (!core || !ways || !p)
		return REASON_INTERNAL;
	if (have_mapping && p->word & WORD_FLAG_INSIDE)
		p->xlat |= XLAT_INSIDE;
	verdict = judge(p, !p->opener, core->from, core->to, core->context);
	if (have_mapping)
		p->xlat &= ~XLAT_INSIDE;
	rule = verdict & VERDICT_RULE_MASK;
	old = rule_of(core);
	core->epoch = epoch_of(p);
	if (action_of(verdict) != ACTION_ALLOW) {
		change_flags(core, &p->word, 0, WORD_FLAG_REVOKED);
		return REASON_POLICY_REVOKED;
	}
	count_judged(p, verdict, false);
	if (rule != old) {
		/* what it counted so far stays with the old rule; replies are replies under both */
		__u64 packets = ways->count[0].packets + ways->count[1].packets;
		__u64 bytes = ways->count[0].bytes + ways->count[1].bytes;

		count_rule(old, packets, bytes);
		count_rule(rule, -packets, -bytes);
		set_rule(core, rule);
	}
	if (p->word & WORD_FLAG_REVOKED) {
		struct table_counter *t = table_counter();

		if (t)
			t->revived++;
	}
	on = verdict & VERDICT_LOG ? WORD_FLAG_LOG : 0;
	if (have_workers) {
		stages = stages_of(rule, core->from, core->to);
		if (stages)
			off |= WORD_FLAG_READY;
		else if (ways->leg[0].stages | ways->leg[1].stages)
			on |= WORD_FLAG_READY;
	}
	change_flags(core, &p->word, off, on);
	/* behind READY: see move_up() */
	if (have_workers && stages)
		ways->leg[0].stages = ways->leg[1].stages = stages;
	return REASON_NONE;
}

static __always_inline bool opens_tcp(const struct packet *p, __u32 verdict)
{
	__u8 flags = p->tcp_flags;

	if ((flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN)
		return true;
	return verdict & VERDICT_MIDSTREAM && flags & TCP_ACK && !(flags & (TCP_SYN | TCP_RST));
}

/* Counts how creation ended. Closed: the connection's old flow was taken out of the overflow for it. */
static __always_inline int after_insert(int result, bool closed)
{
	struct table_counter *t = table_counter();

	if (!t)
		return REASON_INTERNAL;
	switch (result) {
	case INSERT_OVERFLOW:
		t->overflowed++;
		break;
	case INSERT_EVICTED:
		t->evicted++;
		break;
	case INSERT_REOPENED:
		closed = true;
		break;
	case INSERT_CREATED:
		break;
	case INSERT_EXISTS:
		t->evicted += closed;
		return REASON_NONE;
	case INSERT_FULL:
		t->evicted += closed;
		t->refused++;
		return REASON_FLOW_TABLE_FULL;
	default:
		return REASON_INTERNAL;
	}
	if (closed)
		t->reopened++;
	else
		t->created++;
	return REASON_NONE;
}

/* The flow in scratch->gone* had to give way: its counts are credited, its end is told. */
static __noinline void credit_gone(const struct packet *p, struct scratch *s)
{
	if (p->family == 4) {
		struct flow4 *g = &s->gone4;

		credit_flow(&g->core, g->count);
		if (g->core.word & WORD_FLAG_LOG)
			emit_end(g->key.proto, p, &g->core, g->count, &g->key.lo, &g->key.hi, 1,
				 g->key.lo_port, g->key.hi_port);
	} else {
		struct flow6 *g = &s->gone6;

		credit_flow(&g->core, g->count);
		if (g->core.word & WORD_FLAG_LOG)
			emit_end(g->key.proto, p, &g->core, g->count, g->key.lo, g->key.hi, 4,
				 g->key.lo_port, g->key.hi_port);
	}
}

/* As credit_gone(), and ends its translation. */
static __always_inline void let_go(const struct packet *p, struct scratch *s)
{
	credit_gone(p, s);
	if (!have_nat)
		return;
	if (p->family == 4) {
		if (s->gone4.leg[0].flags & LEG_XLAT)
			end_translation4(p, s, &s->gone4);
	} else if (s->gone6.leg[0].flags & LEG_XLAT) {
		end_translation6(p, s, &s->gone6);
	}
}

/* Asks the rules about a packet of no known flow, its zones known. Allowed, what its flow starts with
 * is in scratch->opening. */
__noinline int judge_opening(struct packet *p, __u16 context)
{
	struct scratch *s = scratch();
	struct opening *o;
	__u32 verdict;
	int reason;

	if (!p || !s)
		return REASON_INTERNAL;
	verdict = judge(p, false, p->zone, p->to, context);
	p->verdict = verdict;
	reason = refusal(action_of(verdict));
	if (!reason && p->proto == IPPROTO_TCP && !opens_tcp(p, verdict))
		reason = REASON_NOT_SYN;
	count_judged(p, verdict, reason);
	if (reason) {
		if (verdict & VERDICT_LOG)
			emit_packet(p, verdict & VERDICT_RULE_MASK, EVENT_DENY, reason);
		return reason;
	}
	o = &s->opening;
	__builtin_memset(o, 0, sizeof(*o));
	o->rule = verdict & VERDICT_RULE_MASK;
	o->from = p->zone;
	o->to = p->to;
	o->context = context;
	if (have_workers)
		o->stages = stages_of(o->rule, o->from, o->to);
	o->state = p->proto != IPPROTO_TCP ? FLOW_NEW :
		   p->tcp_flags & TCP_SYN  ? FLOW_SYN_SENT :
					     FLOW_ESTABLISHED;
	o->flags = verdict & VERDICT_LOG ? WORD_FLAG_LOG : 0;
	if (o->state == FLOW_ESTABLISHED)
		o->flags |= WORD_FLAG_MIDSTREAM;
	if (have_mapping && p->xlat & XLAT_INSIDE)
		o->flags |= WORD_FLAG_INSIDE;
	return REASON_NONE;
}

/* The key of the flow that p opens, in scratch, and what follows from it. */
static __always_inline void set_opening_key(const struct packet *p, struct scratch *s)
{
	struct opening *o = &s->opening;

	if (p->family == 4) {
		o->side =
			key_of4(&s->key4, p->src, p->dst, p->sport, p->dport, p->proto, p->domain);
		o->hash = hash4(&s->key4);
	} else {
		o->side =
			key_of6(&s->key6, p->src, p->dst, p->sport, p->dport, p->proto, p->domain);
		o->hash = hash6(&s->key6);
	}
}

/* Creates the flow that scratch->opening is about. */
__noinline int enter_flow(struct packet *p)
{
	struct scratch *s = scratch();
	struct opening *o;
	int reason, result;
	bool closed;

	if (!p || !s)
		return REASON_INTERNAL;
	o = &s->opening;
	set_opening_key(p, s);
	if (o->side)
		o->flags |= WORD_FLAG_HI_OPENED;
	if (p->family == 4) {
		closed = p->reopen && close_overflow4(&s->key4, s);
		if (closed)
			let_go(p, s);
		result = insert4(&s->key4, o, p, s);
	} else {
		closed = p->reopen && close_overflow6(&s->key6, s);
		if (closed)
			let_go(p, s);
		result = insert6(&s->key6, o, p, s);
	}
	reason = after_insert(result, closed);
	if (result == INSERT_EVICTED || result == INSERT_REOPENED)
		let_go(p, s);
	if (have_nat && p->xlat && (reason || result == INSERT_EXISTS)) {
		if (p->family == 4)
			take_back4(p, s);
		else
			take_back6(p, s);
		p->xlat = 0; /* what the flow that is there says is for find() to see */
	}
	if (!reason && result != INSERT_EXISTS && p->verdict & VERDICT_LOG)
		emit_packet(p, o->rule, EVENT_FLOW_START, REASON_NONE);
	return reason;
}

/* A packet of no known flow, its zones known: asks the rules and creates the flow. Two functions, so
 * that their stack frames do not add up: Linux 6.1 counts each as a multiple of 32 bytes, and the
 * deepest chain of calls has 512. */
static __always_inline int open_flow(struct packet *p, __u16 context)
{
	int reason = judge_opening(p, context);

	return reason ? reason : enter_flow(p);
}

#endif
