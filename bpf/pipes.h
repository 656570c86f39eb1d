/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipes.h: maps of a pipeline, and what its generated instructions call. */
#ifndef SOFTDPU_PIPES_H
#define SOFTDPU_PIPES_H

#include "dispatch.h"

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

#endif
