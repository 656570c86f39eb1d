package firewall

// rulePlace is where a rule's name stands.
type rulePlace struct {
	file         int32 // index in Policy.Files
	line, column int32
	start        int32 // of the line, in bytes of the file
}

// RulePos returns the place of the name of rule i, or of the rule where it has none.
func (p *Policy) RulePos(i int) Pos {
	at := &p.places[i]
	return Pos{
		File: p.Files[at.file], Line: int(at.line), Column: int(at.column),
		Source: lineAt(p.texts[at.file], int(at.start)),
	}
}

// mirrorPos returns the place where rule i names the port that it mirrors to.
func (p *Policy) mirrorPos(i int) Pos {
	at, m := &p.places[i], &p.Rules[i].Mirror
	pos := Pos{File: p.Files[at.file], Line: int(at.line + m.below), Column: int(m.column)}
	text, start := p.texts[at.file], int(at.start)
	for range m.below {
		start = nextLine(text, start)
	}
	for range -m.below {
		start = lineBefore(text, start)
	}
	pos.Source = lineAt(text, start)
	return pos
}

// findLines says of the places of rules where their lines begin. Those of a file follow one another.
func (p *Policy) findLines() {
	for first := 0; first < len(p.places); {
		file, end := p.places[first].file, first+1
		for end < len(p.places) && p.places[end].file == file && p.places[end].line >= p.places[end-1].line {
			end++
		}
		findLines(p.places[first:end], p.texts[file], textStart(p.texts[file]))
		first = end
	}
}

// findLines says of places in the order of their lines where these begin in a text, the first of which does at start.
func findLines(places []rulePlace, text []byte, start int) {
	line := int32(1)
	for i := range places {
		for ; line < places[i].line; line++ {
			start = nextLine(text, start)
		}
		places[i].start = int32(start)
	}
}
