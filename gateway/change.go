package gateway

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// Bounds of how long a change may wait to be confirmed.
const (
	confirmLeast = time.Second
	confirmMost  = 24 * time.Hour
)

// attempt puts in force what read returns, all or nothing, and tells log, events and history what became
// of it. The error is a firewall.Errors if the text is at fault or asks for what only a restart can do,
// and a Conflict if it does not go together with what is under way.
func (g *running) attempt(q *change, read func() (*candidate, error)) (*carriedOut, error) {
	q.began = time.Now()
	g.options.Supervisor.Reloading()
	defer func() { g.options.Supervisor.Ready(g.summary()) }()
	k, err := read()
	var r *Ruleset
	if err == nil {
		g.compare(q, k)
		r, err = g.compile(k)
	}
	var done *carriedOut
	if err == nil {
		if done, err = g.enact(q, k, r); err != nil {
			r.revision.drop()
		}
	}
	if conflict := (*Conflict)(nil); !errors.As(err, &conflict) { // else nothing was looked at
		g.loads.count(err)
	}
	if err != nil {
		g.tellRefused(q, k, err)
		return nil, err
	}
	log := g.options.Log.With(q.args()...)
	warn(log, slices.Concat(r.config.Warnings, r.Warnings, g.idleSets()))
	log.Info("policy reloaded", "epoch", done.Epoch, "entry", done.Entry, "rules", done.Rules, "nat", done.NAT, "tests_passed", done.Tests, "took_ms", done.TookMS)
	if done.ComesBack != nil {
		log.Warn("the policy comes back to the one before unless it is confirmed", "entry", done.Entry, "deadline", done.ComesBack.Format(time.RFC3339),
			"confirm", "softdpu policy confirm")
	}
	if g.history.held() != nil {
		log.Warn("the policy in force is not that of the files any more", "entry", done.Entry, "restored", k.restored,
			"until", "the files change, or 'softdpu policy apply'")
	}
	return done, nil
}

// compare begins to compare a policy with the one in force, while it is compiled.
func (g *running) compare(q *change, k *candidate) {
	before, compared := g.rules.Load().policy, make(chan *firewall.Changes, 1)
	go func() { compared <- changesOf(before, k.policy) }()
	q.compared = func() { q.changes = <-compared }
}

// args are the change for a line of the log.
func (q *change) args() []any {
	args := append([]any{"by", q.by}, q.who.args()...)
	if q.comment != "" {
		args = append(args, "comment", q.comment)
	}
	return args
}

// tellRefused tells everybody that a change was refused.
func (g *running) tellRefused(q *change, k *candidate, err error) {
	epoch, _ := g.plane.Epoch()
	g.history.refuse(q, k, g.now(), err)
	g.events.policyRefused(q, k, err)
	g.options.Log.With(q.args()...).Error("reload refused", "epoch", epoch, "entry", q.entry, "error", refused("what was read", err))
}

// reload puts in force what is on disk.
func (g *running) reload(q *change) (*carriedOut, error) {
	return g.attempt(q, func() (*candidate, error) {
		if err := g.admits(q); err != nil {
			return nil, err
		}
		c, err := LoadConfig(g.config.File)
		if err != nil {
			return nil, err
		}
		k, err := g.history.reader.read(c)
		if errs := g.config.restartFor(c); len(errs) > 0 {
			return k, errs
		}
		return k, err
	})
}

// admits refuses a reload while a change waits to be confirmed, since what would come back then is not
// clear, and by a signal also while the files are those that were rolled back: a signal may come from
// anywhere, such as the rotation of logs.
func (g *running) admits(q *change) error {
	if p := g.history.pending(); p != nil {
		return &Conflict{
			fmt.Sprintf("the change of entry %d waits to be confirmed, and is taken back in %s", p.Entry, g.timeLeft(p)),
			"'softdpu policy confirm' keeps it, 'softdpu policy rollback' takes it back at once",
		}
	}
	if held := g.history.held(); held != nil && q.by == bySignal && g.history.reader.onDisk(g.config).equal(&held.Disk) {
		return &Conflict{"the files are still those that were rolled back", "change them, or 'softdpu policy apply' puts them in force as they are"}
	}
	return nil
}

