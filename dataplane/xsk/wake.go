package xsk

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kickTries bounds the system calls of one Kick. In copy mode each sends up to 32 packets (256 from Linux
// 6.18 on), in the caller's time.
const kickTries = 8

// Kick wakes the kernel where it asks to be woken: to send what Transmit took, and to receive into what
// Refill gave. It makes no system call where none is needed, but at least one every time while busy polling is
// on, since that is what drives the device. Call it in every round; it never waits.
//
// What may pass by itself is counted and not an error: that the kernel is short of buffers, that the
// device's queue is full, that the device is down. An error means that the socket is of no use any more:
// ENXIO is that its device is gone, EINVAL that the next packet to send asks by its options for metadata that
// is not there, which the kernel never gets past.
func (s *Socket) Kick() error {
	if s.busy || s.fill.wanted() {
		s.counters.Kicks++
		_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 && !s.passes(errno) {
			return errno
		}
	}
	for range kickTries {
		before := s.tx.pending()
		if before == 0 || !s.busy && !s.tx.wanted() {
			return nil
		}
		// Raw: in copy mode this is where packets are sent, some microseconds each. The scheduler could do
		// nothing with the time but take the processor away from the worker.
		s.counters.Kicks++
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if errno == 0 {
			if s.busy && s.mode == ZeroCopy && s.tx.pending() == before && s.tx.wanted() {
				s.wakeByPoll()
			}
			return nil
		}
		if !s.passes(errno) {
			return errno
		}
		if s.tx.pending() == before {
			return nil // no progress: the next round tries again
		}
	}
	return nil
}

// wakeByPoll wakes the driver where sending does not. With busy polling on, the kernel takes it that the
// device's polling sends as well, and wakes nobody; the receiving half of some drivers does not send
// (virtio_net, seen on 7.2). Polling the descriptor wakes them all the same.
func (s *Socket) wakeByPoll() {
	s.counters.Kicks++
	s.pollNow = unix.PollFd{Fd: int32(s.fd), Events: unix.POLLOUT}
	s.pollTime = unix.Timespec{}
	_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&s.pollNow)), 1, uintptr(unsafe.Pointer(&s.pollTime)), 0, 0, 0)
}

// passes counts a system call that came to nothing, and reports whether the next may do better.
func (s *Socket) passes(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN, unix.EINTR: // there is more to send than one call does, or the completion ring is full
		s.counters.KickAgain++
	case unix.EBUSY: // the device dropped one packet
		s.counters.KickBusy++
	case unix.ENOBUFS, unix.ENOMEM:
		s.counters.KickNoBuffers++
	case unix.ENETDOWN:
		s.counters.KickDown++
	default:
		return false
	}
	return true
}

// Events are what a Poller waits for on a socket.
type Events uint8

const (
	Readable Events = 1 << iota // packets have arrived
	Writable                    // at least half of the tx ring is free
)

// A Poller waits for any of some sockets, of one worker. Make it once: waiting allocates nothing.
type Poller struct {
	fds     []unix.PollFd
	sockets []*Socket // nil for what AddFD added
	timeout unix.Timespec
}

// Add makes the poller wait for events of the socket too. Take it out before the socket is closed.
func (p *Poller) Add(s *Socket, e Events) {
	fd := unix.PollFd{Fd: int32(s.fd)}
	if e&Readable != 0 {
		fd.Events |= unix.POLLIN
	}
	if e&Writable != 0 {
		fd.Events |= unix.POLLOUT
	}
	p.fds, p.sockets = append(p.fds, fd), append(p.sockets, s)
}

// AddFD makes the poller wait also until another descriptor can be read, as an eventfd by which other threads
// wake this one.
func (p *Poller) AddFD(fd int) {
	p.fds, p.sockets = append(p.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}), append(p.sockets, nil)
}

// Remove takes the socket out.
func (p *Poller) Remove(s *Socket) {
	for i := range p.sockets {
		if p.sockets[i] == s {
			p.fds = append(p.fds[:i], p.fds[i+1:]...)
			p.sockets = append(p.sockets[:i], p.sockets[i+1:]...)
			return
		}
	}
}

// Wait returns when a socket has events, or when the time is over (less than 0 is never), and how many
// sockets have events. The kernel is woken on the way, as by Kick.
//
// Nothing wakes it when a device goes away: then Kick has the error.
func (p *Poller) Wait(timeout time.Duration) (int, error) {
	var limit *unix.Timespec
	if timeout >= 0 {
		p.timeout = unix.NsecToTimespec(int64(timeout))
		limit = &p.timeout
	}
	for {
		// Not raw: the scheduler shall give the processor to others meanwhile.
		n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(p.fds))), uintptr(len(p.fds)),
			uintptr(unsafe.Pointer(limit)), 0, 0, 0)
		for _, s := range p.sockets {
			if s != nil {
				s.counters.Waits++
			}
		}
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
			// The runtime interrupts its threads by signals. The kernel has left in limit what is left of it.
		default:
			return 0, errno
		}
	}
}
