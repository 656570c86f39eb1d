package flowtable

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// aclMatches is the naive oracle: it asks an entry as it was written, knows nothing of trees and
// compares addresses with netip.
func aclMatches(e *ACLEntry, k *bpf.XDPClassifyKey) bool {
	if e.Family != 0 && e.Family != k.Family {
		return false
	}
	inAny := func(list []AddrRange, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(r AddrRange) bool {
			return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
		})
	}
	return e.From.Has(k.From) && e.To.Has(k.To) &&
		inAny(e.Src, aclKeyAddr(k.Family, k.SrcHi, k.SrcLo)) && inAny(e.Dst, aclKeyAddr(k.Family, k.DstHi, k.DstLo)) &&
		(len(e.Contexts) == 0 || slices.Contains(e.Contexts, k.Context)) &&
		e.Proto.First <= k.Proto && k.Proto <= e.Proto.Last &&
		e.SrcPort.First <= k.Sport && k.Sport <= e.SrcPort.Last &&
		e.DstPort.First <= k.Dport && k.Dport <= e.DstPort.Last
}

// aclNaive returns the verdict of the first entry that matches and the audit rules before it.
func aclNaive(entries []ACLEntry, k *bpf.XDPClassifyKey, audits []uint32) (uint32, []uint32) {
	if k.Family != 4 && k.Family != 6 {
		return 0, audits
	}
	for i := range entries {
		if e := &entries[i]; aclMatches(e, k) {
			if !e.Audit {
				return e.Verdict, audits
			}
			audits = append(audits, e.Verdict&aclRuleMask)
		}
	}
	return 0, audits
}

func aclKeyAddr(family uint8, hi, lo uint64) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(lo))))
	}
	return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, hi), lo)))
}

// aclSource draws entries and keys. A small alphabet makes entries meet each other often.
type aclSource struct{ *rand.Rand }

func (s aclSource) addr4() netip.Addr {
	b := [4]byte{10, byte(s.IntN(3)), byte(s.IntN(4)), byte(s.IntN(256))}
	if s.IntN(8) == 0 {
		b = [4]byte(binary.BigEndian.AppendUint32(nil, s.Uint32()))
	}
	return netip.AddrFrom4(b)
}

func (s aclSource) addr6() netip.Addr {
	var b [16]byte
	if s.IntN(8) == 0 {
		binary.BigEndian.PutUint64(b[:], s.Uint64())
		binary.BigEndian.PutUint64(b[8:], s.Uint64())
		return netip.AddrFrom16(b)
	}
	b[0], b[1], b[7] = 0xfd, byte(s.IntN(2)), byte(s.IntN(3))
	if s.IntN(2) == 0 {
		b[15] = byte(s.IntN(4))
		b[8] = byte(s.IntN(2)) << 7
	}
	return netip.AddrFrom16(b)
}

func aclPrefix(p netip.Prefix) AddrRange {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return AddrRange{p.Addr(), a}
}

func (s aclSource) addresses() []AddrRange {
	n := 0
	switch s.IntN(8) {
	case 0, 1, 2:
	case 3, 4, 5:
		n = 1
	case 6:
		n = 1 + s.IntN(6)
	case 7:
		n = 1 + s.IntN(60)
	}
	list := make([]AddrRange, n)
	for i := range list {
		a := s.addr4()
		if s.IntN(2) == 0 {
			a = s.addr6()
		}
		switch s.IntN(4) {
		case 0:
			list[i] = AddrRange{a, a}
		case 1:
			b := s.addr4()
			if a.Is6() {
				b = s.addr6()
			}
			if b.Less(a) {
				a, b = b, a
			}
			list[i] = AddrRange{a, b}
		default:
			list[i] = aclPrefix(netip.PrefixFrom(a, s.IntN(a.BitLen()+1)))
		}
	}
	return list
}

func (s aclSource) ports() U16Range {
	switch s.IntN(5) {
	case 0:
		p := uint16(s.IntN(5))
		return U16Range{p, p}
	case 1:
		p := uint16(80 * s.IntN(3))
		return U16Range{p, p + uint16(s.IntN(1000))}
	case 2:
		return U16Range{1024, 65535}
	}
	return U16Range{0, 65535}
}

func (s aclSource) zones() (z Zones) {
	switch s.IntN(4) {
	case 0:
		z.Add(uint8(1 + s.IntN(4)))
	case 1:
		for range s.IntN(5) {
			z.Add(uint8(s.IntN(256)))
		}
		z.Add(uint8(s.IntN(5)))
	}
	return z
}

