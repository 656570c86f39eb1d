//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * latency.c: the two ends of the wire for the latency benchmark. pace sends numbered frames on a
 * schedule that waits for nothing, stamp notes when each of them arrives. Both write times of
 * CLOCK_MONOTONIC, in ns, into arrays with a place for every frame: what has no arrival was lost.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define HEADERS 48 /* bytes of a frame that a gateway may rewrite, a multiple of 4 */
#define MARK 0x6c617465 /* in front of the number: "late" */

volatile const __u32 headers_mask; /* frames of different flows - 1; a power of two - 1 */

struct headers {
	__u32 word[HEADERS / 4];
};

/* What stands behind the headers. */
struct numbered {
	__u32 mark;
	__u32 number;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct headers);
} flows SEC(".maps");

/* When a frame is due, after the first. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, __u64);
} due SEC(".maps");

/* When it left, 0: it did not. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, __u64);
} sent SEC(".maps");

/* When it arrived, 0: it did not. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

/* One measurement. Sender and receiver have a cache line each. */
struct pacing {
	__u64 begin; /* when the first frame is due; 0: as soon as pace runs */
	__u64 frames; /* to send */
	__u64 next; /* number of the next one */
	__u64 pad[5];
	__u64 received; /* for the first time */
	__u64 doubled; /* again */
	__u64 strange; /* numbers that no frame has */
	__u64 pad2[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pacing);
} pace_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} wire SEC(".maps");

#define LEAD 20000000 /* ns from the first run of pace to the first frame */
#define WAIT_READS 1024 /* of the clock while a frame is not yet due: some 30 us */

/* Live-frame test runs of one frame a batch: sends the next frame when it is due, at once if it is
 * overdue. A drop gives the frame back to the test run, which comes again. */
SEC("xdp.frags")
int pace(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct numbered *numbered = data + HEADERS;
	__u32 zero = 0, number, flow;
	struct pacing *s = bpf_map_lookup_elem(&pace_state, &zero);
	struct headers *h;
	__u64 *when, *left, now, at;

	if (!s || (void *)(numbered + 1) > data_end)
		return XDP_ABORTED;
	if (s->next >= s->frames)
		return XDP_DROP;
	number = s->next;
	flow = number & headers_mask;
	h = bpf_map_lookup_elem(&flows, &flow);
	when = bpf_map_lookup_elem(&due, &number);
	left = bpf_map_lookup_elem(&sent, &number);
	if (!h || !when || !left)
		return XDP_ABORTED;
	now = bpf_ktime_get_ns();
	if (!s->begin)
		s->begin = now + LEAD;
	at = s->begin + *when;
#pragma unroll
	for (int i = 0; i < HEADERS / 4; i++)
		((__u32 *)data)[i] = h->word[i];
	numbered->mark = MARK;
	numbered->number = number;
	for (int i = 0; i < WAIT_READS && now < at; i++)
		now = bpf_ktime_get_ns();
	if (now < at)
		return XDP_DROP;
	*left = now;
	s->next = number + 1;
	return bpf_redirect_map(&wire, 0, 0);
}

/* The far end: notes the arrival of numbered frames, and leaves all others alone. */
SEC("xdp.frags")
int stamp(struct xdp_md *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct numbered *numbered = data + HEADERS;
	__u32 zero = 0, number;
	struct pacing *s;
	__u64 *place;

	if ((void *)(numbered + 1) > data_end || numbered->mark != MARK)
		return XDP_PASS;
	number = numbered->number;
	s = bpf_map_lookup_elem(&pace_state, &zero);
	if (!s)
		return XDP_ABORTED;
	place = number < s->frames ? bpf_map_lookup_elem(&arrived, &number) : NULL;
	if (!place) {
		__sync_fetch_and_add(&s->strange, 1);
	} else if (*place) {
		__sync_fetch_and_add(&s->doubled, 1);
	} else {
		*place = now;
		__sync_fetch_and_add(&s->received, 1);
	}
	return XDP_DROP;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
