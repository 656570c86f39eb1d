package dataplane

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// DeviceCounters are the kernel's own of a port's device, since the device was made.
type DeviceCounters struct {
	Port                                    string
	RxPackets, RxBytes, RxErrors, RxDropped uint64
	TxPackets, TxBytes, TxErrors, TxDropped uint64
}

// DeviceCounters returns what the kernel counted at the devices of all ports that have theirs, in the
// order of configuration. XDP itself counts nothing by port: a hit writes its flow and no second counter.
// Whether frames that XDP takes and redirects are among these is the driver's to say; those of veth,
// virtio_net and the common cards count them.
func (p *Plane) DeviceCounters() ([]DeviceCounters, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var counters []DeviceCounters
	err := p.ns.do(func() error {
		for _, port := range p.ports {
			if !port.present() {
				continue
			}
			l, err := p.nl.LinkByIndex(int(port.Index))
			if _, missing := err.(netlink.LinkNotFoundError); missing {
				continue
			}
			if err != nil {
				return port.errorf("look up device %s: %w", port.Device, err)
			}
			s := l.Attrs().Statistics
			if s == nil {
				continue
			}
			counters = append(counters, DeviceCounters{
				Port:      port.Name,
				RxPackets: s.RxPackets, RxBytes: s.RxBytes, RxErrors: s.RxErrors, RxDropped: s.RxDropped,
				TxPackets: s.TxPackets, TxBytes: s.TxBytes, TxErrors: s.TxErrors, TxDropped: s.TxDropped,
			})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read device counters: %w", err)
	}
	return counters, nil
}
