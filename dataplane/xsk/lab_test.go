package xsk_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// patience is how long a condition may take on a slow and busy machine.
const patience = 20 * time.Second

// must ends the test if there is an error, and returns the value.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sinceLinux leaves the test out on a kernel that cannot do what it tests.
func sinceLinux(t *testing.T, major, minor int, what string) {
	t.Helper()
	if !xsk.KernelAtLeast(major, minor) {
		t.Skipf("%s: since Linux %d.%d", what, major, minor)
	}
}

// sinceOptions does so for what UMEMOptions ask for.
func sinceOptions(t *testing.T, o xsk.UMEMOptions) {
	t.Helper()
	if o.MultiBuffer {
		sinceLinux(t, 6, 6, "packets of several frames")
	}
	if o.TxMetadata {
		sinceLinux(t, 6, 8, "checksums left to the device")
	}
}

// A port is a device with a program and a socket for each of some queues.
type port struct {
	node     *testenv.Namespace
	device   string
	redirect *xsk.Redirect
	sockets  []*xsk.Socket
}

// An end is a UMEM, a worker's pool, and ports that share them.
type end struct {
	umem  *xsk.UMEM
	pool  *xsk.Pool
	ports []*port
}

// newEnd makes a UMEM whose frames are all in one pool.
func newEnd(t *testing.T, o xsk.UMEMOptions) *end {
	t.Helper()
	sinceOptions(t, o)
	u := must(xsk.NewUMEM(o))(t)
	e := &end{umem: u, pool: must(u.NewPool(u.Frames()))(t)}
	t.Cleanup(func() { e.close(t) })
	return e
}

// open attaches a program to the device, and opens a socket on each of the queues from 0 on.
func (e *end) open(t *testing.T, node *testenv.Namespace, device string, queues int, a xsk.AttachOptions, o xsk.SocketOptions) *port {
	t.Helper()
	p := &port{node: node, device: device}
	e.ports = append(e.ports, p)
	check(t, node.Do(func() (err error) {
		if p.redirect, err = xsk.Attach(device, a); err != nil {
			return err
		}
		for q := range queues {
			s, err := xsk.Open(e.umem, e.pool, device, q, o)
			if err != nil {
				return err
			}
			p.sockets = append(p.sockets, s)
			if err := p.redirect.Add(s); err != nil {
				return err
			}
		}
		return nil
	}))
	return p
}

// close closes everything, and fails the test if a frame is not where it must be.
func (e *end) close(t *testing.T) {
	t.Helper()
	for _, p := range e.ports {
		for _, s := range p.sockets {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if p.redirect != nil {
			if err := p.redirect.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if c := e.umem.Census(); c.Caller != 0 || c.Kernel != 0 {
		t.Errorf("frames after sockets were closed: %+v", c)
	}
	if err := e.umem.Close(); err != nil {
		t.Error(err)
	}
}

// frameOf makes a frame of that length that differs from all others: the number, and bytes drawn from it.
// Its EtherType is one for experiments, which no kernel answers.
func frameOf(number uint64, length int) []byte {
	b := make([]byte, length)
	source := rand.NewPCG(number, 7)
	for i := 0; i+8 <= length; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], source.Uint64())
	}
	copy(b, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	binary.BigEndian.PutUint64(b[14:], number)
	return b
}

// shortest is the least length of frameOf.
const shortest = 60

// numberOf returns the number of a frame that frameOf made, and whether it is one.
func numberOf(b []byte) (uint64, bool) {
	if len(b) < shortest || b[12] != 0x88 || b[13] != 0xb5 {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[14:]), true
}

// A packet gathers the bytes of one packet from its descriptors.
func gather(u *xsk.UMEM, packet []xsk.Desc) []byte {
	var b []byte
	for _, d := range packet {
		b = append(b, u.Frame(d)...)
	}
	return b
}

// eachPacket calls fn for every packet of a batch, all of which end in it.
func eachPacket(batch []xsk.Desc, fn func(packet []xsk.Desc)) {
	for start, i := 0, 0; i < len(batch); i++ {
		if !batch[i].More() {
			fn(batch[start : i+1])
			start = i + 1
		}
	}
}

// A ledger notes which numbered frames of how many have arrived, byte for byte as they were sent.
type ledger struct {
	length func(number uint64) int
	seen   []bool
	left   int
	last   uint64
	strays int // other packets, as kernels send by themselves

	arrived atomic.Int64 // for the sender, which may run ahead by a window
}

func newLedger(frames int, length func(uint64) int) *ledger {
	return &ledger{length: length, seen: make([]bool, frames), left: frames}
}

// take notes one frame. They must come in order, as on a wire.
func (l *ledger) take(b []byte) error {
	number, ok := numberOf(b)
	if !ok {
		l.strays++
		return nil
	}
	if number >= uint64(len(l.seen)) {
		return fmt.Errorf("frame %d of %d", number, len(l.seen))
	}
	if l.seen[number] {
		return fmt.Errorf("frame %d came twice", number)
	}
	if number < l.last {
		return fmt.Errorf("frame %d came after %d", number, l.last)
	}
	if want := frameOf(number, l.length(number)); !bytes.Equal(b, want) {
		return fmt.Errorf("frame %d came with %d bytes that are not the %d sent", number, len(b), len(want))
	}
	l.seen[number], l.last = true, number
	l.left--
	l.arrived.Add(1)
	return nil
}

func (l *ledger) missing() string {
	var numbers []int
	for i, ok := range l.seen {
		if !ok && len(numbers) < 10 {
			numbers = append(numbers, i)
		}
	}
	return fmt.Sprintf("%d of %d frames are missing, the first of them %v", l.left, len(l.seen), numbers)
}

// stayOnACPU keeps the goroutine on one CPU until it ends. A veth without NAPI queues what is sent on the CPU
// that it is sent on: a sender that the scheduler moves meanwhile has its packets in two queues, which nothing
// orders. No worker of a gateway moves, and kernels leave that to them.
func stayOnACPU(t *testing.T) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Errorf("ask for CPUs: %v", err)
	}
	for cpu := len(may) * 64; cpu >= 0 && one.Count() == 0; cpu-- {
		if may.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Errorf("stay on a CPU: %v", err)
	}
}

// feed sends all frames of the ledger, at most window more than have arrived: so many no ring may lose. It gives
// up when the test ends.
func feed(t *testing.T, l *ledger, window int, send func([]byte) error) {
	stayOnACPU(t)
	for n := range len(l.seen) {
		for end := time.Now().Add(patience); int64(n)-l.arrived.Load() >= int64(window); {
			if t.Context().Err() != nil {
				return
			}
			if time.Now().After(end) {
				t.Errorf("frame %d waits for earlier ones: %d of them arrived", n, l.arrived.Load())
				return
			}
			time.Sleep(50 * time.Microsecond)
		}
		if err := send(frameOf(uint64(n), l.length(uint64(n)))); err != nil {
			t.Errorf("frame %d: %v", n, err)
			return
		}
	}
}