func (s aclSource) entries(n int) []ACLEntry {
	entries := make([]ACLEntry, n)
	for i := range entries {
		e := &entries[i]
		e.From, e.To = s.zones(), s.zones()
		e.Src, e.Dst = s.addresses(), s.addresses()
		e.SrcPort, e.DstPort = s.ports(), s.ports()
		e.Proto = []U8Range{{0, 255}, {6, 6}, {17, 17}, {1, 17}}[s.IntN(4)]
		e.Family = []uint8{0, 0, 4, 6}[s.IntN(4)]
		if s.IntN(6) == 0 {
			for range 1 + s.IntN(4) {
				e.Contexts = append(e.Contexts, uint16(s.IntN(8)))
			}
		}
		e.Audit = s.IntN(6) == 0
		e.Verdict = Verdict(uint32(i+1), uint32(1+s.IntN(3)), 0)
		if s.IntN(4) == 0 {
			e.Verdict |= 1 << (28 + s.IntN(2))
		}
	}
	return entries
}

// key draws a key; half of them lie at the edges of some entry's fields.
func (s aclSource) key(entries []ACLEntry) (k bpf.XDPClassifyKey) {
	k.Family = []uint8{4, 6}[s.IntN(2)]
	src, dst := s.addr4(), s.addr4()
	if k.Family == 6 {
		src, dst = s.addr6(), s.addr6()
	}
	k.Sport, k.Dport = uint16(s.IntN(2000)), uint16(s.IntN(2000))
	k.Proto = []uint8{6, 17, 1, 58, uint8(s.IntN(256))}[s.IntN(5)]
	k.From, k.To = uint8(s.IntN(6)), uint8(s.IntN(6))
	k.Context = uint16(s.IntN(10))
	if len(entries) > 0 && s.IntN(2) == 0 {
		e := &entries[s.IntN(len(entries))]
		if e.Family != 0 {
			k.Family = e.Family
		}
		src, dst = s.near(e.Src, src, k.Family), s.near(e.Dst, dst, k.Family)
		k.Sport, k.Dport = s.nearPort(e.SrcPort), s.nearPort(e.DstPort)
		k.Proto = []uint8{e.Proto.First, e.Proto.Last}[s.IntN(2)]
		k.From, k.To = s.nearZone(e.From), s.nearZone(e.To)
		if len(e.Contexts) > 0 {
			k.Context = e.Contexts[s.IntN(len(e.Contexts))]
		}
	}
	if src.Is4() != (k.Family == 4) {
		src = map[bool]func() netip.Addr{true: s.addr4, false: s.addr6}[k.Family == 4]()
	}
	if dst.Is4() != (k.Family == 4) {
		dst = map[bool]func() netip.Addr{true: s.addr4, false: s.addr6}[k.Family == 4]()
	}
	n := aclAddr(src)
	k.SrcHi, k.SrcLo = n.hi, n.lo
	n = aclAddr(dst)
	k.DstHi, k.DstLo = n.hi, n.lo
	return k
}

func (s aclSource) near(list []AddrRange, other netip.Addr, family uint8) netip.Addr {
	list = slices.DeleteFunc(slices.Clone(list), func(r AddrRange) bool { return r.First.Is4() != (family == 4) })
	if len(list) == 0 {
		return other
	}
	r := list[s.IntN(len(list))]
	a := []netip.Addr{r.First, r.Last, r.First.Prev(), r.Last.Next(), r.First, r.Last}[s.IntN(6)]
	if !a.IsValid() {
		return r.First
	}
	return a
}

func (s aclSource) nearPort(r U16Range) uint16 {
	return []uint16{r.First, r.Last, r.First - 1, r.Last + 1, r.First, r.Last}[s.IntN(6)]
}

func (s aclSource) nearZone(z Zones) uint8 {
	for range 8 {
		if n := uint8(s.IntN(6)); z.Has(n) {
			return n
		}
	}
	return uint8(s.IntN(256))
}

func aclPrefix4(a uint32, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, a))), bits)
}

// aclPrefix6 spreads a over both halves of an address.
func aclPrefix6(a uint64, bits int) netip.Prefix {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, a), a*0x9e3779b97f4a7c15)
	return netip.PrefixFrom(netip.AddrFrom16([16]byte(b)), bits)
}
