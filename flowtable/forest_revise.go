package flowtable

import "slices"

const (
	forestEdits  = 512  // most entries that come and go in one change
	forestMoved  = 4096 // most entries that get other places so that others can stand between them
	forestBatch  = 64   // boxes that are brought into a tree at once
	forestCuts   = 64   // leaves that are cut in one change though they need not be
	forestLeaves = 8192 // leaves into which a box is copied at most
	forestFew    = 256  // the same where another tree can have it
)

// Revise returns the pipe of other entries as a change of a, which must be the newest version of a forest. Both share
// memory; the change says what is to be written to that of the maps. Instructions are the same. It answers false
// where the pipe must be compiled anew: too much has changed, now or since it was compiled, there is no room, or it
// is no forest.
//
// The entries must not be changed afterwards, as those given to CompileACL. Comparing them with the old ones is quick
// where their lists of addresses are the same memory.
func (a *ACL) Revise(entries []ACLEntry) (next *ACL, change *ForestChange, ok bool) {
	f := a.forest
	if f == nil {
		return nil, nil, false
	}
	runs, ok := aclDiff(f.entries, entries, forestEdits)
	if !ok {
		return nil, nil, false
	}
	r := newForestRevision(f, entries, runs)
	for _, i := range r.come {
		if entries[i].check() != nil {
			return nil, nil, false // compiling says what is wrong
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.newest != f || f.changes+r.change.changes > max(len(f.entries), aclCodeEntries)/4 {
		return nil, nil, false
	}
	for i := range forestFamilies {
		if !r.revise(i) {
			f.giveBack(&r.taken)
			f.giveBack(&r.change.written)
			return nil, nil, false
		}
	}
	r.commit()
	next = &ACL{}
	*next = *a
	next.forest = r.after
	return next, r.change, true
}

// forestRevision makes a version of a forest of another.
type forestRevision struct {
	*forestArena
	before, after *aclForest
	change        *ForestChange
	runs          []aclRun
	gone, come    []int                        // entries of the old list, and of the new one
	cuts          int                          // of leaves that may still be made
	taken         [forestArrays][]forestExtent // for the family at hand
}

func newForestRevision(f *aclForest, entries []ACLEntry, runs []aclRun) *forestRevision {
	r := &forestRevision{forestArena: f.forestArena, before: f, after: &aclForest{forestArena: f.forestArena, entries: entries}, runs: runs, cuts: forestCuts}
	old, new := 0, 0
	for _, run := range append(slices.Clone(runs), aclRun{len(f.entries), len(entries), 0}) {
		for ; old < run.old; old++ {
			r.gone = append(r.gone, old)
		}
		for ; new < run.new; new++ {
			r.come = append(r.come, new)
		}
		old, new = run.old+run.n, run.new+run.n
	}
	r.change = &ForestChange{before: f, after: r.after, changes: len(r.gone) + len(r.come)}
	return r
}

// take takes places that nobody uses.
func (r *forestRevision) take(array, n int) (at uint32, ok bool) {
	if n == 0 {
		return 0, true
	}
	if at, ok = r.busy[array].take(n); ok {
		r.taken[array] = append(r.taken[array], forestExtent{at, uint32(n)})
	}
	return at, ok
}

// revise makes the trees of one family.
func (r *forestRevision) revise(at int) bool {
	was, t := &r.before.family[at], &r.after.family[at]
	*t = forestFamily{decide: slices.Clone(was.decide), audit: slices.Clone(was.audit), places: make([]uint32, len(r.after.entries)), closed: -1}
	for i := range t.places {
		t.places[i] = forestNowhere
	}
	for _, run := range r.runs {
		copy(t.places[run.new:run.new+run.n], was.places[run.old:])
		if was.closed >= run.old && was.closed < run.old+run.n {
			t.closed = was.closed - run.old + run.new
		}
	}
	if was.closed >= 0 && t.closed < 0 && was.closed < len(was.places)-1 {
		return false // what it hid is to be seen
	}
	gone := slices.DeleteFunc(slices.Clone(r.gone), func(i int) bool { return was.places[i] == forestNowhere })
	come := slices.DeleteFunc(slices.Clone(r.come), func(i int) bool { return t.closed >= 0 && i > t.closed })
	if len(gone)+len(come) == 0 {
		return true
	}
	g := &forestGraft{forestRevision: r, at: at, family: t, writer: r.writer(at), origin: map[uint32]uint32{}, became: map[uint32]uint32{}, moved: map[int]bool{}}
	ok := g.comers(come) && g.leavers(gone) && g.trees()
	for place := range g.origin {
		r.taken[forestInOrder] = append(r.taken[forestInOrder], forestExtent{place, 1})
	}
	if !ok {
		return false
	}
	r.sweep(at, true)
	for array := range r.taken {
		r.change.written[array] = append(r.change.written[array], r.taken[array]...)
		r.taken[array] = nil
	}
	return true
}

// writer returns what makes boxes and trees of a family.
func (r *forestRevision) writer(at int) *forestWriter {
	return &forestWriter{forestArena: r.forestArena, family: forestFamilies[at], alternatives: r.alternatives[at], take: r.take}
}

// commit makes the new version the newest.
func (r *forestRevision) commit() {
	for _, s := range r.users(r.change.came, r.change.went) {
		r.change.retired[s.array] = append(r.change.retired[s.array], forestExtent{s.first, s.nodes})
	}
	r.changes += r.change.changes
	r.newest = r.after
}
