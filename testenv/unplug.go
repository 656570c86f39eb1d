package testenv

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Unplugged is a link that was deleted, with the device at either end.
type Unplugged struct {
	lab  *Lab
	link Link
	macs [2]net.HardwareAddr // of A and B
	o    Options
}

// Unplug deletes the device of a node, and with it the other end of its link.
func (l *Lab) Unplug(node, device string) (*Unplugged, error) {
	u := &Unplugged{lab: l}
	for _, link := range l.Topology.Links {
		if link.A == (End{node, device}) || link.B == (End{node, device}) {
			u.link = link
		}
	}
	if u.link == (Link{}) {
		return nil, fmt.Errorf("unplug %s of %s: the topology has no such device", device, node)
	}
	for i, end := range []End{u.link.A, u.link.B} {
		err := l.namespace(end.Node).Do(func() error {
			d, err := netlink.LinkByName(end.Device)
			if err == nil {
				u.macs[i], u.o.MTU = d.Attrs().HardwareAddr, d.Attrs().MTU
				u.o.Queues = d.Attrs().NumRxQueues
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("unplug %s of %s: %w", device, node, err)
		}
	}
	err := l.namespace(node).withDevice(device, netlink.LinkDel)
	if err != nil {
		return nil, fmt.Errorf("unplug %s of %s: %w", device, node, err)
	}
	return u, nil
}

// Replug makes the link again as Up did, with the MAC addresses that its ends had. Their interface indices
// are others. It returns as soon as both ends are up; routes by their nodes' gateways stand again.
func (u *Unplugged) Replug() error {
	if err := u.lab.join(u.link, u.o); err != nil {
		return fmt.Errorf("replug: %w", err)
	}
	var errs []error
	for i, end := range []End{u.link.A, u.link.B} {
		node, _ := u.lab.Topology.Node(end.Node)
		errs = append(errs, u.lab.namespace(end.Node).Do(func() error {
			d, err := netlink.LinkByName(end.Device)
			if err == nil {
				err = netlink.LinkSetHardwareAddr(d, u.macs[i])
			}
			for _, device := range node.Devices {
				if err == nil && device.Name == end.Device {
					err = u.lab.configure(device)
				}
			}
			for _, gw := range node.Default {
				if err == nil {
					err = netlink.RouteReplace(&netlink.Route{Dst: ipNet(netip.PrefixFrom(gw, 0).Masked()), Gw: gw.AsSlice()})
				}
			}
			return err
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("replug: %w", err)
	}
	return nil
}
