package dataplane

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/softdpu/softdpu/bpf"
)

// Events calls handle for every event that XDP writes, in order, until ctx is done; it then returns
// nil. The event is valid during the call. There may be one reader at a time: what XDP writes while
// there is none, or while handle is slow, waits in a ring of 1 MiB, and is lost once that is full.
func (p *Plane) Events(ctx context.Context, handle func(*bpf.XDPEvent)) error {
	reader, err := ringbuf.NewReader(p.maps[bpf.XDPMapEvents])
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer reader.Close()
	stop := context.AfterFunc(ctx, func() { reader.Close() })
	defer stop()

	var (
		record ringbuf.Record
		event  bpf.XDPEvent
	)
	size := int(unsafe.Sizeof(event))
	for {
		if err := reader.ReadInto(&record); err != nil {
			if ctx.Err() != nil && errors.Is(err, ringbuf.ErrClosed) {
				return nil
			}
			return fmt.Errorf("read events: %w", err)
		}
		if len(record.RawSample) < size {
			return fmt.Errorf("read events: a record of %d bytes is no event of %d: the program object does not fit this binary", len(record.RawSample), size)
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&event)), size), record.RawSample)
		handle(&event)
	}
}
