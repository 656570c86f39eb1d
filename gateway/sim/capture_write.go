package sim

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// CaptureWriter writes a capture of Ethernet frames in pcap format, with times in ns.
type CaptureWriter struct {
	w    *bufio.Writer
	head [16]byte
}

// NewCaptureWriter writes the head of a capture. Flush ends it.
func NewCaptureWriter(w io.Writer) (*CaptureWriter, error) {
	out := &CaptureWriter{w: bufio.NewWriterSize(w, 1<<16)}
	var head [24]byte
	le := binary.LittleEndian
	le.PutUint32(head[0:], magicNano)
	le.PutUint16(head[4:], 2)
	le.PutUint16(head[6:], 4)
	le.PutUint32(head[16:], 1<<18) // snap length, libpcap's own
	le.PutUint32(head[20:], uint32(LinkEthernet))
	if _, err := out.w.Write(head[:]); err != nil {
		return nil, fmt.Errorf("write capture: %w", err)
	}
	return out, nil
}

// Write adds a frame that was captured at now, in ns since 1970, and had original bytes on the wire.
func (w *CaptureWriter) Write(now uint64, frame []byte, original int) error {
	le := binary.LittleEndian
	le.PutUint32(w.head[0:], uint32(now/1e9))
	le.PutUint32(w.head[4:], uint32(now%1e9))
	le.PutUint32(w.head[8:], uint32(len(frame)))
	le.PutUint32(w.head[12:], uint32(max(original, len(frame))))
	_, err := w.w.Write(w.head[:])
	if err == nil {
		_, err = w.w.Write(frame)
	}
	if err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}

// Flush writes what is still in memory.
func (w *CaptureWriter) Flush() error {
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}
