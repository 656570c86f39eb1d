/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * tap.h: copies of packets for whoever captures. Only the programs whose names end in `_tapped` hold
 * any of it: they stand in the place of the others while somebody captures, so that those have not one
 * instruction for it. The filter is a classic BPF program, which Go translates and puts in the place of
 * tap_matches_xdp() and tap_matches_tc().
 */
#ifndef SOFTDPU_TAP_H
#define SOFTDPU_TAP_H

#include "route.h"

#define TAP_BYTES 65536 /* of a frame, at most */

volatile const __u8 tap_points; /* 1 << enum tap_point */
volatile const __u64 tap_ports; /* bit id - 1 of a port */
volatile const __u32 tap_bytes; /* of a frame that are copied; at most TAP_BYTES */

struct tap_buffer {
	struct tapped head;
	__u8 frame[TAP_BYTES];
};

/* These exist while somebody captures. Of each CPU, by its number: more than a per-CPU map may hold. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct tap_buffer);
} tap_buffers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12); /* set at load */
} taps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PORT_MAX + 1);
	__type(key, __u32); /* port id */
	__type(value, struct tap_counter);
} tap_counters SEC(".maps");

/* What the filter asks for that its own instructions cannot reach: bytes behind the first buffer.
 * Negative: the frame has no such bytes. */
