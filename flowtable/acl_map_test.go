package flowtable

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// treeHas searches a set as in_set4 and in_set6 do.
func treeHas(a *ACL, s *aclSet, value aclNum) bool {
	if emitWide(s.family, s.dim) {
		return set6Has(a.set6[s.first:][:s.nodes], value)
	}
	return set4Has(a.set4[s.first:][:s.nodes], value.lo)
}

// mapRows are sets of many sizes: those whose trees are full, and those with one edge more and less.
func mapRows(random *rand.Rand) (rows []ACLEntry) {
	for _, n := range []int{aclCodeRanges + 1, aclCodeRanges + 2, 1000, 1919, 1920, 1921, 5000} {
		for _, row := range []struct {
			wide, lowest, highest bool
		}{{}, {lowest: true}, {highest: true}, {wide: true}, {true, true, false}, {true, false, true}, {true, true, true}} {
			e := ACLEntry{Proto: U8Range{0, 255}, SrcPort: U16Range{0, 65535}, DstPort: U16Range{0, 65535}}
			address := func() netip.Addr {
				var b [16]byte
				for i := range b {
					b[i] = byte(random.Uint32())
				}
				if row.wide {
					if random.IntN(2) == 0 {
						copy(b[:8], []byte{0x20, 1, 0xd, 0xb8, 0, 0, 0, byte(random.IntN(3))}) // many that differ in the lower half only
					}
					return netip.AddrFrom16(b)
				}
				return netip.AddrFrom4([4]byte(b[:4]))
			}
			first, last := netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255")
			if row.wide {
				first, last = netip.IPv6Unspecified(), netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
			}
			if row.lowest {
				e.Src = append(e.Src, AddrRange{first, first})
			}
			if row.highest {
				e.Src = append(e.Src, AddrRange{last, last})
			}
			for len(e.Src) < n {
				a := address()
				e.Src = append(e.Src, AddrRange{a, a})
			}
			rows = append(rows, e)
		}
	}
	return rows
}

// A set in a map holds exactly what its ranges say: at their ends, beside them, and at the ends of the
// number space.
func TestSetsInMaps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for _, e := range mapRows(random) {
		e.Verdict = 1
		a, err := CompileACL([]ACLEntry{e})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.sets) != 1 || !a.sets[0].mapped {
			t.Fatalf("%d ranges make %d sets", len(e.Src), len(a.sets))
		}
		s := &a.sets[0]
		for _, r := range s.ranges {
			for _, v := range []aclNum{r.first, r.last, r.last.next(), before(r.first), {}, s.max} {
				if v.less(s.max) || v == s.max {
					if got, want := treeHas(a, s, v), aclSetHas(s.ranges, v); got != want {
						t.Fatalf("%d ranges: %x is in: %t, want %t", len(s.ranges), v, got, want)
					}
				}
			}
		}
	}
}

func before(n aclNum) aclNum {
	if n.lo == 0 {
		n.hi--
	}
	n.lo--
	return n
}

// The kernel finds the same, in sets of addresses and of identities of MAC addresses.
func TestSetsInMapsOfKernel(t *testing.T) {
	kernelNeedsRoot(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := aclSource{rand.New(rand.NewPCG(seed, 2))}
	entries := mapRows(s.Rand)
	s.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	entries = entries[:12]
	for i := range entries {
		entries[i].Verdict = uint32(i + 1)
		entries[i].To.Add(uint8(2 + i%3))
		if i%4 == 3 {
			entries[i].Dst, entries[i].Src = entries[i].Src, nil
		}
	}
	who := ACLEntry{Proto: U8Range{6, 6}, SrcPort: U16Range{0, 65535}, DstPort: U16Range{0, 65535}, Verdict: 99}
	for id := uint16(1); id < 20_000; id += 7 {
		who.Contexts = append(who.Contexts, id)
	}
	entries = append(entries, who)
	a, err := CompileACL(entries)
	if err != nil {
		t.Fatal(err)
	}
	if mapped := len(slices.DeleteFunc(slices.Clone(a.sets), func(s aclSet) bool { return !s.mapped })); mapped < 10 {
		t.Fatalf("%d sets are in maps", mapped)
	}
	k := newKernelClassifier(t, a, true)
	for range 8 {
		keys := make([]bpf.XDPClassifyKey, kernelBatch)
		for i := range keys {
			keys[i] = s.key(entries)
			keys[i].To = uint8(2 + s.IntN(3))
			if i%4 == 0 {
				keys[i].Context, keys[i].Proto = uint16(s.IntN(20_020)), 6
			}
		}
		if matched, _ := aclAgree(t, entries, a, k, keys); matched < kernelBatch/20 {
			t.Errorf("%d of %d keys matched: the test asks too little", matched, kernelBatch)
		}
	}
}
