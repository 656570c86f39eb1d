package xsk

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A place is where a frame is, as a debug build follows it.
type place uint8

const (
	placeFree   place = iota // in a pool, or in none
	placeCaller              // received or allocated
	placeFill                // with the kernel, to receive into
	placeSend                // with the kernel, to be sent
	placeClosed              // with the kernel, of a socket that is closed
)

var placeNames = [...]string{
	placeFree:   "free",
	placeCaller: "with the caller",
	placeFill:   "with the kernel for receiving",
	placeSend:   "with the kernel for sending",
	placeClosed: "with the kernel, of a closed socket",
}

func (p place) String() string { return placeNames[p] }

// historyLength is how many moves of each frame a debug build remembers.
const historyLength = 8

// poison fills free frames of a debug build, so that a write to one is found out.
const poison = 0xdb

// A tracker is what a debug build knows of a UMEM's frames. Like a frame, its record belongs to whoever
// has the frame, so it needs no lock; and where a frame is handed over without synchronisation, the race
// detector sees it here, which it does not in mapped memory.
type tracker struct {
	u       *UMEM
	seed    maphash.Seed
	moves   atomic.Uint64 // of all frames, to tell their order
	records []record
}

type record struct {
	place   place
	socket  uint16 // of placeFill and placeSend
	sent    Desc
	sum     uint64 // of the bytes of sent
	count   int    // moves so far
	history [historyLength]move
}

// A move is one line of a frame's history.
type move struct {
	number uint64
	to     place
	socket uint16
	caller uintptr // who called the package
}

func newTracker(u *UMEM) *tracker {
	t := &tracker{u: u, seed: maphash.MakeSeed(), records: make([]record, len(u.holder))}
	for i := range t.records {
		t.poison(uint64(i) << u.shift)
	}
	return t
}

// move notes that the frame at addr goes from one place to another, and panics if it is elsewhere.
func (t *tracker) move(addr uint64, from, to place, socket uint16) {
	r := t.record(addr)
	if r.place != from {
		t.fail(addr, "is moved from %q to %q, and is %s", from, to, r.place)
	}
	if (from == placeFill || from == placeSend || from == placeClosed) && r.socket != socket {
		t.fail(addr, "comes back from socket %d, and was given to socket %d", socket, r.socket)
	}
	if from == placeFree {
		t.checkPoison(addr)
	}
	if to == placeFree {
		t.poison(addr)
	}
	r.place, r.socket = to, socket
	r.history[r.count%historyLength] = move{t.moves.Add(1), to, socket, callerOutside()}
	r.count++
}

// send notes that d is given to the kernel to be sent.
func (t *tracker) send(d Desc, socket uint16) {
	offset := d.Addr & (t.u.frameSize - 1)
	switch {
	case t.u.index(d.Addr) >= uint64(len(t.records)):
		panic(fmt.Sprintf("xsk: descriptor %+v lies outside of the UMEM", d))
	case d.Len == 0:
		t.fail(d.Addr, "is sent with length 0, which the kernel does not take")
	case offset+uint64(d.Len) > t.u.frameSize:
		t.fail(d.Addr, "is sent with %d bytes from %d on, beyond its end", d.Len, offset)
	case t.u.options.TxMetadata && offset < metadataLen:
		t.fail(d.Addr, "is sent from byte %d on, without room for metadata in front", offset)
	case d.Options&^(Continues|unix.XDP_TX_METADATA) != 0 || d.Options&unix.XDP_TX_METADATA != 0 && !t.u.options.TxMetadata:
		t.fail(d.Addr, "is sent with options %#x, which the kernel does not take", d.Options)
	case d.More() && !t.u.options.MultiBuffer:
		t.fail(d.Addr, "is sent as part of a packet of several, without MultiBuffer")
	}
	t.move(d.Addr, placeCaller, placeSend, socket)
	r := t.record(d.Addr)
	r.sent, r.sum = d, t.sum(d)
}

// sent notes that the kernel is done with the frame, which goes to some place, and panics if somebody wrote to it
// meanwhile.
func (t *tracker) sent(addr uint64, to place, socket uint16) {
	r := t.record(addr)
	if r.place == placeSend && t.sum(r.sent) != r.sum {
		t.fail(addr, "was written to after Transmit")
	}
	t.move(addr, placeSend, to, socket)
}

// leave notes that the socket that had the frame is closed.
func (t *tracker) leave(addr uint64, socket uint16) {
	if from := t.record(addr).place; from != placeClosed {
		t.move(addr, from, placeClosed, socket)
	}
}

// look panics if somebody looks at a frame that is not the caller's.
func (t *tracker) look(d Desc) {
	if t.u.index(d.Addr) < uint64(len(t.records)) {
		if r := t.record(d.Addr); r.place != placeCaller {
			t.fail(d.Addr, "is looked at, and is %s", r.place)
		}
	}
}

// close panics if the caller still has frames.
func (t *tracker) close() {
	var lost []uint64
	for i := range t.records {
		if t.records[i].place == placeCaller {
			lost = append(lost, uint64(i)<<t.u.shift)
		}
	}
	if len(lost) > 0 {
		t.fail(lost[0], "was never given back; it is one of %d", len(lost))
	}
}

func (t *tracker) record(addr uint64) *record { return &t.records[t.u.index(addr)] }

func (t *tracker) frame(addr uint64) []byte {
	start := t.u.start(addr)
	return t.u.mem[start : start+t.u.frameSize]
}

func (t *tracker) sum(d Desc) uint64 {
	return maphash.Bytes(t.seed, t.u.mem[d.Addr:d.Addr+uint64(d.Len)])
}

func (t *tracker) poison(addr uint64) {
	frame := t.frame(addr)
	for i := range frame {
		frame[i] = poison
	}
}

func (t *tracker) checkPoison(addr uint64) {
	for i, b := range t.frame(addr) {
		if b != poison {
			t.fail(addr, "was written to at byte %d while it was free", i)
		}
	}
}

// fail panics with what is wrong with the frame, and where it has been.
func (t *tracker) fail(addr uint64, format string, args ...any) {
	r := t.record(addr)
	var b strings.Builder
	fmt.Fprintf(&b, "xsk: frame %d (address %#x) %s\n", t.u.index(addr), addr, fmt.Sprintf(format, args...))
	if r.count == 0 {
		b.WriteString("it has never moved: it is free")
	} else {
		fmt.Fprintf(&b, "its moves, %d in all, the last one last:", r.count)
	}
	for i := max(0, r.count-historyLength); i < r.count; i++ {
		m := r.history[i%historyLength]
		fmt.Fprintf(&b, "\n  %d: %s", m.number, m.to)
		if m.socket != 0 {
			fmt.Fprintf(&b, " (socket %d)", m.socket)
		}
		f, _ := runtime.CallersFrames([]uintptr{m.caller}).Next()
		fmt.Fprintf(&b, ", by %s at %s:%d", f.Function, f.File, f.Line)
	}
	panic(b.String())
}

// callerOutside returns the place in the program from which the package was called; within the package's
// own tests, the nearest place in a test.
func callerOutside() uintptr {
	var pcs [16]uintptr
	n := runtime.Callers(3, pcs[:])
	frames := runtime.CallersFrames(pcs[:n])
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "/dataplane/xsk.") || strings.HasSuffix(f.File, "_test.go") {
			return f.PC + 1 // CallersFrames takes return addresses
		}
		if !more {
			return 0
		}
	}
}
