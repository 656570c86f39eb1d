package flowtable

// Translated calls fn with the ids of the nat rules of every flow that is translated, whether its source port was
// chosen for it, and of every mapping, in no order. A mapping has no rule for destinations. Flows that come or go
// meanwhile may or may not be among them.
func (t *Table) Translated(fn func(source, destination uint32, port, mapping bool)) {
	for e := range t.entries() {
		word := e.word()
		if !isAlias(word) {
			continue
		}
		a, k := e.alias(), e.key()
		if e.word()>>WordGenerationBit == word>>WordGenerationBit {
			fn(a.source, a.destination, a.port != 0, k.kind() == KeyMapping)
		}
	}
}
