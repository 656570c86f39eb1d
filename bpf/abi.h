/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * abi.h: what the programs share with Go. bpf2go turns every struct and enum of this file into a Go
 * type, so a change here is a change of both sides. Padding is explicit; nothing is packed.
 *
 * Byte order: addresses and ports in keys stand as they do in the packet (network order);
 * struct classify_key alone is in host order, because generated code compares it with constants.
 *
 * Time: a *tick* is 2^20 ns (1.048576 ms) of CLOCK_MONOTONIC_COARSE, kept in 32 bits. Ticks wrap
 * after 52 days, so they are compared by signed difference; the longest time-out is 24 days.
 */
#ifndef SOFTDPU_ABI_H
#define SOFTDPU_ABI_H

/* Layout version of everything that may outlive the process in mapped or pinned memory. */
#define LAYOUT_VERSION 2

#define TICK_SHIFT 20

/* ---- Reasons -------------------------------------------------------------------------------- */

/* Why a packet was not forwarded. Each dropped packet counts in exactly one. The kebab-case names
 * that users see are in bpf/reason.go; a test proves that table complete. */
enum reason {
	REASON_NONE, /* not dropped */

	/* by policy */
	REASON_NO_RULE_MATCHED, /* default deny */
	REASON_DENY, /* a rule says deny */
	REASON_REJECT, /* a rule says reject: answered with RST or ICMP */
	REASON_POLICY_REVOKED, /* the flow was allowed once and the running policy no longer allows it */
	REASON_SPOOFED, /* source address outside the addresses of its zone */

	/* by connection tracking */
	REASON_FLOW_TABLE_FULL,
	REASON_FLOW_GONE, /* the entry was freed or replaced while the packet was looking at it */
	REASON_NOT_SYN, /* allowed by a rule, but TCP and not the opening SYN */
	REASON_TCP_STATE, /* segment that the connection's state does not admit */
	REASON_TCP_WINDOW, /* RST or FIN outside the receiver's window */
	REASON_ICMP_NO_FLOW, /* ICMP error that speaks of no known flow */
	REASON_ICMP_NO_REQUEST, /* ICMP reply without its request */
	REASON_ICMP_TYPE, /* ICMP type that is neither query, error nor discovery on its own link */
	REASON_WRONG_ZONE, /* packet of a known flow from a zone where neither end of it lives */

	/* by address and route */
	REASON_NOT_FOR_US, /* routed port: destination MAC is not the port's */
	REASON_MARTIAN, /* address that may not appear there */
	REASON_TTL_EXPIRED, /* TTL or hop limit used up; handed to the kernel for its ICMP error */
	REASON_TOO_BIG, /* larger than the egress MTU and not to be fragmented */
	REASON_NO_ROUTE,
	REASON_ROUTE_BLOCKED, /* blackhole, unreachable or prohibit route */
	REASON_EGRESS_NOT_A_PORT, /* the route leaves by an interface that is not a port of ours */
	REASON_NEXTHOP_TABLE_FULL,

	/* by frame */
	REASON_ETHERTYPE, /* neither IPv4, IPv6, ARP nor a configured ethertype */
	REASON_VLAN_UNKNOWN, /* no zone has this VLAN on this port */
	REASON_VLAN_OFFLOADED, /* the tag was stripped before XDP could see it */
	REASON_MALFORMED_ETHERNET,
	REASON_MALFORMED_VLAN,
	REASON_MALFORMED_IPV4,
	REASON_MALFORMED_IPV4_CHECKSUM,
	REASON_MALFORMED_IPV4_OPTIONS,
	REASON_IPV4_SOURCE_ROUTE,
	REASON_MALFORMED_IPV6,
	REASON_MALFORMED_IPV6_EXTENSION,
	REASON_IPV6_ROUTING_HEADER,
	REASON_MALFORMED_TCP,
	REASON_MALFORMED_TCP_FLAGS,
	REASON_MALFORMED_UDP,
	REASON_MALFORMED_ICMP,
	REASON_MALFORMED_ICMPV6,
	REASON_MALFORMED_TRANSPORT, /* ESP, AH or GRE header cut short */
	REASON_FRAGMENT_MALFORMED, /* length not a multiple of 8, or end beyond 65,535 */
	REASON_FRAGMENT_TINY, /* first fragment without a whole transport header, or TCP at offset 1 */
	REASON_FRAGMENT_OVERLAP,
	REASON_FRAGMENT_NO_FIRST, /* later fragment whose first one is not known */
	REASON_FRAGMENT_TOO_MANY, /* more holes in the datagram than are tracked */

