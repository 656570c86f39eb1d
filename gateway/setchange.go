package gateway

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// Bounds of changes to sets.
const (
	maxSetEntries  = 100_000   // of one call
	maxLiveEntries = 1_000_000 // of all sets together, that were given at runtime
	maxSetEntry    = 256       // bytes of one as it is written
	maxSetNotes    = 20        // of one call, and mistakes that are told of it
)

// SetChange asks for entries of a set to be added or deleted.
type SetChange struct {
	Entries []string `json:"entries"`
	For     string   `json:"for,omitempty"` // how long, as in 1h or 7d; "": for good
	Comment string   `json:"comment,omitempty"`
	// All, of a deletion, takes back everything that the set was given at runtime. Entries is empty then.
	All bool `json:"all,omitempty"`
}

// SetChanged is what became of a SetChange.
type SetChanged struct {
	Set       string     `json:"set"`
	Added     int        `json:"added"`     // entries
	Removed   int        `json:"removed"`   // entries
	Prolonged int        `json:"prolonged"` // entries that were changed before, and now for longer
	Unchanged int        `json:"unchanged"` // entries that were as asked for
	Entries   int        `json:"entries"`   // of the set now
	Until     *time.Time `json:"until"`     // null: for good
	Epoch     uint32     `json:"epoch"`     // of the policy that is in force now
	Notes     []string   `json:"notes"`     // what the caller may not expect
}

// changed reports whether another policy has to be in force.
func (c *SetChanged) changed() bool { return c.Added+c.Removed > 0 }

// setCall is a SetChange with who made it, ready to be tried.
type setCall struct {
	SetChange
	list   *liveList // to stand in the place of what the set has; nothing else is asked for then
	set    string
	remove bool
	by     string
	length time.Duration // 0: for good
}

// check reads what does not depend on the policy.
func (c *setCall) check() error {
	switch {
	case c.All && (!c.remove || len(c.Entries) > 0 || c.For != ""):
		return firewall.Errors{{Msg: "all stands for the deletion of everything that the set was given at runtime", Hint: "leave entries and for out"}}
	case c.All:
	case len(c.Entries) == 0:
		return firewall.Errors{{Msg: "no entry is given", Hint: "give one or more"}}
	case len(c.Entries) > maxSetEntries:
		return firewall.Errors{{Msg: fmt.Sprintf("%d entries are more than the %d of one call", len(c.Entries), maxSetEntries), Hint: "give them in several calls"}}
	}
	if err := checkComment(c.Comment); err != nil {
		return firewall.Errors{{Msg: err.Error(), Hint: commentHint}}
	}
	if c.For == "" {
		return nil
	}
	length, err := ParseSetFor(c.For)
	if err != nil {
		what, remedy, _ := strings.Cut(err.Error(), ": ")
		return firewall.Errors{{Msg: what, Hint: remedy}}
	}
	c.length = length
	return nil
}

// ParseSetFor reads for how long an entry shall stay: a duration as in 90s, 1h or 7d.
func ParseSetFor(text string) (time.Duration, error) {
	d, err := parseDuration(text)
	if err != nil || d < time.Second || d > maxSpan {
		return 0, fmt.Errorf("%q is not for how long an entry can stay: write it as in 90s, 1h or 7d, from 1s to 3650d", text)
	}
	return d, nil
}

// A setIndex finds the entries that a policy's text gives its sets.
type setIndex struct {
	policy  *firewall.Policy
	entries map[*firewall.Set]map[firewall.Entry]int32 // place in the set, made when first asked for
}

func newSetIndex(p *firewall.Policy) *setIndex {
	return &setIndex{p, make(map[*firewall.Set]map[firewall.Entry]int32)}
}

