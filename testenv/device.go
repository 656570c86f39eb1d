package testenv

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// DeviceStats are a device's counters since it was made.
type DeviceStats struct {
	RxPackets, TxPackets uint64
	RxBytes, TxBytes     uint64
	RxDropped, TxDropped uint64
}

// MAC returns the device's hardware address.
func (n *Namespace) MAC(device string) (mac net.HardwareAddr, err error) {
	err = n.withDevice(device, func(l netlink.Link) error {
		mac = l.Attrs().HardwareAddr
		return nil
	})
	return mac, err
}

// Index returns the device's interface index, which is unique within its namespace only.
func (n *Namespace) Index(device string) (index int, err error) {
	err = n.withDevice(device, func(l netlink.Link) error {
		index = l.Attrs().Index
		return nil
	})
	return index, err
}

// SetMTU sets the device's MTU in bytes. A path of unequal MTUs needs it set at both ends of a link.
func (n *Namespace) SetMTU(device string, mtu int) error {
	return n.withDevice(device, func(l netlink.Link) error {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("set MTU of %s to %d: %w", device, mtu, err)
		}
		return nil
	})
}

// SetUp brings the device up or takes it down, as pulling its cable would.
func (n *Namespace) SetUp(device string, up bool) error {
	return n.withDevice(device, func(l netlink.Link) error {
		set := netlink.LinkSetDown
		if up {
			set = netlink.LinkSetUp
		}
		if err := set(l); err != nil {
			return fmt.Errorf("set %s up=%t: %w", device, up, err)
		}
		return nil
	})
}

// DeviceStats returns the device's counters.
func (n *Namespace) DeviceStats(device string) (s DeviceStats, err error) {
	err = n.withDevice(device, func(l netlink.Link) error {
		k := l.Attrs().Statistics
		if k == nil {
			return fmt.Errorf("read counters of %s: the kernel sent none", device)
		}
		s = DeviceStats{
			RxPackets: k.RxPackets, TxPackets: k.TxPackets,
			RxBytes: k.RxBytes, TxBytes: k.TxBytes,
			RxDropped: k.RxDropped, TxDropped: k.TxDropped,
		}
		return nil
	})
	return s, err
}

func (n *Namespace) withDevice(device string, fn func(netlink.Link) error) error {
	return n.Do(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find device %s of %s: %w", device, n.name, err)
		}
		return fn(l)
	})
}