	/* by the gateway itself */
	REASON_KERNEL_BYPASS, /* the kernel forwarded it without our mark */
	REASON_GENERATION_ABSENT, /* dispatcher without a program behind it */
	REASON_INTERNAL, /* a map look-up that cannot fail did */
	REASON_EGRESS_DOWN, /* the port that it should leave by has no device */
	REASON_WORKER_FULL, /* its flow needs a worker, whose ring is full or who shows no sign of life */
	REASON_WORKER_ABSENT, /* its flow needs a worker, and its queue has none */
	REASON_EGRESS_FULL, /* the port that it should leave by had no room for it */

	/* by translation */
	REASON_NAT_EXHAUSTED, /* no port of the rule's addresses is free for a new flow */
	REASON_NAT_CONFLICT, /* its translation is another flow's, and nothing of it may be chosen */
	REASON_NAT_NO_ADDRESS, /* the port that it should leave by has no address of its family */
	REASON_NAT_TO_HOST, /* its destination would become the gateway itself */
	REASON_NAT_UNTRANSLATED, /* of a translated flow, with addresses that its end never sees */
	REASON_NAT_SOURCE_LIMIT, /* its source has as many translated flows as the rule lets it */

	/* by a pipeline in front */
	REASON_PIPE_DROP, /* a pipe forwards to drop */
	REASON_PIPE_TTL, /* an action lowers a TTL of 1 or 0 */

	REASON_LEN
};

/* Why a packet that was not dropped went to the kernel's stack instead of being redirected. */
enum pass_cause {
	PASS_HOST, /* for the gateway itself, admitted by the host zone's rules */
	PASS_ARP,
	PASS_ND, /* neighbour and multicast listener discovery */
	PASS_NEIGHBOUR, /* allowed, next hop's MAC not yet known */
	PASS_FRAGMENT, /* allowed, larger than the egress MTU and may be fragmented */
	PASS_LEN
};

/* ---- Zones, rules, classification ----------------------------------------------------------- */

#define ZONE_NONE 0
#define ZONE_HOST 1
#define ZONE_FIRST 2 /* first zone of the policy */
#define ZONE_MAX 255

enum action {
	ACTION_NONE, /* no rule matched: default deny */
	ACTION_ALLOW,
	ACTION_DENY,
	ACTION_REJECT,
	ACTION_SPOOFED, /* refused by the zone's own addresses, before any rule */
};

/* classify() answers rule | action << VERDICT_ACTION_SHIFT | VERDICT_* flags. Rule 0 is "no rule". */
#define VERDICT_RULE_MASK 0x00ffffffu
#define VERDICT_ACTION_SHIFT 24
#define VERDICT_ACTION_MASK 0x07u
#define VERDICT_LOG (1u << 28)
#define VERDICT_MIDSTREAM (1u << 29) /* TCP may be picked up without its SYN */

/* Rule ids that every policy has. No verdict names those from RULE_ARP to RULE_REPLIES. */
enum builtin_rule {
	RULE_NONE, /* no rule matched */
	RULE_MANAGEMENT,
	RULE_DHCP_CLIENT,
	RULE_ARP,
	RULE_ND,
	RULE_ICMP_ERRORS, /* counts errors as they are admitted; they count on their flow too */
	RULE_REPLIES, /* credited with what the other end of a flow sent, beside the flow's own rule */
	RULE_FIRST, /* first id of the policy's rules */
};

/* What the classifier sees: the opening packet of a flow. Host byte order. */
struct classify_key {
	__u64 src_hi, src_lo; /* IPv4: src_hi = 0, src_lo = the 32-bit address */
	__u64 dst_hi, dst_lo;
	__u16 sport; /* TCP, UDP; 0 otherwise */
	__u16 dport; /* TCP, UDP; ICMP and ICMPv6: type << 8 | code; 0 otherwise */
	__u8 proto; /* of the transport header */
	__u8 family; /* 4 or 6 */
	__u8 from; /* zone */
	__u8 to; /* zone */
	__u16 context; /* identity of the source MAC, 0 = none that a policy names */
	__u16 pad[3];
};

