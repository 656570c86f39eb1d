package flowtable

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// forestImage is memory as a program's maps hold it: what is written there is all that it gets to know.
type forestImage struct {
	memory Forest
	set4   []bpf.XDPSet4Node
	set6   []bpf.XDPSet6Node
}

func newForestImage(a *ACL) *forestImage {
	m := &forestImage{}
	m.memory.Append(a.Forest())
	m.set4, m.set6 = slices.Clone(a.set4), slices.Clone(a.set6)
	return m
}

// pipe returns a version that is looked up in the image.
func (m *forestImage) pipe(a *ACL) *ACL {
	of := a.forest
	return &ACL{
		set4: m.set4, set6: m.set6, base4: a.base4, base6: a.base6,
		forest: &aclForest{forestArena: &forestArena{memory: m.memory, base: of.base}, family: of.family},
	}
}

// reviser applies edits to entries and to a forest of them.
type reviser struct {
	*rand.Rand
	entries []ACLEntry
	rule    uint32
	a       *ACL
	image   *forestImage
	anew    int // times that it was compiled anew
}

func newReviser(tb testing.TB, r *rand.Rand, entries []ACLEntry) *reviser {
	a := plantACL(tb, entries)
	return &reviser{r, entries, uint32(len(entries)), a, newForestImage(a), 0}
}

// edit returns the entries after one change: add, delete, move, another verdict, a wider prefix.
func (e *reviser) edit(fresh func() ACLEntry) []ACLEntry {
	list := slices.Clone(e.entries)
	number := func() uint32 { e.rule++; return Verdict(e.rule, uint32(1+e.IntN(2)), 0) }
	kind := e.IntN(5)
	if len(list) == 0 {
		kind = 0
	}
	at := 0
	if len(list) > 0 {
		at = e.IntN(len(list))
	}
	switch kind {
	case 0:
		n := fresh()
		n.Verdict = number()
		list = slices.Insert(list, e.IntN(len(list)+1), n)
	case 1:
		list = slices.Delete(list, at, at+1)
	case 2:
		moved := list[at]
		list = slices.Delete(list, at, at+1)
		list = slices.Insert(list, e.IntN(len(list)+1), moved)
	case 3:
		list[at].Verdict = number()
	default:
		for _, addresses := range []*[]AddrRange{&list[at].Src, &list[at].Dst} {
			if len(*addresses) > 0 {
				*addresses = slices.Clone(*addresses)
				a := &(*addresses)[e.IntN(len(*addresses))]
				bits := a.First.BitLen()
				*a = aclPrefix(netip.PrefixFrom(a.First, max(0, bits-e.IntN(bits/2))))
			}
		}
	}
	return list
}

// revise brings the forest to a list, or compiles it anew. Meanwhile the version before answers as it did: keys and
// what they were answered stand for that.
func (e *reviser) revise(tb testing.TB, list []ACLEntry, keys []bpf.XDPClassifyKey) {
	tb.Helper()
	before := make([]uint32, len(keys))
	old := e.image.pipe(e.a)
	for i := range keys {
		before[i] = old.Classify(&keys[i], nil)
	}
	next, change, ok := e.a.Revise(list)
	e.entries = list
	if !ok {
		e.anew++
		e.a = plantACL(tb, list)
		e.image = newForestImage(e.a)
		return
	}
	change.Write(e.image.memory, e.image.set4, e.image.set6)
	for i := range keys {
		if got := old.Classify(&keys[i], nil); got != before[i] {
			tb.Fatalf("key %+v: the earlier version says %#x while the next one is written, was %#x", keys[i], got, before[i])
		}
	}
	next.Free(change)
	e.a = next
}

// check compares the version in the image with a scan of the list.
func (e *reviser) check(t *testing.T, keys []bpf.XDPClassifyKey) (matched, reported int) {
	t.Helper()
	return aclAgree(t, e.entries, e.image.pipe(e.a), nil, keys)
}

// Entries of all dimensions, changed at random, many times: every version decides and reports as a scan of its list,
// in the memory that was written, and the one before meanwhile as it did.
func TestReviseAgainstOracle(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := aclSource{rand.New(rand.NewPCG(seed, 0))}
	matched, reported, edits, anew := 0, 0, 0, 0
	for _, n := range []int{0, 3, 30, 120, 400} {
		e := newReviser(t, s.Rand, s.entries(n))
		for range 60 {
			list := e.edit(func() ACLEntry { return s.entries(1)[0] })
			keys := make([]bpf.XDPClassifyKey, 200)
			for i := range keys {
				keys[i] = s.key(list)
			}
			e.revise(t, list, keys)
			m, r := e.check(t, keys)
			matched, reported, edits = matched+m, reported+r, edits+1
		}
		anew += e.anew
	}
	if matched < 200*edits/10 || reported == 0 || anew > edits/5 {
		t.Errorf("%d of %d keys matched, %d reports, %d of %d changes compiled anew: the test asks too little", matched, 200*edits, reported, anew, edits)
	}
}

