/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipe_parse.h: from a frame to the words that pipes compare. Only what `used` names is read: the verifier takes
 * the rest out. Headers are read in the frame's first buffer, where drivers put them. */
#ifndef SOFTDPU_PIPE_PARSE_H
#define SOFTDPU_PIPE_PARSE_H

#include "pipes.h"

#define PIPE_CHAIN 8 /* most IPv6 extension headers */
#define PIPE_REACH 1023 /* bytes of the frame in which headers are looked for */

volatile const __u64 used = ~0ull; /* words that the pipeline compares or copies, one bit each */
volatile const __u8 check_ip; /* whether it asks for PIPE_HAS_CHECKSUM */
volatile const __u32 raw0 = ~0u, raw1 = ~0u, raw2 = ~0u,
		     raw3 = ~0u; /* base << 16 | offset; ~0 = there is none */

#define USED(word) (used & 1ull << (word))

#define be16_at(p) bpf_ntohs(*(__be16 *)(p))
#define be32_at(p) bpf_ntohl(*(__be32 *)(p))

/* Whether n bytes from offset `at` on are in the first buffer. */
#define REACHES(at, n) ((at) <= PIPE_REACH && data + (at) + (n) <= data_end)

static __always_inline bool is_tag(__u32 type)
{
	return type == ETH_P_8021Q || type == ETH_P_8021AD;
}

/* The transport header, of which a later fragment has none. */
static __always_inline void pipe_transport(void *data, void *data_end, struct pipe_fields *f,
					   struct pipe_place *at, __u32 proto)
{
	__u32 l4 = at->l4, *w = f->word, end = at->l3 + at->length;
	__u32 left = end > l4 ? end - l4 : 0; /* what follows is padding */
	void *p;

	opaque(l4);
	if (!REACHES(l4, 4))
		return;
	p = data + l4;
	switch (proto) {
	case IPPROTO_TCP:
		if (left < sizeof(struct tcphdr) || p + sizeof(struct tcphdr) > data_end)
			return;
		w[PIPE_HAS] |= PIPE_HAS_TCP | PIPE_HAS_PORTS;
		w[PIPE_TCP_FLAGS] = *(__u8 *)(p + 13);
		w[PIPE_TCP_SEQ] = be32_at(p + 4);
		w[PIPE_TCP_ACK] = be32_at(p + 8);
		at->payload = l4 + (*(__u8 *)(p + 12) >> 4) * 4;
		break;
	case IPPROTO_UDP:
		if (left < sizeof(struct udphdr) || p + sizeof(struct udphdr) > data_end)
			return;
		w[PIPE_HAS] |= PIPE_HAS_UDP | PIPE_HAS_PORTS;
		at->payload = l4 + sizeof(struct udphdr);
		if (be16_at(p + 2) == 4789 && left >= 16 && p + 16 <= data_end &&
		    *(__u8 *)(p + 8) & 0x08) {
			w[PIPE_HAS] |= PIPE_HAS_VXLAN;
			w[PIPE_VXLAN_VNI] = be32_at(p + 12) >> 8;
		}
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (left < 8 || p + 8 > data_end)
			return;
		w[PIPE_HAS] |= PIPE_HAS_ICMP;
		w[PIPE_ICMP_TYPE] = *(__u8 *)p;
		w[PIPE_ICMP_CODE] = *(__u8 *)(p + 1);
		w[PIPE_ICMP_IDENT] = be16_at(p + 4);
		at->payload = l4 + 8;
		break;
	case IPPROTO_ESP:
		if (left < 8 || p + 8 > data_end)
			return;
		w[PIPE_HAS] |= PIPE_HAS_ESP;
		w[PIPE_ESP_SPI] = be32_at(p);
		w[PIPE_ESP_SEQ] = be32_at(p + 4);
		at->payload = l4 + 8;
		break;
	case IPPROTO_UDPLITE:
	case IPPROTO_DCCP: /* of which addresses change the checksum */
		if (left >= 8)
			at->proto = proto;
		return;
	default:
		return;
	}
	at->proto = proto;
	if (w[PIPE_HAS] & PIPE_HAS_PORTS) {
		w[PIPE_L4_SPORT] = be16_at(p);
		w[PIPE_L4_DPORT] = be16_at(p + 2);
	}
}

