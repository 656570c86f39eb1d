package xsk

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packetHeadroom is what the kernel leaves free in front of every packet it receives into a frame, for
// XDP programs (XDP_PACKET_HEADROOM), in bytes.
const packetHeadroom = unix.XDP_PACKET_HEADROOM

// UMEMOptions of NewUMEM. The zero value is 4,096 frames of 4,096 bytes and the best mode that the first
// device has.
type UMEMOptions struct {
	Frames    int // 0 is 4,096
	FrameSize int // bytes: a power of two from 2,048 to the size of a page; 0 is 4,096, or the page if smaller
	// Headroom is kept free in front of a packet, beyond the 256 bytes that the kernel keeps free anyway;
	// in bytes.
	Headroom int
	// HugePages asks for pages of 2 MiB (MAP_HUGETLB). Where the machine has none to spare the UMEM has
	// small ones, and Pages says why.
	HugePages bool
	// Mode is that of all sockets, since the kernel lets the first bind of a UMEM choose for those that
	// share it. Any settles with the first socket that is opened.
	Mode Mode
	// AnyProgram lets sockets of mode Copy stand also on devices whose XDP program runs in generic mode.
	AnyProgram bool
	// MultiBuffer lets a packet span frames, so that it may be longer than one (Linux 6.6). The XDP program
	// must take such packets too (BPF_F_XDP_HAS_FRAGS).
	MultiBuffer bool
	// TxMetadata keeps room in front of packets in which Checksum leaves requests to the kernel or the
	// driver (Linux 6.8).
	TxMetadata bool
}

// A UMEM is memory cut into frames of one size, into which the kernel receives packets and from which it
// sends them. Sockets on any number of devices and queues share it.
//
// Frames, Payload, Frame, Before and Room may be called by anyone; NewPool, Open, Census, Recover and
// Close take a lock of the UMEM and are no part of the packet path.
type UMEM struct {
	mem       []byte
	frameSize uint64
	shift     uint // log2 of frameSize
	headroom  int
	options   UMEMOptions
	pageSize  int
	pagesWhy  error

	// holder says for each frame which socket's kernel side has it: a socket's id, or 0 for none. A worker
	// writes an entry when it gives the frame to the kernel and when it gets it back, so that frames can be
	// told apart from others when a socket is closed: those that the kernel has taken out of the rings, and
	// keeps somewhere in a driver, are in no place that could be read.
	holder []uint16
	track  *tracker // of a debug build

	mu      sync.Mutex
	spare   []uint64 // addresses of frames that no pool has
	pools   map[*Pool]struct{}
	sockets map[uint16]*Socket // open ones
	closed  map[uint16]closedSocket
}

// NewUMEM takes memory for frames. Nothing is registered with the kernel, and no privilege needed, until
// the first socket is opened.
func NewUMEM(o UMEMOptions) (*UMEM, error) {
	page := os.Getpagesize()
	if o.Frames == 0 {
		o.Frames = 4096
	}
	if o.FrameSize == 0 {
		o.FrameSize = min(4096, page)
	}
	switch {
	case o.Frames < 1 || uint64(o.Frames) > 1<<32/2048:
		return nil, fmt.Errorf("make UMEM of %d frames: there must be 1 to %d", o.Frames, 1<<32/2048)
	case o.FrameSize < 2048 || o.FrameSize > page || o.FrameSize&(o.FrameSize-1) != 0:
		return nil, fmt.Errorf("make UMEM of frames of %d bytes: it must be a power of two from 2048 to %d", o.FrameSize, page)
	case o.Headroom < 0 || o.Headroom%8 != 0 || o.FrameSize-packetHeadroom-o.Headroom < minPayload:
		return nil, fmt.Errorf("make UMEM with a headroom of %d bytes: it must be a multiple of 8 that leaves at least %d of the frame's %d",
			o.Headroom, minPayload, o.FrameSize-packetHeadroom)
	case o.Mode > Generic:
		return nil, fmt.Errorf("make UMEM in mode %d: there is none", o.Mode)
	}
	u := &UMEM{
		frameSize: uint64(o.FrameSize),
		headroom:  packetHeadroom + o.Headroom,
		options:   o,
		holder:    make([]uint16, o.Frames),
		spare:     make([]uint64, o.Frames),
		pools:     map[*Pool]struct{}{},
		sockets:   map[uint16]*Socket{},
		closed:    map[uint16]closedSocket{},
	}
	for 1<<u.shift < o.FrameSize {
		u.shift++
	}
	if err := u.mapMemory(o.Frames*o.FrameSize, o.HugePages); err != nil {
		return nil, err
	}
	for i := range u.spare {
		u.spare[len(u.spare)-1-i] = uint64(i) << u.shift // the first frames are taken first
	}
	if debug {
		u.track = newTracker(u)
	}
	return u, nil
}

