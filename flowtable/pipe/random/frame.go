package random

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

const vxlanPort = 4789

// What packets have.
const (
	hasVLAN0    = uint32(bpf.PipesPipeHasPIPE_HAS_VLAN0)
	hasVLAN1    = uint32(bpf.PipesPipeHasPIPE_HAS_VLAN1)
	hasIPv4     = uint32(bpf.PipesPipeHasPIPE_HAS_IPV4)
	hasIPv6     = uint32(bpf.PipesPipeHasPIPE_HAS_IPV6)
	hasTCP      = uint32(bpf.PipesPipeHasPIPE_HAS_TCP)
	hasUDP      = uint32(bpf.PipesPipeHasPIPE_HAS_UDP)
	hasPorts    = uint32(bpf.PipesPipeHasPIPE_HAS_PORTS)
	hasICMP     = uint32(bpf.PipesPipeHasPIPE_HAS_ICMP)
	hasESP      = uint32(bpf.PipesPipeHasPIPE_HAS_ESP)
	hasVXLAN    = uint32(bpf.PipesPipeHasPIPE_HAS_VXLAN)
	hasIP       = uint32(bpf.PipesPipeHasPIPE_HAS_IP)
	hasChecksum = uint32(bpf.PipesPipeHasPIPE_HAS_CHECKSUM)
	hasRaw0     = uint32(bpf.PipesPipeHasPIPE_HAS_RAW0)
)

// Protocols.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoESP    = 50
	protoICMPv6 = 58
)

// written is a frame with the places of its headers; -1: there is none.
type written struct {
	frame           []byte
	l3, l4, payload int
}

// packet writes the draft, and its words.
func (d *draft) packet(line *pipe.Pipeline) Packet {
	d.settle()
	w := d.write()
	// What is wanted of raw fields is put where nothing else stands, and then the checksums are to be made again.
	for i, r := range line.Raws {
		at, ok := w.raw(r)
		v, wanted := d.raws["raw."+line.Raws[i].Name]
		if end := len(w.frame) - len(d.payload); wanted && ok && at >= end {
			for at-end+4 > len(d.payload) {
				d.payload = append(d.payload, 0)
			}
			binary.BigEndian.PutUint32(d.payload[at-end:], v)
		}
	}
	w = d.write()
	return Packet{w.frame, d.words(line, w)}
}

// settle makes the draft agree with itself.
func (d *draft) settle() {
	if d.family == 0 {
		return
	}
	if d.family == 4 && d.proto == protoICMPv6 {
		d.proto = protoICMP
	}
	if d.family == 6 && d.proto == protoICMP {
		d.proto = protoICMPv6
	}
	switch d.proto {
	case 0, 4, 41, 43, 44, 51, 60, 135, 139, 140: // of headers behind which others follow
		d.proto = 132
	}
	if d.fragment == 1 { // but the last fragment's, lengths are multiples of 8
		for len(d.payload)%8 != 0 || len(d.payload) == 0 {
			d.payload = append(d.payload, 1)
		}
	}
}

func (d *draft) echoes() bool {
	return d.proto == protoICMP && (d.kind == 0 || d.kind == 8) || d.proto == protoICMPv6 && (d.kind == 128 || d.kind == 129)
}

// transportHeader is what stands before the payload.
func (d *draft) transportHeader() []byte {
	if d.fragment == 2 {
		return nil
	}
	var h []byte
	switch d.proto {
	case protoTCP:
		h = binary.BigEndian.AppendUint16(h, uint16(d.sport))
		h = binary.BigEndian.AppendUint16(h, uint16(d.dport))
		h = binary.BigEndian.AppendUint32(h, d.seq)
		h = binary.BigEndian.AppendUint32(h, d.ack)
		h = append(h, 5<<4, byte(d.flags), 1, 0, 0, 0, 0, 0)
	case protoUDP:
		h = binary.BigEndian.AppendUint16(h, uint16(d.sport))
		h = binary.BigEndian.AppendUint16(h, uint16(d.dport))
		h = binary.BigEndian.AppendUint16(h, uint16(8+len(d.payload)))
		h = append(h, 0, 0)
	case protoICMP, protoICMPv6:
		h = append(h, byte(d.kind), byte(d.code), 0, 0)
		echo := uint16(0)
		if d.echoes() {
			echo = uint16(d.echo)
		}
		h = binary.BigEndian.AppendUint16(h, echo)
		h = append(h, 0, 0)
	case protoESP:
		h = binary.BigEndian.AppendUint32(h, d.spi)
		h = binary.BigEndian.AppendUint32(h, d.number)
	}
	return h
}

