/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipe_host.h: packets that a pipeline gives to the host, of whose answers the egress guard is to know. */
#ifndef SOFTDPU_PIPE_HOST_H
#define SOFTDPU_PIPE_HOST_H

#include "pipes.h"

/* Notes who spoke to the host: by TCP, UDP or an echo request, in one piece. */
static __always_inline void note_host(const struct pipe_fields *f)
{
	const __u32 *w = f->word;
	struct pipe_host key = {};
	__u32 has = w[PIPE_HAS], tick = w[PIPE_TICK], *seen;

	key.family = has & PIPE_HAS_IPV4 ? 4 : 6;
	if (has & PIPE_HAS_PORTS) {
		key.host_port = bpf_htons(w[PIPE_L4_DPORT]);
		key.other_port = bpf_htons(w[PIPE_L4_SPORT]);
	} else if (has & PIPE_HAS_ICMP && w[PIPE_ICMP_TYPE] == (key.family == 4 ? 8 : 128)) {
		key.other_port = bpf_htons(w[PIPE_ICMP_IDENT]);
	} else {
		return;
	}
	if (w[PIPE_IP_FRAGMENT] != PIPE_FRAGMENT_NONE)
		return;
	for (int i = 0; i < (key.family == 4 ? 1 : 4); i++) {
		key.host[i] = bpf_htonl(w[PIPE_IP_DST + i]);
		key.other[i] = bpf_htonl(w[PIPE_IP_SRC + i]);
	}
	key.proto = w[PIPE_IP_PROTO];
	key.port = w[PIPE_PORT];
	seen = bpf_map_lookup_elem(&pipe_hosts, &key);
	if (seen)
		*seen = tick;
	else
		bpf_map_update_elem(&pipe_hosts, &key, &tick, BPF_ANY); /* or it is not answered */
}

#endif
