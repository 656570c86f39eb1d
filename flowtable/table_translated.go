package flowtable

// Translated calls fn with the ids of the nat rules of every flow that is translated, in no order. Flows that
// come or go meanwhile may or may not be among them.
func (t *Table) Translated(fn func(source, destination uint32)) {
	for e := range t.entries() {
		word := e.word()
		if !isAlias(word) {
			continue
		}
		if k := e.key(); k.kind() != KeyFlow {
			continue
		}
		if a := e.alias(); e.word()>>WordGenerationBit == word>>WordGenerationBit {
			fn(a.source, a.destination)
		}
	}
}
