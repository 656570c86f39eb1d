//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * pipes.c: a pipeline of match/action pipes (docs/pipes.md). It stands where the gateway's own program does and leads
 * there what it forwards to the policy:
 *
 *   dispatch -> softdpu_pipes: parse into words - run_pipes, which is generated - write back - forward
 *
 * An object of its own: a gateway without a pipeline has nothing of it.
 */
#define WITHOUT_NAT
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "pipe_write.h"
#include "pipe_ct.h"
#include "pipe_lpm.h"
#include "pipe_meter.h"
#include "pipe_host.h"
#include "pipe_stage.h"
#include "pipe_table.h"
#include "forest.h"

/* Types and numbers that Go needs and no map holds. */
#define EXPORT(kind, name) const kind name *export_##name __attribute__((unused))

EXPORT(struct, pipe_fields);
EXPORT(struct, pipe_entry);
EXPORT(enum, pipe_entry_flag);
EXPORT(struct, pipe_bucket);
EXPORT(struct, pipe_meter);
EXPORT(struct, pipe_trace);
EXPORT(struct, pipe_node4);
EXPORT(struct, pipe_node6);
EXPORT(enum, pipe_word);
EXPORT(enum, pipe_has);
EXPORT(enum, pipe_written);
EXPORT(enum, pipe_fragment);
EXPORT(enum, pipe_color);
EXPORT(enum, pipe_ct_state);
EXPORT(enum, pipe_forward);
EXPORT(enum, pipe_stage);
EXPORT(enum, pipe_limit);
EXPORT(enum, pipe_base);
EXPORT(enum, pipe_meter_kind);
EXPORT(enum, pipe_meter_flag);

/* Of what was compiled, by which the next run knows it. */
volatile const __u64 pipe_layout[4] __attribute__((used));
volatile const __u8 tracing; /* each packet's walk is told of */

/* What ACL pipes compare. Addresses of IPv6 and zones are those of a policy's key; zones there are none. */
__noinline __u32 pipe_acl_key(struct pipe_fields *f)
{
	struct classify_key *key;
	__u32 *w;

	if (!f)
		return 0;
	w = f->word;
	key = &f->acl;
	__builtin_memset(key, 0, sizeof(*key));
	key->proto = w[PIPE_IP_PROTO];
	if (w[PIPE_HAS] & PIPE_HAS_IPV4) {
		key->family = 4;
		key->src_lo = w[PIPE_IP_SRC];
		key->dst_lo = w[PIPE_IP_DST];
	} else if (w[PIPE_HAS] & PIPE_HAS_IPV6) {
		key->family = 6;
		key->src_hi = (__u64)w[PIPE_IP_SRC] << 32 | w[PIPE_IP_SRC + 1];
		key->src_lo = (__u64)w[PIPE_IP_SRC + 2] << 32 | w[PIPE_IP_SRC + 3];
		key->dst_hi = (__u64)w[PIPE_IP_DST] << 32 | w[PIPE_IP_DST + 1];
		key->dst_lo = (__u64)w[PIPE_IP_DST + 2] << 32 | w[PIPE_IP_DST + 3];
	}
	if (w[PIPE_HAS] & PIPE_HAS_PORTS) {
		key->sport = w[PIPE_L4_SPORT];
		key->dport = w[PIPE_L4_DPORT];
	} else if (w[PIPE_HAS] & PIPE_HAS_ICMP) {
		key->dport = w[PIPE_ICMP_TYPE] << 8 | w[PIPE_ICMP_CODE];
	}
	return 0;
}

/* Audit entries are a policy's. Classifiers of pipes have none, and the object must have what they could call. */
__noinline int audit(struct classify_key *key, __u32 verdict)
{
	opaque(verdict);
	return !!key;
}

static __always_inline struct pipe_trace *walk_record(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&pipe_walks, &zero);
}

/* Notes that the packet has come to a pipe, and the entry that matched. Called by programs that trace. */
__noinline __u32 pipe_step(struct pipe_fields *f, __u32 pipe, __u32 place)
{
	struct pipe_trace *t = walk_record();
	__u32 n;

	if (!f || !t)
		return 0;
	n = t->steps;
	if (n >= PIPE_PIPES)
		return 0;
	t->step[n & (PIPE_PIPES - 1)].pipe = pipe;
	t->step[n & (PIPE_PIPES - 1)].place = place;
	t->steps = n + 1;
	return 0;
}

/* The pipeline: generated instructions take its place. Until then everything goes to the policy, and what they
 * may call has a caller. */
__noinline __u32 run_pipes(struct pipe_fields *f)
{
	__u32 to = PIPE_TO_POLICY << PIPE_FORWARD_SHIFT;

	if (!f)
		return to;
	to += 0 *
	      (pipe_ct(f) + pipe_acl_key(f) + pipe_step(f, 0, 0) + pipe_find(f, 0, 0, 0) +
	       pipe_hash(f, 0) + pipe_lpm4(f, 0) + pipe_lpm6(f, 0) + pipe_group4(f, 0, 0, 0) +
	       pipe_group6(f, 0, 0, 0) + pipe_measure(f, 0) + no_pipe(&f->acl) + audit(&f->acl, 0));
	opaque(to);
	return to;
}

