/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* open.h: a translated flow is opened: by a mapping, if its rule has such, and with its second entry.
 * docs/PACKET-PATH.md, section 15.4 to 15.6 and 15.12. */
#ifndef SOFTDPU_OPEN_H
#define SOFTDPU_OPEN_H

#include "nat.h"

#define FAMILY 4
#include "mapping.h"
#define FAMILY 6
#include "mapping.h"

/* Whether a mapping leads p, for whose destination no rule is, to an end inside. */
__translation int admit(struct packet *p)
{
	struct scratch *s = scratch();

	if (!p || !s)
		return REASON_INTERNAL;
	if (!has_ports(p))
		return REASON_NONE;
	if (p->family == 4)
		admit4(p, s);
	else
		admit6(p, s);
	return REASON_NONE;
}

/* The rule that the opener of a flow that comes in by a mapping is behind itself, if it sends to its own side
 * of that. Where masquerading leads to is known only of what it wrote. Leaves what other rules are asked in
 * scratch. */
__translation int choose_hairpin(struct packet *p)
{
	struct scratch *s = scratch();
	const struct nat_rule *r, *mapped;
	__u32 id;

	if (!p || !s)
		return REASON_INTERNAL;
	p->xlat &= ~XLAT_INSIDE;
	if (p->zone != s->nat.outside) {
		set_key(&s->key, p, false, p->zone, s->nat.outside, s->opening.context);
		id = nat_sources(&s->key) & VERDICT_RULE_MASK;
		r = nat_rule(id, p->family);
		mapped = nat_rule(s->nat.destination_rule, p->family);
		if (r && mapped &&
		    (r->kind == NAT_SOURCE ||
		     (r->kind == NAT_MASQUERADE && mapped->kind == NAT_MASQUERADE)))
			s->nat.hairpin = id;
	}
	set_key(&s->key, p, false, p->zone, p->to, s->opening.context);
	return REASON_NONE;
}

/* Gives the flow that p opens the port of its mapping, if that is there. Else what makes one is in scratch,
 * and until finish_mapping() p's other end is nobody. */
__translation int find_mapping(struct packet *p)
{
	struct scratch *s = scratch();

	if (!p || !s)
		return REASON_INTERNAL;
	if (same_ends(p))
		return conflict(s->nat.source_rule);
	__builtin_memcpy(&s->nat.opened, &s->opening, sizeof(s->opening));
	__builtin_memcpy(s->nat.remote, p->out_dst, sizeof(s->nat.remote));
	s->nat.remote_port = p->out_dport;
	__builtin_memset(p->out_dst, 0, sizeof(p->out_dst));
	p->out_dport = 0;
	s->opening.state = FLOW_MAPPING;
	s->opening.stages = 0;
	if (have_filtering && s->nat.hairpin)
		s->opening.to = s->nat.outside;
	s->nat.kind = KEY_MAPPING;
	return p->family == 4 ? find_mapping4(p, s) : find_mapping6(p, s);
}

/* Makes the entry that scratch->opening is about, of the key in scratch. FIND_NONE: another CPU has. */
static __always_inline int insert_mapping(struct packet *p, struct scratch *s)
{
	int result = p->family == 4 ? insert4(&s->key4, &s->opening, p, s) :
				      insert6(&s->key6, &s->opening, p, s);

	if (result == INSERT_EVICTED)
		let_go(p, s);
	return result == INSERT_EXISTS ? FIND_NONE : after_insert(result, false);
}

/* Chooses a port and makes the mapping's alias. */
__translation int enter_mapping_alias(struct packet *p)
{
	struct scratch *s = scratch();
	__u32 tally;
	__u8 mapped;
	int reason;

	if (!p || !s)
		return REASON_INTERNAL;
	mapped = s->nat.mapped;
	tally = s->nat.tally;
	s->nat.mapped = s->nat.tally = 0; /* it keeps nothing alive, and does not count */
	reason = enter_with_port(p, s);
	s->nat.mapped = mapped;
	s->nat.tally = tally;
	if (reason == REASON_NAT_EXHAUSTED)
		count_nat(s->nat.source_rule, NAT_COUNT_EXHAUSTED);
	note_changes(p);
	return reason;
}

