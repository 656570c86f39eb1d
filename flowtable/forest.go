package flowtable

import (
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
	Nodes   []uint64
	Rules4  []bpf.XDPForestRule4
	Rules6  []bpf.XDPForestRule6
	Entries []bpf.XDPForestEntry
	Checks  []bpf.XDPForestCheck
}

// aclForest is a pipe as decision trees.
type aclForest struct {
	memory        Forest
	base          forestPlace // of its memory in the maps
	decide, audit [2][]forestRoot
}

// forestPlace is where memory begins in the maps.
type forestPlace struct{ nodes, rules4, rules6, entries, checks uint32 }

// forestRoot is where the search of one tree begins.
type forestRoot struct {
	node   uint64
	lowest uint32 // its first entry
	depth  int    // most cuts on the way to a leaf
}

// forestFamilies are the places of the families in arrays.
var forestFamilies = [2]uint8{4, 6}

// Forest returns the memory of the pipe if it is one of many entries, else nothing. It belongs into the
// program's maps, from 0 on, or behind that of the pipes after which it was compiled. It must not be changed.
func (a *ACL) Forest() Forest {
	if a.forest == nil {
		return Forest{}
	}
	return a.forest.memory
}

// Append puts the memory of the pipe behind that of others.
func (f *Forest) Append(of Forest) {
	f.Nodes = append(f.Nodes, of.Nodes...)
	f.Rules4 = append(f.Rules4, of.Rules4...)
	f.Rules6 = append(f.Rules6, of.Rules6...)
	f.Entries = append(f.Entries, of.Entries...)
	f.Checks = append(f.Checks, of.Checks...)
}

// end is where the memory of a pipe that follows begins.
func (f *aclForest) end() forestPlace {
	return forestPlace{
		nodes:   f.base.nodes + uint32(len(f.memory.Nodes)),
		rules4:  f.base.rules4 + uint32(len(f.memory.Rules4)),
		rules6:  f.base.rules6 + uint32(len(f.memory.Rules6)),
		entries: f.base.entries + uint32(len(f.memory.Entries)),
		checks:  f.base.checks + uint32(len(f.memory.Checks)),
	}
}

// plant makes the pipe a forest. It answers false, and leaves the pipe as it was, where entries do not let
// themselves be told apart by cuts: where more than some thousand that ask for the same addresses, ports and
// zones differ in large sets alone.
func (a *ACL) plant(entries []ACLEntry) bool {
	f := &aclForest{base: a.baseForest}
	was := len(a.sets)
	for i, family := range forestFamilies {
		if !f.family(a, i, family, entries) {
			a.sets = a.sets[:was]
			return false
		}
	}
	a.forest = f
	a.mapSets()
	return true
}

// family adds the trees of one family.
func (f *aclForest) family(a *ACL, at int, family uint8, entries []ACLEntry) bool {
	tb := newTreeBuilder(a, family, entries)
	items := tb.items()
	if i := slices.IndexFunc(items, func(it treeItem) bool { return it.decided() && !entries[it.entry].Audit }); i >= 0 {
		items = items[:i+1] // it takes all that is left
	}
	w := newForestWriter(f, tb, len(items))
	var decide, audit []int32
	for i := range items {
		first := len(w.boxes)
		w.item(&items[i])
		list := &decide
		if entries[items[i].entry].Audit {
			list = &audit
		}
		for box := first; box < len(w.boxes); box++ {
			*list = append(*list, int32(box))
		}
	}
	ok := true
	if f.decide[at], ok = w.trees(decide); !ok {
		return false
	}
	f.audit[at], ok = w.auditTree(audit)
	return ok
}
