package dataplane

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/softdpu/softdpu/bpf"
)

// What trace.c counts into.
var traced = []string{bpf.TraceMapReasons, bpf.TraceMapWorkerQueues, bpf.TraceMapPorts, bpf.TraceMapGateway}

// watchLosses has the kernel count what it drops behind XDP's verdict, as long as this process lives. Where
// it cannot, a note says so and nothing else is missing. p.mu is held.
func (p *Plane) watchLosses() {
	if err := p.attachTrace(); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("what is lost between XDP and a port or a worker is not counted (egress-full, egress-down, worker-full): %v", err))
	}
}

func (p *Plane) attachTrace() error {
	spec, err := bpf.LoadTrace()
	if err != nil {
		return fmt.Errorf("read program object: %w", err)
	}
	shared := make(map[string]*ebpf.Map)
	for name := range spec.Maps {
		if slices.Contains(traced, name) {
			shared[name] = p.maps[name]
		} else if name != ".rodata" {
			delete(spec.Maps, name) // of maps.h
		}
	}
	sockets, err := mapID(p.maps[bpf.XDPMapSockets])
	if err != nil {
		return err
	}
	devices, err := mapID(p.maps[bpf.XDPMapDevices])
	if err != nil {
		return err
	}
	for name, value := range map[string]uint32{
		bpf.TraceVarSocketsId: sockets, bpf.TraceVarDevicesId: devices, bpf.TraceVarNetns: uint32(p.ns.id.Ino),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer coll.Close() // the links hold the programs
	for tracepoint, prog := range map[string]string{
		"xdp_redirect_err": bpf.TraceProgRedirectLost, "xdp_devmap_xmit": bpf.TraceProgBatchLost,
	} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint, Program: coll.Programs[prog]})
		if err != nil {
			return errors.Join(fmt.Errorf("attach to tracepoint %s: %w", tracepoint, err), p.unwatchLosses())
		}
		p.losses = append(p.losses, l)
	}
	return nil
}

// unwatchLosses takes the tracing off.
func (p *Plane) unwatchLosses() (err error) {
	for _, l := range p.losses {
		err = errors.Join(err, l.Close())
	}
	p.losses = nil
	return err
}

// mapID is the number by which the kernel knows a map.
func mapID(m *ebpf.Map) (uint32, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("look at map %v: %w", m, err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("map %v has no id", m)
	}
	return uint32(id), nil
}
