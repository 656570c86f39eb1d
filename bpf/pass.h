/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * pass.h: packets of translated flows that the kernel carries on. XDP translates their destination, and
 * the guard, as they leave, their source. docs/PACKET-PATH.md, section 15.9.
 */
#ifndef SOFTDPU_PASS_H
#define SOFTDPU_PASS_H

#include "send.h"
#include "translate.h"

/* Notes what the source of p becomes. Returns what names it in a mark. */
static __always_inline __u32 note_source(struct xdp_md *ctx, const struct packet *p)
{
	bool error = p->kind == PACKET_ERROR;
	struct gateway_state *gw = gateway_state();
	struct nat_pass *e;
	__u32 n;
	long rc;

	if (!gw)
		return 0;
	n = __sync_fetch_and_add(&gw->nat_pass, 1) % NAT_PASSES;
	e = bpf_map_lookup_elem(&nat_passes, &n);
	if (!e)
		return 0;
	/* an error comes from whoever is on the way; what p says is who it is about */
	__builtin_memcpy(e->src, p->src, sizeof(e->src));
	if (error) {
		if (p->family == 4)
			rc = bpf_xdp_load_bytes(ctx, p->l3 + offsetof(struct iphdr, saddr), e->src,
						4);
		else
			rc = bpf_xdp_load_bytes(ctx, p->l3 + offsetof(struct ipv6hdr, saddr),
						e->src, 16);
		if (rc)
			return 0;
	}
	__builtin_memcpy(e->to, p->out_src, sizeof(e->to));
	/* where p is of a known flow, out_src holds no more than an address of its family */
	if (p->family == 4)
		e->to[1] = e->to[2] = e->to[3] = 0;
	e->sport = error ? 0 : p->sport;
	e->to_port = error ? 0 : p->out_sport;
	e->family = p->family;
	e->proto = !error ? p->proto : p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	return (n + 1) << PASS_CAUSE_BITS;
}

/* What names p once its destination is translated and its source is not. */
static __always_inline void name_half(struct nat_half *half, const struct packet *p,
				      const __be32 *src, const __be32 *dst, __be16 sport,
				      __be16 dport)
{
	__builtin_memset(half, 0, sizeof(*half));
	half->src[0] = src[0];
	half->dst[0] = dst[0];
	/* of IPv4, the others may be anything */
	if (p->family == 6) {
		__builtin_memcpy(half->src + 1, src + 1, 12);
		__builtin_memcpy(half->dst + 1, dst + 1, 12);
	}
	half->sport = sport;
	half->dport = dport;
	half->family = p->family;
	half->proto = p->proto;
}

/* Notes what the destination of p was, for errors of the kernel about what it carries on. */
static __noinline void note_half(const struct packet *p)
{
	struct nat_was was = { .dport = p->dport };
	struct nat_half half;

	__builtin_memcpy(was.dst, p->dst, sizeof(was.dst));
	name_half(&half, p, p->src, p->out_dst, p->sport, p->out_dport);
	/* without a place the sender is not told, and gives up by itself */
	bpf_map_update_elem(&nat_halves, &half, &was, BPF_ANY);
}

/* Translates the destination of p, which goes to the kernel. Returns what the mark says beside the cause,
 * negative if it may not go. */
__translation int pass_translated(struct xdp_md *ctx, struct packet *p, struct port *port)
{
	__u32 element = 0, bare;

	if (!p || !port)
		return -1;
	bare = port->flags & PORT_FIX_CHECKSUM &&
	       checksum_missing((void *)(long)ctx->data, (void *)(long)ctx->data_end, p);
	if (p->xlat & XLAT_SRC) {
		if (p->xlat & XLAT_DST && p->kind != PACKET_ERROR && p->frag != FRAG_LATER)
			note_half(p);
		element = note_source(ctx, p);
		if (!element)
			return -1;
		p->xlat &= ~XLAT_SRC;
		if (p->kind != PACKET_ERROR) {
			__builtin_memcpy(p->out_src, p->src, sizeof(p->out_src));
			p->out_sport = p->sport;
		}
	}
	return translate(ctx, p, bare) ? -1 : (int)element;
}

