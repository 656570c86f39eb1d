//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * xdp.c: the packet path. docs/PACKET-PATH.md says what each step does and in which order.
 *
 *   dispatch -> softdpu: arrive - parse - fragments - find - (miss: route, judge, open) - known - send,
 *     or hand_over() to a worker (work.h). A policy that translates has miss_translated() in the place of
 *     miss(), and translate() before send() has rewritten anything
 *   guard_dispatch -> guard: what the kernel sends by our ports (guard.h)
 *   softdpu_tapped, guard_tapped: the same while somebody captures (tap.h)
 *   mark: hands XDP's mark on to the guard
 *
 * A step returns enum reason; REASON_NONE means go on. Only finish() counts and answers.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "parse.h"
#include "flow.h"
#include "track.h"
#include "fragment.h"
#include "hold.h"
#include "icmp.h"
#include "route.h"
#include "judge.h"
#include "work.h"
#include "known.h"
#include "send.h"
#include "mss.h"
#include "translate.h"
#include "pass.h"
#include "reject.h"
#include "drop.h"
#include "tap.h"

/* For bpf2go: types that no map mentions. */
#define EXPORT(kind, name) const kind name *export_##name __attribute__((unused))
EXPORT(enum, action);
EXPORT(enum, builtin_rule);
EXPORT(enum, reason);
EXPORT(enum, pass_cause);
EXPORT(enum, flow_state);
EXPORT(enum, packet_kind);
EXPORT(enum, event_kind);
EXPORT(enum, set_field);
EXPORT(enum, forest_limit);
EXPORT(enum, forest_node);
EXPORT(enum, forest_flag);
EXPORT(struct, forest_entry);
EXPORT(struct, event);
EXPORT(struct, classify_key);
EXPORT(struct, pass_mark);
EXPORT(enum, tap_point);
EXPORT(struct, tapped);
EXPORT(struct, worker_queue);
EXPORT(struct, cells);
EXPORT(struct, handover);
EXPORT(struct, rule_work);
EXPORT(enum, nat_kind);
EXPORT(struct, alias4);
EXPORT(struct, alias6);
EXPORT(struct, nat_rule);
EXPORT(struct, nat_server);
EXPORT(struct, nat_bitmap);
EXPORT(struct, nat_device);
EXPORT(struct, nat_address);
EXPORT(struct, nat_counter);
EXPORT(struct, nat_pass);
EXPORT(struct, nat_tallies);
EXPORT(struct, held);

static __always_inline struct port *port_of(__u32 ifindex, const struct gateway_state *gw)
{
	__u32 index = ifindex * gw->port_mul >> 24;
	struct port *port = bpf_map_lookup_elem(&ports, &index);

	return port && port->ifindex == ifindex && ifindex ? port : NULL;
}

/* Zone and routing domain of a frame. */
static __always_inline int arrive(struct packet *p, const struct port *port)
{
	p->zone = port->zone;
	if (unlikely(p->vlan)) {
		__u32 key = (__u32)port->id << 12 | p->vlan;
		__u8 *zone = bpf_map_lookup_elem(&vlan_zones, &key);

		p->zone = zone ? *zone : ZONE_NONE;
	}
	p->domain = port->flags & PORT_INLINE ? (__u16)port->pair << 12 | p->vlan : port->domain;
	return p->zone == ZONE_NONE ? REASON_VLAN_UNKNOWN : REASON_NONE;
}

static __always_inline bool for_port(const void *data, const struct port *port)
{
	const __u32 *d = data, *m = (const void *)port->mac;

	return d[0] == m[0] && *(const __u16 *)(d + 1) == *(const __u16 *)(m + 1);
}

static __always_inline bool passed_ethertype(const struct gateway_state *gw, __be16 proto)
{
	for (int i = 0; i < 8; i++) {
		if (gw->ethertypes[i] == proto)
			return proto;
	}
	return false;
}

/* Whether nobody would carry p on: what is not for the link or the gateway, discovery or not, the kernel
 * would route past the rules. */
static __always_inline bool ends_here(const struct packet *p)
{
	struct sim *s;

	if (multicast6(p->dst) || linklocal6(p->dst))
		return true;
	if (!simulate)
		return is_local(p->dst, p->family);
	s = sim();
	return s && s->control.route == NEXTHOP_HOST;
}

