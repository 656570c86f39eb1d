package gateway

import (
	"time"
)

// How a gateway began.
const (
	startFirst      = "first"      // there was no run before, or nothing of it
	startTakeOver   = "take-over"  // with flows, counters and next hops of the run before
	startConversion = "conversion" // the same, and the flows were moved into tables of another size
	startAfresh     = "afresh"     // in place of the run before, without what it had
)

// Inheritance is what a gateway has of the run before it.
type Inheritance struct {
	How     string `json:"how"`
	Why     string `json:"why"`     // it began afresh; else ""
	Carried int    `json:"carried"` // flows that were moved into tables of another size
	Left    int    `json:"left"`    // and those that were not: TCP among them is picked up
	// PickUpUntil is the end of the upgrade grace, nil if there is none (any more).
	PickUpUntil *time.Time `json:"pick_up_until"`
}

// inherit finds out what there is of a run before, and for how long TCP is picked up. It is called before
// the first policy is published.
func (g *running) inherit() error {
	i := &Inheritance{How: startFirst}
	until := time.Time{}
	taken, why := g.plane.TakenOver()
	switch {
	case taken && g.plane.Converting():
		i.How = startConversion
	case taken:
		i.How, until = startTakeOver, g.plane.PickUp()
	case g.plane.Inherited():
		i.How, i.Why = startAfresh, why
	}
	if i.How == startConversion || i.How == startAfresh {
		until = time.Now().Add(g.config.UpgradeGrace)
	}
	if g.config.UpgradeGrace == 0 || !until.After(time.Now()) {
		until = time.Time{}
	} else {
		i.PickUpUntil = &until
	}
	g.grace = !until.IsZero()
	g.inheritance.Store(i)
	if i.How == startAfresh { // before it is done: whoever comes after this run may not find out
		g.options.Log.Warn("the run before is replaced: flows and counters start afresh", "why", i.Why)
		g.events.inheritance(i)
	}
	return g.plane.SetPickUp(until)
}

// tell says what there is of the run before, once that is done.
func (g *running) tell() {
	i := *g.inheritance.Load()
	if moved, done := g.plane.Moved(); done {
		i.Carried, i.Left = moved.Carried, moved.Left
		g.inheritance.Store(&i)
	}
	g.events.inheritLosses(g.plane.LostEvents())
	log := g.options.Log
	switch i.How {
	case startTakeOver:
		log.Info("the run before is taken over", "flows", "kept", "counters", "kept")
		g.events.inheritance(&i)
	case startConversion:
		log.Info("the run before is taken over: its flows are in tables of another size now", "carried", i.Carried, "left", i.Left, "counters", "kept")
		g.events.inheritance(&i)
	}
	if i.PickUpUntil != nil {
		log.Info("TCP connections that are under way are picked up", "upgrade_grace", time.Until(*i.PickUpUntil).Round(time.Second))
	}
}

// graceIsOver forgets the grace, which has ended.
func (g *running) graceIsOver() error {
	i := *g.inheritance.Load()
	i.PickUpUntil = nil
	g.inheritance.Store(&i)
	return g.plane.SetPickUp(time.Time{})
}

// inheritance writes what a gateway has of the run before it.
func (e *eventLog) inheritance(i *Inheritance) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: eveGatewayType,
		Softdpu: eveRule{Event: "run-before", By: i.How, Reason: i.Why},
	})
}