/* Writes the source that XDP has noted into a packet that it passed up and that now leaves, parsed. */
static __noinline int write_source(struct __sk_buff *skb, const struct packet *p,
				   const struct nat_pass *e)
{
	__u32 check = 0, flags = BPF_F_PSEUDO_HDR, port = p->l4;
	__s64 sum = bpf_csum_diff((__be32 *)e->src, 16, (__be32 *)e->to, 16, 0);

	switch (p->proto) {
	case IPPROTO_TCP:
		check = 16;
		break;
	case IPPROTO_UDP:
		flags |= BPF_F_MARK_MANGLED_0;
		check = 6;
		break;
	case IPPROTO_UDPLITE:
		flags |= BPF_F_MARK_MANGLED_0 | BPF_F_MARK_ENFORCE;
		check = 6;
		break;
	case IPPROTO_DCCP:
		check = 6;
		break;
	case IPPROTO_ICMP:
		flags = 0;
		check = 2;
		port += 4;
		break;
	case IPPROTO_ICMPV6:
		check = 2;
		port += 4;
		break;
	}
	if (check && p->frag != FRAG_LATER && p->l4_len >= 8) {
		check += p->l4;
		if (p->proto != IPPROTO_ICMP && bpf_l4_csum_replace(skb, check, 0, sum, flags) < 0)
			return REASON_INTERNAL;
		if (e->sport != e->to_port &&
		    (bpf_l4_csum_replace(skb, check, e->sport, e->to_port,
					 2 | (flags & ~BPF_F_PSEUDO_HDR)) < 0 ||
		     bpf_skb_store_bytes(skb, port, &e->to_port, 2, 0) < 0))
			return REASON_INTERNAL;
	}
	if (p->family == 6)
		return bpf_skb_store_bytes(skb, p->l3 + offsetof(struct ipv6hdr, saddr), e->to, 16,
					   0) < 0 ?
			       REASON_INTERNAL :
			       REASON_NONE;
	if (bpf_l3_csum_replace(skb, p->l3 + offsetof(struct iphdr, check), e->src[0], e->to[0],
				4) < 0 ||
	    bpf_skb_store_bytes(skb, p->l3 + offsetof(struct iphdr, saddr), e->to, 4, 0) < 0)
		return REASON_INTERNAL;
	return REASON_NONE;
}

/* A packet that the kernel carries on for XDP, with the n-th element of nat_passes in its mark. Elements
 * are used again: one that speaks of another source is not this packet's. */
__translation int guard_translated(struct __sk_buff *skb, struct packet *p, __u32 n)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	struct nat_pass *shared, *e;
	struct scratch *s = scratch();
	__be32 differ;

	if (!p || !s)
		return REASON_INTERNAL;
	n--;
	shared = bpf_map_lookup_elem(&nat_passes, &n);
	if (!shared)
		return REASON_KERNEL_BYPASS;
	if (parse_ethernet(data, data_end, p) || parse_network(skb, HOOK_TC, data, data_end, p))
		return REASON_KERNEL_BYPASS;
	/* another CPU may be writing it */
	e = (void *)s->bytes;
	__builtin_memcpy(e, shared, sizeof(*e));
	differ = (e->family ^ p->family) | (e->proto ^ p->proto);
	if (p->frag != FRAG_LATER)
		differ |= e->sport ^ p->sport;
#pragma unroll
	for (int i = 0; i < 4; i++)
		differ |= e->src[i] ^ p->src[i];
	return differ ? REASON_KERNEL_BYPASS : write_source(skb, p, e);
}

/* Has an error of the kernel about a packet that it carries on, as no flow knows it, speak of what came. False:
 * it is about no such packet. */
static __noinline bool find_half(struct packet *p)
{
	struct nat_half half;
	struct nat_was *was;

	name_half(&half, p, p->dst, p->src, p->dport, p->sport);
	was = bpf_map_lookup_elem(&nat_halves, &half);
	if (!was)
		return false;
	__builtin_memcpy(p->src, was->dst, sizeof(p->src));
	p->sport = was->dport;
	return true;
}

/* Writes what came into the packet inside an error of the kernel, whose own addresses are right: it is from
 * the gateway, and to whoever sent that. */
static __noinline int requote(struct __sk_buff *skb, struct packet *p)
{
	__u32 at = p->l4 + offsetof(struct icmp_header, checksum);
	__s64 sum = translate_quoted(skb, HOOK_TC, p);
	__be16 check;

	if (sum < 0 || bpf_skb_load_bytes(skb, at, &check, sizeof(check)))
		return REASON_INTERNAL;
	check = grown(check, sum);
	return bpf_skb_store_bytes(skb, at, &check, sizeof(check), 0) ? REASON_INTERNAL :
									REASON_NONE;
}

#endif
