// Package xsk will hold the AF_XDP sockets of the workers: UMEM, rings and frames. Its contract:
//
//   - One worker is one locked operating system thread with one socket per port on its own queue
//     index. All workers of a mode (zero-copy, copy) share one UMEM, each with its own free list; the
//     worker owns both directions of all its sockets, so nothing here takes a lock.
//   - A frame is in exactly one place: free list, fill ring, rx ring, batch, tx ring, completion ring
//     or a hand-over ring. Receive moves frames to the caller, Transmit takes those that it says it
//     took, Free and Reclaim bring them back.
//   - No goroutine, no logging, no global and no finaliser; no allocation once the sockets stand.
//
// It imports nothing of this module.
package xsk
