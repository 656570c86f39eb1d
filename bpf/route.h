/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* route.h: where a packet leaves, by the kernel's own routes or the inline peer, and the next-hop
 * slots that legs point to. docs/PACKET-PATH.md, section 8. */
#ifndef SOFTDPU_ROUTE_H
#define SOFTDPU_ROUTE_H

#include "flow.h"

#define AF_INET 2
#define AF_INET6 10

#define ROUTE_LIFE 954 /* ticks: 1 s */

static __always_inline struct port *port_of(__u32 ifindex, const struct gateway_state *gw)
{
	__u32 index = ifindex * gw->port_mul >> 24;
	struct port *port = bpf_map_lookup_elem(&ports, &index);

	return port && port->ifindex == ifindex && ifindex ? port : NULL;
}

static __always_inline struct nexthop *nexthop_at(__u32 index)
{
	return bpf_map_lookup_elem(&nexthops, &index);
}

static __always_inline bool is_group(const __be32 *a, __u8 family)
{
	if (family == 4)
		return (a[0] & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) ||
		       a[0] == 0xffffffff;
	return multicast6(a);
}

static __always_inline bool is_group_address(const struct packet *p)
{
	return is_group(p->dst, p->family);
}

/* The destination with which p leaves. */
static __always_inline const __be32 *destination(const struct packet *p)
{
	return have_nat && p->xlat ? p->out_dst : p->dst;
}

/* Whether the leg's next hop must be looked up again. `seen` bounds the age, so that the 16-bit time
 * of the look-up cannot wrap unnoticed. */
static __always_inline bool route_stale(const struct leg *leg, __u32 tick, __u32 changed)
{
	__u16 age = (__u16)(tick >> 2) - leg->route; /* in units of 4 ticks */
	__u32 looked_up = tick - ((__u32)age << 2);

	return tick - leg->seen >= ROUTE_LIFE || age >= ROUTE_LIFE >> 2 ||
	       (__s32)(looked_up - changed) < 0;
}

static __always_inline bool same_gateway(const struct nexthop *n, const __be32 *gateway)
{
	return !((n->gateway[0] ^ gateway[0]) | (n->gateway[1] ^ gateway[1]) |
		 (n->gateway[2] ^ gateway[2]) | (n->gateway[3] ^ gateway[3]));
}

struct hop {
	__be32 gateway[4];
	__u64 dst, src;
	__u32 tick;
	__u16 vlan; /* network order */
	__u8 port, zone, family, ready;
	__u8 hungry; /* answer: a packet shall go by the kernel */
};

static __always_inline void set_nexthop(struct nexthop *n, struct hop *h)
{
	__u8 now = h->tick >> NEXTHOP_FED_SHIFT;

	/* one that is not ready goes by the kernel anyway */
	h->hungry = h->ready && (__u8)(now - n->fed) >= NEXTHOP_HUNGRY;
	if (h->hungry || !h->ready)
		n->fed = now;
	n->zone = h->zone;
	n->used = h->tick;
	*(volatile __u64 *)&n->src = h->src;
	if (h->ready)
		*(volatile __u64 *)&n->dst = h->dst;
	n->state = h->ready ? NEXTHOP_READY : NEXTHOP_PENDING;
}

/* The slot of (port, gateway), filled or corrected. NEXTHOP_NONE: all its places are in use. */
static __noinline __u32 nexthop_slot(struct hop *h)
{
	__u64 k = ((__u64)h->gateway[0] << 32 | h->gateway[1]) * 0xff51afd7ed558ccdull;

	k ^= k >> 29;
	k = (k ^ ((__u64)h->gateway[2] << 32 | h->gateway[3]) ^ h->port ^ (__u64)h->vlan << 8) *
	    0xc4ceb9fe1a85ec53ull;
	k >>= 32;
	for (__u32 i = 0; i < NEXTHOP_PROBES; i++) {
		__u32 index = NEXTHOP_FIRST + ((__u32)k + i) % (NEXTHOP_MAX - NEXTHOP_FIRST);
		struct nexthop *n = nexthop_at(index);

		if (n && n->state >= NEXTHOP_PENDING && n->port == h->port && n->vlan == h->vlan &&
		    n->family == h->family && same_gateway(n, h->gateway)) {
			set_nexthop(n, h);
			return index;
		}
	}
	for (__u32 i = 0; i < NEXTHOP_PROBES; i++) {
		__u32 index = NEXTHOP_FIRST + ((__u32)k + i) % (NEXTHOP_MAX - NEXTHOP_FIRST);
		struct nexthop *n = nexthop_at(index);
		__u32 state;

		if (!n)
			break;
		state = *(volatile __u32 *)&n->state;
		if (state == NEXTHOP_CLAIMED ||
		    (state != NEXTHOP_FREE && (__s32)(h->tick - n->used) < NEXTHOP_KEEP))
			continue;
		if (__sync_val_compare_and_swap(&n->state, state, NEXTHOP_CLAIMED) != state)
			continue;
		__builtin_memcpy(n->gateway, h->gateway, sizeof(n->gateway));
		n->port = h->port;
		n->vlan = h->vlan;
		n->family = h->family;
		n->fed = h->tick >> NEXTHOP_FED_SHIFT;
		barrier();
		set_nexthop(n, h);
		return index;
	}
	return NEXTHOP_NONE;
}

static __always_inline __u64 mac_word(const __u8 *mac)
{
	const __u16 *m = (const void *)mac;

	return m[0] | (__u64)m[1] << 16 | (__u64)m[2] << 32;
}

