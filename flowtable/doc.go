// Package flowtable is the one mechanism that decides about packets: pipes of match and action that
// compile to a classifier, and the table of flows in front of them.
//
// A flow is one connection: one entry, found by a canonical key from both directions. The table's
// memory has the layout of bpf/abi.h, so that the same code reads the mapped memory of the XDP
// program and a table of its own on the heap.
//
// Executor is the second implementation of docs/PACKET-PATH.md, in pure Go. It serves `explain`,
// `sim` and policy tests without root, and it is the oracle of the XDP program: both must agree
// packet for packet. Nothing on its packet path allocates, and its only clock is its caller's.
package flowtable
