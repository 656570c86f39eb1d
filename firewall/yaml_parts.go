package firewall

import (
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// A part is some items of a top-level list, from the line that one begins on to the one before another begins.
type part struct {
	key         int // the line of the list's key, from 0
	first, last int // its lines, from 0; last is not in it
	docs        []*Node
	faults      Errors
}

var (
	listKey = regexp.MustCompile(`^[A-Za-z_]+:\s*(#.*)?$`)
	listEnd = regexp.MustCompile(`^([A-Za-z_]+:|---|\.\.\.)`)
)

// A topList is a list by indentation that is the value of a top-level key. Lines count from 0.
type topList struct {
	key         int // the line of the key
	first, last int // from the line of its first item to the one before what follows
	indent      int // of its dashes
}

// topLists finds the top-level lists by indentation. It sees no more of YAML than that nothing of an item stands as far
// left as the item's dash; where that is not so a part of the list does not parse, or what is left of the text does not.
func topLists(lines []string) (lists []topList) {
	for i := 0; i < len(lines); i++ {
		if !listKey.MatchString(lines[i]) {
			continue
		}
		list := topList{key: i, indent: -1}
		for i++; i < len(lines); i++ {
			at, dash, none := itemLine(lines[i])
			if none {
				continue
			}
			if list.indent < 0 && dash {
				list.first, list.indent = i, at
			}
			if at < list.indent || at == list.indent && !dash || list.indent < 0 {
				break
			}
		}
		if list.last = i; list.indent >= 0 && (i == len(lines) || listEnd.MatchString(lines[i])) { // else it may go on
			lists = append(lists, list)
		}
		i--
	}
	return lists
}

// itemLine returns how far a line of a list is indented and whether it has a dash there, or that nothing stands in it.
func itemLine(line string) (at int, dash, none bool) {
	body := strings.TrimLeft(line, " ")
	if body == "" || body[0] == '#' {
		return 0, false, true
	}
	return len(line) - len(body), body == "-" || strings.HasPrefix(body, "- "), false
}

// cut finds the parts that a text can be parsed in besides what is left of it when they are taken out: of each top-level
// list by indentation all but its first partSize bytes.
func cut(lines []string, partSize int) (parts []part) {
	for _, list := range topLists(lines) {
		size, before := 0, len(parts)
		for i := list.key + 1; i < list.last; i++ {
			size += len(lines[i]) + 1
			if size <= partSize {
				continue
			}
			if at, dash, none := itemLine(lines[i]); !none && dash && at == list.indent {
				parts, size = append(parts, part{key: list.key, first: i}), 0
			}
		}
		for n := before; n < len(parts); n++ {
			parts[n].last = list.last
			if n+1 < len(parts) {
				parts[n].last = parts[n+1].first
			}
		}
	}
	return parts
}

// parseParts parses a long text in parts, several at once. It is not ok if that cannot be done, or if there is a
// mistake in the text, which is then to be looked for in the whole; faults are what the parts say of it.
func (t *tree) parseParts() (docs []*Node, faults Errors, ok bool) {
	parts := cut(t.lines, t.size.part)
	if len(parts) == 0 {
		return nil, nil, false
	}
	left := slices.Clone(t.lines)
	for _, p := range parts {
		clear(left[p.first:p.last])
	}
	rest := part{}
	var wg sync.WaitGroup
	next := make(chan *part)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for p := range next {
				p.parse(t, t.lines[p.first:p.last], 1)
			}
		})
	}
	for i := range parts {
		next <- &parts[i]
	}
	close(next)
	rest.parse(t, left, 0)
	wg.Wait()
	faults = rest.faults
	for i := range parts {
		faults = append(faults, parts[i].faults...)
	}
	if len(faults) > 0 {
		return nil, faults, false
	}
	for i := range parts {
		p := &parts[i]
		list := listOf(rest.docs, p.key+1)
		if list == nil || len(p.docs) != 1 || p.docs[0].Kind != ListNode || p.docs[0].Pos.Column != list.Pos.Column {
			return nil, nil, false
		}
		list.Items = append(list.Items, p.docs[0].Items...)
	}
	return rest.docs, nil, true
}

// parse reads lines, which stand in whole from line p.first on, at that depth of its tree.
func (p *part) parse(whole *tree, lines []string, depth int) {
	t := &tree{name: whole.name, lines: whole.lines, above: p.first, size: whole.size, gapAt: whole.gapAt, gap: whole.gap}
	p.docs = t.parse(lines, depth)
	p.faults = t.errs
}

// listOf is the list by indentation that is the value of the top-level key in that line.
func listOf(docs []*Node, line int) *Node {
	for _, d := range docs {
		for _, f := range d.Fields {
			if f.Pos.Line == line && f.Pos.Column == 1 && f.Value.Kind == ListNode && f.Value.Pos.Line > line {
				return f.Value
			}
		}
	}
	return nil
}
