package pipe

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// naive is a table of prefixes that looks at each of them.
type naive map[naiveKey]uint32

type naiveKey struct {
	exact  [lpmExact]uint32
	prefix netip.Prefix
}

func (n naive) lookup(exact [lpmExact]uint32, a netip.Addr) (place uint32) {
	longest := -1
	for k, v := range n {
		if k.exact == exact && k.prefix.Bits() > longest && k.prefix.Contains(a) {
			longest, place = k.prefix.Bits(), v
		}
	}
	return place
}

// change does what Process does with a request.
func (n naive) change(r PrefixRequest) error {
	k := naiveKey{r.Exact, r.Prefix.Masked()}
	_, there := n[k]
	switch {
	case r.Change == InsertEntry && there:
		return ErrDuplicate
	case r.Change != InsertEntry && !there:
		return ErrNotFound
	case r.Change == RemoveEntry:
		delete(n, k)
	default:
		n[k] = r.Place
	}
	return nil
}

func heapLPM(tb testing.TB, six bool, prefixes, words int) *LPMTable {
	tb.Helper()
	groups := 0
	c := LPMConfig{Six: six, Word: new(uint64)}
	if words > 0 {
		c.Groups, c.Word, groups = heapTable(tb, words, 64), nil, 64
	}
	roots, nodes := ArenaSizes(prefixes, groups, six)
	if six {
		c.Arena = NewArena(make([]uint64, roots), nil, make([]bpf.PipesPipeNode6, nodes))
	} else {
		c.Arena = NewArena(make([]uint64, roots), make([]bpf.PipesPipeNode4, nodes), nil)
	}
	l, err := NewLPMTable(c)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// randomAddress has few different bytes, so that prefixes nest.
func randomAddress(rnd *rand.Rand, six bool) netip.Addr {
	var b [16]byte
	for i := range b {
		b[i] = [...]byte{0, 0, 1, 127, 128, 255, byte(rnd.Uint32())}[rnd.IntN(7)]
	}
	if six {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:4]))
}