/* ---- Flows ---------------------------------------------------------------------------------- */

enum flow_state {
	FLOW_FREE,
	FLOW_SYN_SENT, /* half-open from here ... */
	FLOW_SYN_RECEIVED,
	FLOW_NEW, /* UDP, ICMP, other: no reply yet; ... to here */
	FLOW_ESTABLISHED,
	FLOW_FIN_WAIT, /* one side has sent its FIN */
	FLOW_TIME_WAIT, /* both have */
	FLOW_CLOSED, /* RST */
	FLOW_REPLIED, /* UDP, ICMP, other: both sides have spoken */
	FLOW_ALIAS, /* no flow: the other tuple of a translated one (struct alias4, alias6) */
	FLOW_MAPPING, /* no connection: what an end inside leaves as, or whom it has sent to (KEY_*) */
	FLOW_STATE_LEN
};

/* Flow word, one atomic 64-bit unit: state | flags << 8 | layer-7 verdict id << 16 | generation << 32.
 * The generation rises whenever the slot gets another flow: a flow id is (group, slot, generation). */
#define WORD_STATE_MASK 0xffull
#define WORD_FLAG_HI_OPENED (1ull << 8) /* the flow was opened by the endpoint `hi` of its key */
#define WORD_FLAG_REVOKED (1ull << 9) /* no longer allowed: a drop until its idle time-out */
#define WORD_FLAG_LOG (1ull << 10) /* events at start and end */
#define WORD_FLAG_MARKED (1ull << 11) /* the ageing scan means to free it; a hit takes this off */
#define WORD_FLAG_MIDSTREAM (1ull << 12) /* picked up without its SYN */
#define WORD_FLAG_BUSY (1ull << 13) /* with state FLOW_FREE: a creator is filling the slot */
#define WORD_FLAG_READY \
	(1ull << 14) /* the worker has done with it: each leg moves up when it can */
#define WORD_FLAG_INSIDE \
	(1ull << 15) /* opened through a mapping: rules judge the end inside, not its outer tuple */
#define WORD_L7_SHIFT 16
#define WORD_GEN_SHIFT 32

/* Key: endpoints in canonical order, `lo` the numerically lower address. ICMP and ICMPv6 queries
 * have the identifier as the requester's port and 0 as the other's, so a request from the other end
 * is another flow. Protocols without ports have 0 for both. */
#define KEY_FLOW 0 /* of packets */
/* Of an end inside and the address outside that it has by a nat rule: the rule's id is in the port of that,
 * and above in the domain. Of the alias: that address and port, and nobody (0, port 0). */
#define KEY_MAPPING 1
#define KEY_PEER 2 /* of an end inside and the address of somebody to whom it has sent, port 0 */
struct flow4_key {
	__be32 lo, hi;
	__be16 lo_port, hi_port;
	__u16 domain; /* routing domain: 0 routed; inline pair n: n << 12 | VLAN */
	__u8 proto;
	__u8 kind; /* KEY_* */
};

struct flow6_key {
	__be32 lo[4], hi[4];
	__be16 lo_port, hi_port;
	__u16 domain;
	__u8 proto;
	__u8 kind;
};

/* What both families keep once for a connection. */
struct flow_core {
	__u64 word;
	__u32 epoch; /* policy that judged it last */
	__u32 rule; /* 24 bits of rule id; high byte: 1 + home worker, 0 = none yet */
	__u32 created; /* tick */
	__u8 from, to; /* zones of opener and of the other end */
	__u16 context; /* identity of the opener's MAC, 0 = none that a policy names */
};

struct flow_count {
	__u64 packets, bytes; /* bytes: IP total length */
};

/* One direction; leg[0] is what endpoint `lo` sends, leg[1] what `hi` sends. Only the CPU that
 * receives this direction writes it. */
