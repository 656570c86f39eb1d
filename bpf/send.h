/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* send.h: what is written into a packet before it leaves: MACs, VLAN tag, TTL, and a checksum that
 * the sender left to hardware which is not there. */
#ifndef SOFTDPU_SEND_H
#define SOFTDPU_SEND_H

#include "route.h"

/* The sum of a transport checksum's pseudo-header. */
static __always_inline __u64 pseudo_sum(const struct packet *p)
{
	__u64 sum = (__u64)p->src[0] + p->dst[0];

	if (p->family == 6)
		sum += (__u64)p->src[1] + p->src[2] + p->src[3] + p->dst[1] + p->dst[2] + p->dst[3];
	return sum + bpf_htons(p->l4_len) + bpf_htons(p->proto);
}

#define CHUNK 512

/* Completes a TCP or UDP checksum that is still the bare pseudo-header sum. Sums to the end of the IP
 * packet, not of the padded frame. */
__noinline int complete_checksum(struct xdp_md *ctx, const struct packet *p)
{
	struct scratch *s = scratch();
	__u32 at, left, field;
	__u16 check;
	__s64 sum = 0;

	if (!p || !s)
		return REASON_INTERNAL;
	at = p->l4;
	left = p->l4_len;
	field = at + (p->proto == IPPROTO_TCP ? 16 : 6);
	/* the field holds the pseudo-header sum, which therefore is part of what is summed */
	for (int i = 0; i < 65536 / CHUNK; i++) {
		if (left < CHUNK)
			break;
		if (bpf_xdp_load_bytes(ctx, at, s->bytes, CHUNK))
			return REASON_INTERNAL;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)s->bytes, CHUNK, sum);
		at += CHUNK;
		left -= CHUNK;
	}
	if (left > 0) {
		/* in a form in which Linux 6.1, too, sees that it is not 0 */
		left--;
		opaque(left);
		left = (left & (CHUNK - 1)) + 1;
		*(__u32 *)(s->bytes + (left & (CHUNK - 4))) = 0;
		if (bpf_xdp_load_bytes(ctx, at, s->bytes, left))
			return REASON_INTERNAL;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)s->bytes, (left + 3) & (2 * CHUNK - 4), sum);
	}
	if (sum < 0)
		return REASON_INTERNAL;
	check = ~fold(sum);
	if (check == 0 && p->proto == IPPROTO_UDP)
		check = 0xffff;
	return bpf_xdp_store_bytes(ctx, field, &check, sizeof(check)) ? REASON_INTERNAL :
									REASON_NONE;
}

/* Whether the checksum still is the bare pseudo-header sum. */
static __always_inline bool checksum_missing(void *data, void *data_end, const struct packet *p)
{
	__be16 *field;

	if (p->frag || p->kind == PACKET_ERROR ||
	    (p->proto != IPPROTO_TCP && p->proto != IPPROTO_UDP))
		return false;
	field = data + (p->l4 & 0x3fff) + (p->proto == IPPROTO_TCP ? 16 : 6);
	if ((void *)(field + 1) > data_end)
		return false;
	return *field == fold(pseudo_sum(p)) && (*field || p->proto == IPPROTO_TCP);
}

/* Replaces the frame's VLAN tags by the one of the next hop, or by none. The Ethernet addresses are
 * written afterwards. */
__noinline int retag(struct xdp_md *ctx, struct packet *p, __u16 vlan)
{
	void *data, *data_end;
	struct vlan_header *tag;
	struct ethhdr *eth;
	__be16 proto;
	int delta;

	if (!p)
		return REASON_INTERNAL;
	delta = p->tags * 4 - (vlan ? 4 : 0);
	proto = p->family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	if (delta && bpf_xdp_adjust_head(ctx, delta))
		return REASON_INTERNAL;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	eth = data;
	tag = (void *)(eth + 1);
	if ((void *)(tag + 1) > data_end)
		return REASON_INTERNAL;
	if (vlan) {
		eth->h_proto = bpf_htons(ETH_P_8021Q);
		tag->tci = vlan;
		tag->proto = proto;
	} else {
		eth->h_proto = proto;
	}
	p->l3 -= delta;
	p->l4 -= delta;
	p->tags = vlan ? 1 : 0;
	return REASON_NONE;
}

static __always_inline int rewrite(struct xdp_md *ctx, struct packet *p, __u64 dst, __u64 src)
{
	void *data, *data_end, *l3;

	if (unlikely(p->tags || dst >> 48)) {
		int reason = retag(ctx, p, dst >> 48);

		if (reason)
			return reason;
	}
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	l3 = data + (p->l3 & 31);
	if (data + sizeof(struct ethhdr) > data_end || l3 + sizeof(struct iphdr) > data_end)
		return REASON_INTERNAL;
	*(__u32 *)data = dst;
	*(__u16 *)(data + 4) = dst >> 32;
	*(__u32 *)(data + 6) = src;
	*(__u16 *)(data + 10) = src >> 32;
	if (p->family == 4) {
		struct iphdr *ip = l3;
		__u32 check = ip->check + bpf_htons(0x0100);

		/* RFC 1624: TTL falls by one, so the complement's sum rises by its place value */
		ip->check = check + (check >= 0xffff);
		ip->ttl--;
	} else {
		((struct ipv6hdr *)l3)->hop_limit--;
	}
	return REASON_NONE;
}

/* Cause of a mark on a packet that is refused, and handed to the kernel for its answer. */
#define MARK_REFUSED ((1 << PASS_CAUSE_BITS) - 1)

/* Room for the mark twice, ETH_HLEN apart; metadata comes in steps of 4 bytes. */
#define MARK_ROOM 24

/* Leaves in front of the packet the mark by which the egress guard knows that it was judged. In generic
 * mode, from Linux 6.9, the kernel copies a frame for a multi-buffer program and forgets in the copy how
 * long the Ethernet header is: tc then finds the packet, and the metadata, ETH_HLEN further on. */
static __always_inline int leave_mark(struct xdp_md *ctx, __u32 cause)
{
	struct pass_mark *m, *further;

	if (bpf_xdp_adjust_meta(ctx, -MARK_ROOM))
		return REASON_INTERNAL;
	m = (void *)(long)ctx->data_meta;
	if ((void *)m + MARK_ROOM > (void *)(long)ctx->data)
		return REASON_INTERNAL;
	further = (void *)m + ETH_HLEN;
	m->magic = further->magic = PASS_MAGIC;
	m->cause = further->cause = cause;
	return REASON_NONE;
}

#endif
