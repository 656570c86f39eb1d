package dataplane

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	pipeline "github.com/softdpu/softdpu/flowtable/pipe"
)

// front is a pipeline in the kernel: its program stands in the slot that dispatchers jump to, and jumps to the
// generation's, which then stands in the slot behind it.
type front struct {
	program *ebpf.Program
	maps    map[string]*ebpf.Map
	mem     memory

	compiled *pipeline.Program // nil: that of a run before
	groups   []*ebpf.Map       // device maps of its groups of ports, by number; Plane.mu guards what is in them
}

func (f *front) close() {
	if f == nil {
		return
	}
	f.program.Close()
	for _, m := range f.maps {
		m.Close()
	}
	for _, m := range f.groups {
		m.Close()
	}
	f.mem.close()
}

// showFront tells those who do not publish which pipeline is in force. When it returns nobody writes devices into others.
func (p *Plane) showFront(f *front) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fronts = nil
	if f != nil {
		p.fronts = []*front{f}
	}
}

// showFronts has a pipeline that comes into force know the ports' devices as they are and as they change, as does the one
// that still is.
func (p *Plane) showFronts(next, prev *front) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fronts = []*front{next}; prev != nil {
		p.fronts = append(p.fronts, prev)
	}
	for _, port := range p.ports {
		if port.present() {
			if err := next.setDevice(uint32(port.ID), port.Index); err != nil {
				return port.errorf("make device %s one of a group: %w", port.Device, err)
			}
		}
	}
	return nil
}

// resumeFront finds the pipeline that a run before has left in force.
func (p *Plane) resumeFront() error {
	var prog *ebpf.Program
	if err := p.maps[bpf.XDPMapGenerations].Lookup(uint32(0), &prog); err != nil {
		return err
	}
	info, err := prog.Info()
	if err != nil || info.Name != frontName {
		return errors.Join(err, prog.Close())
	}
	p.front = &front{program: prog}
	return nil
}

// inFront reports whether a pipeline stands in front of the policy of the plane that is pinned in a directory.
func inFront(dir string) bool {
	after, err := ebpf.LoadPinnedMap(filepath.Join(dir, bpf.XDPMapAfterPipes), nil)
	if err != nil {
		return false
	}
	defer after.Close()
	var id uint32
	return after.Lookup(uint32(0), &id) == nil
}

// frontName is what the kernel calls the program of a pipeline: at most 15 bytes.
const frontName = bpf.PipesProgSoftdpuPipes

