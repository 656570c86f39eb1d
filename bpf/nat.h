/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* nat.h: how a new flow is translated, by the policy's nat rules, and its second entry.
 * docs/PACKET-PATH.md, section 15.3 to 15.7. */
#ifndef SOFTDPU_NAT_H
#define SOFTDPU_NAT_H

#include "judge.h"
#include "route.h"

/* Which nat rule translates the destination of a new flow, and which one its source: Go puts compiled
 * pipelines in the place of these, as in that of classify(). */
__translation __u32 nat_destinations(struct classify_key *key)
{
	return key ? no_pipe(key) : 0;
}

__translation __u32 nat_sources(struct classify_key *key)
{
	return key ? no_pipe(key) : 0;
}

/* The rule that translates packets of this family; NULL: none does. */
static __always_inline const struct nat_rule *nat_rule(__u32 id, __u8 family)
{
	const struct nat_rule *r = NULL;

	if (id)
		r = bpf_map_lookup_elem(&nat_rules, &id);
	return r && (r->kind == NAT_KEEP || (r->kind != NAT_NONE && r->family == family)) ? r :
											    NULL;
}

enum nat_count { NAT_COUNT_FLOW, NAT_COUNT_EXHAUSTED, NAT_COUNT_CONFLICT, NAT_COUNT_LIMITED };

static __always_inline void count_nat(__u32 rule, enum nat_count what)
{
	struct nat_counter *c = rule ? bpf_map_lookup_elem(&nat_counters, &rule) : NULL;

	if (!c)
		return;
	if (what == NAT_COUNT_FLOW)
		c->flows++;
	else if (what == NAT_COUNT_EXHAUSTED)
		c->exhausted++;
	else if (what == NAT_COUNT_CONFLICT)
		c->conflicts++;
	else
		c->limited++;
}

static __always_inline int conflict(__u32 rule)
{
	count_nat(rule, NAT_COUNT_CONFLICT);
	return REASON_NAT_CONFLICT;
}

/* The table's hash of a tuple of p's family. */
static __noinline __u32 tuple_hash(const struct packet *p, const __be32 *src, const __be32 *dst,
				   __u32 ports, __u8 proto)
{
	struct scratch *s = scratch();

	if (!s)
		return 0;
	if (p->family == 4) {
		key_of4(&s->nat.gone4, src, dst, ports, ports >> 16, proto, 0);
		return hash4(&s->nat.gone4);
	}
	key_of6(&s->nat.gone6, src, dst, ports, ports >> 16, proto, 0);
	return hash6(&s->nat.gone6);
}

/* Writes the rule's prefix over the one of an address. False: no word of it could hold what keeps
 * checksums as they are. */
static __noinline bool write_prefix(const struct nat_rule *r, __be32 *a)
{
	__u16 *words = (void *)a;
	__u32 sum, at = 3, prefix = r->prefix;

	for (int i = 0; i < 4; i++) {
		__u32 bits = prefix > 32 ? 32 : prefix;
		__be32 mask = bpf_htonl((__u32)(0xffffffff00000000ull >> bits));

		a[i] = (r->address[i] & mask) | (a[i] & ~mask);
		prefix -= bits;
		if (r->family == 4)
			return true;
	}
	if (r->prefix > 48) {
		at = 8;
		for (int i = 7; i >= 4; i--) {
			if (words[i] != 0xffff)
				at = i;
		}
		if (at == 8)
			return false;
	}
	sum = bpf_ntohs(words[at & 7]) + r->adjust;
	sum = (sum & 0xffff) + (sum >> 16);
	words[at & 7] = sum == 0xffff ? 0 : bpf_htons(sum);
	return true;
}

static __always_inline bool has_ports(const struct packet *p)
{
	return p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP;
}

