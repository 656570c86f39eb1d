package gateway

import (
	"slices"

	"github.com/softdpu/softdpu/firewall"
)

// Workers are the threads that take the packets that XDP cannot deal with alone.
type Workers struct {
	Written   bool // `workers` stands in the configuration: they run though nothing may need them
	Count     int  // 0: one for each receive queue of the port that has most, but no more than CPUs
	CPUs      []int
	Mode      WorkerMode
	RingSize  int // descriptors of each ring of a socket
	Frames    int // of the memory that all share; 0: as many as the rings need
	FrameSize int // bytes; 0: the smaller one that holds packets of all ports
	HugePages bool
	BusyPoll  int // microseconds for which a worker drives its devices itself; 0: interrupts do
	Poll      WorkerPoll
}

// WorkerMode says how packets come from a device to a worker.
type WorkerMode string

const (
	WorkerModeAuto     WorkerMode = "auto" // the best that all ports have
	WorkerModeZeroCopy WorkerMode = "zero-copy"
	WorkerModeCopy     WorkerMode = "copy"
	WorkerModeGeneric  WorkerMode = "generic"
)

// WorkerPoll says what a worker does that has no packets.
type WorkerPoll string

const (
	WorkerPollAdaptive WorkerPoll = "adaptive" // it sleeps after some rounds without any
	WorkerPollAlways   WorkerPoll = "always"   // it never sleeps, and uses its CPU up
)

// StageForward is the one stage that a configuration may ask for of all flows.
const StageForward = "forward"

// Bounds of `workers`.
const (
	maxWorkers    = 64
	maxWorkerCPU  = 4095
	minRing       = 64
	maxRing       = 8192
	minFrames     = 256
	maxFrames     = 1 << 20
	maxBusyPoll   = 1000 // microseconds
	smallestFrame = 2048 // bytes
	largestFrame  = 4096
)

func defaultWorkers() Workers {
	return Workers{Mode: WorkerModeAuto, RingSize: 2048, Poll: WorkerPollAdaptive}
}

func (r *configReader) workers(w *Workers, n *firewall.Node) {
	w.Written = true
	m := r.Fields(n, "workers", configKeys["workers"])
	for _, number := range []struct {
		key         string
		low, high   int
		powersOfTwo bool
		to          *int
	}{
		{"count", 1, maxWorkers, false, &w.Count},
		{"ring_size", minRing, maxRing, true, &w.RingSize},
		{"frames", minFrames, maxFrames, true, &w.Frames},
		{"frame_size", smallestFrame, largestFrame, true, &w.FrameSize},
		{"busy_poll", 0, maxBusyPoll, false, &w.BusyPoll},
	} {
		v := m[number.key]
		if v == nil {
			continue
		}
		value, ok := r.Int(v, number.key, number.low, number.high)
		if ok && number.powersOfTwo && value&(value-1) != 0 {
			below := number.low
			for below*2 < value {
				below *= 2
			}
			r.Fail(v.Pos.Errorf("%s must be a power of two, not %d", number.key, value).WithHint("write %d or %d", below, 2*below))
		}
		*number.to = value
	}
	if v := m["cpus"]; v != nil {
		r.workerCPUs(w, v)
	}
	if v := m["mode"]; v != nil {
		w.Mode = WorkerMode(r.Choice(v, "mode", "auto", "zero-copy", "copy", "generic"))
	}
	if v := m["huge_pages"]; v != nil {
		w.HugePages = r.Bool(v, "huge_pages")
	}
	if v := m["poll"]; v != nil {
		w.Poll = WorkerPoll(r.Choice(v, "poll", "adaptive", "always"))
	}
	// All frames may lie in fill rings, and what arrives then finds none.
	if w.Frames != 0 && w.Frames < 2*w.RingSize {
		at := m["frames"]
		r.Fail(at.Pos.Errorf("%d frames are too few for rings of %d", w.Frames, w.RingSize).
			WithHint("each queue fills one ring and sends from another: at least %d for one queue; leave frames out for as many as are needed", 2*w.RingSize))
	}
}

// workerCPUs reads the CPUs that workers are bound to, in the workers' order.
func (r *configReader) workerCPUs(w *Workers, n *firewall.Node) {
	items := r.List(n)
	if len(items) == 0 {
		r.Fail(n.Pos.Errorf("an empty list of CPUs leaves nothing for workers to run on").WithHint("leave cpus out to have them chosen"))
	}
	for _, item := range items {
		cpu, ok := r.Int(item, "a CPU", 0, maxWorkerCPU)
		if ok && slices.Contains(w.CPUs, cpu) {
			r.Fail(item.Pos.Errorf("CPU %d is named twice", cpu).WithHint("each worker has a CPU of its own"))
		}
		w.CPUs = append(w.CPUs, cpu)
	}
	if w.Count != 0 && len(items) != 0 && w.Count != len(items) {
		r.Fail(n.Pos.Errorf("count is %d, and cpus names %d", w.Count, len(items)).WithHint("name as many CPUs as workers, or leave count out"))
	}
}