#define LEG_WSCALE_MASK 0x0f
#define LEG_WSCALE_SEEN 0x10 /* the SYN carried the window scale option */
#define LEG_FIN 0x20 /* its FIN was seen inside the window */
#define LEG_WINDOW 0x40 /* ack and win are known */
#define LEG_XLAT 0x80 /* on both legs: the flow is translated, xlat and xlat_port are valid */
struct leg {
	__u32 seen; /* tick of the last packet */
	__u32 ack; /* next sequence number that this sender expects from the other */
	__u32 seq_delta; /* added to sequence numbers of this sender (translation, SYN proxy) */
	__u16 win; /* its receive window, unscaled, of the segment that carried ack */
	__u16 route; /* time of the last route look-up, tick >> 2; valid while seen is under 1 s old */
	__u16 nexthop; /* index into nexthops */
	__u16 meter; /* rate limiter, 0 = none */
	__u8 flags;
	__u8 stages; /* STAGE_*: what the worker must do with this direction; 0 = it is not the worker's */
	__be16 xlat_port; /* this sender's port as the other side sees it; valid iff LEG_XLAT */
};

struct flow4 {
	struct flow4_key key; /*   0 */
	struct flow_core core; /*  16 */
	struct flow_count count[2]; /*  40 */
	struct leg leg[2]; /*  72: 24 bytes each */
	__be32 xlat
		[2]; /* 120: address of `lo`, `hi` as the other side sees it; valid iff LEG_XLAT */
};

struct flow6 {
	struct flow6_key key; /*   0 */
	struct flow_core core; /*  40 */
	struct flow_count count[2]; /*  64 */
	struct leg leg[2]; /*  96 */
	__be32 xlat[2][4]; /* 144 */
	__u8 pad[80]; /* 176 */
};

#define GROUP_SLOTS 4

struct flow4_group {
	struct flow4 slot[GROUP_SLOTS];
};

struct flow6_group {
	struct flow6 slot[GROUP_SLOTS];
};

/* ---- Fragments ------------------------------------------------------------------------------ */

#define FRAGMENT_RANGES 8

struct fragment_range {
	__u16 start, end;
};

/* One fragmented datagram whose first fragment was judged. Offsets and ends in bytes of payload. */
struct fragment {
	__be32 src[4], dst[4]; /* IPv4: first element, others 0 */
	__be32 id;
	__u16 domain;
	__u8 proto; /* of the key: what the IP or fragment header names */
	__u8 family; /* 4 or 6; 0 = free */
	__be16 sport, dport; /* of the flow key, in the direction of the datagram */
	__u32 tick; /* of the first fragment */
	__u32 rule; /* that refused it */
	__u16 total; /* payload length once the last fragment was seen, else 0 */
	__u8 reason; /* REASON_NONE: follow the flow; else drop with this reason */
	__u8 ranges; /* used elements of range */
	__u8 transport; /* protocol of the transport header */
	__u8 pad[3];
	struct fragment_range range[FRAGMENT_RANGES]; /* disjoint, not touching, in no order */
};

/* A later fragment that came before its first, on its way to the daemon. That gives the same frame to
 * XDP again, with HELD_AGAIN in its metadata: XDP then drops it if its datagram still is not known. */
#define HELD_MAX 64 /* frames that are held at once */
#define HELD_LIFE 954 /* ticks: 1 s */
#define HELD_BYTES 2048 /* longer frames are not held */
#define HELD_AGAIN 0x53444641u

struct held {
	__be32 src[4], dst[4]; /* the datagram's key, as in struct fragment */
	__be32 id;
	__u16 domain;
	__u8 proto;
	__u8 family;
	__u32 group; /* of the fragment table, where the datagram will be entered */
	__u32 ifindex; /* of arrival */
	__u32 tick;
	__u32 length; /* bytes of frame that are valid */
	__u8 frame[HELD_BYTES];
};

/* ---- Ports and next hops -------------------------------------------------------------------- */

#define PORT_MAX 64
#define PORT_SLOTS 256 /* perfect hash of the interface index: ifindex * port_mul >> 24 */

#define PORT_INLINE 0x01 /* bump in the wire: the peer port is the egress */
#define PORT_VLANS 0x02 /* some zone has VLANs on this port */
#define PORT_FIX_CHECKSUM 0x04 /* complete checksums that are still the bare pseudo-header sum */
#define PORT_UP 0x08

struct port {
	__u32 ifindex; /* 0 = free */
	__u8 id; /* 1..PORT_MAX, key of the device map */
	__u8 flags;
	__u8 zone; /* of untagged frames, ZONE_NONE = none */
	__u8 pair; /* inline pair 1..15, 0 = routed */
	__u8 mac[6];
	__u16 mtu; /* IP packet, without Ethernet header */
	__u16 peer; /* inline: next hop that is the peer port */
	__u16 domain; /* routed: routing domain */
	__be32 ip4; /* source of what the gateway itself sends from here, 0 = none */
	__be32 ip6[4];
	__u8 peer_zone; /* inline: zone of the peer's untagged frames */
	__u8 peer_port; /* inline: id of the peer */
	__u8 pad[6];
};

