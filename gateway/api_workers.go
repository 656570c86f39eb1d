package gateway

import (
	"maps"
	"slices"

	"github.com/softdpu/softdpu/dataplane/worker"
)

// WorkersStatus is what GET /v1/workers answers.
type WorkersStatus struct {
	Running  bool                  `json:"running"`
	NeededBy []string              `json:"needed_by"` // what asks for them now, for people
	Mode     string                `json:"mode"`      // zero-copy, copy or generic; "" while they do not run
	Attempts []worker.Attempt      `json:"attempts"`  // the modes that were tried, in order
	Memory   worker.MemoryStatus   `json:"memory"`
	Workers  []worker.WorkerStatus `json:"workers"`
	Stalls   []worker.Stall        `json:"stalls"`
}

// WorkersSummary is what GET /v1/status says of workers.
type WorkersSummary struct {
	Running  bool             `json:"running"`
	NeededBy []string         `json:"needed_by"`
	Mode     string           `json:"mode"`
	Attempts []worker.Attempt `json:"attempts"`
	Workers  int              `json:"workers"`
	Silent   []int            `json:"silent"` // numbers of those that give no sign of life
	Stalls   []worker.Stall   `json:"stalls"`
}

// RuleMirror is where a rule has packets of its flows copied to.
type RuleMirror struct {
	Port    string `json:"port"`
	Packets uint32 `json:"packets"` // of each flow, from its first; 0: all
}

// States of a worker, as dataplane/worker names them.
const (
	workerPolling    = "polling"
	workerSleeping   = "sleeping"
	workerSilent     = "silent"
	workerRestarting = "restarting"
)

// alive reports whether a worker in this state takes packets.
func alive(state string) bool { return state == workerPolling || state == workerSleeping }

// crewStatus makes what is answered of what the plane says. Its lists are never null.
func crewStatus(s worker.Status, running bool, needed []string) *WorkersStatus {
	out := &WorkersStatus{
		Running: running, NeededBy: append([]string{}, needed...), Mode: s.Mode, Memory: s.Memory,
		Attempts: append([]worker.Attempt{}, s.Attempts...), Workers: append([]worker.WorkerStatus{}, s.Workers...),
		Stalls: append([]worker.Stall{}, s.Stalls...),
	}
	for i := range out.Workers {
		w := &out.Workers[i]
		w.Queues = append([]worker.QueueStatus{}, w.Queues...)
		drops := make(map[string]uint64, len(w.Drops))
		maps.Copy(drops, w.Drops)
		w.Drops = drops
	}
	return out
}

// summary is what stands in the status of the gateway.
func (s *WorkersStatus) summary() WorkersSummary {
	out := WorkersSummary{
		Running: s.Running, NeededBy: s.NeededBy, Mode: s.Mode, Attempts: s.Attempts, Workers: len(s.Workers), Silent: []int{}, Stalls: s.Stalls,
	}
	for i := range s.Workers {
		if !alive(s.Workers[i].State) {
			out.Silent = append(out.Silent, s.Workers[i].ID)
		}
	}
	slices.Sort(out.Silent)
	return out
}

// workers says how the workers run, and what asks for them.
func (r *reporter) workers() (*WorkersStatus, error) {
	needed := append(r.rules.Load().neededBy(), r.pipelines.neededBy()...)
	if r.crew == nil {
		return crewStatus(worker.Status{}, false, needed), nil
	}
	s, running := r.crew()
	return crewStatus(s, running, needed), nil
}

// workerDrops is how many packets workers dropped themselves, by reason: XDP does not know of them.
func (r *reporter) workerDrops() map[string]uint64 {
	dropped := make(map[string]uint64)
	if r.crew == nil {
		return dropped
	}
	s, _ := r.crew()
	for i := range s.Workers {
		for reason, n := range s.Workers[i].Drops {
			dropped[reason] += n
		}
	}
	return dropped
}
