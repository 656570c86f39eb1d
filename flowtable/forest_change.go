package flowtable

import "github.com/softdpu/softdpu/bpf"

// ForestChange is what turns the memory of a pipe that is a forest into that of the pipe that ACL.Revise made of
// it. It writes to places alone to which no search of the earlier one comes.
type ForestChange struct {
	nodes, rules4, rules6, entries, checks, set4, set6 []forestExtent

	of      *aclForest
	retired forestRetired
}

// forestExtent is a run of places of one array of a pipe's memory.
type forestExtent struct{ at, n uint32 }

// forestRetired are places, of each array, that the earlier forest alone uses.
type forestRetired struct {
	nodes, rules4, rules6, entries, checks, set4, set6 []forestExtent
	sets                                               []forestSet
}

// Write puts what changed into the memory of the program's maps, given from their first elements on; what does not
// change is not touched. No packet sees it before the roots (PutRoots) of the new pipe stand in the bank that it
// looks up by.
func (c *ForestChange) Write(to Forest, set4 []bpf.XDPSet4Node, set6 []bpf.XDPSet6Node) {
	f := c.of
	forestWrite(to.Nodes[f.base.nodes:], f.memory.Nodes, c.nodes)
	forestWrite(to.Rules4[f.base.rules4:], f.memory.Rules4, c.rules4)
	forestWrite(to.Rules6[f.base.rules6:], f.memory.Rules6, c.rules6)
	forestWrite(to.Entries[f.base.entries:], f.memory.Entries, c.entries)
	forestWrite(to.Checks[f.base.checks:], f.memory.Checks, c.checks)
	forestWrite(set4[f.base4:], f.set4, c.set4)
	forestWrite(set6[f.base6:], f.set6, c.set6)
}

func forestWrite[T any](to, from []T, runs []forestExtent) {
	for _, r := range runs {
		copy(to[r.at:r.at+r.n], from[r.at:r.at+r.n])
	}
}