// rollback puts in force what was in force before: the policy of an entry of the history, or with 0 the
// one before.
func (g *running) rollback(q *change, entry int) (*carriedOut, error) {
	return g.attempt(q, func() (*candidate, error) {
		entry, err := g.history.target(entry)
		if err != nil {
			return nil, err
		}
		return g.restore(entry)
	})
}

// restore returns the policy of an entry, for this configuration.
func (g *running) restore(entry int) (*candidate, error) {
	if f := g.fallback; f != nil && f.restored == entry {
		return f, nil
	}
	k, err := g.history.load(entry)
	if err != nil {
		return nil, err
	}
	k.config = g.config.bringBack(k.config)
	return k, nil
}

// compile makes a candidate ready to follow the policy in force. It changes nothing.
func (g *running) compile(k *candidate) (*Ruleset, error) {
	routes, err := openRouteOracle(k.config)
	if err != nil {
		return nil, err
	}
	defer routes.close()
	options := k.config.CompileOptions(g.now())
	k.after = g.rules.Load()
	options.Previous = k.after.Compiled.Identities
	r, err := k.prepare(options, routes.zone)
	if err == nil && r.Compiled.Identities.Rules() <= int(g.plane.Sizes().Rules) {
		return r, nil
	}
	// There may be no number left, and some that can be freed.
	identities, failed := g.identities()
	if failed != nil || identities == options.Previous {
		return r, errors.Join(err, failed)
	}
	if err == nil {
		r.revision.drop()
	}
	options.Previous = identities
	return k.prepare(options, routes.zone)
}

// enact puts a policy in force and notes it in the history. What has to be known after a crash is noted
// before: that the policy comes back, or that the files are not what is in force. Without the first a
// change with a time limit is refused; the second never keeps a policy from being rolled back to.
func (g *running) enact(q *change, k *candidate, r *Ruleset) (*carriedOut, error) {
	g.history.storeAhead(k.files)
	old := g.rules.Load()
	epoch, _ := g.plane.Epoch()
	rec := q.record(k, r, epoch+1)
	compare := func() {
		q.compared()
		rec.Changes = q.changes
	}
	fallback := (*candidate)(nil)
	warnings := slices.Concat(r.config.Warnings, r.Warnings)
	if q.confirm > 0 {
		if fallback = g.history.inForce(old); fallback == nil {
			return nil, &Conflict{"the history does not have the policy in force, so that nothing could come back", "'softdpu status' says why; apply without --confirm"}
		}
		if g.options.Supervisor == nil {
			warnings = append(warnings, firewall.Error{
				Msg: "nothing starts this gateway again if it dies: then the policy comes back once somebody does", Hint: "run it as a service"})
		}
	}
	if k.restored != 0 {
		rec.disk = g.history.reader.onDisk(g.config)
	}
	back, noted, written := func() {}, error(nil), func() error { return nil }
	early := q.confirm > 0 || k.restored != 0
	if early {
		compare()
		undo, err := g.history.put(q, rec, q.confirm > 0)
		if err != nil && q.confirm > 0 {
			return nil, fmt.Errorf("note when the policy shall come back: %w: nothing was changed", err)
		}
		back, noted = undo, err
	}
	if err := g.putInForce(r); err != nil {
		back()
		return nil, err
	}
	took := time.Since(q.began)
	warnings = append(warnings, g.idleSets()...)
	if !early {
		compare() // of many rules that takes longer than to put them in force
		written = g.history.note(q, rec)
	}
	g.history.show()
	g.fallback = fallback
	g.arm()
	epoch, _ = g.plane.Epoch()
	g.events.policyChange(r, epoch, q)
	done := &carriedOut{Reloaded: Reloaded{
		Epoch: epoch, Entry: q.entry, Restored: k.restored, Files: r.Files, Rules: len(r.Compiled.Order), NAT: len(r.Compiled.NATOrder), Tests: r.passed(),
		TookMS: float64(took.Microseconds()) / 1000, Warnings: Mistakes(warnings),
	}}
	done.finish = func() {
		if err := errors.Join(noted, written()); err != nil {
			done.Warnings = append(done.Warnings, Mistakes(firewall.Errors{{
				Msg: fmt.Sprintf("the policy is in force, and the history could not be written: %v", err), Hint: "a restart goes by what was written last, else by the files",
			}})...)
		}
	}
	if p := g.history.pending(); p != nil {
		done.ComesBack = &p.Deadline
	}
	return done, nil
}

