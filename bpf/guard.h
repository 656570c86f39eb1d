/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * guard.h: what the kernel sends by our ports. Forwarded packets need the mark that XDP left in front
 * of them; the host's own are judged like everybody's, from the zone `host`, and tracked, so that
 * their answers come back.
 */
#ifndef SOFTDPU_GUARD_H
#define SOFTDPU_GUARD_H

#define HEADERS_MAX 192

static __always_inline int guard_flow(struct packet *p, struct flow_ref *f)
{
	int reason = REASON_NONE;
	__u8 zone;

	if (state_of(p->word) == FLOW_FREE)
		return REASON_FLOW_GONE;
	if (p->zone != (p->opener ? f->core->from : f->core->to) && p->kind != PACKET_ERROR)
		return REASON_WRONG_ZONE;
	if ((__s32)(f->core->epoch - epoch_of(p)) < 0)
		rejudge(f->core, f->ways, p);
	if (p->word & WORD_FLAG_REVOKED)
		return REASON_POLICY_REVOKED;
	if (p->word & WORD_FLAG_MARKED && !change_flags(f->core, &p->word, WORD_FLAG_MARKED, 0))
		return REASON_FLOW_GONE;
	zone = p->opener ? f->core->to : f->core->from;
	if (unlikely(p->to != zone)) {
		/* nobody has an answer sent to another zone by giving a source that lives there */
		if (!p->opener || p->kind == PACKET_ERROR)
			return REASON_WRONG_ZONE;
		/* the flow stays as it was: it may be one of several, to one group by many ports */
		f->core->to = p->to;
		reason = rejudge(f->core, f->ways, p);
		if (reason) {
			f->core->to = zone;
			change_flags(f->core, &p->word, WORD_FLAG_REVOKED, 0);
			return reason;
		}
	}
	if (p->kind == PACKET_ERROR) {
		f->count->packets++;
		f->count->bytes += p->ip_len;
		count_admitted(RULE_ICMP_ERRORS, p->ip_len, p->tick);
		return REASON_NONE;
	}
	if (p->frag != FRAG_LATER) {
		if (p->proto == IPPROTO_TCP)
			reason = track_tcp(f->core, f->leg, f->peer, p);
		else
			reason = track_other(f->core, p);
		if (reason)
			return reason;
	}
	f->count->packets++;
	f->count->bytes += p->ip_len;
	f->leg->seen = p->tick;
	return REASON_NONE;
}

/* What admitted a packet, for whoever captures: a hit leaves no verdict. */
static __always_inline void admitted_by(struct packet *p, __u32 rule)
{
	p->verdict = rule | ACTION_ALLOW << VERDICT_ACTION_SHIFT;
}

/* Looks up the flow of a packet of the host itself, which nobody translates. */
static __noinline int find_untranslated(struct packet *p, struct flow_ref *f)
{
	int reason = find_again(p, f);

	if (reason != FIND_FLOW || likely(!p->xlat))
		return reason;
	return p->xlat & XLAT_REPLY ? REASON_NAT_CONFLICT : REASON_NAT_UNTRANSLATED;
}

static __always_inline int find_own(struct packet *p, struct flow_ref *f)
{
	return have_nat ? find_untranslated(p, f) : find_again(p, f);
}

/* Looks up the flow of an error of the host itself. About a packet of a translated flow that the kernel carries
 * on, p->xlat and the outer tuple say what its sender sent: that is what it may be told, and nothing of what
 * is behind the gateway. */
static __noinline int find_half_error(struct packet *p, struct flow_ref *f)
{
	int reason = find_again(p, f);

	if (reason != FIND_NONE || !find_half(p))
		return reason;
	reason = find_again(p, f);
	__builtin_memcpy(p->out_src, p->src, sizeof(p->out_src));
	__builtin_memcpy(p->out_dst, p->dst, sizeof(p->out_dst));
	p->out_sport = p->sport;
	p->out_dport = p->dport;
	p->xlat = XLAT_SRC;
	return reason;
}

