//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * vlan.c: the dispatcher of a port with VLAN zones, an object of its own because it is loaded once for
 * each of them, bound to the port's device, and only where kernel and driver can do that.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "dispatch.h"

/* Since Linux 6.8. 0: a tag stands beside the frame; -ENODATA: none; -EOPNOTSUPP: the driver cannot
 * tell. */
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, __be16 *vlan_proto,
					__u16 *vlan_tci) __ksym;

/* A frame without its tag would be judged as one of another zone. */
SEC("xdp.frags")
int dispatch_vlan(struct xdp_md *ctx)
{
	__be16 proto;
	__u16 tci;

	if (!bpf_xdp_metadata_rx_vlan_tag(ctx, &proto, &tci)) {
		count_reason(REASON_VLAN_OFFLOADED, bpf_xdp_get_buff_len(ctx));
		return XDP_DROP;
	}
	return to_generation(ctx);
}

char program_license[] SEC("license") = "Dual BSD/GPL";
