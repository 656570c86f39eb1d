/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* maps.h: every tunable, and every map but those of dispatch.h. Sizes marked "set at load" are written
 * into the spec by Go. */
#ifndef SOFTDPU_MAPS_H
#define SOFTDPU_MAPS_H

#include "abi.h"
#include "dispatch.h"

/* Whether packets may be translated. The programs are compiled with translation and without: of what a
 * tunable turns off the verifier leaves the tests in place, and the shape that it gave to the code around.
 * __translation begins a function that only translation calls. */
#ifdef WITHOUT_NAT
#define have_nat 0
#define __translation static __noinline __attribute__((unused))
#else
#define have_nat 1
#define __translation __noinline
#endif

/* ---- Tunables: constants to the verifier, which removes what they turn off ------------------- */

volatile const __u64 hash_seed; /* secret of the flow hash */
volatile const __u32 group4_mask; /* number of IPv4 groups - 1; a power of two - 1 */
volatile const __u32 group6_mask;
volatile const __u32
	stripe_bits; /* log2 of the lock stripes in use, well below log2 of the groups */
volatile const __s64 flows_max; /* entries, both families */
volatile const __s64 half_open_max; /* of them half-open */
volatile const __u32 overflow_max; /* entries of each overflow table */
volatile const __u32 fragment_mask; /* number of fragment groups - 1 */
volatile const __u8 simulate; /* sim_control in the place of clock, port and routes */
volatile const __u8 have_macs; /* the policy names MAC addresses */
volatile const __u32 event_rate; /* events a second, rule or reason, and CPU */
volatile const __u64 drop_events; /* by enum reason: whether drops are told */
volatile const __u8 have_workers; /* flows may need them */
volatile const __u8 force_stages; /* STAGE_* of every new flow, whatever its rule asks for */
volatile const __u8 have_mss; /* some port or rule clamps the MSS of SYNs */
volatile const __u8 have_mapping; /* there may be endpoint-independent mappings */
volatile const __u8
	have_filtering; /* some of the policy's let others in than the flows' other ends */
volatile const __u32 nat_layout; /* number of the generation that numbered nat_ports */
volatile const __u8 have_source_limit; /* flows may count in nat_tallies */

/* ---- Flow table ----------------------------------------------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct flow4_group);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct flow6_group);
} flows6 SEC(".maps");

/* No preallocation: a deleted element is reused only after an RCU grace period. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct flow4_key);
	__type(value, struct flow4);
} overflow4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct flow6_key);
	__type(value, struct flow6);
} overflow6 SEC(".maps");

/* Creation locks. A map with spin locks cannot be mapped, so they stand apart from the groups. */
struct stripe {
	struct bpf_spin_lock lock;
	__u32 pad[15]; /* a cache line each */
};

#define STRIPES 1024

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STRIPES);
	__type(key, __u32);
	__type(value, struct stripe);
} stripes SEC(".maps");

/* ---- Fragments ------------------------------------------------------------------------------ */

#define FRAGMENT_SLOTS 4

struct fragment_group {
	struct bpf_spin_lock lock;
	__u32 pad;
	struct fragment slot[FRAGMENT_SLOTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct fragment_group);
} fragments SEC(".maps");

/* Never full: it has room for more than HELD_MAX of struct held. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} held_fragments SEC(".maps");

/* ---- Ports and next hops -------------------------------------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_SLOTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* Zone of a tagged frame: key is port id << 12 | VLAN id. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, (PORT_MAX + 1) * 4096);
	__type(key, __u32);
	__type(value, __u8);
} vlan_zones SEC(".maps");

/* Most that a SYN over IPv4 that comes or leaves by a port may ask for, by the port's id: 0 = whatever it
 * does; MSS6_LESS below over IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_MAX + 1);
	__type(key, __u32);
	__type(value, __u64);
} port_mss SEC(".maps");

/* Interfaces by which routes may leave: ports and the VLAN devices on top of them. */
struct egress {
	__u8 port; /* id */
	__u8 zone;
	__u16 vlan; /* tag to push, network order, 0 = none */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* ifindex */
	__type(value, struct egress);
} egresses SEC(".maps");

/* Interface from which the kernel is asked for a tagged frame's route: the VLAN device of
 * (port id << 12 | VLAN id). Without one the port itself asks. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32); /* ifindex */
} vlan_devices SEC(".maps");

