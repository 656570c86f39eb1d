package flowtable

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// crossingEntries are n rules whose prefixes have all lengths and cross each other: what one tree tells apart by the
// source another can only by the destination, or by a port.
func crossingEntries(r *rand.Rand, n int) []ACLEntry {
	prefix := func() []AddrRange {
		host := uint32(r.IntN(30))*0x08765431 ^ 1<<r.IntN(32)>>r.IntN(2) // near one of a few
		p, _ := netip.AddrFrom4([4]byte{byte(host >> 24), byte(host >> 16), byte(host >> 8), byte(host)}).Prefix(r.IntN(33))
		return []AddrRange{aclPrefix(p)}
	}
	var entries []ACLEntry
	for i := range n {
		e := ACLEntry{
			Family: 4, Src: prefix(), Dst: prefix(), SrcPort: U16Range{0, 65535}, DstPort: U16Range{0, 65535}, Proto: U8Range{0, 255},
			Verdict: Verdict(uint32(i+1), 1, 0),
		}
		if r.IntN(3) > 0 {
			port := uint16(r.IntN(200))
			e.Proto, e.DstPort = U8Range{6, 6}, U16Range{port, port}
		}
		if whole := func(a []AddrRange) bool {
			return a[0].Last.Compare(a[0].First) > 0 && a[0] == (AddrRange{netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{255, 255, 255, 255})})
		}; whole(e.Src) && whole(e.Dst) {
			e.Proto, e.SrcPort = U8Range{17, 17}, U16Range{uint16(i), uint16(i)} // or it takes all
		}
		entries = append(entries, e)
	}
	return entries
}

// Rules that cross each other are divided by their shapes, decide as their list does, and can be changed.
func TestForestOfCrossingRules(t *testing.T) {
	r := rand.New(rand.NewPCG(71, 72))
	entries := crossingEntries(r, 10_000)
	e := newReviser(t, r, entries)
	f := e.a.forest
	t.Logf("%d trees, %d places of rules", len(f.family[0].decide), f.busy[forestInRules4].count())
	if plain := newACL(nil).plantBy(entries, forestPlain); plain != nil && plain.work <= f.work {
		t.Errorf("searches take %.0f, and %.0f without shapes: the test asks too little", f.work, plain.work)
	}
	var k *kernelClassifier
	if os.Geteuid() == 0 {
		k = newKernelClassifier(t, e.a, true)
	}
	if matched := agreeWithScan(t, e.a, k, entries, 20_000); matched < 10_000 {
		t.Errorf("%d packets matched: the test asks too little", matched)
	}
	fresh := func() ACLEntry { return crossingEntries(r, 1)[0] }
	for range 100 {
		list := e.edit(fresh)
		keys := make([]bpf.XDPClassifyKey, 60)
		for i := range keys {
			keys[i] = classBenchKey(r, list)
		}
		e.revise(t, list, keys)
		e.check(t, keys)
	}
	if e.anew > 5 {
		t.Errorf("%d of 100 changes compiled anew", e.anew)
	}
}
