/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipe_stage.h: packets that a pipeline forwards to a worker. docs/PACKET-PATH.md, section 14, says how they get
 * there; they are of no flow, so no cell counts them and no worker is their home. */
#ifndef SOFTDPU_PIPE_STAGE_H
#define SOFTDPU_PIPE_STAGE_H

#include "pipes.h"
#include "work.h"

/* Sends a packet, which is ready to leave as it stands, to the worker of the queue that it came by. `to` is the
 * number of PIPE_TO_STAGE. Returns enum reason; for none of them the verdict is XDP_REDIRECT. */
static __always_inline int to_stage(struct xdp_md *ctx, __u32 to, const struct pipe_fields *f,
				    const struct pipe_place *at)
{
	const __u32 *w = f->word;
	__u32 index = 0, more = at->tags <= 2 ? 4 * (w[PIPE_VLANS] - at->tags) : 0;
	struct worker_queue *q;
	struct handover *h;
	int reason;

	if (ctx->rx_queue_index < QUEUE_MAX) /* or as of port 0, whose queues nobody serves */
		index = QUEUE_INDEX(w[PIPE_PORT], ctx->rx_queue_index);
	q = bpf_map_lookup_elem(&worker_queues, &index);
	if (!q)
		return REASON_INTERNAL;
	reason = queue_refuses(q, w[PIPE_TICK]);
	if (reason)
		return reason;
	if (bpf_redirect_map(&sockets, index, XDP_DROP) != XDP_REDIRECT)
		return REASON_WORKER_ABSENT;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*h)))
		return REASON_INTERNAL;
	h = (void *)(long)ctx->data;
	if ((void *)(h + 1) > (void *)(long)ctx->data_end)
		return REASON_INTERNAL;
	__builtin_memset(h, 0, sizeof(*h));
	h->cell = CELL_NONE;
	h->stages = to >> PIPE_STAGES & PIPE_STAGE_MASK;
	h->port = to & PIPE_STAGE_PORT;
	h->copy = to >> PIPE_STAGE_COPY & PIPE_STAGE_PORT;
	h->nth = 1;
	h->l3 = at->l3 + more;
	h->l4 = at->l4 ? at->l4 + more : 0;
	h->family = at->family;
	h->arrival = w[PIPE_PORT];
	h->proto = w[PIPE_IP_PROTO];
	__sync_fetch_and_add(&q->sent, 1);
	return REASON_NONE;
}

#endif