static __always_inline int find_own_error(struct packet *p, struct flow_ref *f)
{
	return have_nat ? find_half_error(p, f) : find_again(p, f);
}

/* Whether a packet about to leave by a port, or what an error is about, answers what a pipeline gave to the host: that is
 * no rule's, and counts as builtin-replies. */
static __noinline bool answers_pipe(const struct packet *p, __u32 port)
{
	struct pipe_host key = {};
	__u32 *seen;

	if (p->frag)
		return false;
	__builtin_memcpy(key.host, p->src, sizeof(key.host));
	__builtin_memcpy(key.other, p->dst, sizeof(key.other));
	key.host_port = p->sport;
	key.other_port = p->dport;
	key.proto = p->proto;
	key.family = p->family;
	key.port = port;
	seen = bpf_map_lookup_elem(&pipe_hosts, &key);
	if (!seen || p->tick - *seen >= PIPE_ANSWERS)
		return false;
	count_admitted(RULE_REPLIES, p->ip_len, p->tick);
	return true;
}

/* A packet of the host itself, parsed, about to leave by port. */
static __always_inline int judge_egress(struct __sk_buff *skb, struct packet *p, struct port *port,
					bool tapped)
{
	struct flow_ref f = {};
	int reason;

	if (!p || !port)
		return REASON_INTERNAL;
	if (p->kind == PACKET_ARP || p->kind == PACKET_ND) {
		count_admitted(p->kind == PACKET_ARP ? RULE_ARP : RULE_ND, skb->len, p->tick);
		if (tapped)
			admitted_by(p, p->kind == PACKET_ARP ? RULE_ARP : RULE_ND);
		return REASON_NONE;
	}
	if (p->kind == PACKET_ETHERTYPE)
		return REASON_ETHERTYPE;
	reason = arrive(p, port);
	if (reason)
		return reason;
	p->to = p->zone;
	p->zone = ZONE_HOST;
	p->nexthop = NEXTHOP_PORT + port->id;
	if (p->frag) {
		reason = fragment_known(p);
		if (p->frag == FRAG_FIRST && reason == REASON_FRAGMENT_NO_FIRST)
			reason = REASON_NONE;
		if (reason)
			return reason;
	}
	if (p->kind == PACKET_ERROR) {
		reason = quoted_tc(skb, p);
		if (reason)
			return reason;
		reason = find_own_error(p, &f);
		if (reason == FIND_FLOW) {
			reason = f.core ? guard_flow(p, &f) : REASON_FLOW_GONE;
		} else if (reason == FIND_NONE && answers_pipe(p, port->id)) {
			if (tapped)
				admitted_by(p, RULE_REPLIES);
			return REASON_NONE;
		} else if (reason == FIND_NONE) {
			reason = REASON_ICMP_NO_FLOW;
		}
		if (have_nat && !reason && p->xlat)
			reason = requote(skb, p);
		if (tapped && !reason && f.core)
			admitted_by(p, rule_of(f.core));
		return reason;
	}
	reason = find_own(p, &f);
	if (reason == FIND_NONE && answers_pipe(p, port->id)) {
		if (tapped)
			admitted_by(p, RULE_REPLIES);
		return REASON_NONE;
	}
	if (reason == FIND_NONE) {
		if (p->kind == PACKET_REPLY)
			reason = REASON_ICMP_NO_REQUEST;
		else if (p->frag == FRAG_LATER)
			reason = REASON_FRAGMENT_NO_FIRST;
		else
			reason = open_flow(p, 0);
		if (!reason)
			reason = find_own(p, &f);
		if (reason == FIND_NONE)
			reason = REASON_FLOW_GONE;
	}
	/* Linux 6.1 does not know that there is a flow */
	if (!reason)
		reason = f.core ? guard_flow(p, &f) : REASON_FLOW_GONE;
	if (p->frag == FRAG_FIRST)
		fragment_enter(p, reason);
	if (tapped && !reason && f.core)
		admitted_by(p, rule_of(f.core));
	return reason;
}

