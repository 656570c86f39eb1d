package xsk

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"
)

// metadataLen is the size of struct xsk_tx_metadata, which lies in front of a packet that asks for
// something, in bytes.
const metadataLen = 24

// Offsets in struct xsk_tx_metadata (linux/if_xdp.h); all numbers are the machine's.
const (
	metadataFlags       = 0  // 64 bits
	metadataCsumStart   = 8  // 16 bits
	metadataCsumOffset  = 10 // 16 bits
	sizeOfChecksumField = 2
)

// Offloads reports whether Checksum leaves the work to the device: the UMEM has TxMetadata, and the socket
// is in copy mode, where the kernel sees to it for every device, or the driver takes requests in zero-copy
// mode.
func (s *Socket) Offloads() bool { return s.checksum }

// Checksum sees to the transport checksum of a packet that is about to be given to Transmit, and reports
// whether it is left to the device. The sum is over the bytes from start to the end of the packet's last
// descriptor, without padding then, and belongs at start+offset, where the folded sum of the
// pseudo-header stands now: what Linux calls CHECKSUM_PARTIAL. Both count in bytes, from the packet's
// first.
//
// Where Offloads says no, or the field is not in the first frame, or that has no 24 bytes free in front,
// the sum is made here. In copy mode a device that makes no checksums gets packets that the kernel has
// completed; a veth hands the request on to its other end, whose kernel takes the packet for good.
//
// It panics if the field lies outside of the packet.
func (s *Socket) Checksum(packet []Desc, start, offset int) bool {
	first := &packet[0]
	front, _ := s.umem.Room(*first)
	if !s.checksum || front < metadataLen || start+offset+sizeOfChecksumField > int(first.Len) {
		s.umem.CompleteChecksum(packet, start, offset)
		return false
	}
	m := s.umem.Before(*first, metadataLen)
	clear(m)
	binary.NativeEndian.PutUint64(m[metadataFlags:], unix.XDP_TXMD_FLAGS_CHECKSUM)
	binary.NativeEndian.PutUint16(m[metadataCsumStart:], uint16(start))
	binary.NativeEndian.PutUint16(m[metadataCsumOffset:], uint16(offset))
	first.Options |= unix.XDP_TX_METADATA
	return true
}

// CompleteChecksum does what Checksum asks for, here and now.
func (u *UMEM) CompleteChecksum(packet []Desc, start, offset int) {
	var sum uint64
	odd := false // the bytes so far are odd in number: the next piece's bytes change places in the sum
	at := 0      // where the piece begins in the packet
	for _, d := range packet {
		b := u.Frame(d)
		if skip := start - at; skip >= len(b) {
			at += len(b)
			continue
		} else if skip > 0 {
			at += skip
			b = b[skip:]
		}
		piece := fold(sumBytes(b))
		if odd {
			piece = bits.ReverseBytes16(piece)
		}
		sum += uint64(piece)
		odd = odd != (len(b)%2 == 1)
		at += len(b)
	}
	folded := ^fold(sum)
	if folded == 0 {
		folded = 0xffff // UDP keeps 0 for "none"; to all others it is the same
	}
	*u.byteAt(packet, start+offset) = byte(folded >> 8)
	*u.byteAt(packet, start+offset+1) = byte(folded)
}

// byteAt returns the byte at a position of a packet.
func (u *UMEM) byteAt(packet []Desc, at int) *byte {
	i := 0
	for ; at >= int(packet[i].Len); i++ {
		at -= int(packet[i].Len)
	}
	return &u.Frame(packet[i])[at]
}

// sumBytes adds up big-endian words of 16 bits, the last one filled up with 0.
func sumBytes(b []byte) uint64 {
	var sum, carry uint64
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
		b = b[8:]
	}
	var last [8]byte
	copy(last[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(last[:]), carry)
	sum, carry = bits.Add64(sum, 0, carry)
	return sum + carry
}

// fold makes 16 bits of a sum of such words, carries and all.
func fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}