/* ARP, discovery and listed ethertypes: to the inline peer, or to the kernel. */
static __always_inline int beside_ip(struct xdp_md *ctx, struct packet *p, const struct port *port,
				     const struct gateway_state *gw)
{
	if (p->kind == PACKET_ND && !(port->flags & PORT_INLINE) && !ends_here(p))
		return REASON_ICMP_TYPE;
	if (p->kind != PACKET_ETHERTYPE) {
		p->verdict = (p->kind == PACKET_ARP ? RULE_ARP : RULE_ND) |
			     ACTION_ALLOW << VERDICT_ACTION_SHIFT;
		count_admitted(p->verdict & VERDICT_RULE_MASK, bpf_xdp_get_buff_len(ctx), p->tick);
	}
	if (port->flags & PORT_INLINE) {
		if (p->kind == PACKET_ETHERTYPE && !passed_ethertype(gw, p->ethertype))
			return REASON_ETHERTYPE;
		p->nexthop = port->peer;
		return REASON_NONE;
	}
	if (p->kind == PACKET_ETHERTYPE)
		return REASON_ETHERTYPE;
	p->pass = 1 + (p->kind == PACKET_ARP ? PASS_ARP : PASS_ND);
	return REASON_NONE;
}

static __always_inline void count_pass(__u32 cause, __u32 bytes)
{
	struct counter *c = bpf_map_lookup_elem(&passes, &cause);

	if (c) {
		c->packets++;
		c->bytes += bytes;
	}
}

/* Counts a refused packet and, where one is due, answers it. */
__noinline int refuse(struct xdp_md *ctx, struct packet *p, struct port *port, int reason)
{
	if (!p || !port)
		return XDP_DROP;
	count_reason(reason, bpf_xdp_get_buff_len(ctx));
	tell_drop(ctx, HOOK_XDP, p, port, reason);
	if (reason == REASON_REJECT ||
	    (have_nat && p->xlat && (reason == REASON_TTL_EXPIRED || reason == REASON_TOO_BIG))) {
		int verdict = reason == REASON_REJECT ? reject(ctx, p, port) :
							explain(ctx, p, port, reason);

		/* XDP_TX does not wake a veth peer that has NAPI but no program; a redirect does */
		if (verdict == XDP_TX && !simulate)
			verdict = bpf_redirect_map(&devices, port->id, 0);
		return verdict;
	}
	/* the kernel says what is wrong to the sender; its answer is the host's own packet */
	if ((reason == REASON_TTL_EXPIRED || reason == REASON_TOO_BIG) &&
	    !(port->flags & PORT_INLINE) && !leave_mark(ctx, MARK_REFUSED))
		return XDP_PASS;
	return XDP_DROP;
}

__noinline int pass(struct xdp_md *ctx, struct packet *p, struct port *port)
{
	int element = 0;
	__u32 cause;

	if (!p || !port)
		return XDP_DROP;
	cause = p->pass - 1;
	count_pass(cause, bpf_xdp_get_buff_len(ctx));
	if (cause != PASS_NEIGHBOUR && cause != PASS_FRAGMENT)
		return XDP_PASS;
	if (have_nat && p->xlat)
		element = pass_translated(ctx, p, port);
	if (element < 0 || leave_mark(ctx, cause | element))
		return XDP_DROP;
	return XDP_PASS;
}

static __always_inline void report(const struct packet *p, int reason)
{
	struct sim *s = sim();

	if (!s)
		return;
	s->result.reason = reason;
	s->result.rule = p->verdict & VERDICT_RULE_MASK;
	s->result.action = action_of(p->verdict);
	s->result.pass = reason ? 0 : p->pass;
	s->result.nexthop = p->nexthop;
	s->result.leg = p->leg;
	s->result.word = p->leg ? p->word : 0;
	s->result.stages = reason ? 0 : p->stages;
	s->result.xlat = have_nat && !reason ? p->xlat : 0;
}

static __always_inline struct port *arrival_port(struct xdp_md *ctx, const struct gateway_state *gw)
{
	struct sim *s;

	if (!simulate)
		return port_of(ctx->ingress_ifindex, gw);
	s = sim();
	return port_of(s ? s->control.ifindex : 0, gw);
}

/* Sends a packet that is neither refused nor for the kernel. */
static __always_inline int send(struct xdp_md *ctx, struct packet *p, struct port *port,
				const struct nexthop *hop, bool tapped)
{
	int verdict;

	if (port->flags & PORT_FIX_CHECKSUM && p->kind < PACKET_ND &&
	    checksum_missing((void *)(long)ctx->data, (void *)(long)ctx->data_end, p))
		complete_checksum(ctx, p);
	if (have_nat && p->xlat && translate(ctx, p, false)) {
		count_reason(REASON_INTERNAL, p->ip_len);
		return XDP_DROP;
	}
	if (!(port->flags & PORT_INLINE) && rewrite(ctx, p, hop->dst, hop->src)) {
		count_reason(REASON_INTERNAL, p->ip_len);
		return XDP_DROP;
	}
	if (have_workers && !simulate && unlikely(p->stages)) {
		verdict = bpf_redirect_map(&sockets, p->queue, XDP_DROP);
		if (likely(verdict == XDP_REDIRECT)) {
			if (tapped)
				tap_departure(ctx, p, hop->port, REASON_NONE);
			return hand_over(ctx, p, hop->port);
		}
		if (!bypasses(p->verdict & VERDICT_RULE_MASK))
			return refuse(ctx, p, port, REASON_WORKER_ABSENT);
	}
	verdict = bpf_redirect_map(&devices, hop->port, 0);
	if (unlikely(verdict != XDP_REDIRECT) && !simulate)
		return refuse(ctx, p, port, REASON_EGRESS_DOWN);
	if (tapped)
		tap_departure(ctx, p, hop->port, REASON_NONE);
	return verdict;
}

