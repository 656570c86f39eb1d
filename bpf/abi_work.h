/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* abi_work.h: what the programs share with Go about workers. Part of abi.h, which includes it. */
#ifndef SOFTDPU_ABI_WORK_H
#define SOFTDPU_ABI_WORK_H

/* What a worker does with a packet, in this order. docs/PACKET-PATH.md, section 14. */
#define STAGE_FORWARD 0x01 /* nothing but carrying it on */
#define STAGE_MIRROR 0x02 /* a copy goes to a monitor port */

#define QUEUE_MAX 64 /* receive queues of a port that workers can serve */
/* Place of a port's queue in worker_queues and in the map of sockets. */
#define QUEUE_INDEX(port, queue) ((port) * QUEUE_MAX + (queue))

/* Ticks after which a worker that gave no sign of life counts as full. */
#define WORKER_SILENT 48 /* 50 ms */

/* One queue of one port, between XDP and the worker that serves it. Outstanding is sent - taken - lost,
 * modulo 2^32. XDP and the worker write a cache line each. */
struct worker_queue {
	__u32 sent; /* packets that XDP sent to the socket */
	__u32 lost; /* of them, those that the kernel dropped behind the redirect */
	__u32 pad[14];
	__u32 taken; /* of them, those that the worker took out of the ring */
	__u32 beat; /* tick of the worker's last sign of life */
	__u32 size; /* most that may be outstanding; 0 = no worker serves the queue */
	__u8 worker; /* 1 + number of the worker */
	__u8 pad2[51];
};

/* How far the workers are with the packets of one leg: sent << 16 | done, both modulo 2^16. XDP numbers
 * the packets that it sends (sent is the last number); done is the number of the last packet that has
 * left. They are equal while no packet is under way. One cell for each leg of each slot of the tables,
 * IPv4's groups first: ((family == 6 ? groups : 0) + group) * 8 + slot * 2 + leg. */
struct cells {
	__u32 leg[GROUP_SLOTS][2];
};
#define CELL_NONE 0xffffffffu /* flows of the overflow tables have none, and never move up */

/* In front of each packet that a worker gets. The packet is ready to leave as it stands. */
struct handover {
	__u32 cell; /* index of its leg's cell, or CELL_NONE */
	__u16 number; /* of the packet on its leg */
	__u8 stages; /* STAGE_* */
	__u8 port; /* id: by which it leaves */
	__u32 generation; /* of its flow: the upper half of the flow's word */
	__u32 rule; /* of its flow; high byte: 1 + home worker */
	__u32 epoch;
	__u32 nth; /* packets that its flow has counted, both directions, with this one */
	__u16 l3, l4; /* offsets of the IP and transport headers from the packet's start */
	__u8 family; /* 4 or 6 */
	__u8 arrival; /* id of the port that it came by */
	__u8 proto; /* of the transport header */
	__u8 copy; /* id of the port that gets STAGE_MIRROR's copies, of a packet of no flow; 0 = as the rule says */
};

/* What a rule of the running policy asks of workers, and of SYNs. */
struct rule_work {
	__u8 stages; /* STAGE_* */
	__u8 bypass; /* on_failure: 1 = packets go on without the stages, 0 = they are dropped */
	__u16 mss; /* most that a SYN over IPv4 may ask for, 0 = whatever it does; MSS6_LESS below over IPv6 */
};

/* By how much an MSS is smaller over IPv6, whose header is longer, for packets of the same length. */
#define MSS6_LESS 20

#endif
