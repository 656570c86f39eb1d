package flowtable

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// FuzzACL reads entries and keys out of bytes: whatever they say, the search in instructions,
// that in a forest and the oracle agree.
func FuzzACL(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{0, 40, 200, 1000} {
		seed := make([]byte, n)
		for i := range seed {
			seed[i] = byte(r.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b := aclBytes(data)
		entries := make([]ACLEntry, b.next()%40)
		for i := range entries {
			entries[i] = b.entry(uint32(i + 1))
		}
		a, err := CompileACL(entries)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Instructions(); err != nil {
			t.Fatal(err)
		}
		keys := make([]bpf.XDPClassifyKey, 64)
		for i := range keys {
			keys[i] = b.key(entries)
		}
		aclAgree(t, entries, a, nil, keys)
		if forest := newACL(nil); forest.plant(entries) {
			aclAgree(t, entries, forest, nil, keys)
		}
	})
}

// aclBytes hands out the bytes of a fuzzer's input, then zeros.
type aclBytes []byte

func (b *aclBytes) next() byte {
	if len(*b) == 0 {
		return 0
	}
	n := (*b)[0]
	*b = (*b)[1:]
	return n
}

func (b *aclBytes) word() uint16 { return uint16(b.next())<<8 | uint16(b.next()) }

func (b *aclBytes) addr(six bool) netip.Addr {
	x := binary.BigEndian.AppendUint32(nil, uint32(b.word())<<16|uint32(b.word()))
	if !six {
		return netip.AddrFrom4([4]byte(x))
	}
	// Few distinct upper halves, and values at the border of the halves.
	return netip.AddrFrom16([16]byte{0: x[0] & 1, 7: x[0] >> 6, 8: x[1] & 0x81, 14: x[2] & 3, 15: x[3]})
}

func (b *aclBytes) addresses(n byte) (list []AddrRange) {
	for range n {
		how := b.next()
		x := b.addr(how&1 == 1)
		switch how >> 6 {
		case 0:
			list = append(list, AddrRange{x, x})
		case 1:
			y := b.addr(how&1 == 1)
			if y.Less(x) {
				x, y = y, x
			}
			list = append(list, AddrRange{x, y})
		default:
			list = append(list, aclPrefix(netip.PrefixFrom(x, int(b.next())%(x.BitLen()+1))))
		}
	}
	return list
}

func (b *aclBytes) ports(how byte) U16Range {
	switch how & 3 {
	case 0:
		p := b.word()
		return U16Range{p, p}
	case 1:
		x, y := b.word(), b.word()
		return U16Range{min(x, y), max(x, y)}
	}
	return U16Range{0, 65535}
}

func (b *aclBytes) entry(rule uint32) ACLEntry {
	how := b.word()
	e := ACLEntry{Verdict: Verdict(rule, uint32(b.next()&3), 0), Audit: how&7 == 0, Family: []uint8{0, 0, 4, 6}[how>>3&3]}
	e.SrcPort, e.DstPort = b.ports(byte(how>>5)), b.ports(byte(how>>7))
	e.Proto = []U8Range{{0, 255}, {6, 6}, {0, b.next()}, {b.next(), 255}}[how>>9&3]
	if how>>11&1 == 1 {
		e.From.Add(b.next())
		e.From.Add(b.next())
	}
	if how>>12&1 == 1 {
		e.To.Add(b.next() & 3)
	}
	if how>>13&1 == 1 {
		e.Contexts = []uint16{b.word(), b.word() & 3}
	}
	n := b.next()
	e.Src, e.Dst = b.addresses(n&15), b.addresses(n>>4)
	return e
}

// key takes a key at the edges of an entry, or one of bytes.
func (b *aclBytes) key(entries []ACLEntry) bpf.XDPClassifyKey {
	how := b.next()
	six := how&1 == 1
	k := bpf.XDPClassifyKey{Family: 4, Sport: b.word(), Dport: b.word(), Proto: b.next(), From: b.next(), To: b.next() & 3, Context: b.word() & 3}
	if six {
		k.Family = 6
	}
	src, dst := b.addr(six), b.addr(six)
	edge := func(list []AddrRange, other netip.Addr) netip.Addr {
		for _, r := range list {
			if r.First.Is4() != six {
				a := []netip.Addr{r.First, r.Last, r.First.Prev(), r.Last.Next()}[b.next()&3]
				if a.IsValid() {
					return a
				}
			}
		}
		return other
	}
	if how&2 == 0 && len(entries) > 0 {
		e := &entries[int(how>>2)%len(entries)]
		src, dst = edge(e.Src, src), edge(e.Dst, dst)
		k.Sport, k.Dport, k.Proto = e.SrcPort.Last, e.DstPort.First, e.Proto.Last
	}
	n := aclAddr(src)
	k.SrcHi, k.SrcLo = n.hi, n.lo
	n = aclAddr(dst)
	k.DstHi, k.DstLo = n.hi, n.lo
	return k
}
