package pipe

import (
	"encoding/binary"

	"github.com/softdpu/softdpu/bpf"
)

// Frame is a packet's bytes with the words that pipes compare, as bpf/pipe_parse.h fills them, and where its headers
// are. Words that no frame holds (port, mark, tick, random) are the caller's to set.
type Frame struct {
	Bytes  []byte
	Fields bpf.PipesPipeFields

	l3, l4, payload int // in bytes from its beginning; 0 = there is none
	tags            int // it came with; 4 = as many as cannot be written back
	family          int // 4, 6 or 0
	proto           uint32
	length          int // of the IP packet
	routed          bool
}

const (
	parseReach = 1023 // bytes of the frame in which headers are looked for
	parseChain = 8    // most IPv6 extension headers
)

const (
	protoHopByHop, protoDCCP, protoRouting, protoFragment = 0, 33, 43, 44
	protoESP, protoAH, protoDstOptions, protoUDPLite      = 50, 51, 60, 136
)

// ParseFrame finds the words of a frame, as a program of the pipeline does. Frames have one buffer here.
func (p *Program) ParseFrame(b []byte) *Frame {
	f := &Frame{Bytes: b}
	w := &f.Fields.Word
	w[wordLength] = uint32(len(b))
	if len(b) < 14 {
		return f
	}
	mac := func(word int, b []byte) {
		w[word], w[word+1] = uint32(binary.BigEndian.Uint16(b)), binary.BigEndian.Uint32(b[2:])
	}
	mac(int(bpf.PipesPipeWordPIPE_ETH_DST), b)
	mac(wordEthSrc, b[6:])
	kind := f.be16(12)
	f.l3 = 14
	for i := 0; i < 2 && isTag(kind) && f.l3+4 <= len(b); i++ {
		tci := f.be16(f.l3)
		w[wordVLAN0ID+2*i], w[wordVLAN0PCP+2*i] = tci&0xfff, tci>>13
		w[wordHas] |= hasVLAN0 << i
		w[wordVLANs]++
		kind = f.be16(f.l3 + 2)
		f.l3 += 4
	}
	if f.tags = int(w[wordVLANs]); isTag(kind) {
		f.tags = 4
	}
	w[wordEthType] = kind
	checks := p.Used>>wordHas&1 == 1
	switch kind {
	case 0x0800:
		f.ipv4(checks)
	case 0x86dd:
		f.ipv6(checks)
	}
	for i, r := range p.Pipeline.Raws {
		at := map[string]int{"l3": f.l3, "l4": f.l4, "payload": f.payload}[r.Base]
		if at == 0 && r.Base != "l2" {
			continue
		}
		if at += r.Offset; f.reaches(at, 4) {
			w[int(bpf.PipesPipeWordPIPE_RAW0)+i] = f.be32(at)
			w[wordHas] |= uint32(bpf.PipesPipeHasPIPE_HAS_RAW0) << i
		}
	}
	return f
}

func isTag(kind uint32) bool { return kind == 0x8100 || kind == 0x88a8 }

func (f *Frame) be16(at int) uint32 { return uint32(binary.BigEndian.Uint16(f.Bytes[at:])) }
func (f *Frame) be32(at int) uint32 { return binary.BigEndian.Uint32(f.Bytes[at:]) }

// reaches tells whether n bytes of a header that may be anywhere are where headers are looked for.
func (f *Frame) reaches(at, n int) bool { return at <= parseReach && at+n <= len(f.Bytes) }

func (f *Frame) ipv4(checks bool) {
	at, w := f.l3, &f.Fields.Word
	if at+20 > len(f.Bytes) || f.Bytes[at]>>4 != 4 || f.Bytes[at]&15 < 5 {
		return
	}
	length := int(f.Bytes[at]&15) * 4
	if at+length > len(f.Bytes) || int(f.be16(at+2)) < length {
		return
	}
	fragment := f.be16(at + 6)
	w[wordHas] |= hasIP | hasIPv4
	w[wordProto], w[wordTTL] = uint32(f.Bytes[at+9]), uint32(f.Bytes[at+8])
	w[wordDSCP], w[wordECN] = uint32(f.Bytes[at+1]>>2), uint32(f.Bytes[at+1]&3)
	f.length = int(f.be16(at + 2))
	w[bpf.PipesPipeWordPIPE_IP_LENGTH], w[bpf.PipesPipeWordPIPE_IP_ID] = uint32(f.length), f.be16(at+4)
	w[bpf.PipesPipeWordPIPE_IP_DF] = fragment >> 14 & 1
	switch {
	case fragment&0x1fff != 0:
		w[bpf.PipesPipeWordPIPE_IP_FRAGMENT] = uint32(bpf.PipesPipeFragmentPIPE_FRAGMENT_LATER)
	case fragment&0x2000 != 0:
		w[bpf.PipesPipeWordPIPE_IP_FRAGMENT] = uint32(bpf.PipesPipeFragmentPIPE_FRAGMENT_FIRST)
	}
	w[wordIPSrc], w[wordIPDst] = f.be32(at+12), f.be32(at+16)
	f.family = 4
	if checks && foldSum(sumBytes(0, f.Bytes[at:at+length])) == 0xffff {
		w[wordHas] |= hasChecksum
	}
	if fragment&0x1fff != 0 {
		return
	}
	f.l4 = at + length
	f.transport(w[wordProto])
}

