package xsk

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is one of a socket's four rings, of which the kernel holds the other end. Both indices count
// up for ever and wrap at 2^32; entry i is at i modulo the ring's size, which is a power of two.
//
// The end that is ours is known exactly: prod where we produce (fill, tx), cons where we consume (rx,
// completion). The other is a copy that is read again only when the copy does not suffice, because each
// look at it may move a cache line between two CPUs.
//
// Order of memory: the producer writes entries and then the index, the consumer reads the index and
// then entries, and reads entries before it gives them back by its own index. Go's atomic stores and
// loads are release and acquire at least, which is what that takes. They are also sequentially
// consistent, so that a store of the producer's index is seen before the flags are read: no wakeup that
// the kernel asks for is missed.
type ring struct {
	prod, cons uint32
	size, mask uint32
	producer   *uint32
	consumer   *uint32
	flags      *uint32 // XDP_RING_NEED_WAKEUP
	mem        []byte
}

// room returns how many entries the producer may write. It looks at the consumer's index if there seem
// to be fewer than wanted.
func (r *ring) room(want uint32) uint32 {
	n := r.size - (r.prod - r.cons)
	if n < want {
		r.cons = atomic.LoadUint32(r.consumer)
		n = r.size - (r.prod - r.cons)
	}
	return n
}

// publish hands the next n entries, which have been written, to the consumer.
func (r *ring) publish(n uint32) {
	r.prod += n
	atomic.StoreUint32(r.producer, r.prod)
}

// filled returns how many entries the consumer may read. It looks at the producer's index if there seem
// to be fewer than wanted.
func (r *ring) filled(want uint32) uint32 {
	n := r.prod - r.cons
	if n < want {
		r.prod = atomic.LoadUint32(r.producer)
		n = r.prod - r.cons
	}
	return n
}

// release gives the next n entries, which have been read, back to the producer.
func (r *ring) release(n uint32) {
	r.cons += n
	atomic.StoreUint32(r.consumer, r.cons)
}

// pending returns how many published entries the consumer has not taken yet.
func (r *ring) pending() uint32 {
	if r.prod != r.cons {
		r.cons = atomic.LoadUint32(r.consumer)
	}
	return r.prod - r.cons
}

// wanted reports whether the kernel waits to be woken.
func (r *ring) wanted() bool { return atomic.LoadUint32(r.flags)&unix.XDP_RING_NEED_WAKEUP != 0 }

// A descRing carries descriptors: rx and tx.
type descRing struct {
	ring
	desc []Desc
}

// put copies descriptors to the next entries; there must be room.
func (r *descRing) put(from []Desc) {
	n := copy(r.desc[r.prod&r.mask:], from)
	copy(r.desc, from[n:])
}

// peek copies the next entries; so many must be filled.
func (r *descRing) peek(to []Desc) {
	n := copy(to, r.desc[r.cons&r.mask:])
	copy(to[n:], r.desc)
}

// An addrRing carries addresses of frames: fill and completion.
type addrRing struct {
	ring
	addr []uint64
}

func (r *addrRing) put(from []uint64) {
	n := copy(r.addr[r.prod&r.mask:], from)
	copy(r.addr, from[n:])
}

func (r *addrRing) peek(to []uint64) {
	n := copy(to, r.addr[r.cons&r.mask:])
	copy(to[n:], r.addr)
}

// mapRing maps one ring of a socket that has made it already.
func mapRing(fd int, place int64, off unix.XDPRingOffset, size uint32, entry uintptr) (ring, error) {
	length := int(off.Desc) + int(size)*int(entry)
	mem, err := unix.Mmap(fd, place, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring{}, fmt.Errorf("map ring of %d entries: %w", size, err)
	}
	at := func(offset uint64) *uint32 { return (*uint32)(unsafe.Pointer(&mem[offset])) }
	r := ring{size: size, mask: size - 1, mem: mem,
		producer: at(off.Producer), consumer: at(off.Consumer), flags: at(off.Flags)}
	r.prod, r.cons = atomic.LoadUint32(r.producer), atomic.LoadUint32(r.consumer)
	return r, nil
}

func (r *ring) unmap() error {
	if r.mem == nil {
		return nil
	}
	err := unix.Munmap(r.mem)
	r.mem, r.producer, r.consumer, r.flags = nil, nil, nil, nil
	if err != nil {
		return fmt.Errorf("unmap ring: %w", err)
	}
	return nil
}

func mapDescRing(fd int, place int64, off unix.XDPRingOffset, size uint32) (descRing, error) {
	r, err := mapRing(fd, place, off, size, unsafe.Sizeof(Desc{}))
	if err != nil {
		return descRing{}, err
	}
	return descRing{r, unsafe.Slice((*Desc)(unsafe.Pointer(&r.mem[off.Desc])), size)}, nil
}

func mapAddrRing(fd int, place int64, off unix.XDPRingOffset, size uint32) (addrRing, error) {
	r, err := mapRing(fd, place, off, size, unsafe.Sizeof(uint64(0)))
	if err != nil {
		return addrRing{}, err
	}
	return addrRing{r, unsafe.Slice((*uint64)(unsafe.Pointer(&r.mem[off.Desc])), size)}, nil
}
