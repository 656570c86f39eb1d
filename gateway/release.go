package gateway

import (
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// releaseInterval is how often numbers of what is gone are looked for. A reload looks for them where none is left; a start
// cannot, because it does not know the flows before it has taken them over.
const releaseInterval = time.Minute

// release frees the numbers of rules, zones and MAC addresses that are gone and that no flow bears any more,
// for the policies that follow, also after a restart.
func (g *running) release() error {
	old := g.rules.Load()
	identities, err := g.identities()
	if err != nil || identities == old.Compiled.Identities {
		return err
	}
	numbers, err := g.numbers.write(identities)
	if err != nil {
		return err
	}
	if err := g.ledger.renumber(old.Compiled.Identities, identities); err != nil {
		return err
	}
	if err := g.plane.SetNumbers(numbers); err != nil {
		return err
	}
	next, compiled := *old, *old.Compiled
	compiled.Identities = identities
	next.Compiled = &compiled
	return g.rules.replace(&next, func() error { return nil })
}

// identities are those of the policy in force, without what has been gone for long and no flow bears any more.
func (g *running) identities() (*firewall.Identities, error) {
	now, identities := g.now(), g.rules.Load().Compiled.Identities
	rested, nat := identities.AnyRested(now)
	if !rested {
		return identities, nil
	}
	borne := &firewall.Borne{Rules: make(map[uint32]bool), NAT: make(map[uint32]bool), MACs: make(map[uint16]bool)}
	err := g.ledger.sums(func(f *flowtable.Sum) {
		borne.Rules[f.Rule], borne.MACs[f.Context] = true, true
		borne.Zones[f.From], borne.Zones[f.To] = true, true
	})
	if err == nil && nat {
		err = g.ledger.each(func(f *flowtable.Flow) bool {
			if f.NAT != nil {
				borne.NAT[f.NAT.SourceRule], borne.NAT[f.NAT.DestinationRule] = true, true
			}
			return true
		})
	}
	if err != nil {
		return nil, err
	}
	return identities.Release(now, borne), nil
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
