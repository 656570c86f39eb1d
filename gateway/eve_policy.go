package gateway

import (
	"time"
)

// evePolicy is the policy that an event is about.
type evePolicy struct {
	Epoch uint32   `json:"epoch"`
	Hash  string   `json:"hash"` // as status has it
	Files []string `json:"files"`
	Rules int      `json:"rules"` // without built-in ones
	Zones int      `json:"zones"` // with `host`
	Tests int      `json:"tests"`
}

// policyChange writes that a policy is in force from now on, and who did that.
func (e *eventLog) policyChange(r *Ruleset, epoch uint32, by string) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: evePolicyType,
		Policy:  r.evePolicy(epoch),
		Softdpu: eveRule{Event: "policy-loaded", By: by},
	})
}

func (r *Ruleset) evePolicy(epoch uint32) *evePolicy {
	return &evePolicy{
		Epoch: epoch, Hash: r.hash(), Files: r.Files, Rules: len(r.Compiled.Order),
		Zones: len(r.zoneNames()), Tests: len(r.Compiled.Tests),
	}
}

// gateway writes that the gateway of that version has started or stops.
func (e *eventLog) gateway(event, version string) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: eveGatewayType,
		Softdpu: eveRule{Event: event, Version: version},
	})
}
