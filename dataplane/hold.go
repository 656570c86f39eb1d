package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

const (
	heldMax  = 64  // HELD_MAX
	heldLife = 954 // HELD_LIFE, ticks: 1 s

	// Between two looks for the first fragments of what is held: they come soon, or hardly ever.
	holdSoon, holdLate = time.Millisecond, 8 * time.Millisecond
)

// HeldFragments says what became of later fragments that came before their first.
type HeldFragments struct {
	Held     uint64 // that wait now
	Released uint64 // since Open: their first has come
	Expired  uint64 // since Open: their first had not come after 1 s, or when the daemon ended
}

// HeldFragments returns them.
func (p *Plane) HeldFragments() HeldFragments {
	return HeldFragments{
		Held:     uint64(max(0, atomic.LoadInt32(&p.mem.gateway[0].Held))),
		Released: p.held.released.Load(), Expired: p.held.expired.Load(),
	}
}

// HoldFragments holds later fragments that come before their first, until ctx is done; it then returns nil.
// XDP gives it at most 64 frames at once. Each of them goes to XDP again, at the port by which it came, when
// the first fragment of its datagram has been judged; or else after 1 s, for XDP to drop and count it. There
// may be one call at a time; without one XDP drops such fragments at once.
func (p *Plane) HoldFragments(ctx context.Context) error {
	gw := &p.mem.gateway[0]
	h := &holder{
		gw: gw, counts: &p.held, now: NowTick,
		known: func(k *datagramKey) bool { return p.knows(k, NowTick()) },
		again: p.arriveAgain,
	}
	// Test runs look for the port's device in the namespace of their thread.
	err := p.ns.do(func() error {
		reader, err := ringbuf.NewReader(p.maps[bpf.XDPMapHeldFragments])
		if err != nil {
			return err
		}
		defer reader.Close()
		defer context.AfterFunc(ctx, func() { reader.Flush() })()
		return h.run(ctx, reader)
	})
	if err != nil {
		return fmt.Errorf("hold fragments: %w", err)
	}
	return nil
}

// heldCounts is what a plane counts of held fragments beside gateway_state.
type heldCounts struct{ released, expired atomic.Uint64 }

// datagramKey is the key of a fragmented datagram, and where the fragment table has it.
type datagramKey struct {
	src, dst [4]uint32
	id       uint32
	domain   uint16
	proto    uint8
	family   uint8
	group    uint32
}

// A heldFrame waits for the first fragment of its datagram.
type heldFrame struct {
	datagram datagramKey
	port     uint32 // interface index
	tick     uint32 // of arrival
	frame    []byte
}

// holder holds the frames that XDP gives away. One goroutine owns it.
type holder struct {
	gw     *bpf.XDPGatewayState
	counts *heldCounts
	frames []heldFrame // in order of arrival
	record ringbuf.Record

	now   func() uint32           // ticks
	known func(*datagramKey) bool // whether XDP has judged the first fragment
	again func(*heldFrame) error  // gives it back to XDP, which does not give it away a second time
}

// run holds frames until ctx is done, which flushes the reader. What is held then comes to its end at once.
func (h *holder) run(ctx context.Context, reader *ringbuf.Reader) error {
	err := h.begin(reader)
	for err == nil && ctx.Err() == nil {
		var until time.Time
		if len(h.frames) > 0 {
			until = time.Now().Add(h.pause())
		}
		reader.SetDeadline(until)
		err = h.read(reader)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = h.look(false)
		} else if errors.Is(err, ringbuf.ErrFlushed) {
			err = nil
		}
	}
	return errors.Join(err, h.drain(reader), h.look(true))
}

// begin takes what XDP has given away while nobody held anything: it waits on. What a daemon that was killed
// held has gone with it.
func (h *holder) begin(reader *ringbuf.Reader) error {
	err := h.drain(reader)
	if err == nil {
		lost := atomic.LoadInt32(&h.gw.Held) - int32(len(h.frames))
		atomic.AddUint32(&h.gw.HeldLost, uint32(max(0, lost)))
		atomic.StoreInt32(&h.gw.Held, int32(len(h.frames)))
		atomic.StoreInt32(&h.gw.HeldMax, heldMax)
	}
	return err
}

// drain has XDP give nothing more away, and reads what it has.
func (h *holder) drain(reader *ringbuf.Reader) error {
	atomic.StoreInt32(&h.gw.HeldMax, 0)
	if err := Grace(); err != nil {
		return err
	}
	reader.SetDeadline(time.Unix(1, 0))
	for {
		err := h.read(reader)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil && !errors.Is(err, ringbuf.ErrFlushed) {
			return err
		}
	}
}

func (h *holder) read(reader *ringbuf.Reader) error {
	if err := reader.ReadInto(&h.record); err != nil {
		return err
	}
	b := h.record.RawSample
	var head bpf.XDPHeld
	if len(b) < int(unsafe.Sizeof(head)) {
		return fmt.Errorf("a record of %d bytes is no frame: the program object does not fit this binary", len(b))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&head)), unsafe.Sizeof(head)), b)
	h.take(&head)
	return nil
}

func (h *holder) take(r *bpf.XDPHeld) {
	h.frames = append(h.frames, heldFrame{
		datagramKey{r.Src, r.Dst, r.Id, r.Domain, r.Proto, r.Family, r.Group},
		r.Ifindex, r.Tick, append([]byte(nil), r.Frame[:min(int(r.Length), len(r.Frame))]...),
	})
}

// pause is how long nobody looks, the longer the longer nothing has come.
func (h *holder) pause() time.Duration {
	age := time.Duration(h.now()-h.frames[len(h.frames)-1].tick) << TickShift
	return min(max(holdSoon, age/8), holdLate)
}

// look gives back the frames whose first fragment has come, and those whose time is over, or all. Those of one
// datagram go in the order in which they came. It goes on after an error.
func (h *holder) look(all bool) error {
	var errs []error
	known := make(map[datagramKey]bool)
	now, kept := h.now(), h.frames[:0]
	for _, f := range h.frames {
		first, asked := known[f.datagram]
		if !asked {
			first = h.known(&f.datagram)
			known[f.datagram] = first
		}
		switch {
		case first:
			h.counts.released.Add(1)
		case all || int32(now-f.tick) >= heldLife:
			h.counts.expired.Add(1)
		default:
			kept = append(kept, f)
			continue
		}
		if err := h.again(&f); err != nil {
			atomic.AddUint32(&h.gw.HeldLost, 1)
			if !errors.Is(err, unix.ENODEV) { // the port has lost its device meanwhile
				errs = append(errs, err)
			}
		}
		atomic.AddInt32(&h.gw.Held, -1)
	}
	clear(h.frames[len(kept):])
	h.frames = kept
	return errors.Join(errs...)
}
