package flowtable

import (
	"cmp"
	"slices"

	"github.com/softdpu/softdpu/bpf"
)

// aclCodeEntries is the largest number of entries that become instructions. Up to about so many a search in
// code takes less than one in arrays; and code is verified anew with every change.
const aclCodeEntries = 2048

// aclCodeSlots is about the largest search that becomes instructions: a program has room for three such pipes.
const aclCodeSlots = emitMaxSlots / 3

// Forest is the memory of pipes of many entries (abi_forest.h): what the program's maps of these names hold.
type Forest struct {
	Nodes  []uint64
	Rules4 []bpf.XDPForestRule4
	Rules6 []bpf.XDPForestRule6
	Checks []bpf.XDPForestCheck
}

// aclForest is a pipe as decision trees: one version of what stands in an arena.
type aclForest struct {
	*forestArena
	family  [2]forestFamily
	entries []ACLEntry // that it was made of
	work    float64    // ns that a search for one of its boxes takes, about
}

// forestFamily are the trees of one family.
type forestFamily struct {
	decide, audit []forestRoot // the first in the order of their first entries
	places        []uint32     // of each entry of the pipe, in the order; forestNowhere: in no tree
	closed        int          // the entry that takes all that is left; -1: none
}

// forestNowhere is no place.
const forestNowhere = ^uint32(0)

// forestPlace is where memory begins in the maps.
type forestPlace struct{ nodes, rules4, rules6, checks, roots uint32 }

// forestRoot is where the search of one tree begins.
type forestRoot struct {
	node   uint64
	lowest uint32 // no entry of it stands before
	tree   uint8  // its number, as long as it lives
}

// forestSlots are how many roots the program asks.
type forestSlots struct{ decide, audit int }

// forestUnused is how many more trees a family may come to have than it was compiled to.
const forestUnused = 2

// forestFamilies are the places of the families in arrays.
var forestFamilies = [2]uint8{4, 6}

// Forest returns the memory of the pipe if it is one of many entries, else nothing. It belongs into the
// program's maps, from 0 on, or behind that of the pipes after which it was compiled. It must not be changed, and
// holds places for what Revise makes of the pipe.
func (a *ACL) Forest() Forest {
	if a.forest == nil {
		return Forest{}
	}
	return a.forest.memory
}

// PutRoots puts where the pipe's trees begin into a bank of roots (abi_forest.h), beside those of the program's other
// pipes. Without it, or in another bank, the pipe matches nothing.
func (a *ACL) PutRoots(bank *bpf.XDPForestBank) {
	if a.forest == nil {
		return
	}
	at := a.forest.base.roots
	for i := range a.forest.family {
		t := &a.forest.family[i]
		for _, list := range [2]struct {
			roots []forestRoot
			slots int
		}{{t.decide, a.forest.slots[i].decide}, {t.audit, a.forest.slots[i].audit}} {
			for n := range list.slots {
				root := bpf.XDPForestRoot{Lowest: forestNowhere}
				if n < len(list.roots) {
					root.Node, root.Lowest = list.roots[n].node, list.roots[n].lowest
				}
				bank.Roots[at] = root
				at++
			}
		}
	}
}

// Append puts the memory of the pipe behind that of others.
func (f *Forest) Append(of Forest) {
	f.Nodes = append(f.Nodes, of.Nodes...)
	f.Rules4 = append(f.Rules4, of.Rules4...)
	f.Rules6 = append(f.Rules6, of.Rules6...)
	f.Checks = append(f.Checks, of.Checks...)
}

// end is where the memory of a pipe that follows begins.
func (f *aclForest) end() forestPlace {
	e := forestPlace{
		nodes:  f.base.nodes + uint32(len(f.memory.Nodes)),
		rules4: f.base.rules4 + uint32(len(f.memory.Rules4)),
		rules6: f.base.rules6 + uint32(len(f.memory.Rules6)),
		checks: f.base.checks + uint32(len(f.memory.Checks)),
		roots:  f.base.roots,
	}
	for _, s := range f.slots {
		e.roots += uint32(s.decide + s.audit)
	}
	return e
}

// plant makes the pipe a forest. It answers false, and leaves the pipe as it was, where entries do not let
// themselves be told apart by cuts: where more than some thousand that ask for the same addresses, ports and
// zones differ in large sets alone. Or where a program has no roots left for it.
func (a *ACL) plant(entries []ACLEntry) bool {
	was := len(a.sets)
	var best *aclForest
	var sets []aclSet
	for plan := range forestPlans {
		f := a.plantBy(entries, plan)
		if f != nil && (best == nil || f.work < best.work) {
			best, sets = f, slices.Clone(a.sets)
		}
		a.sets = a.sets[:was]
		if f != nil && f.work <= forestFine {
			break
		}
	}
	if best == nil {
		return false
	}
	a.forest, a.sets = best, sets
	a.mapSets()
	best.settle(a)
	return true
}

// plantBy makes a forest by a plan, nil if it has no room.
func (a *ACL) plantBy(entries []ACLEntry, plan forestPlan) *aclForest {
	f := &aclForest{forestArena: &forestArena{base: a.baseForest}, entries: entries}
	for i, family := range forestFamilies {
		if !f.plantFamily(a, i, family, plan) {
			return nil
		}
	}
	if f.end().roots > uint32(bpf.XDPForestLimitFOREST_ROOTS) {
		return nil
	}
	return f
}

// plantFamily adds the trees of one family.
func (f *aclForest) plantFamily(a *ACL, at int, family uint8, plan forestPlan) bool {
	tb := newTreeBuilder(a, family, f.entries)
	items := tb.items()
	t := &f.family[at]
	t.closed = -1
	if i := slices.IndexFunc(items, func(it treeItem) bool { return it.decided() && !f.entries[it.entry].Audit }); i >= 0 {
		items = items[:i+1] // it takes all that is left
		t.closed = int(items[i].entry)
	}
	t.places = make([]uint32, len(f.entries))
	for i := range t.places {
		t.places[i] = forestNowhere
	}
	f.room(at, len(items))
	w := newForestWriter(f, tb, len(items))
	f.alternatives[at] = w.alternatives
	var decide, audit []int32
	for i := range items {
		it := &items[i]
		place := f.spread[at].first + uint32(i+1)*forestGap
		t.places[it.entry] = place
		first := len(w.boxes)
		w.enter(it, place)
		list := &decide
		if f.entries[it.entry].Audit {
			list = &audit
		}
		for box := first; box < len(w.boxes); box++ {
			*list = append(*list, int32(box))
		}
	}
	ok := true
	if t.decide, ok = w.trees(decide, plan); !ok {
		return false
	}
	f.work = max(f.work, w.work(t.decide, decide))
	if t.audit, ok = w.auditTree(audit); !ok {
		return false
	}
	f.slots[at] = forestSlots{min(len(t.decide)+forestUnused, int(bpf.XDPForestLimitFOREST_TREES)), len(t.audit)}
	return true
}

// sortRoots puts roots into the order in which they are asked.
func sortRoots(roots []forestRoot) {
	slices.SortStableFunc(roots, func(a, b forestRoot) int { return cmp.Compare(a.lowest, b.lowest) })
}
