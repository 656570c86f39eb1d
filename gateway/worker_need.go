package gateway

import (
	"fmt"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// needsMost is how many rules that need workers are named.
const needsMost = 16

// neededBy says what of configuration and policy asks for workers, for people; nothing if nothing does.
func (r *Ruleset) neededBy() (needs []string) {
	if r.config.ForceStage != "" {
		needs = append(needs, "force_stage: "+r.config.ForceStage)
	}
	if r.config.Workers.Written {
		needs = append(needs, "workers in the configuration")
	}
	more := 0
	for _, id := range r.Compiled.Special {
		rule := &r.Compiled.Rules[id]
		switch {
		case rule.Mirror.Port == "" || rule.Expired:
		case len(needs) >= needsMost:
			more++
		default:
			needs = append(needs, fmt.Sprintf("rule %s mirrors to %s", rule.Name, rule.Mirror.Text()))
		}
	}
	if more > 0 {
		needs = append(needs, fmt.Sprintf("and %d more", more))
	}
	return needs
}

// mirrorOf is what is answered of a rule's mirror.
func mirrorOf(m *firewall.Mirror) *RuleMirror {
	if m.Port == "" {
		return nil
	}
	return &RuleMirror{m.Port, m.Packets}
}

// onFailure is what is answered of a rule's on_failure.
func onFailure(r *firewall.RuleInfo) string {
	switch {
	case r.Action != firewall.Allow || r.Builtin:
		return ""
	case r.Bypass:
		return firewall.OnFailureBypass
	}
	return firewall.OnFailureDrop
}

// ForceStages are the stages of abi.h that the configuration asks of all flows.
func (c *Config) ForceStages() uint8 {
	if c.ForceStage == StageForward {
		return bpf.StageForward
	}
	return 0
}

// works is what the rules ask of workers and of SYNs, by id. A rule that asks for none itself says what becomes of its packets
// if the configuration does.
func (r *Ruleset) works() map[uint32]dataplane.RuleWork {
	works := make(map[uint32]dataplane.RuleWork)
	stages := r.Compiled.Stages(0).Rules
	for _, id := range r.Compiled.Special {
		rule := &r.Compiled.Rules[id]
		if rule.Expired || rule.Mirror.Port == "" && !rule.Bypass && rule.MSSClamp == 0 {
			continue
		}
		works[id] = dataplane.RuleWork{Stages: stages[id], Bypass: rule.Bypass, Mirror: rule.Mirror.Port, MirrorPackets: rule.Mirror.Packets, MSS: rule.MSSClamp}
	}
	return works
}

// Tiers, as flows and metrics name them.
const (
	tierXDP    = "xdp"
	tierWorker = "worker"
)

// tierOf names the tier of a flow whose legs bear these stages.
func tierOf(stages uint8) string {
	if stages != 0 {
		return tierWorker
	}
	return tierXDP
}

// whyWorker says why a flow that a worker carries is not in XDP.
func (r *Ruleset) whyWorker(f *flowtable.Flow) string {
	rule, stages := r.rule(f.Rule), f.Stages[0]|f.Stages[1]
	mirrored := rule.Mirror.Port != "" && stages&bpf.StageMirror != 0
	switch {
	case stages&bpf.StageForward != 0 && r.config.ForceStage == StageForward:
		return "force_stage: forward in the configuration"
	case mirrored && rule.Mirror.Packets == 0:
		return fmt.Sprintf("rule %s mirrors it", rule.Name)
	case mirrored && !f.Ready && f.Packets[0]+f.Packets[1] < uint64(rule.Mirror.Packets):
		return fmt.Sprintf("its first %d packets are mirrored", rule.Mirror.Packets)
	case f.ID.Overflow:
		return "it is in the overflow table"
	}
	return "it moves up with the next packet that finds none under way"
}
