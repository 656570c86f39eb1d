/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipes.h: maps of a pipeline, and what its generated instructions call beside look-ups in tables. */
#ifndef SOFTDPU_PIPES_H
#define SOFTDPU_PIPES_H

#include "packet.h"

/* Where a frame's headers are, in bytes from its beginning, and what it came with. */
struct pipe_place {
	__u32 l3, l4, payload; /* 0 = there is none */
	__u32 tags; /* it came with; 4 = as many as cannot be written back */
	__u32 family; /* 4, 6 or 0 */
	__u32 proto; /* with a transport header that is there */
	__u32 length; /* of the IP packet */
	__u32 routed; /* it goes on from its destination, by a routing header */
};

/* On the stack the verifier would follow every combination of what it holds. */
struct pipe_scratch {
	struct pipe_fields fields;
	struct pipe_place at;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pipe_scratch);
} pipe_scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct pipe_entry);
} pipe_entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct pipe_bucket);
} pipe_buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PIPE_METERS);
	__type(key, __u32);
	__type(value, struct pipe_meter);
} pipe_meters SEC(".maps");

/* Ports that get a copy each: a device map for each group. */
struct pipe_group {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, PORT_MAX + 1);
	__type(key, __u32);
	__type(value, __u32);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, PIPE_GROUPS);
	__type(key, __u32);
	__array(values, struct pipe_group);
} pipe_groups SEC(".maps");

/* One walk of a packet, told of by a program that traces. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} pipe_traces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pipe_trace);
} pipe_walks SEC(".maps");

/* What hash pipes that take turns have counted, by number. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PIPE_PIPES);
	__type(key, __u32);
	__type(value, __u32);
} pipe_turns SEC(".maps");

#endif
