// Package ipsec will hold security associations, ESP in tunnel mode, the replay window and the sources
// of keys. Nothing of it exists yet: a policy rule with `encrypt` is refused as "not yet".
//
// Its contract:
//
//   - A security association is found by its SPI alone on the way in, and by the policy's tunnel name
//     on the way out. Every one has a home worker, which alone writes its sequence number and its
//     replay window; other workers hand packets over.
//   - Seal and Open work on batches, in place, in the caller's frames, and allocate nothing. What fails
//     gets a reason of enum reason (replay, bad-icv), never an error.
//   - The decrypted packet goes through the same flow table and rules as one from the wire. A packet
//     that was to be encrypted never leaves in clear: that is the drop would-leak.
//   - Keys come from a file (static) or from the kernel's XFRM tables, which an IKE daemon fills. They
//     are in no log and no answer of the control API.
//
// It imports dataplane/packet and nothing else of this module.
package ipsec
