//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"

#define EXPORT(kind, name) const kind name *export_##name __attribute__((unused))
EXPORT(enum, action);
EXPORT(enum, reason);
EXPORT(enum, pass_cause);
EXPORT(enum, flow_state);
EXPORT(enum, event_kind);
EXPORT(struct, event);
EXPORT(struct, classify_key);
EXPORT(struct, sim_control);
EXPORT(struct, sim_result);
EXPORT(struct, flow4);
EXPORT(struct, flow6);

/* An audit rule matched: count it and go on. Called by the generated classifier. */
__noinline int audit(struct classify_key *key, __u32 rule)
{
	struct rule_counter *c = bpf_map_lookup_elem(&rules, &rule);

	if (key && c)
		c->judged++;
	return 0;
}

/* The policy's classifier. Go puts the compiled pipeline's instructions in its place; as it stands
 * it refuses everything. */
__noinline __u32 classify(struct classify_key *key)
{
	if (!key)
		return 0;
	return audit(key, 0) ? key->from : 0;
}

/* One generation: policy, tables and tunables of one epoch. */
SEC("xdp.frags")
int softdpu(struct xdp_md *ctx)
{
	struct classify_key key = {};

	return classify(&key) ? XDP_PASS : XDP_DROP;
}

/* What is attached to every port and never replaced. */
SEC("xdp.frags")
int dispatch(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &generations, 0);
	return XDP_DROP;
}

/* Egress guard of one generation. */
SEC("tc")
int guard(struct __sk_buff *skb)
{
	struct classify_key key = {};

	return classify(&key) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

SEC("tc")
int guard_dispatch(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &guards, 0);
	return TC_ACT_SHOT;
}

/* tc ingress: turns the mark that XDP left in front of the packet into skb->mark. */
SEC("tc")
int mark(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
