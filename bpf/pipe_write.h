/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipe_write.h: what actions have changed of a packet's words goes back into its frame. */
#ifndef SOFTDPU_PIPE_WRITE_H
#define SOFTDPU_PIPE_WRITE_H

#include "pipe_parse.h"
#include "send.h"

/* Adds to a sum of differences, in network order, that a word becomes another (RFC 1624). */
static __always_inline __u64 became(__u64 sum, __u32 was, __u32 is)
{
	return sum + (__u32)~was + is;
}

static __always_inline __u16 changed(__u16 check, __u64 sum)
{
	return ~fold((__u16)~check + sum);
}

/* Replaces four bytes and notes the difference. */
static __always_inline __u64 put32(void *at, __u32 value, __u64 sum)
{
	__be32 *p = at, is = bpf_htonl(value);

	sum = became(sum, *p, is);
	*p = is;
	return sum;
}

static __always_inline __u64 put16(void *at, __u16 value, __u64 sum)
{
	__be16 *p = at, is = bpf_htons(value);

	sum = became(sum, *p, is);
	*p = is;
	return sum;
}

/* The packet's checksum may be one that its sender left to hardware, which is not there: it would be taken for
 * a whole one here, and by whoever receives it. */
static __always_inline void complete(struct xdp_md *ctx, const struct pipe_fields *f,
				     const struct pipe_place *at)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct scratch *s = scratch();
	struct packet *p;
	void *ip;

	if (!s || at->routed || !(f->word[PIPE_HAS] & PIPE_HAS_PORTS) ||
	    f->word[PIPE_IP_FRAGMENT] != PIPE_FRAGMENT_NONE || at->l3 + at->length < at->l4 + 8)
		return;
	p = &s->packet;
	clear_packet(p);
	p->family = at->family;
	p->proto = at->proto;
	p->l4 = at->l4;
	p->l4_len = at->l3 + at->length - at->l4;
	/* the words may be others by now */
	ip = data + (at->l3 & 31);
	if (at->family == 4) {
		if (ip + sizeof(struct iphdr) > data_end)
			return;
		p->src[0] = *(__be32 *)(ip + 12);
		p->dst[0] = *(__be32 *)(ip + 16);
	} else {
		if (ip + sizeof(struct ipv6hdr) > data_end)
			return;
		__builtin_memcpy(p->src, ip + 8, 16);
		__builtin_memcpy(p->dst, ip + 24, 16);
	}
	if (checksum_missing(data, data_end, p))
		complete_checksum(ctx, p);
}

/* Writes addresses, TTL and TOS into the IP header. Returns how the sum of the addresses has changed over which transport
 * checksums go: the last destination is one of them (RFC 8200, section 8.1), which may stand in a routing header. */
static __always_inline __u64 write_ip(void *ip, void *data_end, const struct pipe_fields *f,
				      const struct pipe_place *at)
{
	const __u32 *w = f->word;
	__u32 written = w[PIPE_WRITTEN];
	__u64 addresses = 0, header = 0;
	struct iphdr *v4 = ip;

	if (at->family == 4) {
		if (ip + sizeof(*v4) > data_end)
			return 0;
		if (written & PIPE_WROTE_IP) {
			addresses = put32(&v4->saddr, w[PIPE_IP_SRC], addresses);
			addresses = put32(&v4->daddr, w[PIPE_IP_DST], addresses);
		}
		header = addresses;
		if (written & PIPE_WROTE_TTL)
			header = put16(&v4->ttl, w[PIPE_IP_TTL] << 8 | v4->protocol, header);
		if (written & PIPE_WROTE_TOS)
			header =
				put16(ip,
				      0x4000 | v4->ihl << 8 | w[PIPE_IP_DSCP] << 2 | w[PIPE_IP_ECN],
				      header);
		v4->check = changed(v4->check, header);
		return addresses;
	}
	if (ip + sizeof(struct ipv6hdr) > data_end)
		return 0;
	if (written & PIPE_WROTE_IP) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			addresses = put32(ip + 8 + 4 * i, w[PIPE_IP_SRC + i], addresses);
			header = put32(ip + 24 + 4 * i, w[PIPE_IP_DST + i], header);
		}
		if (!at->routed)
			addresses += header;
	}
	if (written & PIPE_WROTE_TTL)
		((struct ipv6hdr *)ip)->hop_limit = w[PIPE_IP_TTL];
	if (written & PIPE_WROTE_TOS)
		put32(ip,
		      6u << 28 | w[PIPE_IP_DSCP] << 22 | w[PIPE_IP_ECN] << 20 |
			      (be32_at(ip) & 0xfffff),
		      0);
	return addresses;
}

