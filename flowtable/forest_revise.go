package flowtable

// Revise returns the pipe of other entries as a change of a, which must be the newest version of a forest: the memory
// that both share, and what is to be written there. Instructions are those of a. It answers false where the pipe must be
// compiled anew: too much has changed, there is no room, or it is no forest.
func (a *ACL) Revise(entries []ACLEntry) (next *ACL, change *ForestChange, ok bool) {
	f := a.forest
	if f == nil {
		return nil, nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return nil, nil, false
}

// Free gives back the places that the pipe before this one alone used: nobody may search that one any more, in the
// kernel or in Go.
func (a *ACL) Free(c *ForestChange) {}

// Drop undoes a change that was never in force: the pipe from which it was made is the newest one again. No later
// change may have been made.
func (a *ACL) Drop(c *ForestChange) {}