static __always_inline bool is_local(const __be32 *a, __u8 family)
{
	struct local_key key = { .family = family };

	key.prefixlen = family == 4 ? 64 : 160;
	__builtin_memcpy(key.addr, a, sizeof(key.addr));
	return bpf_map_lookup_elem(&locals, &key);
}

/* Asks the kernel. Fills p->nexthop, p->to and p->pass. */
static __noinline int fib_route(struct xdp_md *ctx, struct packet *p, struct port *port)
{
	const __be32 *dst = destination(p);
	struct scratch *s = scratch();
	struct bpf_fib_lookup *fib;
	struct egress *egress;
	struct hop hop = {};
	__u32 index;
	int rc;

	if (!s)
		return REASON_INTERNAL;
	_Static_assert(sizeof(*fib) == sizeof(s->fib), "fib");
	fib = (void *)s->fib;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = port->ifindex;
	if (p->vlan) {
		__u32 key = (__u32)port->id << 12 | p->vlan,
		      *device = bpf_map_lookup_elem(&vlan_devices, &key);

		if (device)
			fib->ifindex = *device;
	}
	fib->l4_protocol = p->proto;
	fib->sport = p->sport;
	fib->dport = p->dport;
	if (p->family == 4) {
		fib->family = AF_INET;
		fib->ipv4_src = p->src[0];
		fib->ipv4_dst = dst[0];
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, p->src, 16);
		__builtin_memcpy(fib->ipv6_dst, dst, 16);
	}
	rc = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	switch (rc) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		break;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return REASON_ROUTE_BLOCKED;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		if (!is_local(dst, p->family))
			return REASON_NO_ROUTE;
		p->nexthop = NEXTHOP_HOST;
		p->to = ZONE_HOST;
		return REASON_NONE;
	default:
		return REASON_NO_ROUTE;
	}
	index = fib->ifindex;
	egress = bpf_map_lookup_elem(&egresses, &index);
	if (!egress)
		return REASON_EGRESS_NOT_A_PORT;
	/* an IPv4 route may have an IPv6 gateway */
	hop.family = fib->family == AF_INET ? 4 : 6;
	if (hop.family == 4)
		hop.gateway[0] = fib->ipv4_dst;
	else
		__builtin_memcpy(hop.gateway, fib->ipv6_dst, 16);
	hop.port = egress->port;
	hop.vlan = egress->vlan;
	hop.zone = egress->zone;
	hop.tick = p->tick;
	hop.ready = rc == BPF_FIB_LKUP_RET_SUCCESS;
	hop.dst = mac_word(fib->dmac) | (__u64)egress->vlan << 48;
	index = NEXTHOP_PORT + egress->port;
	struct nexthop *out = nexthop_at(index);

	if (!out)
		return REASON_INTERNAL;
	/* the port's own entry knows its MAC and MTU */
	hop.src = load(&out->src);
	/* before the call: behind it the verifier of Linux 6.1 takes rc for 0 and drops the branch */
	if (!hop.ready)
		p->pass = 1 + PASS_NEIGHBOUR;
	p->nexthop = nexthop_slot(&hop);
	if (p->nexthop == NEXTHOP_NONE)
		return REASON_NEXTHOP_TABLE_FULL;
	if (hop.hungry)
		p->pass = 1 + PASS_NEIGHBOUR;
	p->to = egress->zone;
	return REASON_NONE;
}

static __always_inline int sim_route(struct packet *p)
{
	struct sim *s = sim();
	struct nexthop *n;

	if (!s)
		return REASON_INTERNAL;
	if (s->control.route == NEXTHOP_NONE)
		return s->control.route_reason;
	p->nexthop = s->control.route;
	if (p->nexthop == NEXTHOP_HOST) {
		p->to = ZONE_HOST;
		return REASON_NONE;
	}
	n = nexthop_at(p->nexthop);
	if (!n)
		return REASON_INTERNAL;
	p->to = n->zone;
	if (n->state != NEXTHOP_READY)
		p->pass = 1 + PASS_NEIGHBOUR;
	return REASON_NONE;
}

/* Fills p->nexthop, p->to and, while the next hop's MAC is not known, p->pass. */
static __always_inline int route(struct xdp_md *ctx, struct packet *p, struct port *port)
{
	int reason;

	p->pass = 0;
	if (port->flags & PORT_INLINE) {
		p->nexthop = port->peer;
		p->to = port->peer_zone;
		if (p->vlan) {
			__u32 key = (__u32)port->peer_port << 12 | p->vlan;
			__u8 *zone = bpf_map_lookup_elem(&vlan_zones, &key);

			p->to = zone ? *zone : ZONE_NONE;
		}
		return p->to == ZONE_NONE ? REASON_VLAN_UNKNOWN : REASON_NONE;
	}
	if (is_group(destination(p), p->family)) {
		p->nexthop = NEXTHOP_HOST;
		p->to = ZONE_HOST;
		return have_nat && p->xlat ? REASON_NAT_TO_HOST : REASON_NONE;
	}
	reason = simulate ? sim_route(p) : fib_route(ctx, p, port);
	if (reason)
		return reason;
	if (p->to == ZONE_HOST)
		return have_nat && p->xlat ? REASON_NAT_TO_HOST : REASON_NONE;
	return p->unroutable ? REASON_MARTIAN : REASON_NONE;
}

#endif
