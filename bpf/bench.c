//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * bench.c: what bench puts around the programs that it measures. prologue restores the frame before
 * every round of a test run, which would otherwise see its own output of the round before. For the
 * gateway benchmark, generate makes the traffic, sink counts what arrives, and redirect and reroute
 * are the least that a gateway could do.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TRACE_BYTES 128 /* of each frame, that a program may change: the rest stays as it is */

volatile const __u32 frame_size; /* bytes of every frame, a multiple of 4 */
volatile const __u32 trace_mask; /* frames in the trace - 1; a power of two - 1 */
volatile const __u32 window; /* frames that generate lets be on their way */
volatile const __u32 output; /* key of the device that generate and redirect send by */

struct trace_frame {
	__u32 word[TRACE_BYTES / 4];
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
	for (int i = 0; i < TRACE_BYTES / 4; i++) {
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

#define STOPWATCH_STEP 8 /* ns of a bucket */
#define STOPWATCH_BUCKETS 4096 /* the last one has all that took longer */

/* How long each round of a test run took, from the beginning of one to that of the next. */
struct stopwatch {
	__u64 last; /* ns of CLOCK_MONOTONIC; 0: no round has begun */
	__u64 rounds[STOPWATCH_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stopwatch);
} watch SEC(".maps");

/* prologue for one CPU's test run that times every round. */
SEC("xdp.frags")
int timed(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct stopwatch *w = bpf_map_lookup_elem(&watch, &zero);
	__u64 now = bpf_ktime_get_ns();

	if (!w)
		return XDP_ABORTED;
	if (w->last) {
		__u64 bucket = (now - w->last) / STOPWATCH_STEP;

		if (bucket >= STOPWATCH_BUCKETS)
			bucket = STOPWATCH_BUCKETS - 1;
		w->rounds[bucket]++;
	}
	w->last = now;
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

/* Frames on their way from generate to sink; each side has a cache line of its own. */
struct in_flight {
	__u64 sent, known; /* known: arrived, as generate last read it */
	__u64 held; /* times that generate had to wait */
	__u64 pad[5];
	__u64 arrived; /* told every FLIGHT_STEP frames */
	__u64 pad2[7];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct in_flight);
} flight SEC(".maps");

#define FLIGHT_STEP 16
#define FLIGHT_SPINS 4096

/* Live-frame test runs: sends the next frame of the trace by a device, unless as many as `window` are
 * on their way. */
SEC("xdp.frags")
int generate(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct in_flight *f = bpf_map_lookup_elem(&flight, &zero);

	if (!f)
		return XDP_ABORTED;
	if (f->sent - f->known >= window) {
		f->held++;
		/* dropping would free the frame under the lock that the far end frees under */
		for (int i = 0; i < FLIGHT_SPINS && f->sent - f->known >= window; i++)
			f->known = *(volatile __u64 *)&f->arrived;
		if (f->sent - f->known >= window)
			return XDP_DROP;
	}
	if (!next_frame(ctx))
		return XDP_ABORTED;
	f->sent++;
	return bpf_redirect_map(&outputs, output, 0);
}

/* The least that XDP can do: one device to another, the frame as it came. */
SEC("xdp.frags")
int redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&outputs, output, 0);
}

volatile const __u64
	next_mac[2]; /* destination and source, low 48 bits as they stand in the frame */

/* The least that a router must do: new MACs, and a TTL and header checksum that are one further. */
SEC("xdp.frags")
int reroute(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	volatile const __u64 *mac = next_mac;
	__u32 check;

	if ((void *)(ip + 1) > data_end)
		return XDP_ABORTED;
	*(__u32 *)data = mac[0];
	*(__u16 *)(data + 4) = mac[0] >> 32;
	*(__u32 *)(data + 6) = mac[1];
	*(__u16 *)(data + 10) = mac[1] >> 32;
	check = ip->check + bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
	return bpf_redirect_map(&outputs, output, 0);
}

/* What arrived at a CPU, and when: ns of CLOCK_MONOTONIC. */
struct arrivals {
	__u64 packets;
	__u64 first, last;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrivals);
} arrived SEC(".maps");

SEC("xdp.frags")
int sink(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct arrivals *a = bpf_map_lookup_elem(&arrived, &zero);

	if (!a)
		return XDP_ABORTED;
	/* the clock costs more than the count: every 64th packet reads it */
	if (!(a->packets++ & 63)) {
		a->last = bpf_ktime_get_ns();
		if (a->packets == 1)
			a->first = a->last;
	}
	if (!(a->packets & (FLIGHT_STEP - 1))) {
		struct in_flight *f = bpf_map_lookup_elem(&flight, &zero);

		if (f)
			*(volatile __u64 *)&f->arrived += FLIGHT_STEP;
	}
	return XDP_DROP;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
