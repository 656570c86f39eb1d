/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * table.h: look-up and creation in one family's flow table. Included twice, with FAMILY 4 and 6;
 * F(find) is find4 or find6, FLOW is struct flow4 or struct flow6. docs/PACKET-PATH.md, section 11.
 *
 * Look-ups take no lock. A creator holds the stripe's lock; it alone turns a free slot into a flow
 * or a half-open flow into another. The daemon frees by compare-and-swap of the word. So under the
 * lock a free slot stays free, and taking a half-open one is a compare-and-swap as well.
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

static __always_inline __u32 F(hash)(const KEY *key)
{
	const __u64 *w = (const void *)key;
	__u64 h = (w[0] ^ hash_seed) * 0xff51afd7ed558ccdull;

	h ^= h >> 32;
#pragma unroll
	for (int i = 1; i < KEY_WORDS; i++) {
		h = (h ^ w[i]) * 0xc4ceb9fe1a85ec53ull;
		h ^= h >> 29;
	}
	return h * 0x9E3779B97F4A7C15ull >> 32;
}

/* The other candidate group. Both share their low stripe_bits bits, and with them the lock. */
static __always_inline __u32 F(other_group)(__u32 group, __u32 hash)
{
	return group ^ ((hash >> 18 | 1) << stripe_bits & GROUP_MASK);
}

/* The flow of key in one group. One comparison a slot: the word is in the key's cache line, and the
 * verifier follows every branch. */
static __always_inline FLOW *F(match)(GROUP *group, const KEY *key, __u32 first)
{
	const __u64 *k = (const void *)key;

#pragma unroll
	for (int i = 0; i < GROUP_SLOTS; i++) {
		FLOW *f = &group->slot[(first ^ i) & 3];
		const __u64 *w = (const void *)&f->key;
		/* all ones if the state is FLOW_FREE */
		__u64 differ = (__s64)((load(&f->core.word) & WORD_STATE_MASK) - 1) >> 63;

#pragma unroll
		for (int j = 0; j < KEY_WORDS; j++)
			differ |= k[j] ^ w[j];
		if (!differ)
			return f;
	}
	return NULL;
}

static __always_inline FLOW *F(find)(const KEY *key, __u32 hash)
{
	__u32 index = hash & GROUP_MASK;
	GROUP *group = bpf_map_lookup_elem(&F(flows), &index);
	struct gateway_state *gw;
	FLOW *f;

	if (!group)
		return NULL;
	f = F(match)(group, key, hash >> 30);
	if (likely(f))
		return f;
	index = F(other_group)(index, hash);
	group = bpf_map_lookup_elem(&F(flows), &index);
	if (!group)
		return NULL;
	f = F(match)(group, key, hash >> 30);
	if (f)
		return f;
	gw = gateway_state();
	if (likely(!gw || !gw->F(overflow)))
		return NULL;
	return bpf_map_lookup_elem(&F(overflow), key);
}

/* The key of a packet in canonical order. Returns the sender's leg: 0 if it is `lo`, else 1. */
static __always_inline __u32 F(key_of)(KEY *key, const __be32 *src, const __be32 *dst, __be16 sport,
				       __be16 dport, __u8 proto, __u16 domain)
{
	__u32 side = F(greater)(src, dst);

	F(set_address)(key, side ? dst : src, side ? src : dst);
	key->lo_port = side ? dport : sport;
	key->hi_port = side ? sport : dport;
	key->domain = domain;
	key->proto = proto;
	key->kind = 0;
	return side;
}

/* What the opening packet p of a translated flow leaves with goes into both legs. */
static __always_inline void F(fill_translation)(FLOW *f, __u32 side, const struct packet *p)
{
	side &= 1;
	__builtin_memcpy(&f->xlat[side], p->out_src, sizeof(f->xlat[0]));
	__builtin_memcpy(&f->xlat[side ^ 1], p->out_dst, sizeof(f->xlat[0]));
	f->leg[side].xlat_port = p->out_sport;
	f->leg[side ^ 1].xlat_port = p->out_dport;
	f->leg[0].flags |= LEG_XLAT;
	f->leg[1].flags |= LEG_XLAT;
}

/* Writes the second entry of the flow whose key is in scratch. */
static __always_inline void F(fill_alias)(FLOW *f, const KEY *key, const struct packet *p,
					  const struct scratch *scratch)
{
	ALIAS *a = (void *)f;

	__builtin_memcpy(&a->key, key, sizeof(*key));
	__builtin_memcpy(&a->target, &scratch->F(key), sizeof(*key));
	a->hash = scratch->opening.hash;
	a->ports = scratch->nat.ports;
	__builtin_memcpy(&a->port, &scratch->nat.port, 8); /* and tally */
	a->layout = nat_layout;
	a->source_rule = scratch->nat.source_rule;
	a->destination_rule = scratch->nat.destination_rule;
	a->created = p->tick;
	a->mapped = have_mapping ? scratch->nat.mapped : 0;
}

