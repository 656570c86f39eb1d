package sim

import (
	"encoding/binary"
	"fmt"
	"math"
)

// captureInterface is what a pcapng interface block says.
type captureInterface struct {
	link   LinkType
	snap   uint32
	unit   float64 // ns of a time stamp's unit; 0 = exactly `exact`
	exact  uint64
	offset int64 // s
}

// Blocks of pcapng (draft-ietf-opsawg-pcapng).
const (
	blockSection  = 0x0a0d0d0a
	blockIface    = 1
	blockPacket   = 2 // obsolete
	blockSimple   = 3
	blockEnhanced = 6

	byteOrderMagic = 0x1a2b3c4d

	optionEnd        = 0
	optionResolution = 9
	optionOffset     = 14
)

// nextBlock reads blocks until one holds a packet.
func (c *Capture) nextBlock(p *Captured) error {
	for {
		head, err := c.read(8)
		if err != nil {
			return err
		}
		kind := c.order.Uint32(head)
		length := c.order.Uint32(head[4:])
		if kind == blockSection {
			if err := c.section(head[4:8]); err != nil {
				return err
			}
			continue
		}
		if length < 12 || length%4 != 0 || length > 16*maxCaptured {
			return fmt.Errorf("block of %d bytes: the file is damaged", length)
		}
		body, err := c.read(int(length) - 8)
		if err != nil {
			return short(err)
		}
		body = body[:len(body)-4] // the length again
		switch kind {
		case blockIface:
			err = c.addInterface(body)
		case blockEnhanced, blockPacket, blockSimple:
			return c.packet(kind, body, p)
		}
		if err != nil {
			return err
		}
	}
}

// section begins a section: with its own byte order, and without interfaces.
func (c *Capture) section(length []byte) error {
	raw := [4]byte(length)
	magic, err := c.read(4)
	if err != nil {
		return short(err)
	}
	switch {
	case binary.LittleEndian.Uint32(magic) == byteOrderMagic:
		c.order = binary.LittleEndian
	case binary.BigEndian.Uint32(magic) == byteOrderMagic:
		c.order = binary.BigEndian
	default:
		return fmt.Errorf("section without byte order: the file is damaged")
	}
	n := c.order.Uint32(raw[:])
	if n < 28 || n%4 != 0 || n > maxCaptured {
		return fmt.Errorf("section header of %d bytes: the file is damaged", n)
	}
	if _, err := c.read(int(n) - 12); err != nil {
		return short(err)
	}
	c.interfaces = c.interfaces[:0]
	return nil
}

func (c *Capture) addInterface(b []byte) error {
	if len(b) < 8 {
		return fmt.Errorf("interface block of %d bytes: the file is damaged", len(b))
	}
	i := captureInterface{link: LinkType(c.order.Uint16(b)), snap: c.order.Uint32(b[4:]), exact: 1000}
	for b = b[8:]; len(b) >= 4; {
		code, n := c.order.Uint16(b), int(c.order.Uint16(b[2:]))
		if b = b[4:]; code == optionEnd || n > len(b) {
			break
		}
		switch {
		case code == optionResolution && n == 1:
			i.resolution(b[0])
		case code == optionOffset && n == 8:
			i.offset = int64(c.order.Uint64(b))
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	c.interfaces = append(c.interfaces, i)
	return nil
}

// resolution sets the unit of time stamps: 10^-v s, or with the top bit 2^-v s.
func (i *captureInterface) resolution(v byte) {
	if v&0x80 == 0 && v <= 9 {
		i.unit, i.exact = 0, 1
		for ; v < 9; v++ {
			i.exact *= 10
		}
		return
	}
	base := 10.0
	if v&0x80 != 0 {
		base = 2
	}
	i.unit = 1e9 / math.Pow(base, float64(v&0x7f))
}

func (i *captureInterface) time(stamp uint64) uint64 {
	t := stamp * i.exact
	if i.unit != 0 {
		t = uint64(float64(stamp) * i.unit)
	}
	return t + uint64(i.offset)*1e9
}

func (c *Capture) packet(kind uint32, b []byte, p *Captured) error {
	head := map[uint32]int{blockEnhanced: 20, blockPacket: 20, blockSimple: 4}[kind]
	if len(b) < head {
		return fmt.Errorf("packet block of %d bytes: the file is damaged", len(b))
	}
	id := uint32(0)
	switch kind {
	case blockEnhanced:
		id = c.order.Uint32(b)
	case blockPacket:
		id = uint32(c.order.Uint16(b))
	}
	if int(id) >= len(c.interfaces) {
		return fmt.Errorf("packet of interface %d, which the capture does not describe", id)
	}
	i := &c.interfaces[id]
	if err := i.link.check(); err != nil {
		return err
	}
	var n uint32
	if kind == blockSimple {
		// The original length alone; what is there is that much, or as much as was to be captured.
		n = c.order.Uint32(b)
		p.Original = int(n)
		if i.snap != 0 {
			n = min(n, i.snap)
		}
		n = min(n, uint32(len(b)-head))
		p.Time = c.last
	} else {
		p.Time = i.time(uint64(c.order.Uint32(b[4:]))<<32 | uint64(c.order.Uint32(b[8:])))
		n, p.Original = c.order.Uint32(b[12:]), int(c.order.Uint32(b[16:]))
	}
	if int(n) > len(b)-head {
		return fmt.Errorf("packet claims %d bytes in a block of %d: the file is damaged", n, len(b))
	}
	p.Link, p.Data = i.link, b[head:head+int(n)]
	p.Original = max(p.Original, len(p.Data))
	c.last = p.Time
	return nil
}
