package gateway

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/firewall"
)

// workerModes are the modes as sockets know them.
var workerModes = map[WorkerMode]xsk.Mode{
	WorkerModeAuto: xsk.Any, WorkerModeZeroCopy: xsk.ZeroCopy, WorkerModeCopy: xsk.Copy, WorkerModeGeneric: xsk.Generic,
}

// options are what workers are started with.
func (w *Workers) options(log func(string)) dataplane.WorkerOptions {
	o := dataplane.WorkerOptions{
		Count: w.Count, CPUs: w.CPUs, Mode: workerModes[w.Mode], Ring: w.RingSize, Frames: w.Frames, FrameSize: w.FrameSize,
		HugePages: w.HugePages, BusyPoll: xsk.BusyPoll{Time: time.Duration(w.BusyPoll) * time.Microsecond}, Log: log,
	}
	if w.Poll == WorkerPollAlways {
		o.Poll = worker.Always
	}
	return o
}

// employ starts the workers if a policy needs them and they do not run yet. They then run until the gateway ends:
// flows that a later policy leaves to XDP are still theirs until they have moved up.
func (g *running) employ(r *Ruleset) error { return g.employFor(r.config, r.neededBy()) }

// employPipeline starts the workers for a pipeline.
func (g *running) employPipeline(needs []string) error {
	return g.employFor(g.rules.Load().config, needs)
}

// employFor starts the workers for what needs them, if they do not run yet.
func (g *running) employFor(c *Config, needs []string) error {
	g.employing.Lock() // policies and pipelines come by goroutines of their own
	defer g.employing.Unlock()
	if _, run := g.plane.Workers(); run || len(needs) == 0 {
		return nil
	}
	log := g.options.Log
	tell := func(text string) {
		if strings.HasSuffix(text, ": granted") { // a mode that was tried; all else is worth a look
			log.Info(text)
		} else {
			log.Warn(text)
		}
	}
	o := c.Workers.options(tell)
	o.Hook = g.options.workerHook
	if err := g.plane.StartWorkers(o); err != nil {
		return firewall.Errors{firewall.Pos{File: c.File}.Errorf("%v", err).
			WithHint("they are needed by %s; `workers` in the configuration says how they run", needs[0])}
	}
	s, _ := g.plane.Workers()
	log.Info("workers run", "workers", len(s.Workers), "mode", s.Mode, "frames", s.Memory.Frames, "frame_size", s.Memory.FrameSize, "needed_by", needs[0])
	return nil
}

// crewInterval is how often the workers are looked at. XDP needs no telling: it sees within 50 ms that one is silent.
const crewInterval = 250 * time.Millisecond

// watchCrew tells people and events what becomes of workers, until ctx is done.
func (g *running) watchCrew(ctx context.Context) {
	var w crewWatch
	timer := time.NewTicker(crewInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if s, run := g.plane.Workers(); run {
			for _, e := range w.look(&s) {
				g.tellCrew(e)
			}
		}
	}
}

// Events about workers.
const (
	eventWorkerSilent    = "worker-silent"
	eventWorkerAlive     = "worker-alive"
	eventWorkerRestarted = "worker-restarted"
	eventRingStalled     = "ring-stalled"
	eventRingMoves       = "ring-moves"
)

// eveWorker is the worker or ring that an event is about.
type eveWorker struct {
	ID     *int   `json:"id,omitempty"`
	Port   string `json:"port,omitempty"`
	Queue  *int   `json:"queue,omitempty"`
	Ring   string `json:"ring,omitempty"`
	Detail string `json:"detail,omitempty"` // for people
}

// A crewEvent is what has become of a worker or a ring.
type crewEvent struct {
	what string
	of   eveWorker
}

// tellCrew logs an event, and writes it.
func (g *running) tellCrew(e crewEvent) {
	args := []any{"event", e.what}
	if e.of.ID != nil {
		args = append(args, "worker", *e.of.ID)
	}
	if e.of.Port != "" {
		args = append(args, "port", e.of.Port, "queue", *e.of.Queue, "ring", e.of.Ring)
	}
	if e.of.Detail != "" {
		args = append(args, "detail", e.of.Detail)
	}
	if e.what == eventWorkerAlive || e.what == eventRingMoves {
		g.options.Log.Info("worker changed", args...)
	} else {
		g.options.Log.Warn("worker changed", args...)
	}
	g.events.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: eveGatewayType, Worker: &e.of, Softdpu: eveRule{Event: e.what},
	})
}

// A crewWatch knows what was told of workers.
type crewWatch struct {
	silent   map[int]bool
	restarts map[int]uint64
	stalled  map[stallKey]bool
}

type stallKey struct {
	port  string
	queue int
	ring  string
}

// look returns what has become of the workers since the last look.
func (w *crewWatch) look(s *worker.Status) (events []crewEvent) {
	silent, restarts, stalled := make(map[int]bool), make(map[int]uint64), make(map[stallKey]bool)
	for i := range s.Workers {
		at := &s.Workers[i]
		id := at.ID
		restarts[id] = at.Restarts
		if at.Restarts > w.restarts[id] {
			events = append(events, crewEvent{eventWorkerRestarted, eveWorker{ID: &id, Detail: fmt.Sprintf("%d times so far", at.Restarts)}})
		}
		if silent[id] = !alive(at.State); silent[id] != w.silent[id] {
			what, detail := eventWorkerSilent, "it is "+at.State+": packets that need it are dropped, or go on in XDP as their rules say"
			if !silent[id] {
				what, detail = eventWorkerAlive, ""
			}
			events = append(events, crewEvent{what, eveWorker{ID: &id, Detail: detail}})
		}
	}
	for i := range s.Stalls {
		at := &s.Stalls[i]
		key := stallKey{at.Port, at.Queue, at.Ring}
		stalled[key] = true
		if !w.stalled[key] {
			queue := at.Queue
			events = append(events, crewEvent{eventRingStalled, eveWorker{Port: at.Port, Queue: &queue, Ring: at.Ring, Detail: fmt.Sprintf("%d in it: %s", at.Waiting, at.Why)}})
		}
	}
	for key := range w.stalled {
		if !stalled[key] {
			queue := key.queue
			events = append(events, crewEvent{eventRingMoves, eveWorker{Port: key.port, Queue: &queue, Ring: key.ring}})
		}
	}
	w.silent, w.restarts, w.stalled = silent, restarts, stalled
	return events
}
