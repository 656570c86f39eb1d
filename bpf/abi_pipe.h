/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* abi_pipe.h: what a pipeline of match/action pipes (docs/pipes.md) shares between its program and Go.
 *
 * A packet is parsed into words of 32 bits in host order, which pipes compare and actions change; what was
 * changed is written back into the packet before it leaves. A word of what the packet lacks is 0. */
#ifndef SOFTDPU_ABI_PIPE_H
#define SOFTDPU_ABI_PIPE_H

/* Words of struct pipe_fields. Of fields longer than 32 bits the first word is the most significant. */
enum pipe_word {
	PIPE_PORT, /* id of the port that it came by */
	PIPE_MARK, /* 0 at first; the operator's */
	PIPE_META0, /* scratch, 0 at first */
	PIPE_META1,
	PIPE_META2,
	PIPE_META3,
	PIPE_RANDOM, /* 16 bits, drawn once a packet */
	PIPE_COLOR, /* enum pipe_color, of the last meter */
	PIPE_LENGTH, /* bytes of the frame as it came */
	PIPE_HAS, /* enum pipe_has: what the packet has */
	PIPE_ETH_SRC, /* 16 upper bits, then 32 */
	PIPE_ETH_DST = PIPE_ETH_SRC + 2,
	PIPE_ETH_TYPE = PIPE_ETH_DST + 2, /* behind the tags */
	PIPE_VLANS, /* number of tags: 0, 1 or 2 */
	PIPE_VLAN0_ID, /* the outer tag */
	PIPE_VLAN0_PCP,
	PIPE_VLAN1_ID,
	PIPE_VLAN1_PCP,
	PIPE_IP_PROTO, /* behind IPv6's extension headers */
	PIPE_IP_TTL,
	PIPE_IP_DSCP,
	PIPE_IP_ECN,
	PIPE_IP_LENGTH, /* bytes with the IP header */
	PIPE_IP_ID, /* IPv4 alone */
	PIPE_IP_FRAGMENT, /* enum pipe_fragment */
	PIPE_IP_DF,
	PIPE_IP_LABEL, /* IPv6's flow label */
	PIPE_IP_SRC, /* four words; IPv4 in the first */
	PIPE_IP_DST = PIPE_IP_SRC + 4,
	PIPE_L4_SPORT = PIPE_IP_DST + 4, /* of TCP and UDP */
	PIPE_L4_DPORT,
	PIPE_TCP_FLAGS, /* FIN 1 to CWR 0x80 */
	PIPE_TCP_SEQ,
	PIPE_TCP_ACK,
	PIPE_ICMP_TYPE, /* of ICMP and ICMPv6 */
	PIPE_ICMP_CODE,
	PIPE_ICMP_IDENT,
	PIPE_ESP_SPI,
	PIPE_ESP_SEQ,
	PIPE_VXLAN_VNI,
	PIPE_CT_STATE, /* enum pipe_ct_state, of the last connection tracking pipe */
	PIPE_RAW0, /* four bytes at an offset that the pipeline names, the first one the most significant */
	PIPE_RAW1,
	PIPE_RAW2,
	PIPE_RAW3,
	/* from here on no fields, but the walk's own */
	PIPE_TICK, /* time */
	PIPE_WRITTEN, /* enum pipe_written: what actions changed */
	PIPE_MIRROR, /* 1 + number of the group of ports that gets a copy; 0 = none */
	PIPE_INDEX, /* entry of an ordered list that the packet is forwarded to */
	PIPE_WORDS = 64,
};

/* Bits of PIPE_HAS. A match on a field is also one on the bit of what the field is in. Behind the header of
 * a later fragment there is nothing that anybody knows. */
enum pipe_has {
	PIPE_HAS_VLAN0 = 1 << 0,
	PIPE_HAS_VLAN1 = 1 << 1,
	PIPE_HAS_IPV4 = 1 << 2,
	PIPE_HAS_IPV6 = 1 << 3,
	PIPE_HAS_TCP = 1 << 4,
	PIPE_HAS_UDP = 1 << 5,
	PIPE_HAS_PORTS = 1 << 6, /* TCP or UDP */
	PIPE_HAS_ICMP = 1 << 7, /* ICMP or ICMPv6 */
	PIPE_HAS_ESP = 1 << 8,
	PIPE_HAS_VXLAN = 1 << 9, /* UDP to port 4789 whose I flag is set */
	PIPE_HAS_IP = 1 << 10, /* IPv4 or IPv6 */
	PIPE_HAS_CHECKSUM = 1 << 11, /* an IPv4 header's checksum that is right; IPv6 always */
	PIPE_HAS_RAW0 = 1 << 12, /* the frame reaches that far */
	PIPE_HAS_RAW1 = 1 << 13,
	PIPE_HAS_RAW2 = 1 << 14,
	PIPE_HAS_RAW3 = 1 << 15,
};