/* Sends p to one of the rule's servers. */
static __always_inline int choose_server(struct packet *p, const struct nat_rule *r)
{
	__u32 ports = 0, index;
	struct nat_server *server;
	__u16 *bucket;

	if (!r->buckets)
		return REASON_NONE;
	if (r->flags & NAT_BY_CONNECTION)
		ports = (__u32)p->dport << 16 | p->sport;
	index = r->bucket + tuple_hash(p, p->src, p->dst, ports, p->proto) % r->buckets;
	bucket = bpf_map_lookup_elem(&nat_buckets, &index);
	if (!bucket)
		return REASON_INTERNAL;
	index = *bucket;
	server = bpf_map_lookup_elem(&nat_servers, &index);
	if (!server)
		return REASON_INTERNAL;
	__builtin_memcpy(p->out_dst, server->address, sizeof(p->out_dst));
	if (server->port && has_ports(p))
		p->out_dport = server->port;
	return REASON_NONE;
}

static __always_inline void note_changes(struct packet *p)
{
	if (p->family == 4)
		note_changes4(p, 0);
	else
		note_changes6(p, 0);
}

/* Asks the rules for destinations about a packet of no known flow. Leaves what it becomes in p. */
__translation int choose_destination(struct packet *p, __u16 context)
{
	struct scratch *s = scratch();
	const struct nat_rule *r;
	int reason = REASON_NONE;
	bool local;
	__u32 verdict, id;

	if (!p || !s)
		return REASON_INTERNAL;
	s->nat.source_rule = s->nat.destination_rule = 0;
	s->nat.ports = NAT_NO_PORTS;
	s->nat.port = s->nat.tally = s->nat.others = 0;
	if (have_mapping)
		s->nat.kind = s->nat.mapped = s->nat.admitted = s->nat.hairpin = 0;
	__builtin_memcpy(p->out_src, p->src, sizeof(p->out_src));
	__builtin_memcpy(p->out_dst, p->dst, sizeof(p->out_dst));
	p->out_sport = p->sport;
	p->out_dport = p->dport;
	if (simulate) {
		struct sim *sims = sim();

		local = sims && sims->control.local;
	} else {
		local = is_local(p->dst, p->family);
	}
	set_key(&s->key, p, false, p->zone, local ? ZONE_HOST : ZONE_NONE, context);
	verdict = nat_destinations(&s->key);
	if (have_filtering)
		s->nat.undecided = !verdict;
	id = verdict & VERDICT_RULE_MASK;
	r = nat_rule(id, p->family);
	if (!r)
		return REASON_NONE;
	if (r->kind == NAT_DESTINATION && r->buckets)
		reason = choose_server(p, r);
	else if (r->kind == NAT_PREFIX_DESTINATION)
		reason = write_prefix(r, p->out_dst) ? REASON_NONE : conflict(id);
	else
		return REASON_NONE;
	s->nat.destination_rule = id;
	note_changes(p);
	return reason;
}

/* The address that masquerading uses where p leaves. */
static __always_inline int choose_address(struct packet *p)
{
	struct nexthop *hop = nexthop_at(p->nexthop);
	struct nat_device device = {};
	struct nat_address *a;

	if (!hop)
		return REASON_INTERNAL;
	device.port = hop->port;
	device.vlan = hop->vlan;
	a = bpf_map_lookup_elem(&nat_addresses, &device);
	if (!a)
		return REASON_NAT_NO_ADDRESS;
	if (p->family == 4)
		p->out_src[0] = a->ip4;
	else
		__builtin_memcpy(p->out_src, a->ip6, sizeof(p->out_src));
	return p->out_src[0] | p->out_src[1] | p->out_src[2] | p->out_src[3] ?
		       REASON_NONE :
		       REASON_NAT_NO_ADDRESS;
}

/* One address of the rule's pool for each sender. Returns its number. */
static __always_inline __u32 choose_pooled(struct packet *p, const struct nat_rule *r)
{
	__u64 hi, lo, before;
	__be32 inverted[4];
	__u32 n;

	for (int i = 0; i < 4; i++)
		inverted[i] = ~p->src[i];
	n = r->addresses ? tuple_hash(p, p->src, inverted, 0, 0) % r->addresses : 0;
	if (p->family == 4) {
		p->out_src[0] = bpf_htonl(bpf_ntohl(r->address[0]) + n);
		return n;
	}
	set_address(&hi, &lo, r->address, 6);
	before = lo;
	lo += n;
	hi += lo < before;
	p->out_src[0] = bpf_htonl(hi >> 32);
	p->out_src[1] = bpf_htonl(hi);
	p->out_src[2] = bpf_htonl(lo >> 32);
	p->out_src[3] = bpf_htonl(lo);
	return n;
}