#define NEXTHOP_NONE 0
#define NEXTHOP_HOST 1 /* the gateway itself */
#define NEXTHOP_PORT 2 /* NEXTHOP_PORT + port id: that port as it is, frames unchanged */
#define NEXTHOP_FIRST 128 /* first slot that look-ups fill */
#define NEXTHOP_MAX 16384
#define NEXTHOP_PROBES 8

/* States. A slot that no look-up chose for NEXTHOP_KEEP ticks may get another next hop: every leg
 * that still trusts its slot was looked up less than a second ago. */
#define NEXTHOP_FREE 0
#define NEXTHOP_CLAIMED 1 /* being filled */
#define NEXTHOP_PENDING 2 /* gateway known, its MAC not */
#define NEXTHOP_READY 3
#define NEXTHOP_KEEP 4096

/* While the daemon lives it asks the kernel every second to keep the neighbours of next hops in use. If
 * it has not for so long, one packet goes by the kernel, which looks whether the neighbour still answers. */
#define NEXTHOP_FED_SHIFT 10 /* 1.07 s */
#define NEXTHOP_HUNGRY 3

struct nexthop {
	__u64 dst; /* destination MAC in the low 48 bits as it stands in the frame; VLAN tag above, 0 = none */
	__u64 src; /* source MAC likewise; IP MTU above */
	__be32 gateway[4]; /* IPv4: first element */
	__u32 state;
	__u32 used; /* tick */
	__u16 vlan; /* tag of the egress, network order, 0 = none */
	__u8 port; /* id */
	__u8 zone; /* of the egress */
	__u8 family;
	__u8 fed; /* tick >> NEXTHOP_FED_SHIFT: the kernel was last asked to care for its neighbour */
	__u8 pad[2];
};

/* ---- Gateway state, counters, events -------------------------------------------------------- */

/* One element, mapped into the daemon. Signed counts, because several CPUs correct them at once. */
struct gateway_state {
	__u32 route_changed; /* tick: routes looked up before this are stale */
	__u32 port_mul; /* of the perfect hash of ports */
	__s64 flows; /* entries in use, both families, overflow included */
	__s64 half_open; /* of them half-open */
	__s64 overflow4, overflow6; /* of them in the overflow tables */
	__u16 ethertypes[8]; /* network order: passed between inline ports; 0 = unused */
	/* Of flows, those of IPv6. Raised after flows and lowered before it, so that neither this nor
	 * flows - flows6 is ever below what a family holds. */
	__s64 flows6;
	__s64 aliases; /* of flows, those that are only the second entry of a translated one */
	__u32 nat_pass; /* elements of nat_passes used so far, modulo 2^32 */
	__s32 held; /* frames that are held, from when XDP gives them away until they come again or are lost */
	__s32 held_max; /* of them at most; 0 = nobody is there to hold them */
	__u32 held_lost; /* of them, those that can never come again */
};

/* What sim and tests put in the place of clock, arrival port and kernel routes. Used only by a
 * program loaded with `simulate` set. */
struct sim_control {
	__u64 now; /* ns */
	__u32 ifindex; /* arrival port */
	__u32 route; /* next hop of the packet's destination, or NEXTHOP_NONE */
	__u32 route_reason; /* with NEXTHOP_NONE: REASON_NO_ROUTE, REASON_ROUTE_BLOCKED ... */
	__u32 local; /* 1: the destination in the packet, before any translation, is the gateway's own */
};

/* What a simulated program says of the packet beside its XDP verdict. */
struct sim_result {
	__u32 reason;
	__u32 rule;
	__u32 action; /* enum action of the deciding rule; ACTION_NONE if none was asked */
	__u32 pass; /* 1 + enum pass_cause, 0 = not passed to the kernel */
	__u32 nexthop;
	__u32 leg; /* 1 + leg index of the flow that counted it, 0 = no flow */
	__u64 word; /* of that flow */
	__u32 stages; /* STAGE_*: what workers would do with it, had it not gone on at once */
	__u32 xlat; /* XLAT_*: what of it was translated */
};

