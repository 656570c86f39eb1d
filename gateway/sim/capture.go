package sim

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Captured is one packet of a capture.
type Captured struct {
	N        int    // from 1
	Time     uint64 // ns since 1970
	Link     LinkType
	Data     []byte // as captured; valid until the next call of Next
	Original int    // bytes on the wire; more than len(Data) if the packet was cut
}

// Capture reads a capture file, packet by packet.
type Capture struct {
	r     io.Reader
	order binary.ByteOrder
	n     int
	buf   []byte
	next  func(*Captured) error

	// pcap
	link  LinkType
	scale uint64 // ns of the fraction's unit

	// pcapng
	interfaces []captureInterface
	last       uint64 // time of the packet before
}

// Magic numbers, read as little-endian.
const (
	magicMicro        = 0xa1b2c3d4
	magicNano         = 0xa1b23c4d
	magicMicroSwapped = 0xd4c3b2a1
	magicNanoSwapped  = 0x4d3cb2a1
	magicNG           = 0x0a0d0d0a
)

// maxCaptured bounds what a record may claim to hold; libpcap's own bound is 256 KiB.
const maxCaptured = 1 << 20

// NewCapture reads the head of a capture in pcap or pcapng format, which gzip may have compressed. The
// error names a link type that is not supported as soon as it is met: in pcap here, in pcapng, where
// each interface has one, with the first packet of such an interface.
func NewCapture(r io.Reader) (*Capture, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	if head, err := buffered.Peek(2); err == nil && bytes.Equal(head, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("read capture: %w", err)
		}
		buffered = bufio.NewReaderSize(z, 1<<16)
	}
	c := &Capture{r: buffered, order: binary.LittleEndian}
	head, err := buffered.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("read capture: it is shorter than a capture's first word: %w", short(err))
	}
	switch binary.LittleEndian.Uint32(head) {
	case magicMicro, magicMicroSwapped, magicNano, magicNanoSwapped:
		err = c.openPcap()
	case magicNG:
		c.next = c.nextBlock
	default:
		err = fmt.Errorf("neither pcap nor pcapng: it begins with %#x", head)
	}
	if err != nil {
		return nil, fmt.Errorf("read capture: %w", err)
	}
	return c, nil
}

// Next reads the next packet. It returns io.EOF behind the last one; an error that says that the file
// ends inside a packet is another.
func (c *Capture) Next(p *Captured) error {
	err := c.next(p)
	if err == io.EOF {
		return err
	}
	if err != nil {
		return fmt.Errorf("read packet %d: %w", c.n+1, err)
	}
	c.n++
	p.N = c.n
	return nil
}

func (c *Capture) openPcap() error {
	head, err := c.read(24)
	if err != nil {
		return fmt.Errorf("file header: %w", short(err))
	}
	c.scale = 1
	switch binary.LittleEndian.Uint32(head) {
	case magicMicro:
		c.scale = 1000
	case magicMicroSwapped:
		c.scale, c.order = 1000, binary.BigEndian
	case magicNanoSwapped:
		c.order = binary.BigEndian
	}
	if major := c.order.Uint16(head[4:]); major != 2 {
		return fmt.Errorf("pcap version %d, only 2 is known", major)
	}
	// The upper bits tell how long the frame check sequence is.
	c.link = LinkType(c.order.Uint32(head[20:]) & 0xffff)
	c.next = c.nextPcap
	return c.link.check()
}

func (c *Capture) nextPcap(p *Captured) error {
	head, err := c.read(16)
	if err != nil {
		return err // io.EOF between two records is the capture's end
	}
	p.Time = uint64(c.order.Uint32(head))*1e9 + uint64(c.order.Uint32(head[4:]))*c.scale
	n := c.order.Uint32(head[8:])
	p.Original = int(c.order.Uint32(head[12:]))
	p.Link = c.link
	if n > maxCaptured {
		return fmt.Errorf("record claims %d bytes: the file is damaged", n)
	}
	if p.Data, err = c.read(int(n)); err != nil {
		return short(err)
	}
	p.Original = max(p.Original, len(p.Data))
	return nil
}

// read reads n bytes into the buffer. It returns io.EOF if there is nothing at all, and
// io.ErrUnexpectedEOF if there is less.
func (c *Capture) read(n int) ([]byte, error) {
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	b := c.buf[:n]
	_, err := io.ReadFull(c.r, b)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("the capture ends inside it: %w", err)
	}
	return b, err
}

// short makes an end of file where something had to follow an error of its own.
func short(err error) error {
	if err == io.EOF {
		return fmt.Errorf("the capture ends inside it: %w", io.ErrUnexpectedEOF)
	}
	return err
}
