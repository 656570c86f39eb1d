package flowtable

import "github.com/softdpu/softdpu/bpf"

// ForestChange is what turns the memory of a pipe that is a forest into that of the pipe that ACL.Revise made of
// it. It writes to places alone to which no search of the earlier one comes.
type ForestChange struct {
	before  *aclForest
	after   *aclForest
	changes int // that were counted
	written [forestArrays][]forestExtent
	retired [forestArrays][]forestExtent // what the earlier forest alone uses
	came    []*forestSet                 // large sets of which there is a user more
	went    []*forestSet                 // and one less
}

// forestExtent is a run of places of one array of a pipe's memory.
type forestExtent struct{ at, n uint32 }

// Write puts what changed into the memory of the program's maps, given from their first elements on; what does not
// change is not touched. No packet sees it before the roots (PutRoots) of the new pipe stand in the bank that it
// looks up by.
func (c *ForestChange) Write(to Forest, set4 []bpf.XDPSet4Node, set6 []bpf.XDPSet6Node) {
	f := c.after
	forestWrite(to.Nodes, f.base.nodes, f.memory.Nodes, c.written[forestInNodes])
	forestWrite(to.Rules4, f.base.rules4, f.memory.Rules4, c.written[forestInRules4])
	forestWrite(to.Rules6, f.base.rules6, f.memory.Rules6, c.written[forestInRules6])
	forestWrite(to.Checks, f.base.checks, f.memory.Checks, c.written[forestInChecks])
	forestWrite(set4, f.base4, f.set4, c.written[forestInSet4])
	forestWrite(set6, f.base6, f.set6, c.written[forestInSet6])
}

func forestWrite[T any](to []T, base uint32, from []T, runs []forestExtent) {
	for _, r := range runs {
		copy(to[base+r.at:base+r.at+r.n], from[r.at:r.at+r.n])
	}
}

// Free gives back the places that the pipe before this one alone used: nobody may search that one any more, in the
// kernel or in Go.
func (a *ACL) Free(c *ForestChange) {
	c.after.mu.Lock()
	defer c.after.mu.Unlock()
	c.after.giveBack(&c.retired)
	c.retired = [forestArrays][]forestExtent{}
	c.before = nil
}

// Drop undoes the change that made this pipe, which was never in force: the one from which it was made can be revised
// again. It does nothing if a later change was made, or the places of this one's forerunner were given back.
func (a *ACL) Drop(c *ForestChange) {
	f := c.after
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.before == nil || f.newest != f {
		return
	}
	f.newest = c.before
	f.changes -= c.changes
	f.users(c.went, c.came)
	f.giveBack(&c.written)
	c.written, c.retired = [forestArrays][]forestExtent{}, [forestArrays][]forestExtent{}
	c.before = nil
}

func (f *forestArena) giveBack(runs *[forestArrays][]forestExtent) {
	for array, list := range runs {
		for _, r := range list {
			f.busy[array].clear(r.at, r.n)
		}
	}
}

// users counts who uses large sets, and returns those that nobody uses any more. They are not to be found then.
func (f *forestArena) users(came, went []*forestSet) (unused []*forestSet) {
	for _, s := range came {
		s.users++
		f.known[s.key] = s
		f.placed[forestPlaced{s.array, s.first}] = s
	}
	for _, s := range went {
		if s.users--; s.users == 0 {
			delete(f.known, s.key)
			unused = append(unused, s)
		}
	}
	return unused
}
