/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* abi_forest.h: a pipe of many entries, as decision trees in arrays; part of abi.h.
 *
 * A forest is a few trees of one family, each over some of the entries. A node of a tree is a reference of 64
 * bits. It cuts: a window of bits of one word of the key is the number of the child, of 1 << bits that stand one
 * behind the other. Or it is a leaf: a few rules, one behind the other in the entries' order, that are compared
 * with the whole key. An entry may be several rules. The roots stand in the order of their first entries, so that
 * what one tree finds can spare the next. Audit entries have a tree of their own.
 *
 * A forest changes while it is in use: what changes is written to places that no packet can come to, as far up as
 * a root, and the roots to another bank. The bank in a packet's key says which forest it sees. */
#ifndef SOFTDPU_ABI_FOREST_H
#define SOFTDPU_ABI_FOREST_H

enum forest_limit {
	FOREST_TREES = 16, /* most of a forest */
	FOREST_DEPTH = 16, /* most cuts from root to leaf */
	FOREST_LEAF = 64, /* most rules of a leaf */
	FOREST_CHECKS = 6, /* most of an entry */
	FOREST_AUDITS = 64, /* the same of the tree of audit entries */
	FOREST_ENTRIES = 4, /* struct forest_entry in the place of a struct forest_rule4 */
	FOREST_BANKS = 8, /* of roots; a power of two */
	FOREST_ROOTS = 128, /* most of all pipes of a program */
};

/* Bits 0 to 31 of a reference are where the children or rules begin. Above them: */
enum forest_node {
	FOREST_BITS_SHIFT = 32, /* length of the window; 0 = a leaf */
	FOREST_BITS_MASK = 0x1f,
	FOREST_SHIFT_SHIFT = 37, /* lowest bit of the window */
	FOREST_SHIFT_MASK = 0x3f,
	FOREST_WORD_SHIFT = 43, /* which 64-bit word of struct classify_key */
	FOREST_WORD_MASK = 0x7,
	FOREST_COUNT_SHIFT = 46, /* rules of a leaf */
	FOREST_COUNT_MASK = 0x7f,
};

enum forest_flag {
	FOREST_EXACT_PROTO = 0x01, /* as in the rule; else any */
	FOREST_EXACT_FROM = 0x02,
	FOREST_EXACT_TO = 0x04,
	FOREST_CHECKED = 0x08, /* the entry has more to ask */
};

/* What a rule asks beside addresses: ranges of ports, first and last - first, and single values. */
struct forest_ports {
	__u16 sport, sport_span;
	__u16 dport, dport_span;
};

struct forest_who {
	__u32 entry; /* its number, not 0, ascending in the entries' order; not all numbers are used */
	__u8 proto;
	__u8 from;
	__u8 to;
	__u8 flags; /* FOREST_EXACT_*, FOREST_CHECKED */
};

/* What an entry answers. Behind the rules of a leaf of IPv4 stand those of each, in as many places of rules as it takes. */
struct forest_entry {
	__u32 verdict;
	__u32 check; /* the first, of one that is checked */
};

struct forest_rule4 {
	__u32 src, src_span; /* first and last - first, host order */
	__u32 dst, dst_span;
	struct forest_ports ports;
	struct forest_who who;
};

struct forest_prefix {
	__u64 hi, lo;
	__u64 hi_mask, lo_mask;
};

struct forest_rule6 {
	struct forest_prefix src, dst;
	struct forest_ports ports;
	struct forest_who who;
	struct forest_entry entry;
	__u64 pad[5]; /* two cache lines */
};

/* Where the search of a tree begins. */
struct forest_root {
	__u64 node;
	__u32 lowest; /* no entry of it stands before; all ones: there is none */
	__u32 pad;
};

struct forest_bank {
	struct forest_root roots[FOREST_ROOTS];
};

/* A field must be in a large set as well. */
struct forest_check {
	__u32 first, nodes; /* of the set */
	__u32 field; /* enum set_field */
	__u32 last; /* no check of the entry follows */
};

#endif
