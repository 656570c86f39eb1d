package firewall

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/softdpu/softdpu/flowtable"
)

// partRules are the rules of a part of a list. Lines count from that of the part's first rule, which is 1, and bytes from
// its beginning. They are immutable.
type partRules struct {
	rules    []*Rule
	places   []rulePlace
	warnings Errors
	used     []string // as in Policy.used
	special  []int32  // indices of the rules that are
	// Of rules that are not well formed.
	errs  Errors
	named []int // those whose names are; nil: all
}

// readParts reads those parts of the lists that are not read yet, several at once, and packs their rules if they are
// many. It answers false if one cannot be read as such.
func (l *loader) readParts(files []*ruleList, pack bool) bool {
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
				j.part.partRules = r.part(j.file, j.text, files[j.file].indent, 0)
				if j.part.partRules == nil {
					bad[n] = true
				} else if pack {
					packRules(j.part.rules)
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
	r.literals, r.ranges = make(map[string]ServiceMatch), make(map[flowtable.U16Range][]flowtable.U16Range)
	return &r
}

// part reads the rules of a part of a file, nil if it is not YAML or no part of a list. Lines count as if so many stood above.
func (l *loader) part(file int, text []byte, indent, above int) *partRules {
	lines, _ := splitLines(text)
	if endsLine(text) {
		lines = append(lines, "")
	}
	t := &tree{name: l.policy.Files[file], lines: lines, size: usualSize, gap: above}
	list, ok := t.plainItems()
	if !ok {
		docs := t.parse(lines, 1)
		if len(t.errs) > 0 || len(docs) != 1 {
			return nil
		}
		list = docs[0]
	}
	if list.Kind != ListNode || list.Pos.Column != indent+1 {
		return nil
	}
	l.file, l.rules, l.places, l.warnings = file, nil, nil, nil
	l.used, l.named, l.Errs = make(map[string]bool), nil, nil
	l.readRules(list)
	findLines(l.places, text, 0)
	p := &partRules{rules: l.rules, places: l.places, warnings: l.warnings, used: slices.Sorted(maps.Keys(l.used)), special: specialRules(l.rules)}
	if len(l.Errs) > 0 {
		p.errs, p.named = l.Errs, l.named
	}
	return p
}

// packRules moves rules together, and what each of them has of its own: the garbage collector looks at every piece of
// memory, and many rules are then few. A rule that stays for long keeps those beside it, so what is read as a change of
// something else is not packed.
func packRules(rules []*Rule) {
	ranges, services := 0, 0
	var names strings.Builder
	for _, r := range rules {
		ranges += len(r.From.Addresses) + len(r.To.Addresses)
		services += len(r.Services)
		names.WriteString(r.Name)
	}
	packed := struct {
		rules    []Rule
		ranges   []flowtable.AddrRange
		services []ServiceMatch
		names    string
	}{make([]Rule, 0, len(rules)), make([]flowtable.AddrRange, 0, ranges), make([]ServiceMatch, 0, services), names.String()}
	for i, r := range rules {
		packed.rules = append(packed.rules, *r)
		r = &packed.rules[i]
		r.From.Addresses, packed.ranges = appendTo(packed.ranges, r.From.Addresses)
		r.To.Addresses, packed.ranges = appendTo(packed.ranges, r.To.Addresses)
		r.Services, packed.services = appendTo(packed.services, r.Services)
		r.Name, packed.names = packed.names[:len(r.Name)], packed.names[len(r.Name):]
		rules[i] = r
	}
}

// appendTo appends one list to another, and returns it as part of that.
func appendTo[T any](all, list []T) (moved, _ []T) {
	if len(list) == 0 {
		return list, all
	}
	first := len(all)
	all = append(all, list...)
	return all[first:len(all):len(all)], all
}