/* The element of nat_ports in which a flow takes a port of its address, which is the n-th of its rule. */
static __always_inline __u32 choose_ports(const struct packet *p, const struct scratch *s,
					  const struct nat_rule *r, __u32 n)
{
	__u32 class, slice;

	if (r->ports == NAT_NO_PORTS)
		return NAT_NO_PORTS;
	if (p->proto == IPPROTO_TCP)
		class = NAT_CLASS_TCP;
	else if (p->proto == IPPROTO_UDP)
		class = NAT_CLASS_UDP;
	else if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6)
		class = NAT_CLASS_ICMP;
	else
		return NAT_NO_PORTS;
	if (have_mapping && r->flags & NAT_MAPPING)
		slice = tuple_hash(p, s->nat.nobody, p->out_src, 0, p->proto) % NAT_SLICES;
	else
		slice = tuple_hash(p, p->out_dst, p->out_src, p->out_dport, p->proto) % NAT_SLICES;
	return r->ports + (n * NAT_CLASSES + class) * NAT_SLICES + slice;
}

/* Whether the port is to be that of a mapping. */
static __always_inline void note_mapping(struct scratch *s, const struct nat_rule *r)
{
	if (!(r->flags & NAT_MAPPING) || s->nat.ports == NAT_NO_PORTS)
		return;
	s->nat.mapped |= MAPPED_SOURCE;
	if (r->flags & NAT_FILTER_ADDRESS)
		s->nat.mapped |= MAPPED_PEER;
}

/* Asks the rules for sources about a packet that the policy allows, by the key in scratch. */
__translation int choose_source(struct packet *p)
{
	struct scratch *s = scratch();
	const struct nat_rule *r;
	__u32 id, kind, n = 0;
	int reason;

	if (!p || !s)
		return REASON_INTERNAL;
	if (have_filtering && s->nat.hairpin)
		id = s->nat.hairpin;
	else
		id = nat_sources(&s->key) & VERDICT_RULE_MASK;
	r = nat_rule(id, p->family);
	if (have_source_limit)
		s->nat.limit = r ? r->source_limit : 0;
	if (r) {
		kind = r->kind;
	} else {
		id = s->nat.destination_rule;
		r = nat_rule(id, p->family);
		if (!r || !(r->flags & NAT_HAIRPIN) || p->zone != p->to)
			return REASON_NONE;
		kind = NAT_MASQUERADE;
	}
	switch (kind) {
	case NAT_MASQUERADE:
		if (have_filtering && s->nat.hairpin) {
			__builtin_memcpy(p->out_src, p->dst, sizeof(p->out_src));
			break;
		}
		reason = choose_address(p);
		if (reason)
			return reason;
		break;
	case NAT_SOURCE:
		n = choose_pooled(p, r);
		break;
	case NAT_PREFIX_SOURCE:
		if (!write_prefix(r, p->out_src))
			return conflict(id);
		break;
	default:
		return REASON_NONE;
	}
	s->nat.source_rule = id;
	note_changes(p);
	if (p->xlat && kind != NAT_PREFIX_SOURCE)
		s->nat.ports = choose_ports(p, s, r, n);
	if (have_mapping)
		note_mapping(s, r);
	return REASON_NONE;
}

