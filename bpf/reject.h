/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* reject.h: the answer to a packet that a rule rejects, made of that packet and sent back by the port
 * of its arrival. docs/PACKET-PATH.md, section 12. */
#ifndef SOFTDPU_REJECT_H
#define SOFTDPU_REJECT_H

#include "send.h"

/* Room of the largest answer's headers and quotation. */
#define QUOTE_MAX 128

static __always_inline bool answer_due(const struct packet *p)
{
	__u32 h = (p->src[0] ^ p->src[1] * 31 ^ p->src[2] * 961 ^ p->src[3] * 29791) * 2654435761u;
	__u32 index = h >> 20;
	struct reject_bucket *b = bpf_map_lookup_elem(&rejects, &index);

	if (!b)
		return false;
	if (p->tick - b->second >= SECOND) {
		b->second = p->tick;
		b->answers = 0;
	}
	return b->answers++ < REJECT_RATE;
}

static __always_inline void swap_macs(struct ethhdr *eth)
{
	__u8 mac[6];

	__builtin_memcpy(mac, eth->h_dest, 6);
	__builtin_memcpy(eth->h_dest, eth->h_source, 6);
	__builtin_memcpy(eth->h_source, mac, 6);
}

static __always_inline __u64 sum_words(const void *from, __u32 words)
{
	const __u32 *w = from;
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < words; i++)
		sum += w[i];
	return sum;
}

static __always_inline void write_ipv4(struct iphdr *ip, __be32 src, __be32 dst, __u8 proto,
				       __u16 len)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tot_len = bpf_htons(len);
	ip->ttl = 64;
	ip->protocol = proto;
	ip->saddr = src;
	ip->daddr = dst;
	ip->check = ~fold(sum_words(ip, 5));
}

static __always_inline void write_ipv6(struct ipv6hdr *ip, const __be32 *src, const __be32 *dst,
				       __u8 proto, __u16 len)
{
	*(__be32 *)ip = bpf_htonl(6 << 28);
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = proto;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, src, 16);
	__builtin_memcpy(&ip->daddr, dst, 16);
}

/* A RST from the destination, so that the sender's TCP accepts it. */
static __noinline int reject_tcp(struct xdp_md *ctx, struct packet *p)
{
	__u32 l3 = p->l3 & 31;
	__u32 header = p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u32 want = l3 + header + sizeof(struct tcphdr);
	__u32 syn_fin = !!(p->tcp_flags & TCP_SYN) + !!(p->tcp_flags & TCP_FIN);
	__u32 end = p->seq + p->l4_len - p->l4_data + syn_fin;
	void *data, *data_end;
	struct tcphdr *tcp;
	__u64 sum;

	if (bpf_xdp_adjust_tail(ctx, (int)want - (int)bpf_xdp_get_buff_len(ctx)))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	tcp = data + l3 + header;
	if (data + sizeof(struct ethhdr) > data_end || (void *)(tcp + 1) > data_end)
		return XDP_DROP;
	swap_macs(data);
	if (p->family == 4)
		write_ipv4(data + l3, p->dst[0], p->src[0], IPPROTO_TCP,
			   sizeof(struct iphdr) + sizeof(*tcp));
	else if (data + l3 + sizeof(struct ipv6hdr) <= data_end)
		write_ipv6(data + l3, p->dst, p->src, IPPROTO_TCP, sizeof(*tcp));
	__builtin_memset(tcp, 0, sizeof(*tcp));
	tcp->source = p->dport;
	tcp->dest = p->sport;
	tcp->doff = 5;
	tcp->rst = 1;
	if (p->tcp_flags & TCP_ACK) {
		tcp->seq = bpf_htonl(p->ack);
	} else {
		tcp->ack = 1;
		tcp->ack_seq = bpf_htonl(end);
	}
	p->l4_len = sizeof(*tcp);
	sum = pseudo_sum(p) + sum_words(tcp, 5);
	tcp->check = ~fold(sum);
	return XDP_TX;
}

