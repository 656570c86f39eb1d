package gateway

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// SetStatus is a set as it stands: of the policy in force, or one that only runtime has entries for.
type SetStatus struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Entries int    `json:"entries"` // in force
	Written int    `json:"written"` // by the policy or the set's file
	Added   int    `json:"added"`   // at runtime
	Removed int    `json:"removed"` // of those written, at runtime
	File    string `json:"file"`    // where the policy declares it, "" if it has no such set
	Line    int    `json:"line"`
	Source  string `json:"source"` // the set's own file, "" if the policy holds the entries
	Used    bool   `json:"used"`   // by a rule, service or test
	// Idle entries were given at runtime and are not in force, because the policy has no set of that name
	// and type.
	Idle        int    `json:"idle"`
	Description string `json:"description,omitempty"`
	// What `set replace` gave stands in the place of what the policy or the set's file says. Null and "" if nothing does.
	ReplacedAt *time.Time `json:"replaced_at"`
	ReplacedBy string     `json:"replaced_by"`
}

// Sources of a SetEntry.
const (
	setPolicy  = "policy"  // its text, or the file of the set
	setList    = "list"    // that was given in the place of these
	setRuntime = "runtime" // added there
	setRemoved = "removed" // at runtime, though the policy has it
	setIdle    = "idle"    // added at runtime, and the policy has no such set
)

// SetEntry is one entry of a set.
type SetEntry struct {
	Entry    string     `json:"entry"`
	Source   string     `json:"source"`
	InForce  bool       `json:"in_force"`
	File     string     `json:"file"` // that has it, "" if none
	Line     int        `json:"line"`
	By       string     `json:"by"` // who changed it at runtime, "" if nobody did
	At       *time.Time `json:"at"`
	Until    *time.Time `json:"until"` // when the change is over; null: never
	ExpiresS *float64   `json:"expires_s"`
	Comment  string     `json:"comment"`
}

// setStatus counts the entries of a set of the policy.
func (r *Ruleset) setStatus(s *firewall.Set) SetStatus {
	s, of := r.live.base(s), s
	out := SetStatus{
		Name: s.Name, Type: string(s.Type), Written: s.Len(), File: of.Pos.File, Line: of.Pos.Line, Source: s.File,
		Used: r.policy.Uses(s.Name), Description: of.Description,
	}
	live := r.live[s.Name]
	if s != of {
		at := live.list.At
		out.ReplacedAt, out.ReplacedBy = &at, live.list.By
	}
	switch {
	case live == nil:
	case live.kind != s.Type:
		out.Idle = live.size()
	default:
		written := make(map[firewall.Entry]bool)
		for i := range s.Len() {
			if e := s.Entry(i); !live.entries[e].none() {
				written[e] = true
			}
		}
		for e, how := range live.entries {
			switch {
			case how.out && written[e]:
				out.Removed++
			case how.out:
				out.Idle++
			case !written[e]:
				out.Added++
			}
		}
	}
	out.Entries = out.Written + out.Added - out.Removed
	return out
}

func (h liveEntry) none() bool { return h.liveOrigin == nil }

