package flowtable

import (
	"encoding/binary"
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Tuple names one direction of a flow: what a packet shows. Ports are those of the flow key in host
// order: of TCP and UDP; ICMP and ICMPv6 queries have the identifier as the requester's port and 0
// as the other's; all else has 0.
type Tuple struct {
	Family           uint8 // 4 or 6
	Proto            uint8
	Domain           uint16
	Src, Dst         packet.Addr
	SrcPort, DstPort uint16
	Kind             uint8 // Key*; no packet has another than KeyFlow
}

// Kinds of keys (abi.h: KEY_*).
const (
	KeyFlow    = 0
	KeyMapping = 1 // of an end inside and its address outside: DstPort and Domain are the nat rule
	KeyPeer    = 2 // of an end inside and an address to which it has sent
)

// Source and Destination return the tuple's addresses.
func (t *Tuple) Source() netip.Addr      { return address(t.Family, &t.Src) }
func (t *Tuple) Destination() netip.Addr { return address(t.Family, &t.Dst) }

func address(family uint8, a *packet.Addr) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte(a[:4]))
	}
	return netip.AddrFrom16(*a)
}

// reverse returns the tuple of the other direction.
func (t *Tuple) reverse() Tuple {
	r := *t
	r.Src, r.Dst, r.SrcPort, r.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
	return r
}

// flowKey is the canonical key of a tuple, of either family.
type flowKey struct {
	family uint8
	sender uint8 // leg index of the tuple's source: 0 = lo, 1 = hi
	v4     bpf.XDPFlow4Key
	v6     bpf.XDPFlow6Key
}

// keyOf puts the endpoints of t in canonical order: the numerically lower address first. Addresses
// are never equal (packet.Martian).
func keyOf(t *Tuple) flowKey {
	k := flowKey{family: t.Family}
	lo, hi, loPort, hiPort := &t.Src, &t.Dst, t.SrcPort, t.DstPort
	if less(hi, lo) {
		lo, hi, loPort, hiPort = hi, lo, hiPort, loPort
		k.sender = 1
	}
	if t.Family == 4 {
		k.v4 = bpf.XDPFlow4Key{
			Lo: load32(lo[:]), Hi: load32(hi[:]),
			LoPort: swap16(loPort), HiPort: swap16(hiPort),
			Domain: t.Domain, Proto: t.Proto, Kind: t.Kind,
		}
		return k
	}
	k.v6 = bpf.XDPFlow6Key{
		Lo: words(lo), Hi: words(hi),
		LoPort: swap16(loPort), HiPort: swap16(hiPort),
		Domain: t.Domain, Proto: t.Proto, Kind: t.Kind,
	}
	return k
}

func less(a, b *packet.Addr) bool {
	ah, bh := binary.BigEndian.Uint64(a[:]), binary.BigEndian.Uint64(b[:])
	if ah != bh {
		return ah < bh
	}
	return binary.BigEndian.Uint64(a[8:]) < binary.BigEndian.Uint64(b[8:])
}

// Addresses and ports in keys stand as in the packet: loaded little-endian they are the integers
// that a little-endian CPU sees there.
func load32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

func words(a *packet.Addr) (w [4]uint32) {
	for i := range w {
		w[i] = load32(a[4*i:])
	}
	return w
}

func addr4(w uint32) (a packet.Addr) {
	binary.LittleEndian.PutUint32(a[:], w)
	return a
}

func addr6(w *[4]uint32) (a packet.Addr) {
	for i, x := range w {
		binary.LittleEndian.PutUint32(a[4*i:], x)
	}
	return a
}

func swap16(p uint16) uint16 { return p<<8 | p>>8 }

// tuple4 and tuple6 return the direction of a key's endpoint `sender`.
func tuple4(k *bpf.XDPFlow4Key, sender uint8) Tuple {
	t := Tuple{
		Family: 4, Proto: k.Proto, Domain: k.Domain, Kind: k.Kind,
		Src: addr4(k.Lo), Dst: addr4(k.Hi), SrcPort: swap16(k.LoPort), DstPort: swap16(k.HiPort),
	}
	if sender == 1 {
		return t.reverse()
	}
	return t
}

func tuple6(k *bpf.XDPFlow6Key, sender uint8) Tuple {
	t := Tuple{
		Family: 6, Proto: k.Proto, Domain: k.Domain, Kind: k.Kind,
		Src: addr6(&k.Lo), Dst: addr6(&k.Hi), SrcPort: swap16(k.LoPort), DstPort: swap16(k.HiPort),
	}
	if sender == 1 {
		return t.reverse()
	}
	return t
}
