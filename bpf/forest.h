/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* forest.h: the leaves of a pipe of many entries, called by the generated classifier. abi_forest.h says how
 * they lie in memory. Rules are compared without branches, like sets (set.h). */
#ifndef SOFTDPU_FOREST_H
#define SOFTDPU_FOREST_H

#include "set.h"

int audit(struct classify_key *key, __u32 verdict);

/* The key is read again for each rule: held between them, it would need more stack than there is. */
#define reread() asm volatile("" ::: "memory")

/* The upper bit is set if a value of at most 32 bits is outside a range. */
static __always_inline __u64 outside(__u32 value, __u32 first, __u32 span)
{
	return (__u64)span - (__u32)(value - first);
}

/* The upper bit is set if ports, protocol or zones are not those of a rule. */
static __always_inline __u64 outside_ports(const struct classify_key *key,
					   const struct forest_ports *r)
{
	return ((__u64)r->sport_span - (__u16)(key->sport - r->sport)) |
	       ((__u64)r->dport_span - (__u16)(key->dport - r->dport));
}

static __always_inline __u64 outside_who(const struct classify_key *key, const struct forest_who *r)
{
	__u64 proto = (key->proto ^ r->proto) * (r->flags & FOREST_EXACT_PROTO);
	__u64 from = (key->from ^ r->from) * (r->flags & FOREST_EXACT_FROM);
	__u64 to = (key->to ^ r->to) * (r->flags & FOREST_EXACT_TO);

	return -(proto | from | to);
}

/* Whether everything else that an entry asks holds. */
static __always_inline bool checked(struct classify_key *key, const struct forest_entry *e,
				    bool six)
{
	__u32 at = e->check;

	for (int i = 0; i < FOREST_CHECKS; i++, at++) {
		struct forest_check *c = bpf_map_lookup_elem(&forest_checks, &at);
		__u32 inside;

		if (!c)
			return false;
		if (six && (c->field == SET_SRC || c->field == SET_DST))
			inside = in_set6(key, c->first, c->nodes, c->field);
		else
			inside = in_set4(key, c->first, c->nodes, c->field);
		if (!inside)
			return false;
		if (c->last)
			return true;
	}
	return false;
}

/* What entry number i of a leaf of IPv4 answers: it stands behind the rules. */
static __always_inline struct forest_entry *entry4(__u32 end, __u32 i)
{
	__u32 at = end + i / FOREST_ENTRIES;
	struct forest_entry *e = bpf_map_lookup_elem(&forest_rules4, &at);

	return e ? e + i % FOREST_ENTRIES : NULL;
}

/* Whether a key is in a rule of IPv4. */
static __always_inline bool in4(const struct classify_key *key, const struct forest_rule4 *r)
{
	__u64 bad = outside(key->src_lo, r->src, r->src_span) |
		    outside(key->dst_lo, r->dst, r->dst_span) | outside_ports(key, &r->ports) |
		    outside_who(key, &r->who);

	opaque(bad);
	return (__s64)bad >= 0;
}

static __always_inline __u64 outside6(__u64 hi, __u64 lo, const struct forest_prefix *p)
{
	return ((hi ^ p->hi) & p->hi_mask) | ((lo ^ p->lo) & p->lo_mask);
}

/* Whether a key is in a rule of IPv6, and in what its entry asks beside. */
static __always_inline bool matches6(struct classify_key *key, const struct forest_rule6 *r)
{
	__u64 bad = outside6(key->src_hi, key->src_lo, &r->src) |
		    outside6(key->dst_hi, key->dst_lo, &r->dst);

	opaque(bad);
	if (bad)
		return false;
	bad = outside_ports(key, &r->ports) | outside_who(key, &r->who);
	opaque(bad);
	return (__s64)bad >= 0 &&
	       (!(r->who.flags & FOREST_CHECKED) || checked(key, &r->entry, true));
}

/* The first entry below `best` that matches, of those whose rules stand from rule `at` to before rule `end`: a
 * leaf. Its number, and its verdict in the lower half; 0 if there is none. */
__noinline __u64 forest_leaf4(struct classify_key *key, __u32 at, __u32 end, __u32 best)
{
	__u32 first = at;

	opaque(first); /* or this is counted beside, in the place of what ends the loop */
	for (__u64 i = 0; key && i < FOREST_LEAF && at < end; i++, at++) {
		struct forest_rule4 *r = bpf_map_lookup_elem(&forest_rules4, &at);
		struct forest_entry *e;

		reread();
		if (!r || r->who.entry >= best)
			break;
		if (!in4(key, r))
			continue;
		e = entry4(end, at - first);
		if (!e)
			break;
		if (!(r->who.flags & FOREST_CHECKED) || checked(key, e, false))
			return (__u64)r->who.entry << 32 | e->verdict;
	}
	return 0;
}

__noinline __u64 forest_leaf6(struct classify_key *key, __u32 at, __u32 end, __u32 best)
{
	for (int i = 0; key && i < FOREST_LEAF && at < end; i++, at++) {
		struct forest_rule6 *r = bpf_map_lookup_elem(&forest_rules6, &at);

		reread();
		if (!r || r->who.entry >= best)
			break;
		if (matches6(key, r))
			return (__u64)r->who.entry << 32 | r->entry.verdict;
	}
	return 0;
}

/* Reports a packet to the audit entries below `decided` that it matches, of those whose rules stand from rule
 * `at` to before rule `end`. */
__noinline __u32 forest_report4(struct classify_key *key, __u32 at, __u32 end, __u32 decided)
{
	__u32 first = at;

	opaque(first); /* or this is counted beside, in the place of what ends the loop */
	for (__u64 i = 0; key && i < FOREST_AUDITS && at < end; i++, at++) {
		struct forest_rule4 *r = bpf_map_lookup_elem(&forest_rules4, &at);
		struct forest_entry *e;

		reread();
		if (!r || r->who.entry >= decided)
			break;
		if (!in4(key, r))
			continue;
		e = entry4(end, at - first);
		if (!e)
			break;
		if (!(r->who.flags & FOREST_CHECKED) || checked(key, e, false))
			audit(key, e->verdict);
	}
	return 0;
}

__noinline __u32 forest_report6(struct classify_key *key, __u32 at, __u32 end, __u32 decided)
{
	for (int i = 0; key && i < FOREST_AUDITS && at < end; i++, at++) {
		struct forest_rule6 *r = bpf_map_lookup_elem(&forest_rules6, &at);

		reread();
		if (!r || r->who.entry >= decided)
			break;
		if (matches6(key, r))
			audit(key, r->entry.verdict);
	}
	return 0;
}

/* What stands in a program in the place of a pipe: the object must have all that pipes call. */
static __always_inline __u32 no_pipe(struct classify_key *key)
{
	__u32 verdict = in_set4(key, 0, 0, 0) + in_set6(key, 0, 0, 0) + forest_leaf4(key, 0, 0, 0) +
			forest_leaf6(key, 0, 0, 0) + forest_report4(key, 0, 0, 0) +
			forest_report6(key, 0, 0, 0);

	/* or the compiler takes this for what callers will meet, and drops their use of it */
	opaque(verdict);
	return verdict;
}

#endif