// minPayload is the least that a frame must hold of a packet, so that a packet of 64 KiB takes no more
// descriptors than any ring has: in bytes.
const minPayload = 512

// hugePage is the size that HugePages asks for, in bytes: all machines with 4 KiB pages have it.
const hugePage = 2 << 20

// mapMemory maps length bytes, zeroed and in memory.
func (u *UMEM) mapMemory(length int, huge bool) error {
	const protection = unix.PROT_READ | unix.PROT_WRITE
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE
	u.pageSize = os.Getpagesize()
	if huge {
		// Populating does not report that pages are missing, reserving does: it is done by mmap unless
		// MAP_NORESERVE is given.
		whole := (length + hugePage - 1) &^ (hugePage - 1)
		mem, err := unix.Mmap(-1, 0, whole, protection, flags|unix.MAP_HUGETLB|21<<unix.MAP_HUGE_SHIFT)
		if err == nil {
			u.mem, u.pageSize = mem, hugePage
			return nil
		}
		u.pagesWhy = fmt.Errorf("map %d pages of 2 MiB: %w", whole/hugePage, err)
		if errors.Is(err, unix.ENOMEM) {
			u.pagesWhy = fmt.Errorf("%w: reserve them (vm.nr_hugepages, or hugepages= at boot)", u.pagesWhy)
		}
	}
	mem, err := unix.Mmap(-1, 0, length, protection, flags)
	if err != nil {
		return fmt.Errorf("map UMEM of %d bytes: %w", length, err)
	}
	u.mem = mem
	return nil
}

// Pages returns the size of the pages that the UMEM has, in bytes, and, if it is not what was asked for,
// why.
func (u *UMEM) Pages() (size int, why error) { return u.pageSize, u.pagesWhy }

// Frames returns the number of frames.
func (u *UMEM) Frames() int { return len(u.holder) }

// Payload returns how much of a received packet one frame holds, in bytes. A longer packet is dropped,
// and counted as RxDropped, or spans frames if the UMEM was made with MultiBuffer.
func (u *UMEM) Payload() int { return int(u.frameSize) - u.headroom }

// Frame returns the bytes of d. The slice aliases the UMEM: it is valid until d is given to Transmit or
// its frame to Free. Its capacity ends with the frame, so append cannot reach a neighbour.
func (u *UMEM) Frame(d Desc) []byte {
	end := d.Addr&^(u.frameSize-1) + u.frameSize
	if debug {
		u.track.look(d)
	}
	return u.mem[d.Addr : d.Addr+uint64(d.Len) : end]
}

// Before returns the n bytes in front of d, in the same frame: what a program put there by
// bpf_xdp_adjust_meta, or room for a header. The slice is valid as long as Frame's is. It panics if the
// frame has fewer.
func (u *UMEM) Before(d Desc, n int) []byte {
	if front, _ := u.Room(d); n < 0 || n > front {
		panic(fmt.Sprintf("xsk: %d bytes in front of a packet that has %d", n, front))
	}
	if debug {
		u.track.look(d)
	}
	return u.mem[d.Addr-uint64(n) : d.Addr : d.Addr]
}

