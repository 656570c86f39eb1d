//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * bench.c: what bench puts around the programs that it measures. prologue restores the frame before
 * every round of a test run, which would otherwise see its own output of the round before, and
 * generate makes the traffic that the gateway benchmark offers to a port.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define FRAME_MAX 128

volatile const __u32 frame_size; /* bytes of every frame, a multiple of 4, at most FRAME_MAX */
volatile const __u32 trace_mask; /* frames in the trace - 1; a power of two - 1 */
volatile const __u32 output; /* key of the device that generate and redirect send by */

struct trace_frame {
	__u32 word[FRAME_MAX / 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct trace_frame);
} trace SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} cursor SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} target SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u32);
} outputs SEC(".maps");

/* Copies the next frame of the trace into the packet. False: a map look-up failed. */
static __always_inline bool next_frame(struct xdp_md *ctx)
{
	__u32 zero = 0, at, len = ctx->data_end - ctx->data;
	struct trace_frame *frame;
	void *data, *data_end;
	__u64 *next;

	next = bpf_map_lookup_elem(&cursor, &zero);
	if (!next)
		return false;
	at = (*next)++ & trace_mask;
	frame = bpf_map_lookup_elem(&trace, &at);
	if (!frame)
		return false;
	/* a program may have taken a tag off or put one on */
	if (len != frame_size && bpf_xdp_adjust_head(ctx, (int)(len - frame_size)))
		return false;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
#pragma unroll
	for (int i = 0; i < FRAME_MAX / 4; i++) {
		__u32 *word = data + i * 4;

		if (i * 4 >= frame_size)
			break;
		if ((void *)(word + 1) > data_end)
			return false;
		*word = frame->word[i];
	}
	return true;
}

SEC("xdp.frags")
int prologue(struct xdp_md *ctx)
{
	if (next_frame(ctx))
		bpf_tail_call(ctx, &target, 0);
	return XDP_ABORTED;
}

/* The program whose time is taken off. */
SEC("xdp.frags")
int empty(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* Live-frame test runs: sends the next frame of the trace by a device. */
SEC("xdp.frags")
int generate(struct xdp_md *ctx)
{
	if (!next_frame(ctx))
		return XDP_ABORTED;
	return bpf_redirect_map(&outputs, output, 0);
}

/* The least that forwards: one device to another, the frame as it came. */
SEC("xdp.frags")
int redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&outputs, output, 0);
}

/* Counts what arrives. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

SEC("xdp.frags")
int sink(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *n = bpf_map_lookup_elem(&arrived, &zero);

	if (n)
		(*n)++;
	return XDP_DROP;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
