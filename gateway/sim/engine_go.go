package sim

import (
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// goEngine is the executor in Go over a table on the heap.
type goEngine struct {
	executor *flowtable.Executor
	answer   [256]byte
}

func newGoEngine(s *Sim, rules pipes, addresses map[bpf.XDPNatDevice]bpf.XDPNatAddress) (*goEngine, error) {
	table, err := flowtable.NewTable(flowtable.TableConfig{
		Groups4: int(s.sizes.Groups), Groups6: int(s.sizes.Groups), Seed: s.cfg.Seed, StripeBits: s.sizes.StripeBits,
		FlowsMax: s.sizes.FlowsMax, HalfOpenMax: s.sizes.HalfOpenMax, OverflowMax: int64(s.sizes.OverflowMax),
	})
	if err != nil {
		return nil, err
	}
	executor, err := newExecutor(s, table, rules, addresses)
	if err != nil {
		return nil, err
	}
	return &goEngine{executor: executor}, nil
}

// newExecutor makes an executor of s over a table.
func newExecutor(s *Sim, table *flowtable.Table, rules pipes, addresses map[bpf.XDPNatDevice]bpf.XDPNatAddress) (*flowtable.Executor, error) {
	cfg := flowtable.Config{
		VLANZones: make(map[uint32]uint8), Ethertypes: s.cfg.Ethertypes, MACs: identities(s.policy), Nexthops: s.hops,
		Table: table, Fragments: int(s.sizes.FragmentGroups), Epoch: s.epoch, Classifier: rules.acl, Rules: len(s.policy.Rules) - 1,
		Stages: s.policy.Stages(s.cfg.ForceStages), NAT: rules.nat, NATAddresses: addresses,
	}
	for _, at := range s.byID {
		cfg.Ports = append(cfg.Ports, at.entry)
		for vlan, zone := range at.vlans {
			cfg.VLANZones[flowtable.VLANKey(at.entry.Id, vlan)] = zone
		}
	}
	return flowtable.NewExecutor(cfg)
}

func (e *goEngine) routed(now uint64, ifindex uint32, frame []byte, local bool) (netip.Addr, bool) {
	return e.executor.Routed(now, ifindex, frame, local)
}

func (e *goEngine) process(now uint64, ifindex uint32, frame []byte, route flowtable.Route) (outcome, error) {
	r := e.executor.Process(now, ifindex, frame, route, e.answer[:])
	if r.Verdict == flowtable.Pass && r.Frame == nil {
		r.Frame = frame
	}
	return outcome{
		verdict: verdicts[r.Verdict], reason: r.Reason, rule: r.Rule, action: r.Action,
		pass: r.Pass, nexthop: r.Nexthop, stages: r.Stages, xlat: r.Xlat, frame: r.Frame,
	}, nil
}

var verdicts = [...]Verdict{flowtable.Drop: Drop, flowtable.Pass: Pass, flowtable.Forward: Forward, flowtable.Answer: Answer}

func (e *goEngine) publish(epoch uint32, policy *firewall.Compiled, rules pipes, stages flowtable.Stages) error {
	e.executor.SetStages(stages)
	e.executor.SetNAT(rules.nat)
	e.executor.Publish(epoch, rules.acl, len(policy.Rules)-1)
	return nil
}

func (e *goEngine) table() *flowtable.Table { return e.executor.Table() }

func (e *goEngine) age(now uint32, timeouts *flowtable.Timeouts) error {
	e.table().Scan(now, timeouts, func() {}, e.executor.Counters.Credit)
	return nil
}

func (e *goEngine) close() error { return nil }

// identities returns the numbers of the MACs that a policy names.
func identities(policy *firewall.Compiled) map[[6]byte]uint16 {
	out := make(map[[6]byte]uint16, len(policy.MACs))
	for mac, identity := range policy.MACs {
		out[mac] = identity
	}
	return out
}
