/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* parse.h: from a frame to struct packet. Every way in which a frame can be malformed ends in a
 * reason of its own. Nothing here looks at a table. docs/PACKET-PATH.md, sections 1-6. */
#ifndef SOFTDPU_PARSE_H
#define SOFTDPU_PARSE_H

#include "options.h"

/* ---- IPv4 ----------------------------------------------------------------------------------- */

static __always_inline bool loopback4(__u32 a)
{
	return a >> 24 == 127;
}

static __always_inline int parse_ipv4(void *ctx, enum hook hook, void *data, void *data_end,
				      struct packet *p)
{
	struct iphdr *ip = data + (p->l3 & 31);
	__u32 ihl, len;

	if ((void *)(ip + 1) > data_end || ip->version != 4)
		return REASON_MALFORMED_IPV4;
	ihl = ip->ihl * 4;
	len = bpf_ntohs(ip->tot_len);
	if (ihl < sizeof(*ip) || len < ihl)
		return REASON_MALFORMED_IPV4;
	/* Linux 6.1 knows no bounds of a swapped number and adds none such to a pointer */
	if (len > data_end - (void *)ip && p->l3 + len > frame_length(ctx, hook))
		return REASON_MALFORMED_IPV4;

	__u32 *w = (void *)ip;
	__u64 sum = (__u64)w[0] + w[1] + w[2] + w[3] + w[4];

	if (unlikely(ihl > sizeof(*ip))) {
		int reason;

		if (!load_options(ctx, hook, p->l3 + sizeof(*ip), ihl - sizeof(*ip)))
			return REASON_MALFORMED_IPV4;
		reason = check_options4(ihl - sizeof(*ip), sum);
		if (reason)
			return reason;
	} else if (fold(sum) != 0xffff) {
		return REASON_MALFORMED_IPV4_CHECKSUM;
	}

	__u32 s = bpf_ntohl(ip->saddr), d = bpf_ntohl(ip->daddr);

	if (unlikely(s == d || loopback4(s) || loopback4(d) || s >= 0xe0000000 || d >> 24 == 0 ||
		     (s >> 24 == 0 && (s || d != 0xffffffff))))
		return REASON_MARTIAN;

	p->unroutable = s == 0;
	p->src[0] = ip->saddr;
	p->dst[0] = ip->daddr;
	p->ip_len = len;
	p->l4 = p->l3 + ihl;
	p->l4_len = len - ihl;
	p->proto = ip->protocol;
	p->ttl = ip->ttl;

	__u16 off = bpf_ntohs(ip->frag_off);

	p->df = off >> 14 & 1;
	p->more = off >> 13 & 1;
	off = (off & 0x1fff) << 3;
	if (unlikely(off || p->more)) {
		p->frag = off ? FRAG_LATER : FRAG_FIRST;
		p->frag_off = off;
		p->frag_len = p->l4_len;
		p->frag_proto = p->proto;
		p->frag_id = ip->id;
	}
	return REASON_NONE;
}

/* ---- IPv6 ----------------------------------------------------------------------------------- */

#define EXTENSIONS_MAX 6

/* Walks the extension headers of c, leaving c at what follows them, or at the payload of a later
 * fragment. Fills the fragment fields of p. */
static __always_inline int walk_extensions(void *ctx, enum hook hook, struct packet *p,
					   struct chain *c)
{
	bool fragment = false;

	if (!p || !c)
		return REASON_INTERNAL;
	for (int i = 0; i <= EXTENSIONS_MAX; i++) {
		__u8 nh = c->next, h[8];
		__u32 len;

		if (nh != 0 && nh != 43 && nh != 44 && nh != 51 && nh != 60)
			return REASON_NONE;
		if (i == EXTENSIONS_MAX || (nh == 0 && i) || c->at + 8 > c->end ||
		    load_bytes(ctx, hook, c->at, h, sizeof(h)))
			return REASON_MALFORMED_IPV6_EXTENSION;
		len = (h[1] + 1) * 8;
		if (nh == 51)
			len = (h[1] + 2) * 4;
		if (nh == 44) {
			__u16 field = h[2] << 8 | h[3];
			bool later = field & 0xfff8;

			if (fragment)
				return REASON_MALFORMED_IPV6_EXTENSION;
			fragment = true;
			len = 8;
			if (!c->quoted && (later || field & 1)) {
				p->frag = later ? FRAG_LATER : FRAG_FIRST;
				p->frag_off = field & 0xfff8;
				p->frag_len = c->end - c->at - 8;
				p->frag_proto = h[0];
				__builtin_memcpy(&p->frag_id, h + 4, 4);
				p->more = field & 1;
			}
			if (later) {
				c->at += 8;
				c->next = h[0];
				return c->quoted ? REASON_FRAGMENT_NO_FIRST : REASON_NONE;
			}
		}
		c->next = h[0];
		c->at += len;
		if (c->at > c->end)
			return REASON_MALFORMED_IPV6_EXTENSION;
		if (nh == 43 && h[2] == 0 && h[3] != 0)
			return REASON_IPV6_ROUTING_HEADER;
	}
	return REASON_MALFORMED_IPV6_EXTENSION;
}