func randomPrefix(rnd *rand.Rand, six bool) netip.Prefix {
	a := randomAddress(rnd, six)
	bits := rnd.IntN(a.BitLen() + 1)
	if rnd.IntN(2) == 0 {
		bits = rnd.IntN(4) * 8
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// edgesOfPrefix are the first and the last address of a prefix, and their neighbours.
func edgesOfPrefix(p netip.Prefix) []netip.Addr {
	list := []netip.Addr{p.Addr(), p.Addr().Prev()}
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return append(list, last, last.Next())
}

func checkLPM(t *testing.T, rnd *rand.Rand, l *LPMTable, want naive, exacts [][lpmExact]uint32) {
	t.Helper()
	var addresses []netip.Addr
	for k := range want {
		if len(addresses) > 400 {
			break
		}
		addresses = append(addresses, edgesOfPrefix(k.prefix)...)
	}
	for range 100 {
		addresses = append(addresses, randomAddress(rnd, l.Six))
	}
	for _, a := range addresses {
		if !a.IsValid() {
			continue
		}
		exact := exacts[rnd.IntN(len(exacts))]
		var key [MaxKey]uint32
		copy(key[:], exact[:])
		AddressKey(&key, a)
		if got, want := l.Lookup(&key), want.lookup(exact, a); got != want {
			t.Fatalf("%v beside %v of %d prefixes: place %d, want %d", a, exact, l.Len(), got, want)
		}
	}
	if l.Len() != len(want) {
		t.Fatalf("%d prefixes, want %d", l.Len(), len(want))
	}
}

// Tables of prefixes do what looking at each of them does, with and without an exact part, however they have changed.
func TestLPMAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, six := range []bool{false, true} {
		for _, words := range []int{0, 1, 4} {
			exacts := [][lpmExact]uint32{{}}
			if words > 0 {
				for i := range uint32(5) {
					exacts = append(exacts, [lpmExact]uint32{i})
				}
				exacts = append(exacts[1:], [lpmExact]uint32{99}) // that nothing has at first
			}
			l, want := heapLPM(t, six, 3000, words), naive{}
			for range 60 {
				var batch []PrefixRequest
				var errs []error
				for range 1 + rnd.IntN(1+rnd.IntN(200)) {
					r := PrefixRequest{
						Change: Change(rnd.IntN(3)), Exact: exacts[rnd.IntN(len(exacts))], Prefix: randomPrefix(rnd, six), Place: 1 + rnd.Uint32N(50),
					}
					if rnd.IntN(2) == 0 {
						for k := range want { // one that is there
							r.Exact, r.Prefix = k.exact, k.prefix
							break
						}
					}
					batch, errs = append(batch, r), append(errs, want.change(r))
				}
				done, err := l.Process(batch, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i, c := range done {
					if !errors.Is(c.Err, errs[i]) || (c.Err == nil) != (errs[i] == nil) {
						t.Fatalf("request %+v: %v, want %v", batch[i], c.Err, errs[i])
					}
				}
				checkLPM(t, rnd, l, want, exacts)
			}
			var batch []PrefixRequest
			for k := range want {
				batch = append(batch, PrefixRequest{Change: RemoveEntry, Exact: k.exact, Prefix: k.prefix})
			}
			if _, err := l.Process(batch, nil); err != nil || l.Len() != 0 {
				t.Fatalf("removed all: %d left, %v", l.Len(), err)
			}
			checkLPM(t, rnd, l, naive{}, exacts)
		}
	}
}

// A table without room for a change stays as it was.
func TestLPMFull(t *testing.T) {
	l := heapLPM(t, false, 10, 0)
	want := naive{}
	rnd := rand.New(rand.NewPCG(1, 1))
	var batch []PrefixRequest
	for i := range uint32(10) {
		r := PrefixRequest{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(i), 1}), 16), Place: i + 1}
		batch = append(batch, r)
		_ = want.change(r)
	}
	if _, err := l.Process(batch, nil); err != nil {
		t.Fatal(err)
	}
	batch = batch[:0]
	for i := range uint32(5000) {
		batch = append(batch, PrefixRequest{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{9, byte(i >> 8), byte(i), 1}), 32), Place: i + 1})
	}
	done, err := l.Process(batch, nil)
	if !errors.Is(err, ErrFull) || !errors.Is(done[0].Err, ErrFull) {
		t.Fatalf("5,000 prefixes in the room for 10: %v, %v", err, done[0].Err)
	}
	checkLPM(t, rnd, l, want, [][lpmExact]uint32{{}})
	for range 200 { // memory comes back
		if _, err := l.Process([]PrefixRequest{{Change: UpdateEntry, Prefix: netip.MustParsePrefix("3.1.0.0/16"), Place: 77}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Process([]PrefixRequest{{Prefix: netip.MustParsePrefix("::/0"), Place: 1}}, nil); err == nil {
		t.Error("a prefix of IPv6 came into a table of IPv4")
	}
}

func FuzzLPM(f *testing.F) {
	f.Add([]byte{0, 10, 1, 2, 3, 24, 7, 1, 10, 1, 2, 3, 8, 9}, uint32(0x0a010203))
	f.Fuzz(func(t *testing.T, data []byte, address uint32) {
		l, want := heapLPM(t, false, 400, 0), naive{}
		for n := 0; len(data) >= 7 && n < 50; data, n = data[7:], n+1 {
			r := PrefixRequest{
				Change: Change(data[0] % 3), Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte(data[1:5])), int(data[5]%33)).Masked(), Place: 1 + uint32(data[6]),
			}
			err := want.change(r)
			done, failed := l.Process([]PrefixRequest{r}, nil)
			if failed != nil || !errors.Is(done[0].Err, err) {
				t.Fatalf("%+v: %v, %v, want %v", r, failed, done[0].Err, err)
			}
		}
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], address)
		list := []netip.Addr{netip.AddrFrom4(b)}
		for k := range want {
			list = append(list, edgesOfPrefix(k.prefix)...)
		}
		for _, a := range list {
			var key [MaxKey]uint32
			if !a.IsValid() {
				continue
			}
			AddressKey(&key, a)
			if got, want := l.Lookup(&key), want.lookup([lpmExact]uint32{}, a); got != want {
				t.Fatalf("%v: place %d, want %d", a, got, want)
			}
		}
	})
}