static __always_inline void F(refer)(struct flow_ref *ref, FLOW *f, __u32 side, struct packet *p)
{
	side &= 1;
	p->word = load(&f->core.word);
	p->leg = 1 + side;
	p->opener = side == !!(p->word & WORD_FLAG_HI_OPENED);
	ref->core = &f->core;
	ref->ways = (void *)f->count;
	ref->count = &f->count[side];
	ref->leg = &f->leg[side];
	ref->peer = &f->leg[side ^ 1];
}

/* Writes a flow into a slot whose word says FLOW_FREE, then makes it visible. */
static __always_inline void F(fill)(FLOW *f, const KEY *key, const struct opening *o,
				    const struct packet *p, const struct scratch *scratch,
				    __u64 generation)
{
	struct leg *leg = &f->leg[o->side & 1], *peer = &f->leg[(o->side & 1) ^ 1];

	if (have_nat && o->state == FLOW_ALIAS) {
		F(fill_alias)(f, key, p, scratch);
		goto visible;
	}
	__builtin_memcpy(&f->key, key, sizeof(*key));
	f->core.epoch = epoch_of(p);
	f->core.rule = o->rule;
	f->core.created = p->tick;
	f->core.from = o->from;
	f->core.to = o->to;
	f->core.context = o->context;
	__builtin_memset(f->count, 0, sizeof(f->count));
	__builtin_memset(f->leg, 0, sizeof(f->leg));
	if (have_nat)
		__builtin_memset(f->xlat, 0, sizeof(f->xlat));
	leg->seen = peer->seen = p->tick;
	if (have_workers)
		leg->stages = peer->stages = o->stages;
	leg->nexthop = p->nexthop;
	leg->route = p->tick >> 2;
	/* the other direction looks its route up with its first packet */
	peer->route = (p->tick >> 2) - 0x4000;
	if (o->state == FLOW_SYN_SENT) {
		leg->win = p->win;
		leg->flags = p->wscale == WSCALE_NONE ? 0 : p->wscale | LEG_WSCALE_SEEN;
		peer->ack = p->seq + 1;
	} else if (o->state == FLOW_ESTABLISHED) {
		leg->flags = peer->flags = 14 | LEG_WSCALE_SEEN;
	}
	if (have_nat && p->xlat)
		F(fill_translation)(f, o->side, p);
visible:
	barrier();
	/* an exchange orders it behind the writes above on every architecture */
	__sync_lock_test_and_set(&f->core.word, o->state | o->flags | generation << WORD_GEN_SHIFT);
}

#define NO_SLOT 8

/* Slot that creation would use, as group << 2 | slot with group 0 or 1: a free one of the emptier
 * group. NO_SLOT if there is none. */
static __always_inline __u32 F(free_slot)(const GROUP *one, const GROUP *two, __u32 first)
{
	__u32 n1 = 0, n2 = 0, at1 = NO_SLOT, at2 = NO_SLOT;

#pragma clang loop unroll(disable)
	for (int i = GROUP_SLOTS - 1; i >= 0; i--) {
		__u32 at = probed_slot(first, i);
		__u32 free1 = equal(state_of(load(&one->slot[at].core.word)), FLOW_FREE);
		__u32 free2 = equal(state_of(load(&two->slot[at].core.word)), FLOW_FREE);

		n1 += free1;
		n2 += free2;
		at1 = choose(free1, at, at1);
		at2 = choose(free2, 4 | at, at2);
	}
	return choose(less(n1, n2), at2, at1);
}

/* The half-open flow that was created first among the eight, NO_SLOT if there is none. */
static __always_inline __u32 F(oldest_half_open)(const GROUP *one, const GROUP *two, __u32 first,
						 __u32 tick)
{
	__u32 best = NO_SLOT, oldest = 0;

#pragma clang loop unroll(disable)
	for (int i = 0; i < 2 * GROUP_SLOTS; i++) {
		__u32 at = probed_slot(first, i);
		const FLOW *f = i < GROUP_SLOTS ? &one->slot[at] : &two->slot[at];
		__u32 state = state_of(load(&f->core.word));
		__u32 half = less((state - FLOW_SYN_SENT) & 0xff, FLOW_NEW - FLOW_SYN_SENT + 1);
		/* 1 and more, so that none is older than nothing */
		__u32 age = choose(half, ((tick - f->core.created) & 0x3fffffff) + 1, 0);
		__u32 older = less(oldest, age);

		best = choose(older, (i & 4) | at, best);
		oldest = choose(older, age, oldest);
	}
	return best;
}

static __always_inline FLOW *F(slot_at)(GROUP *one, GROUP *two, __u32 at)
{
	GROUP *group = at & 4 ? two : one;

	opaque(at);
	return &group->slot[at & 3];
}

/* Corrects the counts of flows by one flow. Returns how many there were of both families. */
static __always_inline __s64 F(count)(struct gateway_state *gw, __s64 n)
{
	__s64 before;

	if (FAMILY == 6 && n < 0)
		__sync_fetch_and_add(&gw->flows6, n);
	before = __sync_fetch_and_add(&gw->flows, n);
	if (FAMILY == 6 && n > 0)
		__sync_fetch_and_add(&gw->flows6, n);
	return before;
}

