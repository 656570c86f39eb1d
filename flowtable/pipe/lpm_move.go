package pipe

import "fmt"

// Move has the arena lie in other memory, as large: what is there is copied. Tables of prefixes in it are moved too,
// each by its own Move, before anything looks up in them or changes them again.
func (a *Arena) Move(to *Arena) error {
	if len(to.Roots) != len(a.Roots) || len(to.Nodes4) != len(a.Nodes4) || len(to.Nodes6) != len(a.Nodes6) {
		return fmt.Errorf("move tables of prefixes: from room for %d roots, %d and %d nodes to %d, %d and %d",
			len(a.Roots), len(a.Nodes4), len(a.Nodes6), len(to.Roots), len(to.Nodes4), len(to.Nodes6))
	}
	copy(to.Roots, a.Roots)
	copy(to.Nodes4, a.Nodes4)
	copy(to.Nodes6, a.Nodes6)
	a.Roots, a.Nodes4, a.Nodes6 = to.Roots, to.Nodes4, to.Nodes6
	return nil
}

// Move has the table go on where c says: at a word, which gets what the old one holds, or with a table of exact parts
// that has the same entries as the one before (as OpenTable makes of a copy of its memory). The arena is the same one,
// moved. A nil c.Grace is as in NewLPMTable.
func (l *LPMTable) Move(c LPMConfig) error {
	switch {
	case c.Arena != l.Arena || c.Six != l.Six || (c.Word == nil) != (l.Word == nil) || (c.Groups == nil) != (l.Groups == nil):
		return fmt.Errorf("move a table of prefixes: it is another kind of table there")
	case l.alone != nil:
		*c.Word = *l.Word
		l.alone.word = c.Word
	case c.Groups.Len() != len(l.groups):
		return fmt.Errorf("move a table of prefixes: %d exact parts are there, not %d", c.Groups.Len(), len(l.groups))
	default:
		for exact, t := range l.groups {
			place := c.Groups.Lookup(exact[:])
			if place == 0 {
				return fmt.Errorf("move a table of prefixes: exact part %x is not there", exact)
			}
			t.word = wordOf(&c.Groups.Entries[place])
		}
	}
	if l.LPMConfig = c; c.Grace == nil {
		l.Grace = func() {}
	}
	return nil
}
