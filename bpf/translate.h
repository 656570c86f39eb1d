/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* translate.h: a packet of a translated flow gets the addresses and ports with which it leaves.
 * docs/PACKET-PATH.md, section 15.8; RFC 1624 for the checksums. */
#ifndef SOFTDPU_TRANSLATE_H
#define SOFTDPU_TRANSLATE_H

#include "route.h"

/* Writes new words over old ones. Returns what one's complement sums over them grow by. */
static __always_inline __u64 exchange(__be32 *at, const __be32 *new, __u32 words)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < words; i++) {
		sum += (__u64)(__u32)~at[i] + new[i];
		at[i] = new[i];
	}
	return sum;
}

static __always_inline __u64 exchange_half(__be16 *at, __be16 new)
{
	__u64 sum = (__u64)(__u16) ~*at + new;

	*at = new;
	return sum;
}

/* A checksum once the sum that it stands for has grown. */
static __always_inline __u16 grown(__u16 check, __u64 sum)
{
	return ~fold(sum + (__u16)~check);
}

/* Where 0 says that there is none. */
static __always_inline __u16 grown_not_0(__u16 check, __u64 sum)
{
	__u16 new = grown(check, sum);

	return new ? new : 0xffff;
}

/* The packet inside an ICMP error, whose sender is the one to whom the error goes. Returns what the sum
 * over it grows by, negative if it cannot be. */
static __always_inline __s64 translate_quoted(void *ctx, enum hook hook, struct packet *p)
{
	__u32 at = p->l4 + 8, end = p->l4 + p->l4_len;
	__u64 addresses, ports, sum;
	__be16 h[4], check;

	if (p->family == 4) {
		struct iphdr ip;

		if (load_bytes(ctx, hook, at, &ip, sizeof(ip)))
			return -1;
		addresses = exchange(&ip.saddr, p->out_dst, 1) + exchange(&ip.daddr, p->out_src, 1);
		sum = addresses + exchange_half(&ip.check, grown(ip.check, addresses));
		if (store_bytes(ctx, hook, at, &ip, sizeof(ip)))
			return -1;
	} else {
		__be32 a[8];

		at += offsetof(struct ipv6hdr, saddr);
		if (load_bytes(ctx, hook, at, a, sizeof(a)))
			return -1;
		addresses = exchange(a, p->out_dst, 4) + exchange(a + 4, p->out_src, 4);
		sum = addresses;
		if (store_bytes(ctx, hook, at, a, sizeof(a)))
			return -1;
	}
	at = p->inner;
	if (load_bytes(ctx, hook, at, h, sizeof(h)))
		return -1;
	switch (p->proto) {
	case IPPROTO_TCP:
		ports = exchange_half(&h[0], p->out_dport) + exchange_half(&h[1], p->out_sport);
		sum += ports;
		if (at + 20 > end || load_bytes(ctx, hook, at + 16, &check, 2))
			break;
		sum += exchange_half(&check, grown(check, addresses + ports));
		if (store_bytes(ctx, hook, at + 16, &check, 2))
			return -1;
		break;
	case IPPROTO_UDP:
		ports = exchange_half(&h[0], p->out_dport) + exchange_half(&h[1], p->out_sport);
		sum += ports;
		if (h[3])
			sum += exchange_half(&h[3], grown_not_0(h[3], addresses + ports));
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		ports = exchange_half(&h[2], is_reply(p->family, *(__u8 *)h) ? p->out_sport :
									       p->out_dport);
		sum += ports;
		if (p->family == 6)
			ports += addresses;
		sum += exchange_half(&h[1], grown(h[1], ports));
		break;
	default:
		return sum;
	}
	return store_bytes(ctx, hook, at, h, sizeof(h)) ? -1 : (__s64)sum;
}

