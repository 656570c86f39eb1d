package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// workerCore is the gateway's core where a worker forwards: the worker itself, which polls the NAPI of lan
// once in each of its rounds, as busy polling does; AF_XDP sockets in copy mode do not know the NAPI of a
// veth. It is real-time while frames are sent, and else leaves its CPU to other contenders.
type workerCore struct {
	napi    atomic.Pointer[poller] // nil until it is open
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
	if p := c.napi.Load(); p != nil {
		p.once()
	}
	r := c.current
	if r == nil {
		if r = c.next.Swap(nil); r == nil {
			if c.napi.Load() != nil {
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

// close takes the NAPI from the worker, which has ended.
func (c *workerCore) close() error {
	if p := c.napi.Swap(nil); p != nil {
		return p.close()
	}
	return nil
}

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

// pollByWorker has the worker poll the NAPI of lan from now on, and nobody else.
func (l *lane) pollByWorker(c *workerCore) error {
	p, err := l.openPoller()
	if err != nil {
		return err
	}
	if err := p.setBusy(time.Microsecond); err != nil {
		return errors.Join(err, p.close())
	}
	c.napi.Store(p)
	quiet := l.wire().gw.Command(context.Background(), "sh", "-c", workerInterrupts)
	if out, err := quiet.CombinedOutput(); err != nil {
		return fmt.Errorf("defer interrupts: %w: %s", err, out)
	}
	return nil
}

// workerInterrupts keep the NAPI of lan from being scheduled where something polls it.
const workerInterrupts = "cd /sys/class/net/lan && echo 1 > napi_defer_hard_irqs && echo 500000000 > gro_flush_timeout"
