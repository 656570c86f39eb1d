/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* mss.h: a SYN that would have the other end send segments too large for a port or for what a rule knows
 * of the way there leaves with a smaller MSS. docs/PACKET-PATH.md, section 7.8; RFC 9293, section 3.7.1. */
#ifndef SOFTDPU_MSS_H
#define SOFTDPU_MSS_H

#include "options.h"
#include "send.h"

static __always_inline __u32 lesser_mss(__u32 limit, __u32 other)
{
	return other && (!limit || other < limit) ? other : limit;
}

/* Most that p may ask for, 0 = whatever it does. */
static __always_inline __u32 mss_limit(const struct packet *p, __u32 arrival, __u32 egress)
{
	__u32 rule = p->verdict & VERDICT_RULE_MASK, limit = 0;
	struct rule_work *work = bpf_map_lookup_elem(&rule_works, &rule);
	__u64 *of;

	if (work)
		limit = work->mss;
	of = bpf_map_lookup_elem(&port_mss, &arrival);
	if (of)
		limit = lesser_mss(limit, *of);
	of = bpf_map_lookup_elem(&port_mss, &egress);
	if (of)
		limit = lesser_mss(limit, *of);
	return limit && p->family == 6 ? limit - MSS6_LESS : limit;
}

/* Clamps the MSS of a SYN that leaves by a port, or that the kernel carries on. The checksum is corrected
 * by what changed (RFC 1624), unless it still is the bare pseudo-header sum, which says nothing of it:
 * whoever completes that, send() or the kernel, sums what stands here then. */
static __noinline int clamp_mss(struct xdp_md *ctx, struct packet *p, struct port *port,
				__u32 egress)
{
	__u32 limit, len, at, was, now, sum;
	struct scratch *s = scratch();
	__be16 field;
	bool missing;

	if (!p || !port || !s)
		return REASON_INTERNAL;
	limit = mss_limit(p, port->id, egress);
	len = p->l4_data - sizeof(struct tcphdr);
	if (!limit || !len || !load_options(ctx, HOOK_XDP, p->l4 + sizeof(struct tcphdr), len))
		return REASON_NONE;
	at = find_option(s, len, TCP_OPTION_MSS, 4);
	if (!at)
		return REASON_NONE;
	opaque(at);
	at &= 63;
	was = s->bytes[at] << 8 | s->bytes[at + 1];
	if (was <= limit)
		return REASON_NONE;
	missing = port->flags & PORT_FIX_CHECKSUM &&
		  checksum_missing((void *)(long)ctx->data, (void *)(long)ctx->data_end, p);
	field = bpf_htons(limit);
	if (bpf_xdp_store_bytes(ctx, p->l4 + sizeof(struct tcphdr) + at, &field, sizeof(field)))
		return REASON_INTERNAL;
	if (missing)
		return REASON_NONE;
	now = field;
	was = bpf_htons(was);
	/* behind an odd number of bytes the value lies in two words, as if its bytes were swapped */
	if (at & 1) {
		now = (now << 8 | now >> 8) & 0xffff;
		was = (was << 8 | was >> 8) & 0xffff;
	}
	at = p->l4 + offsetof(struct tcphdr, check);
	if (bpf_xdp_load_bytes(ctx, at, &field, sizeof(field)))
		return REASON_INTERNAL;
	sum = (field ^ 0xffff) + (was ^ 0xffff) + now;
	field = ~fold(sum);
	return bpf_xdp_store_bytes(ctx, at, &field, sizeof(field)) ? REASON_INTERNAL : REASON_NONE;
}

#endif
