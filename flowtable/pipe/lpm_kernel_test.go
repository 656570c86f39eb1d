package pipe

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// kernelLPM is a table of prefixes in maps, of a size.
func kernelLPM(tb testing.TB, six bool, words uint32, prefixes, probes int, uncounted bool) (*LPMTable, *kernelTables) {
	tb.Helper()
	const groups = 16
	s := kernelSizes{words: 1, first: 7, probes: probes, uncounted: uncounted}
	if words > 0 {
		s = sizesFor(groups, words, probes)
	}
	roots, nodes := ArenaSizes(prefixes, int(words)*groups, six)
	if s.roots = roots; six {
		s.nodes6 = nodes
	} else {
		s.nodes4 = nodes
	}
	k := loadTables(tb, s)
	c := LPMConfig{Six: six, Arena: k.Arena, Grace: grace}
	if words > 0 {
		var err error
		if c.Groups, err = NewTable(k.config(&s, groups)); err != nil {
			tb.Fatal(err)
		}
	} else {
		c.Word = &k.Tries[s.first]
	}
	l, err := NewLPMTable(c)
	if err != nil {
		tb.Fatal(err)
	}
	return l, k
}

func (k *kernelTables) lpmProgram(six bool, words uint32) *ebpf.Program {
	name := map[bool][2]string{
		false: {bpf.PipeBenchProgProbeLpm4, bpf.PipeBenchProgProbeGroup4}, true: {bpf.PipeBenchProgProbeLpm6, bpf.PipeBenchProgProbeGroup6},
	}[six][min(words, 1)]
	return k.Programs[name]
}

// XDP finds the prefixes that Go finds, and while others come and go no packet misses one that stays.
func TestLPMInKernel(t *testing.T) {
	needGrace(t)
	const probes = 4096
	rnd := rand.New(rand.NewPCG(11, 1))
	for _, six := range []bool{false, true} {
		for _, words := range []uint32{0, 3} {
			l, k := kernelLPM(t, six, words, 9000, probes, false)
			prog := k.lpmProgram(six, words)
			exact := func() (e [lpmExact]uint32) {
				if words > 0 {
					e = [lpmExact]uint32{rnd.Uint32N(4), 5, 6}
				}
				return e
			}
			seen := map[naiveKey]bool{}
			var batch []PrefixRequest
			for i := range uint32(4000) {
				p := randomPrefix(rnd, six)
				r := PrefixRequest{Exact: exact(), Prefix: p, Place: 1 + i}
				if p.Bits() > 2 && !seen[naiveKey{r.Exact, p}] {
					seen[naiveKey{r.Exact, p}] = true
					batch = append(batch, r)
				}
			}
			if _, err := l.Process(batch, nil); err != nil {
				t.Fatal(err)
			}
			for i := range k.probes {
				r := batch[rnd.IntN(len(batch))]
				a := randomAddress(rnd, six)
				if ends := edgesOfPrefix(r.Prefix); rnd.IntN(2) == 0 && ends[i%4].IsValid() {
					a = ends[i%4]
				}
				key := &k.probes[i].Key
				copy(key[:], r.Exact[:])
				AddressKey(key, a)
			}
			run(t, prog, probes)
			for i := range k.probes {
				if p := &k.probes[i]; p.Answer != l.Lookup(&p.Key) {
					t.Fatalf("six %v, %d words: key %x is at %d, XDP says %d", six, words, p.Key, l.Lookup(&p.Key), p.Answer)
				}
			}
			all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if six {
				all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			stays := []PrefixRequest{{Prefix: all, Place: 9999}}
			if words > 0 {
				stays = nil
				for e := range uint32(4) {
					stays = append(stays, PrefixRequest{Exact: [lpmExact]uint32{e, 5, 6}, Prefix: all, Place: 9999})
				}
			}
			if _, err := l.Process(stays, nil); err != nil {
				t.Fatal(err)
			}
			var stop atomic.Bool
			before, done := k.tally(t), make(chan error)
			go func() {
				var err error
				for !stop.Load() && err == nil {
					_, err = prog.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 5000})
				}
				done <- err
			}()
			for range 12 {
				change := []PrefixRequest{}
				for range 1 + rnd.IntN(300) {
					r := batch[rnd.IntN(len(batch))]
					r.Change = Change(rnd.IntN(3))
					change = append(change, r)
				}
				if _, err := l.Process(change, nil); err != nil {
					t.Error(err)
				}
			}
			stop.Store(true)
			if err := <-done; err != nil {
				t.Error(err)
			}
			after := k.tally(t)
			if missed := after.Next - before.Next - (after.Hits - before.Hits); missed != 0 || after.Next == before.Next {
				t.Errorf("six %v, %d words: %d of %d packets met no prefix", six, words, missed, after.Next-before.Next)
			}
		}
	}
}

