package dataplane

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/softdpu/softdpu/bpf"
)

// Events calls handle for every event that XDP writes, in order, until ctx is done and those are handled that
// XDP had written by then; it then returns nil. The event is valid during the call. There may be one reader at a time: what XDP writes while
// there is none, or while handle is slow, waits in a ring of 1 MiB, and is lost once that is full.
func (p *Plane) Events(ctx context.Context, handle func(*bpf.XDPEvent)) error {
	reader, err := ringbuf.NewReader(p.maps[bpf.XDPMapEvents])
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer reader.Close()
	stop := context.AfterFunc(ctx, func() { _ = reader.Flush() }) // which fails once it is closed
	defer stop()

	var (
		record ringbuf.Record
		event  bpf.XDPEvent
	)
	size := int(unsafe.Sizeof(event))
	left := reader.BufferSize() / size // XDP may go on writing as fast as they are read
	for left > 0 {
		if err := reader.ReadInto(&record); errors.Is(err, ringbuf.ErrFlushed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if ctx.Err() != nil {
			left--
		}
		if len(record.RawSample) < size {
			return fmt.Errorf("read events: a record of %d bytes is no event of %d: the program object does not fit this binary", len(record.RawSample), size)
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&event)), size), record.RawSample)
		handle(&event)
	}
	return nil
}

// LostEvents returns how many events of the run before nobody will write, where this one has begun afresh:
// those in its ring, and those that its daemon had taken when it was killed. Call it after Attach.
func (p *Plane) LostEvents() uint64 {
	if p.life == nil {
		return 0
	}
	return p.life.lostEvents
}

// lostEvents counts them by the pins of a run that nothing uses any more. What cannot be read is not
// counted: the run had another layout, or ended before it had pinned it.
func lostEvents(dir string) (n uint64) {
	if credits, err := ebpf.LoadPinnedMap(filepath.Join(dir, creditsName), nil); err == nil {
		defer credits.Close()
		var none Credit
		if credits.ValueSize() == uint32(unsafe.Sizeof(none)) && credits.Lookup(uint32(0), &none) == nil {
			n += none.Taken - none.Settled
		}
	}
	ring, err := ebpf.LoadPinnedMap(filepath.Join(dir, bpf.XDPMapEvents), nil)
	if err != nil {
		return n
	}
	defer ring.Close()
	r, err := ringbuf.NewReader(ring)
	if err != nil {
		return n
	}
	defer r.Close()
	r.SetDeadline(time.Unix(1, 0)) // what is there now
	var record ringbuf.Record
	for r.ReadInto(&record) == nil {
		n++
	}
	return n
}
