package gateway

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/dataplane/xsk"
)

// What becomes of workers is told when it changes, and once.
func TestCrewWatch(t *testing.T) {
	var w crewWatch
	quiet := func(ids ...string) *worker.Status {
		s := &worker.Status{}
		for i, state := range ids {
			s.Workers = append(s.Workers, worker.WorkerStatus{ID: i, State: state})
		}
		return s
	}
	restarted := quiet("polling", "polling")
	restarted.Workers[1].Restarts = 2
	stalled := quiet("polling", "polling")
	stalled.Workers[1].Restarts = 2
	stalled.Stalls = []worker.Stall{{Port: "lan0", Queue: 3, Ring: "tx", Waiting: 7, Why: "the device is down"}}
	for i, step := range []struct {
		s    *worker.Status
		want []string
	}{
		{quiet("polling", "sleeping"), nil},
		{quiet("sleeping", "silent"), []string{"worker-silent 1"}},
		{quiet("sleeping", "silent"), nil},
		{quiet("restarting", "polling"), []string{"worker-silent 0", "worker-alive 1"}},
		{restarted, []string{"worker-alive 0", "worker-restarted 1"}},
		{stalled, []string{"ring-stalled lan0/3 tx: 7 in it: the device is down"}},
		{stalled, nil},
		{restarted, []string{"ring-moves lan0/3 tx"}},
	} {
		var got []string
		for _, e := range w.look(step.s) {
			text := e.what
			if e.of.ID != nil {
				text += fmt.Sprint(" ", *e.of.ID)
			} else {
				text += fmt.Sprintf(" %s/%d %s", e.of.Port, *e.of.Queue, e.of.Ring)
			}
			if e.of.Detail != "" && e.of.ID == nil {
				text += ": " + e.of.Detail
			}
			got = append(got, text)
		}
		slices.Sort(got)
		slices.Sort(step.want)
		if !slices.Equal(got, step.want) {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// Each key of `workers` is an option of theirs.
func TestWorkerOptions(t *testing.T) {
	c, err := ParseConfig("c.yaml", []byte(goodConfig))
	if err != nil {
		t.Fatal(err)
	}
	o := c.Workers.options(nil)
	if o.Count != 2 || !slices.Equal(o.CPUs, []int{2, 3}) || o.Mode != xsk.Copy || o.Ring != 1024 || o.Frames != 8192 || o.FrameSize != 2048 ||
		!o.HugePages || o.BusyPoll.Time != 20*time.Microsecond || o.Poll != worker.Always {
		t.Errorf("options %+v", o)
	}
	defaults := defaultWorkers()
	if o := defaults.options(nil); o.Count != 0 || o.CPUs != nil || o.Mode != xsk.Any || o.Ring != 2048 || o.Frames != 0 || o.FrameSize != 0 || o.Poll != worker.Adaptive || o.BusyPoll.Time != 0 {
		t.Errorf("default options %+v", o)
	}
	for mode, want := range workerModes {
		if mode != WorkerModeAuto && want.String() != string(mode) {
			t.Errorf("mode %s is %s of a socket", mode, want)
		}
	}
}