/* Bits of PIPE_WRITTEN. */
enum pipe_written {
	PIPE_WROTE_ETH = 1 << 0, /* addresses */
	PIPE_WROTE_VLAN = 1 << 1, /* number or content of tags */
	PIPE_WROTE_TTL = 1 << 2,
	PIPE_WROTE_TOS = 1 << 3, /* DSCP or ECN */
	PIPE_WROTE_IP = 1 << 4, /* addresses */
	PIPE_WROTE_PORTS = 1 << 5,
};

enum pipe_fragment { PIPE_FRAGMENT_NONE, PIPE_FRAGMENT_FIRST, PIPE_FRAGMENT_LATER };
enum pipe_color { PIPE_GREEN, PIPE_YELLOW, PIPE_RED };
enum pipe_ct_state { PIPE_CT_NONE, PIPE_CT_OPENING, PIPE_CT_ESTABLISHED, PIPE_CT_CLOSING };

/* Where a packet goes: kind << PIPE_FORWARD_SHIFT | number. 0 of an entry: as its pipe says. The number of
 * PIPE_TO_STAGE: id of the port by which the packet leaves | id of the one that gets a copy, or 0, <<
 * PIPE_STAGE_COPY | STAGE_* << PIPE_STAGES, and with PIPE_STAGE_BYPASS it leaves without the stages while no worker
 * takes it. */
enum pipe_forward {
	PIPE_FORWARD_SHIFT = 24,
	PIPE_FORWARD_MASK = (1 << 24) - 1,
	PIPE_TO_DROP = 1, /* number: enum reason; 0 = pipe-drop */
	PIPE_TO_HOST, /* the kernel, marked as judged */
	PIPE_TO_POLICY, /* the gateway's own pipes: flows, translation, rules */
	PIPE_TO_PORT, /* id of a port */
	PIPE_TO_PORTS, /* number of a group of ports: a copy to each (mirrors, flooding) */
	PIPE_TO_STAGE, /* a worker, which does its stages and sends it on: see below */
	PIPE_TO_PIPE, /* number of a pipe: between pipes alone, never what a pipeline answers */
};

enum pipe_stage {
	PIPE_STAGE_PORT = 0xff, /* mask */
	PIPE_STAGE_COPY = 8,
	PIPE_STAGES = 16,
	PIPE_STAGE_MASK = 0x7f, /* of STAGE_* */
	PIPE_STAGE_BYPASS = 1 << 23,
};

enum pipe_limit {
	PIPE_PIPES = 64, /* most of a pipeline */
	PIPE_VALUES = 8, /* most words of an entry's own operands */
	PIPE_KEY = 12, /* most words of an exact match */
	PIPE_METERS = 1024,
	PIPE_GROUPS = 64, /* of ports */
	PIPE_BUCKET = 8, /* slots */
	PIPE_TRIES = 1024, /* tables of prefixes without an exact part */
	PIPE_ADDRESS =
		4, /* word of a key at which the address stands whose longest prefix is sought */
};

/* Where a raw field begins. */
enum pipe_base { PIPE_BASE_L2, PIPE_BASE_L3, PIPE_BASE_L4, PIPE_BASE_PAYLOAD };

/* An entry of a pipe, two cache lines. The first is written by packets; of the second, and of what decides, only
 * places are written that no packet can find yet. */
struct pipe_entry {
	__u64 packets; /* added atomically */
	__u64 bytes; /* of frames as they came */
	__u32 used; /* tick of the last packet */
	__u32 forward; /* enum pipe_forward; 0 = the pipe's */
	__u16 action; /* 1 + number of the pipe's action template; 0 = none */
	__u16 meter; /* 1 + number of the meter; 0 = none */
	__u32 number; /* the entry's number in its pipe */
	__u32 value[PIPE_VALUES]; /* operands that its action template leaves to entries */
	__u32 key[PIPE_KEY]; /* of an exact match, masked */
	__u32 counter; /* place of the counter that entries share; 0 = none */
	__u16 mirror; /* 1 + number of the mirror; 0 = none */
	__u16 flags; /* enum pipe_entry_flag */
	__u32 age; /* ticks: unused for longer it is told of; 0 = never */
	__u32 rank; /* of a control pipe in tables: the lowest one decides */
};

