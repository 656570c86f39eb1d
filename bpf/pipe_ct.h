/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* pipe_ct.h: pipes that look a packet up in the gateway's flow table. */
#ifndef SOFTDPU_PIPE_CT_H
#define SOFTDPU_PIPE_CT_H

#include "pipe_parse.h"
#include "flow.h"

/* What a pipeline knows of a flow's state. A revoked flow is one still; what is over is none. */
static __always_inline __u32 ct_state(__u32 state)
{
	switch (state) {
	case FLOW_SYN_SENT:
	case FLOW_SYN_RECEIVED:
	case FLOW_NEW:
		return PIPE_CT_OPENING;
	case FLOW_ESTABLISHED:
	case FLOW_REPLIED:
		return PIPE_CT_ESTABLISHED;
	case FLOW_FIN_WAIT:
	case FLOW_TIME_WAIT:
		return PIPE_CT_CLOSING;
	}
	return PIPE_CT_NONE;
}

static __always_inline __u32 ct_find4(const __u32 *w, __be16 sport, __be16 dport, __u16 domain)
{
	__be32 src = bpf_htonl(w[PIPE_IP_SRC]), dst = bpf_htonl(w[PIPE_IP_DST]);
	struct flow4_key key;
	struct flow4 *flow;
	__u32 state;

	key_of4(&key, &src, &dst, sport, dport, w[PIPE_IP_PROTO], domain);
	flow = find4(&key, hash4(&key));
	if (!flow)
		return PIPE_CT_NONE;
	state = state_of(load(&flow->core.word));
	if (state == FLOW_ALIAS) { /* the other end's view of a translated flow */
		key = ((struct alias4 *)flow)->target;
		flow = find4(&key, hash4(&key));
		state = flow ? state_of(load(&flow->core.word)) : 0;
	}
	return ct_state(state);
}

static __always_inline __u32 ct_find6(const __u32 *w, __be16 sport, __be16 dport, __u16 domain)
{
	struct flow6_key key;
	struct flow6 *flow;
	__be32 src[4], dst[4];
	__u32 state;

	for (int i = 0; i < 4; i++) {
		src[i] = bpf_htonl(w[PIPE_IP_SRC + i]);
		dst[i] = bpf_htonl(w[PIPE_IP_DST + i]);
	}
	key_of6(&key, src, dst, sport, dport, w[PIPE_IP_PROTO], domain);
	flow = find6(&key, hash6(&key));
	if (!flow)
		return PIPE_CT_NONE;
	state = state_of(load(&flow->core.word));
	if (state == FLOW_ALIAS) {
		key = ((struct alias6 *)flow)->target;
		flow = find6(&key, hash6(&key));
		state = flow ? state_of(load(&flow->core.word)) : 0;
	}
	return ct_state(state);
}

/* Looks a packet up and notes the state of its flow. Returns whether there is one. ICMP queries are known by
 * their identifier, errors and later fragments not at all. */
__noinline __u32 pipe_ct(struct pipe_fields *f)
{
	__be16 sport = 0, dport = 0;
	__u32 *w, has, state;

	if (!f)
		return 0;
	w = f->word;
	has = w[PIPE_HAS];
	w[PIPE_CT_STATE] = PIPE_CT_NONE;
	if (!(has & PIPE_HAS_IP) || w[PIPE_IP_FRAGMENT] == PIPE_FRAGMENT_LATER)
		return 0;
	if (has & PIPE_HAS_PORTS) {
		sport = bpf_htons(w[PIPE_L4_SPORT]);
		dport = bpf_htons(w[PIPE_L4_DPORT]);
	} else if (has & PIPE_HAS_ICMP) {
		if (is_reply(has & PIPE_HAS_IPV4 ? 4 : 6, w[PIPE_ICMP_TYPE]))
			dport = bpf_htons(w[PIPE_ICMP_IDENT]);
		else
			sport = bpf_htons(w[PIPE_ICMP_IDENT]);
	}
	if (has & PIPE_HAS_IPV4)
		state = ct_find4(w, sport, dport, f->domain);
	else
		state = ct_find6(w, sport, dport, f->domain);
	w[PIPE_CT_STATE] = state;
	return state != PIPE_CT_NONE;
}

#endif
