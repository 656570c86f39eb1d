package firewall

import (
	"crypto/sha256"

	"github.com/softdpu/softdpu/flowtable"
)

// parseWhole reads a policy, and every mistake in it, file by file.
func parseWhole(sources []Source, readFile func(string) ([]byte, error)) (*Policy, error) {
	l := newLoader(sources, readFile)
	var documents []document
	for i, s := range sources {
		l.policy.Sums[s.Name] = sha256.Sum256(s.Text)
		docs, errs := ParseYAML(s.Name, s.Text)
		l.Errs = append(l.Errs, errs...)
		if len(docs) == 0 && len(errs) == 0 {
			l.Fail(Error{File: s.Name, Msg: "file is empty", Hint: "begin with: apiVersion: " + APIVersion + " and kind: Policy"})
		}
		documents = append(documents, l.documents(i, docs)...)
	}
	if len(sources) == 0 {
		l.Fail(Error{Msg: "a policy needs at least one file"})
	}
	l.declarations(documents)
	before := l.Errs
	l.Errs = nil
	l.section("rules", documents, l.readRules)
	l.policy.Rules, l.policy.places, l.policy.special = l.rules, l.places, specialRules(l.rules)
	l.policy.findLines()
	errs := l.Errs
	l.Errs = before
	l.indexRules(l.named)
	l.Errs = append(l.Errs, errs...)
	l.section("tests", documents, l.tests)
	if len(l.Errs) > 0 {
		return nil, l.Errs.Sorted(l.policy.Files...)
	}
	l.policy.Warnings = l.warnings.Sorted(l.policy.Files...)
	return l.policy, nil
}

func newLoader(sources []Source, readFile func(string) ([]byte, error)) *loader {
	l := &loader{
		policy:        &Policy{Sums: make(map[string][sha256.Size]byte), used: make(map[string]bool)},
		zoneIndex:     make(map[string]int),
		setIndex:      make(map[string]int),
		workloadIndex: make(map[string]int),
		serviceIndex:  make(map[string]int),
		natIndex:      make(map[string]int),
	}
	l.used = l.policy.used
	for _, s := range sources {
		l.policy.Files, l.policy.texts = append(l.policy.Files, s.Name), append(l.policy.texts, s.Text)
	}
	if readFile != nil {
		l.readFile = func(path string) ([]byte, error) {
			text, err := readFile(path)
			if err == nil {
				l.policy.Sums[path] = sha256.Sum256(text)
			}
			return text, err
		}
	}
	return l
}

// indexRules notes the names of rules of the policy, each of which may be there once.
func (l *loader) indexRules(named []int) {
	l.ruleIndex = make(map[string]int, len(named))
	for _, i := range named {
		name := l.policy.Rules[i].Name
		if first, twice := l.ruleIndex[name]; twice {
			l.Fail(nameTaken(l.policy.RulePos(i), "rule", name, l.policy.RulePos(first)))
		} else {
			l.ruleIndex[name] = i
		}
	}
}

// documents returns what the documents of a file say by key.
func (l *loader) documents(file int, docs []*Node) (out []document) {
	for _, d := range docs {
		if fields := l.Document(d, "Policy", keys["policy"]); fields != nil {
			out = append(out, document{file, fields})
		}
	}
	return out
}

// declarations reads what stands beside rules and tests. Names may be used before they are declared, also in an earlier
// file, so each kind is read for all files before what refers to it.
func (l *loader) declarations(documents []document) {
	l.section("zones", documents, l.zones)
	l.section("sets", documents, l.sets)
	l.section("workloads", documents, l.workloads)
	l.section("services", documents, l.declareServices)
	l.section("nat", documents, l.nat)
}

// section reads a section of all files.
func (l *loader) section(name string, documents []document, read func(*Node)) {
	for _, d := range documents {
		if n := d.fields[name]; n != nil {
			l.file = d.file
			read(n)
		}
	}
}

// document is a document of a file.
type document struct {
	file   int // index in Policy.Files
	fields map[string]*Node
}

// loader holds what is known while files are read.
type loader struct {
	Reader
	policy   *Policy
	file     int // that is read, as index in Policy.Files
	warnings Errors
	readFile func(string) ([]byte, error)
	used     map[string]bool // "set x", "workload x", "service x"
	at       []Pos           // of what services returned last
	rules    []*Rule
	places   []rulePlace // of rules
	named    []int       // rules whose names are well formed
	// What was read of services before, so that rules share it; nil: they do not.
	literals map[string]ServiceMatch
	ranges   map[flowtable.U16Range][]flowtable.U16Range
	// Position in the policy's slices by name.
	zoneIndex, setIndex, workloadIndex, serviceIndex, ruleIndex, natIndex map[string]int
}