/* Whether an IPv4 header's checksum is right. */
static __always_inline bool header_is_right(void *ip, void *data_end, __u32 length)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < 60; i += 2) {
		if (i >= length)
			break;
		if (ip + i + 2 > data_end)
			return false;
		sum += *(__u16 *)(ip + i);
	}
	return fold(sum) == 0xffff;
}

static __always_inline void pipe_ipv4(void *data, void *data_end, struct pipe_fields *f,
				      struct pipe_place *at)
{
	struct iphdr *ip = data + at->l3;
	__u32 *w = f->word, fragment, length;

	if ((void *)(ip + 1) > data_end || ip->version != 4 || ip->ihl < 5)
		return;
	length = ip->ihl * 4;
	if ((void *)ip + length > data_end || bpf_ntohs(ip->tot_len) < length)
		return;
	fragment = bpf_ntohs(ip->frag_off);
	w[PIPE_HAS] |= PIPE_HAS_IP | PIPE_HAS_IPV4;
	w[PIPE_IP_PROTO] = ip->protocol;
	w[PIPE_IP_TTL] = ip->ttl;
	w[PIPE_IP_DSCP] = ip->tos >> 2;
	w[PIPE_IP_ECN] = ip->tos & 3;
	w[PIPE_IP_LENGTH] = at->length = bpf_ntohs(ip->tot_len);
	w[PIPE_IP_ID] = bpf_ntohs(ip->id);
	w[PIPE_IP_DF] = fragment >> 14 & 1;
	w[PIPE_IP_FRAGMENT] = fragment & 0x1fff ? PIPE_FRAGMENT_LATER :
			      fragment & 0x2000 ? PIPE_FRAGMENT_FIRST :
						  PIPE_FRAGMENT_NONE;
	w[PIPE_IP_SRC] = bpf_ntohl(ip->saddr);
	w[PIPE_IP_DST] = bpf_ntohl(ip->daddr);
	at->family = 4;
	if (check_ip && header_is_right(ip, data_end, length))
		w[PIPE_HAS] |= PIPE_HAS_CHECKSUM;
	if (fragment & 0x1fff)
		return;
	at->l4 = at->l3 + length;
	pipe_transport(data, data_end, f, at, ip->protocol);
}

/* Walks the chain of extension headers. */
static __always_inline void pipe_ipv6(void *data, void *data_end, struct pipe_fields *f,
				      struct pipe_place *at)
{
	struct ipv6hdr *ip = data + at->l3;
	__u32 *w = f->word, next, l4, first;
	bool later = false;

