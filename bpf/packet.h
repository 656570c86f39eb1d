/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* packet.h: one packet and what was found out about it, and where a program keeps what its stack
 * cannot hold. */
#ifndef SOFTDPU_PACKET_H
#define SOFTDPU_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include "maps.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_URG 0x20

#define WSCALE_NONE 0xff

enum packet_kind {
	PACKET_FLOW, /* has the key of a flow that it may open */
	PACKET_REPLY, /* has the key of a flow, but cannot open one */
	PACKET_ERROR, /* ICMP error: belongs to the flow of the packet inside */
	PACKET_ND, /* neighbour or multicast listener discovery, on its own link */
	PACKET_ARP,
	PACKET_ETHERTYPE, /* not IP */
};

#define FRAG_FIRST 1
#define FRAG_LATER 2

/* A chain of IPv6 extension headers still to be walked. */
struct chain {
	__u32 at, end; /* offsets from the start of the frame; end: behind the IP payload */
	__u8 next; /* type of the header at `at` */
	__u8 quoted; /* inside an ICMP error: p's fragment fields are not its */
	__u8 pad[2];
};

/* One packet and what was found out about it. Offsets count from the start of the frame. Fields up to
 * `leg` start as zero, the others with whatever the packet before left. */
struct packet {
	__be32 src[4], dst[4]; /* IPv4: first element, others 0 */
	__u32 verdict; /* classify()'s answer, or the flow's rule */
	__be16 sport, dport; /* of the flow key, in this packet's direction */
	__u16 vlan; /* outer VLAN id, 0 = none */
	__u16 nexthop;
	__u8 kind; /* enum packet_kind */
	__u8 frag; /* FRAG_* or 0 */
	__u8 tags; /* VLAN tags */
	__u8 tcp_flags; /* without PSH, ECE, CWR */
	__u8 reopen; /* a SYN that may take the place of a closed flow */
	__u8 pass; /* 1 + enum pass_cause, 0 = not for the kernel */
	__u8 family; /* 4, 6; 0 if not IP */
	__u8 stages; /* STAGE_*: it goes to a worker, who does that; 0 = it does not */
	__u8 xlat; /* XLAT_*: it leaves with another tuple, which is in out_* */
	__u8 leg; /* 1 + leg of its flow that it came by, 0 = no flow met */

	__u64 word; /* of its flow, as last read */
	__u64 edition; /* as it was when the packet came: all that is asked about it is asked of that */
	__u32 seq, ack; /* valid iff proto is TCP and not FRAG_LATER */
	__be32 frag_id; /* valid iff frag */
	__u32 tick;
	__u16 l3, l4;
	__u16 ip_len; /* IP header and payload */
	__u16 l4_len; /* transport header and payload, of this fragment */
	__u16 frag_off, frag_len; /* bytes of the datagram's payload; valid iff frag */
	__u16 l4_data; /* offset of TCP's payload from l4; valid iff TCP */
	__u16 win; /* valid iff TCP */
	__u16 domain;
	__be16 ethertype; /* behind the tags */
	__u8 proto; /* of the transport header */
	__u8 ttl;
	__u8 wscale; /* valid iff SYN */
	__u8 icmp_type, icmp_code; /* valid iff ICMP or ICMPv6 */
	__u8 frag_proto; /* protocol of the fragment's key; valid iff frag */
	__u8 more; /* more fragments follow; valid iff frag */
	__u8 df; /* may not be fragmented */
	__u8 zone; /* of arrival */
	__u8 to; /* zone of egress; valid once routed */
	__u8 group_mac; /* the frame is for a group address */
	__u8 opener; /* it comes from the end that opened its flow */
	__u8 unroutable; /* its source address is of its own link only */
	__be16 out_sport, out_dport; /* as sport and dport; valid iff xlat */
	__u16 inner; /* offset of the quoted transport header; valid iff PACKET_ERROR */
	__u8 pad[2];
	__be32 out_src[4], out_dst[4]; /* valid iff xlat; IPv4: first element, others anything */
	__u32 queue; /* QUEUE_INDEX of arrival; valid iff stages */
	struct chain chain; /* of its extension headers, here because the stack is small */
};

/* What of a generation may change while its program stays: the number of the policy, epoch, in the lower half,
 * and above it which bank of roots its trees begin with. Every packet reads it once and holds on to that, so
 * that none meets one policy's number and another one's rules. Each generation has its own. */
volatile __u64 edition SEC(".data.edition");