static __always_inline void begin_trace(struct xdp_md *ctx, const struct pipe_fields *f)
{
	struct pipe_trace *t = walk_record();
	__u32 length = f->word[PIPE_LENGTH];

	if (!t)
		return;
	t->ns = bpf_ktime_get_ns();
	t->port = f->word[PIPE_PORT];
	t->length = length;
	t->steps = 0;
	__builtin_memset(t->head, 0, sizeof(t->head));
	if (length > sizeof(t->head))
		length = sizeof(t->head);
	length--;
	opaque(length);
	length = (length & (sizeof(t->head) - 1)) + 1;
	bpf_xdp_load_bytes(ctx, 0, t->head, length); /* else it is of zeros */
}

static __always_inline void end_trace(__u32 forward)
{
	struct pipe_trace *t = walk_record();

	if (!t)
		return;
	t->forward = forward;
	bpf_ringbuf_output(&pipe_traces, t, sizeof(*t), 0); /* lost if nobody reads in time */
}

static __always_inline int drop(__u32 reason, __u32 length)
{
	if (!reason || reason >= REASON_LEN)
		reason = REASON_PIPE_DROP;
	count_reason(reason, length);
	return XDP_DROP;
}

/* Does what the pipeline answers. */
static __always_inline int forward_to(struct xdp_md *ctx, __u32 to, const struct pipe_fields *f,
				      const struct pipe_place *at)
{
	__u32 number = to & PIPE_FORWARD_MASK, length = f->word[PIPE_LENGTH], verdict;
	void *group;
	int reason;

	switch (to >> PIPE_FORWARD_SHIFT) {
	case PIPE_TO_HOST: /* what it should forward for others, the guard refuses */
		note_host(f);
		return XDP_PASS;
	case PIPE_TO_POLICY:
		bpf_tail_call(ctx, &after_pipes, 0);
		return drop(REASON_GENERATION_ABSENT, length);
	case PIPE_TO_PORT:
		verdict = bpf_redirect_map(&devices, number, 0);
		return verdict == XDP_REDIRECT ? verdict : drop(REASON_EGRESS_DOWN, length);
	case PIPE_TO_STAGE:
		reason = to_stage(ctx, number, f, at);
		if (!reason)
			return XDP_REDIRECT;
		if (!(number & PIPE_STAGE_BYPASS) || reason == REASON_INTERNAL)
			return drop(reason, length);
		verdict = bpf_redirect_map(&devices, number & PIPE_STAGE_PORT, 0);
		return verdict == XDP_REDIRECT ? verdict : drop(REASON_EGRESS_DOWN, length);
	case PIPE_TO_PORTS:
		group = bpf_map_lookup_elem(&pipe_groups, &number);
		if (!group)
			return drop(REASON_INTERNAL, length);
		verdict = bpf_redirect_map(group, 0, BPF_F_BROADCAST);
		return verdict == XDP_REDIRECT ? verdict : drop(REASON_EGRESS_DOWN, length);
	}
	return drop(number, length);
}

SEC("xdp.frags")
int softdpu_pipes(struct xdp_md *ctx)
{
	struct gateway_state *gw = gateway_state();
	__u32 zero = 0, to, kind;
	struct pipe_scratch *s = bpf_map_lookup_elem(&pipe_scratches, &zero);
	struct pipe_fields *f;
	struct port *port;

	if (!gw || !s)
		return XDP_DROP;
	f = &s->fields;
	__builtin_memset(f->word, 0, sizeof(f->word));
	__builtin_memset(&s->at, 0, sizeof(s->at));
	port = port_of(ctx->ingress_ifindex, gw);
	if (port)
		f->word[PIPE_PORT] = port->id;
	f->word[PIPE_TICK] = now_tick();
	if (USED(PIPE_RANDOM))
		f->word[PIPE_RANDOM] = bpf_get_prandom_u32() & 0xffff;
	pipe_frame(ctx, f, &s->at);
	f->domain = !port		      ? 0 :
		    port->flags & PORT_INLINE ? (__u16)port->pair << 12 | f->word[PIPE_VLAN0_ID] :
						port->domain;
	if (tracing)
		begin_trace(ctx, f);
	to = run_pipes(f);
	if (tracing)
		end_trace(to);
	kind = to >> PIPE_FORWARD_SHIFT;
	if (kind == PIPE_TO_DROP)
		return drop(to & PIPE_FORWARD_MASK, f->word[PIPE_LENGTH]);
	if ((kind == PIPE_TO_PORT || kind == PIPE_TO_PORTS || kind == PIPE_TO_STAGE) && port &&
	    port->flags & PORT_FIX_CHECKSUM)
		complete(ctx, f, &s->at);
	if (f->word[PIPE_WRITTEN] && write_back(ctx, f, &s->at))
		return drop(REASON_INTERNAL, f->word[PIPE_LENGTH]);
	return forward_to(ctx, to, f, &s->at);
}

char program_license[] SEC("license") = "Dual BSD/GPL";
