package gateway

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/firewall"
)

// A liveList is what stands in the place of all entries that the policy gives a set. It is immutable but for its
// text.
type liveList struct {
	liveOrigin
	set  *firewall.Set // its File is where it is kept
	text string        // until it is kept
}

const listSuffix = ".list"

// newLiveList reads the text of a list that is to stand in the place of a set's entries. The error is a
// firewall.Errors.
func newLiveList(name string, t firewall.SetType, text string, origin liveOrigin) (*liveList, error) {
	set, errs := firewall.ReadSet(name, t, "list", text)
	if len(errs) > 0 {
		return nil, errs
	}
	return &liveList{origin, set, text}, nil
}

// lieIn says in which directory the list will be kept. Lists are named after what they hold, so that none
// changes while something refers to it.
func (l *liveList) lieIn(dir string) {
	sum := sha256.Sum256([]byte(l.text))
	l.set.File = filepath.Join(dir, fmt.Sprintf("%s.%x%s", l.set.Name, sum[:8], listSuffix))
}

// keep writes the list, if it is not written yet.
func (l *liveList) keep() error {
	if l == nil || l.text == "" {
		return nil
	}
	if err := replaceFile(l.set.File, strings.NewReader(l.text)); err != nil {
		return err
	}
	l.text = ""
	return nil
}

// liveListLine is what the first line of a set's file says of its list.
type liveListLine struct {
	liveOrigin
	File string `json:"file"` // in the same directory
}

func (l *liveList) line() *liveListLine {
	if l == nil {
		return nil
	}
	return &liveListLine{l.liveOrigin, filepath.Base(l.set.File)}
}

// read returns the list that a line tells of.
func (l *liveListLine) read(dir, name string, t firewall.SetType) (*liveList, error) {
	if l == nil {
		return nil, nil
	}
	path := filepath.Join(dir, filepath.Base(l.File))
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	set, errs := firewall.ReadSet(name, t, path, string(text))
	if len(errs) > 0 {
		return nil, errs
	}
	return &liveList{liveOrigin: l.liveOrigin, set: set}, nil
}

// sweep removes the lists that no set refers to: what a crash left, or what was replaced.
func (s *liveStore) sweep(sets liveSets) {
	used := make(map[string]bool)
	for _, live := range sets {
		if live.list != nil {
			used[live.list.set.File] = true
		}
	}
	lists, _ := filepath.Glob(filepath.Join(s.dir, "*"+listSuffix)) // the pattern is well formed
	for _, path := range lists {
		if !used[path] {
			_ = os.Remove(path) // it costs room and nothing else
		}
	}
}

// base is a set of the policy, or what stands in its place.
func (l liveSets) base(s *firewall.Set) *firewall.Set {
	if s == nil {
		return nil
	}
	if live := l[s.Name]; live != nil && live.list != nil && live.kind == s.Type {
		return live.list.set
	}
	return s
}

// setDifference counts the entries that only one of two sets of a type has, and those of both.
func setDifference(before, after *firewall.Set) (added, removed, both int) {
	a, b := sortedEntries(before), sortedEntries(after)
	for len(a) > 0 && len(b) > 0 {
		switch c := a[0].Compare(b[0]); {
		case c < 0:
			removed++
			a = a[1:]
		case c > 0:
			added++
			b = b[1:]
		default:
			both++
			a, b = a[1:], b[1:]
		}
	}
	return added + len(b), removed + len(a), both
}

// sortedEntries returns the different entries of a set.
func sortedEntries(s *firewall.Set) []firewall.Entry {
	if s == nil {
		return nil
	}
	all := make([]firewall.Entry, s.Len())
	for i := range all {
		all[i] = s.Entry(i)
	}
	if !slices.IsSortedFunc(all, firewall.Entry.Compare) {
		slices.SortFunc(all, firewall.Entry.Compare)
	}
	return slices.Compact(all)
}
