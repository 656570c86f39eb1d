package gateway

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// expiryInterval is how often the clock is compared with the date on which a rule ends: it may be set.
const expiryInterval = time.Second

// collectAfter is how long after the last change the memory is collected that the policy before has left, which for many rules
// is much. Beside a collection the next change would take two to three times as long.
const collectAfter = time.Second

var errStopping = errors.New("softdpu is stopping")

// Reloaded is what POST /v1/reload answers.
type Reloaded struct {
	Epoch     uint32     `json:"epoch"`      // of the policy that is in force now
	Entry     int        `json:"entry"`      // of the history
	Restored  int        `json:"restored"`   // entry whose policy was rolled back to, 0 for none
	ComesBack *time.Time `json:"comes_back"` // when the policy before does unless this one is confirmed, null: never
	Files     []string   `json:"files"`
	Rules     int        `json:"rules"`   // without built-in ones
	NAT       int        `json:"nat"`     // rules of translation
	Tests     int        `json:"tests"`   // that passed: all, but for a policy that was rolled back to
	TookMS    float64    `json:"took_ms"` // from the first look at its files to the policy in force
	Warnings  []Mistake  `json:"warnings"`
}

// carriedOut is a change that is in force.
type carriedOut struct {
	Reloaded
	finish func() // waits until the history is written, which ends in a warning if it cannot be
}

// Mistake is an error or a warning about what somebody wrote.
type Mistake struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"` // 0: the file as a whole
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Source  string `json:"source,omitempty"` // the line, unless it is longer than anybody reads
}

// maxSource bounds the lines that go with mistakes, in bytes: a file of 10 MB may be one line.
const maxSource = 4096

// Mistakes turns errors or warnings into what the control socket answers.
func Mistakes(errs firewall.Errors) []Mistake {
	out := make([]Mistake, len(errs))
	for i, e := range errs {
		if len(e.Source) > maxSource {
			e.Source = ""
		}
		out[i] = Mistake{e.File, e.Line, e.Column, e.Msg, e.Hint, e.Source}
	}
	return out
}

// FirewallError turns m back into what it was.
func (m *Mistake) FirewallError() firewall.Error {
	return firewall.Error{File: m.File, Line: m.Line, Column: m.Column, Msg: m.Message, Hint: m.Hint, Source: m.Source}
}

// A request is a change that somebody waits for.
type request struct {
	do     func() (*carriedOut, error) // nil where no policy is put in force
	answer chan<- reloadAnswer
}

// reloadAnswer is what became of it.
type reloadAnswer struct {
	done *Reloaded
	err  error
}

// attend changes the policy when it is asked to, one change at a time, until ctx is done. It runs on the thread
// that has the gateway's network namespace.
func (g *running) attend(ctx context.Context) {
	defer close(g.ending)
	defer g.sets.abandon()
	timer := time.NewTicker(expiryInterval)
	defer timer.Stop()
	collect := time.NewTimer(collectAfter) // reading the first policy leaves most
	defer collect.Stop()
	failing := false
	release := g.now().Add(2 * firewall.IdentityRest)
	var graceOver <-chan time.Time
	if g.grace {
		graceOver = time.After(time.Until(*g.inheritance.Load().PickUpUntil))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.options.Reload:
			_, _ = g.reload(&change{by: bySignal}) // which logs what became of it
			collect.Reset(collectAfter)
		case r := <-g.requests:
			done, err := r.do()
			collect.Reset(collectAfter)
			go func() { // the next one need not wait for the disk
				if done == nil {
					r.answer <- reloadAnswer{nil, err}
					return
				}
				done.finish()
				r.answer <- reloadAnswer{&done.Reloaded, nil}
			}()
		case <-g.due():
			g.comeBack()
		case <-collect.C:
			go runtime.GC() // nobody waits for it
		case call := <-g.sets.calls:
			g.sets.wait(call)
		case <-g.sets.due(g.now()):
			g.changeSets()
		case <-graceOver:
			graceOver = nil
			if err := g.endGrace(); err != nil {
				g.options.Log.Error("TCP connections are still picked up, trying again", "error", err)
				graceOver = time.After(retryInterval)
			}
		case <-timer.C:
			g.comeBack() // the alarm does not run while the machine is suspended
			if now := g.now(); !now.Before(release) {
				release = now.Add(releaseInterval)
				if err := g.release(); err != nil {
					g.options.Log.Error("numbers of rules, zones and MAC addresses that are gone are not free yet", "error", err)
				}
			}
			next := g.rules.Load().Compiled.NextExpiry
			if next.IsZero() || g.now().Before(next) {
				continue
			}
			err := g.expire()
			if err != nil && !failing {
				g.options.Log.Error("a rule that has expired is still in force, trying again", "error", err)
			}
			failing = err != nil
		}
	}
}

// ask has attend do something, and waits for it.
func (g *running) ask(ctx context.Context, do func() (*carriedOut, error)) (*Reloaded, error) {
	answer := make(chan reloadAnswer, 1)
	select {
	case g.requests <- request{do, answer}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-g.ending:
		return nil, errStopping
	}
	a := <-answer
	return a.done, a.err
}

// expire compiles the policy in force again, without the rules whose last day is over. Its files are not
// read: somebody may be writing them. Its tests are not run: they may name such a rule.
func (g *running) expire() error {
	old := g.rules.Load()
	options := old.config.CompileOptions(g.now())
	options.Previous = old.Compiled.Identities
	rules, err := compileRuleset(old.config, old.policy, options, old)
	if err != nil {
		return err
	}
	rules.failed = old.failed
	if err := g.putInForce(rules); err != nil {
		return err
	}
	g.loads.count(nil)
	epoch, _ := g.plane.Epoch()
	g.events.policyChange(rules, epoch, &change{by: byExpiry})
	g.options.Log.Info("rules have expired", "epoch", epoch)
	return nil
}

// putInForce publishes a prepared policy under the next epoch: established flows are judged by it with
// their next packet. What sets were given at runtime stays. After an error the policy before is in force as
// it was.
func (g *running) putInForce(r *Ruleset) error {
	old := g.rules.Load()
	r, err := r.withLive(old.live, r.options, old)
	if err != nil {
		return err
	}
	return g.replace(r)
}

// replace is putInForce of a policy that has what sets were given at runtime.
func (g *running) replace(r *Ruleset) (err error) {
	defer func() {
		if err != nil {
			r.revision.drop()
		}
	}()
	old := g.rules.Load()
	if n, most := r.Compiled.Identities.Rules(), int(g.plane.Sizes().Rules); n > most {
		return firewall.Errors{r.config.PolicyPos.Errorf("policy needs counters for %d rules, and this run has %d", n, most).
			WithHint("if many rules were renamed, apply again in a minute; else restart to have room for more")}
	}
	if err := g.employ(r); err != nil {
		return err
	}
	if err := g.ledger.renumber(old.Compiled.Identities, r.Compiled.Identities); err != nil {
		return err
	}
	epoch, _ := g.plane.Epoch()
	if err := g.rules.replace(r, func() error { return g.change(r, epoch+1) }); err != nil {
		return err
	}
	g.ageing.setTimeouts(r.config.Flows.Timeouts.Ticks())
	return nil
}

// now is the wall clock.
func (g *running) now() time.Time {
	if g.options.now != nil {
		return g.options.now()
	}
	return time.Now()
}

// setTimeouts gives the next scan other time-outs: those of a policy that has come into force.
func (a *ageing) setTimeouts(t flowtable.Timeouts) {
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	a.timeouts = t
	a.checks = tallyChecks
}
