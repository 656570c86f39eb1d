package firewall

import (
	"maps"
	"runtime"
	"slices"
	"sync"
)

// partRules are the rules of a part of a list. Lines count from that of the part's first rule, which is 1, and bytes from
// its beginning. They are immutable.
type partRules struct {
	rules    []*Rule
	places   []rulePlace
	warnings Errors
	used     []string // as in Policy.used
	special  []int32  // indices of the rules that are
}

// readParts reads those parts of the lists that are not read yet, several at once. It answers false if there is a
// mistake in one.
func (l *loader) readParts(files []*ruleList) bool {
	type job struct {
		part *rulePart
		file int
		text []byte
	}
	var jobs []job
	for i, f := range files {
		at := f.head
		for n := range f.parts {
			p := &f.parts[n]
			if p.partRules == nil {
				jobs = append(jobs, job{p, i, f.text[at : at+p.size]})
			}
			at += p.size
		}
	}
	bad := make([]bool, min(runtime.GOMAXPROCS(0), len(jobs)))
	next := make(chan job)
	var wg sync.WaitGroup
	for n := range bad {
		wg.Go(func() {
			r := l.partLoader()
			for j := range next {
				if !bad[n] {
					j.part.partRules = r.part(j.file, j.text, files[j.file].indent)
					bad[n] = j.part.partRules == nil
				}
			}
		})
	}
	for _, j := range jobs {
		next <- j
	}
	close(next)
	wg.Wait()
	return !slices.Contains(bad, true)
}

// partLoader returns a loader of rules that knows what l knows, and may be used beside others.
func (l *loader) partLoader() *loader {
	r := *l
	r.Errs, r.warnings, r.at, r.readFile = nil, nil, nil, nil
	return &r
}

// part reads the rules of a part of a file, nil if there is a mistake in it.
func (l *loader) part(file int, text []byte, indent int) *partRules {
	lines, _ := splitLines(text)
	if endsLine(text) {
		lines = append(lines, "")
	}
	t := &tree{name: l.policy.Files[file], lines: lines, size: usualSize}
	docs := t.parse(lines, 1)
	if len(t.errs) > 0 || len(docs) != 1 || docs[0].Kind != ListNode || docs[0].Pos.Column != indent+1 {
		return nil
	}
	l.file, l.rules, l.places, l.warnings = file, nil, nil, nil
	l.used, l.ruleIndex = make(map[string]bool), make(map[string]int)
	l.readRules(docs[0])
	if len(l.Errs) > 0 {
		return nil
	}
	findLines(l.places, text, 0)
	return &partRules{l.rules, l.places, l.warnings, slices.Sorted(maps.Keys(l.used)), specialRules(l.rules)}
}