// internet draws prefixes as long as those of the Internet's routing table are: most are /24s, or /48s.
func internet(rnd *rand.Rand, six bool) netip.Prefix {
	var b [16]byte
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	if six {
		b[0], b[1] = 0x20|b[0]&0xf, b[1]&0xf
		return netip.PrefixFrom(netip.AddrFrom16(b), [...]int{29, 32, 36, 40, 44, 48, 48, 48, 48, 56}[rnd.IntN(10)]).Masked()
	}
	b[0] = 1 + b[0]%223
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:4])), [...]int{16, 19, 20, 21, 22, 22, 23, 24, 24, 24, 24, 24, 24, 24, 24, 32}[rnd.IntN(16)]).Masked()
}

// A million prefixes come in force, single ones change, and packets find them: figures with SOFTDPU_LONG, and 20,000 without.
func TestLPMOfMillions(t *testing.T) {
	needGrace(t)
	size := 20_000
	if os.Getenv("SOFTDPU_LONG") != "" {
		size = 1_000_000
	}
	rnd := rand.New(rand.NewPCG(5, 5))
	for _, six := range []bool{false, true} {
		const probes = 1 << 20
		l, k := kernelLPM(t, six, 0, size, probes, true)
		seen := map[netip.Prefix]bool{}
		var batch []PrefixRequest
		for len(batch) < size {
			if p := internet(rnd, six); !seen[p] {
				seen[p] = true
				batch = append(batch, PrefixRequest{Prefix: p, Place: uint32(1 + len(batch))})
			}
		}
		begin := time.Now()
		if _, err := l.Process(batch, nil); err != nil {
			t.Fatal(err)
		}
		all := time.Since(begin)
		for i := range k.probes {
			p := batch[rnd.IntN(size)].Prefix
			AddressKey(&k.probes[i].Key, p.Addr())
		}
		var each [2]time.Duration
		for i, prog := range []*ebpf.Program{k.Programs[bpf.PipeBenchProgProbeNothing], k.lpmProgram(six, 0)} {
			run(t, prog, 1000)
			begin := time.Now()
			run(t, prog, probes/4)
			each[i] = time.Since(begin) / (probes / 4)
		}
		begin = time.Now()
		const changes = 20
		for i := range uint32(changes) {
			r := PrefixRequest{Change: UpdateEntry, Prefix: batch[rnd.IntN(size)].Prefix, Place: 1 + i}
			if _, err := l.Process([]PrefixRequest{r}, nil); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("six %v: %d prefixes in %v, one change in %v, a look-up %v beyond the %v without one", six, size, all, time.Since(begin)/changes, each[1]-each[0], each[0])
		if !six {
			k.besideTrie(t, batch, probes/4, each[0])
		}
	}
}

// besideTrie has the kernel's trie look the same up.
func (k *kernelTables) besideTrie(t *testing.T, batch []PrefixRequest, times int, without time.Duration) {
	t.Helper()
	type key struct {
		bits    uint32
		address [4]byte
	}
	begin := time.Now()
	for i := range batch {
		p := batch[i].Prefix
		if err := k.Maps[bpf.PipeBenchMapPeerTrie].Put(key{uint32(p.Bits()), p.Addr().As4()}, batch[i].Place); err != nil {
			t.Fatal(err)
		}
	}
	filled := time.Since(begin)
	run(t, k.Programs[bpf.PipeBenchProgProbeTrie], 1000)
	begin = time.Now()
	run(t, k.Programs[bpf.PipeBenchProgProbeTrie], times)
	t.Logf("the kernel's trie: %v to fill, a look-up %v", filled, time.Since(begin)/time.Duration(times)-without)
}