struct counter {
	__u64 packets, bytes;
};

/* Of one rule, on one CPU. Packets that live in flows are counted there and credited here when the
 * flow's slot gets another flow or the flow another rule; RULE_REPLIES only for the former. */
struct rule_counter {
	__u64 packets, bytes;
	__u64 judged; /* times that the rule decided, or in audit mode would have */
	__u32 last; /* tick of the last of them */
	__u32 log_window; /* second of the event rate limit */
	__u32 logged; /* events in it */
	__u32 unlogged; /* events left out so far */
};

/* What became of new flows. Created less evicted and aged is what the table holds. */
struct table_counter {
	__u64 created; /* without those that were reopened */
	__u64 refused;
	__u64 evicted; /* flows that left for another one */
	__u64 revived; /* revoked flows that the policy allowed again */
	__u64 overflowed; /* of created and reopened, those in the overflow tables */
	__u64 reopened; /* connections that were over and began anew: one flow left, one came */
};

enum event_kind {
	EVENT_FLOW_START,
	EVENT_FLOW_END, /* evicted; other ends are the daemon's to write */
	EVENT_DENY,
	EVENT_AUDIT,
	EVENT_DROP, /* for a reason that no rule gave */
};

struct event {
	__u8 kind;
	__u8 family;
	__u8 proto;
	__u8 state; /* enum flow_state */
	__u32 rule;
	__be32 src[4], dst[4]; /* of the opening packet */
	__be16 sport, dport; /* ICMP queries: identifier and 0 */
	__u16 icmp; /* type << 8 | code, of ICMP and ICMPv6 */
	__u8 from, to;
	__u8 reason;
	/* of drops: */
	__u8 port; /* id */
	__u8 packet; /* enum packet_kind */
	__u8 guard; /* the guard dropped it, on its way out by port */
	__u16 vlan;
	__u8 pad[2];
	__u32 created;
	__u32 tick;
	struct flow_count count[2]; /* opener's direction first */
	__u8 ethernet[14]; /* of drops: the first bytes of the frame */
	__u8 pad2[2];
};

/* Of one reason, on one CPU: the rate limit of its events. */
struct drop_log {
	__u64 unlogged; /* events left out so far */
	__u32 window; /* second of the limit */
	__u32 logged; /* events in it */
};

/* Where a packet is copied to whoever captures. */
enum tap_point {
	TAP_IN, /* it arrived: as it came, with what becomes of it */
	TAP_OUT, /* it leaves: as it goes */
	TAP_DROP, /* it is dropped: as it came, or as the kernel would have sent it */
};

/* A packet for whoever captures, in front of its first bytes. */
struct tapped {
	__u64 time; /* ns of CLOCK_MONOTONIC */
	__u32 length; /* of the frame, without the tag beside it */
	__u32 captured; /* bytes that follow */
	__u32 rule;
	__u32 epoch;
	__u16 vlan_proto; /* network order: of a tag beside the frame, 0 = none; the kernel's packets only */
	__u16 vlan_tci; /* host order */
	__u8 point; /* enum tap_point */
	__u8 port; /* id: of arrival, or by which it leaves */
	__u8 reason;
	__u8 action; /* enum action of the rule */
	__u8 pass; /* 1 + enum pass_cause, 0 = not for the kernel */
	__u8 egress; /* id of the port by which it leaves; 0 = it does not, or not by XDP */
	__u8 from, to; /* zones */
	__u8 kind; /* enum packet_kind */
	__u8 guard; /* the kernel sends it: its own, or in XDP's stead if pass is not 0 */
	__u8 pad[2];
};

/* Of one port and CPU. Matched less lost is what whoever captures can read. */
struct tap_counter {
	__u64 seen; /* packets that the filter was asked about */
	__u64 matched;
	__u64 lost; /* of them: no room */
};

/* In front of a packet passed up that the kernel may forward; a tc program turns it into skb->mark. */
struct pass_mark {
	__u32 magic;
	__u32 cause;
};
#define PASS_MAGIC 0x5d901cafu
#define PASS_SKB_MARK 0x5d900000u
#define PASS_SKB_MARK_MASK 0xffff0000u

#include "abi_work.h"
#include "abi_set.h"
#include "abi_forest.h"
#include "abi_nat.h"
#include "abi_pipe.h"

#endif
