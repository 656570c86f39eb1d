package flowtable

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// plantACL compiles entries to a forest, however few they are.
func plantACL(tb testing.TB, entries []ACLEntry, before ...*ACL) *ACL {
	tb.Helper()
	a := newACL(before)
	if !a.plant(entries) {
		tb.Fatalf("%d entries make no forest", len(entries))
	}
	return a
}

// Entries of all dimensions, random ones, decide and report alike as a forest in both executors and as they
// were written.
func TestForestAgainstOracle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := aclSource{rand.New(rand.NewPCG(seed, 0))}
	matched, reported, total, trees := 0, 0, 0, 0
	for round := range 16 {
		entries := s.entries([]int{0, 1, 2, 5, 20, 60, 120, 250}[round%8])
		a := plantACL(t, entries)
		trees = max(trees, len(a.forest.family[0].decide))
		keys := make([]bpf.XDPClassifyKey, kernelBatch)
		for i := range keys {
			keys[i] = s.key(entries)
		}
		var k *kernelClassifier
		if round%8 > 5 && os.Geteuid() == 0 {
			k = newKernelClassifier(t, a, true)
		}
		m, r := aclAgree(t, entries, a, k, keys)
		matched, reported, total = matched+m, reported+r, total+len(keys)
	}
	if matched < total/10 || reported == 0 || trees < 2 {
		t.Errorf("%d of %d keys matched, %d reports, %d trees: the test asks too little", matched, total, reported, trees)
	}
}

// What no rule of a leaf can say is a check of its own, of each kind; and entries without a difference stand
// behind one another.
func TestForestChecks(t *testing.T) {
	s := aclSource{rand.New(rand.NewPCG(31, 31))}
	all := ACLEntry{Proto: U8Range{0, 255}, SrcPort: U16Range{0, 65535}, DstPort: U16Range{0, 65535}}
	var entries []ACLEntry
	add := func(change func(e *ACLEntry)) {
		e := all
		change(&e)
		e.Verdict = Verdict(uint32(len(entries)+1), 1, 0)
		entries = append(entries, e)
	}
	scattered := func(six bool) (list []AddrRange) {
		for range 2000 {
			p := aclPrefix4(s.Uint32(), 24)
			if six {
				p = aclPrefix6(s.Uint64(), 64)
			}
			list = append(list, aclPrefix(p))
		}
		return list
	}
	for range 3 {
		add(func(e *ACLEntry) { e.Src, e.Proto = scattered(false), U8Range{6, 6} })
		add(func(e *ACLEntry) { e.Dst, e.Proto = scattered(true), U8Range{2, 200} })
		add(func(e *ACLEntry) {
			e.Contexts = []uint16{3, 5, 9}
			for z := range 40 {
				e.From.Add(uint8(z * 3))
				if z%3 != len(entries)%2 { // now the one, now the other has more
					e.From.Add(uint8(z*3 + 1))
				}
				e.To.Add(uint8(z*5 + 1))
				if len(entries)%2 == 0 {
					e.To.Add(uint8(z*5 + 2))
				}
				e.Proto = U8Range{10, 90}
			}
		})
	}
	for i := range 200 { // the same to all trees
		add(func(e *ACLEntry) { e.Contexts = []uint16{uint16(1000 + i)} })
	}
	add(func(e *ACLEntry) {
		e.Src = []AddrRange{{netip.MustParseAddr("fd00::3"), netip.MustParseAddr("fd02::7:1")}, {netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.7.0.1")}}
	})
	a := plantACL(t, entries)
	fields := map[uint32]bool{}
	for _, c := range a.forest.memory.Checks {
		fields[c.Field] = true
	}
	if len(fields) != 6 {
		t.Fatalf("checks of %d fields: the test asks too little", len(fields))
	}
	var k *kernelClassifier
	if os.Geteuid() == 0 {
		k = newKernelClassifier(t, a, true)
	}
	hit := map[uint32]bool{}
	for range 6 {
		keys := make([]bpf.XDPClassifyKey, kernelBatch)
		for i := range keys {
			keys[i] = s.key(entries)
			if i%3 == 0 {
				keys[i].Context = uint16(990 + s.IntN(220))
			}
			hit[a.Classify(&keys[i], nil)] = true
		}
		aclAgree(t, entries, a, k, keys)
	}
	if len(hit) < 100 {
		t.Errorf("%d entries were hit: the test asks too little", len(hit))
	}
}

// A forest on its way through the verifier knows nothing of trees: a reference that leads nowhere is no match,
// and no search that does not end.
func TestForestWithWrongMemory(t *testing.T) {
	kernelNeedsRoot(t)
	entries := aclFirewallRules(300)
	a := plantACL(t, entries)
	r := rand.New(rand.NewPCG(32, 32))
	broken := a.forest.memory
	broken.Nodes = append([]uint64(nil), broken.Nodes...)
	for i := range broken.Nodes {
		broken.Nodes[i] = r.Uint64()
	}
	a.forest.memory = broken
	k := newKernelClassifier(t, a, true)
	keys := make([]bpf.XDPClassifyKey, kernelBatch)
	for i := range keys {
		keys[i] = aclInsideKey(r, entries)
	}
	k.classify(t, keys) // ends
}

// Looking up allocates nothing.
func TestForestNoAllocs(t *testing.T) {
	entries := aclFirewallRules(3000)
	a := plantACL(t, entries)
	r := rand.New(rand.NewPCG(33, 33))
	key := aclInsideKey(r, entries)
	if n := testing.AllocsPerRun(100, func() { a.Classify(&key, nil) }); n != 0 {
		t.Errorf("%v allocations a look-up", n)
	}
}

// IPv6 ranges that are no prefixes become those that they consist of.
func TestACLPrefixes(t *testing.T) {
	r := rand.New(rand.NewPCG(34, 34))
	for range 2000 {
		x, y := aclNum{r.Uint64() >> r.IntN(64), r.Uint64() >> r.IntN(64)}, aclNum{r.Uint64() >> r.IntN(64), r.Uint64() >> r.IntN(64)}
		if r.IntN(2) == 0 {
			y.hi = x.hi
		}
		if y.less(x) {
			x, y = y, x
		}
		next := x
		prefixes := aclPrefixes(nil, aclRange{x, y})
		for i, p := range prefixes {
			if p.first != next || aclPrefixOf(p.first, p.last) != p {
				t.Fatalf("range %x-%x: prefix %d is %x-%x, want one that begins at %x", x, y, i, p.first, p.last, next)
			}
			next = p.last.next()
		}
		if next != y.next() || len(prefixes) > 254 {
			t.Fatalf("range %x-%x: %d prefixes end before %x", x, y, len(prefixes), next)
		}
	}
}