/* An ICMP error of this type << 8 | code, quoting IP header and 8 bytes behind it. */
static __noinline int answer_icmp(struct xdp_md *ctx, struct packet *p, const struct port *port,
				  __u32 kind, __be32 rest)
{
	bool inlined = port->flags & PORT_INLINE;
	__u32 l3 = p->l3 & 31,
	      header = p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u32 quote = (__u32)p->l4 - p->l3 + 8, at, want;
	__be32 src[4];
	struct scratch *s = scratch();
	void *data, *data_end;
	struct icmp_header *icmp;
	__u8 macs[22];
	__u64 sum = 0;
	__s64 diff;

	if (p->family == 4)
		src[0] = inlined ? p->dst[0] : port->ip4, src[1] = src[2] = src[3] = 0;
	else
		__builtin_memcpy(src, inlined ? p->dst : port->ip6, 16);
	if (!(src[0] | src[1] | src[2] | src[3]))
		return XDP_DROP;
	if (quote > p->ip_len)
		quote = p->ip_len;
	/* a multiple of 4, as headers are, within the scratch bytes */
	opaque(quote);
	quote &= 4 * QUOTE_MAX - 4;
	if (quote < 28 || quote > QUOTE_MAX)
		return XDP_DROP;

	want = l3 + quote;
	if (bpf_xdp_adjust_tail(ctx, (int)want - (int)bpf_xdp_get_buff_len(ctx)))
		return XDP_DROP;
	if (bpf_xdp_load_bytes(ctx, 0, macs, 14))
		return XDP_DROP;
	if (l3 > 14 && bpf_xdp_load_bytes(ctx, 14, macs + 14, l3 > 18 ? 8 : 4))
		return XDP_DROP;
	if (bpf_xdp_adjust_head(ctx, -(int)(header + sizeof(*icmp))))
		return XDP_DROP;
	if (bpf_xdp_store_bytes(ctx, 0, macs, 14))
		return XDP_DROP;
	if (l3 > 14 && bpf_xdp_store_bytes(ctx, 14, macs + 14, l3 > 18 ? 8 : 4))
		return XDP_DROP;
	at = l3 + header + sizeof(*icmp);
	if (!s || bpf_xdp_load_bytes(ctx, at, s->bytes, quote))
		return XDP_DROP;
	diff = bpf_csum_diff(NULL, 0, (__be32 *)s->bytes, quote, 0);
	if (diff < 0)
		return XDP_DROP;

	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	icmp = data + l3 + header;
	if (data + sizeof(struct ethhdr) > data_end || (void *)(icmp + 1) > data_end)
		return XDP_DROP;
	swap_macs(data);
	icmp->type = kind >> 8;
	icmp->code = kind;
	icmp->checksum = 0;
	icmp->rest = rest;
	if (p->family == 4) {
		write_ipv4(data + l3, src[0], p->src[0], IPPROTO_ICMP,
			   sizeof(struct iphdr) + sizeof(*icmp) + quote);
	} else if (data + l3 + sizeof(struct ipv6hdr) <= data_end) {
		write_ipv6(data + l3, src, p->src, IPPROTO_ICMPV6, sizeof(*icmp) + quote);
		sum = (__u64)src[0] + src[1] + src[2] + src[3] + p->src[0] + p->src[1] + p->src[2] +
		      p->src[3] + bpf_htons(sizeof(*icmp) + quote) + bpf_htons(IPPROTO_ICMPV6);
	}
	sum += (__u64)diff + sum_words(icmp, 2);
	icmp->checksum = ~fold(sum);
	return XDP_TX;
}

/* Whether somebody sent p who may be told what became of it. */
static __always_inline bool answerable(const struct packet *p)
{
	return p->frag != FRAG_LATER && p->kind != PACKET_ERROR && !p->group_mac &&
	       !is_group_address(p) && (p->family == 4 ? p->src[0] : !unspecified6(p->src));
}

/* Turns the packet into its answer. Returns XDP_TX, or XDP_DROP where none is due. */
static __always_inline int reject(struct xdp_md *ctx, struct packet *p, const struct port *port)
{
	if (!answerable(p))
		return XDP_DROP;
	if (p->proto == IPPROTO_TCP && p->tcp_flags & TCP_RST)
		return XDP_DROP;
	if (!answer_due(p))
		return XDP_DROP;
	if (p->proto == IPPROTO_TCP)
		return reject_tcp(ctx, p);
	return answer_icmp(ctx, p, port, p->family == 4 ? 3 << 8 | 13 : 1 << 8 | 1, 0);
}

/* Turns a packet of a translated flow, which the kernel could not answer since it knows nothing of the
 * translation, into the error that says why it goes no further. Returns XDP_TX or XDP_DROP. */
static __always_inline int explain(struct xdp_md *ctx, struct packet *p, const struct port *port,
				   int reason)
{
	struct nexthop *hop = nexthop_at(p->nexthop);

	if (!hop || !answerable(p) || !answer_due(p))
		return XDP_DROP;
	if (reason == REASON_TTL_EXPIRED)
		return answer_icmp(ctx, p, port, p->family == 4 ? 11 << 8 : 3 << 8, 0);
	return answer_icmp(ctx, p, port, p->family == 4 ? 3 << 8 | 4 : 2 << 8,
			   bpf_htonl(hop->src >> 48));
}

#endif
