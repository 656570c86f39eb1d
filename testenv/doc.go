// Package testenv makes network namespaces joined by veth pairs, and real traffic inside them: for
// tests, for the demo and for people (softdpu lab). It imports nothing of this module, so that what
// it sees cannot share a mistake with what it tests. It needs root.
//
// Every lab has a prefix ("sdpu" unless asked otherwise), which the names of its namespaces begin
// with; a prefix holds one lab at a time. The far ends have GRO on, because a frame that XDP
// redirects to a veth is dropped unless the veth's peer runs NAPI. Duplicate address detection is
// off, so addresses work at once. No kernel here forwards.
//
// client-server: a routed gateway between two hosts.
//
//	 sdpu-client                    sdpu-gw                      sdpu-server
//	+-------------+      +---------------------------+      +---------------+
//	|          c0 |======| lan                   wan |======| s0            |
//	+-------------+      +---------------------------+      +---------------+
//	  10.10.1.2/24        10.10.1.1/24   10.10.2.1/24         10.10.2.2/24
//	  fd10:1::2/64        fd10:1::1/64   fd10:2::1/64         fd10:2::2/64
//	  default by .1, ::1                                default by .1, ::1
//
// inline: two hosts of one subnet with a bump in the wire between them. The gateway's devices have
// no addresses and no IPv6, so its kernel says nothing on either wire.
//
//	 sdpu-client                    sdpu-gw                      sdpu-server
//	+-------------+      +---------------------------+      +---------------+
//	|          c0 |======| lan                   wan |======| s0            |
//	+-------------+      +---------------------------+      +---------------+
//	  10.10.1.2/24                                            10.10.1.3/24
//	  fd10:1::2/64                                            fd10:1::3/64
//
// three-zone: a routed gateway between an inside, an outside and a server zone.
//
//	  sdpu-lan                      sdpu-gw                       sdpu-wan
//	+-------------+      +---------------------------+      +---------------+
//	|          l0 |======| lan                   wan |======| w0            |
//	+-------------+      | 10.10.1.1/24 10.10.2.1/24 |      +---------------+
//	  10.10.1.2/24       | fd10:1::1/64 fd10:2::1/64 |        10.10.2.2/24
//	  fd10:1::2/64       |                           |        fd10:2::2/64
//	                     |            dmz            |
//	                     +---------------------------+
//	                       10.10.3.1/24 || fd10:3::1/64
//	                            +---------------+
//	                            | d0   sdpu-dmz |
//	                            +---------------+
//	                       10.10.3.2/24    fd10:3::2/64
//
// wire: two hosts joined by one veth pair, without a gateway: what the bare cable does.
//
//	 sdpu-client                                                 sdpu-server
//	+-------------+                                         +---------------+
//	|          c0 |=========================================| s0            |
//	+-------------+                                         +---------------+
//	  10.10.1.2/24                                            10.10.1.3/24
//	  fd10:1::2/64                                            fd10:1::3/64
package testenv