// loadFront loads a pipeline, beside what is in force.
func (p *Plane) loadFront(prog *pipeline.Program) (*front, error) {
	spec, err := bpf.LoadPipes()
	if err != nil {
		return nil, fmt.Errorf("read the program of pipelines: %w", err)
	}
	if err := p.setPipelineConstants(spec, prog); err != nil {
		return nil, err
	}
	if err := prog.Replace(spec.Programs[bpf.PipesProgSoftdpuPipes]); err != nil {
		return nil, err
	}
	tables, err := newPipeTables(frontPipes(prog), spec.Maps)
	if err != nil {
		return nil, err
	}
	defer tables.close() // the program holds them
	shared := make(map[string]*ebpf.Map)
	for name := range spec.Maps {
		if m := p.maps[name]; m != nil {
			shared[name], spec.Maps[name].MaxEntries = m, m.MaxEntries()
		}
	}
	for name, m := range tables.maps {
		shared[name], spec.Maps[name].MaxEntries = m, m.MaxEntries()
	}
	prog.Size(spec)
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	f := &front{compiled: prog, program: coll.DetachProgram(bpf.PipesProgSoftdpuPipes), maps: make(map[string]*ebpf.Map)}
	for _, name := range []string{
		bpf.PipesMapPipeEntries, bpf.PipesMapPipeBuckets, bpf.PipesMapPipeMeters, bpf.PipesMapPipeTries, bpf.PipesMapPipeRoots,
		bpf.PipesMapPipeNodes4, bpf.PipesMapPipeNodes6, bpf.PipesMapPipeGroups, bpf.PipesMapPipeTraces,
	} {
		f.maps[name] = coll.DetachMap(name)
	}
	if err := errors.Join(f.fill(prog), f.makeGroups()); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// fill has the kernel's memory hold what the program's does, and the program use that.
func (f *front) fill(prog *pipeline.Program) error {
	var m pipeline.Memory
	arena := &pipeline.Arena{}
	var errs [7]error
	m.Entries, errs[0] = view[bpf.PipesPipeEntry](&f.mem, f.maps[bpf.PipesMapPipeEntries])
	m.Buckets, errs[1] = view[bpf.PipesPipeBucket](&f.mem, f.maps[bpf.PipesMapPipeBuckets])
	m.Meters, errs[2] = view[bpf.PipesPipeMeter](&f.mem, f.maps[bpf.PipesMapPipeMeters])
	m.Tries, errs[3] = view[uint64](&f.mem, f.maps[bpf.PipesMapPipeTries])
	arena.Roots, errs[4] = view[uint64](&f.mem, f.maps[bpf.PipesMapPipeRoots])
	arena.Nodes4, errs[5] = view[bpf.PipesPipeNode4](&f.mem, f.maps[bpf.PipesMapPipeNodes4])
	arena.Nodes6, errs[6] = view[bpf.PipesPipeNode6](&f.mem, f.maps[bpf.PipesMapPipeNodes6])
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	// Maps have one element at least.
	of := prog.Memory.Arena
	arena.Roots, arena.Nodes4, arena.Nodes6 = arena.Roots[:len(of.Roots)], arena.Nodes4[:len(of.Nodes4)], arena.Nodes6[:len(of.Nodes6)]
	m.Arena = arena
	return prog.MoveTo(&m, waitGrace)
}

// makeGroups makes the device maps of the groups of ports that packets are copied to, without devices.
func (f *front) makeGroups() error {
	for n := range f.compiled.Groups {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "pipe_group", Type: ebpf.DevMap, KeySize: 4, ValueSize: 4, MaxEntries: portMax + 1})
		if err != nil {
			return fmt.Errorf("make a group of ports: %w", err)
		}
		f.groups = append(f.groups, m)
		if err := f.maps[bpf.PipesMapPipeGroups].Put(uint32(n), m); err != nil {
			return fmt.Errorf("make a group of ports: %w", err)
		}
	}
	return nil
}

// setDevice has the groups that a port is in send to a device of the calling thread's namespace; 0: to none.
func (f *front) setDevice(id, index uint32) error {
	var errs []error
	for n, m := range f.groups {
		switch {
		case !slices.Contains(f.compiled.Groups[n], id):
		case index == 0:
			errs = append(errs, deleted(m.Delete(id)))
		default:
			errs = append(errs, m.Put(id, index))
		}
	}
	return errors.Join(errs...)
}

// setDevice has XDP redirect to a port's device. p.mu is held.
func (p *Plane) setDevice(id, index uint32) error {
	err := p.maps[bpf.XDPMapDevices].Put(id, index)
	for _, f := range p.fronts {
		err = errors.Join(err, f.setDevice(id, index))
	}
	return err
}

// dropDevice has XDP send nothing by a port any more. p.mu is held.
func (p *Plane) dropDevice(id uint32) error {
	err := deleted(p.maps[bpf.XDPMapDevices].Delete(id))
	for _, f := range p.fronts {
		err = errors.Join(err, f.setDevice(id, 0))
	}
	return err
}

// setPipelineConstants writes what the program of a pipeline is told of the plane, and of the pipeline.
func (p *Plane) setPipelineConstants(spec *ebpf.CollectionSpec, prog *pipeline.Program) error {
	constants := prog.Constants()
	constants[bpf.PipesVarHashSeed] = p.seed
	constants[bpf.PipesVarGroup4Mask] = p.sizes.Groups - 1
	constants[bpf.PipesVarGroup6Mask] = p.sizes.Groups - 1
	constants[bpf.PipesVarStripeBits] = p.sizes.StripeBits
	for name, value := range constants {
		v := spec.Variables[name]
		if v == nil {
			return fmt.Errorf("set constant %s: the program object has none: it does not fit this binary", name)
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	return nil
}

// frontPipes are the classifiers of a pipeline, in the order in which their memory lies.
func frontPipes(prog *pipeline.Program) (all []pipe) {
	for _, acl := range prog.Classifiers() {
		all = append(all, pipe{acl: acl})
	}
	return all
}
