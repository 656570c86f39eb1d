/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * alias.h: the second entries of translated flows in one family's table, and what a flow says of its
 * packets' other tuple. Included twice, as table.h is. docs/PACKET-PATH.md, section 15.
 */
#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
#define F(name) GLUE(name, FAMILY)
#define FLOW struct F(flow)
#define KEY struct GLUE(F(flow), _key)
#define GROUP struct GLUE(F(flow), _group)
#define GROUP_MASK GLUE(GLUE(group, FAMILY), _mask)
#define ALIAS struct GLUE(alias, FAMILY)
#define KEY_WORDS (sizeof(KEY) / 8)
#define ADDRESS_WORDS (sizeof(((FLOW *)0)->xlat[0]) / 4)

/* Address and port of one end of a key. */
static __always_inline const __be32 *F(end_address)(const KEY *key, __u32 side)
{
	return (const __be32 *)&key->lo + (side & 1) * ADDRESS_WORDS;
}

static __always_inline __be16 F(end_port)(const KEY *key, __u32 side)
{
	return (&key->lo_port)[side & 1];
}

/* Address of one end as the other one sees it. */
static __always_inline const __be32 *F(outer_address)(const FLOW *f, __u32 side)
{
	return (const __be32 *)&f->xlat[side & 1];
}

static __always_inline bool F(same_key)(const KEY *a, const KEY *b)
{
	const __u64 *v = (const void *)a, *w = (const void *)b;
	__u64 differ = 0;

#pragma unroll
	for (int i = 0; i < KEY_WORDS; i++)
		differ |= v[i] ^ w[i];
	return !differ;
}

/* Says which ends of p are not what they leave as. */
static __always_inline void F(note_changes)(struct packet *p, __u8 flags)
{
	__u32 src = p->sport ^ p->out_sport, dst = p->dport ^ p->out_dport;

#pragma unroll
	for (int i = 0; i < ADDRESS_WORDS; i++) {
		src |= p->src[i] ^ p->out_src[i];
		dst |= p->dst[i] ^ p->out_dst[i];
	}
	p->xlat = flags | not_zero(src) * XLAT_SRC | not_zero(dst) * XLAT_DST;
}

/* A packet of the opener of f, who is its end `side`, leaves with the outer tuple. */
static __always_inline void F(go_out)(struct packet *p, const FLOW *f, __u32 side)
{
	side &= 1;
	__builtin_memcpy(p->out_src, F(outer_address)(f, side), ADDRESS_WORDS * 4);
	__builtin_memcpy(p->out_dst, F(outer_address)(f, side ^ 1), ADDRESS_WORDS * 4);
	p->out_sport = f->leg[side].xlat_port;
	p->out_dport = f->leg[side ^ 1].xlat_port;
	F(note_changes)(p, 0);
}

/* A reply from the end `side` of f leaves with the original tuple. */
static __always_inline void F(come_back)(struct packet *p, const FLOW *f, __u32 side)
{
	side &= 1;
	__builtin_memcpy(p->out_src, F(end_address)(&f->key, side), ADDRESS_WORDS * 4);
	__builtin_memcpy(p->out_dst, F(end_address)(&f->key, side ^ 1), ADDRESS_WORDS * 4);
	p->out_sport = F(end_port)(&f->key, side);
	p->out_dport = F(end_port)(&f->key, side ^ 1);
	F(note_changes)(p, XLAT_REPLY);
}

/* Whether p came with the outer tuple of f, sent by its end `side`. A function for the sake of the stack. */
static __noinline bool F(came_by)(const struct packet *p, const FLOW *f, __u32 side)
{
	const __be32 *from, *to;
	__u32 differ;

	side &= 1;
	from = F(outer_address)(f, side);
	to = F(outer_address)(f, side ^ 1);
	differ = (p->sport ^ f->leg[side].xlat_port) | (p->dport ^ f->leg[side ^ 1].xlat_port);
#pragma unroll
	for (int i = 0; i < ADDRESS_WORDS; i++)
		differ |= (p->src[i] ^ from[i]) | (p->dst[i] ^ to[i]);
	return !(differ | (~f->leg[side].flags & LEG_XLAT));
}

/* From an alias that p has found, as sent by the end `side` of its key, to the flow. */
static __noinline int F(follow)(struct packet *p, struct flow_ref *ref, const FLOW *entry,
				__u32 side)
{
	const ALIAS *a = (const void *)entry;
	__u32 opener = !((side & 1) ^ !!(load(&a->word) & WORD_FLAG_HI_OPENED)), end;
	/* whatever else may come to stand there meanwhile: the tuple tells */
	FLOW *f = F(find)(&a->target, a->hash);

	if (!f || state_of(load(&f->core.word)) == FLOW_ALIAS)
		return FIND_NONE;
	end = !!(load(&f->core.word) & WORD_FLAG_HI_OPENED) ^ opener ^ 1;
	if (!F(came_by)(p, f, end))
		return FIND_NONE;
	if (opener && !own_error(p))
		return REASON_NAT_CONFLICT;
	F(refer)(ref, f, end, p);
	if (!opener)
		F(come_back)(p, f, end);
	return FIND_FLOW;
}

/* Frees the second entry of the flow `target`, whose key is `outer`, and the port that it took. Who takes
 * its word frees it: the daemon may be about to. */
