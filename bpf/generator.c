//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * generator.c: the traffic of `bench xsk` on a veth pair of its own. generate runs on live frames, which it
 * turns into frames of flows or of a capture, at a rate, and sends by a device; count counts, and drops,
 * what comes back. Each CPU is a generator of its own.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define REPLAY_BYTES 2044 /* the longest frame of a capture */

volatile const __u32 start_size; /* bytes of a frame before generate has seen it */
volatile const __u32 flows; /* made by their source address; 0: the frames of the capture */
volatile const __u32 first_source; /* the first flow's, host order; its low bits are 0 */
volatile const __u32 head_sum; /* of the IPv4 header's other words, not folded, network order */
volatile const __u32 replay_frames; /* in the capture */
volatile const __u64 interval; /* between two frames, in 1/1024 ns; 0: as fast as can be */

struct replay_frame {
	__u32 len;
	__u8 bytes[REPLAY_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct replay_frame);
} replay SEC(".maps");

/* One CPU's generator. */
struct generator {
	__u64 packets, bytes; /* sent */
	__u64 due; /* when the next one is, in 1/1024 ns of CLOCK_MONOTONIC */
	__u32 at; /* the next flow or frame */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct generator);
} generators SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} wire SEC(".maps");

/* How far a generator that was held up makes up for it: 100 us, in 1/1024 ns. */
#define CATCH_UP (100000ULL << 10)

static __always_inline bool is_due(struct generator *g)
{
	__u64 now;

	if (!interval)
		return true;
	now = bpf_ktime_get_ns() << 10;
	if (now < g->due)
		return false;
	if (now - g->due > CATCH_UP)
		g->due = now - CATCH_UP;
	g->due += interval;
	return true;
}

/* Makes the frame one of the next flow. The rest of it is as it was put in, since nobody but this writes to
 * live frames here. Returns its length, 0 if there is none. */
static __always_inline __u32 next_flow(struct xdp_md *ctx, struct generator *g)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__u32 source = bpf_htonl(first_source | g->at), sum;

	if ((void *)(ip + 1) > data_end)
		return 0;
	ip->saddr = source;
	sum = head_sum + (source & 0xffff) + (source >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	g->at = g->at + 1 < flows ? g->at + 1 : 0;
	return start_size;
}

/* Makes the frame the next one of the capture. Returns its length, 0 if there is none. */
static __always_inline __u32 next_captured(struct xdp_md *ctx, struct generator *g)
{
	__u32 at = g->at, len;
	struct replay_frame *f = bpf_map_lookup_elem(&replay, &at);

	if (!f)
		return 0;
	g->at = at + 1 < replay_frames ? at + 1 : 0;
	len = f->len;
	if (len == 0 || len > REPLAY_BYTES)
		return 0;
	if (bpf_xdp_adjust_tail(ctx, (int)len - (int)start_size))
		return 0;
	if (bpf_xdp_store_bytes(ctx, 0, f->bytes, len))
		return 0;
	return len;
}

SEC("xdp.frags")
int generate(struct xdp_md *ctx)
{
	__u32 zero = 0, len;
	struct generator *g = bpf_map_lookup_elem(&generators, &zero);

	if (!g)
		return XDP_ABORTED;
	if (!is_due(g))
		return XDP_DROP;
	len = flows ? next_flow(ctx, g) : next_captured(ctx, g);
	if (!len)
		return XDP_ABORTED;
	g->packets++;
	g->bytes += len;
	return bpf_redirect_map(&wire, 0, 0);
}

/* What came back to a CPU. */
struct tally {
	__u64 packets, bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tally);
} tallies SEC(".maps");

SEC("xdp.frags")
int count(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct tally *t = bpf_map_lookup_elem(&tallies, &zero);

	if (!t)
		return XDP_ABORTED;
	t->packets++;
	t->bytes += ctx->data_end - ctx->data;
	return XDP_DROP;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
