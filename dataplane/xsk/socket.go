package xsk

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SocketOptions of Open. The zero value is four rings of 2,048 entries and no busy polling.
type SocketOptions struct {
	// Sizes of the rings, in descriptors: powers of two, at most 32,768; 0 is 2,048. Completion should be
	// no smaller than Tx: while it is full the kernel sends nothing.
	Rx, Tx, Fill, Completion int
	BusyPoll                 BusyPoll
	// BindTimeout is for how long Open tries while something holds the queue. The kernel lets go of the
	// queue of a closed socket, or of a process that was killed, some 20 ms later. 0 is 1 s. No other socket
	// of the UMEM can be opened or closed meanwhile.
	BindTimeout time.Duration
}

// BusyPoll makes every Kick drive the device's NAPI on the caller's CPU instead of interrupts (Linux
// 5.11). To take effect the device must also be told to defer its interrupts (napi_defer_hard_irqs and
// gro_flush_timeout below /sys/class/net/DEVICE): that is the caller's to set and to put back.
type BusyPoll struct {
	Time   time.Duration // SO_BUSY_POLL, in whole microseconds; 0 is no busy polling
	Budget int           // SO_BUSY_POLL_BUDGET: packets a poll handles at most; 0 is 64
}

// A Socket is one AF_XDP socket on one queue of one device, both directions. It belongs to the worker
// that owns its pool; only Stats, and the methods that tell what was settled by Open, may be called by
// others, and not during Close.
type Socket struct {
	// Hot: what every batch needs.
	rx, tx      descRing
	fill        addrRing
	completion  addrRing
	umem        *UMEM
	pool        *Pool
	holder      []uint16
	shift       uint
	id          uint16
	multi       bool
	busy        bool
	maxSegments int // descriptors of one packet that the kernel sends
	counters    Counters
	mode        Mode
	pollNow     unix.PollFd // of wakeByPoll
	pollTime    unix.Timespec

	// Cold.
	fd       int
	device   Device
	queue    int
	cookie   uint64 // of the network namespace
	attempts []Attempt
	checksum bool
}

// Open opens a socket on a queue of a device of the calling thread's network namespace, fills its fill
// ring from the pool, and binds it. Once it is open it may be used from any namespace. No packet arrives
// before the socket stands in the map of the XDP program on the device; attach the program first, so that
// its mode is known.
//
// The error of a mode that was asked for and cannot be had says what is known to keep it from being had.
func Open(u *UMEM, p *Pool, device string, queue int, o SocketOptions) (*Socket, error) {
	if err := o.normal(); err != nil {
		return nil, fmt.Errorf("open socket on %s queue %d: %w", device, queue, err)
	}
	if p.u != u {
		return nil, fmt.Errorf("open socket on %s queue %d: the pool is another UMEM's", device, queue)
	}
	runtime.LockOSThread() // all that follows means one network namespace
	defer runtime.UnlockOSThread()
	dev, err := Inspect(device)
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mem == nil {
		return nil, fmt.Errorf("open socket on %s queue %d: the UMEM is closed", device, queue)
	}
	if err := dev.check(u, queue); err != nil {
		return nil, fmt.Errorf("open socket on %s queue %d: %w", device, queue, err)
	}
	id, err := u.freeID()
	if err != nil {
		return nil, fmt.Errorf("open socket on %s queue %d: %w", device, queue, err)
	}
	s := &Socket{umem: u, pool: p, holder: u.holder, shift: u.shift, id: id, multi: u.options.MultiBuffer,
		busy: o.BusyPoll.Time > 0, fd: -1, device: dev, queue: queue}
	err = s.create(o)
	if err == nil {
		s.Refill()
		err = s.bind(o.BindTimeout)
	}
	if err == nil {
		err = s.settle()
	}
	if err != nil {
		// A socket that was never bound has no frames in any driver.
		err = errors.Join(fmt.Errorf("open socket on %s queue %d: %w", device, queue, err), s.release())
		u.takeBack(id, p)
		return nil, err
	}
	u.sockets[id] = s
	u.rebound(s)
	return s, nil
}

const (
	defaultRing = 2048
	maxRing     = 32768
)

func (o *SocketOptions) normal() error {
	for _, r := range []struct {
		name string
		size *int
	}{{"rx", &o.Rx}, {"tx", &o.Tx}, {"fill", &o.Fill}, {"completion", &o.Completion}} {
		if *r.size == 0 {
			*r.size = defaultRing
		}
		if n := *r.size; n < 1 || n > maxRing || n&(n-1) != 0 {
			return fmt.Errorf("%s ring of %d entries: it must be a power of two up to %d", r.name, n, maxRing)
		}
	}
	if o.BindTimeout == 0 {
		o.BindTimeout = time.Second
	}
	b := &o.BusyPoll
	if b.Budget == 0 {
		b.Budget = 64
	}
	if b.Time < 0 || b.Time > 0 && b.Time < time.Microsecond || b.Time > time.Second {
		return fmt.Errorf("busy polling of %s: it must be 1 us to 1 s", b.Time)
	}
	if b.Budget < 1 || b.Budget > 65535 {
		return fmt.Errorf("busy polling budget of %d: it must be 1 to 65535", b.Budget)
	}
	return nil
}

// freeID returns a number for a new socket. Those of closed sockets are taken until their frames are back.
func (u *UMEM) freeID() (uint16, error) {
	for id := uint16(1); id != 0; id++ {
		_, open := u.sockets[id]
		_, closed := u.closed[id]
		if !open && !closed {
			return id, nil
		}
	}
	return 0, errors.New("the UMEM has 65535 sockets")
}

