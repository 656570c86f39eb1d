package firewall

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Reading reads a policy again and again, each time only what has changed since. The zero value is ready. It is not safe
// for concurrent use. It keeps the texts that it is given: they must not be changed afterwards.
type Reading struct {
	last     *reading // the last good one that another can go by
	partSize int      // bytes; 0: usualRulePart
	longText int      // bytes above which what is no YAML is told of by its surroundings
}

// reading is a policy with what it was made of.
type reading struct {
	policy *Policy
	loader *loader     // knows every name but those of rules
	files  []*ruleList // of the policy
	tests  []bool      // of files: nothing but tests stands behind the rules
	names  map[string]int
	sets   []string // the files of sets, in the order in which they were read
	// Of what stands beside the rules.
	used     map[string]bool
	warnings Errors
}

// Parse is the function Parse. After an error the next call goes by the last good one.
func (r *Reading) Parse(sources []Source, readFile func(string) ([]byte, error)) (*Policy, error) {
	if r.partSize == 0 {
		r.partSize, r.longText = usualRulePart, usualLongText
	}
	if readFile != nil {
		readFile = once(readFile)
	}
	next := r.again(sources, readFile)
	if next == nil {
		var errs Errors
		if next, errs = r.anew(sources, readFile); len(errs) > 0 {
			return nil, errs
		}
	}
	if next != nil {
		r.last = next
		return next.policy, nil
	}
	// It is not YAML, or cannot be read in parts.
	policy, err := parseWhole(sources, readFile)
	if err == nil {
		r.last = nil
	}
	return policy, err
}

// once returns a function that reads each file the first time only.
func once(readFile func(string) ([]byte, error)) func(string) ([]byte, error) {
	type file struct {
		text []byte
		err  error
	}
	files := make(map[string]file)
	return func(path string) ([]byte, error) {
		f, known := files[path]
		if !known {
			f.text, f.err = readFile(path)
			files[path] = f
		}
		return f.text, f.err
	}
}

// anew reads a policy whose rules can be read in parts. Otherwise, or if a file is not YAML, it returns neither policy nor
// errors.
func (r *Reading) anew(sources []Source, readFile func(string) ([]byte, error)) (*reading, Errors) {
	sums := sumsOf(sources, nil)
	next := &reading{}
	l := newLoader(sources, readFile)
	if read := l.readFile; read != nil {
		l.readFile = func(path string) ([]byte, error) {
			next.sets = append(next.sets, path)
			return read(path)
		}
	}
	var documents []document
	lists := make(map[*Node]bool) // that stand for rules that are read in parts
	for i, s := range sources {
		f, docs, ok := readRest(s, r.partSize)
		if !ok {
			return nil, nil
		}
		if f.tail > 0 {
			list := listOf(docs, f.key+1)
			if list == nil || len(list.Items) != 1 || list.Pos.Column != f.indent+1 {
				return nil, nil
			}
			lists[list] = true
		}
		next.files = append(next.files, f)
		next.tests = append(next.tests, onlyTests(docs, f.above+f.lines))
		documents = append(documents, l.documents(i, docs)...)
	}
	l.declarations(documents)
	others := false
	l.section("rules", documents, func(n *Node) {
		others = others || !lists[n]
		delete(lists, n)
	})
	if len(sources) == 0 || others || len(lists) > 0 {
		return nil, nil
	}
	if !l.readParts(next.files, true) {
		return nil, next.faults(l.policy.Files, r.longText).Sorted(l.policy.Files...)
	}
	next.policy, next.used, next.warnings = l.policy, maps.Clone(l.used), l.warnings
	next.assemble()
	l.indexRules(next.named())
	l.Errs = append(l.Errs, next.partErrors(l.partLoader())...)
	l.section("tests", documents, l.tests)
	if len(l.Errs) > 0 {
		return nil, l.Errs.Sorted(l.policy.Files...)
	}
	next.names, next.used, next.warnings = l.ruleIndex, l.used, l.warnings
	maps.Copy(next.policy.Sums, sums())
	next.loader = l.partLoader()
	declared := *l.policy
	declared.Rules, declared.places, declared.texts = nil, nil, nil
	next.loader.policy, next.loader.ruleIndex = &declared, nil
	next.assemble()
	return next, nil
}