__noinline int judge_own(struct __sk_buff *skb, struct packet *p, struct port *port)
{
	return judge_egress(skb, p, port, false);
}

__noinline int judge_own_tapped(struct __sk_buff *skb, struct packet *p, struct port *port)
{
	return judge_egress(skb, p, port, true);
}

/* A packet of the kernel without our mark. Parsed, even if that does not decide, for what is told. */
static __always_inline int guard_own(struct __sk_buff *skb, struct packet *p, struct port *port,
				     bool tapped)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	/* an inline port is a piece of cable: the host says nothing on it */
	bool bypass = skb->ingress_ifindex || port->flags & PORT_INLINE;
	int reason;

	if (bypass && !tapped && !told(REASON_KERNEL_BYPASS))
		return REASON_KERNEL_BYPASS;
	reason = parse_ethernet(data, data_end, p);
	/* the tag of a VLAN device stands beside the frame, whether or not the port will insert it */
	if (skb->vlan_present)
		p->vlan = skb->vlan_tci & 0xfff;
	if (!reason)
		reason = parse_network(skb, HOOK_TC, data, data_end, p);
	if (bypass)
		return REASON_KERNEL_BYPASS;
	if (reason)
		return reason;
	return tapped ? judge_own_tapped(skb, p, port) : judge_own(skb, p, port);
}

static __always_inline void pull_headers(struct __sk_buff *skb)
{
	bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX);
}

/* Egress guard of one generation. */
static __always_inline int guard_egress(struct __sk_buff *skb, bool tapped)
{
	struct gateway_state *gw = gateway_state();
	struct scratch *s = scratch();
	struct packet *p;
	struct port *port;
	int reason;

	if (!gw || !s)
		return TC_ACT_SHOT;
	p = &s->packet;
	clear_packet(p);
	if (tapped || drop_events)
		forget(p);
	port = port_of(skb->ifindex, gw);
	if (!port) {
		count_reason(REASON_INTERNAL, skb->len);
		return TC_ACT_SHOT;
	}
	if (skb->ingress_ifindex && (skb->mark & PASS_SKB_MARK_MASK) == PASS_SKB_MARK) {
		__u32 element = (skb->mark & ~PASS_SKB_MARK_MASK) >> PASS_CAUSE_BITS;

		reason = REASON_NONE;
		if (unlikely(element)) {
			p->tick = now_tick();
			pull_headers(skb);
			reason =
				have_nat ? guard_translated(skb, p, element) : REASON_KERNEL_BYPASS;
		}
		p->pass = 1 + (skb->mark & ((1 << PASS_CAUSE_BITS) - 1));
	} else {
		p->tick = now_tick();
		pull_headers(skb);
		reason = guard_own(skb, p, port, tapped);
	}
	if (tapped)
		tap_kernel(skb, p, port, reason);
	if (!reason)
		return TC_ACT_UNSPEC;
	count_reason(reason, skb->len);
	tell_drop(skb, HOOK_TC, p, port, reason);
	return TC_ACT_SHOT;
}

SEC("tc")
int guard(struct __sk_buff *skb)
{
	return guard_egress(skb, false);
}

SEC("tc")
int guard_tapped(struct __sk_buff *skb)
{
	return guard_egress(skb, true);
}

SEC("tc")
int guard_dispatch(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &guards, 0);
	count_reason(REASON_GENERATION_ABSENT, skb->len);
	return TC_ACT_SHOT;
}

/* tc ingress: turns the mark that XDP left in front of the packet into skb->mark. */
SEC("tc")
int mark(struct __sk_buff *skb)
{
	struct pass_mark *m = (void *)(long)skb->data_meta;

	if ((void *)(m + 1) <= (void *)(long)skb->data && m->magic == PASS_MAGIC)
		skb->mark = PASS_SKB_MARK | (m->cause & ~PASS_SKB_MARK_MASK);
	return TC_ACT_UNSPEC;
}

#endif