// set returns a set as it is written, nil if the policy has none of that name.
func (x *setIndex) set(name string) *firewall.Set {
	i := slices.IndexFunc(x.policy.Sets, func(s firewall.Set) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &x.policy.Sets[i]
}

func (x *setIndex) of(s *firewall.Set) map[firewall.Entry]int32 {
	all, known := x.entries[s]
	if !known {
		all = make(map[firewall.Entry]int32, s.Len())
		for i := range s.Len() {
			all[s.Entry(i)] = int32(i)
		}
		x.entries[s] = all
	}
	return all
}

// setTrial is a call on its way through the sets.
type setTrial struct {
	call   *setCall
	index  *setIndex
	set    *firewall.Set // as it is written, or what stands in its place; nil: the policy has none
	kind   firewall.SetType
	live   *liveSet // to be changed
	origin *liveOrigin
	done   SetChanged
	more   int // notes that were left out
	errs   firewall.Errors
}

// try returns the sets after a call. The error is a firewall.Errors, with the number of the entry as
// the line.
func (x *setIndex) try(sets liveSets, c *setCall, now time.Time) (liveSets, *SetChanged, error) {
	t := &setTrial{call: c, index: x, set: sets.base(x.set(c.set)), origin: &liveOrigin{By: c.by, At: now.UTC().Truncate(time.Millisecond), Comment: c.Comment}}
	t.done = SetChanged{Set: c.set, Notes: []string{}}
	if c.length > 0 {
		t.origin.Until = t.origin.At.Add(c.length)
		t.done.Until = &t.origin.Until
	}
	old := sets[c.set]
	if t.set == nil && (old == nil || !c.remove) {
		return nil, nil, firewall.Errors{x.unknown(c.set)}
	}
	t.live = &liveSet{name: c.set, entries: make(map[firewall.Entry]liveEntry)}
	if old != nil {
		t.live.kind, t.live.list, t.live.entries = old.kind, old.list, maps.Clone(old.entries)
	}
	t.kind = t.live.kind
	if t.set != nil {
		t.kind = t.set.Type
	}
	switch {
	case c.list != nil:
		t.replace()
	case c.All:
		t.forget()
	case t.live.kind != t.kind && old != nil:
		t.note("%s of type %s that the set was given at runtime are forgotten: it holds type %s now",
			countOf(old.size(), "entry", "entries"), old.kind, t.kind)
		clear(t.live.entries)
		t.live.list = nil
		fallthrough
	default:
		t.live.kind = t.kind
		t.entries()
	}
	if len(t.errs) > 0 {
		return nil, nil, t.errs
	}
	next := sets.with(t.live)
	if n := next.singly(); n > maxLiveEntries && n > sets.singly() {
		return nil, nil, firewall.Errors{{
			Msg:  fmt.Sprintf("sets would have %d entries from runtime, more than %d", n, maxLiveEntries),
			Hint: "write them into the file of the set, and apply",
		}}
	}
	t.finish(next)
	return next, &t.done, nil
}

func (x *setIndex) unknown(name string) firewall.Error {
	var known []string
	for i := range x.policy.Sets {
		known = append(known, x.policy.Sets[i].Name)
	}
	otherwise := "the policy has no sets: declare it under `sets` and apply"
	if len(known) > 0 {
		slices.Sort(known)
		otherwise = fmt.Sprintf("the policy has: %s; others are declared under `sets`", strings.Join(known[:min(len(known), maxSetNotes)], ", "))
	}
	return firewall.Unknown(firewall.Pos{}, "set", name, known, otherwise)
}

// note says something that the caller may not expect.
func (t *setTrial) note(format string, args ...any) {
	if len(t.done.Notes) == maxSetNotes {
		t.more++
		return
	}
	t.done.Notes = append(t.done.Notes, fmt.Sprintf(format, args...))
}

// replace has the set hold a list, and nothing else.
func (t *setTrial) replace() {
	list := t.call.list
	if t.set == nil || list.set.Type != t.kind {
		t.errs = append(t.errs, firewall.Error{Msg: fmt.Sprintf("the policy has changed meanwhile: it has no set %s of type %s", t.call.set, list.set.Type), Hint: "replace it again"})
		return
	}
	before := t.now()
	delete(t.index.entries, t.set)
	t.live.kind, t.live.list, t.set = t.kind, list, list.set
	clear(t.live.entries)
	t.done.Added, t.done.Removed, t.done.Unchanged = setDifference(before, t.set)
}

// forget takes back all that the set was given at runtime.
func (t *setTrial) forget() {
	if t.live.list != nil {
		before := t.now()
		t.live.list = nil
		clear(t.live.entries)
		delete(t.index.entries, t.set)
		t.set = t.index.set(t.call.set)
		t.done.Added, t.done.Removed, _ = setDifference(before, t.set)
		return
	}
	for e, how := range t.live.entries {
		if how.out && t.set != nil && t.has(e) {
			t.done.Added++
		} else {
			t.done.Removed++
		}
	}
	clear(t.live.entries)
}

// entries adds or deletes one entry after the other.
func (t *setTrial) entries() {
	var absent []int
	parsed := make([]firewall.Entry, len(t.call.Entries))
	for i, text := range t.call.Entries {
		if len(text) > maxSetEntry {
			if t.refuse(i, "give each entry by itself", "%.40q... is longer than an entry can be", text) {
				return
			}
			continue
		}
		e, hint, err := firewall.ParseEntry(t.kind, strings.TrimSpace(text))
		if err != nil {
			if t.refuse(i, hint, "%v", err) {
				return
			}
			continue
		}
		parsed[i] = e
		if !t.call.remove {
			t.add(e)
		} else if !t.remove(e) {
			absent = append(absent, i)
		}
	}
	if t.call.remove {
		t.hidden(parsed, absent)
	}
}

// refuse notes a mistake, and reports whether these are enough.
func (t *setTrial) refuse(entry int, hint, format string, args ...any) bool {
	text := t.call.Entries[entry]
	pos := firewall.Pos{File: "entries", Line: entry + 1, Column: 1, Source: text[:min(len(text), maxSetEntry)]}
	if len(t.errs) == maxSetNotes {
		t.errs = append(t.errs, pos.Errorf("more than %d wrong entries; the rest was not read", maxSetNotes))
		return true
	}
	t.errs = append(t.errs, pos.Errorf(format, args...).WithHint("%s", hint))
	return false
}

func (t *setTrial) has(e firewall.Entry) bool {
	_, has := t.index.of(t.set)[e]
	return has
}

// place says where the policy has an entry.
func (t *setTrial) place(e firewall.Entry) string {
	file, line := t.set.Place(int(t.index.of(t.set)[e]))
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}

func (t *setTrial) add(e firewall.Entry) {
	how, changed := t.live.entries[e]
	switch written := t.has(e); {
	case written && changed && how.out:
		delete(t.live.entries, e)
		t.done.Added++
		if t.call.length > 0 {
			t.note("%s stays: %s has it", e.Text(t.kind), t.place(e))
		}
	case written:
		t.done.Unchanged++
		t.note("%s is in the set already, by %s", e.Text(t.kind), t.place(e))
	case changed && !how.out:
		t.prolong(e, how, "is in the set already")
	default:
		t.live.entries[e] = liveEntry{t.origin, false}
		t.done.Added++
	}
}

// prolong keeps the later of two ends, so that several who share a set do not shorten each other's stay.
func (t *setTrial) prolong(e firewall.Entry, how liveEntry, as string) {
	switch {
	case how.liveOrigin == t.origin:
		t.done.Unchanged++
		t.note("%s is given twice", e.Text(t.kind))
	case t.origin.outlasts(how.liveOrigin):
		t.live.entries[e] = liveEntry{t.origin, how.out}
		t.done.Prolonged++
	default:
		t.done.Unchanged++
		until := "for good"
		if !how.Until.IsZero() {
			until = "until " + how.Until.Format(time.RFC3339)
		}
		t.note("%s %s, %s, by %s", e.Text(t.kind), as, until, how.By)
	}
}

// remove takes an entry out, and reports whether there was one.
func (t *setTrial) remove(e firewall.Entry) bool {
	how, changed := t.live.entries[e]
	written := t.set != nil && t.has(e)
	switch {
	case changed && how.out && written:
		t.prolong(e, how, "is out of the set already")
	case written:
		t.live.entries[e] = liveEntry{t.origin, true}
		t.done.Removed++
		until := fmt.Sprintf("`softdpu set add %s` brings it back", t.call.set)
		if t.call.length > 0 {
			until = "it comes back by itself"
		}
		t.note("%s is out although %s has it, through reloads and restarts: %s", e.Text(t.kind), t.place(e), until)
	case changed && !how.out:
		delete(t.live.entries, e)
		t.done.Removed++
	default:
		return false
	}
	return true
}

// hidden refuses to delete what stands in the set as a part of other entries only, and notes what does not
// stand there at all.
func (t *setTrial) hidden(parsed []firewall.Entry, absent []int) {
	if len(absent) == 0 {
		return
	}
	now := t.now()
	held := now.Held()
	for _, i := range absent {
		e := parsed[i]
		if !held(e) {
			t.done.Unchanged++
			t.note("%s is not in the set", e.Text(t.kind))
			continue
		}
		what, hint := "other entries hold it together", "`softdpu set list` shows them"
		if by, where := t.holder(now, e); by != "" {
			what, hint = fmt.Sprintf("it lies in %s (%s)", by, where), fmt.Sprintf("delete %s, and add what of it is to stay", by)
		}
		if t.refuse(i, hint, "%s is no entry of the set: %s", e.Text(t.kind), what) {
			return
		}
	}
}

// now is the set as it stands.
func (t *setTrial) now() *firewall.Set {
	p := &firewall.Policy{}
	if t.set != nil {
		p = t.index.policy
	} else {
		p.Sets = []firewall.Set{{Name: t.call.set, Type: t.kind}}
	}
	all := p.WithSets(liveSets{t.call.set: t.live}.changes(p)).Sets
	return &all[slices.IndexFunc(all, func(s firewall.Set) bool { return s.Name == t.call.set })]
}

// holder finds one entry that holds all of another, and says where it comes from.
func (t *setTrial) holder(s *firewall.Set, e firewall.Entry) (entry, where string) {
	for i := range s.Len() {
		by := s.Entry(i)
		if !by.Covers(t.kind, e) {
			continue
		}
		if how, live := t.live.entries[by]; live && !how.out {
			return by.Text(t.kind), "added at runtime by " + how.By
		}
		file, line := s.Place(i)
		return by.Text(t.kind), fmt.Sprintf("%s:%d", filepath.Base(file), line)
	}
	return "", ""
}

// finish counts what the set holds now, and notes what of the change has no effect.
func (t *setTrial) finish(next liveSets) {
	if t.set != nil {
		t.done.Entries = t.set.Len()
		for e, how := range t.live.entries {
			if written := t.has(e); how.out && written {
				t.done.Entries--
			} else if !how.out && !written {
				t.done.Entries++
			}
		}
		if !t.index.policy.Uses(t.call.set) {
			t.note("no rule uses the set")
		}
		if t.kind == firewall.SetMAC && !t.call.remove && t.done.Added > 0 {
			t.note("connections from a MAC address that the policy did not name when they began go on: `softdpu flows kill` ends them")
		}
	}
	if t.call.remove && !t.call.All && t.done.Removed > 0 {
		now := t.now()
		held, told := now.Held(), 0
		for _, text := range t.call.Entries {
			e, _, _ := firewall.ParseEntry(t.kind, strings.TrimSpace(text))
			if told == maxSetNotes || !held(e) {
				continue
			}
			if by, where := t.holder(now, e); by != "" {
				t.note("%s still matches, by %s (%s)", e.Text(t.kind), by, where)
				told++
			}
		}
	}
	if t.more > 0 {
		t.done.Notes = append(t.done.Notes, fmt.Sprintf("and %d more", t.more))
	}
}

// countOf writes a number with its noun.
func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
