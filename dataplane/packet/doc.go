// Package packet reads the headers of Ethernet frames: VLAN tags, IPv4 and IPv6 with options and
// extension headers, fragments, TCP, UDP, ICMP and ICMPv6, and the packet that an ICMP error quotes.
//
// It decides only whether a frame is well formed, in the order of docs/PACKET-PATH.md sections 1 to 6;
// what a well-formed packet may do is flowtable's business. Nothing here allocates, and the package
// imports nothing of ours.
package packet