/* Makes the mapping behind its alias. */
__translation int enter_mapping(struct packet *p)
{
	struct scratch *s = scratch();
	int reason;

	if (!p || !s)
		return REASON_INTERNAL;
	reason = insert_mapping(p, s);
	if (!reason)
		return REASON_NONE;
	if (p->family == 4)
		free_alias4(&s->nat.alias4, &s->key4);
	else
		free_alias6(&s->nat.alias6, &s->key6);
	if (reason != FIND_NONE)
		return reason;
	reason = p->family == 4 ? find_mapping4(p, s) : find_mapping6(p, s);
	return reason == FIND_NONE ? REASON_FLOW_GONE : reason;
}

/* Notes that the opener of p's flow sends to its other end. */
__translation int enter_peer(struct packet *p)
{
	struct scratch *s = scratch();
	int reason;

	if (!p || !s)
		return REASON_INTERNAL;
	reason = p->family == 4 ? find_peer4(p, s) : find_peer6(p, s);
	if (reason == FIND_FLOW)
		return REASON_NONE;
	p->xlat = 0; /* it is not translated */
	reason = insert_mapping(p, s);
	return reason == FIND_NONE ? REASON_NONE : reason;
}

/* The flow goes on with the port that its mapping has. */
__translation int finish_mapping(struct packet *p)
{
	struct scratch *s = scratch();

	if (!p || !s)
		return REASON_INTERNAL;
	if (unlikely(s->nat.others))
		give_others(s);
	s->nat.others = 0;
	__builtin_memcpy(&s->opening, &s->nat.opened, sizeof(s->opening));
	__builtin_memcpy(p->out_dst, s->nat.remote, sizeof(p->out_dst));
	p->out_dport = s->nat.remote_port;
	s->nat.ports = NAT_NO_PORTS;
	s->nat.port = 0;
	s->nat.kind = KEY_FLOW;
	note_changes(p);
	return REASON_NONE;
}

/* The source port of the flow that p opens, by a mapping. A refused packet may leave one without a flow. */
static __always_inline int map_source(struct packet *p, struct scratch *s)
{
	int reason = find_mapping(p);

	if (reason == FIND_NONE) {
		reason = enter_mapping_alias(p);
		if (!reason)
			reason = enter_mapping(p);
	}
	if (!reason && s->nat.mapped & MAPPED_PEER)
		reason = enter_peer(p);
	return reason ? reason : finish_mapping(p);
}

/* The mapping by which the flow that p has opened came in is used. */
__translation int keep_destination(struct packet *p)
{
	struct scratch *s = scratch();

	if (!p || !s)
		return REASON_INTERNAL;
	if (p->family == 4)
		keep_destination4(p, s);
	else
		keep_destination6(p, s);
	return REASON_NONE;
}

/* The source of a packet that the rules allow, and the flow with its second entry. */
static __always_inline int open_translated(struct packet *p, struct scratch *s)
{
	int reason = REASON_NONE;

	if (have_filtering && s->nat.admitted)
		reason = choose_hairpin(p);
	if (!reason)
		reason = choose_source(p);
	if (have_source_limit && !reason && s->nat.limit && p->xlat)
		reason = count_source(p);
	if (have_mapping && !reason && s->nat.mapped & MAPPED_SOURCE) {
		reason = map_source(p, s);
		if (have_source_limit && reason)
			give_tally(s->nat.tally);
	}
	if (!reason && p->xlat)
		reason = enter_translation(p);
	if (unlikely(s->nat.others))
		give_others(s);
	if (!reason)
		reason = enter_flow(p);
	if (reason || !p->xlat)
		return reason;
	count_nat(s->nat.source_rule, NAT_COUNT_FLOW);
	if (s->nat.destination_rule != s->nat.source_rule)
		count_nat(s->nat.destination_rule, NAT_COUNT_FLOW);
	if (have_filtering && s->nat.admitted)
		keep_destination(p);
	return REASON_NONE;
}

#endif
