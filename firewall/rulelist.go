package firewall

import (
	"bytes"
	"strings"
)

// usualRulePart is how many bytes of rules are read at once, at least: a changed rule costs the reading of some parts,
// and each part a little with every reading.
const usualRulePart = 4 << 10

// Bounds of the search for a part behind a change.
const (
	resyncParts = 8        // that the change may have taken away
	resyncBytes = 64 << 10 // that it may have brought
)

// ruleList is the text of a file whose rules, if they are a list by indentation, are read in parts, which make no
// difference to what they mean: nothing of a rule stands as far left as its dash. It is immutable.
type ruleList struct {
	text       []byte
	head, tail int // the list is text[head:tail]; both are 0 if there is none
	key        int // the line of the list's key, from 0
	above      int // lines above the list
	lines      int // of it
	indent     int // of its dashes
	parts      []rulePart
}

// rulePart is some rules of a list, from the dash of one to the one before another's.
type rulePart struct {
	size, lines int // bytes with the ends of lines
	*partRules      // nil until it is read
}

// newRuleList finds the rules in a text, whose lines those are and begin there.
func newRuleList(text []byte, lines []string, starts []int, partSize int) *ruleList {
	f := &ruleList{text: text}
	for _, list := range topLists(lines) {
		if !strings.HasPrefix(lines[list.key], "rules:") {
			continue
		}
		if f.tail > 0 {
			return &ruleList{text: text} // two lists are read as any other text
		}
		end := len(text)
		if list.last < len(lines) {
			end = starts[list.last]
		}
		f.head, f.tail, f.key, f.above, f.lines, f.indent = starts[list.first], end, list.key, list.first, list.last-list.first, list.indent
		f.parts, _ = f.cut(lines[list.first:list.last], append(starts[list.first:list.last:list.last], end), partSize)
	}
	return f
}

// cut cuts lines of the list, which begin there and end where another would begin. It answers false if they are not whole
// items.
func (f *ruleList) cut(lines []string, starts []int, partSize int) (parts []rulePart, ok bool) {
	first := 0
	for i, line := range lines {
		at, dash, none := itemLine(line)
		item := !none && dash && at == f.indent
		if i == 0 && !item || !none && !item && at <= f.indent {
			return nil, false
		}
		if size := starts[i] - starts[first]; item && size >= partSize && starts[len(lines)]-starts[i] >= partSize/2 {
			parts = append(parts, rulePart{size: size, lines: i - first})
			first = i
		}
	}
	if len(lines) > 0 {
		parts = append(parts, rulePart{size: starts[len(lines)] - starts[first], lines: len(lines) - first})
	}
	return parts, true
}

// rest returns the lines of a text without the rules, in whose place stands one item, and how many lines are missing
// behind it.
func (f *ruleList) rest(lines []string) (rest []string, gap int) {
	if f.tail == 0 {
		return lines, 0
	}
	rest = append(rest, lines[:f.above]...)
	rest = append(rest, strings.Repeat(" ", f.indent)+"- rules")
	return append(rest, lines[f.above+f.lines:]...), f.lines - 1
}

// changed returns the list of another text in which nothing else has changed: parts that both have are the same, others
// are not read. It answers false where that is not so, or not clear.
func (f *ruleList) changed(text []byte, partSize int) (next *ruleList, ok bool) {
	head, tail := f.text[:f.head], f.text[f.tail:]
	if f.tail == 0 || len(text) < len(head)+len(tail) || !bytes.HasPrefix(text, head) || !bytes.HasSuffix(text[len(head):], tail) {
		return nil, false
	}
	next = &ruleList{text: text, head: f.head, tail: len(text) - len(tail), key: f.key, above: f.above, indent: f.indent}
	list := text[next.head:next.tail]
	if len(tail) > 0 && !endsLine(list) {
		return nil, false
	}
	c := listChange{f: f, old: f.text[f.head:f.tail], list: list, whole: len(tail) == 0}
	for c.next(); c.at < len(list) || c.part < len(f.parts); c.next() {
		at, part := c.resync()
		if !c.fresh(at, partSize) {
			return nil, false
		}
		c.skip(at, part)
	}
	if len(c.parts) == 0 {
		return nil, false
	}
	for i := range c.parts {
		next.lines += c.parts[i].lines
	}
	next.parts = c.parts
	return next, true
}

// listChange goes through a changed list from its beginning.
type listChange struct {
	f         *ruleList
	old, list []byte
	whole     bool // nothing stands behind the list
	at        int  // so far has the list been gone through
	part      int  // so many parts of the old one,
	oldAt     int  // which are so many bytes
	parts     []rulePart
}

// next takes over the parts that come next in both lists.
func (c *listChange) next() {
	for c.part < len(c.f.parts) {
		text := c.textOf(c.part, c.oldAt)
		if !bytes.HasPrefix(c.list[c.at:], text) || !c.mayEnd(text, c.at+len(text)) {
			return
		}
		c.parts = append(c.parts, c.f.parts[c.part])
		c.skip(c.at+len(text), c.part+1)
	}
}

func (c *listChange) skip(at, part int) {
	for ; c.part < part; c.part++ {
		c.oldAt += c.f.parts[c.part].size
	}
	c.at = at
}

func (c *listChange) textOf(part, oldAt int) []byte { return c.old[oldAt : oldAt+c.f.parts[part].size] }

// mayEnd reports whether a part can end there: with a line.
func (c *listChange) mayEnd(text []byte, at int) bool {
	return endsLine(text) || c.whole && at == len(c.list)
}

// resync returns where in the list an old part stands next, or the end.
func (c *listChange) resync() (at, part int) {
	oldAt := c.oldAt
	for part = c.part; part < min(c.part+resyncParts, len(c.f.parts)); part++ {
		text := c.textOf(part, oldAt)
		window := c.list[c.at:min(len(c.list), c.at+oldAt-c.oldAt+len(text)+resyncBytes)]
		if i := bytes.Index(window, text); i >= 0 && c.begins(c.at+i) && c.mayEnd(text, c.at+i+len(text)) {
			return c.at + i, part
		}
		oldAt += len(text)
	}
	at, part, oldAt = len(c.list), len(c.f.parts), len(c.old)
	for part > c.part {
		size := c.f.parts[part-1].size
		if at-size < c.at || !c.begins(at-size) || !bytes.Equal(c.list[at-size:at], c.old[oldAt-size:oldAt]) || !c.mayEnd(c.list[at-size:at], at) {
			break
		}
		at, part, oldAt = at-size, part-1, oldAt-size
	}
	return at, part
}

// begins reports whether a line of the list begins there.
func (c *listChange) begins(at int) bool { return at == 0 || endsLine(c.list[:at]) }

// fresh takes what stands before at as new parts, with the last of the old ones if it does not begin with an item.
func (c *listChange) fresh(at, partSize int) bool {
	first := c.at
	for {
		lines, starts := splitLines(c.list[first:at])
		if parts, ok := c.f.cut(lines, starts, partSize); ok {
			if e, bad := notText("", "", lines); bad {
				return e.Msg == ""
			}
			c.parts = append(c.parts, parts...)
			return true
		}
		if first < c.at || len(c.parts) == 0 {
			return false
		}
		last := len(c.parts) - 1
		first -= c.parts[last].size
		c.parts = c.parts[:last]
	}
}
