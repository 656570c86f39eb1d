/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* abi_set.h: what the programs share with Go about large sets. Part of abi.h, which includes it. */
#ifndef SOFTDPU_ABI_SET_H
#define SOFTDPU_ABI_SET_H

/* Which field of a key is looked for in a set. */
enum set_field {
	SET_SRC,
	SET_DST,
	SET_CONTEXT,
	SET_FROM,
	SET_TO,
	SET_PROTO,
};

#define SET4_EDGES 15
#define SET6_EDGES 7
#define SET_LEVELS 8 /* of a tree: 15 million edges at the least */

/* Large sets are search trees in arrays, a node in one or two cache lines. The edges of a set are the
 * values at which membership changes, ascending; the children of node k are k * (EDGES + 1) + 1 and
 * those behind it. Bit n of `inside` says whether a value with n of the node's edges at or below it is in
 * the set, unless a child knows better. Places behind the last edge repeat it. */
struct set4_node {
	__u32 edge[SET4_EDGES]; /* host order, of IPv4 addresses and of what is shorter */
	__u32 inside;
};

struct set6_node {
	__u64 hi[SET6_EDGES], lo[SET6_EDGES];
	__u64 inside;
	__u64 pad;
};

#endif
