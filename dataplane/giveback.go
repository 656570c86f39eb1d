package dataplane

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// putBack restores the chosen changes, the latest first, and detaches the chosen links, in the order that
// never lets the kernel forward unguarded: forwarding, XDP, guards, and then what XDP needed.
func (p *Plane) putBack(changes func(*change) bool, links func(name string) bool) error {
	var errs []error
	s := p.life.state
	restore := func(first bool) {
		for i := len(s.Changes) - 1; i >= 0; i-- {
			c := &s.Changes[i]
			if !changes(c) || first != (c.Kind == changeSysctl) {
				continue
			}
			if err := p.restore(c); err != nil {
				errs = append(errs, err)
				continue
			}
			s.Changes = slices.Delete(s.Changes, i, i+1)
		}
	}
	restore(true)
	files := p.life.pins.linkFiles()
	// xdp-N before guard-N and mark-N
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(filepath.Base(b), filepath.Base(a)) })
	for _, file := range files {
		if links(filepath.Base(file)) {
			errs = append(errs, detachPinned(file))
		}
	}
	restore(false)
	return errors.Join(append(errs, s.save())...)
}

// restore sets one thing back as it was. What went with its device needs nothing.
func (p *Plane) restore(c *change) error {
	switch c.Kind {
	case changeSysctl:
		return restoreSysctl(c.Name, c.Old)
	case changeFeatures:
		at := end{ns: p.ns, device: c.Device}
		if c.NetNS != nil {
			ns, err := p.namespaceByID(*c.NetNS)
			if err != nil {
				return nil // it has gone, with the device in it
			}
			defer ns.close()
			at.ns = ns
		}
		return at.turnOn(c.Features)
	case changeQdisc:
		return ignoreMissing(p.nl.QdiscDel(clsact(c.Index)))
	case changeFilters:
		var errs []error
		for _, f := range guardFilters(c.Index, nil, nil) {
			errs = append(errs, ignoreMissing(p.nl.FilterDel(f)))
		}
		return errors.Join(errs...)
	}
	l, err := p.nl.LinkByIndex(c.Index)
	if err != nil {
		return nil // gone
	}
	if c.Kind == changeMTU {
		err = p.nl.LinkSetMTU(l, c.MTU)
	} else {
		err = p.nl.SetPromiscOff(l)
	}
	if err = ignoreMissing(err); err != nil {
		return fmt.Errorf("restore %s of device %s: %w", c.Kind, c.Owner, err)
	}
	return nil
}

// Leave ends the process's part in a plane that was opened with Keep, and leaves everything else: XDP and
// guards stay with the policy in force, and the host as it was set. The next Open takes over.
func (p *Plane) Leave() error {
	if p.life == nil {
		return errors.New("leave the packet path: it was not opened to be kept")
	}
	err := p.StopWorkers()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.undo = nil
	return errors.Join(err, p.release())
}

// Detach takes everything off that gateways have left in the network namespace of the calling thread, and
// a barrier, and sets the host back as it was before the first of them. It reports whether there was anything, and
// refuses while a gateway runs.
func Detach() (found bool, err error) {
	p := &Plane{}
	if err := p.openHost(); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, p.release()) }()
	if err := p.openLife(); err != nil {
		return false, err
	}
	var barred bool
	if err := p.ns.do(func() (err error) { barred, err = LowerBarrier(); return err }); err != nil {
		return false, err
	}
	found = barred || p.life.inherited || len(p.life.state.Changes) > 0
	return found, p.giveBack()
}

// giveBack is Detach for a plane that is open.
func (p *Plane) giveBack() error {
	all := func(*change) bool { return true }
	err := p.ns.do(func() error { return p.putBack(all, func(string) bool { return true }) })
	if err != nil {
		return fmt.Errorf("give the host back: %w", err)
	}
	p.life.directory = ""
	return p.life.pins.removeAll()
}

func isPromiscuous(l netlink.Link) bool { return l.Attrs().RawFlags&unix.IFF_PROMISC != 0 }