/* Takes a flow's place: from here on its word says FLOW_FREE. False if a hit was faster. */
static __always_inline bool F(take)(FLOW *f, __u64 word)
{
	__u64 taken = word >> WORD_GEN_SHIFT << WORD_GEN_SHIFT | WORD_FLAG_BUSY;

	return __sync_val_compare_and_swap(&f->core.word, word, taken) == word;
}

/* Creates the flow of key. A flow that had to give way is left in scratch->F(gone). */
static __noinline int F(insert)(const KEY *key, const struct opening *o, const struct packet *p,
				struct scratch *scratch)
{
	__u32 hash = o->hash, i1 = hash & GROUP_MASK, i2 = F(other_group)(i1, hash);
	__u32 lock = i1 & ((1 << stripe_bits) - 1);
	GROUP *one = bpf_map_lookup_elem(&F(flows), &i1),
	      *two = bpf_map_lookup_elem(&F(flows), &i2);
	struct stripe *stripe = bpf_map_lookup_elem(&stripes, &lock);
	struct gateway_state *gw = gateway_state();
	bool half = half_open(o->state), limit = false;
	bool reopen = p->reopen && !(have_nat && o->state == FLOW_ALIAS);
	__u32 first = hash >> 30;
	__u64 generation = 1, word = 0;
	int result = INSERT_CREATED;
	__u32 at;
	FLOW *f;

	if (!one || !two || !stripe || !gw)
		return INSERT_INTERNAL;
	if (F(count)(gw, 1) >= flows_max)
		limit = true;
	if (half && __sync_fetch_and_add(&gw->half_open, 1) >= half_open_max)
		limit = true;

	bpf_spin_lock(&stripe->lock);
	f = F(match)(one, key, first);
	if (!f)
		f = F(match)(two, key, first);
	if (f) {
		word = load(&f->core.word);
		if (!reopen || !over(state_of(word)) || !F(take)(f, word))
			result = INSERT_EXISTS;
		else
			result = INSERT_REOPENED;
	} else {
		at = limit ? NO_SLOT : F(free_slot)(one, two, first);
		if (at < NO_SLOT) {
			f = F(slot_at)(one, two, at);
			word = load(&f->core.word);
		} else {
			at = F(oldest_half_open)(one, two, first, p->tick);
			if (at >= NO_SLOT) {
				/* the scan finds what keeps a mapping alive in the groups alone */
				result = limit || (have_mapping && o->state == FLOW_MAPPING) ?
						 INSERT_FULL :
						 INSERT_OVERFLOW;
			} else {
				f = F(slot_at)(one, two, at);
				word = load(&f->core.word);
				/* it may have been confirmed or freed since it was chosen */
				result = half_open(state_of(word)) && F(take)(f, word) ?
						 INSERT_EVICTED :
						 INSERT_FULL;
			}
		}
	}
	if (f && (result == INSERT_REOPENED || result == INSERT_EVICTED)) {
		__builtin_memcpy(&scratch->F(gone), f, sizeof(*f));
		scratch->F(gone).core.word = word;
	}
	if (f &&
	    (result == INSERT_CREATED || result == INSERT_REOPENED || result == INSERT_EVICTED)) {
		generation = (word >> WORD_GEN_SHIFT) + 1;
		F(fill)(f, key, o, p, scratch, generation);
	}
	bpf_spin_unlock(&stripe->lock);

	if (result == INSERT_OVERFLOW) {
		if (__sync_fetch_and_add(&gw->F(overflow), 1) < overflow_max) {
			F(fill)(&scratch->F(fresh), key, o, p, scratch, generation);
			if (bpf_map_update_elem(&F(overflow), key, &scratch->F(fresh),
						BPF_NOEXIST) == 0)
				return result;
		}
		__sync_fetch_and_add(&gw->F(overflow), -1);
		result = INSERT_FULL;
	}
	if (result != INSERT_CREATED) {
		/* the place was there before, or there is none */
		F(count)(gw, -1);
		if (result == INSERT_EVICTED || (half && result != INSERT_REOPENED))
			__sync_fetch_and_add(&gw->half_open, -1);
	}
	return result;
}

/* Takes a flow that is over out of the overflow table, so that its connection can open anew in a slot.
 * True: it is left in scratch->F(gone). Who takes its word may delete it, and who deletes it counts it:
 * the daemon may be freeing it at the same time. */
static __always_inline bool F(close_overflow)(const KEY *key, struct scratch *scratch)
{
	struct gateway_state *gw = gateway_state();
	__u64 word;
	FLOW *f;

	if (!gw || !gw->F(overflow))
		return false;
	f = bpf_map_lookup_elem(&F(overflow), key);
	if (!f)
		return false;
	word = load(&f->core.word);
	if (!over(state_of(word)) || !F(take)(f, word))
		return false;
	__builtin_memcpy(&scratch->F(gone), f, sizeof(*f));
	scratch->F(gone).core.word = word;
	if (bpf_map_delete_elem(&F(overflow), key))
		return false;
	__sync_fetch_and_add(&gw->F(overflow), -1);
	F(count)(gw, -1);
	return true;
}

#undef NO_SLOT
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
