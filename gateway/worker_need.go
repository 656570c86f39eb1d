package gateway

import (
	"fmt"

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
	for _, id := range r.Compiled.Order {
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

// Stages of abi.h.
const (
	stageForward = 0x01
	stageMirror  = 0x02
)

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
	rule := r.rule(f.Rule)
	mirrored := rule.Mirror.Port != "" && f.Stages&stageMirror != 0
	switch {
	case f.Stages&stageForward != 0 && r.config.ForceStage == StageForward:
		return "force_stage: forward in the configuration"
	case mirrored && rule.Mirror.Packets == 0:
		return fmt.Sprintf("rule %s mirrors it", rule.Name)
	case mirrored && f.Packets[0]+f.Packets[1] < uint64(rule.Mirror.Packets):
		return fmt.Sprintf("its first %d packets are mirrored", rule.Mirror.Packets)
	case f.ID.Overflow:
		return "it is in the overflow table"
	}
	return "packets are still under way"
}