// setStatuses returns the sets of the policy in its order, then those that only runtime knows.
func (r *Ruleset) setStatuses() []SetStatus {
	out := []SetStatus{}
	for i := range r.policy.Sets {
		out = append(out, r.setStatus(&r.policy.Sets[i]))
	}
	known := len(out)
	for name, live := range r.live {
		if !slices.ContainsFunc(out[:known], func(s SetStatus) bool { return s.Name == name }) {
			out = append(out, SetStatus{Name: name, Type: string(live.kind), Idle: live.size()})
		}
	}
	slices.SortFunc(out[known:], func(a, b SetStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (r *reporter) sets() ([]SetStatus, error) { return r.rules.Load().setStatuses(), nil }

// eachSetEntry calls fn for the entries of a set: those that are written in their order, then those of
// runtime, the latest call last. It reports whether there is such a set.
func (r *Ruleset) eachSetEntry(name string, now time.Time, fn func(*SetEntry)) bool {
	written, live := newSetIndex(r.policy).set(name), r.live[name]
	s := r.live.base(written)
	if s == nil && live == nil {
		return false
	}
	idle := live != nil && (s == nil || s.Type != live.kind)
	seen := make(map[firewall.Entry]bool)
	if s != nil {
		for i := range s.Len() {
			e := s.Entry(i)
			out := SetEntry{Entry: e.Text(s.Type), Source: setPolicy, InForce: true}
			out.File, out.Line = s.Place(i)
			if s != written {
				out.Source = setList
				out.origin(liveEntry{&live.list.liveOrigin, false}, now)
			}
			if live != nil && !idle {
				if how := live.entries[e]; !how.none() {
					seen[e] = true
					if how.out {
						out.Source, out.InForce = setRemoved, false
						out.origin(how, now)
					}
				}
			}
			fn(&out)
		}
	}
	if live == nil {
		return true
	}
	type change struct {
		text string
		how  liveEntry
	}
	var rest []change
	for e, how := range live.entries {
		if !seen[e] {
			rest = append(rest, change{e.Text(live.kind), how})
		}
	}
	slices.SortFunc(rest, func(a, b change) int {
		if c := a.how.At.Compare(b.how.At); c != 0 {
			return c
		}
		return strings.Compare(a.text, b.text)
	})
	for _, c := range rest {
		out := SetEntry{Entry: c.text, Source: setRuntime, InForce: true}
		switch {
		case c.how.out:
			out.Source, out.InForce = setRemoved, false
		case idle:
			out.Source, out.InForce = setIdle, false
		}
		out.origin(c.how, now)
		fn(&out)
	}
	return true
}

// origin fills in who made a change.
func (e *SetEntry) origin(how liveEntry, now time.Time) {
	at := how.At
	e.By, e.At, e.Comment = how.By, &at, how.Comment
	if !how.Until.IsZero() {
		until, left := how.Until, seconds(max(0, how.Until.Sub(now)))
		e.Until, e.ExpiresS = &until, &left
	}
}

// setEntries answers GET /v1/sets/NAME.
func (s *server) setEntries(w http.ResponseWriter, req *http.Request) {
	rules, name := s.reporter.rules.Load(), req.PathValue("name")
	b := bufio.NewWriterSize(w, 64<<10)
	e := json.NewEncoder(b)
	n := 0
	w.Header().Set("Content-Type", "application/json")
	known := rules.eachSetEntry(name, time.Now(), func(entry *SetEntry) {
		separator := byte('[')
		if n > 0 {
			separator = ','
		}
		n++
		_ = b.WriteByte(separator)
		_ = e.Encode(entry)
	})
	if !known {
		refuseSet(w, firewall.Errors{newSetIndex(rules.policy).unknown(name)})
		return
	}
	if n == 0 {
		_ = b.WriteByte('[')
	}
	_, _ = b.WriteString("]\n")
	_ = b.Flush() // whoever asked is gone
}

// changeSet answers POST /v1/sets/NAME/add and del, once the change is in force.
func (s *server) changeSet(remove bool) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		who := peerCaller(req.Context())
		call := setCall{set: req.PathValue("name"), remove: remove, by: cmp.Or(who.Login, who.User)}
		d := json.NewDecoder(req.Body)
		d.DisallowUnknownFields()
		err := d.Decode(&call.SetChange)
		if err == nil {
			if _, more := d.Token(); !errors.Is(more, io.EOF) {
				err = errors.New("there is more behind the object")
			}
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, apiError{
				Error: fmt.Sprintf("read the change: %v", err),
				Hint:  `send an object as in {"entries": ["192.0.2.1"], "for": "1h", "comment": "why"}`,
			})
			return
		}
		if err := call.check(); err != nil {
			refuseSet(w, err)
			return
		}
		done, err := s.change(req.Context(), &call)
		if err != nil {
			refuseSet(w, err)
			return
		}
		answer(w, func() (*SetChanged, error) { return done, nil })
	}
}

// replaceSet answers POST /v1/sets/NAME/replace, once the list is in force.
func (s *server) replaceSet(w http.ResponseWriter, req *http.Request) {
	who := peerCaller(req.Context())
	call := setCall{set: req.PathValue("name"), by: cmp.Or(who.Login, who.User)}
	call.Comment = req.URL.Query().Get("comment")
	index := newSetIndex(s.reporter.rules.Load().policy)
	set := index.set(call.set)
	if set == nil {
		refuseSet(w, firewall.Errors{index.unknown(call.set)})
		return
	}
	if err := checkComment(call.Comment); err != nil {
		refuseSet(w, firewall.Errors{{Msg: err.Error(), Hint: commentHint}})
		return
	}
	text, err := io.ReadAll(req.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, apiError{Error: fmt.Sprintf("read the list: %v", err), Hint: "send one entry a line"})
		return
	}
	call.list, err = newLiveList(call.set, set.Type, string(text), liveOrigin{By: call.by, At: time.Now().UTC().Truncate(time.Millisecond), Comment: call.Comment})
	if err != nil {
		refuseSet(w, err)
		return
	}
	done, err := s.change(req.Context(), &call)
	if err != nil {
		refuseSet(w, err)
		return
	}
	answer(w, func() (*SetChanged, error) { return done, nil })
}

// refuseSet answers 404 for a set that there is not and 422 for what is wrong with a change.
func refuseSet(w http.ResponseWriter, err error) {
	var errs firewall.Errors
	switch {
	case errors.Is(err, errStopping):
		refuse(w, http.StatusServiceUnavailable, apiError{Error: err.Error(), Hint: "ask again when it runs"})
	case !errors.As(err, &errs):
		refuse(w, http.StatusInternalServerError, apiError{Error: err.Error(), Hint: "the log of softdpu may say more"})
	case len(errs) == 1 && strings.HasPrefix(errs[0].Msg, "unknown set"):
		refuse(w, http.StatusNotFound, apiError{Error: errs[0].Msg, Hint: errs[0].Hint})
	case len(errs) == 1 && errs[0].Line == 0:
		refuse(w, http.StatusUnprocessableEntity, apiError{Error: errs[0].Msg, Hint: errs[0].Hint})
	default:
		refuse(w, http.StatusUnprocessableEntity, apiError{Error: errs.Error(), Errors: Mistakes(errs)})
	}
}
