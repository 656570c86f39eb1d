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

// An offload is a set of features, by the kernel's names, that have to be off at an end of a port's
// link, and what that end does to frames while one of them is on.
type offload struct {
	features []string
	does     string
}

var (
	tagsStripped = offload{[]string{"rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"}, "hides VLAN tags"}
	tagsLeftOut  = offload{[]string{"tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"}, "hides VLAN tags"}

	// What the sender's stack leaves for a device to do stays undone: generic XDP sees frames of many
	// segments, and completes a checksum in vain, since the kernel goes on believing that it is open.
	// Without these features the sender's kernel does both, whatever generic-segmentation-offload and
	// the tunnels' features say: a frame of a tunnel needs one of these for its inside, too.
	leftToDo = offload{
		[]string{"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation", "tx-sctp-segmentation", "tx-checksum-ip-generic"},
		"leaves segmentation and checksums to XDP, which cannot do them in generic mode",
	}
	merges = offload{
		[]string{"rx-gro", "rx-lro", "rx-gro-hw"},
		"merges frames into ones larger than the MTU, which XDP in generic mode cannot forward",
	}
)

// An end is a device whose offloads shape what a port receives.
type end struct {
	ns     *namespace
	nsid   *int // of ns, as ours knows it; nil = ours
	device string
	name   string // with its place: "device eth0", "the other end of device wan, s0,"
	there  string // " there" where the remedy is for another namespace
}

// checkTags refuses a port with VLAN zones whose tags XDP would not see: it would take a tagged frame
// for an untagged one. Physical devices strip tags on receipt; on veth the sending end leaves them
// beside the frame, so its peer decides.
func (p *Plane) checkTags(port *Port) error {
	if len(port.VLANs) == 0 {
		return nil
	}
	if port.Kind != "veth" {
		if err := p.requireOff(port, end{ns: p.ns, device: port.Device, name: "device " + port.Device}, tagsStripped); err != nil {
			return err
		}
		return p.checkVLANFilter(port)
	}
	peer, err := p.vethPeer(int(port.Index), port.Device)
	if err != nil {
		port.note("whether VLAN tags are hidden could not be looked up: %v; at the other end `ethtool -K DEVICE txvlan off` shows them", err)
		return nil
	}
	return p.requireOff(port, peer, tagsLeftOut)
}

// checkGeneric refuses a port that is about to run in generic mode and would be handed frames of many
// segments, up to 64 KiB, or with open checksums. In native mode the driver keeps the former away, as
// veth does by turning off its peer's segmentation, and the program can complete the latter.
//
// On the device itself nothing is merged. The kernel does no GRO on one with generic XDP, whatever
// rx-gro says, and turns LRO and hardware GRO off as XDP is attached. It leaves them off: Close turns
// them on again. But a bridge, bond or macvlan gets what the devices below it have merged.
func (p *Plane) checkGeneric(port *Port) error {
	l, err := p.nl.LinkByIndex(int(port.Index))
	if err != nil {
		return port.errorf("look up device %s: %w", port.Device, err)
	}
	all, err := p.nl.LinkList()
	if err != nil {
		return port.errorf("list devices: %w", err)
	}
	own := end{ns: p.ns, device: port.Device, name: "device " + port.Device}
	if err := p.keepForLater(port, own, []string{"rx-lro", "rx-gro-hw"}); err != nil {
		return err
	}
	var errs []error
	for _, l := range append([]netlink.Link{l}, below(l, all)...) {
		dev := l.Attrs().Name
		if dev != port.Device {
			lower := end{ns: p.ns, device: dev, name: fmt.Sprintf("device %s below device %s", dev, port.Device)}
			errs = append(errs, p.requireOff(port, lower, merges))
		}
		switch l.Type() {
		case "veth":
			if peer, err := p.vethPeer(l.Attrs().Index, dev); err != nil {
				port.note("whether the other end of device %s leaves segmentation and checksums to XDP could not be looked up: %v; `ethtool -K DEVICE tx off tso off tx-udp-segmentation off` there prevents it", dev, err)
			} else {
				errs = append(errs, p.requireOff(port, peer, leftToDo))
			}
		case "tuntap":
			port.note("whether frames larger than the MTU or with open checksums come in is up to the program behind device %s: XDP in generic mode cannot forward them", dev)
		}
	}
	return errors.Join(errs...)
}

// below returns the devices from which a device of our namespace gets its frames, down to the lowest.
func below(l netlink.Link, all []netlink.Link) (lower []netlink.Link) {
	a := l.Attrs()
	for _, o := range all {
		b := o.Attrs()
		member := b.MasterIndex == a.Index
		parent := a.ParentIndex == b.Index && a.NetNsID < 0 && l.Type() != "veth"
		if member || parent {
			lower = append(append(lower, o), below(o, all)...)
		}
	}
	return lower
}

