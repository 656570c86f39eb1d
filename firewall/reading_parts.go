package firewall

import (
	"maps"
	"reflect"
	"slices"
)

// named returns which rules of all parts have names that are well formed.
func (n *reading) named() []int {
	named, first := make([]int, 0, len(n.policy.Rules)), 0
	for _, f := range n.files {
		for i := range f.parts {
			p := f.parts[i].partRules
			if p.errs == nil {
				for k := range p.rules {
					named = append(named, first+k)
				}
			}
			for _, k := range p.named {
				named = append(named, first+k)
			}
			first += len(p.rules)
		}
	}
	return named
}

// Of a text so long as to take seconds and a hundred times its size to be parsed as a whole, it is told from a part that
// is no YAML, and from so much behind it, why it is none.
const (
	usualLongText = 2 << 20
	faultBytes    = 64 << 10
	mostFaults    = 20
)

// faults returns why parts that could not be read are no YAML; nothing if a text is short, or that is not sure.
func (n *reading) faults(names []string, longText int) (errs Errors) {
	for file, f := range n.files {
		line, at := f.above, f.head
		for i := range f.parts {
			p := &f.parts[i]
			if p.partRules == nil {
				end := at
				for k := i; k < len(f.parts) && end-at < p.size+faultBytes; k++ {
					end += f.parts[k].size
				}
				lines, _ := splitLines(f.text[at:end])
				t := &tree{name: names[file], lines: lines, size: usualSize, gap: line}
				if t.parse(lines, 1); len(f.text) <= longText || len(t.errs) == 0 {
					return nil
				}
				if errs = append(errs, t.errs...); len(errs) >= mostFaults {
					return errs
				}
			}
			line, at = line+p.lines, at+p.size
		}
	}
	return errs
}

// partErrors returns the mistakes in all parts. Those that have some are read once more: what is said of a mistake may
// speak of other lines.
func (n *reading) partErrors(l *loader) (errs Errors) {
	for file, f := range n.files {
		line, at := f.above, f.head
		for i := range f.parts {
			p := &f.parts[i]
			if p.errs != nil {
				errs = append(errs, l.part(file, f.text[at:at+p.size], f.indent, line).errs...)
			}
			line, at = line+p.lines, at+p.size
		}
	}
	return errs
}

// rename makes the names of the last reading, whose they are no more then, those of this one. It answers false, and does
// nothing, if two rules have the same or a test speaks of one that is gone. Rules that were read again and are the same
// become those of before.
func (n *reading) rename(last *reading) bool {
	gone := make(map[string]*Rule)
	var come []*partRules
	for i, f := range n.files {
		if f == last.files[i] {
			continue
		}
		kept := make(map[*partRules]bool, len(f.parts))
		for k := range f.parts {
			kept[f.parts[k].partRules] = true
		}
		for k := range last.files[i].parts {
			p := last.files[i].parts[k].partRules
			if kept[p] {
				delete(kept, p)
				continue
			}
			for _, rule := range p.rules {
				gone[rule.Name] = rule
			}
		}
		for k := range f.parts {
			if p := f.parts[k].partRules; kept[p] {
				come = append(come, p)
			}
		}
	}
	added := make(map[string]bool)
	for _, p := range come {
		if p.errs != nil {
			return false
		}
		for i, rule := range p.rules {
			_, known := n.names[rule.Name]
			if old := gone[rule.Name]; old != nil && reflect.DeepEqual(old, rule) {
				p.rules[i] = old
			} else if known && old == nil {
				return false
			}
			if added[rule.Name] {
				return false
			}
			added[rule.Name] = true
		}
	}
	for i := range n.policy.Tests {
		if name := n.policy.Tests[i].Expect.Rule; gone[name] != nil && !added[name] {
			return false
		}
	}
	for name := range gone {
		delete(n.names, name)
	}
	for name := range added {
		n.names[name] = 0
	}
	return true
}

// shift says of tests and warnings behind a line of a file that they stand so many lines further down.
func (n *reading) shift(file string, line, by int) {
	if by == 0 {
		return
	}
	shift := func(p *Pos) {
		if p.File == file && p.Line > line {
			p.Line += by
		}
	}
	n.policy.Tests = slices.Clone(n.policy.Tests)
	for i := range n.policy.Tests {
		t := &n.policy.Tests[i]
		for _, p := range []*Pos{&t.Pos, &t.Packet.Pos, &t.Packet.InPos, &t.Packet.OutPos, &t.Expect.Pos, &t.Expect.NAT.Pos} {
			shift(p)
		}
	}
	n.warnings = slices.Clone(n.warnings)
	for i := range n.warnings {
		if w := &n.warnings[i]; w.File == file && w.Line > line {
			w.Line += by
		}
	}
}

// assemble puts the rules of all parts together.
func (n *reading) assemble() {
	p := n.policy
	rules := 0
	for _, f := range n.files {
		for i := range f.parts {
			rules += len(f.parts[i].rules)
		}
	}
	p.Rules, p.places, p.special = nil, nil, nil
	if rules > 0 {
		p.Rules, p.places = make([]*Rule, 0, rules), make([]rulePlace, 0, rules)
	}
	p.used, p.Warnings = maps.Clone(n.used), slices.Clone(n.warnings)
	for _, f := range n.files {
		line, start := f.above, f.head
		for i := range f.parts {
			part := &f.parts[i]
			for _, k := range part.special {
				p.special = append(p.special, int32(len(p.Rules))+k)
			}
			p.Rules = append(p.Rules, part.rules...)
			for _, at := range part.places {
				at.line, at.start = at.line+int32(line), at.start+int32(start)
				p.places = append(p.places, at)
			}
			for _, name := range part.used {
				p.used[name] = true
			}
			for _, w := range part.warnings {
				w.Line += line
				p.Warnings = append(p.Warnings, w)
			}
			line, start = line+part.lines, start+part.size
		}
	}
	p.Warnings = p.Warnings.Sorted(p.Files...)
}
