package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
		program *ebpf.Program
		attach  ebpf.AttachType
	}{
		{p.guardDispatch, ebpf.AttachTCXEgress},
		{p.mark, ebpf.AttachTCXIngress},
	} {
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: int(port.Index), Program: hook.program, Attach: hook.attach, Anchor: link.Head(),
		})
		if err != nil {
			return err
		}
		port.guards = append(port.guards, l)
		p.undo = append(p.undo, l.Close)
	}
	return nil
}

func (p *Plane) addFilters(port *Port) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: int(port.Index), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	err := p.nl.QdiscAdd(qdisc)
	switch {
	case err == nil:
		p.undo = append(p.undo, func() error {
			return ignoreMissing(p.nl.QdiscDel(qdisc))
		})
	case !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("add qdisc clsact: %w", err)
	}
	for _, hook := range []struct {
		program *ebpf.Program
		parent  uint32
		name    string
	}{
		{p.guardDispatch, netlink.HANDLE_MIN_EGRESS, "softdpu-guard"},
		{p.mark, netlink.HANDLE_MIN_INGRESS, "softdpu-mark"},
	} {
		filter := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: int(port.Index), Parent: hook.parent,
				Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
			},
			Fd: hook.program.FD(), Name: hook.name, DirectAction: true,
		}
		// Replace: filters of a run that was killed stay on the device.
		if err := p.nl.FilterReplace(filter); err != nil {
			return fmt.Errorf("add filter %s: %w: priority %d must be free or of kind bpf, and the qdisc clsact, not ingress (`tc qdisc show dev %s`)", hook.name, err, filterPriority, port.Device)
		}
		p.undo = append(p.undo, func() error { return ignoreMissing(p.nl.FilterDel(filter)) })
	}
	return nil
}

// ignoreMissing drops the errors of taking away what went with its device.
func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
