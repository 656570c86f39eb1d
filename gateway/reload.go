package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// expiryInterval is how often the clock is compared with the date on which a rule ends: it may be set.
const expiryInterval = time.Second

var errStopping = errors.New("softdpu is stopping")

// Reloaded is what POST /v1/reload answers.
type Reloaded struct {
	Epoch    uint32    `json:"epoch"` // of the policy that is in force now
	Files    []string  `json:"files"`
	Rules    int       `json:"rules"` // without built-in ones
	Tests    int       `json:"tests"` // all passed
	Warnings []Mistake `json:"warnings"`
}

// Mistake is an error or a warning about what somebody wrote.
type Mistake struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"` // 0: the file as a whole
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Source  string `json:"source,omitempty"`
}

// Mistakes turns errors or warnings into what the control socket answers.
func Mistakes(errs firewall.Errors) []Mistake {
	out := make([]Mistake, len(errs))
	for i, e := range errs {
		out[i] = Mistake{e.File, e.Line, e.Column, e.Msg, e.Hint, e.Source}
	}
	return out
}

// FirewallError turns m back into what it was.
func (m *Mistake) FirewallError() firewall.Error {
	return firewall.Error{File: m.File, Line: m.Line, Column: m.Column, Msg: m.Message, Hint: m.Hint, Source: m.Source}
}

// reloadAnswer is what became of a reload that somebody waits for.
type reloadAnswer struct {
	done *Reloaded
	err  error
}

// attend reloads when it is asked to, one reload at a time, until ctx is done. It runs on the thread
// that has the gateway's network namespace.
func (g *running) attend(ctx context.Context) {
	defer close(g.ending)
	timer := time.NewTicker(expiryInterval)
	defer timer.Stop()
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
			_, _ = g.reload("signal") // which logs what became of it
		case answer := <-g.reloads:
			done, err := g.reload("control socket")
			answer <- reloadAnswer{done, err}
		case <-graceOver:
			graceOver = nil
			if err := g.endGrace(); err != nil {
				g.options.Log.Error("TCP connections are still picked up, trying again", "error", err)
				graceOver = time.After(retryInterval)
			}
		case <-timer.C:
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

// askReload has attend reload, and waits for it.
func (g *running) askReload(ctx context.Context) (*Reloaded, error) {
	answer := make(chan reloadAnswer, 1)
	select {
	case g.reloads <- answer:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-g.ending:
		return nil, errStopping
	}
	a := <-answer
	return a.done, a.err
}

// reload reads configuration and policy again and puts them in force, all or nothing. The error is a
// firewall.Errors if the text is at fault, or asks for what only a restart can do.
func (g *running) reload(by string) (*Reloaded, error) {
	log := g.options.Log.With("by", by)
	g.options.Supervisor.Reloading()
	defer func() { g.options.Supervisor.Ready(g.summary()) }()
	rules, err := g.prepare()
	if err == nil {
		err = g.putInForce(rules, by)
	}
	g.loads.count(err)
	if err != nil {
		epoch, _ := g.plane.Epoch()
		log.Error("reload refused", "epoch", epoch, "error", refused("what was read", err))
		return nil, err
	}
	warnings := append(append(firewall.Errors{}, rules.config.Warnings...), rules.Warnings...)
	warn(log, warnings)
	epoch, _ := g.plane.Epoch()
	log.Info("policy reloaded", "epoch", epoch, "rules", len(rules.Compiled.Order), "tests_passed", len(rules.Compiled.Tests))
	return &Reloaded{
		Epoch: epoch, Files: rules.Files, Rules: len(rules.Compiled.Order), Tests: len(rules.Compiled.Tests),
		Warnings: Mistakes(warnings),
	}, nil
}

// prepare reads what a reload puts in force. It changes nothing.
func (g *running) prepare() (*Ruleset, error) {
	c, err := LoadConfig(g.config.File)
	if err != nil {
		return nil, err
	}
	if errs := g.config.restartFor(c); len(errs) > 0 {
		return nil, errs
	}
	identities, err := g.identities()
	if err != nil {
		return nil, err
	}
	routes, err := openRouteOracle(c)
	if err != nil {
		return nil, err
	}
	defer routes.close()
	options := c.CompileOptions(g.now())
	options.Previous = identities
	return prepareRuleset(c, options, routes.zone)
}

// expire compiles the policy in force again, without the rules whose last day is over. Its files are not
// read: somebody may be writing them. Its tests are not run: they may name such a rule.
func (g *running) expire() error {
	old := g.rules.Load()
	identities, err := g.identities()
	if err != nil {
		return err
	}
	options := old.config.CompileOptions(g.now())
	options.Previous = identities
	rules, err := compileRuleset(old.config, old.policy, options)
	if err != nil {
		return err
	}
	if err := g.putInForce(rules, "expiry"); err != nil {
		return err
	}
	g.loads.count(nil)
	epoch, _ := g.plane.Epoch()
	g.options.Log.Info("rules have expired", "epoch", epoch)
	return nil
}

// putInForce publishes a prepared policy under the next epoch: established flows are judged by it with
// their next packet. After an error the policy before is in force as it was.
func (g *running) putInForce(r *Ruleset, by string) error {
	old := g.rules.Load()
	if errs := old.restartFor(r); len(errs) > 0 {
		return errs
	}
	if n, most := r.Compiled.Identities.Rules(), int(g.plane.Sizes().Rules); n > most {
		return firewall.Errors{r.config.PolicyPos.Errorf("policy needs counters for %d rules, and this run has %d", n, most).
			WithHint("if many rules were renamed, apply again in a minute; else restart to have room for more")}
	}
	if err := g.ledger.renumber(old.Compiled.Identities, r.Compiled.Identities); err != nil {
		return err
	}
	epoch, _ := g.plane.Epoch()
	if err := g.rules.replace(r, func() error { return g.publish(r, epoch+1) }); err != nil {
		return err
	}
	g.ageing.setTimeouts(r.config.Flows.Timeouts.Ticks())
	g.events.policyChange(r, epoch+1, by)
	return nil
}

// now is the wall clock.
func (g *running) now() time.Time {
	if g.options.now != nil {
		return g.options.now()
	}
	return time.Now()
}

// setTimeouts gives the next scan other time-outs.
func (a *ageing) setTimeouts(t flowtable.Timeouts) {
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	a.timeouts = t
}
