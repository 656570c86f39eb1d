package flowtable

import "sync/atomic"

// TallyCheck compares what sources are said to have with the flows that there are. They differ only where the daemon
// ended between the two steps of freeing a flow or having one count, where a flow that was opened before its rule
// had a limit ended while it was made to count, and where flows were left behind when the table got another size.
// The zero value is ready for use.
type TallyCheck struct {
	suspects map[uint32]suspicion // by place
}

// suspicion is a count that was wrong.
type suspicion struct {
	word  uint64
	flows uint32 // that count there
}

// Run looks once, and corrects the counts that were wrong in the same way when it looked before: what is under way
// in one packet is not so for long, and then another count or another number of flows is found. Call it a second
// apart. Beside holds what is beside the groups in kernel hashes; it may be nil. It returns how many counts it has
// corrected. One Run, Scan or Kill at a time.
func (c *TallyCheck) Run(t *Table, beside *Table) (corrected int) {
	if t.tallies == nil {
		return 0
	}
	before := make([]uint64, tallyPlaces)
	used := false
	for place := range before {
		before[place] = atomic.LoadUint64(t.tallyWord(uint32(place)))
		used = used || before[place]&tallyCount != 0
	}
	found := make(map[uint32]suspicion)
	if used || atomic.LoadInt64(&t.state.Aliases) > 0 {
		flows := make([]uint32, tallyPlaces)
		t.counting(beside, func(_ *entry, a *alias) { flows[a.tally-1]++ })
		for place, word := range before {
			if uint32(word&tallyCount) != flows[place] && atomic.LoadUint64(t.tallyWord(uint32(place))) == word {
				found[uint32(place)] = suspicion{word, flows[place]}
			}
		}
	}
	for place, s := range found {
		if c.suspects[place] != s {
			continue
		}
		if atomic.CompareAndSwapUint64(t.tallyWord(place), s.word, s.word&^tallyCount|uint64(s.flows)) {
			corrected++
		}
		delete(found, place)
	}
	c.suspects = found
	return corrected
}