// changesOf counts what differs; nil if the policy before is not known.
func changesOf(before, after *firewall.Policy) *firewall.Changes {
	if before == nil {
		return nil
	}
	c := firewall.CountChanges(firewall.Diff(before, after))
	return &c
}

// inForce returns the policy in force as what an unconfirmed change comes back to, from memory; nil if
// a later run could not.
func (h *history) inForce(r *Ruleset) *candidate {
	h.work.wait() // what is on its way may turn out not to be kept
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.index.find(h.index.Current)
	if now == nil || len(now.Sources) == 0 || now.Hash != r.hash() {
		return nil
	}
	return &candidate{config: r.config, policy: r.policy, files: now.Sources, restored: now.Entry}
}

// confirm keeps a change that waits for it.
func (g *running) confirm(q *change) (*Confirmed, error) {
	p := g.history.pending()
	if p == nil {
		return nil, &Conflict{"no change waits to be confirmed", "'softdpu policy history' shows what became of the last one"}
	}
	if err := g.history.confirm(); err != nil {
		return nil, fmt.Errorf("note that entry %d is confirmed: %w: it is still taken back in %s", p.Entry, err, g.timeLeft(p))
	}
	g.fallback = nil
	g.arm()
	q.entry = p.Entry
	epoch, _ := g.plane.Epoch()
	g.events.policyConfirmed(g.rules.Load(), epoch, q)
	g.options.Log.With(q.args()...).Info("policy confirmed", "entry", p.Entry, "epoch", epoch)
	return &Confirmed{p.Entry, epoch}, nil
}

// timeLeft is how long a change has still to be confirmed, for people.
func (g *running) timeLeft(p *pendingChange) time.Duration {
	return max(0, g.history.left(p)).Round(time.Second)
}

// arm sets the alarm for the change that waits to be confirmed, if one does.
func (g *running) arm() {
	g.stuck = false
	if g.alarm != nil {
		g.alarm.Stop()
		g.alarm = nil
	}
	if p := g.history.pending(); p != nil {
		g.alarm = time.NewTimer(g.history.left(p) + time.Millisecond) // never too early
	}
}

// due rings when the change that waits comes back; nil if none waits.
func (g *running) due() <-chan time.Time {
	if g.alarm == nil {
		return nil
	}
	return g.alarm.C
}

// comeBack takes a change back whose time to be confirmed is over. What goes wrong is told once, and
// tried again with each call.
func (g *running) comeBack() {
	p := g.history.pending()
	if p == nil || g.history.left(p) > 0 {
		return
	}
	q := &change{by: byNotConfirmed}
	read := func() (*candidate, error) { return g.restore(p.Before) }
	if !g.stuck {
		_, err := g.attempt(q, read)
		g.stuck = err != nil
		return
	}
	k, err := read()
	var r *Ruleset
	if err == nil {
		g.compare(q, k)
		r, err = g.compile(k)
	}
	if err == nil {
		_, err = g.enact(q, k, r)
	}
	if err == nil {
		g.loads.count(nil)
		g.options.Log.Info("the policy has come back at last", "entry", q.entry)
	}
}
