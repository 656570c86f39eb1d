package gateway

import (
	"maps"
	"slices"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// A liveSet is what was changed in one set at runtime: what stands in the place of the policy's entries,
// entries added beside those, and entries of those that are out. It is immutable.
type liveSet struct {
	name    string
	kind    firewall.SetType
	list    *liveList // nil: what the policy has
	entries map[firewall.Entry]liveEntry
}

// liveEntry says how an entry was changed, and by what call.
type liveEntry struct {
	*liveOrigin
	out bool // the policy has it, and it is out of the set
}

// liveOrigin is a call that changed entries. It is immutable.
type liveOrigin struct {
	By      string    `json:"by"`
	At      time.Time `json:"at"`
	Until   time.Time `json:"until,omitzero"` // zero: for good
	Comment string    `json:"comment,omitempty"`
}

// over reports whether the change has come to its end.
func (o *liveOrigin) over(now time.Time) bool { return !o.Until.IsZero() && !now.Before(o.Until) }

// outlasts reports whether o ends later than other.
func (o *liveOrigin) outlasts(other *liveOrigin) bool {
	return !other.Until.IsZero() && (o.Until.IsZero() || o.Until.After(other.Until))
}

// liveSets are the sets that were changed, by name. The map and what it holds are immutable.
type liveSets map[string]*liveSet

// changes are what a policy is compiled with. Sets that it does not have, or has with another type, are
// not among them.
func (l liveSets) changes(p *firewall.Policy) map[string]firewall.SetChange {
	out := make(map[string]firewall.SetChange, len(l))
	for i := range p.Sets {
		live := l[p.Sets[i].Name]
		if live == nil || live.kind != p.Sets[i].Type {
			continue
		}
		c := firewall.SetChange{}
		if live.list != nil {
			c.Instead = live.list.set
		}
		for e, how := range live.entries {
			if !how.out {
				c.Added = append(c.Added, e)
				continue
			}
			if c.Removed == nil {
				c.Removed = make(map[firewall.Entry]bool)
			}
			c.Removed[e] = true
		}
		out[live.name] = c
	}
	return out
}

// idle warns of changes that are kept and are not in force, because the policy has no set for them.
func (l liveSets) idle(p *firewall.Policy, file func(name string) string) (warnings firewall.Errors) {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		live := l[name]
		i := slices.IndexFunc(p.Sets, func(s firewall.Set) bool { return s.Name == name })
		switch {
		case i < 0:
			warnings = append(warnings, firewall.Error{
				File: file(name),
				Msg:  countOf(live.size(), "entry", "entries") + " that set " + name + " was given at runtime are not in force: the policy has no such set",
				Hint: "they are kept and come back with the set; `softdpu set del " + name + " --all` forgets them",
			})
		case p.Sets[i].Type != live.kind:
			warnings = append(warnings, p.Sets[i].Pos.Errorf("%s that set %q was given at runtime are not in force: they are of type %s",
				countOf(live.size(), "entry", "entries"), name, live.kind).
				WithHint("`softdpu set del %s --all` forgets them", name))
		}
	}
	return warnings
}

// next is when the first change comes to its end, zero if none does.
func (l liveSets) next() (first time.Time) {
	for _, live := range l {
		for _, how := range live.entries {
			if !how.Until.IsZero() && (first.IsZero() || how.Until.Before(first)) {
				first = how.Until
			}
		}
	}
	return first
}

// size is the number of entries that the set was given, or that are out of it.
func (l *liveSet) size() int {
	if l.list == nil {
		return len(l.entries)
	}
	return len(l.entries) + l.list.set.Len()
}

// size is the number of entries that sets were given, or that are out of them.
func (l liveSets) size() (n int) {
	for _, live := range l {
		n += live.size()
	}
	return n
}

// singly is the number of them that were given one by one.
func (l liveSets) singly() (n int) {
	for _, live := range l {
		n += len(live.entries)
	}
	return n
}

// expire returns what is left at a time, and how many entries of which sets are over.
func (l liveSets) expire(now time.Time) (left liveSets, over map[string]int) {
	left, over = make(liveSets, len(l)), make(map[string]int)
	for name, live := range l {
		n := 0
		for _, how := range live.entries {
			if how.over(now) {
				n++
			}
		}
		if n > 0 {
			over[name] = n
			live = &liveSet{live.name, live.kind, live.list, maps.Clone(live.entries)}
			maps.DeleteFunc(live.entries, func(_ firewall.Entry, how liveEntry) bool { return how.over(now) })
		}
		if !live.empty() {
			left[name] = live
		}
	}
	return left, over
}

func (l *liveSet) empty() bool { return l.list == nil && len(l.entries) == 0 }

// with returns the sets with another version of one of them; one that says nothing is left out.
func (l liveSets) with(live *liveSet) liveSets {
	out := maps.Clone(l)
	if out == nil {
		out = make(liveSets)
	}
	out[live.name] = live
	if live.empty() {
		delete(out, live.name)
	}
	return out
}