static __noinline void F(free_alias)(const KEY *outer, const KEY *target)
{
	__u32 hash = F(hash)(outer), index = hash & GROUP_MASK, ports;
	struct gateway_state *gw = gateway_state();
	FLOW *f = NULL;
	ALIAS *a;
	bool overflowed = false;
	__u64 word;
	__u32 tally;
	__u16 port;
	GROUP *group = bpf_map_lookup_elem(&F(flows), &index);

	if (!group || !gw)
		return;
	f = F(match)(group, outer, hash >> 30);
	if (!f) {
		index = F(other_group)(index, hash);
		group = bpf_map_lookup_elem(&F(flows), &index);
		if (!group)
			return;
		f = F(match)(group, outer, hash >> 30);
	}
	if (!f && gw->F(overflow)) {
		f = bpf_map_lookup_elem(&F(overflow), outer);
		overflowed = true;
	}
	if (!f)
		return;
	a = (void *)f;
	word = load(&a->word);
	if (state_of(word) != FLOW_ALIAS || !F(same_key)(&a->target, target))
		return;
	ports = a->layout == nat_layout ? a->ports : NAT_NO_PORTS;
	port = a->port;
	tally = a->tally;
	if (__sync_val_compare_and_swap(&a->word, word, word >> WORD_GEN_SHIFT << WORD_GEN_SHIFT) !=
	    word)
		return;
	if (overflowed) {
		if (bpf_map_delete_elem(&F(overflow), outer))
			return;
		__sync_fetch_and_add(&gw->F(overflow), -1);
	}
	__sync_fetch_and_add(&gw->aliases, -1);
	F(count)(gw, -1);
	if (ports != NAT_NO_PORTS)
		give_port(ports, port);
	if (have_source_limit)
		give_tally(tally);
}

/* The flow g left for another, whose second entry, if it has one, has the key in scratch: what of its
 * translation is not the other's ends with it. */
static __noinline void F(end_translation)(const struct packet *p, struct scratch *s, const FLOW *g)
{
	__u32 side = !!(g->core.word & WORD_FLAG_HI_OPENED);

	F(key_of)
	(&s->nat.F(gone), F(outer_address)(g, side), F(outer_address)(g, side ^ 1),
	 g->leg[side & 1].xlat_port, g->leg[(side ^ 1) & 1].xlat_port, g->key.proto, g->key.domain);
	if (!p->xlat || !F(same_key)(&s->nat.F(gone), &s->nat.F(alias)))
		F(free_alias)(&s->nat.F(gone), &g->key);
}

/* The new flow whose keys are in scratch was not made, or by another CPU: its second entry goes too,
 * unless it is that flow's. */
static __noinline void F(take_back)(struct packet *p, struct scratch *s)
{
	FLOW *f = F(find)(&s->F(key), s->opening.hash);
	__u32 side;

	if (f && f->leg[0].flags & LEG_XLAT && state_of(load(&f->core.word)) != FLOW_ALIAS) {
		side = !!(load(&f->core.word) & WORD_FLAG_HI_OPENED);
		F(key_of)
		(&s->nat.F(gone), F(outer_address)(f, side), F(outer_address)(f, side ^ 1),
		 f->leg[side & 1].xlat_port, f->leg[(side ^ 1) & 1].xlat_port, f->key.proto,
		 f->key.domain);
		if (F(same_key)(&s->nat.F(gone), &s->nat.F(alias)))
			return;
	}
	F(free_alias)(&s->nat.F(alias), &s->F(key));
}

/* Whether the entry that stands where the new flow's alias should is its own, opened by the same end. The
 * daemon may be about to free it: then it no longer is. */
static __noinline bool F(is_own)(struct scratch *s)
{
	const struct opening *o = &s->nat.alias;
	FLOW *f = F(find)(&s->nat.F(alias), o->hash);
	const ALIAS *a = (const void *)f;
	__u64 word;

	if (!f)
		return false;
	word = load(&f->core.word);
	if (state_of(word) != FLOW_ALIAS || (word ^ o->flags) & WORD_FLAG_HI_OPENED ||
	    !F(same_key)(&a->target, &s->F(key)))
		return false;
	return change_flags(&f->core, &word, WORD_FLAG_MARKED, 0);
}

/* The key of the alias of the flow that p opens, in scratch, and what follows from it. */
static __noinline void F(set_alias_key)(const struct packet *p, struct scratch *s)
{
	struct opening *o = &s->nat.alias;

	o->side = F(key_of)(&s->nat.F(alias), p->out_src, p->out_dst, p->out_sport, p->out_dport,
			    p->proto, p->domain);
	if (have_mapping)
		s->nat.F(alias).kind = s->nat.kind;
	o->hash = F(hash)(&s->nat.F(alias));
	o->flags = o->side ? WORD_FLAG_HI_OPENED : 0;
	o->state = FLOW_ALIAS;
}

/* Makes the second entry of the flow whose key is in scratch. INSERT_EXISTS: it was there already. */
static __always_inline int F(insert_alias)(struct packet *p, struct scratch *s)
{
	int result;

	F(set_alias_key)(p, s);
	if (F(same_key)(&s->nat.F(alias), &s->F(key)))
		return INSERT_TAKEN;
	result = F(insert)(&s->nat.F(alias), &s->nat.alias, p, s);
	return result == INSERT_EXISTS && !F(is_own)(s) ? INSERT_TAKEN : result;
}

#undef ADDRESS_WORDS
#undef KEY_WORDS
#undef ALIAS
#undef GROUP_MASK
#undef GROUP
#undef KEY
#undef FLOW
#undef F
#undef GLUE
#undef GLUE2
#undef FAMILY
