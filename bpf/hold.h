/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* hold.h: later fragments that come before their first are given to the daemon, which brings them again.
 * docs/PACKET-PATH.md, section 4. */
#ifndef SOFTDPU_HOLD_H
#define SOFTDPU_HOLD_H

#include "fragment.h"

/* all of them find room, and a ring is a power of two */
_Static_assert(sizeof(struct held) % 8 == 0 && 2 * HELD_MAX * (sizeof(struct held) + 8) > 1 << 18 &&
		       HELD_MAX * (sizeof(struct held) + 8) < 1 << 18,
	       "held_fragments");

/* Whether the daemon brings this frame, and takes off what says so: nobody behind this is to see it. */
static __always_inline bool comes_again(struct xdp_md *ctx)
{
	const __u32 *mark = (void *)(long)ctx->data_meta;

	if (likely(ctx->data_meta == ctx->data))
		return false;
	if ((void *)(mark + 1) > (void *)(long)ctx->data || *mark != HELD_AGAIN)
		return false;
	return !bpf_xdp_adjust_meta(ctx, sizeof(*mark));
}

/* Gives p's frame to the daemon, if that holds fewer than it may. That is asked before anything is copied, so
 * who sends nothing but later fragments has 64 of them copied a second, and the others dropped as ever. */
__noinline int hold(struct xdp_md *ctx, const struct packet *p)
{
	struct gateway_state *gw = gateway_state();
	__u32 length, n;
	struct held *h;

	if (!p || !gw || *(volatile __s32 *)&gw->held >= *(volatile __s32 *)&gw->held_max)
		return 0;
	length = bpf_xdp_get_buff_len(ctx);
	if (length > HELD_BYTES)
		return 0;
	if (__sync_fetch_and_add(&gw->held, 1) >= *(volatile __s32 *)&gw->held_max)
		goto no_room;
	h = bpf_ringbuf_reserve(&held_fragments, sizeof(*h), 0);
	if (!h)
		goto no_room;
	__builtin_memcpy(h->src, p->src, sizeof(h->src));
	__builtin_memcpy(h->dst, p->dst, sizeof(h->dst));
	h->id = p->frag_id;
	h->domain = p->domain;
	h->proto = p->frag_proto;
	h->family = p->family;
	h->group = fragment_index(p);
	h->ifindex = ctx->ingress_ifindex;
	h->tick = p->tick;
	h->length = length;
	/* in a form in which Linux 6.1, too, sees that it is neither 0 nor too much */
	n = length - 1;
	opaque(n);
	n = (n & (HELD_BYTES - 1)) + 1;
	if (bpf_xdp_load_bytes(ctx, 0, h->frame, n)) {
		bpf_ringbuf_discard(h, 0);
		goto no_room;
	}
	bpf_ringbuf_submit(h, 0);
	return 1;
no_room:
	__sync_fetch_and_add(&gw->held, -1);
	return 0;
}

#endif
