package testenv

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// Status is a lab as it is found in the kernel.
type Status struct {
	Prefix     string            `json:"prefix"`
	Topology   string            `json:"topology"`
	Namespaces []NamespaceStatus `json:"namespaces"`
}

// NamespaceStatus is one node of a lab. A node that is missing has no devices.
type NamespaceStatus struct {
	Node    string         `json:"node"`
	Name    string         `json:"name"`
	Devices []DeviceStatus `json:"devices"`
}

// DeviceStatus is one device of a node.
type DeviceStatus struct {
	Name      string         `json:"name"`
	Peer      string         `json:"peer"` // NODE/DEVICE at the other end
	MAC       string         `json:"mac"`
	MTU       int            `json:"mtu"`       // bytes
	State     string         `json:"state"`     // operational state: up, down, lower-layer-down ...
	Addresses []netip.Prefix `json:"addresses"` // global ones
}

// List returns the labs that are up, by prefix. Namespaces that are not a lab's are left alone.
func List() ([]Status, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	entries, err := os.ReadDir(namespaceDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	labs := []Status{}
	listed := map[string]bool{}
	for _, e := range entries {
		for _, l := range labsWith(e.Name()) {
			if listed[l.Prefix] {
				continue
			}
			s, err := l.status()
			if err != nil {
				return nil, err
			}
			if s != nil {
				listed[l.Prefix] = true
				labs = append(labs, *s)
			}
		}
	}
	slices.SortFunc(labs, func(a, b Status) int { return strings.Compare(a.Prefix, b.Prefix) })
	return labs, nil
}

// labsWith returns the labs that a namespace of that name may belong to.
func labsWith(namespace string) []*Lab {
	var labs []*Lab
	for _, t := range Topologies() {
		for _, n := range t.Nodes {
			if prefix, ok := strings.CutSuffix(namespace, "-"+n.Name); ok {
				labs = append(labs, &Lab{t, prefix})
			}
		}
	}
	return labs
}

// status returns nil if the namespaces of that name are not a lab of this topology.
func (l *Lab) status() (*Status, error) {
	s := &Status{Prefix: l.Prefix, Topology: l.Topology.Name}
	ours := false
	for _, node := range l.Topology.Nodes {
		n := l.namespace(node.Name)
		ns := NamespaceStatus{Node: node.Name, Name: n.name, Devices: []DeviceStatus{}}
		err := n.Do(func() error {
			for _, d := range node.Devices {
				link, err := netlink.LinkByName(d.Name)
				var missing netlink.LinkNotFoundError
				if errors.As(err, &missing) {
					continue
				}
				if err != nil {
					return fmt.Errorf("look at %s of %s: %w", d.Name, n.name, err)
				}
				if link.Attrs().Alias != aliasPrefix+l.Topology.Name {
					continue
				}
				ours = true
				ds, err := deviceStatus(link)
				if err != nil {
					return fmt.Errorf("look at %s of %s: %w", d.Name, n.name, err)
				}
				if p, ok := l.Topology.Peer(End{node.Name, d.Name}); ok {
					ds.Peer = p.Node + "/" + p.Device
				}
				ns.Devices = append(ns.Devices, ds)
			}
			return nil
		})
		// A name that is no namespace (EINVAL) or has just gone is a missing node.
		if mounted, statErr := n.mounted(); err != nil && statErr == nil && mounted {
			return nil, err
		}
		s.Namespaces = append(s.Namespaces, ns)
	}
	if !ours {
		return nil, nil
	}
	return s, nil
}

func deviceStatus(link netlink.Link) (DeviceStatus, error) {
	a := link.Attrs()
	s := DeviceStatus{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU, State: a.OperState.String(), Addresses: []netip.Prefix{}}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return s, fmt.Errorf("list addresses: %w", err)
	}
	for _, addr := range addrs {
		ip, ok := netip.AddrFromSlice(addr.IP)
		if ip = ip.Unmap(); !ok || ip.IsLinkLocalUnicast() {
			continue
		}
		ones, _ := addr.Mask.Size()
		s.Addresses = append(s.Addresses, netip.PrefixFrom(ip, ones))
	}
	return s, nil
}