	if ((void *)(ip + 1) > data_end || ip->version != 6)
		return;
	first = be32_at(ip);
	w[PIPE_HAS] |= PIPE_HAS_IP | PIPE_HAS_IPV6;
	if (check_ip)
		w[PIPE_HAS] |= PIPE_HAS_CHECKSUM;
	w[PIPE_IP_TTL] = ip->hop_limit;
	w[PIPE_IP_DSCP] = first >> 22 & 0x3f;
	w[PIPE_IP_ECN] = first >> 20 & 3;
	w[PIPE_IP_LABEL] = first & 0xfffff;
	w[PIPE_IP_LENGTH] = at->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		w[PIPE_IP_SRC + i] = be32_at((void *)&ip->saddr + 4 * i);
		w[PIPE_IP_DST + i] = be32_at((void *)&ip->daddr + 4 * i);
	}
	at->family = 6;
	next = ip->nexthdr;
	l4 = at->l3 + sizeof(*ip);
	for (int i = 0; i < PIPE_CHAIN; i++) {
		void *p;

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_AH && next != IPPROTO_FRAGMENT)
			break;
		opaque(l4);
		if (!REACHES(l4, 8))
			break; /* no transport header has one of these numbers */
		p = data + l4;
		if (next == IPPROTO_FRAGMENT) {
			__u32 offset = be16_at(p + 2);

			later = offset & 0xfff8;
			if (later || offset & 1) /* a second such header takes nothing back */
				w[PIPE_IP_FRAGMENT] =
					later ? PIPE_FRAGMENT_LATER : PIPE_FRAGMENT_FIRST;
			l4 += 8;
		} else if (next == IPPROTO_AH) {
			l4 += (*(__u8 *)(p + 1) + 2) * 4;
		} else {
			if (next == IPPROTO_ROUTING && *(__u8 *)(p + 3))
				at->routed = 1;
			l4 += (*(__u8 *)(p + 1) + 1) * 8;
		}
		next = *(__u8 *)p;
		if (later)
			break;
	}
	w[PIPE_IP_PROTO] = next;
	if (later)
		return;
	at->l4 = l4;
	pipe_transport(data, data_end, f, at, next);
}

static __always_inline void pipe_raw(void *data, void *data_end, struct pipe_fields *f,
				     const struct pipe_place *at, __u32 raw, __u32 number)
{
	__u32 base = raw >> 16, from;

	if (raw == ~0u)
		return;
	from = base == PIPE_BASE_L2 ? 0 :
	       base == PIPE_BASE_L3 ? at->l3 :
	       base == PIPE_BASE_L4 ? at->l4 :
				      at->payload;
	if (base != PIPE_BASE_L2 && !from)
		return;
	from += raw & 0xff;
	opaque(from);
	if (!REACHES(from, 4))
		return;
	f->word[PIPE_RAW0 + number] = be32_at(data + from);
	f->word[PIPE_HAS] |= PIPE_HAS_RAW0 << number;
}

/* Fills the words of a frame, which are 0 before. */
static __always_inline void pipe_frame(struct xdp_md *ctx, struct pipe_fields *f,
				       struct pipe_place *at)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 *w = f->word, l3 = ETH_HLEN, type;
	struct ethhdr *eth = data;

	w[PIPE_LENGTH] = bpf_xdp_get_buff_len(ctx);
	if ((void *)(eth + 1) > data_end)
		return;
	w[PIPE_ETH_DST] = be16_at(eth->h_dest);
	w[PIPE_ETH_DST + 1] = be32_at(eth->h_dest + 2);
	w[PIPE_ETH_SRC] = be16_at(eth->h_source);
	w[PIPE_ETH_SRC + 1] = be32_at(eth->h_source + 2);
	type = bpf_ntohs(eth->h_proto);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (!is_tag(type) || data + l3 + 4 > data_end)
			break;
		w[PIPE_VLAN0_ID + 2 * i] = be16_at(data + l3) & 0xfff;
		w[PIPE_VLAN0_PCP + 2 * i] = be16_at(data + l3) >> 13;
		w[PIPE_HAS] |= PIPE_HAS_VLAN0 << i;
		w[PIPE_VLANS]++;
		type = be16_at(data + l3 + 2);
		l3 += 4;
	}
	at->tags = is_tag(type) ? 4 : w[PIPE_VLANS];
	w[PIPE_ETH_TYPE] = type;
	at->l3 = l3;
	if (type == ETH_P_IP)
		pipe_ipv4(data, data_end, f, at);
	else if (type == ETH_P_IPV6)
		pipe_ipv6(data, data_end, f, at);
	pipe_raw(data, data_end, f, at, raw0, 0);
	pipe_raw(data, data_end, f, at, raw1, 1);
	pipe_raw(data, data_end, f, at, raw2, 2);
	pipe_raw(data, data_end, f, at, raw3, 3);
}

#endif