/* Writes ports, and corrects the checksum. */
static __always_inline void write_transport(void *data, void *data_end, const struct pipe_fields *f,
					    const struct pipe_place *at, __u64 sum)
{
	__u32 l4 = at->l4, offset;
	__be16 *check;
	void *p;

	opaque(l4);
	if (!at->proto || !REACHES(l4, 8))
		return;
	p = data + l4;
	if (f->word[PIPE_WRITTEN] & PIPE_WROTE_PORTS && f->word[PIPE_HAS] & PIPE_HAS_PORTS) {
		sum = put16(p, f->word[PIPE_L4_SPORT], sum);
		sum = put16(p + 2, f->word[PIPE_L4_DPORT], sum);
	}
	if (at->proto == IPPROTO_TCP)
		offset = 16;
	else if (at->proto == IPPROTO_UDP || at->proto == IPPROTO_UDPLITE ||
		 at->proto == IPPROTO_DCCP)
		offset = 6;
	else if (at->proto == IPPROTO_ICMPV6 && at->family == 6)
		offset = 2;
	else
		return;
	check = p + offset;
	if ((void *)(check + 1) > data_end || (at->proto == IPPROTO_UDP && !*check))
		return;
	*check = changed(*check, sum);
	if ((at->proto == IPPROTO_UDP || at->proto == IPPROTO_UDPLITE) && !*check)
		*check = 0xffff;
}

/* Gives the frame the tags that its words tell of. A tag that comes new is one of 802.1Q. */
static __always_inline int write_tags(struct xdp_md *ctx, const struct pipe_fields *f,
				      const struct pipe_place *at)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__be16 type[2] = { bpf_htons(ETH_P_8021Q), bpf_htons(ETH_P_8021Q) };
	const __u32 *w = f->word;
	__u32 tags = w[PIPE_VLANS];
	int more = (int)tags - (int)at->tags;
	__u16 dei[2] = {};

	if (tags > 2 || at->tags > 2)
		return REASON_INTERNAL;
	/* a tag that stays has the type and the DEI that it had, and the inner one stays the longest */
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int to = i + more;

		if (i < (int)at->tags && data + 16 + 4 * i <= data_end) {
			if (to == 0) {
				type[0] = *(__be16 *)(data + 12 + 4 * i);
				dei[0] = be16_at(data + 14 + 4 * i) & 0x1000;
			} else if (to == 1) {
				type[1] = *(__be16 *)(data + 12 + 4 * i);
				dei[1] = be16_at(data + 14 + 4 * i) & 0x1000;
			}
		}
	}
	if (more && bpf_xdp_adjust_head(ctx, -4 * more))
		return REASON_INTERNAL;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN + 8 > data_end)
		return REASON_INTERNAL;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		__be16 *p = data + 12 + 4 * i;

		if (i >= (int)tags)
			break;
		p[0] = type[i];
		p[1] = bpf_htons(w[PIPE_VLAN0_PCP + 2 * i] << 13 | dei[i] |
				 w[PIPE_VLAN0_ID + 2 * i]);
		p[2] = bpf_htons(w[PIPE_ETH_TYPE]);
	}
	if (!tags)
		*(__be16 *)(data + 12) = bpf_htons(w[PIPE_ETH_TYPE]);
	return REASON_NONE;
}

static __always_inline int write_addresses(struct xdp_md *ctx, const struct pipe_fields *f)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	const __u32 *w = f->word;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return REASON_INTERNAL;
	put16(eth->h_dest, w[PIPE_ETH_DST], 0);
	put32(eth->h_dest + 2, w[PIPE_ETH_DST + 1], 0);
	put16(eth->h_source, w[PIPE_ETH_SRC], 0);
	put32(eth->h_source + 2, w[PIPE_ETH_SRC + 1], 0);
	return REASON_NONE;
}

/* Writes back what was changed. Returns enum reason. */
static __always_inline int write_back(struct xdp_md *ctx, const struct pipe_fields *f,
				      const struct pipe_place *at)
{
	__u32 written = f->word[PIPE_WRITTEN];
	void *data, *data_end;
	int reason;

	if (at->family &&
	    written & (PIPE_WROTE_TTL | PIPE_WROTE_TOS | PIPE_WROTE_IP | PIPE_WROTE_PORTS)) {
		__u64 sum;

		if (written & (PIPE_WROTE_IP | PIPE_WROTE_PORTS))
			complete(ctx, f, at);
		data = (void *)(long)ctx->data;
		data_end = (void *)(long)ctx->data_end;
		sum = write_ip(data + (at->l3 & 31), data_end, f, at);
		if (written & (PIPE_WROTE_IP | PIPE_WROTE_PORTS))
			write_transport(data, data_end, f, at, sum);
	}
	if (!(written & (PIPE_WROTE_ETH | PIPE_WROTE_VLAN)))
		return REASON_NONE;
	if (written & PIPE_WROTE_VLAN) {
		reason = write_tags(ctx, f, at);
		if (reason)
			return reason;
	}
	return write_addresses(ctx, f);
}

#endif
