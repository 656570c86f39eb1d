package flowtable

import "github.com/softdpu/softdpu/bpf"

// Translated calls fn with the ids of the nat rules of every flow that is translated, in no order. Flows that
// come or go meanwhile may or may not be among them.
func (t *Table) Translated(fn func(source, destination uint32)) {
	for e := range t.entries() {
		word := e.word()
		if !isAlias(word) {
			continue
		}
		if a := e.alias(); e.word()>>WordGenerationBit == word>>WordGenerationBit {
			fn(a.source, a.destination)
		}
	}
}

// Orphans returns which of the entries that were copied out of the kernel hashes beside the groups are
// aliases whose flow is neither in the groups nor among these entries, and has not been for 2 s.
func (t *Table) Orphans(now uint32, beside4 []bpf.XDPFlow4, beside6 []bpf.XDPFlow6) (orphans4, orphans6 []int) {
	flows := make(map[flowKey]flowKey) // outer tuples of translated flows beside the groups
	look := func(e entry) {
		if outer, ok := e.outer(); ok && isFlow(e.word()) {
			flows[bare(e.key())] = bare(keyOf(&outer))
		}
	}
	orphan := func(e entry) bool {
		if !isAlias(e.word()) {
			return false
		}
		a, k := e.alias(), e.key()
		if age(now, a.created) < orphanTicks || flows[bare(a.target)] == bare(k) {
			return false
		}
		_, ok := t.followKey(&e, &k)
		return !ok
	}
	for i := range beside4 {
		look(entry4(&beside4[i], FlowID{Overflow: true}))
	}
	for i := range beside6 {
		look(entry6(&beside6[i], FlowID{Overflow: true}))
	}
	for i := range beside4 {
		if orphan(entry4(&beside4[i], FlowID{Overflow: true})) {
			orphans4 = append(orphans4, i)
		}
	}
	for i := range beside6 {
		if orphan(entry6(&beside6[i], FlowID{Overflow: true})) {
			orphans6 = append(orphans6, i)
		}
	}
	return orphans4, orphans6
}

// bare is a key without who sends.
func bare(k flowKey) flowKey {
	k.sender = 0
	return k
}
