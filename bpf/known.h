/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * known.h: from a packet to its flow, and what the flow says of it: found, opened if it is the first of
 * one, judged again, routed again, tracked. docs/PACKET-PATH.md, sections 7 to 10.
 */
#ifndef SOFTDPU_KNOWN_H
#define SOFTDPU_KNOWN_H

#include "flow.h"
#include "icmp.h"
#include "judge.h"
#include "nat.h"
#include "open.h"
#include "route.h"
#include "track.h"
#include "work.h"

/* A SYN on a connection that is over opens a new one in its place. */
static __always_inline bool reopens(const struct packet *p)
{
	return p->proto == IPPROTO_TCP && (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
	       p->kind == PACKET_FLOW && p->frag != FRAG_LATER && over(state_of(p->word));
}

/* A SYN that comes by an alias opens nothing: its key is taken. */
static __always_inline int by_alias(struct packet *p, int found)
{
	if (found != FIND_FLOW || likely(!reopens(p)))
		return found;
	p->leg = 0;
	p->xlat = 0;
	return REASON_NAT_CONFLICT;
}

/* Looks p's flow up. FIND_NONE: there is none, or p opens another in its place. */
static __always_inline int find(struct packet *p, struct flow_ref *ref)
{
	bool translated = false;
	__u32 side;

	if (p->family == 4) {
		struct flow4_key key;
		struct flow4 *f;

		side = key_of4(&key, p->src, p->dst, p->sport, p->dport, p->proto, p->domain);
		f = find4(&key, hash4(&key));
		if (!f)
			return FIND_NONE;
		if (have_nat && state_of(load(&f->core.word)) == FLOW_ALIAS)
			return by_alias(p, follow4(p, ref, f, side));
		refer4(ref, f, side, p);
		if (have_nat && ref->leg->flags & LEG_XLAT) {
			go_out4(p, f, side);
			translated = true;
		}
	} else {
		struct flow6_key key;
		struct flow6 *f;

		side = key_of6(&key, p->src, p->dst, p->sport, p->dport, p->proto, p->domain);
		f = find6(&key, hash6(&key));
		if (!f)
			return FIND_NONE;
		if (have_nat && state_of(load(&f->core.word)) == FLOW_ALIAS)
			return by_alias(p, follow6(p, ref, f, side));
		refer6(ref, f, side, p);
		if (have_nat && ref->leg->flags & LEG_XLAT) {
			go_out6(p, f, side);
			translated = true;
		}
	}
	if (have_nat && translated && !p->opener) {
		p->xlat = 0;
		if (own_error(p))
			return FIND_FLOW;
		p->leg = 0;
		return REASON_NAT_UNTRANSLATED;
	}
	if (unlikely(reopens(p))) {
		p->reopen = 1;
		if (have_nat)
			p->xlat = 0;
		return FIND_NONE;
	}
	return FIND_FLOW;
}

/* Seldom used, so it need not stand in line. */
static __noinline int find_again(struct packet *p, struct flow_ref *ref)
{
	return find(p, ref);
}

/* What a packet of no known flow must be to open one. */
static __always_inline int may_open(const struct packet *p)
{
	if (p->kind == PACKET_REPLY)
		return REASON_ICMP_NO_REQUEST;
	return p->frag == FRAG_LATER ? REASON_FRAGMENT_NO_FIRST : REASON_NONE;
}

/* Identity of the frame's source, 0 if the policy names none such. */
static __always_inline __u16 identity(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	__u8 mac[6];
	__u16 *found;

	if (!have_macs || data + sizeof(struct ethhdr) > (void *)(long)ctx->data_end)
		return 0;
	__builtin_memcpy(mac, data + 6, 6);
	found = bpf_map_lookup_elem(&macs, mac);
	return found ? *found : 0;
}

/* No flow: route, rules, and a place in the table. */
__noinline int miss(struct xdp_md *ctx, struct packet *p, struct port *port)
{
	int reason;

	if (!p || !port)
		return REASON_INTERNAL;
	reason = may_open(p);
	if (!reason)
		reason = route(ctx, p, port);
	return reason ? reason : open_flow(p, identity(ctx));
}

/* As miss(), if the policy translates. */
__translation int miss_translated(struct xdp_md *ctx, struct packet *p, struct port *port)
{
	struct scratch *s = scratch();
	__u16 context;
	int reason;

	if (!p || !port || !s)
		return REASON_INTERNAL;
	reason = may_open(p);
	context = identity(ctx);
	s->nat.destination_rule = 0;
	if (have_filtering)
		s->nat.undecided = 0;
	if (!reason && !(port->flags & PORT_INLINE) && !is_group_address(p))
		reason = choose_destination(p, context);
	if (have_filtering && !reason && s->nat.undecided)
		reason = admit(p);
	if (!reason)
		reason = route(ctx, p, port);
	if (reason)
		return reason;
	if (p->to == ZONE_HOST && s->nat.destination_rule)
		return REASON_NAT_TO_HOST;
	reason = judge_opening(p, context);
	if (reason)
		return reason;
	return port->flags & PORT_INLINE || p->to == ZONE_HOST ? enter_flow(p) :
								 open_translated(p, s);
}

/* The leg's route is not known or no longer good. */
__noinline int route_leg(struct xdp_md *ctx, struct packet *p, struct port *port, struct leg *leg)
{
	int reason;

	if (!p || !port || !leg)
		return REASON_INTERNAL;
	reason = route(ctx, p, port);
	if (reason)
		return reason;
	leg->nexthop = p->nexthop;
	leg->route = p->tick >> 2;
	return REASON_NONE;
}

/* A flow that now leaves by another zone is judged again. */
static __always_inline int reroute(struct xdp_md *ctx, struct packet *p, struct port *port,
				   struct flow_ref *f)
{
	__u8 *zone = p->opener ? &f->core->to : &f->core->from;
	int reason = route_leg(ctx, p, port, f->leg);

	if (reason || likely(p->to == *zone))
		return reason;
	*zone = p->to;
	reason = rejudge(f->core, f->ways, p);
	p->verdict = rule_of(f->core) | ACTION_ALLOW << VERDICT_ACTION_SHIFT;
	return reason;
}

/* A packet of a known flow: everything up to the rewrite. Leaves the next hop in *out. */
static __always_inline int known(struct xdp_md *ctx, struct packet *p, struct port *port,
				 const struct gateway_state *gw, struct flow_ref *f,
				 struct nexthop **out)
{
	bool inlined = port->flags & PORT_INLINE, error = p->kind == PACKET_ERROR, wrong;
	struct leg *leg = f->leg;
	struct nexthop *hop;
	int reason = REASON_NONE;

	p->verdict = rule_of(f->core) | ACTION_ALLOW << VERDICT_ACTION_SHIFT;
	if (unlikely(state_of(p->word) == FLOW_FREE))
		return REASON_FLOW_GONE;
	wrong = p->zone != (p->opener ? f->core->from : f->core->to);
	if (unlikely(wrong && !error))
		return REASON_WRONG_ZONE;
	if (unlikely((__s32)(f->core->epoch - epoch_of(p)) < 0))
		rejudge(f->core, f->ways, p);
	p->verdict = rule_of(f->core) | ACTION_ALLOW << VERDICT_ACTION_SHIFT;
	if (unlikely(p->word & (WORD_FLAG_REVOKED | WORD_FLAG_MARKED))) {
		if (p->word & WORD_FLAG_REVOKED) {
			if (!error)
				return REASON_POLICY_REVOKED;
			p->verdict = 0; /* as if there were no flow */
			return REASON_ICMP_NO_FLOW;
		}
		if (!change_flags(f->core, &p->word, WORD_FLAG_MARKED, 0))
			return REASON_FLOW_GONE;
	}
	if (unlikely(wrong))
		return REASON_WRONG_ZONE;

	p->nexthop = leg->nexthop;
	hop = nexthop_at(p->nexthop);
	if (inlined ? p->nexthop == NEXTHOP_NONE :
		      route_stale(leg, p->tick, gw->route_changed) ||
			      (hop && hop->state != NEXTHOP_READY)) {
		reason = reroute(ctx, p, port, f);
		if (reason)
			return reason;
		hop = nexthop_at(p->nexthop);
	}
	if (!hop)
		return REASON_INTERNAL;
	if (p->nexthop == NEXTHOP_HOST) {
		p->pass = 1 + PASS_HOST;
	} else {
		if (!inlined && unlikely(p->ttl <= 1))
			return REASON_TTL_EXPIRED;
		if (unlikely(p->ip_len > hop->src >> 48)) {
			if (inlined || p->df)
				return REASON_TOO_BIG;
			p->pass = 1 + PASS_FRAGMENT;
		}
	}
	if (have_workers && unlikely(leg->stages && !p->pass)) {
		reason = for_worker(ctx, p, port, f);
		if (reason)
			return reason;
	}

	if (p->frag != FRAG_LATER && !error) {
		if (p->proto != IPPROTO_TCP)
			reason = track_other(f->core, p);
		else if (likely(state_of(p->word) == FLOW_ESTABLISHED && p->tcp_flags == TCP_ACK))
			note_window(leg, p->ack, p->win);
		else
			reason = track_tcp(f->core, leg, f->peer, p);
		if (unlikely(reason))
			return reason;
	}
	/* a half-open flow may have been replaced since it was found */
	if (half_open(state_of(p->word)) &&
	    load(&f->core->word) >> WORD_GEN_SHIFT != p->word >> WORD_GEN_SHIFT)
		return REASON_FLOW_GONE;
	f->count->packets++;
	f->count->bytes += p->ip_len;
	if (unlikely(error))
		count_admitted(RULE_ICMP_ERRORS, p->ip_len, p->tick);
	else
		leg->seen = p->tick;
	*out = hop;
	return REASON_NONE;
}

/* Reason for which p is refused; none: p->pass or *out says where it goes. */
static __always_inline int decide(struct xdp_md *ctx, struct packet *p, struct port *port,
				  const struct gateway_state *gw, struct nexthop **out)
{
	struct flow_ref f = {};
	int reason;

	if (unlikely(p->kind == PACKET_ERROR)) {
		reason = quoted_xdp(ctx, p);
		if (reason)
			return reason;
		reason = find_again(p, &f);
		if (unlikely(reason))
			return reason == FIND_NONE ? REASON_ICMP_NO_FLOW : reason;
	} else {
		reason = find(p, &f);
		if (unlikely(reason == FIND_NONE)) {
			reason = have_nat ? miss_translated(ctx, p, port) : miss(ctx, p, port);
			if (reason)
				return reason;
			reason = find_again(p, &f);
			if (reason == FIND_NONE)
				return REASON_FLOW_GONE;
		}
		if (unlikely(reason))
			return reason;
	}
	return known(ctx, p, port, gw, &f, out);
}

#endif