// requireOff turns the features of an offload off until the end, if FixOffloads allows it, and refuses
// the port while one is on.
func (p *Plane) requireOff(port *Port, at end, o offload) error {
	var on []string
	err := at.change(func(e *ethtool.Ethtool) (err error) {
		if on, err = featuresOn(e, at.device, o.features); err != nil || len(on) == 0 || !port.FixOffloads {
			return err
		}
		was := on
		if err := p.record(at.featuresChange(port, was)); err != nil {
			return err
		}
		p.undo = append(p.undo, func() error { return at.turnOn(was) })
		if err := setFeatures(e, at.device, was, false); err != nil {
			return fmt.Errorf("turn off %s: %w", strings.Join(was, ", "), err)
		}
		port.note("turned off %s of %s until the end", strings.Join(was, ", "), strings.TrimSuffix(at.name, ","))
		on, err = featuresOn(e, at.device, o.features)
		return err
	})
	if err != nil {
		return port.errorf("%s: %w", strings.TrimSuffix(at.name, ","), err)
	}
	if len(on) == 0 {
		return nil
	}
	remedy := fmt.Sprintf(": `ethtool -K %s %s off`%s, or set fix_offloads: true", at.device, strings.Join(on, " off "), at.there)
	if port.FixOffloads {
		remedy = ", and the device does not let them be turned off"
	}
	return port.errorf("%s %s (%s on)%s", at.name, o.does, areOn(on), remedy)
}

// keepForLater lets Close turn on again what is on now and what the kernel will turn off by itself.
func (p *Plane) keepForLater(port *Port, at end, features []string) error {
	return at.change(func(e *ethtool.Ethtool) error {
		on, err := featuresOn(e, at.device, features)
		if err != nil {
			return port.errorf("%s: %w", at.name, err)
		}
		if len(on) > 0 {
			if err := p.record(at.featuresChange(port, on)); err != nil {
				return err
			}
			p.undo = append(p.undo, func() error { return at.turnOn(on) })
			port.note("the kernel turns off %s of %s until the end", strings.Join(on, ", "), at.name)
		}
		return nil
	})
}

func (at end) featuresChange(port *Port, features []string) change {
	return change{Kind: changeFeatures, Owner: port.Device, Device: at.device, NetNS: at.nsid, Features: features}
}

// change calls fn with an ethtool socket of the end's namespace.
func (at end) change(fn func(*ethtool.Ethtool) error) error {
	return at.ns.do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool socket: %w", err)
		}
		defer e.Close()
		return fn(e)
	})
}

// turnOn turns features on again. A device that has gone needs nothing.
func (at end) turnOn(features []string) error {
	err := at.change(func(e *ethtool.Ethtool) error { return setFeatures(e, at.device, features, true) })
	if err == nil || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fmt.Errorf("turn on %s of device %s: %w", strings.Join(features, ", "), at.device, err)
}

func areOn(features []string) string {
	if len(features) == 1 {
		return features[0] + " is"
	}
	return strings.Join(features, ", ") + " are"
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
		return port.errorf("device %s: %w", port.Device, err)
	}
	if len(on) == 0 || port.Inline() || len(port.vlanDevices) == len(port.VLANs) {
		return nil
	}
	port.note("promiscuous, because device %s filters VLANs and the kernel has no VLAN device for some", port.Device)
	return p.setPromiscuous(port)
}

// featuresOn returns which of the named features are on.
func featuresOn(e *ethtool.Ethtool, dev string, names []string) (on []string, err error) {
	features, err := e.Features(dev)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // a device without features hides nothing
	}
	if err != nil {
		return nil, fmt.Errorf("read features: %w", err)
	}
	for _, name := range names {
		if features[name] {
			on = append(on, name)
		}
	}
	return on, nil
}

func setFeatures(e *ethtool.Ethtool, dev string, names []string, on bool) error {
	change := make(map[string]bool, len(names))
	for _, name := range names {
		change[name] = on
	}
	return e.Change(dev, change)
}

// vethPeer finds the other end of a veth and the namespace where it is, which stays open until the
// ports are given back.
func (p *Plane) vethPeer(index int, device string) (end, error) {
	l, err := p.nl.LinkByIndex(index)
	if err != nil {
		return end{}, fmt.Errorf("look up device %s: %w", device, err)
	}
	at := end{ns: p.ns}
	if id := l.Attrs().NetNsID; id >= 0 {
		if at.ns, err = p.namespaceByID(id); err != nil {
			return end{}, err
		}
		p.files = append(p.files, at.ns.close)
		at.nsid, at.there = &id, " there"
	}
	err = at.ns.do(func() error {
		peer, err := netlink.LinkByIndex(l.Attrs().ParentIndex)
		if err == nil {
			at.device = peer.Attrs().Name
		}
		return err
	})
	if err != nil {
		return end{}, fmt.Errorf("look up the other end of %s: %w", device, err)
	}
	at.name = fmt.Sprintf("the other end of device %s, %s,", device, at.device)
	return at, nil
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
