package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

const (
	// Our place among a device's clsact filters: before all others.
	filterPriority = 1
	filterHandle   = 0x5d90
)

// attachGuard puts the guard before everything that leaves the port and the mark before everything
// that comes in to the kernel: first in line by tcx, or as clsact filters on kernels before 6.6.
func (p *Plane) attachGuard(port *Port) error {
	if p.kernel.tcx {
		err := p.linkTCX(port)
		if err == nil {
			port.Guard = "tcx"
			return nil
		}
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return port.errorf("attach egress guard to device %s by tcx: %w", port.Device, explainPermission(err))
		}
	}
	if err := p.addFilters(port); err != nil {
		return port.errorf("attach egress guard to device %s by clsact: %w", port.Device, explainPermission(err))
	}
	port.Guard = "clsact"
	return nil
}

func (p *Plane) linkTCX(port *Port) error {
	for _, hook := range []struct {
		kind    string
		program *ebpf.Program
		attach  ebpf.AttachType
	}{
		{"guard", p.guardDispatch, ebpf.AttachTCXEgress},
		{"mark", p.mark, ebpf.AttachTCXIngress},
	} {
		name := linkName(hook.kind, port.Index)
		if held, err := p.replace(name, hook.program); err != nil {
			return err
		} else if held != nil {
			port.guards = append(port.guards, held)
			continue
		}
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: int(port.Index), Program: hook.program, Attach: hook.attach, Anchor: link.Head(),
		})
		if err != nil {
			return err
		}
		if err := p.hold(name, l); err != nil {
			return err
		}
		port.guards = append(port.guards, l)
	}
	return nil
}

// clsact is the qdisc that filters hang on.
func clsact(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// guardFilters are our two filters on a device; without programs they are only good to be deleted.
func guardFilters(index int, guard, mark *ebpf.Program) []*netlink.BpfFilter {
	filter := func(name string, parent uint32, prog *ebpf.Program) *netlink.BpfFilter {
		f := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: index, Parent: parent,
				Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
			},
			Name: name, DirectAction: true,
		}
		if prog != nil {
			f.Fd = prog.FD()
		}
		return f
	}
	return []*netlink.BpfFilter{
		filter("softdpu-guard", netlink.HANDLE_MIN_EGRESS, guard),
		filter("softdpu-mark", netlink.HANDLE_MIN_INGRESS, mark),
	}
}

func (p *Plane) addFilters(port *Port) error {
	index := int(port.Index)
	qdisc := clsact(index)
	err := p.nl.QdiscAdd(qdisc)
	switch {
	case err == nil:
		p.undo = append(p.undo, func() error { return ignoreMissing(p.nl.QdiscDel(qdisc)) })
		err = p.record(change{Kind: changeQdisc, Owner: port.Device, Index: index})
	case errors.Is(err, unix.EEXIST):
		err = nil
	}
	if err != nil {
		return fmt.Errorf("add qdisc clsact: %w", err)
	}
	// What an earlier run left stays until it is replaced, and comes back if this start fails.
	var before []*netlink.BpfFilter
	if p.life != nil && p.life.inherited && !p.life.taken {
		if before, err = p.filtersBefore(index); err != nil {
			return err
		}
	}
	if err := p.record(change{Kind: changeFilters, Owner: port.Device, Index: index}); err != nil {
		return err
	}
	for i, filter := range guardFilters(index, p.guardDispatch, p.mark) {
		// Replace: filters of a run that was killed stay on the device.
		if err := p.nl.FilterReplace(filter); err != nil {
			return fmt.Errorf("add filter %s: %w: priority %d must be free or of kind bpf, and the qdisc clsact, not ingress (`tc qdisc show dev %s`)", filter.Name, err, filterPriority, port.Device)
		}
		switch {
		case before != nil:
			p.undo = append(p.undo, func() error { return ignoreMissing(p.nl.FilterReplace(before[i])) })
		case p.life == nil || !p.life.taken || port.lost || port.fresh:
			p.undo = append(p.undo, func() error { return ignoreMissing(p.nl.FilterDel(filter)) })
		}
	}
	return nil
}

// filtersBefore returns the filters of the run before, as far as its programs are still pinned, if the
// device was one of its ports.
func (p *Plane) filtersBefore(index int) ([]*netlink.BpfFilter, error) {
	if !slices.ContainsFunc(p.life.state.Changes, func(c change) bool { return c.Kind == changeFilters && c.Index == index }) {
		return nil, nil
	}
	var programs [2]*ebpf.Program
	for i, name := range []string{bpf.XDPProgGuardDispatch, bpf.XDPProgMark} {
		prog, err := ebpf.LoadPinnedProgram(filepath.Join(p.life.pins.plane(p.life.state.Plane), name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("open the program before: %w", err)
		}
		p.files = append(p.files, prog.Close)
		programs[i] = prog
	}
	return guardFilters(index, programs[0], programs[1]), nil
}

// ignoreMissing drops the errors of taking away what went with its device.
func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
