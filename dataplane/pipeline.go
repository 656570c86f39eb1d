package dataplane

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	pipeline "github.com/softdpu/softdpu/flowtable/pipe"
)

// ErrNoPolicy says that a pipeline has nothing to stand in front of.
var ErrNoPolicy = errors.New("no policy is in force yet")

// ApplyPipeline puts a compiled pipeline in front of the policy in force by one update of a slot, in the place of
// another one if there is one: no packet sees parts of two, none is lost. Prog.Memory is the kernel's from then on, and
// prog the plane's. Entries that the one before had under the same name, or with the same match in a pipe of the
// same name, keep their counts. Policies that are published later come behind it. On an error all stays as it is.
func (p *Plane) ApplyPipeline(prog *pipeline.Program) error {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	g := p.running.Load()
	if g == nil {
		return fmt.Errorf("apply pipeline %s: %w", prog.Pipeline.Name, ErrNoPolicy)
	}
	next, err := p.loadFront(prog)
	if err != nil {
		return fmt.Errorf("apply pipeline %s: %w", prog.Pipeline.Name, explainPermission(err))
	}
	prev := p.front
	var before *pipeline.Program
	if prev != nil {
		before = prev.compiled
	}
	prog.Begin(before, NowTick)
	p.front = next
	// What it leads to is there before it is, and its devices are as they are from here on.
	err = p.ns.do(func() error { return p.showFronts(next, prev) })
	if err == nil {
		err = p.maps[bpf.XDPMapAfterPipes].Put(uint32(0), g.inSlots().xdp)
	}
	if err == nil {
		err = p.maps[bpf.XDPMapGenerations].Put(uint32(0), next.program)
	}
	if err != nil {
		p.front = prev
		p.showFront(prev)
		next.close()
		return fmt.Errorf("apply pipeline %s: %w", prog.Pipeline.Name, err)
	}
	p.showFront(next)
	if prev != nil {
		waitGrace()
		if before != nil {
			prog.Adopt(before)
		} else if err := prev.counts(prog); err != nil {
			p.mu.Lock()
			p.notes = append(p.notes, fmt.Sprintf("pipeline %s counts from 0: %v", prog.Pipeline.Name, err))
			p.mu.Unlock()
		}
		prev.close()
		if !prog.Pipeline.ForwardsTo(pipeline.ToHost) {
			_ = p.forgetHosts() // the pipeline is in force; what stays ends by itself
		}
	}
	return nil
}

// forgetHosts has the guard let nothing out any more that answers what pipelines have given to the host.
func (p *Plane) forgetHosts() error {
	hosts := p.maps[bpf.XDPMapPipeHosts]
	var key bpf.XDPPipeHost
	for range hosts.MaxEntries() {
		if err := hosts.NextKey(nil, &key); errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("find whom pipelines had speak to the host: %w", err)
		}
		if err := deleted(hosts.Delete(&key)); err != nil {
			return fmt.Errorf("forget whom pipelines had speak to the host: %w", err)
		}
	}
	return nil
}

// RemovePipeline has packets go to the policy at once again. Without a pipeline it does nothing.
func (p *Plane) RemovePipeline() error {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	g, prev := p.running.Load(), p.front
	if prev == nil {
		return nil
	}
	if g == nil {
		return fmt.Errorf("remove the pipeline: %w", ErrNoPolicy)
	}
	if err := p.maps[bpf.XDPMapGenerations].Put(uint32(0), g.inSlots().xdp); err != nil {
		return fmt.Errorf("remove the pipeline: %w", err)
	}
	p.front = nil
	p.showFront(nil)
	waitGrace() // packets under way in it go on to the policy
	err := ignoreAbsent(p.maps[bpf.XDPMapAfterPipes].Delete(uint32(0)))
	prev.close()
	if err := errors.Join(err, p.forgetHosts()); err != nil {
		return fmt.Errorf("remove the pipeline: %w", err)
	}
	return nil
}

// Pipeline calls fn with the pipeline in force, whose memory is the kernel's; with nil if there is none, or if it is one
// of the run before. No other is put in force meanwhile.
func (p *Plane) Pipeline(fn func(*pipeline.Program) error) error {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	if p.front == nil {
		return fn(nil)
	}
	return fn(p.front.compiled)
}

// EditPipeline changes entries of a pipe of the pipeline in force, which is the one of that name, while packets pass, as
// [pipeline.Program.Edit] does. The error is [pipeline.ErrRebuild] if only another program can do it, or [ErrNoPipeline].
func (p *Plane) EditPipeline(name string, batch []pipeline.Edit, ports map[string]uint32) ([]pipeline.Edited, error) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	if p.front == nil || p.front.compiled == nil {
		return nil, ErrNoPipeline
	}
	prog := p.front.compiled
	prog.Pipeline.UsePorts(ports)
	return prog.Edit(prog.Pipeline.Number(name), batch)
}

// ErrNoPipeline says that there is nothing to be changed.
var ErrNoPipeline = errors.New("no pipeline is in force")

// PipelineTraces returns the ring of the pipeline in force to which its program tells of packets, if it was compiled to
// trace. The caller closes it.
func (p *Plane) PipelineTraces() (*ebpf.Map, error) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	if p.front == nil || p.front.compiled == nil {
		return nil, ErrNoPipeline
	}
	return p.front.maps[bpf.PipesMapPipeTraces].Clone()
}

// waitGrace returns when no packet is under way in programs, or finds entries, that were in force before.
func waitGrace() {
	if Grace() != nil {
		time.Sleep(graceByTime)
	}
}