// again reads a policy as a change of the last one. The result is nil if that is not possible, or not clear.
func (r *Reading) again(sources []Source, readFile func(string) ([]byte, error)) *reading {
	last := r.last
	if last == nil || !slices.EqualFunc(sources, last.policy.Files, func(s Source, name string) bool { return s.Name == name }) {
		return nil
	}
	sums := sumsOf(sources, last.policy)
	next := *last
	next.files = make([]*ruleList, len(sources))
	texts := make([][]byte, len(sources))
	for i, s := range sources {
		f := last.files[i]
		if next.files[i], texts[i] = f, f.text; !bytes.Equal(f.text, s.Text) {
			changed, ok := f.changed(s.Text, r.partSize)
			if !ok || len(s.Text) > maxFile || changed.lines != f.lines && !last.tests[i] {
				return nil
			}
			next.files[i], texts[i] = changed, s.Text
		}
	}
	for _, path := range last.sets {
		if readFile == nil {
			return nil
		}
		if text, err := readFile(path); err != nil || sha256.Sum256(text) != last.policy.Sums[path] {
			return nil
		}
	}
	if !last.loader.readParts(next.files, false) || !next.rename(last) {
		return nil
	}
	policy := *last.policy
	policy.texts, policy.Sums = texts, maps.Clone(last.policy.Sums)
	next.policy = &policy
	for i, f := range next.files {
		next.shift(policy.Files[i], last.files[i].above+last.files[i].lines, f.lines-last.files[i].lines)
	}
	for name, sum := range sums() {
		if !slices.Contains(next.sets, name) {
			policy.Sums[name] = sum
		}
	}
	next.assemble()
	return &next
}

// sumsOf adds up the sources, but for those that another policy was read from too. The sums are ready when the result
// returns them.
func sumsOf(sources []Source, last *Policy) func() map[string][sha256.Size]byte {
	done := make(chan map[string][sha256.Size]byte, 1)
	go func() {
		sums := make(map[string][sha256.Size]byte)
		for i, s := range sources {
			if last != nil && bytes.Equal(last.texts[i], s.Text) {
				sums[s.Name] = last.Sums[s.Name]
			} else {
				sums[s.Name] = sha256.Sum256(s.Text)
			}
		}
		done <- sums
	}()
	return func() map[string][sha256.Size]byte { return <-done }
}

// readRest finds the rules of a file and reads what stands beside them, with one item in their place. It answers false if
// there is a mistake in it.
func readRest(s Source, partSize int) (f *ruleList, docs []*Node, ok bool) {
	if len(s.Text) > maxFile {
		return nil, nil, false
	}
	begin := textStart(s.Text)
	lines, starts := splitLines(s.Text[begin:])
	if _, bad := notText(s.Name, string(s.Text[:min(len(s.Text), 4)]), lines); bad {
		return nil, nil, false
	}
	for i := range starts {
		starts[i] += begin
	}
	f = newRuleList(s.Text, lines, starts, partSize)
	rest, gap := f.rest(lines)
	if endsLine(s.Text) {
		rest = append(rest, "")
	}
	text := strings.Join(rest, "\n") // so that places do not keep all of the file
	t := &tree{name: s.Name, lines: strings.Split(text, "\n"), size: usualSize, gapAt: f.above + 1, gap: gap}
	docs, errs := t.read(len(text))
	return f, docs, len(docs) > 0 && len(errs) == 0
}

// onlyTests reports whether nothing but tests is said behind a line.
func onlyTests(docs []*Node, line int) bool {
	for _, d := range docs {
		for _, f := range d.Fields {
			if f.Pos.Line > line && f.Key != "tests" {
				return false
			}
		}
	}
	return true
}

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
