package flowtable

import (
	"encoding/binary"
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// PutPrefix returns what a NAT_PREFIX_* rule makes of an address of its family; false if nothing.
func PutPrefix(rule *bpf.XDPNatRule, of netip.Addr) (netip.Addr, bool) {
	var a packet.Addr
	copy(a[:], of.AsSlice())
	ok := putPrefix(rule, &a)
	out, _ := netip.AddrFromSlice(a[:addrLen(rule.Family)])
	return out, ok
}

// putPrefix makes an address one of the prefix that a NAT_PREFIX_* rule writes. What is behind the prefix
// stays, but for the word of an IPv6 address that keeps the sum of all as it was (RFC 6296). It reports
// false if there is no such word.
func putPrefix(rule *bpf.XDPNatRule, a *packet.Addr) bool {
	family := uint8(4)
	if rule.Family == 6 {
		family = 6
	}
	prefix := natAddress(family, &rule.Address)
	bits := min(int(rule.Prefix), 8*addrLen(family))
	whole := bits / 8
	copy(a[:whole], prefix[:whole])
	if rest := bits % 8; rest != 0 {
		mask := byte(0xff) << (8 - rest)
		a[whole] = prefix[whole]&mask | a[whole]&^mask
	}
	if family == 4 {
		return true
	}
	at := 6 // bits 48 to 63
	if bits > 48 {
		for at = 8; at < 16 && a[at]&a[at+1] == 0xff; at += 2 {
		}
		if at == 16 {
			return false
		}
	}
	word := uint32(binary.BigEndian.Uint16(a[at:])) + uint32(rule.Adjust)
	word = word>>16 + word&0xffff
	if word == 0xffff {
		word = 0
	}
	binary.BigEndian.PutUint16(a[at:], uint16(word))
	return true
}
