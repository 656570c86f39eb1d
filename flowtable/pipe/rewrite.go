package pipe

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// ErrNotWritten says that a frame cannot hold what its words tell of: the program drops it as internal.
var ErrNotWritten = errors.New("the frame cannot be given its new headers")

// Rewrite returns the frame with what actions have changed of its words, and its checksums, as bpf/pipe_write.h
// writes them. The error is [ErrNotWritten].
func (f *Frame) Rewrite() ([]byte, error) {
	b := slices.Clone(f.Bytes)
	written := f.Fields.Word[wordWritten]
	const addressed = wroteIP | wrotePorts
	if f.family != 0 && written&(addressed|wroteTTL|wroteTOS) != 0 {
		if written&addressed != 0 {
			f.complete(b)
		}
		sum := f.writeIP(b)
		if written&addressed != 0 {
			f.writeTransport(b, sum)
		}
	}
	if written&(wroteEth|wroteVLAN) == 0 {
		return b, nil
	}
	if written&wroteVLAN != 0 {
		var err error
		if b, err = f.writeTags(b); err != nil {
			return nil, err
		}
	}
	if len(b) < 14 {
		return nil, ErrNotWritten
	}
	w := &f.Fields.Word
	for i, word := range []int{int(bpf.PipesPipeWordPIPE_ETH_DST), wordEthSrc} {
		binary.BigEndian.PutUint16(b[6*i:], uint16(w[word]))
		binary.BigEndian.PutUint32(b[6*i+2:], w[word+1])
	}
	return b, nil
}

// complete finishes a checksum that is still the bare sum of the pseudo-header: its sender left it to hardware.
func (f *Frame) complete(b []byte) {
	w := &f.Fields.Word
	length := f.l3 + f.length - f.l4
	if f.routed || w[wordHas]&hasPorts == 0 || w[bpf.PipesPipeWordPIPE_IP_FRAGMENT] != 0 || length < 8 || length > 65535 {
		return
	}
	addresses := b[f.l3+12 : f.l3+20]
	if f.family == 6 {
		addresses = b[f.l3+8 : f.l3+40]
	}
	pseudo := sumBytes(uint64(f.proto)+uint64(length), addresses)
	at := f.l4 + checksumAt(f.proto)
	if at+2 > len(b) {
		return
	}
	if have := binary.BigEndian.Uint16(b[at:]); have != foldSum(pseudo) || have == 0 && f.proto == protoUDP || f.l4+length > len(b) {
		return
	}
	check := ^foldSum(sumBytes(0, b[f.l4:f.l4+length]))
	if check == 0 && f.proto == protoUDP {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], check)
}

// checksumAt is where a transport header has its checksum.
func checksumAt(proto uint32) int {
	switch proto {
	case protoTCP:
		return 16
	case protoICMPv6:
		return 2
	}
	return 6 // UDP, UDP-Lite and DCCP
}

// put writes 16 bits and adds how the sum changes (RFC 1624).
func put(b []byte, value uint16, sum uint64) uint64 {
	was := binary.BigEndian.Uint16(b)
	binary.BigEndian.PutUint16(b, value)
	return sum + uint64(^was) + uint64(value)
}

func put32(b []byte, value uint32, sum uint64) uint64 {
	return put(b[2:], uint16(value), put(b, uint16(value>>16), sum))
}

// changed is a checksum after a change of what it is over.
func changed(check uint16, sum uint64) uint16 { return ^foldSum(uint64(^check) + sum) }

