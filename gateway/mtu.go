package gateway

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An mtuSetter gives devices the MTU that the configuration asks for, and back what they had.
type mtuSetter struct {
	nl  *netlink.Handle
	old map[int]int // MTU by interface index

	record func(device string, index, mtu int) error
}

// setMTUs works in the network namespace of the calling thread; so does restore wherever it is called.
// Before each change it calls record with what the device had. It returns nil if no port asks for an MTU. After an error, what was set is put back.
func setMTUs(ports []Port, record func(device string, index, mtu int) error) (*mtuSetter, error) {
	var s *mtuSetter
	for _, p := range ports {
		if p.MTU == 0 {
			continue
		}
		if s == nil {
			nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return nil, fmt.Errorf("set MTU of port %s: open netlink socket: %w", p.Name, err)
			}
			s = &mtuSetter{nl: nl, old: make(map[int]int), record: record}
		}
		if err := s.set(p); err != nil {
			return nil, errors.Join(err, s.restore())
		}
	}
	return s, nil
}

func (s *mtuSetter) set(p Port) error {
	link, err := s.nl.LinkByName(p.Device)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil // Attach says so, together with what else is wrong
	}
	if err != nil {
		return fmt.Errorf("port %s: look up device %s: %w", p.Name, p.Device, err)
	}
	a := link.Attrs()
	if a.MTU == p.MTU {
		return nil
	}
	if err := s.record(a.Name, a.Index, a.MTU); err != nil {
		return fmt.Errorf("port %s: %w", p.Name, err)
	}
	if err := s.nl.LinkSetMTU(link, p.MTU); err != nil {
		return fmt.Errorf("port %s: set MTU of device %s to %d: %w", p.Name, p.Device, p.MTU, err)
	}
	s.old[a.Index] = a.MTU
	return nil
}

// close leaves the MTUs as they are.
func (s *mtuSetter) close() {
	if s != nil {
		s.nl.Close()
	}
}

// restore gives every device that still is there its old MTU.
func (s *mtuSetter) restore() error {
	if s == nil {
		return nil
	}
	defer s.nl.Close()
	var errs []error
	for index, mtu := range s.old {
		link, err := s.nl.LinkByIndex(index)
		if err != nil {
			continue // gone
		}
		if err := s.nl.LinkSetMTU(link, mtu); err != nil {
			errs = append(errs, fmt.Errorf("set MTU of device %s back to %d: %w", link.Attrs().Name, mtu, err))
		}
	}
	return errors.Join(errs...)
}
