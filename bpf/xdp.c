//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#include <linux/bpf.h>
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

/* The policy's classifier. Go puts the compiled pipeline's instructions in its place; as it stands
 * it refuses everything. */
__noinline __u32 classify(struct classify_key *key)
{
	if (!key)
		return 0;
	return bpf_get_prandom_u32() & 0 ? key->from : 0;
}

SEC("xdp.frags")
int softdpu(struct xdp_md *ctx)
{
	struct classify_key key = {};

	return classify(&key) ? XDP_PASS : XDP_DROP;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
