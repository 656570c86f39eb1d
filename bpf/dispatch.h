/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* dispatch.h: the way from a port to the running generation, and the counters of refused packets. */
#ifndef SOFTDPU_DISPATCH_H
#define SOFTDPU_DISPATCH_H

#include "abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} generations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASON_LEN);
	__type(key, __u32);
	__type(value, struct counter);
} reasons SEC(".maps");

static __always_inline void count_reason(__u32 reason, __u32 bytes)
{
	struct counter *c = bpf_map_lookup_elem(&reasons, &reason);

	if (c) {
		c->packets++;
		c->bytes += bytes;
	}
}

/* Runs the generation in force. Returns only if there is none. */
static __always_inline int to_generation(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &generations, 0);
	count_reason(REASON_GENERATION_ABSENT, ctx->data_end - ctx->data);
	return XDP_DROP;
}

#endif
