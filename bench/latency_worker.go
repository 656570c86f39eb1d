package bench

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// workerCore is the gateway's core where a worker forwards: the worker itself. The NAPI of lan, which a
// worker in copy mode cannot poll on veth, runs where veth has it run, on the core that sends. The worker is
// real-time while frames are sent, and else leaves its CPU to other contenders.
type workerCore struct {
	rests   atomic.Bool // between measurements; until then it polls as it would by itself
	next    atomic.Pointer[workerRound]
	current *workerRound // the worker's
}

// workerRound is one measurement, for the worker.
type workerRound struct {
	journeys *journeys
	span     time.Duration
	asked    time.Time
	end      time.Time // zero until frames are sent
	normal   func()
	done     chan error
}

// hook is called by the worker's thread at the beginning of each of its rounds. Nothing else runs on either
// CPU while frames are sent, so that it is the worker who knows when to stop.
func (c *workerCore) hook(int) {
	r := c.current
	if r == nil {
		if r = c.next.Swap(nil); r == nil {
			if c.rests.Load() {
				time.Sleep(time.Millisecond) // others are measured
			}
			return
		}
		normal, err := realtime()
		if err != nil {
			r.done <- err
			return
		}
		r.asked, r.normal, c.current = time.Now(), normal, r
	}
	var err error
	if r.end.IsZero() {
		var s bpf.LatencyPacing
		switch s, err = r.journeys.state(); {
		case err == nil && s.Begin == 0 && time.Since(r.asked) < 5*time.Second:
			return
		case err == nil && s.Begin == 0:
			err = errors.New("wait for the first frame: there is none")
		case err == nil:
			var now unix.Timespec
			if err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err == nil {
				r.end = time.Now().Add(time.Duration(int64(s.Begin)-now.Nano()) + r.span + pollAfter)
				return
			}
		}
	} else if time.Now().Before(r.end) {
		return
	}
	r.normal()
	c.current = nil
	r.done <- err
}

func (c *workerCore) poll(j *journeys, span time.Duration) error {
	r := &workerRound{journeys: j, span: span, done: make(chan error, 1)}
	c.next.Store(r)
	select {
	case err := <-r.done:
		return err
	case <-time.After(latencyLead + span + 15*time.Second):
		return errors.New("wait for the worker: it does not run")
	}
}

func (c *workerCore) close() error { return nil }

// startWorker leads all of a rig's flows through one worker on CPU 1, with force_stage: forward.
func (r *rig) startWorker() (*workerCore, error) {
	g := r.generation
	g.Epoch, g.Workers, g.ForceStages = g.Epoch+1, true, bpf.StageForward
	if err := r.plane.Publish(g); err != nil {
		return nil, err
	}
	c := &workerCore{}
	err := r.plane.StartWorkers(dataplane.WorkerOptions{Count: 1, CPUs: []int{1}, Mode: xsk.Copy, Poll: worker.Always, Hook: c.hook})
	return c, err
}
