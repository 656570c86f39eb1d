package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// PipelineWalk is the way of one packet through the pipeline.
type PipelineWalk struct {
	Time    time.Time          `json:"time"`
	Port    string             `json:"port"`   // that it came by, "" for none
	Length  uint32             `json:"length"` // bytes of the frame
	Head    string             `json:"head"`   // of the frame as it came, at most 128 bytes, in hexadecimal
	Steps   []PipelineWalkStep `json:"steps"`
	Forward string             `json:"forward"` // where it went in the end
}

// PipelineWalkStep is one pipe on the way.
type PipelineWalkStep struct {
	Pipe  string `json:"pipe"`
	Entry string `json:"entry"` // "" if none matched
	// Policy says that it is one of the gateway's own pipes. Of these alone there is what follows.
	Policy  bool     `json:"policy,omitempty"`
	Audited []string `json:"audited,omitempty"` // entries that matched before and decided nothing
	Does    string   `json:"does,omitempty"`    // what the entry writes
	Forward string   `json:"forward,omitempty"`
	File    string   `json:"file,omitempty"` // where the entry is written
	Line    int      `json:"line,omitempty"`
}

// tracePause is how often a reader looks whether nobody listens any more.
const tracePause = 200 * time.Millisecond

// trace tells of packets until ctx is done: by a form of the pipeline's program that does so, and of what the policy does by a
// capture of what arrives there. Without a pipeline, or beside another capture, it is the one or the other alone.
func (d *pipelineDesk) trace(ctx context.Context, tell func(*PipelineWalk) error) error {
	for began := time.Now(); !d.tracing.TryLock(); time.Sleep(tracePause / 4) { // a trace that was ended takes its time
		if ctx.Err() != nil || time.Since(began) > 10*tracePause {
			return errors.New("somebody traces packets already")
		}
	}
	defer d.tracing.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.reporter.captures.closing, cancel)()
	front := d.present()
	own, err := d.reporter.captures.follow(ctx, cancel)
	if err != nil && !front {
		return err
	}
	heard := make(chan heardWalk)
	var readers sync.WaitGroup
	var failed [2]error
	read := func(n int, from func(context.Context, func(*PipelineWalk) bool) error) {
		readers.Go(func() {
			defer cancel()
			failed[n] = from(ctx, func(w *PipelineWalk) bool {
				select {
				case heard <- heardWalk{w, n == 1}:
					return true
				case <-ctx.Done():
					return false
				}
			})
		})
	}
	if front {
		read(0, d.front)
	}
	if own != nil {
		read(1, own.run)
	}
	j := &walkJoiner{tell: tell, both: front && own != nil}
	tick := time.NewTicker(walkPatience / 4)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case h := <-heard:
			done = j.take(h, time.Now()) != nil // whoever asked is gone
		case now := <-tick.C:
			done = j.flush(now.Add(-walkPatience)) != nil
		case <-ctx.Done():
			done = true
		}
	}
	cancel()
	readers.Wait()
	return errors.Join(failed[:]...)
}

// present says whether a pipeline is in front of the policy.
func (d *pipelineDesk) present() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.applied != nil
}

// front tells of packets in the pipeline in front of the policy, until ctx is done or tell answers false.
func (d *pipelineDesk) front(ctx context.Context, tell func(*PipelineWalk) bool) (err error) {
	if err := d.reform(true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.reform(false)) }()
	ports := make(map[uint32]string)
	for _, p := range d.plane.Ports() {
		ports[uint32(p.ID)] = p.Name
	}
	for again := true; again && ctx.Err() == nil; {
		if again, err = d.traceProgram(ctx, ports, tell); err != nil {
			return err
		}
	}
	return nil
}

// traceProgram tells of packets of the program in force, until another one is (again), ctx is done or nobody listens.
func (d *pipelineDesk) traceProgram(ctx context.Context, ports map[uint32]string, tell func(*PipelineWalk) bool) (again bool, err error) {
	puts := d.puts.Load()
	ring, err := d.plane.PipelineTraces()
	if err != nil {
		return false, err
	}
	defer ring.Close()
	r, err := ringbuf.NewReader(ring)
	if err != nil {
		return false, fmt.Errorf("read packets of the pipeline: %w", err)
	}
	defer r.Close()
	for ctx.Err() == nil {
		if d.puts.Load() != puts {
			return true, nil
		}
		r.SetDeadline(time.Now().Add(tracePause))
		record, err := r.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("read packets of the pipeline: %w", err)
		}
		if len(record.RawSample) < int(unsafe.Sizeof(bpf.PipesPipeTrace{})) {
			return false, errors.New("read packets of the pipeline: a record is too short: the program object does not fit this binary")
		}
		t := (*bpf.PipesPipeTrace)(unsafe.Pointer(unsafe.SliceData(record.RawSample)))
		var walk *PipelineWalk
		if err := d.plane.Pipeline(func(prog *pipe.Program) error {
			if prog == nil {
				return errors.New("the pipeline is no longer in force")
			}
			walk = walkOf(prog, t, ports)
			return nil
		}); err != nil {
			return false, err
		}
		if !tell(walk) {
			return false, nil
		}
	}
	return false, nil
}

// reform puts the pipeline in force again, in the form that tells of packets or in the other.
func (d *pipelineDesk) reform(trace bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		d.traced = false
		if trace {
			return errors.New("no pipeline is in force")
		}
		return nil
	}
	return d.put(d.applied.parsed, trace)
}

func walkOf(prog *pipe.Program, t *bpf.PipesPipeTrace, ports map[uint32]string) *PipelineWalk {
	w := &PipelineWalk{
		Time: time.Now(), Port: ports[t.Port], Length: t.Length, Head: hex.EncodeToString(t.Head[:min(int(t.Length), len(t.Head))]),
		Steps: []PipelineWalkStep{}, Forward: prog.ForwardName(t.Forward),
	}
	for _, s := range t.Step[:min(int(t.Steps), len(t.Step))] {
		w.Steps = append(w.Steps, PipelineWalkStep{Pipe: prog.PipeName(s.Pipe), Entry: prog.EntryName(int(s.Pipe), s.Place)})
	}
	return w
}
