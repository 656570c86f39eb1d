package firewall

import (
	"bytes"
	"crypto/sha256"
	"maps"
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