__noinline int walk_xdp(struct xdp_md *ctx, struct packet *p, struct chain *c)
{
	return walk_extensions(ctx, HOOK_XDP, p, c);
}

__noinline int walk_tc(struct __sk_buff *ctx, struct packet *p, struct chain *c)
{
	return walk_extensions(ctx, HOOK_TC, p, c);
}

static __always_inline int walk(void *ctx, enum hook hook, struct packet *p, struct chain *c)
{
	return hook == HOOK_TC ? walk_tc(ctx, p, c) : walk_xdp(ctx, p, c);
}

static __always_inline bool loopback6(const __be32 *a)
{
	return !(a[0] | a[1] | a[2]) && a[3] == bpf_htonl(1);
}

static __always_inline bool unspecified6(const __be32 *a)
{
	return !(a[0] | a[1] | a[2] | a[3]);
}

static __always_inline bool multicast6(const __be32 *a)
{
	return (a[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

static __always_inline bool linklocal6(const __be32 *a)
{
	return (a[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

static __always_inline int parse_ipv6(void *ctx, enum hook hook, void *data, void *data_end,
				      struct packet *p)
{
	struct ipv6hdr *ip = data + (p->l3 & 31);
	__u32 len, at, end;
	__u8 next;

	if ((void *)(ip + 1) > data_end || ip->version != 6)
		return REASON_MALFORMED_IPV6;
	len = bpf_ntohs(ip->payload_len);
	if (len > data_end - (void *)(ip + 1) &&
	    p->l3 + sizeof(*ip) + len > frame_length(ctx, hook))
		return REASON_MALFORMED_IPV6;
	if (len + sizeof(*ip) > 0xffff)
		return REASON_MALFORMED_IPV6;
	__builtin_memcpy(p->src, &ip->saddr, 16);
	__builtin_memcpy(p->dst, &ip->daddr, 16);
	p->unroutable = linklocal6(p->src);
	p->ip_len = len + sizeof(*ip);
	p->ttl = ip->hop_limit;
	p->df = 1;
	next = ip->nexthdr;
	at = p->l3 + sizeof(*ip);
	end = at + len;
	if (unlikely(next == 0 || next == 43 || next == 44 || next == 51 || next == 60)) {
		struct chain *c = &p->chain;
		int reason;

		c->at = at;
		c->end = end;
		c->next = next;
		c->quoted = 0;
		reason = walk(ctx, hook, p, c);
		if (reason)
			return reason;
		next = c->next;
		at = c->at;
	}
	p->proto = next;
	p->l4 = at;
	p->l4_len = end - at;

	if (unlikely(
		    loopback6(p->src) || loopback6(p->dst) || multicast6(p->src) ||
		    unspecified6(p->dst) ||
		    (unspecified6(p->src) && !(p->proto == IPPROTO_ICMPV6 && multicast6(p->dst))) ||
		    !((p->src[0] ^ p->dst[0]) | (p->src[1] ^ p->dst[1]) | (p->src[2] ^ p->dst[2]) |
		      (p->src[3] ^ p->dst[3]))))
		return REASON_MARTIAN;
	return REASON_NONE;
}

/* ---- Transport ------------------------------------------------------------------------------ */

/* Whether a segment may carry these flags (without PSH, ECE, CWR), as the kernel's conntrack has it. */
static __always_inline bool tcp_flags_valid(__u8 flags)
{
	const __u64 valid = 1ull << TCP_SYN | 1ull << (TCP_SYN | TCP_URG) |
			    1ull << (TCP_SYN | TCP_ACK) | 1ull << TCP_RST |
			    1ull << (TCP_RST | TCP_ACK) | 1ull << (TCP_FIN | TCP_ACK) |
			    1ull << (TCP_FIN | TCP_ACK | TCP_URG) | 1ull << TCP_ACK |
			    1ull << (TCP_ACK | TCP_URG);

	return valid >> (flags & 63) & 1;
}

/* Reason for a transport header that is cut short. */
static __always_inline int cut(struct packet *p, int reason)
{
	return p->frag ? REASON_FRAGMENT_TINY : reason;
}

static __always_inline int parse_tcp(void *ctx, enum hook hook, void *l4, void *data_end,
				     struct packet *p)
{
	struct tcphdr *tcp = l4;
	__u32 doff;

	if (p->l4_len < sizeof(*tcp) || (void *)(tcp + 1) > data_end)
		return cut(p, REASON_MALFORMED_TCP);
	doff = tcp->doff * 4;
	if (doff < sizeof(*tcp))
		return REASON_MALFORMED_TCP;
	if (doff > p->l4_len)
		return cut(p, REASON_MALFORMED_TCP);
	p->tcp_flags = ((__u8 *)tcp)[13] & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK | TCP_URG);
	if (unlikely(!tcp_flags_valid(p->tcp_flags)))
		return REASON_MALFORMED_TCP_FLAGS;
	p->sport = tcp->source;
	p->dport = tcp->dest;
	p->seq = bpf_ntohl(tcp->seq);
	p->ack = bpf_ntohl(tcp->ack_seq);
	p->win = bpf_ntohs(tcp->window);
	p->l4_data = doff;
	if (unlikely(p->tcp_flags & TCP_SYN)) {
		__u32 len = doff - sizeof(*tcp);

		p->wscale = len && load_options(ctx, hook, p->l4 + sizeof(*tcp), len) ?
				    find_wscale(len) :
				    WSCALE_NONE;
	}
	return REASON_NONE;
}

static __always_inline int parse_udp(void *l4, void *data_end, struct packet *p)
{
	struct udphdr *udp = l4;
	__u16 len;

	if (p->l4_len < sizeof(*udp) || (void *)(udp + 1) > data_end)
		return cut(p, REASON_MALFORMED_UDP);
	len = bpf_ntohs(udp->len);
	if (len < sizeof(*udp) || (!p->frag && len > p->l4_len))
		return REASON_MALFORMED_UDP;
	p->sport = udp->source;
	p->dport = udp->dest;
	return REASON_NONE;
}

/* Whether a listener query, report or done is what RFC 2710 and RFC 3810 say: none leaves its link. A
 * router alert stands before it as a rule; nothing is gained by asking for it. A function of its own,
 * because it is seldom asked and the caller's stack is short. */
__noinline int listener_discovery(const struct packet *p)
{
	if (!p || p->ttl != 1 || p->frag || !multicast6(p->dst))
		return false;
	return linklocal6(p->src) || (p->icmp_type != 130 && unspecified6(p->src));
}

static __always_inline int parse_icmp(void *l4, void *data_end, struct packet *p)
{
	int malformed = p->family == 4 ? REASON_MALFORMED_ICMP : REASON_MALFORMED_ICMPV6;
	__u8 *h = l4;
	__be16 id;

	if (p->l4_len < 8 || (void *)(h + 8) > data_end)
		return cut(p, malformed);
	p->icmp_type = h[0];
	p->icmp_code = h[1];
	id = *(__be16 *)(h + 4);
	if (p->family == 4) {
		switch (p->icmp_type) {
		case 8:
		case 13:
			p->sport = id;
			return REASON_NONE;
		case 0:
		case 14:
			p->dport = id;
			p->kind = PACKET_REPLY;
			return REASON_NONE;
		case 3:
		case 11:
		case 12:
			p->kind = PACKET_ERROR;
			return REASON_NONE;
		}
		return REASON_ICMP_TYPE;
	}
	switch (p->icmp_type) {
	case 128:
		p->sport = id;
		return REASON_NONE;
	case 129:
		p->dport = id;
		p->kind = PACKET_REPLY;
		return REASON_NONE;
	case 1 ... 4:
		p->kind = PACKET_ERROR;
		return REASON_NONE;
	case 133 ... 137:
		if (p->ttl != 255 || p->frag)
			return REASON_ICMP_TYPE;
		p->kind = PACKET_ND;
		return REASON_NONE;
	case 130 ... 132:
	case 143:
		if (!listener_discovery(p))
			return REASON_ICMP_TYPE;
		p->kind = PACKET_ND;
		return REASON_NONE;
	}
	return REASON_ICMP_TYPE;
}

static __always_inline int parse_transport(void *ctx, enum hook hook, void *data, void *data_end,
					   struct packet *p)
{
	void *l4 = data + (p->l4 & 0x3fff);
	__u32 need = 0;

	if (p->proto == IPPROTO_TCP)
		return parse_tcp(ctx, hook, l4, data_end, p);
	if (p->proto == IPPROTO_UDP)
		return parse_udp(l4, data_end, p);
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		if ((p->proto == IPPROTO_ICMP) != (p->family == 4))
			return REASON_ICMP_TYPE;
		return parse_icmp(l4, data_end, p);
	}
	switch (p->proto) {
	case IPPROTO_ESP:
		need = 8;
		break;
	case IPPROTO_AH:
	case IPPROTO_SCTP:
		need = 12;
		break;
	case IPPROTO_GRE:
		need = 4;
		break;
	}
	if (p->l4_len < need)
		return cut(p, REASON_MALFORMED_TRANSPORT);
	return REASON_NONE;
}

static __always_inline int check_fragment(struct packet *p)
{
	if (p->frag_len == 0 || (p->more && p->frag_len & 7) ||
	    (__u32)p->frag_off + p->frag_len > 0xffff)
		return REASON_FRAGMENT_MALFORMED;
	if (p->frag_proto == IPPROTO_TCP && p->frag_off == 8)
		return REASON_FRAGMENT_TINY;
	return REASON_NONE;
}

/* ---- Frame ---------------------------------------------------------------------------------- */

struct vlan_header {
	__be16 tci, proto;
};

static __always_inline bool is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

/* Ethernet and VLAN tags: sets l3, tags, vlan, group_mac and ethertype. */
static __always_inline int parse_ethernet(void *data, void *data_end, struct packet *p)
{
	struct ethhdr *eth = data;
	struct vlan_header *tag;

	if ((void *)(eth + 1) > data_end)
		return REASON_MALFORMED_ETHERNET;
	p->group_mac = eth->h_dest[0] & 1;
	p->l3 = sizeof(*eth);
	p->ethertype = eth->h_proto;
	if (likely(!is_vlan(p->ethertype)))
		return REASON_NONE;
	tag = (void *)(eth + 1);
	if ((void *)(tag + 1) > data_end)
		return REASON_MALFORMED_VLAN;
	p->vlan = bpf_ntohs(tag->tci) & 0xfff;
	p->tags = 1;
	p->l3 += sizeof(*tag);
	p->ethertype = tag->proto;
	if (!is_vlan(p->ethertype))
		return REASON_NONE;
	tag++;
	if ((void *)(tag + 1) > data_end)
		return REASON_MALFORMED_VLAN;
	p->tags = 2;
	p->l3 += sizeof(*tag);
	p->ethertype = tag->proto;
	return is_vlan(p->ethertype) ? REASON_MALFORMED_VLAN : REASON_NONE;
}

/* Everything behind the Ethernet header and its tags. */
static __always_inline int parse_network(void *ctx, enum hook hook, void *data, void *data_end,
					 struct packet *p)
{
	int reason;

	if (likely(p->ethertype == bpf_htons(ETH_P_IP))) {
		p->family = 4;
		reason = parse_ipv4(ctx, hook, data, data_end, p);
	} else if (p->ethertype == bpf_htons(ETH_P_IPV6)) {
		p->family = 6;
		reason = parse_ipv6(ctx, hook, data, data_end, p);
	} else {
		p->kind = p->ethertype == bpf_htons(ETH_P_ARP) ? PACKET_ARP : PACKET_ETHERTYPE;
		return REASON_NONE;
	}
	if (reason)
		return reason;
	if (unlikely(p->frag)) {
		reason = check_fragment(p);
		if (reason || p->frag == FRAG_LATER)
			return reason;
	}
	return parse_transport(ctx, hook, data, data_end, p);
}

#endif
