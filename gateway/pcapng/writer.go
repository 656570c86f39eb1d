package pcapng

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// A Writer writes blocks, each by one call of the underlying Write.
type Writer struct {
	out io.Writer
	b   []byte // the block at hand
}

// NewWriter makes a Writer; nothing is written yet.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Section begins a capture.
func (w *Writer) Section(s Section) error {
	w.begin(blockSection)
	w.u32(byteOrder)
	w.u16(1) // version 1.0
	w.u16(0)
	w.u64(1<<64 - 1) // length not told
	w.text(optionComment, s.Comment)
	w.text(sectionOS, s.OS)
	w.text(sectionApplication, s.Application)
	return w.end()
}

// Interface describes the next interface.
func (w *Writer) Interface(i Interface) error {
	w.begin(blockInterface)
	w.u16(linkEthernet)
	w.u16(0)
	w.u32(i.Snaplen)
	w.text(interfaceName, i.Name)
	w.text(interfaceDescription, i.Description)
	w.option(interfaceResolution, nanoseconds)
	if i.Filter != "" {
		w.option(interfaceFilter, append([]byte{filterAsText}, i.Filter...)...)
	}
	return w.end()
}

// Packet writes a packet.
func (w *Writer) Packet(p *Packet) error {
	w.begin(blockPacket)
	w.u32(uint32(p.Interface))
	w.time(p.Time)
	w.u32(uint32(len(p.Data)))
	w.u32(uint32(p.Length))
	w.b = append(w.b, p.Data...)
	w.pad()
	if p.Direction != DirectionUnknown {
		w.u16(packetFlags)
		w.u16(4)
		w.u32(uint32(p.Direction))
	}
	w.text(optionComment, p.Comment)
	return w.end()
}

// Statistics writes what became of packets. Later ones of an interface stand for earlier ones.
func (w *Writer) Statistics(s Statistics) error {
	w.begin(blockStatistics)
	w.u32(uint32(s.Interface))
	w.time(s.End)
	for _, t := range []struct {
		code uint16
		at   time.Time
	}{{statisticsStart, s.Start}, {statisticsEnd, s.End}} {
		high, low := stamp(t.at)
		w.option(t.code, binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, high), low)...)
	}
	for _, n := range []struct {
		code  uint16
		count uint64
	}{
		{statisticsReceived, s.Received}, {statisticsIfDropped, s.Dropped}, {statisticsAccepted, s.Accepted},
		{statisticsOSDropped, s.Dropped}, {statisticsDelivered, s.Delivered},
	} {
		w.option(n.code, binary.LittleEndian.AppendUint64(nil, n.count)...)
	}
	return w.end()
}

func (w *Writer) begin(kind uint32) {
	w.b = w.b[:0]
	w.u32(kind)
	w.u32(0) // length, once it is known
}

// end closes options and block, and writes it.
func (w *Writer) end() error {
	w.u16(optionEnd)
	w.u16(0)
	length := uint32(len(w.b) + 4)
	w.u32(length)
	binary.LittleEndian.PutUint32(w.b[4:], length)
	if _, err := w.out.Write(w.b); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}

func (w *Writer) u16(v uint16) { w.b = binary.LittleEndian.AppendUint16(w.b, v) }
func (w *Writer) u32(v uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *Writer) u64(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }

func (w *Writer) time(t time.Time) {
	high, low := stamp(t)
	w.u32(high)
	w.u32(low)
}

func stamp(t time.Time) (high, low uint32) {
	ns := uint64(t.UnixNano())
	return uint32(ns >> 32), uint32(ns)
}

// pad fills up to a multiple of 4 bytes.
func (w *Writer) pad() {
	for len(w.b)%4 != 0 {
		w.b = append(w.b, 0)
	}
}

// text adds an option of a text, unless it is empty.
func (w *Writer) text(code uint16, s string) {
	if s == "" {
		return
	}
	s = s[:min(len(s), maxOption)]
	w.u16(code)
	w.u16(uint16(len(s)))
	w.b = append(w.b, s...)
	w.pad()
}

func (w *Writer) option(code uint16, value ...byte) { w.text(code, string(value)) }