// writeIP writes the IP header, and returns how the sum of the addresses has changed over which transport checksums go.
func (f *Frame) writeIP(b []byte) (addresses uint64) {
	w, h := &f.Fields.Word, b[f.l3:]
	written := w[wordWritten]
	header := uint64(0)
	if f.family == 4 {
		if written&wroteIP != 0 {
			addresses = put32(h[16:], w[wordIPDst], put32(h[12:], w[wordIPSrc], 0))
		}
		if header = addresses; written&wroteTTL != 0 {
			header = put(h[8:], uint16(w[wordTTL])<<8|uint16(h[9]), header)
		}
		if written&wroteTOS != 0 {
			header = put(h, uint16(h[0])<<8|uint16(w[wordDSCP]<<2|w[wordECN]), header)
		}
		binary.BigEndian.PutUint16(h[10:], changed(binary.BigEndian.Uint16(h[10:]), header))
		return addresses
	}
	if written&wroteIP != 0 {
		for i := range 4 {
			addresses = put32(h[8+4*i:], w[wordIPSrc+i], addresses)
			header = put32(h[24+4*i:], w[wordIPDst+i], header)
		}
		if !f.routed { // the last destination is another one
			addresses += header
		}
	}
	if written&wroteTTL != 0 {
		h[7] = byte(w[wordTTL])
	}
	if written&wroteTOS != 0 {
		put32(h, 6<<28|w[wordDSCP]<<22|w[wordECN]<<20|binary.BigEndian.Uint32(h)&0xfffff, 0)
	}
	return addresses
}

// writeTransport writes ports, and corrects the checksum.
func (f *Frame) writeTransport(b []byte, sum uint64) {
	w := &f.Fields.Word
	if f.proto == 0 || !f.reaches(f.l4, 8) {
		return
	}
	if w[wordWritten]&wrotePorts != 0 && w[wordHas]&hasPorts != 0 {
		sum = put(b[f.l4+2:], uint16(w[wordDport]), put(b[f.l4:], uint16(w[wordSport]), sum))
	}
	switch f.proto {
	case protoTCP, protoUDP, protoUDPLite, protoDCCP:
	case protoICMPv6:
		if f.family != 6 {
			return
		}
	default:
		return
	}
	at := f.l4 + checksumAt(f.proto)
	if at+2 > len(b) || f.proto == protoUDP && binary.BigEndian.Uint16(b[at:]) == 0 {
		return
	}
	check := changed(binary.BigEndian.Uint16(b[at:]), sum)
	if check == 0 && (f.proto == protoUDP || f.proto == protoUDPLite) {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], check)
}

// writeTags gives the frame the tags that its words tell of. One that stays keeps its type and its DEI.
func (f *Frame) writeTags(b []byte) ([]byte, error) {
	w := &f.Fields.Word
	tags := int(w[wordVLANs])
	if tags > 2 || f.tags > 2 {
		return nil, ErrNotWritten
	}
	more := tags - f.tags
	kinds, dei := [2]uint16{0x8100, 0x8100}, [2]uint16{}
	for i := range f.tags {
		if to := i + more; to >= 0 && to < 2 {
			kinds[to] = binary.BigEndian.Uint16(b[12+4*i:])
			dei[to] = binary.BigEndian.Uint16(b[14+4*i:]) & 0x1000
		}
	}
	var out []byte
	if more >= 0 {
		out = append(make([]byte, 4*more), b...)
	} else if out = b[-4*more:]; len(out) < 14 {
		return nil, ErrNotWritten
	}
	if len(out) < 22 {
		return nil, ErrNotWritten
	}
	at := out[12:]
	for i := range tags {
		binary.BigEndian.PutUint16(at, kinds[i])
		binary.BigEndian.PutUint16(at[2:], uint16(w[wordVLAN0PCP+2*i]<<13)|dei[i]|uint16(w[wordVLAN0ID+2*i]))
		at = at[4:]
	}
	binary.BigEndian.PutUint16(at, uint16(w[wordEthType]))
	return out, nil
}

// RunFrame takes a frame through the program and returns where it goes (enum pipe_forward), the walk, and the frame as it leaves.
// Words that no frame holds are set before: [Program.ParseFrame]. The error is [ErrNotWritten].
func (p *Program) RunFrame(f *Frame) (forward uint32, walk []Step, out []byte, err error) {
	forward, walk = p.Run(&f.Fields)
	if forward>>forwardShift == toDrop>>forwardShift {
		return forward, walk, nil, nil
	}
	out, err = f.Rewrite()
	return forward, walk, out, err
}