/* An ICMP error about a translated flow. */
static __noinline int translate_error(struct xdp_md *ctx, struct packet *p)
{
	__s64 sum = translate_quoted(ctx, HOOK_XDP, p);
	__u64 addresses = 0;
	__be16 check;

	if (sum < 0)
		return REASON_INTERNAL;
	if (p->family == 4) {
		struct iphdr ip;

		if (bpf_xdp_load_bytes(ctx, p->l3, &ip, sizeof(ip)))
			return REASON_INTERNAL;
		if (p->xlat & XLAT_SRC)
			addresses += exchange(&ip.saddr, p->out_src, 1);
		if (p->xlat & XLAT_DST)
			addresses += exchange(&ip.daddr, p->out_dst, 1);
		ip.check = grown(ip.check, addresses);
		if (bpf_xdp_store_bytes(ctx, p->l3, &ip, sizeof(ip)))
			return REASON_INTERNAL;
	} else {
		__u32 at = p->l3 + offsetof(struct ipv6hdr, saddr);
		__be32 a[8];

		if (bpf_xdp_load_bytes(ctx, at, a, sizeof(a)))
			return REASON_INTERNAL;
		if (p->xlat & XLAT_SRC)
			addresses += exchange(a, p->out_src, 4);
		if (p->xlat & XLAT_DST)
			addresses += exchange(a + 4, p->out_dst, 4);
		sum += addresses;
		if (bpf_xdp_store_bytes(ctx, at, a, sizeof(a)))
			return REASON_INTERNAL;
	}
	if (bpf_xdp_load_bytes(ctx, p->l4 + 2, &check, sizeof(check)))
		return REASON_INTERNAL;
	check = grown(check, sum);
	return bpf_xdp_store_bytes(ctx, p->l4 + 2, &check, sizeof(check)) ? REASON_INTERNAL :
									    REASON_NONE;
}

/* Protocols whose transport header the parser has not looked at: the checksum, in the fourth word. */
static __noinline int translate_checksum(struct xdp_md *ctx, const struct packet *p, __u64 sum)
{
	__u32 at = p->l4 + 6;
	__be16 check;

	if (p->l4_len < 8 || bpf_xdp_load_bytes(ctx, at, &check, sizeof(check)))
		return REASON_NONE;
	check = p->proto == IPPROTO_UDPLITE ? grown_not_0(check, sum) : grown(check, sum);
	return bpf_xdp_store_bytes(ctx, at, &check, sizeof(check)) ? REASON_INTERNAL : REASON_NONE;
}

/* Writes what p leaves with over what it came with. Bare: its TCP or UDP checksum still is the sum of the
 * pseudo-header, to be completed by the kernel. */
__translation int translate_headers(struct xdp_md *ctx, struct packet *p, __u32 bare)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end, *l3;
	__u64 sum, ports;
	__be16 *h;

	if (!p)
		return REASON_INTERNAL;
	l3 = data + (p->l3 & 31);
	if (p->family == 4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return REASON_INTERNAL;
		sum = exchange(&ip->saddr, p->out_src, 1) + exchange(&ip->daddr, p->out_dst, 1);
		ip->check = grown(ip->check, sum);
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return REASON_INTERNAL;
		sum = exchange((__be32 *)&ip->saddr, p->out_src, 4) +
		      exchange((__be32 *)&ip->daddr, p->out_dst, 4);
	}
	if (unlikely(p->frag == FRAG_LATER))
		return REASON_NONE;
	h = data + (p->l4 & 0x3fff);
	switch (p->proto) {
	case IPPROTO_TCP:
		if ((void *)(h + 10) > data_end)
			return REASON_INTERNAL;
		ports = exchange_half(&h[0], p->out_sport) + exchange_half(&h[1], p->out_dport);
		h[8] = bare ? fold(sum + h[8]) : grown(h[8], sum + ports);
		return REASON_NONE;
	case IPPROTO_UDP:
		if ((void *)(h + 4) > data_end)
			return REASON_INTERNAL;
		ports = exchange_half(&h[0], p->out_sport) + exchange_half(&h[1], p->out_dport);
		if (h[3])
			h[3] = bare ? fold(sum + h[3]) : grown_not_0(h[3], sum + ports);
		return REASON_NONE;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if ((void *)(h + 4) > data_end)
			return REASON_INTERNAL;
		ports = exchange_half(&h[2], p->kind == PACKET_REPLY ? p->out_dport : p->out_sport);
		h[1] = grown(h[1], p->family == 4 ? ports : sum + ports);
		return REASON_NONE;
	case IPPROTO_UDPLITE:
	case IPPROTO_DCCP:
		return translate_checksum(ctx, p, sum);
	}
	return REASON_NONE;
}

static __always_inline int translate(struct xdp_md *ctx, struct packet *p, bool bare)
{
	return unlikely(p->kind == PACKET_ERROR) ? translate_error(ctx, p) :
						   translate_headers(ctx, p, bare);
}

#endif
