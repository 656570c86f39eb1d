// Package xsk is AF_XDP sockets in pure Go: packets of a device's queue, taken from below the kernel's
// stack and put back there, in memory that is shared with the kernel. It needs Linux 5.14 and, in the
// process, CAP_NET_RAW for sockets and CAP_NET_ADMIN and CAP_BPF for programs. What newer kernels add is
// probed where it is used. It imports nothing of this module.
//
// # Parts
//
// A [UMEM] is memory in frames of one size. A [Pool] is a worker's list of free ones. A [Socket] stands on
// one queue of one device and has four rings: fill and rx for what arrives, tx and completion for what is
// sent. Any number of sockets, on any devices and queues, share a UMEM, so that forwarding moves
// descriptors, not bytes. [Attach] puts a small XDP program on a device that sends packets to sockets; a
// program of one's own may do that instead. A [Poller] waits for several sockets.
//
// # One worker
//
// A worker is one goroutine, best locked to a thread and the thread to a CPU. It owns a pool, the sockets
// that were opened with it, and both directions of each: nothing here takes a lock on the packet path,
// calls through an interface or allocates. The package starts no goroutine, logs nothing and has no state
// of its own. A round of a worker:
//
//	Reclaim on all sockets       what was sent goes to the pool
//	Receive a batch from each    what arrived is the worker's
//	...                          it looks at packets, changes them in place
//	Transmit where each goes     what was taken is the kernel's; the rest: Free, and count
//	Refill on all                free frames go to the kernel, to receive into
//	Kick on all                  the kernel is woken where it asks to be
//	Wait                         after some rounds with nothing to do
//
// # Who has a frame
//
// A frame is in exactly one of these places:
//
//	place                        owner               moves out by
//	pool                         worker              Refill -> kernel; Alloc -> caller
//	fill ring, device            kernel              a packet arrives -> rx ring
//	rx ring                      kernel until read   Receive -> caller
//	caller                       worker              Transmit -> kernel; Free -> pool
//	tx ring, device              kernel              sent -> completion ring
//	completion ring              kernel until read   Reclaim -> pool
//	closed socket                kernel              Open on its queue, or Recover -> pool
//
// [UMEM.Frame] gives the bytes of a descriptor that the caller has. A frame may be handed to another
// worker of the UMEM, over whatever synchronises the two; it becomes the other's as if he had received it.
//
// In a build with -tags xskdebug every move is checked: a frame that is freed or sent twice, looked at or
// written to when it is not the caller's, or not given back when the UMEM is closed, ends in a panic that
// says where the frame has been and who moved it. Free frames are filled with a pattern, so that stale
// slices read rubbish. It is slow, and meant for tests.
//
// # Modes
//
// In [ZeroCopy] mode the device reads and writes frames itself; only some drivers do. In [Copy] mode the
// kernel copies, which every driver with XDP supports. In [Generic] mode it does so behind the driver, for
// all devices. [Any] takes what can be had. What was tried, and what the kernel said to it, is told by
// [Socket.Attempts] and [Redirect.Attempts]; what was granted, which is not for the asking alone, by
// [Socket.Mode]. A mode that was asked for by name is had or is an error that says why not.
//
// The mode is the UMEM's: its first socket settles it. Devices that differ in what they can do have a
// UMEM each.
//
// # Limits
//
// Frames start at multiples of their size: unaligned chunks (XDP_UMEM_UNALIGNED_CHUNK_FLAG) are left out,
// because all drivers take aligned ones and addresses of two parts would cost every step of the path. One
// socket has a queue: several on one queue, with a fill ring in common, are left out too, since one worker
// gains nothing by them. Of transmit metadata only checksums can be asked for.
package xsk
