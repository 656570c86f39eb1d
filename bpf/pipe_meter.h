/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipe_meter.h: meters of pipes after RFC 2697, 2698 and 4115, called by generated instructions. flowtable/pipe/meter.go
 * is the same in Go. */
#ifndef SOFTDPU_PIPE_METER_H
#define SOFTDPU_PIPE_METER_H

#include "pipes.h"

#define METER_UNIT 1000000000ull /* tokens */

/* What a meter has left. A map with spin locks cannot be mapped, so it stands apart from struct pipe_meter. */
struct pipe_meter_state {
	struct bpf_spin_lock lock;
	__u32 pad;
	__u64 last; /* ns; 0: nothing has come yet, and both buckets are full */
	__u64 tokens[2];
	__u64 line[4]; /* a cache line each */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PIPE_METERS);
	__type(key, __u32);
	__type(value, struct pipe_meter_state);
} pipe_meter_states SEC(".maps");

/* A meter as it is read before its lock is taken. */
struct meter {
	__u32 kind;
	__u64 rate[2], most[2], fill[2];
};

static __always_inline __u64 at_most(__u64 a, __u64 most)
{
	return a < most ? a : most;
}

/* Adds what has come in `ns`. No sum exceeds 64 bits: rate * fill is less than most + rate, and most at most METER_MOST of
 * flowtable/pipe/meter.go. */
static __always_inline void refill(struct pipe_meter_state *s, const struct meter *m, __u64 ns)
{
	__u64 more = ns < m->fill[0] ? m->rate[0] * ns : m->most[0];
	__u64 sum;

	if (m->kind == PIPE_METER_RFC2697) {
		if (ns >= m->fill[0])
			more = m->most[0] + m->most[1];
		sum = s->tokens[0] + more;
		s->tokens[0] = at_most(sum, m->most[0]);
		sum -= s->tokens[0];
		s->tokens[1] = at_most(s->tokens[1] + sum, m->most[1]);
		return;
	}
	s->tokens[0] = at_most(s->tokens[0] + more, m->most[0]);
	more = ns < m->fill[1] ? m->rate[1] * ns : m->most[1];
	s->tokens[1] = at_most(s->tokens[1] + more, m->most[1]);
}

/* Takes what a packet costs, and tells its colour. `color` is what it had. */
static __always_inline __u32 take(struct pipe_meter_state *s, __u32 kind, __u64 cost, __u32 color)
{
	if (color >= PIPE_RED)
		return PIPE_RED;
	if (kind == PIPE_METER_RFC2698) {
		if (s->tokens[1] < cost)
			return PIPE_RED;
		s->tokens[1] -= cost;
		if (color == PIPE_YELLOW || s->tokens[0] < cost)
			return PIPE_YELLOW;
		s->tokens[0] -= cost;
		return PIPE_GREEN;
	}
	if (color == PIPE_GREEN && s->tokens[0] >= cost) {
		s->tokens[0] -= cost;
		return PIPE_GREEN;
	}
	if (s->tokens[1] < cost)
		return PIPE_RED;
	s->tokens[1] -= cost;
	return PIPE_YELLOW;
}

/* Colours a packet by a meter: PIPE_COLOR, which is the answer too. Without a meter the colour stays. */
__noinline __u32 pipe_measure(struct pipe_fields *f, __u32 number)
{
	struct pipe_meter_state *s;
	struct pipe_meter *config;
	struct meter m;
	__u64 now, cost, ns;
	__u32 color;

	if (!f)
		return 0;
	config = bpf_map_lookup_elem(&pipe_meters, &number);
	s = bpf_map_lookup_elem(&pipe_meter_states, &number);
	if (!config || !s || !config->kind)
		return f->word[PIPE_COLOR];
	m.kind = config->kind;
	for (int i = 0; i < 2; i++) {
		m.rate[i] = config->rate[i];
		m.most[i] = config->size[i] * METER_UNIT;
		m.fill[i] = config->fill[i];
	}
	color = config->flags & PIPE_METER_AWARE ? f->word[PIPE_COLOR] : PIPE_GREEN;
	cost = config->flags & PIPE_METER_PACKETS ? METER_UNIT : f->word[PIPE_LENGTH] * METER_UNIT;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&s->lock);
	ns = now - s->last;
	if ((__s64)ns > 0) { /* or another CPU was here later */
		if (!s->last)
			ns = ~0ull;
		refill(s, &m, ns);
		s->last = now;
	}
	color = take(s, m.kind, cost, color);
	bpf_spin_unlock(&s->lock);
	f->word[PIPE_COLOR] = color;
	return color;
}

#endif
