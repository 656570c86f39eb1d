package dataplane

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Features, as the kernel names them, under which a tag does not stand in the frame.
var (
	receiverHides = []string{"rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"}
	senderHides   = []string{"tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"}
)

// checkOffloads refuses a port with VLAN zones whose tags XDP would not see: it would take a tagged
// frame for an untagged one. Physical devices strip tags on receipt; on veth the sending end leaves
// them beside the frame, so its peer decides.
func (p *Plane) checkOffloads(port *Port) error {
	if len(port.VLANs) == 0 {
		return nil
	}
	if port.Kind != "veth" {
		hidden, err := p.showTags(port, p.ns, port.Device, receiverHides)
		if err != nil {
			return err
		}
		if len(hidden) > 0 {
			return port.errorf("device %s hides VLAN tags (%s is on): `ethtool -K %s rxvlan off`, or set fix_offloads: true", port.Device, strings.Join(hidden, ", "), port.Device)
		}
		return p.checkVLANFilter(port)
	}
	ns, name, err := p.vethPeer(port)
	if err != nil {
		port.note("whether VLAN tags are hidden could not be looked up: %v; at the other end `ethtool -K DEVICE txvlan off` shows them", err)
		return nil
	}
	if ns != p.ns {
		p.undo = append(p.undo, ns.close)
	}
	var hidden []string
	err = ns.do(func() (err error) {
		hidden, err = p.showTags(port, ns, name, senderHides)
		return err
	})
	if err != nil {
		return err
	}
	if len(hidden) > 0 {
		return port.errorf("the other end of device %s, %s, hides VLAN tags (%s is on): `ethtool -K %s txvlan off` there, or set fix_offloads: true", port.Device, name, strings.Join(hidden, ", "), name)
	}
	return nil
}

// showTags returns which of the features are on. With FixOffloads it turns them off first.
func (p *Plane) showTags(port *Port, ns *namespace, dev string, features []string) (on []string, err error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, port.errorf("open ethtool socket: %w", err)
	}
	defer e.Close()
	if on, err = featuresOn(e, dev, features); err != nil || len(on) == 0 || !port.FixOffloads {
		if err != nil {
			err = port.errorf("read the features of device %s: %w", dev, err)
		}
		return on, err
	}
	was := on
	if err := setFeatures(e, dev, was, false); err != nil {
		return nil, port.errorf("turn off %s of device %s: %w", strings.Join(was, ", "), dev, err)
	}
	p.undo = append(p.undo, func() error {
		return ns.do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return fmt.Errorf("open ethtool socket: %w", err)
			}
			defer e.Close()
			err = setFeatures(e, dev, was, true)
			if err == nil || errors.Is(err, unix.ENODEV) {
				return nil
			}
			return fmt.Errorf("turn on %s of device %s: %w", strings.Join(was, ", "), dev, err)
		})
	})
	port.note("turned off %s of device %s until the end", strings.Join(was, ", "), dev)
	if on, err = featuresOn(e, dev, features); err != nil {
		return nil, port.errorf("read the features of device %s: %w", dev, err)
	}
	return on, nil
}

// checkVLANFilter makes a device promiscuous that would drop VLANs of which the kernel has no device.
func (p *Plane) checkVLANFilter(port *Port) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return port.errorf("open ethtool socket: %w", err)
	}
	defer e.Close()
	on, err := featuresOn(e, port.Device, []string{"rx-vlan-filter"})
	if err != nil {
		return port.errorf("read the features of device %s: %w", port.Device, err)
	}
	if len(on) == 0 || port.Inline() || len(port.vlanDevices) == len(port.VLANs) {
		return nil
	}
	port.note("promiscuous, because device %s filters VLANs and the kernel has no VLAN device for some", port.Device)
	return p.setPromiscuous(port)
}

func featuresOn(e *ethtool.Ethtool, dev string, names []string) (on []string, err error) {
	features, err := e.Features(dev)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // a device without features hides nothing
	}
	for _, name := range names {
		if features[name] {
			on = append(on, name)
		}
	}
	return on, err
}

func setFeatures(e *ethtool.Ethtool, dev string, names []string, on bool) error {
	change := make(map[string]bool, len(names))
	for _, name := range names {
		change[name] = on
	}
	return e.Change(dev, change)
}

// vethPeer finds the other end of a veth and the namespace where it is, which the caller closes unless
// it is the plane's own.
func (p *Plane) vethPeer(port *Port) (*namespace, string, error) {
	l, err := p.nl.LinkByIndex(int(port.Index))
	if err != nil {
		return nil, "", fmt.Errorf("look up device %s: %w", port.Device, err)
	}
	ns := p.ns
	if id := l.Attrs().NetNsID; id >= 0 {
		if ns, err = p.namespaceByID(id); err != nil {
			return nil, "", err
		}
	}
	var name string
	err = ns.do(func() error {
		peer, err := netlink.LinkByIndex(l.Attrs().ParentIndex)
		if err == nil {
			name = peer.Attrs().Name
		}
		return err
	})
	if err != nil {
		if ns != p.ns {
			ns.close()
		}
		return nil, "", fmt.Errorf("look up the other end of %s: %w", port.Device, err)
	}
	return ns, name, nil
}

// namespaceByID opens the namespace that ours knows under id, found among the named ones and those of
// all processes that can be seen.
func (p *Plane) namespaceByID(id int) (*namespace, error) {
	named, _ := filepath.Glob("/run/netns/*")
	processes, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	var seen []uint64
	for _, path := range slices.Concat(named, processes) {
		ns, err := openNamespace(path)
		if err != nil {
			continue // ended meanwhile, or not ours to see
		}
		if !slices.Contains(seen, ns.id.Ino) {
			seen = append(seen, ns.id.Ino)
			if got, err := p.nl.GetNetNsIdByFd(int(ns.file.Fd())); err == nil && got == id {
				return ns, nil
			}
		}
		ns.close()
	}
	return nil, errors.New("the namespace of the other end cannot be seen from here")
}