// Room returns how many bytes of the frame are free in front of d and behind it. A header is put in front
// by lowering Addr and raising Len; with TxMetadata, 24 bytes must stay.
func (u *UMEM) Room(d Desc) (front, behind int) {
	front = int(d.Addr & (u.frameSize - 1))
	return front, int(u.frameSize) - front - int(d.Len)
}

// index returns the number of the frame that the address lies in.
func (u *UMEM) index(addr uint64) uint64 { return addr >> u.shift }

// holderOf returns which socket's kernel side has a frame, while workers write the entries of theirs. The
// entry is right for frames of a socket that nobody uses any more, which is what the answer is for: what
// others write meanwhile is never its number.
//
//go:norace
func (u *UMEM) holderOf(i int) uint16 { return u.holder[i] }

// start returns the address of the frame that the address lies in.
func (u *UMEM) start(addr uint64) uint64 { return addr &^ (u.frameSize - 1) }

// register makes the UMEM that of a socket's, which no other may have bound with yet.
func (u *UMEM) register(fd int) error {
	reg := unix.XDPUmemReg{
		Addr:     uint64(uintptr(unsafe.Pointer(unsafe.SliceData(u.mem)))),
		Len:      uint64(len(u.holder)) << u.shift,
		Size:     uint32(u.frameSize),
		Headroom: uint32(u.options.Headroom),
	}
	if u.options.TxMetadata {
		reg.Flags |= unix.XDP_UMEM_TX_METADATA_LEN
		reg.Tx_metadata_len = metadataLen
	}
	err := setOption(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg))
	if u.options.TxMetadata && err == unix.EINVAL {
		if !kernelAtLeast(6, 8) {
			return fmt.Errorf("register UMEM with TxMetadata: %w: it needs Linux 6.8", err)
		}
		reg.Flags = 0 // before 6.11 the length alone says it
		err = setOption(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg))
	}
	switch err {
	case nil:
		return nil
	case unix.ENOBUFS:
		return fmt.Errorf("register UMEM of %d bytes: %w: raise RLIMIT_MEMLOCK (`ulimit -l`) above %d KiB or give the process CAP_IPC_LOCK",
			reg.Len, err, reg.Len>>10)
	}
	return fmt.Errorf("register UMEM of %d bytes: %w", reg.Len, err)
}

// Close gives the memory back. Sockets must be closed first. What the kernel still holds of it after
// that, for packets on their way, it frees by itself.
//
// In a debug build it panics if frames are with the caller: they were lost.
func (u *UMEM) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.sockets) > 0 {
		return fmt.Errorf("close UMEM: %d sockets are open", len(u.sockets))
	}
	if u.mem == nil {
		return nil
	}
	if debug {
		u.track.close()
	}
	mem := u.mem
	u.mem = nil
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap UMEM: %w", err)
	}
	return nil
}

// A Census says where a UMEM's frames are. The sum is Total; a frame that is nowhere cannot be, one that
// its holder has forgotten is counted with the caller.
type Census struct {
	Total  int
	Spare  int // in no pool
	Free   int // in pools
	Kernel int // in the rings of open sockets, and in their drivers
	Closed int // with the kernel, of sockets that are closed: see Recover
	Caller int // received, or taken by Alloc, and not given back
}

// Census counts frames. Anyone may, at any time; it is exact while nobody moves frames.
func (u *UMEM) Census() Census {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := Census{Total: len(u.holder), Spare: len(u.spare)}
	for p := range u.pools {
		c.Free += p.length()
	}
	for i := range u.holder {
		id := u.holderOf(i)
		if id == 0 {
			continue
		}
		if _, ok := u.closed[id]; ok {
			c.Closed++
		} else {
			c.Kernel++
		}
	}
	c.Caller = c.Total - c.Spare - c.Free - c.Kernel - c.Closed
	return c
}
