package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// setRest is for how long at most calls that change sets are gathered behind a change, so that a hundred
// callers a second cost no more than half a CPU; shorter if the change was quicker than that.
const setRest = 250 * time.Millisecond

// expiryStep gathers entries whose time is over at almost the same moment.
const expiryStep = 250 * time.Millisecond

// A liveSetter gathers calls that change sets for attend, which alone uses it but for calls and store.
type liveSetter struct {
	store *liveStore
	calls chan *waitingCall // to attend

	waiting []*waitingCall
	rested  time.Time // when the next change may be made, by the process's own clock
	next    time.Time // when the first entry is over, by the wall clock; zero: none ends
	retry   time.Time // not before, by the process's own clock, after expiry has failed
	failing bool
	index   *setIndex // of the policy in force when it was last used
}

// waitingCall is a call whose caller waits.
type waitingCall struct {
	setCall
	answer chan setAnswer // with room for the answer
}

type setAnswer struct {
	done *SetChanged
	err  error
}

func newLiveSetter(dir string) *liveSetter {
	return &liveSetter{store: newLiveStore(dir), calls: make(chan *waitingCall)}
}

// open begins with what an earlier run has left.
func (s *liveSetter) open(live liveSets) error {
	if len(live) == 0 {
		return nil
	}
	s.next = live.next()
	return s.store.acquire()
}

func (s *liveSetter) wait(call *waitingCall) { s.waiting = append(s.waiting, call) }

// abandon tells all who wait that nothing will come.
func (s *liveSetter) abandon() {
	for _, call := range s.waiting {
		call.answer <- setAnswer{err: errStopping}
	}
	s.waiting = nil
}

// due returns a channel that is ready when sets are to be changed; nil if nothing waits and no entry ends.
func (s *liveSetter) due(now time.Time) <-chan time.Time {
	wait := time.Duration(-1)
	if !s.next.IsZero() {
		wait = max(s.next.Truncate(expiryStep).Add(expiryStep).Sub(now), time.Until(s.retry), time.Until(s.rested), 0)
		wait = min(wait, expiryInterval) // the wall clock may be set
	}
	if len(s.waiting) > 0 {
		wait = max(time.Until(s.rested), 0)
	}
	if wait < 0 {
		return nil
	}
	return time.After(wait)
}

// askSet has attend change a set, and waits until the change is in force.
func (g *running) askSet(ctx context.Context, c *setCall) (*SetChanged, error) {
	call := &waitingCall{*c, make(chan setAnswer, 1)}
	select {
	case g.sets.calls <- call:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-g.ending:
		return nil, errStopping
	}
	a := <-call.answer
	return a.done, a.err
}

// changeSets does what the waiting calls ask, takes back what is over, and puts the outcome in force at
// once. Each call is done as a whole or not at all, in the order in which they came.
func (g *running) changeSets() {
	s, rules, now := g.sets, g.rules.Load(), g.now()
	calls := s.waiting
	s.waiting = nil
	began := time.Now()
	if s.index == nil || s.index.policy != rules.policy {
		s.index = newSetIndex(rules.policy)
	}
	sets, over := rules.live, map[string]int(nil)
	if !s.next.IsZero() && !now.Before(s.next) && !time.Now().Before(s.retry) {
		sets, over = sets.expire(now)
	}
	var done []*waitingCall
	var answers []*SetChanged
	for _, call := range calls {
		if call.list != nil {
			call.list.lieIn(s.store.dir)
		}
		next, answer, err := s.index.try(sets, &call.setCall, now)
		if err != nil {
			call.answer <- setAnswer{err: err}
			continue
		}
		sets, done, answers = next, append(done, call), append(answers, answer)
	}
	if len(done) == 0 && len(over) == 0 {
		return
	}
	changed := len(over) > 0 || slices.ContainsFunc(answers, (*SetChanged).changed)
	err := g.putSetsInForce(rules, sets, changed)
	s.failed(g, err, over)
	epoch, _ := g.plane.Epoch()
	if err == nil {
		g.tellSets(rules, epoch, done, answers, over)
	}
	for i, call := range done {
		answers[i].Epoch = epoch
		if err != nil {
			call.answer <- setAnswer{err: err}
		} else {
			call.answer <- setAnswer{done: answers[i]}
		}
	}
	s.rested = time.Now().Add(min(time.Since(began), setRest))
}

// failed remembers whether entries whose time is over are still in force.
func (s *liveSetter) failed(g *running, err error, over map[string]int) {
	if len(over) == 0 {
		return
	}
	if err != nil {
		s.retry = time.Now().Add(retryInterval)
		if !s.failing {
			g.options.Log.Error("entries of sets whose time is over are still in force, trying again", "error", err)
		}
	}
	s.failing = err != nil
}

// putSetsInForce writes what sets were given and then compiles and publishes it, unless nothing but ends
// have changed. After an error all is as before.
func (g *running) putSetsInForce(rules *Ruleset, sets liveSets, changed bool) error {
	s := g.sets
	if err := s.store.save(rules.live, sets); err != nil {
		return errors.Join(err, s.store.save(sets, rules.live))
	}
	if !changed {
		next := *rules
		next.live = sets
		g.rules.note(&next)
	} else if err := g.publishSets(rules, sets); err != nil {
		return errors.Join(err, s.store.save(sets, rules.live))
	}
	s.store.sweep(sets)
	s.next = sets.next()
	return nil
}

func (g *running) publishSets(rules *Ruleset, sets liveSets) error {
	options := rules.config.CompileOptions(g.now())
	options.Previous = rules.Compiled.Identities
	if slices.ContainsFunc(slices.Collect(maps.Values(sets)), func(live *liveSet) bool { return live.kind == firewall.SetMAC }) {
		// Addresses that come and go need numbers, which are free when no flow bears them any more.
		var err error
		if options.Previous, err = g.identities(); err != nil {
			return err
		}
	}
	next, err := rules.withLive(sets, options)
	if err != nil {
		return err
	}
	return g.replace(next)
}

// tellSets writes log and events of changes that are in force.
func (g *running) tellSets(rules *Ruleset, epoch uint32, calls []*waitingCall, answers []*SetChanged, over map[string]int) {
	now := g.rules.Load()
	for i, call := range calls {
		a := answers[i]
		if a.Added+a.Removed+a.Prolonged == 0 {
			continue
		}
		g.options.Log.Info("set changed", "set", a.Set, "added", a.Added, "removed", a.Removed, "prolonged", a.Prolonged,
			"entries", a.Entries, "by", call.by, "comment", call.Comment, "epoch", epoch)
		g.events.setChange(now, epoch, call.by, &eveSet{
			Name: a.Set, Added: a.Added, Removed: a.Removed, Prolonged: a.Prolonged, Entries: a.Entries, Comment: call.Comment, Until: a.Until,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(over)) {
		g.options.Log.Info("entries of a set are over", "set", name, "entries", over[name], "epoch", epoch)
		entries := 0
		if s := g.sets.index.set(name); s != nil {
			entries = now.setStatus(s).Entries
		}
		g.events.setChange(now, epoch, "expiry", &eveSet{Name: name, Expired: over[name], Entries: entries})
	}
}

// idleSets warns of what sets were given at runtime and the policy in force has no sets for.
func (g *running) idleSets() firewall.Errors {
	rules := g.rules.Load()
	return rules.live.idle(rules.policy, g.sets.store.file)
}