func (f *Frame) ipv6(checks bool) {
	at, w := f.l3, &f.Fields.Word
	if at+40 > len(f.Bytes) || f.Bytes[at]>>4 != 6 {
		return
	}
	first := f.be32(at)
	w[wordHas] |= hasIP | hasIPv6
	if checks {
		w[wordHas] |= hasChecksum
	}
	w[wordTTL], w[wordDSCP], w[wordECN] = uint32(f.Bytes[at+7]), first>>22&0x3f, first>>20&3
	w[bpf.PipesPipeWordPIPE_IP_LABEL] = first & 0xfffff
	f.length = int(f.be16(at+4)) + 40
	w[bpf.PipesPipeWordPIPE_IP_LENGTH] = uint32(f.length)
	for i := range 4 {
		w[wordIPSrc+i], w[wordIPDst+i] = f.be32(at+8+4*i), f.be32(at+24+4*i)
	}
	f.family = 6
	next, l4, later := uint32(f.Bytes[at+6]), at+40, false
	for range parseChain {
		if !isExtension(next) || !f.reaches(l4, 8) {
			break
		}
		h := f.Bytes[l4:]
		switch next {
		case protoFragment:
			offset := f.be16(l4 + 2)
			if later = offset&0xfff8 != 0; later {
				w[bpf.PipesPipeWordPIPE_IP_FRAGMENT] = uint32(bpf.PipesPipeFragmentPIPE_FRAGMENT_LATER)
			} else if offset&1 != 0 {
				w[bpf.PipesPipeWordPIPE_IP_FRAGMENT] = uint32(bpf.PipesPipeFragmentPIPE_FRAGMENT_FIRST)
			}
			l4 += 8
		case protoAH:
			l4 += (int(h[1]) + 2) * 4
		default:
			f.routed = f.routed || next == protoRouting && h[3] != 0
			l4 += (int(h[1]) + 1) * 8
		}
		if next = uint32(h[0]); later {
			break
		}
	}
	if w[wordProto] = next; later {
		return
	}
	f.l4 = l4
	f.transport(next)
}

func isExtension(proto uint32) bool {
	return proto == protoHopByHop || proto == protoRouting || proto == protoDstOptions || proto == protoAH || proto == protoFragment
}

// transport reads the header behind IP's, of which a later fragment has none.
func (f *Frame) transport(proto uint32) {
	at, w := f.l4, &f.Fields.Word
	left := max(0, f.l3+f.length-at) // what follows is padding
	if !f.reaches(at, 4) {
		return
	}
	whole := func(n int) bool { return left >= n && at+n <= len(f.Bytes) }
	switch proto {
	case protoTCP:
		if !whole(20) {
			return
		}
		w[wordHas] |= hasTCP | hasPorts
		w[wordFlags] = uint32(f.Bytes[at+13])
		w[bpf.PipesPipeWordPIPE_TCP_SEQ], w[bpf.PipesPipeWordPIPE_TCP_ACK] = f.be32(at+4), f.be32(at+8)
		f.payload = at + int(f.Bytes[at+12]>>4)*4
	case protoUDP:
		if !whole(8) {
			return
		}
		w[wordHas] |= hasUDP | hasPorts
		f.payload = at + 8
		if f.be16(at+2) == 4789 && whole(16) && f.Bytes[at+8]&0x08 != 0 {
			w[wordHas] |= uint32(bpf.PipesPipeHasPIPE_HAS_VXLAN)
			w[bpf.PipesPipeWordPIPE_VXLAN_VNI] = f.be32(at+12) >> 8
		}
	case protoICMP, protoICMPv6:
		if !whole(8) {
			return
		}
		w[wordHas] |= hasICMP
		w[wordICMPType], w[wordICMPCode] = uint32(f.Bytes[at]), uint32(f.Bytes[at+1])
		w[bpf.PipesPipeWordPIPE_ICMP_IDENT] = f.be16(at + 4)
		f.payload = at + 8
	case protoESP:
		if !whole(8) {
			return
		}
		w[wordHas] |= uint32(bpf.PipesPipeHasPIPE_HAS_ESP)
		w[bpf.PipesPipeWordPIPE_ESP_SPI], w[bpf.PipesPipeWordPIPE_ESP_SEQ] = f.be32(at), f.be32(at+4)
		f.payload = at + 8
	case protoUDPLite, protoDCCP:
		if left < 8 {
			return
		}
	default:
		return
	}
	f.proto = proto
	if w[wordHas]&hasPorts != 0 {
		w[wordSport], w[wordDport] = f.be16(at), f.be16(at+2)
	}
}

// sumBytes adds 16-bit words; an odd byte at the end is the upper half of one.
func sumBytes(sum uint64, b []byte) uint64 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	return sum
}

// foldSum is the one's complement sum of 16 bits.
func foldSum(sum uint64) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
