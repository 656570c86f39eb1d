package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/softdpu/softdpu/dataplane"
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
	defer g.sets.abandon()
	timer := time.NewTicker(expiryInterval)
	defer timer.Stop()
	failing := false
	var graceOver <-chan time.Time
	if g.grace {
		g.options.Log.Info("TCP connections that are under way are picked up", "upgrade_grace", g.config.UpgradeGrace)
		graceOver = time.After(g.config.UpgradeGrace)
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
	warnings := append(append(append(firewall.Errors{}, rules.config.Warnings...), rules.Warnings...), g.idleSets()...)
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

// identities are those of the policy in force, without what no flow bears any more.
func (g *running) identities() (*firewall.Identities, error) {
	borne := &firewall.Borne{Rules: make(map[uint32]bool), MACs: make(map[uint16]bool)}
	err := g.ledger.each(func(f *flowtable.Flow) bool {
		borne.Rules[f.Rule], borne.MACs[f.Context] = true, true
		borne.Zones[f.From], borne.Zones[f.To] = true, true
		return true
	})
	if err != nil {
		return nil, err
	}
	return g.rules.Load().Compiled.Identities.Release(g.now(), borne), nil
}

// putInForce publishes a prepared policy under the next epoch: established flows are judged by it with
// their next packet. What sets were given at runtime stays. After an error the policy before is in force as
// it was.
func (g *running) putInForce(r *Ruleset, by string) error {
	r, err := r.withLive(g.rules.Load().live, r.options)
	if err != nil {
		return err
	}
	if err := g.replace(r); err != nil {
		return err
	}
	epoch, _ := g.plane.Epoch()
	g.events.policyChange(r, epoch, by)
	return nil
}

// replace is putInForce without an event, of a policy that has what sets were given at runtime.
func (g *running) replace(r *Ruleset) error {
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
	return nil
}

// now is the wall clock.
func (g *running) now() time.Time {
	if g.options.now != nil {
		return g.options.now()
	}
	return time.Now()
}

// renumber makes room for the rules of a policy that is to be published, and forgets what those counted
// whose numbers others have now. No flow bears such a number.
func (l *ledger) renumber(from, to *firewall.Identities) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rules = max(l.rules, to.Rules())
	for id := firewall.RuleFirst; int(id) < from.Rules(); id++ {
		if old := from.RuleName(id); old == "" || old == to.RuleName(id) {
			continue
		}
		if err := l.plane.ForgetRule(id); err != nil {
			return err
		}
		l.ended[id] = dataplane.Credit{}
	}
	return nil
}

// setTimeouts gives the next scan other time-outs.
func (a *ageing) setTimeouts(t flowtable.Timeouts) {
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	a.timeouts = t
}