/* The gateway's own and its broadcast addresses: bpf_fib_lookup gives one answer for them and for
 * "no route". IPv4 in addr[0]. */
struct local_key {
	__u32 prefixlen; /* 32 + the prefix's own length */
	__u32 family; /* 4 or 6 */
	__be32 addr[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct local_key);
	__type(value, __u32);
} locals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NEXTHOP_MAX);
	__type(key, __u32);
	__type(value, struct nexthop);
} nexthops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, PORT_MAX + 1);
	__type(key, __u32); /* port id */
	__type(value, __u32);
} devices SEC(".maps");

/* Where the gateway's own program is while a pipeline stands in its place. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} after_pipes SEC(".maps");

/* Who spoke to the host through a pipeline, and the tick of the last packet. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PIPE_HOSTS);
	__type(key, struct pipe_host);
	__type(value, __u32);
} pipe_hosts SEC(".maps");

/* ---- Gateway -------------------------------------------------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gateway_state);
} gateway SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u8[6]);
	__type(value, __u16); /* identity */
} macs SEC(".maps");

/* Large sets of the generation, one behind the other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct set4_node);
} set_nodes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct set6_node);
} set_nodes6 SEC(".maps");

/* Forests of the generation, of all pipes and both families, one behind the other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, __u64);
} forest_nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct forest_rule4);
} forest_rules4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct forest_rule6);
} forest_rules6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct forest_check);
} forest_checks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FOREST_BANKS);
	__type(key, __u32);
	__type(value, struct forest_bank);
} forest_roots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PASS_LEN);
	__type(key, __u32);
	__type(value, struct counter);
} passes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); /* set at load: rules + 1 */
	__type(key, __u32);
	__type(value, struct rule_counter);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table_counter);
} table_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASON_LEN);
	__type(key, __u32);
	__type(value, struct drop_log);
} drop_logs SEC(".maps");

/* Answers to refused packets, per hash of their source: tenths of a second and answers in it. */
struct reject_bucket {
	__u32 second;
	__u32 answers;
};

#define REJECT_BUCKETS 4096
#define REJECT_RATE 10

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REJECT_BUCKETS);
	__type(key, __u32);
	__type(value, struct reject_bucket);
} rejects SEC(".maps");

/* ---- Workers -------------------------------------------------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load: twice the groups of a family */
	__type(key, __u32);
	__type(value, struct cells);
} leg_cells SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, (PORT_MAX + 1) * QUEUE_MAX);
	__type(key, __u32); /* QUEUE_INDEX */
	__type(value, struct worker_queue);
} worker_queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, (PORT_MAX + 1) * QUEUE_MAX);
	__type(key, __u32); /* QUEUE_INDEX */
	__type(value, __u32);
} sockets SEC(".maps");

/* Of the generation's rules, by id. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct rule_work);
} rule_works SEC(".maps");

/* ---- Translation ---------------------------------------------------------------------------- */

/* Of the generation's nat rules, by id. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load: nat rules + 1 */
	__type(key, __u32);
	__type(value, struct nat_rule);
} nat_rules SEC(".maps");

/* Indices of servers, one run for each rule with servers. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, __u16);
} nat_buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct nat_server);
} nat_servers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct nat_bitmap);
} nat_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct nat_device);
	__type(value, struct nat_address);
} nat_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); /* set at load: nat rules + 1 */
	__type(key, __u32);
	__type(value, struct nat_counter);
} nat_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NAT_TALLY_GROUPS);
	__type(key, __u32);
	__type(value, struct nat_tallies);
} nat_tallies SEC(".maps");

/* Used one after the other: gateway_state.nat_pass counts them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NAT_PASSES);
	__type(key, __u32);
	__type(value, struct nat_pass);
} nat_passes SEC(".maps");

/* What the kernel may have to make an error about, and no flow knows. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, NAT_HALVES);
	__type(key, struct nat_half);
	__type(value, struct nat_was);
} nat_halves SEC(".maps");

/* ---- Guards and simulation -------------------------------------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} guards SEC(".maps");

struct sim {
	struct sim_control control;
	struct sim_result result;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sim);
} sims SEC(".maps");

#endif
