package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/firewall"
)

// Bounds of what is kept. The policy in force, and that which an unconfirmed change comes back to, are
// kept whatever they take.
const (
	historyEntries = 50        // policies in force, and as many that were refused
	historyBytes   = 256 << 20 // of files, each content once
	historyErrors  = 10        // of a policy that was refused
)

// Results of a change.
const (
	resultInForce = "in-force"
	resultRefused = "refused"
)

// What became of a change that had to be confirmed.
const (
	confirmWaiting    = "waiting"
	confirmConfirmed  = "confirmed"
	confirmRolledBack = "rolled-back"
)

// A history keeps what was in force, with its files, and what was refused. It is there to help: whatever
// is wrong with its directory, the gateway starts and takes policies all the same, and says so. One
// goroutine at a time changes it; it is safe for concurrent reading.
type history struct {
	dir    string
	log    *slog.Logger
	boot   string               // id of the kernel's run
	uptime func() time.Duration // since the machine has started, on a clock that nobody sets
	reader *policyReader

	work  historyWork
	ahead *storing // nil: nothing has been stored ahead

	mu      sync.Mutex
	index   historyIndex // as the next start shall find it
	shown   historyIndex // as people see it: what is noted before it is in force is not in it yet
	trouble error        // why it could not be written the last time
	lost    error        // why that of the runs before could not be read: it began anew
	aside   bool         // the file that could not be read is put aside before another is written
}

// historyIndex is the file that tells all: it is replaced as a whole.
type historyIndex struct {
	Version int            `json:"version"`
	Config  string         `json:"config"` // whose history it is
	Next    int            `json:"next"`   // number of the next entry
	Current int            `json:"current"`
	Pending *pendingChange `json:"pending,omitempty"`
	Held    *heldPolicy    `json:"held,omitempty"`
	Entries []record       `json:"entries"` // oldest first
}

// A record is an entry with what it takes to put it in force again.
type record struct {
	HistoryEntry
	Keys    string       `json:"keys"`    // see diskState
	Sources []sourceFile `json:"sources"` // empty: no longer kept
	disk    *diskState   // of one that was rolled back to: what the files are meanwhile
}

// state is what the files on disk are if they are those of the record.
func (r *record) state() *diskState { return (&candidate{files: r.Sources}).state(r.Keys) }

// A pendingChange is one that comes back by itself. Until then it is that which a start puts in force.
type pendingChange struct {
	Entry    int           `json:"entry"`
	Before   int           `json:"before"` // entry to come back to
	Deadline time.Time     `json:"deadline"`
	Boot     string        `json:"boot"`
	Uptime   time.Duration `json:"uptime"` // at which it comes back
}

// A heldPolicy is one that is in force although other files are on disk, because it was rolled back to.
// A start goes on with it as long as these files are as they were.
type heldPolicy struct {
	Entry int       `json:"entry"`
	Disk  diskState `json:"disk"`
}

// A change is what somebody asks for.
type change struct {
	by      string
	who     caller
	comment string
	confirm time.Duration // after which it comes back by itself; 0: never

	entry    int               // of the history, once it has one
	restored int               // entry whose policy it brings back
	began    time.Time         // by the machine's clock
	changes  *firewall.Changes // of the policy before, once known
	compared func()            // waits until they are
}

// By whom or what a policy came into force.
const (
	byStart        = "start"
	byTakeOver     = "take-over"
	bySignal       = "signal"
	bySocket       = "control socket"
	byExpiry       = "expiry"
	byRollback     = "rollback"
	byNotConfirmed = "not-confirmed"
)

// A Conflict says that what was asked for does not go together with the state that the gateway is in.
type Conflict struct{ Msg, Hint string }

// Error returns the message and the remedy.
func (c *Conflict) Error() string {
	if c.Hint == "" {
		return c.Msg
	}
	return c.Msg + ": " + c.Hint
}

// uptime reads CLOCK_BOOTTIME, which runs while the machine is suspended and is never set.
func uptime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // the clock exists
	return time.Duration(now.Nano())
}

func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // as if each start were after another boot
	}
	return strings.TrimSpace(string(id))
}

// find returns the record with a number, nil if there is none. h.mu is held.
func (x *historyIndex) find(entry int) *record {
	i := slices.IndexFunc(x.Entries, func(r record) bool { return r.Entry == entry })
	if entry == 0 || i < 0 {
		return nil
	}
	return &x.Entries[i]
}

// same reports whether two records are of one policy.
func (r *record) same(o *record) bool { return r.Hash == o.Hash && r.Keys == o.Keys }

// show lets people see what has been noted, once it is so.
func (h *history) show() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shown = h.index
}

// clone copies what an update changes.
func (x *historyIndex) clone() historyIndex {
	out := *x
	out.Entries = slices.Clone(x.Entries)
	return out
}

// list returns the entries as people see them, the newest first.
func (h *history) list() []HistoryEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]HistoryEntry, 0, len(h.shown.Entries))
	for _, r := range slices.Backward(h.shown.Entries) {
		e := r.HistoryEntry
		e.Current, e.Kept = e.Entry == h.shown.Current, len(r.Sources) > 0
		out = append(out, e)
	}
	return out
}

// status fills in what the history knows of the policy in force.
func (h *history) status(s *PolicyStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := &h.shown
	s.Entry = x.Current
	if err := h.fault(); err != nil {
		s.HistoryError = err.Error()
	}
	if p := x.Pending; p != nil {
		s.Unconfirmed = &UnconfirmedStatus{Entry: p.Entry, Before: p.Before, Deadline: p.Deadline, LeftS: seconds(max(0, h.left(p)))}
	}
	if held := x.Held; held != nil {
		s.RolledBack = &RolledBackStatus{Entry: held.Entry}
		if r := x.find(held.Entry); r != nil {
			s.RolledBack.To, s.RolledBack.Time, s.RolledBack.By, s.RolledBack.User = r.Restored, r.Time, r.By, r.User
		}
	}
}

