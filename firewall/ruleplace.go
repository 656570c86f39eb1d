package firewall

import (
	"bytes"
	"strings"
)

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
	file, line, start := int32(-1), int32(0), 0
	for i := range p.places {
		at := &p.places[i]
		text := p.texts[at.file]
		if at.file != file || at.line < line {
			file, line, start = at.file, 1, len(text)-len(bytes.TrimPrefix(text, []byte(byteOrderMark)))
		}
		for ; line < at.line; line++ {
			start = nextLine(text, start)
		}
		at.start = int32(start)
	}
}

// byteOrderMark may stand before a text and is none of it.
const byteOrderMark = "\ufeff"

// Lines end as in YAML: by LF, CR or both.

// lineAt returns the line that begins at an offset, without its end.
func lineAt(text []byte, start int) string {
	line := text[start:]
	if end := bytes.IndexAny(line, "\r\n"); end >= 0 {
		line = line[:end]
	}
	return strings.Clone(string(line))
}

// nextLine returns where the line behind the one at start begins.
func nextLine(text []byte, start int) int {
	end := bytes.IndexAny(text[start:], "\r\n")
	if end < 0 {
		return len(text)
	}
	end += start
	if text[end] == '\r' && end+1 < len(text) && text[end+1] == '\n' {
		end++
	}
	return end + 1
}

// lineBefore returns where the line before the one at start begins.
func lineBefore(text []byte, start int) int {
	end := max(start-1, 0)
	if end > 0 && text[end] == '\n' && text[end-1] == '\r' {
		end--
	}
	if i := bytes.LastIndexAny(text[:end], "\r\n"); i >= 0 {
		return i + 1
	}
	return len(text) - len(bytes.TrimPrefix(text, []byte(byteOrderMark)))
}
