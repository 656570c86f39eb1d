/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* icmp.h: an ICMP error belongs to the flow of the packet that it quotes. docs/PACKET-PATH.md,
 * section 6; RFC 792, RFC 4443. */
#ifndef SOFTDPU_ICMP_H
#define SOFTDPU_ICMP_H

#include "flow.h"

/* Reads the quoted packet. p becomes what a packet from the quoted one's destination would be:
 * addresses and ports of the flow, as the error itself travels with them. */
static __always_inline int parse_quoted(void *ctx, enum hook hook, struct packet *p)
{
	struct chain c = { .quoted = 1 };
	__be32 src[4] = {}, dst[4] = {};
	__be16 sport = 0, dport = 0, h[4];
	int malformed, reason;
	__u8 proto;
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;

	if (!p)
		return REASON_INTERNAL;
	malformed = p->family == 4 ? REASON_MALFORMED_ICMP : REASON_MALFORMED_ICMPV6;
	c.at = p->l4 + 8;
	c.end = p->l4 + p->l4_len;
	if (p->family == 4) {
		if (c.at + sizeof(ip.v4) > c.end ||
		    load_bytes(ctx, hook, c.at, &ip.v4, sizeof(ip.v4)) || ip.v4.version != 4 ||
		    ip.v4.ihl < 5)
			return malformed;
		src[0] = ip.v4.saddr;
		dst[0] = ip.v4.daddr;
		c.next = ip.v4.protocol;
		c.at += ip.v4.ihl * 4;
		reason =
			ip.v4.frag_off & bpf_htons(0x1fff) ? REASON_FRAGMENT_NO_FIRST : REASON_NONE;
	} else {
		if (c.at + sizeof(ip.v6) > c.end ||
		    load_bytes(ctx, hook, c.at, &ip.v6, sizeof(ip.v6)) || ip.v6.version != 6)
			return malformed;
		__builtin_memcpy(src, &ip.v6.saddr, 16);
		__builtin_memcpy(dst, &ip.v6.daddr, 16);
		c.next = ip.v6.nexthdr;
		c.at += sizeof(ip.v6);
		reason = walk(ctx, hook, p, &c);
		if (reason && reason != REASON_FRAGMENT_NO_FIRST)
			return malformed;
	}
	proto = c.next;
	if (c.at + 8 > c.end || load_bytes(ctx, hook, c.at, h, sizeof(h)))
		return malformed;
	if (reason == REASON_FRAGMENT_NO_FIRST)
		return REASON_ICMP_NO_FLOW;
	if (have_nat)
		p->inner = c.at;
	if (proto == IPPROTO_TCP || proto == IPPROTO_UDP) {
		sport = h[0];
		dport = h[1];
	} else if (proto == (p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
		p->icmp_type = ((__u8 *)h)[0];
		p->icmp_code = ((__u8 *)h)[1];
		if (is_reply(p->family, p->icmp_type))
			dport = h[2];
		else if (p->family == 4 ? p->icmp_type == 8 || p->icmp_type == 13 :
					  p->icmp_type == 128)
			sport = h[2];
		else
			return REASON_ICMP_NO_FLOW;
	} else if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6) {
		return REASON_ICMP_NO_FLOW;
	}
	if (!((src[0] ^ dst[0]) | (src[1] ^ dst[1]) | (src[2] ^ dst[2]) | (src[3] ^ dst[3])) ||
	    (src[0] ^ p->dst[0]) | (src[1] ^ p->dst[1]) | (src[2] ^ p->dst[2]) |
		    (src[3] ^ p->dst[3]))
		return REASON_ICMP_NO_FLOW;
	__builtin_memcpy(p->src, dst, sizeof(dst));
	p->sport = dport;
	p->dport = sport;
	p->proto = proto;
	return REASON_NONE;
}

__noinline int quoted_xdp(struct xdp_md *ctx, struct packet *p)
{
	return parse_quoted(ctx, HOOK_XDP, p);
}

__noinline int quoted_tc(struct __sk_buff *ctx, struct packet *p)
{
	return parse_quoted(ctx, HOOK_TC, p);
}

#endif