enum pipe_entry_flag { PIPE_ENTRY_COUNTS = 1 };

/* Slots of exact matches: tag << 32 | place of the entry in pipe_entries; 0 = free. One load tells both. The
 * tag is the upper half of the hash, never 0, and no two slots of a bucket have the same. */
struct pipe_bucket {
	__u64 slot[PIPE_BUCKET];
};

/* A table of exact matches is the buckets first to first + mask of pipe_buckets. A key is in bucket h & mask of them,
 * or in the one that it has in common with nobody who has another tag: (h & mask) ^ ((tag * PIPE_OTHER) >> 8 | 1) & mask.
 * h is the lower half of the hash (pipe_table.h). An entry stays in its bucket as long as it is there, so that packets
 * find it at any time. */
#define PIPE_OTHER 0x9e3779b1u

/* Prefixes are search trees over the addresses at which the longest prefix changes, in arrays. One 64-bit word tells a
 * table: place << 8 | shift, where pipe_roots[place + (upper 32 bits of the address >> shift)] is the word for that part of the
 * addresses, and shift = 32 stands for a single one (abi_set.h says how the nodes of a tree lie): place of its first
 * node << 24 | number of nodes; of a part without a node, place of the entry << 24; of a part that
 * is divided again, place of its first root << 32 | number of bits << 24 | 0xffffff, where these bits follow those that led there. All that a packet can find stands
 * still; what changes is built beside it, and comes in force by a store of the table's word. */
#define PIPE_EDGES4 15
#define PIPE_EDGES6 6
#define PIPE_TRIE_LEVELS 12
#define PIPE_TRIE_PARTS 3 /* that a part is in */

/* value[n] is the place in pipe_entries (0 = none) for addresses with n of the edges at or below them, unless a child
 * knows better. Places behind the last edge repeat it, and its value. */
struct pipe_node4 {
	__u32 edge[PIPE_EDGES4];
	__u32 pad;
	__u32 value[PIPE_EDGES4 + 1];
};

struct pipe_node6 {
	__u64 hi[PIPE_EDGES6], lo[PIPE_EDGES6];
	__u32 value[PIPE_EDGES6 + 1];
	__u32 pad;
};

enum pipe_meter_kind { PIPE_METER_RFC2697 = 1, PIPE_METER_RFC2698, PIPE_METER_RFC4115 };
enum pipe_meter_flag { PIPE_METER_AWARE = 1, PIPE_METER_PACKETS = 2 };

/* Rates in units (bytes or packets) a second, sizes in units. Tokens count in billionths of units, and time in ns:
 * so nothing is ever rounded. */
struct pipe_meter {
	__u32 kind; /* 0 = none */
	__u32 flags;
	__u64 rate[2]; /* CIR; PIR (2698), EIR (4115), unused (2697) */
	__u64 size[2]; /* CBS; PBS (2698), EBS (4115, 2697) */
	__u64 fill
		[2]; /* ns after which a bucket is full whatever was in it; of 2697 the first: both */
};

/* What a packet is to a pipeline. */
struct pipe_fields {
	__u32 word[PIPE_WORDS];
	__u32 key[PIPE_KEY]; /* what is looked up, masked */
	struct classify_key acl; /* the same for ACL pipes */
	__u16 domain; /* routing domain in which it came, as arrive() in xdp.c has it */
	__u8 pad[6];
};

/* An end that spoke to the host because a pipeline said so. What the host answers leaves without a flow or a rule: the
 * guard looks it up. Ports are those of TCP and UDP; of echo requests the identifier is the other end's. */
struct pipe_host {
	__be32 host[4], other[4]; /* IPv4: first element, others 0 */
	__be16 host_port, other_port;
	__u8 proto;
	__u8 family;
	__u8 port; /* id of the one that it spoke by, and that answers leave by: who can forge addresses of another
		    * network gets nothing out into that one */
	__u8 pad;
};
#define PIPE_HOSTS 8192
#define PIPE_ANSWERS 3433227 /* ticks: one hour behind the last packet */

/* A packet's walk, as a program that traces tells it. */
struct pipe_trace {
	__u64 ns; /* of the boot-time clock without sleep */
	__u32 port; /* id; 0: by none */
	__u32 forward; /* enum pipe_forward: where it went in the end */
	__u32 length; /* bytes of the frame as it came */
	__u32 steps; /* valid of step */
	struct pipe_trace_step {
		__u32 pipe; /* number */
		__u32 place; /* of the entry that matched; 0 = none */
	} step[PIPE_PIPES];
	__u8 head[128]; /* of the frame as it came */
};

#endif
