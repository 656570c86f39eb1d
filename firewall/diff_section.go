package firewall

import "sort"

// A section has the things of one kind of two policies. Most of a long one both have alike.
type section[T any] struct {
	kind          string
	before, after []*T
	name          func(*T) string
	was, is       func(i int) Pos // where those before and after stand
	fields        func(*T) []field
	same          func(a, b *T) bool // nil, or what finds equal without writing it out whatever the fields say
}

func sectionOf[T any](kind string, before, after []T, name func(*T) string, pos func(*T) Pos, fields func(*T) []field) *section[T] {
	refs := func(list []T) []*T {
		out := make([]*T, len(list))
		for i := range list {
			out[i] = &list[i]
		}
		return out
	}
	return &section[T]{
		kind, refs(before), refs(after), name,
		func(i int) Pos { return pos(&before[i]) }, func(i int) Pos { return pos(&after[i]) }, fields, nil,
	}
}

// unlike returns where the two lists begin to differ, and where they end to. What both hold in the same place in memory
// is alike.
func (s *section[T]) unlike(alike func(a, b *T) bool) (first, lastBefore, lastAfter int) {
	lastBefore, lastAfter = len(s.before), len(s.after)
	same := func(b, a int) bool { return s.before[b] == s.after[a] || alike(s.before[b], s.after[a]) }
	for first < min(lastBefore, lastAfter) && same(first, first) {
		first++
	}
	for min(lastBefore, lastAfter) > first && same(lastBefore-1, lastAfter-1) {
		lastBefore, lastAfter = lastBefore-1, lastAfter-1
	}
	return first, lastBefore, lastAfter
}

// others returns what stands between the first and the last of two lists and in none of their runs, which are told from
// the first on.
func others(runs []ruleRun, first, lastBefore, lastAfter int) (gone, come []int) {
	i, j := first, first
	for _, run := range append(runs, ruleRun{lastBefore - first, lastAfter - first, 0}) {
		for ; i < first+run.old; i++ {
			gone = append(gone, i)
		}
		for ; j < first+run.new; j++ {
			come = append(come, j)
		}
		i, j = i+run.n, j+run.n
	}
	return gone, come
}

// changes compares the things by their names.
func (s *section[T]) changes() (out []Difference) {
	first, lastBefore, lastAfter := s.unlike(func(a, b *T) bool { return s.same != nil && s.name(a) == s.name(b) && s.same(a, b) })
	gone, come := others(sameRuns(s.before[first:lastBefore], s.after[first:lastAfter]), first, lastBefore, lastAfter)
	old, stays := make(map[string]*T, len(gone)), make(map[string]bool, len(come))
	for _, i := range gone {
		old[s.name(s.before[i])] = s.before[i]
	}
	for _, i := range come {
		stays[s.name(s.after[i])] = true
	}
	for _, i := range gone {
		if n := s.name(s.before[i]); !stays[n] {
			pos := s.was(i)
			out = append(out, Difference{s.kind, n, DiffRemoved, []FieldDiff{}, pos.File, pos.Line})
		}
	}
	for _, i := range come {
		a := s.after[i]
		n := s.name(a)
		was := old[n]
		if was != nil && s.same != nil && s.same(was, a) {
			continue
		}
		d := Difference{Kind: s.kind, Name: n, How: DiffChanged, Fields: []FieldDiff{}}
		is := s.fields(a)
		if was == nil {
			d.How = DiffAdded
			for _, f := range is {
				if f.text != "" {
					d.Fields = append(d.Fields, FieldDiff{f.key, "", f.text})
				}
			}
		} else {
			for k, f := range s.fields(was) {
				if !equal(f.whole, is[k].whole) {
					d.Fields = append(d.Fields, FieldDiff{f.key, f.text, is[k].text})
				}
			}
		}
		if was == nil || len(d.Fields) > 0 {
			pos := s.is(i)
			d.File, d.Line = pos.File, pos.Line
			out = append(out, d)
		}
	}
	return out
}

// moved names the fewest rules that have to move for those that both policies have to stand in the
// new order, as the first that matches decides. One that has changed besides is told here too.
func (s *section[T]) moved() (out []Difference) {
	first, lastBefore, lastAfter := s.unlike(func(a, b *T) bool { return s.name(a) == s.name(b) })
	runs := sameRuns(s.before[first:lastBefore], s.after[first:lastAfter])
	gone, come := others(runs, first, lastBefore, lastAfter)
	place := make(map[string]int, len(gone))
	for _, i := range gone {
		place[s.name(s.before[i])] = i
	}
	var common, places []int32 // positions in after, and in before
	both := func(is, was int) { common, places = append(common, int32(is)), append(places, int32(was)) }
	for i := first; len(runs) > 0 || len(come) > 0; {
		if len(come) > 0 && come[0] == i {
			if was, old := place[s.name(s.after[i])]; old {
				both(i, was)
			}
			come, i = come[1:], i+1
			continue
		}
		for k := range runs[0].n {
			both(i+k, first+runs[0].old+k)
		}
		i += runs[0].n
		runs = runs[1:]
	}
	// The longest run of rules whose old places ascend stays: patience sorting.
	var tops []int32 // index into common of the smallest end of a run of each length
	previous := make([]int32, len(common))
	for i, p := range places {
		n := len(tops)
		if n > 0 && places[tops[n-1]] >= p {
			n = sort.Search(n, func(k int) bool { return places[tops[k]] >= p })
		}
		previous[i] = -1
		if n > 0 {
			previous[i] = tops[n-1]
		}
		if n == len(tops) {
			tops = append(tops, int32(i))
		} else {
			tops[n] = int32(i)
		}
	}
	stays := make([]bool, len(common))
	if len(tops) > 0 {
		for i := tops[len(tops)-1]; i >= 0; i = previous[i] {
			stays[i] = true
		}
	}
	for i, at := range common {
		if stays[i] {
			continue
		}
		where := "first"
		if at > 0 {
			where = "behind " + s.name(s.after[at-1])
		}
		was := "first"
		if p := places[i]; p > 0 {
			was = "behind " + s.name(s.before[p-1])
		}
		pos := s.is(int(at))
		out = append(out, Difference{s.kind, s.name(s.after[at]), DiffMoved, []FieldDiff{{"place", was, where}}, pos.File, pos.Line})
	}
	return out
}
