package worker

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// An exchange carries descriptors from one worker to one other, in order. Each end is one worker's: put and
// publish are the producer's, take is the consumer's. The cache lines that they write are apart.
type exchange struct {
	produced atomic.Uint32 // published
	written  uint32        // by the producer, published or not
	seen     uint32        // consumed, when the producer looked last
	_        [52]byte

	consumed atomic.Uint32
	ready    uint32 // produced, when the consumer looked last
	_        [56]byte

	mask    uint32
	entries []xsk.Desc
}

func newExchange(size int) *exchange {
	return &exchange{mask: uint32(size - 1), entries: make([]xsk.Desc, size)}
}

// room reports whether so many entries may be put.
func (x *exchange) room(n int) bool {
	if len(x.entries)-int(x.written-x.seen) >= n {
		return true
	}
	x.seen = x.consumed.Load()
	return len(x.entries)-int(x.written-x.seen) >= n
}

// put writes an entry, for which there must be room.
func (x *exchange) put(d xsk.Desc) {
	x.entries[x.written&x.mask] = d
	x.written++
}

// publish lets the consumer have what was put.
func (x *exchange) publish() { x.produced.Store(x.written) }

// take moves up to len(batch) entries to the consumer, and returns how many. A packet of several comes whole: it
// was published so, and batch has room for the longest.
func (x *exchange) take(batch []xsk.Desc) int {
	at := x.consumed.Load()
	if x.ready == at {
		if x.ready = x.produced.Load(); x.ready == at {
			return 0
		}
	}
	n := min(int(x.ready-at), len(batch))
	for i := range n {
		batch[i] = x.entries[(at+uint32(i))&x.mask]
	}
	for n > 0 && batch[n-1].More() {
		n--
	}
	x.consumed.Store(at + uint32(n))
	return n
}

// empty reports whether there is nothing to take. The consumer may ask.
func (x *exchange) empty() bool { return x.produced.Load() == x.consumed.Load() }

// How much two workers can have under way between them: descriptors that one has handed over and the other not yet
// taken, and frames that are not back with their owner. Many workers have less, since there are rings for each pair.
func exchangeSizes(workers int) (handed, away int) {
	if workers > 16 {
		return 256, 1024
	}
	return 1024, 4096
}

// A bell wakes a worker that waits, by an eventfd.
type bell struct {
	fd     int
	asleep atomic.Bool // the worker waits, or is about to
}

func newBell() (*bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &bell{fd: fd}, nil
}

// ring wakes the worker if he sleeps, and reports whether that took a system call. What he shall find must be
// published before.
func (b *bell) ring() bool {
	if !b.asleep.Load() || !b.asleep.CompareAndSwap(true, false) {
		return false
	}
	one := uint64(1)
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(b.fd), uintptr(unsafe.Pointer(&one)), 8)
	return true
}

// quiet takes back what was rung.
func (b *bell) quiet() {
	var n uint64
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(b.fd), uintptr(unsafe.Pointer(&n)), 8)
}

func (b *bell) close() { _ = unix.Close(b.fd) }
