package pcapng

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// maxBlock bounds what a block that is read may hold, in bytes.
const maxBlock = 1 << 20

// A Reader reads what a Writer has written: packets, the interfaces that they came from, and statistics.
type Reader struct {
	in         *bufio.Reader
	block      []byte
	interfaces []Interface
	statistics map[int]Statistics
	packet     Packet
	comment    string // of the packet before: the next one's is often the same
}

// NewReader makes a Reader.
func NewReader(in io.Reader) *Reader {
	return &Reader{in: bufio.NewReaderSize(in, 1<<16), statistics: make(map[int]Statistics)}
}

// Interfaces returns those that have been described so far.
func (r *Reader) Interfaces() []Interface { return r.interfaces }

// Statistics returns the latest of each interface, by number.
func (r *Reader) Statistics() map[int]Statistics { return r.statistics }

// Packet returns the next packet, valid until the next call. It returns io.EOF behind the last block, and
// io.ErrUnexpectedEOF if the capture breaks off inside one.
func (r *Reader) Packet() (*Packet, error) {
	for {
		kind, body, err := r.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil, err
			}
			return nil, fmt.Errorf("read capture: %w", err)
		}
		var p *Packet
		switch kind {
		case blockSection:
			if len(body) < 4 || binary.LittleEndian.Uint32(body) != byteOrder {
				return nil, errors.New("read capture: it is not pcapng of this byte order")
			}
		case blockInterface:
			err = r.readInterface(body)
		case blockStatistics:
			err = r.readStatistics(body)
		case blockPacket:
			p, err = r.readPacket(body)
		}
		if err != nil {
			return nil, fmt.Errorf("read capture: block of type %d: %w", kind, err)
		}
		if p != nil {
			return p, nil
		}
	}
}

// next reads a block and returns what stands between its lengths.
func (r *Reader) next() (kind uint32, body []byte, err error) {
	var head [blockHeaderSize]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		return 0, nil, err
	}
	kind, length := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	if length < blockHeaderSize+4 || length%4 != 0 || length > maxBlock {
		return 0, nil, fmt.Errorf("block of %d bytes", length)
	}
	n := int(length) - blockHeaderSize
	if cap(r.block) < n {
		r.block = make([]byte, n)
	}
	body = r.block[:n]
	if _, err := io.ReadFull(r.in, body); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	if binary.LittleEndian.Uint32(body[n-4:]) != length {
		return 0, nil, errors.New("block whose two lengths differ")
	}
	return kind, body[:n-4], nil
}

var errShort = errors.New("it is cut short")

func (r *Reader) readInterface(b []byte) error {
	if len(b) < 8 {
		return errShort
	}
	i := Interface{Snaplen: binary.LittleEndian.Uint32(b[4:])}
	err := options(b[8:], func(code uint16, value []byte) {
		switch code {
		case interfaceName:
			i.Name = string(value)
		case interfaceDescription:
			i.Description = string(value)
		case interfaceFilter:
			if len(value) > 0 {
				i.Filter = string(value[1:])
			}
		}
	})
	r.interfaces = append(r.interfaces, i)
	return err
}

func (r *Reader) readStatistics(b []byte) error {
	if len(b) < 12 {
		return errShort
	}
	s := Statistics{Interface: int(binary.LittleEndian.Uint32(b)), End: timeOf(b[4:])}
	err := options(b[12:], func(code uint16, value []byte) {
		if len(value) != 8 {
			return
		}
		n := binary.LittleEndian.Uint64(value)
		switch code {
		case statisticsStart:
			s.Start = timeOf(value)
		case statisticsReceived:
			s.Received = n
		case statisticsAccepted:
			s.Accepted = n
		case statisticsOSDropped:
			s.Dropped = n
		case statisticsDelivered:
			s.Delivered = n
		}
	})
	r.statistics[s.Interface] = s
	return err
}

func (r *Reader) readPacket(b []byte) (*Packet, error) {
	if len(b) < 20 {
		return nil, errShort
	}
	p := &r.packet
	*p = Packet{
		Interface: int(binary.LittleEndian.Uint32(b)), Time: timeOf(b[4:]), Length: int(binary.LittleEndian.Uint32(b[16:])),
	}
	captured := uint64(binary.LittleEndian.Uint32(b[12:]))
	rest := b[20:]
	if captured > uint64(len(rest)) {
		return nil, errShort
	}
	if p.Interface >= len(r.interfaces) {
		return nil, fmt.Errorf("interface %d has not been described", p.Interface)
	}
	p.Data = rest[:captured]
	return p, options(rest[min(uint64(len(rest)), (captured+3)/4*4):], func(code uint16, value []byte) {
		switch {
		case code == optionComment:
			if string(value) != r.comment {
				r.comment = string(value)
			}
			p.Comment = r.comment
		case code == packetFlags && len(value) == 4:
			p.Direction = Direction(value[0] & 3)
		}
	})
}

func timeOf(b []byte) time.Time {
	return time.Unix(0, int64(uint64(binary.LittleEndian.Uint32(b))<<32|uint64(binary.LittleEndian.Uint32(b[4:]))))
}

func options(b []byte, each func(code uint16, value []byte)) error {
	for len(b) >= 4 {
		code, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if code == optionEnd {
			return nil
		}
		padded := (n + 3) / 4 * 4
		if 4+padded > len(b) {
			return errShort
		}
		each(code, b[4:4+n])
		b = b[4+padded:]
	}
	return nil
}
