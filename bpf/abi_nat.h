/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* abi_nat.h: what the programs share with Go about translation. Part of abi.h, which includes it. */
#ifndef SOFTDPU_ABI_NAT_H
#define SOFTDPU_ABI_NAT_H

/* What of a packet changes, or came changed. docs/PACKET-PATH.md, section 15. */
#define XLAT_SRC 0x01 /* source address or port */
#define XLAT_DST 0x02 /* destination address or port */
#define XLAT_REPLY 0x04 /* it was found by the alias of its flow */
#define XLAT_INSIDE 0x08 /* while it is judged: by the destination that it leaves to */

/* A translated flow's second entry, in a slot of the same table: its key is what the other side sees, in
 * canonical order, and the flow is found by `target`. State FLOW_ALIAS; WORD_FLAG_HI_OPENED says that `hi`
 * of its own key is the end that opened the flow. docs/PACKET-PATH.md, section 15. */
#define NAT_NO_PORTS 0xffffffffu
struct alias4 {
	struct flow4_key key; /*   0 */
	__u64 word; /*  16: as of a flow */
	__u32 hash; /*  24: of target */
	__u32 ports; /*  28: element of nat_ports in which its port is taken, or NAT_NO_PORTS */
	struct flow4_key target; /*  32 */
	__u32 layout; /*  48: of nat_ports: the number of the generation that numbered them */
	__u32 source_rule, destination_rule; /*  52: of nat_rules, 0 = none */
	__u32 created; /*  60: tick */
	__u16 port; /*  64: taken in nat_ports, host order */
	__u8 mapped; /*  66: MAPPED_* */
	__u8 pad0; /*  67 */
	__u32 tally; /*  68: 1 + place in nat_tallies where it counts, 0 = nowhere */
	__u8 pad[56]; /*  72 */
};

struct alias6 {
	struct flow6_key key; /*   0 */
	__u64 word; /*  40 */
	__u32 hash; /*  48 */
	__u32 ports; /*  52 */
	struct flow6_key target; /*  56 */
	__u32 layout; /*  96 */
	__u32 source_rule, destination_rule; /* 100 */
	__u32 created; /* 108 */
	__u16 port; /* 112 */
	__u8 mapped; /* 114 */
	__u8 pad0; /* 115 */
	__u32 tally; /* 116 */
	__u8 pad[136]; /* 120 */
};

/* What lives at least as long as the flow of an alias. docs/PACKET-PATH.md, section 15.12. */
#define MAPPED_SOURCE 0x01 /* the mapping by which its opener leaves */
#define MAPPED_PEER 0x02 /* that its opener has sent to its other end */
#define MAPPED_DESTINATION 0x04 /* the mapping by which its opener came in */

/* What a nat rule does with the end of a flow that it is about. */
enum nat_kind {
	NAT_NONE, /* there is no such rule */
	NAT_KEEP, /* nothing: what matches is left as it is */
	NAT_MASQUERADE, /* source: the address of the device by which it leaves, and a port */
	NAT_SOURCE, /* source: an address of the pool, and a port */
	NAT_DESTINATION, /* destination: one of its servers */
	NAT_PREFIX_SOURCE, /* source: the same host of another prefix */
	NAT_PREFIX_DESTINATION, /* destination: likewise */
};

#define NAT_HAIRPIN \
	0x01 /* of NAT_DESTINATION: flows from the zone of the server are masqueraded too */
#define NAT_BY_CONNECTION \
	0x02 /* of NAT_DESTINATION: servers are chosen by source and port, not by source */

/* Of NAT_MASQUERADE and NAT_SOURCE: */
#define NAT_MAPPING 0x04 /* an end leaves as the same address and port, whoever the other end is */
#define NAT_FILTER_ANY 0x08 /* with NAT_MAPPING: everybody may send there */
#define NAT_FILTER_ADDRESS 0x10 /* with NAT_MAPPING: every host may to which the end has sent */

