// Package worker runs what XDP cannot do to packets: threads that take them from AF_XDP sockets, lead them
// through stages in batches, and send them on. docs/PACKET-PATH.md, section 14, is its contract with XDP.
package worker