/* Makes the second entry of the flow that p opens. REASON_NAT_CONFLICT: its key is another's. */
__translation int enter_alias(struct packet *p)
{
	struct gateway_state *gw = gateway_state();
	struct table_counter *t = table_counter();
	struct scratch *s = scratch();
	int result;

	if (!p || !s || !gw || !t)
		return REASON_INTERNAL;
	result = p->family == 4 ? insert_alias4(p, s) : insert_alias6(p, s);
	switch (result) {
	case INSERT_CREATED:
	case INSERT_OVERFLOW:
	case INSERT_EVICTED:
		__sync_fetch_and_add(&gw->aliases, 1);
		if (result == INSERT_EVICTED) {
			t->evicted++;
			let_go(p, s);
		}
		return REASON_NONE;
	case INSERT_EXISTS:
		/* its port, if it chose one, is that of the entry, which counts already if it does */
		if (s->nat.ports == NAT_NO_PORTS) {
			if (have_source_limit)
				give_tally(s->nat.tally);
			return REASON_NONE;
		}
	case INSERT_TAKEN:
		s->nat.other[s->nat.others++ & (NAT_TRIES - 1)] = s->nat.port;
		return REASON_NAT_CONFLICT;
	case INSERT_FULL:
		t->refused++;
		return REASON_FLOW_TABLE_FULL;
	}
	return REASON_INTERNAL;
}

/* Gives back the ports that were tried in vain. They stay taken until then, so that each try is for another
 * one; the flows that have them took them by another rule, or in other bitmaps, and would not. */
static __noinline void give_others(struct scratch *s)
{
	for (__u32 i = 0; i < NAT_TRIES; i++) {
		if (i < s->nat.others)
			give_port(s->nat.ports, s->nat.other[i]);
	}
}

/* Chooses the port of a flow that p opens and makes its second entry. */
static __always_inline int enter_with_port(struct packet *p, struct scratch *s)
{
	__u32 element = s->nat.ports, port = bpf_ntohs(p->sport), hash = s->opening.hash;
	bool first = port_free(element, port);
	int reason;

	for (__u32 i = 0; i < NAT_TRIES; i++) {
		if (i || !first)
			port = next_port(element, (hash + i * 40503) & 0xffff);
		if (port >= NO_PORT)
			break;
		if (!take_port(element, port))
			continue;
		s->nat.port = port;
		p->out_sport = bpf_htons(port);
		reason = enter_alias(p);
		if (reason == REASON_NAT_CONFLICT)
			continue;
		if (reason)
			give_port(element, port);
		return reason;
	}
	return REASON_NAT_EXHAUSTED;
}

/* Whether what p leaves with comes from where it goes. */
static __always_inline bool same_ends(const struct packet *p)
{
	return !((p->out_src[0] ^ p->out_dst[0]) | (p->out_src[1] ^ p->out_dst[1]) |
		 (p->out_src[2] ^ p->out_dst[2]) | (p->out_src[3] ^ p->out_dst[3]));
}

/* Counts the flow that p opens for its source, before that takes a port. */
__translation int count_source(struct packet *p)
{
	struct scratch *s = scratch();
	__u32 rule;

	if (!p || !s)
		return REASON_INTERNAL;
	rule = s->nat.source_rule;
	if (same_ends(p))
		return conflict(rule);
	/* a connection that is opened anew ends the one before it, which still counts */
	s->nat.tally =
		take_tally(rule, s->nat.limit + !!p->reopen, (__u64)p->src[1] << 32 | p->src[0]);
	if (s->nat.tally)
		return REASON_NONE;
	count_nat(rule, NAT_COUNT_LIMITED);
	return REASON_NAT_SOURCE_LIMIT;
}

/* A packet that opens a flow with other addresses: its port and second entry. The flow's key and hash are
 * needed by both, and what it starts with is in scratch->opening. */
__translation int enter_translation(struct packet *p)
{
	struct scratch *s = scratch();
	__u32 rule;
	int reason;

	if (!p || !s)
		return REASON_INTERNAL;
	set_opening_key(p, s);
	rule = s->nat.source_rule ? s->nat.source_rule : s->nat.destination_rule;
	if (same_ends(p))
		return conflict(rule);
	reason = s->nat.ports == NAT_NO_PORTS ? enter_alias(p) : enter_with_port(p, s);
	if (have_source_limit && reason)
		give_tally(s->nat.tally);
	if (reason == REASON_NAT_EXHAUSTED)
		count_nat(rule, NAT_COUNT_EXHAUSTED);
	if (reason == REASON_NAT_CONFLICT)
		return conflict(rule);
	note_changes(p);
	return reason;
}

#endif
