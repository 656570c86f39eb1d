//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * trace.c: what the kernel drops of packets behind XDP's verdict: between a redirect and a socket, and
 * between a redirect and a port. An object of its own, because it goes without where the kernel has no
 * such tracepoints or does not say how its structures lie.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <stdbool.h>
#include "maps.h"

volatile const __u32 sockets_id, devices_id; /* ids of the maps of these names */
volatile const __u32 netns; /* inode of the gateway's network namespace */

#define ENXIO 6
#define EOPNOTSUPP 95
#define ENETDOWN 100

/* The kernel's own, as far as they are looked at. */
struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

static __always_inline void count_lost(__u32 reason, __u32 packets)
{
	struct counter *c = bpf_map_lookup_elem(&reasons, &reason);

	if (c)
		c->packets += packets;
}

/* Why a port does not take a packet: it is down or cannot send for XDP, or it has no room. */
static __always_inline __u32 egress_reason(int err)
{
	return err == -ENETDOWN || err == -ENXIO || err == -EOPNOTSUPP ? REASON_EGRESS_DOWN :
									 REASON_EGRESS_FULL;
}

/* A redirect that failed when it was carried out. args: dev, prog, tgt, err, map_type, map_id, index */
SEC("raw_tp/xdp_redirect_err")
int redirect_lost(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 map = ctx->args[5], index = ctx->args[6];

	if (map == sockets_id) {
		struct worker_queue *q = bpf_map_lookup_elem(&worker_queues, &index);

		if (q)
			__sync_fetch_and_add(&q->lost, 1);
		count_lost(REASON_WORKER_FULL, 1);
	} else if (map == devices_id) {
		count_lost(egress_reason(ctx->args[3]), 1);
	}
	return 0;
}

/* Whether a device is a port of this gateway. */
static __always_inline bool is_port(const struct net_device *dev)
{
	__u32 zero = 0, ifindex = BPF_CORE_READ(dev, ifindex), index;
	struct gateway_state *gw = bpf_map_lookup_elem(&gateway, &zero);
	struct port *port;

	if (!gw || BPF_CORE_READ(dev, nd_net.net, ns.inum) != netns)
		return false;
	index = ifindex * gw->port_mul >> 24;
	port = bpf_map_lookup_elem(&ports, &index);
	return port && port->ifindex == ifindex;
}

/* A batch that was given to a driver. It comes with every one of them, so it has little to do as long as
 * nothing is lost. args: from_dev, to_dev, sent, drops, err */
SEC("raw_tp/xdp_devmap_xmit")
int batch_lost(struct bpf_raw_tracepoint_args *ctx)
{
	int drops = ctx->args[3];

	if (drops > 0 && is_port((const void *)ctx->args[1]))
		count_lost(egress_reason(ctx->args[4]), drops);
	return 0;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
