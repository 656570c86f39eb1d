package oracle

import (
	"encoding/binary"
	"net/netip"
)

// movePrefix gives an address the bits of another prefix of the same length; in IPv6 as RFC 6296 says, so that
// checksums over it stay as they are. False: no word of it can take the difference.
func movePrefix(a netip.Addr, from, to netip.Prefix) (netip.Addr, bool) {
	b, prefix, old := a.AsSlice(), to.Masked().Addr().AsSlice(), from.Masked().Addr().AsSlice()
	for bit := range to.Bits() {
		mask := byte(0x80 >> (bit % 8))
		b[bit/8] = b[bit/8]&^mask | prefix[bit/8]&mask
	}
	if len(b) == 16 {
		at := 6 // the subnet, bits 48 to 63
		if to.Bits() > 48 {
			for at = 8; at < 16 && b[at] == 0xff && b[at+1] == 0xff; {
				at += 2
			}
			if at == 16 {
				return a, false
			}
		}
		word := int(binary.BigEndian.Uint16(b[at:]))
		// Sums in ones' complement are sums modulo 0xffff, whose zero is written 0.
		word = (word + residue(old) - residue(prefix) + 0xffff) % 0xffff
		binary.BigEndian.PutUint16(b[at:], uint16(word))
	}
	return addressOf(b), true
}

func addressOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
