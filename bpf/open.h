/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* open.h: a translated flow is opened: by a mapping, if its rule has such, and with its second entry.
 * docs/PACKET-PATH.md, section 15.4 to 15.6 and 15.11. */
#ifndef SOFTDPU_OPEN_H
#define SOFTDPU_OPEN_H

#include "nat.h"

#define FAMILY 4
#include "mapping.h"
#define FAMILY 6
#include "mapping.h"

__noinline int admit(struct packet *p)
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

/* Whether the opener of a flow that comes in by a mapping is behind the mapping's rule itself, and sends to
 * its own side of it. Leaves what other rules are asked in scratch. */
__noinline int choose_hairpin(struct packet *p)
{
	struct scratch *s = scratch();

	if (!p || !s)
		return REASON_INTERNAL;
	p->xlat &= ~XLAT_INSIDE;
	if (p->zone != s->nat.outside) {
		set_key(&s->key, p, false, p->zone, s->nat.outside, s->opening.context);
		s->nat.hairpin =
			(nat_sources(&s->key) & VERDICT_RULE_MASK) == s->nat.destination_rule;
	}
	set_key(&s->key, p, false, p->zone, p->to, s->opening.context);
	return REASON_NONE;
}

/* The port of the flow that p opens is that of a mapping, which is made if it is not there. */
__noinline int enter_mapping(struct packet *p)
{
	struct scratch *s = scratch();
	const struct nat_rule *r;
	int reason;
	__u8 mapped;

	if (!p || !s)
		return REASON_INTERNAL;
	if (!((p->out_src[0] ^ p->out_dst[0]) | (p->out_src[1] ^ p->out_dst[1]) |
	      (p->out_src[2] ^ p->out_dst[2]) | (p->out_src[3] ^ p->out_dst[3])))
		return REASON_NONE; /* it is refused for that */
	r = nat_rule(s->nat.source_rule, p->family);
	if (!r)
		return REASON_INTERNAL;
	mapped = s->nat.mapped;
	__builtin_memcpy(&s->nat.opened, &s->opening, sizeof(s->opening));
	__builtin_memcpy(s->nat.remote, p->out_dst, sizeof(s->nat.remote));
	s->nat.remote_port = p->out_dport;
	__builtin_memset(p->out_dst, 0, sizeof(p->out_dst));
	p->out_dport = 0;
	s->opening.state = FLOW_MAPPING;
	s->opening.stages = 0;
	s->nat.kind = KEY_MAPPING;
	s->nat.mapped = 0; /* its own alias keeps nothing alive */
	reason = p->family == 4 ? map_source4(p, s) : map_source6(p, s);
	if (reason == REASON_NAT_EXHAUSTED)
		count_nat(s->nat.source_rule, NAT_COUNT_EXHAUSTED);
	if (unlikely(s->nat.others))
		give_others(s);
	s->nat.others = 0;
	s->nat.mapped = mapped | MAPPED_SOURCE;
	if (!reason && r->flags & NAT_FILTER_ADDRESS) {
		s->nat.mapped |= MAPPED_PEER;
		p->xlat = 0;
		reason = p->family == 4 ? enter_peer4(p, s) : enter_peer6(p, s);
	}
	__builtin_memcpy(&s->opening, &s->nat.opened, sizeof(s->opening));
	__builtin_memcpy(p->out_dst, s->nat.remote, sizeof(p->out_dst));
	p->out_dport = s->nat.remote_port;
	s->nat.ports = NAT_NO_PORTS;
	s->nat.port = 0;
	s->nat.kind = KEY_FLOW;
	note_changes(p);
	return reason;
}

/* The mapping by which the flow that p has opened came in is used. */
__noinline int keep_destination(struct packet *p)
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
	if (have_mapping && !reason && s->nat.mapping)
		reason = enter_mapping(p);
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
