package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// openPlane opens the packet path so that it outlives the process, and says what became of the run
// before.
func (g *running) openPlane() (err error) {
	c := g.config
	g.plane, err = dataplane.Open(dataplane.Options{
		FlowsMax: c.Flows.Max, HalfOpenShare: c.Flows.HalfOpenShare,
		Rules: len(g.rules.Compiled.Rules), EventRate: uint32(c.Events.Rate), Ethertypes: c.Ethertypes,
		Keep: true, Ports: g.rules.portConfigs(c), Numbers: g.rules.numbers(),
	})
	if err != nil {
		return err
	}
	taken, why := g.plane.TakenOver()
	switch {
	case taken:
		g.options.Log.Info("the run before is taken over", "flows", "kept", "counters", "kept")
	case g.plane.Inherited():
		g.options.Log.Warn("the run before is replaced: flows and counters start afresh", "why", why)
	}
	return nil
}

// attach puts the policy in force on the ports. Over a run that is taken over the policy comes last, so
// that an error before leaves everything as that run had it; else it comes first, and a port that is
// taken is never without one.
func (g *running) attach() (err error) {
	taken, _ := g.plane.TakenOver()
	next := g.rules.generation(g.plane.NextEpoch())
	if !taken {
		first := next
		if g.plane.Inherited() && g.config.UpgradeGrace > 0 {
			if first.ACL, err = flowtable.CompileACL(g.rules.midstreamEntries()); err != nil {
				return fmt.Errorf("compile policy for the upgrade grace: %w", err)
			}
			g.grace = next.Epoch
		}
		if err := g.plane.Publish(first); err != nil {
			return err
		}
	}
	if g.mtus, err = setMTUs(g.config.Ports, g.plane.RecordMTU); err != nil {
		return err
	}
	if err := g.plane.Attach(g.rules.portConfigs(g.config)); err != nil {
		return err
	}
	if taken {
		return g.plane.Publish(next)
	}
	return nil
}

// endGrace puts the policy in force as it is written, once the upgrade grace is over. The epoch stays:
// flows that were picked up need not be judged again.
func (g *running) endGrace(ctx context.Context) {
	if g.grace == 0 {
		return
	}
	g.options.Log.Info("TCP connections that are under way are picked up", "upgrade_grace", g.config.UpgradeGrace)
	select {
	case <-ctx.Done():
		return
	case <-time.After(g.config.UpgradeGrace):
	}
	g.again(ctx, "end the upgrade grace", func() error {
		if epoch, _ := g.plane.Epoch(); epoch == g.grace {
			if err := g.plane.Publish(g.rules.generation(g.grace)); err != nil {
				return err
			}
			g.options.Log.Info("the upgrade grace is over")
		}
		<-ctx.Done()
		return nil
	})
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
			return errors.Join(g.plane.Leave(), g.mtus.restore())
		}
		return errors.Join(g.plane.Close(), g.mtus.restore())
	}
	defer g.mtus.close()
	var err error
	switch g.config.OnStop {
	case OnStopOpen:
		return g.plane.Close() // MTUs too
	case OnStopBlock:
		err = g.block()
	}
	return errors.Join(err, g.plane.Leave())
}

// block publishes what a clean stop leaves: the host's own traffic and what `management` names.
func (g *running) block() error {
	acl, err := flowtable.CompileACL(g.rules.blockEntries())
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

// numbers says what the numbers mean that flows and counters hold.
func (r *Ruleset) numbers() map[string]uint32 {
	c := r.Compiled
	numbers := make(map[string]uint32, len(c.Zones)+len(c.Rules)+len(c.MACs))
	for id, name := range c.Zones {
		if name != "" {
			numbers["zone "+name] = uint32(id)
		}
	}
	for id := range c.Rules {
		numbers["rule "+c.Rules[id].Name] = uint32(id)
	}
	for mac, id := range c.MACs {
		numbers["mac "+net.HardwareAddr(mac[:]).String()] = uint32(id)
	}
	return numbers
}