/* One nat rule, by its id. */
struct nat_rule {
	__be32 address
		[4]; /* NAT_SOURCE: first of the pool; NAT_PREFIX_*: the prefix that is written */
	__u32 addresses; /* NAT_SOURCE: in the pool; they follow each other */
	__u32 ports; /* its first element of nat_ports, or NAT_NO_PORTS: it chooses none */
	__u32 bucket, buckets; /* NAT_DESTINATION: of nat_buckets */
	__u8 kind; /* enum nat_kind */
	__u8 flags;
	__u8 family; /* 4 or 6; of what it writes */
	__u8 prefix; /* NAT_PREFIX_*: length in bits of address */
	__u16 adjust; /* NAT_PREFIX_* of IPv6: what keeps checksums as they are (RFC 6296), added to one word */
	__u16 pad;
	__u32 source_limit; /* flows that one source may have by it, 0 = any number */
};

/* Where a NAT_DESTINATION sends a flow. */
struct nat_server {
	__be32 address[4]; /* IPv4: first element */
	__be16 port; /* 0 = as it was */
	__u16 pad;
	__u32 pad2;
};

/* Which source ports of one address, protocol and part of the remote ends are taken: TCP and UDP ports,
 * or ICMP identifiers. Those that no rule allows are taken for good. Element of nat_ports:
 * nat_rule.ports + ((address * NAT_CLASSES) + class) * NAT_SLICES + slice. Bits are hints: that the
 * other tuple of a flow has no entry yet is what counts. */
#define NAT_CLASS_TCP 0
#define NAT_CLASS_UDP 1
#define NAT_CLASS_ICMP 2
#define NAT_CLASSES 3
#define NAT_SLICES 4
#define NAT_TRIES 8
struct nat_bitmap {
	__u64 full[16]; /* bit n of word w: word 64 * w + n of taken has no bit left */
	__u64 taken[1024]; /* bit n of word w: port 64 * w + n */
};

/* Addresses that masquerading uses, of the device of a port and VLAN. */
struct nat_device {
	__u16 port; /* id */
	__be16 vlan; /* 0 = untagged */
};

struct nat_address {
	__be32 ip4; /* 0 = none */
	__be32 ip6[4]; /* 0 = none */
};

/* What became of new flows under one nat rule, on one CPU. */
struct nat_counter {
	__u64 flows; /* translated */
	__u64 exhausted; /* refused: no port was free */
	__u64 conflicts; /* refused: the translation was another flow's */
	__u64 limited; /* refused: their source had as many as it may */
};

/* How many flows each source has by a rule with a limit, in groups of one cache line. A word is tag | count:
 * the tag is the upper part of the hash of rule and source; with count 0 the word is free. A source's word
 * is in one of two groups. Place n is word n % NAT_TALLY_WORDS of group n / NAT_TALLY_WORDS. */
#define NAT_TALLY_GROUPS 16384
#define NAT_TALLY_WORDS 8
#define NAT_TALLY_COUNT 0xffffffull
struct nat_tallies {
	__u64 word[NAT_TALLY_WORDS];
};

/* A packet that the kernel carries on: its destination is translated, its source not yet, since the
 * kernel takes no packet from an address of its own. The guard does the rest. Element n + 1 is named by
 * the mark, above the cause. */
#define NAT_PASSES 4095
#define PASS_CAUSE_BITS 4
struct nat_pass {
	__be32 src[4], to[4]; /* of the packet, and what it becomes */
	__be16 sport, to_port;
	__u8 family; /* 0 = never used */
	__u8 proto;
	__u16 pad;
};

/* A packet both of whose ends are translated, as the kernel carries it on: neither what came nor what
 * leaves, so that no flow knows it. By what it is, what its destination was. */
#define NAT_HALVES 1024
struct nat_half {
	__be32 src[4], dst[4]; /* IPv4: first element, others 0 */
	__be16 sport, dport; /* as of a flow's key */
	__u8 family;
	__u8 proto;
	__u16 pad;
};

struct nat_was {
	__be32 dst[4];
	__be16 dport;
	__u16 pad;
};

#endif
