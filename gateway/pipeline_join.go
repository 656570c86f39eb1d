package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// walkPatience is how long one half of a walk waits for the other: the two come by rings that are read apart.
const walkPatience = 400 * time.Millisecond

// walksWaiting is how many halves wait at most.
const walksWaiting = 1024

// heardWalk is a walk, or half of one.
type heardWalk struct {
	walk *PipelineWalk
	own  bool // through the policy's own pipes
}

// A walkJoiner puts together what a packet did in front of the policy and what became of it there. The two are one packet if it
// came by the same port with the same head; what the pipeline has changed in it cannot be found again, and stays in two walks.
type walkJoiner struct {
	tell func(*PipelineWalk) error
	both bool // there are halves

	waiting []waitingWalk
}

type waitingWalk struct {
	heardWalk
	since time.Time
}

// take puts a walk to its other half and tells of it, or has it wait.
func (j *walkJoiner) take(h heardWalk, now time.Time) error {
	if !j.both || !h.own && h.walk.Forward != string(pipe.ToPolicy) {
		return j.tell(h.walk)
	}
	i := slices.IndexFunc(j.waiting, func(w waitingWalk) bool {
		return w.own != h.own && w.walk.Port == h.walk.Port && w.walk.Length == h.walk.Length && w.walk.Head == h.walk.Head
	})
	if i < 0 {
		if j.waiting = append(j.waiting, waitingWalk{h, now}); len(j.waiting) > walksWaiting {
			return j.flush(now)
		}
		return nil
	}
	front, own := h.walk, j.waiting[i].walk
	if h.own {
		front, own = own, front
	}
	j.waiting = slices.Delete(j.waiting, i, i+1)
	front.Steps, front.Forward = append(front.Steps, own.Steps...), own.Forward
	return j.tell(front)
}

// flush tells of halves that wait since before then.
func (j *walkJoiner) flush(before time.Time) error {
	n := 0
	for n < len(j.waiting) && j.waiting[n].since.Before(before) {
		n++
	}
	for _, w := range j.waiting[:n] {
		if err := j.tell(w.walk); err != nil {
			return err
		}
	}
	j.waiting = slices.Delete(j.waiting, 0, n)
	return nil
}

// ownTrace is a capture of what arrives at the policy.
type ownTrace struct {
	captures *captures
	capture  *dataplane.Capture
}

// follow begins a capture whose packets are told of as walks; it ends with run. End is what ends it from outside.
func (c *captures) follow(ctx context.Context, end context.CancelFunc) (*ownTrace, error) {
	_, busy := c.enter(ctx, &CaptureRequest{Points: CapturePoints[:1], Filter: "pipeline trace"}, end)
	if busy != nil {
		return nil, fmt.Errorf("process %d captures packets, and a trace of the policy is a capture too", busy.PID)
	}
	capture, err := c.reporter.plane.Capture(dataplane.CaptureOptions{Points: dataplane.Points{In: true}})
	if err != nil {
		c.leave()
		return nil, err
	}
	return &ownTrace{c, capture}, nil
}

// run tells of packets until ctx is done or tell answers false.
func (t *ownTrace) run(ctx context.Context, tell func(*PipelineWalk) bool) (err error) {
	defer t.captures.leave()
	defer func() { err = errors.Join(err, t.capture.Stop(), t.capture.Close()) }()
	r := t.captures.reporter
	f := newPolicyFollower(r)
	looked := time.Now()
	enough := errors.New("enough")
	for ctx.Err() == nil && err == nil {
		if time.Since(looked) > captureTell {
			f.look(r.plane)
			looked = time.Now()
		}
		err = t.capture.Read(func(head *bpf.XDPTapped, frame []byte) error {
			if w := f.walk(head, frame); w != nil && !tell(w) {
				return enough
			}
			return nil
		})
	}
	if errors.Is(err, enough) {
		err = nil
	}
	return err
}
