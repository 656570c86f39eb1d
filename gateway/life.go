package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// prepareFirst prepares a policy for a gateway that starts. The policy goes on with the numbers that a run
// before has left, which are returned, so that its flows and counters keep their names. They are nothing if
// there are none, or if the policy cannot go on with them because none is left to give.
func prepareFirst(k *candidate, now time.Time, route func(r *Ruleset, in string, dst netip.Addr) (zone string, ok bool)) (*Ruleset, dataplane.NumbersText, error) {
	none := dataplane.NumbersText{}
	before, err := dataplane.Numbers()
	if err != nil {
		return nil, none, err
	}
	options := k.config.CompileOptions(now)
	if before.Whole != nil {
		if options.Previous, err = firewall.ReadIdentities(before.Whole, before.Since); err == nil {
			if r, err := k.prepare(options, route); err == nil {
				return r, before, nil
			}
		}
		options.Previous = nil
	}
	r, err := k.prepare(options, route)
	return r, none, err
}

// openPlane opens the packet path so that it outlives the process, and finds out what there is of the run
// before.
func (g *running) openPlane() (err error) {
	c, rules := g.config, g.rules.Load()
	g.plane, err = dataplane.Open(dataplane.Options{
		FlowsMax: c.Flows.Max, HalfOpenShare: c.Flows.HalfOpenShare,
		Rules: len(rules.Compiled.Rules), EventRate: uint32(c.Events.Rate), DropEvents: c.Events.Drops, Ethertypes: c.Ethertypes,
		Workers: len(rules.neededBy()) > 0,
		Keep:    true, Ports: rules.portConfigs(c), Numbers: g.before, OnPort: g.portChanged,
	})
	if err != nil {
		return err
	}
	g.events.keepAccount(&g.plane.Credits()[ofNoRule])
	return g.inherit()
}

// attach puts the policy in force on the ports. Over a run that is taken over the policy comes last, so
// that an error before leaves everything as that run had it; else it comes first, and a port that is
// taken is never without one.
func (g *running) attach() (err error) {
	taken, _ := g.plane.TakenOver()
	rules, epoch := g.rules.Load(), g.plane.NextEpoch()
	if !taken {
		if err := g.publish(rules, epoch); err != nil {
			return err
		}
	}
	if err := g.plane.Attach(rules.portConfigs(g.config)); err != nil {
		return err
	}
	g.events.namePorts(g.plane.Ports())
	if err := g.employ(rules); err != nil {
		return err
	}
	if taken {
		return g.publish(rules, epoch)
	}
	return nil
}

// publish puts a policy in force under an epoch, as it is written or, during the upgrade grace, so that it
// picks up TCP.
func (g *running) publish(r *Ruleset, epoch uint32) error {
	next, err := g.generation(r, epoch)
	if err != nil {
		return err
	}
	if err := g.plane.Publish(next); err != nil {
		return err
	}
	g.options.Log.Debug("policy published", "epoch", epoch, "in_place", g.plane.InPlace())
	return nil
}

// generation is the policy's, as it is to be in force now.
func (g *running) generation(r *Ruleset, epoch uint32) (dataplane.Generation, error) {
	next := r.generation(epoch)
	var err error
	if next.Numbers, err = g.numbers.write(r.Compiled.Identities); err != nil || !g.grace {
		return next, err
	}
	if next.ACL, err = flowtable.CompileACL(r.midstreamEntries()); err != nil {
		return next, fmt.Errorf("compile policy for the upgrade grace: %w", err)
	}
	next.Revised, next.Change = nil, nil
	return next, nil
}

// endGrace puts the policy in force as it is written, once the upgrade grace is over. The epoch stays:
// flows that were picked up need not be judged again.
func (g *running) endGrace() error {
	epoch, _ := g.plane.Epoch()
	g.grace = false
	if err := g.publish(g.rules.Load(), epoch); err != nil {
		g.grace = true
		return fmt.Errorf("end the upgrade grace: %w", err)
	}
	g.options.Log.Info("the upgrade grace is over")
	g.events.gateway("upgrade-grace-end", g.options.Version)
	return g.graceIsOver()
}

// midstreamEntries are the policy's rules, but those that allow pick up TCP without its SYN.
func (r *Ruleset) midstreamEntries() []flowtable.ACLEntry {
	entries := slices.Clone(r.Compiled.Entries)
	for i := range entries {
		if e := &entries[i]; !e.Audit && e.Verdict>>verdictActionShift&verdictAction == uint32(bpf.XDPActionACTION_ALLOW) {
			e.Verdict |= verdictMidstream
		}
	}
	return entries
}

// leave ends the daemon's part in the packet path, as on_stop says. A start that failed leaves what a run
// before had, or nothing.
func (g *running) leave() error {
	if !g.started {
		if g.plane.Inherited() {
			return g.plane.Leave()
		}
		return g.plane.Close()
	}
	var err error
	switch g.config.OnStop {
	case OnStopOpen:
		return g.plane.Close()
	case OnStopBlock:
		err = errors.Join(g.pipelines.leave(), g.block(g.rules.Load()))
	}
	return errors.Join(err, g.plane.Leave())
}

// block publishes what a clean stop leaves: the host's own traffic and what `management` names.
func (g *running) block(r *Ruleset) error {
	acl, err := flowtable.CompileACL(r.blockEntries())
	if err != nil {
		return fmt.Errorf("block what is forwarded: %w", err)
	}
	err = g.plane.Publish(dataplane.Generation{Epoch: g.plane.NextEpoch(), ACL: acl, Rules: int(firewall.RuleFirst) - 1})
	if err != nil {
		return fmt.Errorf("block what is forwarded: %w", err)
	}
	return nil
}

// blockEntries are the built-in rules of the policy, and one that lets the host speak. Its flows count as
// management, until the next start judges them again.
func (r *Ruleset) blockEntries() (entries []flowtable.ACLEntry) {
	for _, e := range r.Compiled.Entries {
		switch rule := e.Verdict & verdictRule; rule {
		case firewall.RuleManagement, firewall.RuleDHCPClient:
			entries = append(entries, e)
		}
	}
	host := flowtable.ACLEntry{
		Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
		Verdict: flowtable.Verdict(firewall.RuleManagement, uint32(bpf.XDPActionACTION_ALLOW), 0),
	}
	host.From.Add(zoneHost)
	return append(entries, host)
}

// Numbers of abi.h.
const (
	verdictRule        = 1<<24 - 1
	verdictActionShift = 24
	verdictAction      = 0x07
	verdictMidstream   = 1 << 29
	zoneHost           = 1
)
