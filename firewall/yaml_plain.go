package firewall

import "strings"

// plainItems reads a list each of whose items is a map in braces on a line of its own, of plain words, lists and maps:
// what nearly all of a long policy is, and a general parser takes ten times as long for. It answers false for all else,
// be it right or wrong. What it answers is what parse does, at a depth of 1.
func (t *tree) plainItems() (*Node, bool) {
	p := plainLine{t: t}
	list := &Node{Kind: ListNode}
	for i, line := range t.lines {
		at, dash, none := itemLine(line)
		switch {
		case none:
			continue
		case !dash || !strings.HasPrefix(line[at:], "- {") || list.Items != nil && at+1 != list.Pos.Column:
			return nil, false
		case list.Items == nil:
			list.Pos = Pos{File: t.name, Line: i + 1 + t.gap, Column: at + 1, Source: line}
		}
		p.line, p.number, p.at = line, i+1+t.gap, at+2
		item, ok := p.value(0)
		if !ok || p.at != len(line) {
			return nil, false
		}
		list.Items = append(list.Items, item)
	}
	return list, list.Items != nil
}

// plainLine is a line that is read.
type plainLine struct {
	t      *tree
	line   string
	number int // from 1
	at     int // so far it has been read, in bytes; all characters of what is read are one
}

// plainDepth is how deep what is read may be.
const plainDepth = 8

func (p *plainLine) pos(at int) Pos {
	return Pos{File: p.t.name, Line: p.number, Column: at + 1, Source: p.line}
}

// value reads a word, list or map.
func (p *plainLine) value(depth int) (*Node, bool) {
	n := &Node{Pos: p.pos(p.at)}
	switch {
	case p.at == len(p.line) || depth > plainDepth:
		return nil, false
	case p.line[p.at] == '{':
		n.Kind = MapNode
		ok := p.members('}', func() bool {
			f := Field{Pos: p.pos(p.at)}
			if f.Key = p.key(); f.Key == "" {
				return false
			}
			var ok bool
			f.Value, ok = p.value(depth + 1)
			n.Fields = append(n.Fields, f)
			return ok
		})
		return n, ok
	case p.line[p.at] == '[':
		n.Kind = ListNode
		ok := p.members(']', func() bool {
			item, ok := p.value(depth + 1)
			n.Items = append(n.Items, item)
			return ok
		})
		return n, ok
	}
	n.Kind, n.Text = ScalarNode, p.word()
	return n, n.Text != ""
}

// members reads what stands in brackets, with a comma and a space between each two.
func (p *plainLine) members(end byte, read func() bool) bool {
	for p.at++; read() && p.at < len(p.line); p.at += 2 {
		if p.line[p.at] == end {
			p.at++
			return true
		}
		if !strings.HasPrefix(p.line[p.at:], ", ") {
			return false
		}
	}
	return false
}

// key reads a word of letters with the colon and the space behind it, "" if there is none.
func (p *plainLine) key() string {
	first := p.at
	for p.at < len(p.line) && (isLetter(p.line[p.at]) || p.line[p.at] == '_') {
		p.at++
	}
	word := p.line[first:p.at]
	if !strings.HasPrefix(p.line[p.at:], ": ") || word == "null" {
		return ""
	}
	p.at += 2
	return word
}

// word reads a word that is nothing but itself, "" if there is none.
func (p *plainLine) word() string {
	first := p.at
	for ; p.at < len(p.line); p.at++ {
		c := p.line[p.at]
		if isLetter(c) || isDigit(c) {
			continue
		}
		// A colon of an address has part of it behind it.
		if p.at > first && (c == '-' || c == '_' || c == '.' || c == '/' || c == ':' && p.at+1 < len(p.line) && (isLetter(p.line[p.at+1]) || isDigit(p.line[p.at+1]))) {
			continue
		}
		break
	}
	word := p.line[first:p.at]
	if len(word) == 4 && strings.EqualFold(word, "null") {
		return ""
	}
	return word
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
