package xsk

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A closedSocket is where frames may still be that a closed socket had given to the kernel. It finishes
// with them at some later time, and tells nobody: the proof is that the queue can be had again.
type closedSocket struct {
	ifindex, queue int
	cookie         uint64 // of the network namespace
}

// leave notes the frames that the kernel has of a socket that is closed now.
func (u *UMEM) leave(s *Socket) {
	held := false
	for i := range u.holder {
		if u.holderOf(i) != s.id {
			continue
		}
		held = true
		if debug {
			u.track.leave(uint64(i)<<u.shift, s.id)
		}
	}
	if held {
		u.closed[s.id] = closedSocket{s.device.Index, s.queue, s.cookie}
	}
}

// rebound takes back what earlier sockets of the queue had: the kernel has let go of them, or it would not
// have bound this one.
func (u *UMEM) rebound(s *Socket) {
	for id, c := range u.closed {
		if c == (closedSocket{s.device.Index, s.queue, s.cookie}) {
			u.takeBack(id, s.pool)
			delete(u.closed, id)
		}
	}
}

// takeBack moves all frames that the kernel had of a socket to the pool, and returns how many.
func (u *UMEM) takeBack(id uint16, p *Pool) int {
	n := 0
	for i := range u.holder {
		if u.holderOf(i) == id {
			u.holder[i] = 0
			addr := uint64(i) << u.shift
			if debug {
				u.track.leave(addr, id)
				u.track.move(addr, placeClosed, placeFree, id)
			}
			p.put(addr)
			n++
		}
	}
	return n
}

// Recover moves to the pool, which must be the caller's, the frames that closed sockets had given to the
// kernel and that it has let go of meanwhile, and returns how many came back. For each queue it finds out by
// binding a socket of its own for a moment, so a queue that somebody else has bound meanwhile counts as held.
// Only queues of the calling thread's network namespace are looked at.
//
// It is needed only where a queue is given up while the UMEM lives on: Open does it for its own queue.
func (u *UMEM) Recover(p *Pool) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	u.mu.Lock()
	defer u.mu.Unlock()
	recovered := 0
	for id, c := range u.closed {
		free, err := c.released()
		if err != nil {
			return recovered, fmt.Errorf("recover frames: %w", err)
		}
		if free {
			recovered += u.takeBack(id, p)
			delete(u.closed, id)
		}
	}
	return recovered, nil
}

// released reports whether the kernel has let go of the queue.
func (c closedSocket) released() (bool, error) {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false, fmt.Errorf("map a page: %w", err)
	}
	defer unix.Munmap(mem)
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("make socket: %w", err)
	}
	defer unix.Close(fd)
	if cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return false, fmt.Errorf("ask for the network namespace: %w", err)
	} else if cookie != c.cookie {
		return false, nil
	}
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), Len: uint64(page), Size: uint32(min(page, 4096))}
	if err := setOption(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg)); err != nil {
		return false, fmt.Errorf("register a page: %w", err)
	}
	for _, ring := range []int{unix.XDP_TX_RING, unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, 1); err != nil {
			return false, fmt.Errorf("make ring: %w", err)
		}
	}
	err = unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(c.ifindex), QueueID: uint32(c.queue)})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EBUSY):
		return false, nil
	case errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL):
		return true, nil // the device is gone, or the queue: neither goes before the kernel has let go of it
	}
	return false, fmt.Errorf("bind to queue %d of device %d: %w", c.queue, c.ifindex, err)
}
