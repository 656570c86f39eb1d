/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * mapping.h: endpoint-independent mappings in one family's flow table. Included twice, with FAMILY 4 and 6,
 * as table.h is. docs/PACKET-PATH.md, section 15.12.
 *
 * A mapping is an entry in the state FLOW_MAPPING, translated, with an alias that has the port. What an end
 * has sent to is one as well, without translation. Their keys are those of no packet.
 */
#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
#define F(name) GLUE(name, FAMILY)
#define FLOW struct F(flow)
#define KEY struct GLUE(F(flow), _key)
#define ALIAS struct GLUE(alias, FAMILY)
#define ADDRESS_WORDS (sizeof(((FLOW *)0)->xlat[0]) / 4)

/* The key of the mapping of an end inside. Returns the leg of that. */
static __always_inline __u32 F(mapping_key)(KEY *key, const __be32 *inside, __be16 port,
					    const __be32 *outside, __u8 proto, __u32 rule)
{
	__u32 side =
		F(key_of)(key, inside, outside, port, bpf_htons(rule & 0xffff), proto, rule >> 16);

	key->kind = KEY_MAPPING;
	return side;
}

/* The key of what an end inside has sent to. */
static __always_inline __u32 F(peer_key)(KEY *key, const __be32 *inside, __be16 port,
					 const __be32 *peer, __u8 proto)
{
	__u32 side = F(key_of)(key, inside, peer, port, 0, proto, 0);

	key->kind = KEY_PEER;
	return side;
}

/* The entry of such a key, which lives on for its time-out from now; NULL: there is none. */
static __noinline FLOW *F(used)(const KEY *key, __u32 hash, __u32 tick)
{
	FLOW *f = F(find)(key, hash);
	__u64 word;

	if (!f)
		return NULL;
	word = load(&f->core.word);
	if (state_of(word) != FLOW_MAPPING)
		return NULL;
	f->leg[0].seen = tick;
	/* the daemon may be about to free it: then it no longer is */
	if (word & WORD_FLAG_MARKED && !change_flags(&f->core, &word, WORD_FLAG_MARKED, 0))
		return NULL;
	return f;
}

/* What scratch->opening says of the entry of the key in scratch. */
static __always_inline void F(set_mapping)(struct scratch *s, __u32 side)
{
	s->opening.side = side;
	s->opening.flags = side ? WORD_FLAG_HI_OPENED : 0;
	s->opening.hash = F(hash)(&s->F(key));
}

/* Gives p the port of its mapping, if that is there. */
static __always_inline int F(find_mapping)(struct packet *p, struct scratch *s)
{
	FLOW *f;

	F(set_mapping)
	(s, F(mapping_key)(&s->F(key), p->src, p->sport, p->out_src, p->proto, s->nat.source_rule));
	f = F(used)(&s->F(key), s->opening.hash, p->tick);
	if (!f)
		return FIND_NONE;
	p->out_sport = f->leg[s->opening.side & 1].xlat_port;
	return FIND_FLOW;
}

/* Looks for what an end inside sends to, which is noted already. */
static __always_inline int F(find_peer)(struct packet *p, struct scratch *s)
{
	F(set_mapping)(s, F(peer_key)(&s->F(key), p->src, p->sport, s->nat.remote, p->proto));
	return F(used)(&s->F(key), s->opening.hash, p->tick) ? FIND_FLOW : FIND_NONE;
}

/* Whether the end inside of a mapping has sent to the source of p. */
static __noinline bool F(is_peer)(const struct packet *p, struct scratch *s, const KEY *mapping,
				  __u32 side)
{
	FLOW *f;

	F(peer_key)
	(&s->nat.F(gone), F(end_address)(mapping, side), F(end_port)(mapping, side), p->src,
	 p->proto);
	f = F(find)(&s->nat.F(gone), F(hash)(&s->nat.F(gone)));
	return f && state_of(load(&f->core.word)) == FLOW_MAPPING;
}

/* Gives p the destination of the mapping that it was sent to, if that lets it in. */
static __noinline void F(admit)(struct packet *p, struct scratch *s)
{
	const struct nat_rule *r;
	__u32 side, rule;
	__u64 word;
	const ALIAS *a;
	FLOW *f;
	__be32 differ;

	F(key_of)(&s->nat.F(alias), p->dst, s->nat.nobody, p->dport, 0, p->proto, 0);
	s->nat.F(alias).kind = KEY_MAPPING;
	f = F(find)(&s->nat.F(alias), F(hash)(&s->nat.F(alias)));
	if (!f || state_of(load(&f->core.word)) != FLOW_ALIAS)
		return;
	a = (const void *)f;
	rule = a->source_rule;
	r = nat_rule(rule, p->family);
	if (!r || !(r->flags & (NAT_FILTER_ANY | NAT_FILTER_ADDRESS)))
		return;
	f = F(find)(&a->target, a->hash);
	if (!f)
		return;
	word = load(&f->core.word);
	if (state_of(word) != FLOW_MAPPING)
		return;
	side = !!(word & WORD_FLAG_HI_OPENED);
	if (!(r->flags & NAT_FILTER_ANY) && !F(is_peer)(p, s, &f->key, side))
		return;
	__builtin_memcpy(p->out_dst, F(end_address)(&f->key, side), ADDRESS_WORDS * 4);
	p->out_dport = F(end_port)(&f->key, side);
	s->nat.outside = f->core.to;
	/* whatever else may have come to stand there meanwhile */
	differ = p->dport ^ f->leg[side & 1].xlat_port;
#pragma unroll
	for (int i = 0; i < ADDRESS_WORDS; i++)
		differ |= p->dst[i] ^ F(outer_address)(f, side)[i];
	barrier();
	if (differ || (load(&f->core.word) ^ word) >> WORD_GEN_SHIFT) {
		__builtin_memcpy(p->out_dst, p->dst, sizeof(p->out_dst));
		p->out_dport = p->dport;
		return;
	}
	s->nat.destination_rule = rule;
	s->nat.admitted = 1;
	s->nat.mapped = MAPPED_DESTINATION;
	F(note_changes)(p, XLAT_INSIDE);
}

/* The mapping that has let p in lives on. */
static __always_inline void F(keep_destination)(const struct packet *p, struct scratch *s)
{
	F(mapping_key)
	(&s->F(key), p->out_dst, p->out_dport, p->dst, p->proto, s->nat.destination_rule);
	F(used)(&s->F(key), F(hash)(&s->F(key)), p->tick);
}

#undef ADDRESS_WORDS
#undef ALIAS
#undef KEY
#undef FLOW
#undef F
#undef GLUE
#undef GLUE2
#undef FAMILY
