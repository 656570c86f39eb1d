package gateway

import "time"

// eveSet is the set that an event is about.
type eveSet struct {
	Name      string     `json:"name"`
	Entries   int        `json:"entries"` // that it holds now
	Added     int        `json:"added"`
	Removed   int        `json:"removed"`
	Prolonged int        `json:"prolonged"`
	Expired   int        `json:"expired"` // whose time was over
	Until     *time.Time `json:"until,omitempty"`
	Comment   string     `json:"comment,omitempty"`
}

// setChange writes that a set holds other entries from now on, and who did that.
func (e *eventLog) setChange(r *Ruleset, epoch uint32, by string, set *eveSet) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: evePolicyType,
		Policy: r.evePolicy(epoch), Set: set,
		Softdpu: eveRule{Event: "set-changed", By: by},
	})
}
