// Package flowtable is the one mechanism that decides about packets: pipes of match and action that
// compile to a classifier, and the table of flows in front of them.
//
// A flow is one connection: one entry, found by a canonical key from both directions. The table's
// memory has the layout of bpf/abi.h, so that the same code reads the mapped memory of the XDP
// program and a table of its own on the heap. A translated flow has a second entry, its alias, by which
// the other end's packets find it, and may have a port in a bitmap; both end with the flow.
//
// Executor is the second implementation of docs/PACKET-PATH.md, in pure Go. It serves `explain`,
// `sim` and policy tests without root, and it is the oracle of the XDP program: both must agree
// packet for packet. Nothing on its packet path allocates, and its only clock is its caller's.
//
// # ACL pipes
//
// An ACL pipe is an ordered list of entries over zones, addresses, ports,
// protocol, family and the identity of the source MAC. The first entry that matches decides; its
// verdict is one word that holds the monitor (the rule that counts the packet, the log flag) and the
// forward (allow, deny, reject). An audit entry monitors only: it is reported, and evaluation goes on
// behind it. A miss answers 0, no rule and no action, which is the default deny.
//
// CompileACL turns a list of up to some thousand entries into a graph of small questions (is the source at least
// x, is the port y, is the destination in set z), in which equal sub-problems are one. Both executors run that
// graph: [ACL.Classify] walks it in Go, and [ReplaceClassifier] puts it, as eBPF, in the place of the C
// function classify() of a program. A pipe is immutable: entries are added, changed and removed by
// compiling a new one, which is published as a new generation.
//
// A search takes 10 to 20 questions on average with 1,000 entries, and costs 15 to 60 ns in the kernel
// on keys in random order. Entries that match anything in a dimension that others name are
// copied into both halves of a cut; a budget of nodes bounds that, and where it is used up entries are
// asked one after the other. So is a list of entries that each name many scattered prefixes in both
// addresses: there a search may take as many questions as there are entries. A set of more than 8
// ranges is searched on its own, in as many steps as its size has bits.
//
// A longer list becomes decision trees in arrays ([Forest]), in which a search takes some ten accesses with
// 100,000 entries as with 1,000: docs/CLASSIFIER.md. Both executors look up in the same memory, the one that
// [ACL.Forest] returns and the program's maps hold.
//
// A program may hold several ACL pipes, each in the place of a function of its own: who may talk to whom,
// and which translation (NAT) a flow gets. [CompileACLAfter] and [ReplacePipe] keep them apart.
//
// The generated program holds at most 250,000 instructions of all its pipes, which only entries that trees
// cannot tell apart may come to; more is refused by an error that says so. The executor in Go has no such limit.
//
// # Hash pipes
//
// A consistent hash spreads flows over servers in proportion to their weights ([ConsistentHash]): its
// entries are buckets, chosen by a hash of the flow, and a server that comes or goes moves few others'.
package flowtable
