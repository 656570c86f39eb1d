package pipe

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// Tables that are moved, as from the heap into maps, do what they did, and change as before.
func TestLPMMoves(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 8))
	for _, words := range []int{0, 2} {
		l, want := heapLPM(t, false, 2000, words), naive{}
		exacts := [][lpmExact]uint32{{}}
		if words > 0 {
			exacts = append(exacts, [lpmExact]uint32{1, 2}, [lpmExact]uint32{3})
		}
		change := func() {
			t.Helper()
			var batch []PrefixRequest
			for range 300 {
				r := PrefixRequest{Change: Change(rnd.IntN(3)), Exact: exacts[rnd.IntN(len(exacts))], Prefix: randomPrefix(rnd, false), Place: 1 + rnd.Uint32N(99)}
				_ = want.change(r)
				batch = append(batch, r)
			}
			if _, err := l.Process(batch, nil); err != nil {
				t.Fatal(err)
			}
			checkLPM(t, rnd, l, want, exacts)
		}
		change()
		old := *l.Arena
		to := NewArena(make([]uint64, len(old.Roots)), make([]bpf.PipesPipeNode4, len(old.Nodes4)), nil)
		if err := l.Arena.Move(to); err != nil {
			t.Fatal(err)
		}
		c := LPMConfig{Arena: l.Arena, Word: new(uint64)}
		if words > 0 {
			gc := l.Groups.TableConfig
			gc.Buckets, gc.Entries = slices.Clone(gc.Buckets), slices.Clone(gc.Entries)
			var err error
			if c.Groups, err = OpenTable(gc); err != nil {
				t.Fatal(err)
			}
			c.Word = nil
		}
		if err := l.Move(c); err != nil {
			t.Fatal(err)
		}
		clear(old.Roots)
		clear(old.Nodes4)
		checkLPM(t, rnd, l, want, exacts)
		for range 10 {
			change()
		}
		if err := l.Move(LPMConfig{Arena: l.Arena, Six: true}); err == nil {
			t.Error("a table became one of IPv6")
		}
		if err := l.Arena.Move(NewArena(nil, nil, nil)); err == nil {
			t.Error("an arena moved where there is no room")
		}
	}
}
