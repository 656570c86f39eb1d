package flowtable

// Translated calls fn with the ids of the nat rules of every flow that is translated, in no order, and whether
// its source port was chosen for it. Flows that come or go meanwhile may or may not be among them.
func (t *Table) Translated(fn func(source, destination uint32, port bool)) {
	for e := range t.entries() {
		word := e.word()
		if !isAlias(word) {
			continue
		}
		if a := e.alias(); e.word()>>WordGenerationBit == word>>WordGenerationBit {
			fn(a.source, a.destination, a.port != 0)
		}
	}
}
