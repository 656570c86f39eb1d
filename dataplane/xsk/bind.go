package xsk

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bind binds the socket, in the first mode of those asked for that the kernel grants. Whoever shares a
// UMEM has no choice: the kernel takes no flags of him.
func (s *Socket) bind(timeout time.Duration) error {
	end := time.Now().Add(timeout)
	for _, other := range s.umem.sockets {
		mode := other.mode
		if mode == Generic {
			mode = Copy // to bind they are the same
		}
		err := s.bindAs(mode, unix.XDP_SHARED_UMEM, uint32(other.fd), end)
		if errors.Is(err, unix.EBADF) {
			continue // the other's device is gone: the kernel takes no share of what is not bound
		}
		if err != nil && mode == ZeroCopy && !errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w; the UMEM is in zero-copy mode since its first socket: take another one, in mode %s, for this device", err, Copy)
		}
		return err
	}
	if err := s.umem.register(s.fd); err != nil {
		return err
	}
	flags := uint16(unix.XDP_USE_NEED_WAKEUP)
	if s.multi {
		flags |= unix.XDP_USE_SG
	}
	asked := s.umem.options.Mode
	if asked == Any || asked == ZeroCopy {
		err := s.bindAs(ZeroCopy, flags|unix.XDP_ZEROCOPY, 0, end)
		// A queue that another socket holds is not to be had by another mode.
		if asked == ZeroCopy || err == nil || errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return s.bindAs(Copy, flags|unix.XDP_COPY, 0, end)
}

// bindAs binds with these flags, and tries again while the queue is held.
func (s *Socket) bindAs(mode Mode, flags uint16, shared uint32, end time.Time) error {
	address := unix.SockaddrXDP{Flags: flags, Ifindex: uint32(s.device.Index), QueueID: uint32(s.queue), SharedUmemFD: shared}
	err := unix.Bind(s.fd, &address)
	for err == unix.EBUSY && time.Now().Before(end) {
		time.Sleep(2 * time.Millisecond)
		err = unix.Bind(s.fd, &address)
	}
	if err == unix.EBADF {
		return err
	}
	if err != nil {
		err = fmt.Errorf("bind in mode %s: %w: %s", mode, err, s.device.explain(err, mode, s.umem, s.queue))
	}
	s.attempts = append(s.attempts, Attempt{mode, err})
	return err
}

// settle asks the kernel what it has granted.
func (s *Socket) settle() error {
	var options uint32 // struct xdp_options
	if _, err := getOption(s.fd, unix.XDP_OPTIONS, unsafe.Pointer(&options), unsafe.Sizeof(options)); err != nil {
		return fmt.Errorf("ask for the mode: %w", err)
	}
	switch {
	case options&unix.XDP_OPTIONS_ZEROCOPY != 0:
		s.mode = ZeroCopy
	case s.device.XDP == Generic:
		s.mode = Generic
	default:
		s.mode = Copy
	}
	last := &s.attempts[len(s.attempts)-1]
	if (last.Mode == ZeroCopy) != (s.mode == ZeroCopy) {
		return fmt.Errorf("the kernel granted mode %s where %s was asked for", s.mode, last.Mode)
	}
	last.Mode = s.mode
	s.checksum = s.umem.options.TxMetadata && (s.mode != ZeroCopy || s.device.TransmitChecksums)
	s.maxSegments = copySegments
	if s.mode == ZeroCopy {
		s.maxSegments = max(1, s.device.ZeroCopySegments)
	}
	return nil
}

// copySegments is how many descriptors of one packet the kernel sends in copy mode on every device: as many
// as an skb has fragments (MAX_SKB_FRAGS). Those that take skbs with a linear part would take one more.
const copySegments = 17