// A change that was dropped leaves nothing behind, and one that was made of another than the newest version is refused.
func TestReviseDrop(t *testing.T) {
	s := aclSource{rand.New(rand.NewPCG(64, 65))}
	e := newReviser(t, s.Rand, s.entries(200))
	used := func() (n [forestArrays]int) {
		for array := range n {
			n[array] = e.a.forest.busy[array].count()
		}
		return n
	}
	before, dropped := used(), 0
	for range 40 {
		list := e.edit(func() ACLEntry { return s.entries(1)[0] })
		next, change, ok := e.a.Revise(list)
		if ok {
			if _, _, twice := e.a.Revise(list); twice {
				t.Fatal("two changes were made of one version")
			}
			next.Drop(change)
			next.Drop(change) // again: nothing
			dropped++
		}
		if now := used(); now != before {
			t.Fatalf("places in use %v, before %v (made: %v)", now, before, ok)
		}
	}
	if dropped < 30 {
		t.Fatalf("%d of 40 changes were made", dropped)
	}
	keys := make([]bpf.XDPClassifyKey, 500)
	for i := range keys {
		keys[i] = s.key(e.entries)
	}
	e.revise(t, e.edit(func() ACLEntry { return s.entries(1)[0] }), keys)
	e.check(t, keys)
}

// Places that fell out of use come back: those that are taken are those to which searches come.
func TestReviseGivesBack(t *testing.T) {
	s := aclSource{rand.New(rand.NewPCG(66, 67))}
	e := newReviser(t, s.Rand, s.entries(200))
	for range 60 {
		e.revise(t, e.edit(func() ACLEntry { return s.entries(1)[0] }), nil)
		f := e.a.forest
		marks := f.newMarks()
		for i := range f.family {
			for _, root := range slices.Concat(f.family[i].decide, f.family[i].audit) {
				f.mark(marks, i, root.node)
			}
		}
		for _, array := range []int{forestInNodes, forestInRules4, forestInRules6} {
			if got, want := f.busy[array].count(), marks[array].count(); got != want {
				t.Fatalf("array %d: %d places are taken, searches come to %d", array, got, want)
			}
		}
	}
}

// FuzzRevise reads two lists out of bytes: the one is made of the other, and decides as a scan.
func FuzzRevise(f *testing.F) {
	r := rand.New(rand.NewPCG(68, 69))
	for _, n := range []int{0, 60, 300, 1200} {
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
		if a := newACL(nil); !a.plant(entries) {
			return
		}
		e := newReviser(t, r, entries)
		list := slices.Clone(entries)
		for i := range b.next() % 24 {
			at := int(b.next())
			switch n := b.next(); {
			case n&3 == 0 || len(list) == 0:
				list = slices.Insert(list, at%(len(list)+1), b.entry(uint32(100+i)))
			case n&3 == 1:
				list = slices.Delete(list, at%len(list), at%len(list)+1)
			default:
				from := at % len(list)
				moved := list[from]
				list = slices.Delete(list, from, from+1)
				list = slices.Insert(list, int(n>>2)%(len(list)+1), moved)
			}
		}
		keys := make([]bpf.XDPClassifyKey, 64)
		for i := range keys {
			keys[i] = b.key(list)
		}
		e.revise(t, list, keys)
		e.check(t, keys)
	})
}

// The same with sets as large as they come, and what a search in them costs after many changes.
func TestReviseClassBench(t *testing.T) {
	for _, kind := range []string{"acl1", "fw1", "ipc1"} {
		t.Run(kind, func(t *testing.T) {
			entries := aclClassBench(t, kind, 10_000)
			r := rand.New(rand.NewPCG(61, 62))
			e := newReviser(t, r, entries)
			others := aclClassBench(t, kind, 1000)
			fresh := func() ACLEntry { // one of a smaller set, or two that were crossed
				n := others[r.IntN(len(others))]
				n.Dst = e.entries[r.IntN(len(e.entries))].Dst
				return n
			}
			const edits = 1000
			for i := range edits {
				keys := make([]bpf.XDPClassifyKey, 60)
				for i := range keys {
					keys[i] = classBenchKey(r, e.entries)
				}
				e.revise(t, e.edit(fresh), keys)
				if i%20 == 0 {
					e.check(t, keys)
				}
			}
			if e.anew > edits/100 {
				t.Errorf("%d of %d changes compiled anew", e.anew, edits)
			}
			keys := make([]bpf.XDPClassifyKey, 20_000)
			for i := range keys {
				keys[i] = classBenchKey(r, e.entries)
			}
			e.check(t, keys[:2000])
			now, anew := e.a, plantACL(t, e.entries)
			trees, cuts, rules := now.forest.steps(now, keys)
			trees0, cuts0, rules0 := anew.forest.steps(anew, keys)
			t.Logf("trees %.2f, cuts %.2f, rules %.2f; compiled anew %.2f, %.2f, %.2f", trees, cuts, rules, trees0, cuts0, rules0)
			if cuts+rules > 1.2*(cuts0+rules0) {
				t.Errorf("%.2f cuts and %.2f rules a search, compiled anew %.2f and %.2f", cuts, rules, cuts0, rules0)
			}
		})
	}
}

// BenchmarkRevise changes one entry of many at a time.
func BenchmarkRevise(b *testing.B) {
	for _, kind := range []string{"acl1", "fw1", "ipc1"} {
		b.Run(fmt.Sprintf("%s-100000", kind), func(b *testing.B) {
			r := rand.New(rand.NewPCG(63, 64))
			e := newReviser(b, r, aclClassBench(b, kind, 100_000))
			fresh := func() ACLEntry {
				n := e.entries[r.IntN(len(e.entries))]
				n.Dst = e.entries[r.IntN(len(e.entries))].Dst
				return n
			}
			for b.Loop() {
				b.StopTimer()
				list := e.edit(fresh)
				b.StartTimer()
				e.revise(b, list, nil)
			}
			if e.anew > 0 {
				b.Errorf("%d times compiled anew", e.anew)
			}
		})
	}
}