/* Begins with a packet. */
static __always_inline void clear_packet(struct packet *p)
{
	__builtin_memset(p, 0, offsetof(struct packet, leg) + 1);
	p->edition = edition;
}

/* Number of the policy that p is under. */
static __always_inline __u32 epoch_of(const struct packet *p)
{
	return p->edition;
}

/* Whether p is an ICMP error of the gateway itself, which alone may be about a packet as it came. */
static __always_inline bool own_error(const struct packet *p)
{
	return p->kind == PACKET_ERROR && p->zone == ZONE_HOST;
}

/* linux/icmp.h needs the C library */
struct icmp_header {
	__u8 type, code;
	__be16 checksum;
	__be32 rest;
};

/* Whether an ICMP message answers a query. */
static __always_inline bool is_reply(__u8 family, __u8 type)
{
	return family == 4 ? type == 0 || type == 14 : type == 129;
}

enum hook { HOOK_XDP, HOOK_TC };

static __always_inline __u32 frame_length(void *ctx, enum hook hook)
{
	if (hook == HOOK_TC)
		return ((struct __sk_buff *)ctx)->len;
	return bpf_xdp_get_buff_len(ctx);
}

static __always_inline long load_bytes(void *ctx, enum hook hook, __u32 at, void *to, __u32 len)
{
	if (hook == HOOK_TC)
		return bpf_skb_load_bytes(ctx, at, to, len);
	return bpf_xdp_load_bytes(ctx, at, to, len);
}

static __always_inline long store_bytes(void *ctx, enum hook hook, __u32 at, void *from, __u32 len)
{
	if (hook == HOOK_TC)
		return bpf_skb_store_bytes(ctx, at, from, len, 0);
	return bpf_xdp_store_bytes(ctx, at, from, len);
}

/* What the compiler knows of x and the verifier does not is forgotten, so that a mask stays. */
#define opaque(x) asm volatile("" : "+r"(x))

/* What a new flow starts with. */
struct opening {
	__u64 flags; /* WORD_FLAG_* */
	__u32 rule;
	__u32 state; /* enum flow_state */
	__u32 hash; /* of its key */
	__u32 side; /* leg of the opener */
	__u16 context;
	__u8 from, to;
	__u8 stages; /* STAGE_* of both legs */
	__u8 pad[3];
};

/* How a new flow is translated, beside the tuple with which its opening packet leaves. */
struct nat_choice {
	__u32 source_rule, destination_rule; /* 0 = none */
	__u32 ports; /* element of nat_ports, or NAT_NO_PORTS */
	__u32 limit; /* flows that its source may have by the source rule, 0 = any number */
	/* as in an alias, into which they are copied at once: */
	__u16 port; /* taken there, host order */
	__u16 pad;
	__u32 tally; /* 1 + place in nat_tallies where it counts, 0 = nowhere */
	__u32 others; /* ports that were taken there in vain */
	__u16 other[NAT_TRIES];
	__u8 pad2[4];
	struct opening alias; /* what its second entry starts with */
	struct flow4_key alias4,
		gone4; /* keys of second entries: its own, and that of a flow which left */
	struct flow6_key alias6, gone6;
	/* Of mappings, section 15.12: */
	struct opening opened; /* of the flow, while its mapping is made */
	__u32 hairpin; /* rule that the opener, who sends to a mapping, is behind itself; 0 = none */
	__be32 remote[4], nobody[4]; /* the other end meanwhile, and always 0 */
	__be16 remote_port;
	__u8 kind; /* KEY_* of the second entry */
	__u8 mapped; /* MAPPED_* */
	__u8 undecided; /* no rule is about the destination */
	__u8 admitted; /* the opener sends to a mapping */
	__u8 outside; /* zone to which the mapping of the destination leads */
};

/* Too large for the stack, one a CPU. Neither XDP nor tc egress is interrupted by the other there. */
struct scratch {
	struct packet packet;
	struct classify_key key;
	struct opening opening;
	struct flow4_key key4;
	struct flow6_key key6;
	__u64 fib[8]; /* struct bpf_fib_lookup, whose unions bpf2go does not know */
	struct flow4 gone4, fresh4;
	struct flow6 gone6, fresh6;
	struct handover handover; /* of the packet, as far as it is known */
	struct nat_choice nat;
	__u8 bytes[520]; /* of a packet: options, or a chunk and its padding for a checksum */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline struct scratch *scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

#endif
