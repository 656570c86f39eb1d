package gateway

import (
	"log/slog"
	"time"

	"github.com/softdpu/softdpu/dataplane"
)

// A beginning is what a start puts in force.
type beginning struct {
	*candidate
	rules  *Ruleset
	before dataplane.NumbersText // see prepareFirst
	by     string                // byNotConfirmed: a change was not confirmed in time; else ""
}

// begin chooses what to start with and prepares it: the files that the configuration names, unless a
// change waits to be confirmed, or something was rolled back to and the files are still those that were
// rolled back. What cannot be started with is told, and the next best is tried.
func begin(c *Config, h *history, now time.Time, log *slog.Logger) (*beginning, error) {
	try := func(k *candidate, by string) (*beginning, error) {
		routes, err := openRouteOracle(k.config)
		if err != nil {
			return nil, err
		}
		defer routes.close()
		rules, before, err := prepareFirst(k, now, routes.zone)
		if err != nil {
			return nil, err
		}
		return &beginning{k, rules, before, by}, nil
	}
	for _, choice := range h.choices(c, log) {
		k, err := h.load(choice.entry)
		if err == nil {
			k.config = c.bringBack(k.config)
			var b *beginning
			if b, err = try(k, choice.by); err == nil {
				return b, nil
			}
		}
		log.Error("the policy that should be in force cannot be: the next best is", "entry", choice.entry, "error", err)
	}
	k, err := h.reader.read(c)
	if err != nil {
		return nil, err
	}
	return try(k, "")
}

// A choice is an entry of the history to start with.
type choice struct {
	entry int
	by    string
}

// choices returns which entries of the history a start prefers to the files, the best first.
func (h *history) choices(c *Config, log *slog.Logger) []choice {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := &h.index
	if p := x.Pending; p != nil {
		back := choice{p.Before, byNotConfirmed}
		left := h.left(p)
		if left > 0 {
			log.Warn("a change waits to be confirmed", "entry", p.Entry, "comes_back_in", left.Round(time.Second).String(), "confirm", "softdpu policy confirm")
			return []choice{{p.Entry, ""}, back}
		}
		log.Warn("a change was not confirmed in time: the policy before comes back", "entry", p.Entry, "before", p.Before)
		return []choice{back}
	}
	if x.Held == nil {
		return nil
	}
	if !h.reader.onDisk(c).equal(&x.Held.Disk) {
		log.Warn("the files have changed since another policy was rolled back to: they are put in force", "entry", x.Held.Entry)
		return nil
	}
	log.Warn("the policy in force is not that of the files: it was rolled back to, and nobody has changed them since",
		"entry", x.Held.Entry, "until", "the files change, or 'softdpu policy apply'")
	return []choice{{x.Held.Entry, ""}}
}

// noteStart notes in the history what the start has put in force, if that is news.
func (g *running) noteStart(epoch uint32, q *change) {
	b, h := g.first, g.history
	g.first = nil
	defer g.arm()
	defer h.show()
	if b.restored != 0 && b.by == "" { // what was in force goes on
		q.entry = b.restored
		return
	}
	rec := q.record(b.candidate, b.rules, epoch)
	if before := h.inForceBefore(&rec); before != 0 {
		if k, err := h.load(before); err == nil {
			q.changes = changesOf(k.policy, b.rules.policy)
			rec.Changes = q.changes
		}
	}
	if b.restored != 0 {
		rec.disk = h.reader.onDisk(g.config)
	}
	_, _ = h.put(q, rec, false) // which has been logged
}

// inForceBefore is the entry in force that a record takes the place of; 0 if there is none, or it is of the
// same policy.
func (h *history) inForceBefore(r *record) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.index.find(h.index.Current); now != nil && !now.same(r) {
		return now.Entry
	}
	return 0
}