// fault is what keeps the history from being whole. h.mu is held.
func (h *history) fault() error {
	if h.trouble != nil {
		return h.trouble
	}
	if h.lost != nil {
		return fmt.Errorf("it began anew at the start: %w", h.lost)
	}
	return nil
}

// left is how long a change has still to be confirmed. After another boot it is nothing: whoever has cut
// himself off switches the machine off and on.
func (h *history) left(p *pendingChange) time.Duration {
	if p.Boot != h.boot || h.boot == "" {
		return 0
	}
	return p.Uptime - h.uptime()
}

// pending returns the change that waits to be confirmed, nil if none does.
func (h *history) pending() *pendingChange {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.index.Pending
}

// held returns the policy that is in force in place of the files on disk, nil if they are.
func (h *history) held() *heldPolicy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.index.Held
}

// record makes the record of a change that is to be, or is, in force under an epoch.
func (q *change) record(k *candidate, r *Ruleset, epoch uint32) record {
	q.restored = k.restored
	return record{
		HistoryEntry: HistoryEntry{
			Time: r.Read, By: q.by, User: q.who.User, Login: q.who.Login, UID: q.who.UID, Comment: q.comment,
			Result: resultInForce, Restored: k.restored, Epoch: epoch,
			Hash: r.hash(), Files: r.Files, Rules: len(r.Compiled.Order), Changes: q.changes, Errors: []Mistake{},
		},
		Keys: r.config.policyKeys(), Sources: k.files,
	}
}

// refuse notes a change that was not put in force.
func (h *history) refuse(q *change, k *candidate, at time.Time, err error) {
	r := record{HistoryEntry: HistoryEntry{
		Time: at, By: q.by, User: q.who.User, Login: q.who.Login, UID: q.who.UID, Comment: q.comment,
		Result: resultRefused, Hash: k.hash(), Files: []string{}, Errors: []Mistake{},
	}}
	if k != nil {
		r.Restored = k.restored
		if k.policy != nil {
			r.Files, r.Rules = k.policy.Files, len(k.policy.Rules)
		}
	}
	mistakes := mistakesOf(err)
	r.Mistakes = len(mistakes)
	for _, m := range mistakes[:min(len(mistakes), historyErrors)] {
		m.Source = "" // what stands there may be anything
		r.Errors = append(r.Errors, m)
	}
	_ = h.update(false, func(x *historyIndex) { // which has been logged
		r.Entry = x.Next
		x.Next++
		x.Entries = append(x.Entries, r)
	})
	q.entry = r.Entry
	h.show()
}

// mistakesOf are the errors of a text, or the one that says why it was not put in force.
func mistakesOf(err error) []Mistake {
	var errs firewall.Errors
	var one firewall.Error
	var conflict *Conflict
	switch {
	case errors.As(err, &errs):
		return Mistakes(errs)
	case errors.As(err, &one):
		return Mistakes(firewall.Errors{one})
	case errors.As(err, &conflict):
		return []Mistake{{Message: conflict.Msg, Hint: conflict.Hint}}
	}
	return []Mistake{{Message: err.Error()}}
}

// confirm ends the waiting of a change. After an error it goes on.
func (h *history) confirm() error {
	err := h.update(true, func(x *historyIndex) {
		if r := x.find(x.Pending.Entry); r != nil {
			r.Confirm = confirmConfirmed
		}
		x.Pending = nil
	})
	h.show()
	return err
}

// target chooses what to roll back to: an entry by its number, or with 0 the one before that in force. The
// one before a policy that was rolled back to is the one before it in its own time: to ask again is to
// go further back.
func (h *history) target(entry int) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := &h.index
	see := "'softdpu policy history' shows what there is"
	if err := h.fault(); err != nil {
		see = fmt.Sprintf("there is something wrong with the history: %v", err)
	}
	current := x.find(x.Current)
	if entry != 0 {
		r := x.find(entry)
		switch {
		case r == nil:
			return 0, &Conflict{fmt.Sprintf("the history has no entry %d", entry), see}
		case r.Result == resultRefused:
			return 0, &Conflict{fmt.Sprintf("entry %d was refused: it was never in force", entry), see}
		case current != nil && current.same(r):
			return 0, &Conflict{fmt.Sprintf("the policy of entry %d is in force already", entry), see}
		case len(r.Sources) == 0:
			return 0, &Conflict{fmt.Sprintf("the files of entry %d are no longer kept", entry), see}
		}
		return entry, nil
	}
	if x.Pending != nil {
		return x.Pending.Before, nil
	}
	if current == nil {
		return 0, &Conflict{"it is not known what was in force before", see}
	}
	base := current
	for seen := 0; base.Restored != 0 && seen < len(x.Entries); seen++ {
		then := x.find(base.Restored)
		if then == nil {
			return 0, &Conflict{fmt.Sprintf("what was in force before entry %d is no longer kept", base.Restored), see}
		}
		base = then
	}
	for i := range slices.Backward(x.Entries) {
		if r := &x.Entries[i]; r.Entry < base.Entry && len(r.Sources) > 0 && !r.same(base) && !r.same(current) {
			return r.Entry, nil
		}
	}
	return 0, &Conflict{"nothing that was in force before is kept", see}
}
