package main

import "github.com/softdpu/softdpu/firewall"

// employ fills in which tier the flow of an allowed packet begins in, and why if that is a worker. Flows of
// the gateway itself need none.
func (x *explanation) employ(o *offline, rule *firewall.RuleInfo) {
	x.Tier = "xdp"
	if x.From.Zone == firewall.NameHost || x.To.Zone == firewall.NameHost {
		return
	}
	var why []string
	if o.config != nil && o.config.ForceStage != "" {
		why = append(why, "force_stage: "+o.config.ForceStage)
	}
	if rule.Mirror.Port != "" {
		why = append(why, "mirrored to "+rule.Mirror.Text())
	}
	if len(why) == 0 {
		return
	}
	x.Tier, x.Why = "worker", why
	x.OnFailure = firewall.OnFailureDrop
	if rule.Bypass {
		x.OnFailure = firewall.OnFailureBypass
	}
}