func (d *draft) write() written {
	w := written{l3: -1, l4: -1, payload: -1}
	mac := func(v pipe.Value) {
		w.frame = binary.BigEndian.AppendUint16(w.frame, uint16(v[0]))
		w.frame = binary.BigEndian.AppendUint32(w.frame, v[1])
	}
	mac(d.dst)
	mac(d.src)
	for _, tag := range d.tags {
		w.frame = binary.BigEndian.AppendUint16(w.frame, 0x8100)
		w.frame = binary.BigEndian.AppendUint16(w.frame, uint16(tag[1]<<13|tag[0]))
	}
	w.frame = binary.BigEndian.AppendUint16(w.frame, uint16(d.innerType()))
	w.l3 = len(w.frame)
	if d.family == 0 {
		w.frame = append(w.frame, d.payload...)
		return w
	}
	header := d.transportHeader()
	if d.family == 4 {
		w.frame = append(w.frame, d.ipv4(len(header)+len(d.payload))...)
	} else {
		w.frame = append(w.frame, d.ipv6(len(header)+len(d.payload))...)
	}
	at := len(w.frame)
	w.frame = append(append(w.frame, header...), d.payload...)
	if d.fragment == 2 {
		return w
	}
	w.l4 = at
	if len(header) > 0 {
		w.payload = at + len(header)
	}
	d.checksum(w.frame[at:])
	return w
}

func (d *draft) innerType() uint32 {
	switch d.family {
	case 4:
		return 0x0800
	case 6:
		return 0x86dd
	}
	return d.etherType
}

// ipv4 is the header before n bytes.
func (d *draft) ipv4(n int) []byte {
	h := make([]byte, 20)
	if d.options {
		h = append(h, 1, 1, 1, 1) // four that do nothing
	}
	h[0] = 4<<4 | byte(len(h)/4)
	h[1] = byte(d.dscp<<2 | d.ecn)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+n))
	binary.BigEndian.PutUint16(h[4:], uint16(d.id))
	binary.BigEndian.PutUint16(h[6:], uint16(d.df<<14|map[uint32]uint32{1: 1 << 13, 2: 185}[d.fragment]))
	h[8], h[9] = byte(d.ttl), byte(d.proto)
	binary.BigEndian.PutUint32(h[12:], d.source[0])
	binary.BigEndian.PutUint32(h[16:], d.target[0])
	sum := ^fold(add(0, h))
	if d.damaged {
		sum ^= 0x0100
	}
	binary.BigEndian.PutUint16(h[10:], sum)
	return h
}

// ipv6 is the header before n bytes, with its extension headers.
func (d *draft) ipv6(n int) []byte {
	var kinds []byte
	var headers [][]byte
	if d.options {
		kinds, headers = append(kinds, 60), append(headers, []byte{0, 0, 1, 4, 0, 0, 0, 0}) // padding, for the destination
	}
	if d.fragment != 0 {
		offset := map[uint32]uint16{1: 1, 2: 185 << 3}[d.fragment] // with the bit for more
		kinds, headers = append(kinds, 44), append(headers, []byte{0, 0, byte(offset >> 8), byte(offset), 0, 0, 0, byte(d.id)})
	}
	kinds = append(kinds, byte(d.proto))
	h := make([]byte, 40)
	h[6] = kinds[0]
	for i, header := range headers {
		header[0] = kinds[i+1]
		h = append(h, header...)
	}
	binary.BigEndian.PutUint32(h, 6<<28|d.dscp<<22|d.ecn<<20|d.label)
	binary.BigEndian.PutUint16(h[4:], uint16(len(h)-40+n))
	h[7] = byte(d.ttl)
	for i := range 4 {
		binary.BigEndian.PutUint32(h[8+4*i:], d.source[i])
		binary.BigEndian.PutUint32(h[24+4*i:], d.target[i])
	}
	return h
}

// checksum fills in that of the transport header.
func (d *draft) checksum(segment []byte) {
	at, ok := map[uint32]int{protoTCP: 16, protoUDP: 6, protoICMP: 2, protoICMPv6: 2}[d.proto]
	if !ok {
		return
	}
	var pseudo []byte
	n := 4
	if d.family == 4 {
		n = 1
	}
	for _, end := range [][4]uint32{d.source, d.target} {
		for _, word := range end[:n] {
			pseudo = binary.BigEndian.AppendUint32(pseudo, word)
		}
	}
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(segment)))
	pseudo = binary.BigEndian.AppendUint32(pseudo, d.proto)
	if d.proto == protoICMP {
		pseudo = nil
	}
	sum := ^fold(add(add(0, pseudo), segment))
	if sum == 0 && d.proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(segment[at:], sum)
}

func add(sum uint32, b []byte) uint32 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// raw is where a raw field lies, if its base is there.
func (w *written) raw(r *pipe.Raw) (at int, ok bool) {
	base := map[string]int{"l2": 0, "l3": w.l3, "l4": w.l4, "payload": w.payload}[r.Base]
	return base + r.Offset, base >= 0
}