/* Everything behind the parser. */
static __always_inline int go_on(struct xdp_md *ctx, struct packet *p, struct port *port,
				 const struct gateway_state *gw, int reason, bool tapped)
{
	struct nexthop *hop = NULL;

	if (!p || !port || !gw)
		return XDP_DROP;
	if (unlikely(reason))
		goto out;
	if (unlikely(p->kind >= PACKET_ND)) {
		reason = beside_ip(ctx, p, port, gw);
		goto out;
	}
	if (unlikely(p->frag)) {
		bool again = p->frag == FRAG_LATER && comes_again(ctx);

		reason = fragment_known(p);
		if (p->frag == FRAG_FIRST && reason == REASON_FRAGMENT_NO_FIRST)
			reason = REASON_NONE;
		if (!simulate && reason == REASON_FRAGMENT_NO_FIRST && !again && hold(ctx, p))
			return XDP_DROP;
		if (reason) {
			if (reason == REASON_NO_RULE_MATCHED || reason == REASON_DENY ||
			    reason == REASON_REJECT)
				count_rule(p->verdict, 1, p->ip_len);
			goto out;
		}
	}
	reason = decide(ctx, p, port, gw, &hop);
	if (unlikely(p->frag == FRAG_FIRST && p->kind != PACKET_ERROR))
		fragment_enter(p, reason);
out:
	if (simulate)
		report(p, reason);
	if (tapped)
		tap_arrival(ctx, p, port, reason);
	if (unlikely(reason)) {
		int verdict = refuse(ctx, p, port, reason);

		if (tapped && verdict != XDP_DROP && verdict != XDP_PASS)
			tap_departure(ctx, p, port->id, reason);
		return verdict;
	}
	if (have_mss && unlikely(p->tcp_flags & TCP_SYN) && hop && p->pass != 1 + PASS_HOST)
		clamp_mss(ctx, p, port, hop->port);
	if (unlikely(p->pass))
		return pass(ctx, p, port);
	if (unlikely(!hop)) {
		hop = nexthop_at(p->nexthop);
		if (!hop)
			return refuse(ctx, p, port, REASON_INTERNAL);
	}
	return send(ctx, p, port, hop, tapped);
}

/* Global functions, so that the verifier looks at each once and not once for each way through the
 * parser. */
__noinline int forward(struct xdp_md *ctx, struct packet *p, struct port *port,
		       const struct gateway_state *gw, int reason)
{
	return go_on(ctx, p, port, gw, reason, false);
}

__noinline int forward_tapped(struct xdp_md *ctx, struct packet *p, struct port *port,
			      const struct gateway_state *gw, int reason)
{
	return go_on(ctx, p, port, gw, reason, true);
}

static __always_inline int parse(struct xdp_md *ctx, struct packet *p, const struct port *port)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	int reason = parse_ethernet(data, data_end, p);

	if (unlikely(reason))
		return reason;
	reason = arrive(p, port);
	if (unlikely(reason))
		return reason;
	if (!(port->flags & PORT_INLINE) && !p->group_mac && unlikely(!for_port(data, port)))
		return REASON_NOT_FOR_US;
	return parse_network(ctx, HOOK_XDP, data, data_end, p);
}

/* One generation: policies that differ in their edition alone, tables and tunables. */
static __always_inline int generation(struct xdp_md *ctx, bool tapped)
{
	struct gateway_state *gw = gateway_state();
	struct scratch *s = scratch();
	struct packet *p;
	struct port *port;

	if (!gw || !s)
		return XDP_DROP;
	p = &s->packet;
	clear_packet(p);
	if (tapped || drop_events)
		forget(p);
	port = arrival_port(ctx, gw);
	if (unlikely(!port)) {
		count_reason(REASON_INTERNAL, ctx->data_end - ctx->data);
		return XDP_DROP;
	}
	p->tick = now_tick();
	if (tapped)
		return forward_tapped(ctx, p, port, gw, parse(ctx, p, port));
	return forward(ctx, p, port, gw, parse(ctx, p, port));
}

SEC("xdp.frags")
int softdpu(struct xdp_md *ctx)
{
	return generation(ctx, false);
}

SEC("xdp.frags")
int softdpu_tapped(struct xdp_md *ctx)
{
	return generation(ctx, true);
}

/* What is attached to every port, but where vlan.c's does more, and never replaced. */
SEC("xdp.frags")
int dispatch(struct xdp_md *ctx)
{
	return to_generation(ctx);
}

#include "guard.h"

char program_license[] SEC("license") = "Dual BSD/GPL";
