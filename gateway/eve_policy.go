package gateway

import (
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// evePolicy is the policy that an event is about. One that was refused has as much as could be read.
type evePolicy struct {
	Epoch   uint32            `json:"epoch"` // 0 for one that was refused
	Hash    string            `json:"hash"`  // as status has it
	Files   []string          `json:"files"`
	Rules   int               `json:"rules"` // without built-in ones
	NAT     int               `json:"nat"`   // rules of translation
	Zones   int               `json:"zones"` // with `host`
	Tests   int               `json:"tests"`
	Changes *firewall.Changes `json:"changes,omitempty"` // of the policy before
}

// policyChange writes that a policy is in force from now on, and who did that.
func (e *eventLog) policyChange(r *Ruleset, epoch uint32, q *change) {
	out := r.policyEvent("policy-loaded", epoch, q)
	out.Policy.Changes = q.changes
	if q.confirm > 0 {
		out.Softdpu.Confirm = q.confirm.String()
	}
	e.write(out)
}

// policyConfirmed writes that the policy in force stays.
func (e *eventLog) policyConfirmed(r *Ruleset, epoch uint32, q *change) {
	e.write(r.policyEvent("policy-confirmed", epoch, q))
}

func (r *Ruleset) policyEvent(event string, epoch uint32, q *change) *eveEvent {
	return &eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: evePolicyType,
		Policy:  r.evePolicy(epoch),
		Softdpu: q.event(event),
	}
}

// policyRefused writes what was not put in force, and why: the first mistake, with its place.
func (e *eventLog) policyRefused(q *change, k *candidate, err error) {
	mistakes := mistakesOf(err)
	out := eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: evePolicyType,
		Policy: &evePolicy{Hash: k.hash(), Files: []string{}}, Softdpu: q.event("policy-refused"),
	}
	if k != nil && k.policy != nil {
		p := k.policy
		out.Policy.Files, out.Policy.Rules, out.Policy.NAT = p.Files, len(p.Rules), len(p.NAT)
		out.Policy.Zones, out.Policy.Tests = len(p.Zones)+1, len(p.Tests)
	}
	m := &mistakes[0]
	out.Softdpu.File, out.Softdpu.Line, out.Softdpu.Error, out.Softdpu.Errors = m.File, m.Line, m.Message, len(mistakes)
	e.write(&out)
}

// event is what events say of a change.
func (q *change) event(name string) eveRule {
	return eveRule{
		Event: name, By: q.by, User: q.who.User, Login: q.who.Login, Comment: q.comment,
		Entry: q.entry, Restored: q.restored,
	}
}

func (r *Ruleset) evePolicy(epoch uint32) *evePolicy {
	return &evePolicy{
		Epoch: epoch, Hash: r.hash(), Files: r.Files, Rules: len(r.Compiled.Order), NAT: len(r.Compiled.NATOrder),
		Zones: len(r.zoneNames()), Tests: r.passed(),
	}
}

// gateway writes that the gateway of that version has started or stops.
func (e *eventLog) gateway(event, version string) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: eveGatewayType,
		Softdpu: eveRule{Event: event, Version: version},
	})
}