__noinline long tap_load_xdp(struct xdp_md *ctx, __u32 at, __u32 size)
{
	__u8 b[4] = {};
	long err;

	if (size == 1) {
		err = bpf_xdp_load_bytes(ctx, at, b, 1);
		return err ? -1 : b[0];
	}
	if (size == 2) {
		err = bpf_xdp_load_bytes(ctx, at, b, 2);
		return err ? -1 : b[0] << 8 | b[1];
	}
	err = bpf_xdp_load_bytes(ctx, at, b, 4);
	return err ? -1 : (long)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

/* A byte of a frame that leaves, with the tag that may stand beside it where it will be on the wire. */
static __always_inline int byte_on_wire(struct __sk_buff *skb, __u32 at)
{
	__u8 b = 0;

	if (skb->vlan_present && at >= 12) {
		if (at < 14)
			return bpf_ntohs(skb->vlan_proto) >> (at == 12 ? 8 : 0) & 0xff;
		if (at < 16)
			return skb->vlan_tci >> (at == 14 ? 8 : 0) & 0xff;
		at -= 4;
	}
	return bpf_skb_load_bytes(skb, at, &b, 1) ? -1 : b;
}

__noinline long tap_load_tc(struct __sk_buff *skb, __u32 at, __u32 size)
{
	long value = 0;

	for (__u32 i = 0; i < 4; i++) {
		int b;

		if (i >= size)
			break;
		b = byte_on_wire(skb, at + i);
		if (b < 0)
			return -1;
		value = value << 8 | b;
	}
	return value;
}

/* Whether the filter takes a frame. As they stand they ask for what their replacements may call. */
__noinline __u32 tap_matches_xdp(struct xdp_md *ctx)
{
	__u32 matches = tap_load_xdp(ctx, 0, 4) >= 0;

	opaque(matches);
	return matches;
}

__noinline __u32 tap_matches_tc(struct __sk_buff *ctx)
{
	__u32 matches = tap_load_tc(ctx, 0, 4) >= 0;

	opaque(matches);
	return matches;
}

static __always_inline void describe(struct tapped *t, const struct packet *p, __u32 reason)
{
	struct nexthop *hop;

	t->rule = p->verdict & VERDICT_RULE_MASK;
	t->action = p->verdict >> VERDICT_ACTION_SHIFT & VERDICT_ACTION_MASK;
	t->reason = reason;
	t->pass = reason ? 0 : p->pass;
	t->from = p->zone;
	t->to = p->to;
	t->kind = p->kind;
	t->egress = 0;
	hop = reason || p->pass ? NULL : nexthop_at(p->nexthop);
	if (hop) {
		t->egress = hop->port;
		t->to = hop->zone;
	} else if (t->pass == 1 + PASS_HOST) {
		t->to = ZONE_HOST;
	}
}

/* Copies the frame to whoever captures, if the filter takes it. */
static __always_inline int tap(void *ctx, enum hook hook, const struct packet *p,
			       enum tap_point point, __u32 port, __u32 reason)
{
	__u32 cpu, length, n, matches;
	struct tap_counter *c;
	struct tap_buffer *b;
	struct tapped *t;

	if (!p || !(tap_ports >> ((port - 1) & 63) & 1))
		return 0;
	c = bpf_map_lookup_elem(&tap_counters, &port);
	if (!c)
		return 0;
	c->seen++;
	matches = hook == HOOK_TC ? tap_matches_tc(ctx) : tap_matches_xdp(ctx);
	if (likely(!matches))
		return 0;
	c->matched++;
	cpu = bpf_get_smp_processor_id();
	b = bpf_map_lookup_elem(&tap_buffers, &cpu);
	if (!b) {
		c->lost++;
		return 0;
	}
	t = &b->head;
	t->vlan_proto = t->vlan_tci = 0;
	if (hook == HOOK_TC && ((struct __sk_buff *)ctx)->vlan_present) {
		t->vlan_proto = ((struct __sk_buff *)ctx)->vlan_proto;
		t->vlan_tci = ((struct __sk_buff *)ctx)->vlan_tci;
	}
	length = frame_length(ctx, hook);
	t->time = bpf_ktime_get_ns();
	t->length = length;
	t->epoch = epoch_of(p);
	t->point = point;
	t->port = port;
	t->guard = hook == HOOK_TC;
	describe(t, p, reason);
	n = length < tap_bytes ? length : tap_bytes;
	/* in a form in which Linux 6.1, too, sees that it is neither 0 nor too much */
	n--;
	opaque(n);
	n = (n & (TAP_BYTES - 1)) + 1;
	t->captured = n;
	/* The reader looks by itself, many times a second: waking it would cost more than the copy. */
	if (load_bytes(ctx, hook, 0, b->frame, n) ||
	    bpf_ringbuf_output(&taps, b, sizeof(*t) + n, BPF_RB_NO_WAKEUP))
		c->lost++;
	return 0;
}

__noinline int tap_xdp(struct xdp_md *ctx, const struct packet *p, __u32 point, __u32 port,
		       __u32 reason)
{
	return tap(ctx, HOOK_XDP, p, point, port, reason);
}

__noinline int tap_tc(struct __sk_buff *ctx, const struct packet *p, __u32 point, __u32 port,
		      __u32 reason)
{
	return tap(ctx, HOOK_TC, p, point, port, reason);
}

/* Whether packets are wanted at this point. Known to the verifier, so the others are not there. */
static __always_inline bool wanted(enum tap_point point)
{
	return tap_points >> point & 1;
}

/* A packet that arrived, its fate known and its bytes as they came. */
static __always_inline void tap_arrival(struct xdp_md *ctx, const struct packet *p,
					const struct port *port, int reason)
{
	if (wanted(TAP_IN) || (wanted(TAP_DROP) && reason))
		tap_xdp(ctx, p, reason && !wanted(TAP_IN) ? TAP_DROP : TAP_IN, port->id, reason);
}

/* A packet as it leaves, or the answer to a refused one. */
static __always_inline void tap_departure(struct xdp_md *ctx, const struct packet *p, __u32 port,
					  int reason)
{
	if (wanted(TAP_OUT))
		tap_xdp(ctx, p, TAP_OUT, port, reason);
}

/* A packet of the kernel that leaves by our port, or does not. */
static __always_inline void tap_kernel(struct __sk_buff *skb, const struct packet *p,
				       const struct port *port, int reason)
{
	if (reason ? wanted(TAP_DROP) : wanted(TAP_OUT))
		tap_tc(skb, p, reason ? TAP_DROP : TAP_OUT, port->id, reason);
}

#endif