// create makes the socket with its rings.
func (s *Socket) create(o SocketOptions) error {
	var err error
	if s.fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		switch err {
		case unix.EAFNOSUPPORT:
			return fmt.Errorf("make socket: %w: the kernel is built without XDP_SOCKETS", err)
		case unix.EPERM:
			return fmt.Errorf("make socket: %w: it needs CAP_NET_RAW", err)
		}
		return fmt.Errorf("make socket: %w", err)
	}
	if s.cookie, err = unix.GetsockoptUint64(s.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return fmt.Errorf("ask for the network namespace: %w", err)
	}
	for _, r := range []struct {
		option, size int
	}{{unix.XDP_RX_RING, o.Rx}, {unix.XDP_TX_RING, o.Tx},
		{unix.XDP_UMEM_FILL_RING, o.Fill}, {unix.XDP_UMEM_COMPLETION_RING, o.Completion}} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, r.option, r.size); err != nil {
			return fmt.Errorf("make ring of %d entries: %w", r.size, err)
		}
	}
	var off unix.XDPMmapOffsets
	if n, err := getOption(s.fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off)); err != nil {
		return fmt.Errorf("ask for the rings' layout: %w", err)
	} else if n < int(unsafe.Sizeof(off)) {
		return errors.New("ask for the rings' layout: the kernel's rings have no flags: need-wakeup needs Linux 5.4")
	}
	if s.rx, err = mapDescRing(s.fd, unix.XDP_PGOFF_RX_RING, off.Rx, uint32(o.Rx)); err != nil {
		return err
	}
	if s.tx, err = mapDescRing(s.fd, unix.XDP_PGOFF_TX_RING, off.Tx, uint32(o.Tx)); err != nil {
		return err
	}
	if s.fill, err = mapAddrRing(s.fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, uint32(o.Fill)); err != nil {
		return err
	}
	if s.completion, err = mapAddrRing(s.fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr, uint32(o.Completion)); err != nil {
		return err
	}
	if s.busy {
		if err := s.setBusyPoll(o.BusyPoll); err != nil {
			return err
		}
	}
	if budget := min(o.Tx, sendBudget); budget > 32 {
		// In copy mode the kernel sends 32 packets a system call unless told otherwise (Linux 6.18).
		_ = unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, budget)
	}
	// Nor does it send more than a socket's send buffer holds, which by default are some 50 packets that a
	// device has not finished with: the rings are to be the limit. Without CAP_NET_ADMIN it stays as it is.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, o.Tx*int(s.umem.frameSize+skbOverhead))
	return nil
}

// skbOverhead is what the kernel counts of a packet besides its bytes, in bytes: more than any that was seen.
const skbOverhead = 2048

// sendBudget is how many packets one system call should send in copy mode.
const sendBudget = 256

func (s *Socket) setBusyPoll(b BusyPoll) error {
	for _, o := range []struct{ option, value int }{
		{unix.SO_PREFER_BUSY_POLL, 1},
		{unix.SO_BUSY_POLL, int(b.Time / time.Microsecond)},
		{unix.SO_BUSY_POLL_BUDGET, b.Budget},
	} {
		switch err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o.option, o.value); err {
		case nil:
		case unix.ENOPROTOOPT:
			return fmt.Errorf("set busy polling: %w: it needs Linux 5.11 built with NET_RX_BUSY_POLL", err)
		case unix.EPERM:
			return fmt.Errorf("set busy polling: %w: it needs CAP_NET_ADMIN", err)
		default:
			return fmt.Errorf("set busy polling: %w", err)
		}
	}
	return nil
}

// Mode returns the mode that the kernel has granted: ZeroCopy, Copy or Generic.
func (s *Socket) Mode() Mode { return s.mode }

// Attempts returns the modes that Open tried, in order; the last is the one in use.
func (s *Socket) Attempts() []Attempt { return s.attempts }

// Device returns what Open saw of the device.
func (s *Socket) Device() Device { return s.device }

// Queue returns the number of the queue.
func (s *Socket) Queue() int { return s.queue }

// SetPool makes the socket the worker's whose pool that is, another one of the UMEM, from the next call on: so a
// socket can be opened with a pool made for it while its worker goes on. The frames that it holds come to the new pool.
func (s *Socket) SetPool(p *Pool) { s.pool = p }

// FD returns the descriptor, to be put into an XSKMAP. It stays the socket's.
func (s *Socket) FD() int { return s.fd }

// Close closes the socket. Take it out of the map, and out of pollers, first. Packets that are in its rings
// are lost; frames that it has received stay with the caller, who may send them on other sockets. Its
// worker must have done with it, and nobody be in Stats.
//
// Frames that the kernel had are Closed in the UMEM's Census until it is known to have let go of them:
// when a socket is opened on the queue again, or by Recover.
func (s *Socket) Close() error {
	u := s.umem
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sockets[s.id] != s {
		return nil
	}
	err := s.release()
	delete(u.sockets, s.id)
	u.leave(s)
	if err != nil {
		return fmt.Errorf("close socket on %s queue %d: %w", s.device.Name, s.queue, err)
	}
	return nil
}

// release unmaps the rings, without which the kernel would keep the queue, and closes the socket.
func (s *Socket) release() error {
	errs := []error{s.rx.unmap(), s.tx.unmap(), s.fill.unmap(), s.completion.unmap()}
	s.rx.desc, s.tx.desc, s.fill.addr, s.completion.addr = nil, nil, nil, nil
	if s.fd >= 0 {
		errs = append(errs, unix.Close(s.fd))
		s.fd = -1
	}
	return errors.Join(errs...)
}
