package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Routes keeps what XDP remembers of links, routes and neighbours in step with the kernel. XDP asks
// again by itself every second; the watcher makes it at once, and keeps the kernel's neighbour entries
// alive, which see none of the traffic.
type Routes struct {
	plane  *Plane
	socket *os.File
	raw    syscall.RawConn
	buffer []byte

	managed map[neighbour]bool // entries that we asked the kernel to keep resolved
}

// groups of rtnetlink that are heard.
var groups = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
}

// WatchRoutes begins to listen, in the plane's namespace, and brings the tables up to date. Run must
// follow, and must have ended before the plane is closed.
func (p *Plane) WatchRoutes() (*Routes, error) {
	r := &Routes{plane: p, buffer: make([]byte, 1<<17), managed: make(map[neighbour]bool)}
	if err := p.ns.do(r.open); err != nil {
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	if err := r.resync(); err != nil {
		r.socket.Close()
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	p.watchedNow()
	return r, nil
}

// watchedNow says that the watcher lives.
func (p *Plane) watchedNow() {
	now := time.Now()
	p.watched.Store(&now)
}

func (r *Routes) open() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	r.socket = os.NewFile(uintptr(fd), "rtnetlink")
	// A full routing table in one burst must fit; without the right to force it, the default does.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(group))
		}
	}
	if err == nil {
		r.raw, err = r.socket.SyscallConn()
	}
	if err != nil {
		r.socket.Close()
		return fmt.Errorf("listen to rtnetlink: %w", err)
	}
	return nil
}

// interval is how often next hops are compared with the kernel's neighbours and kept alive.
const interval = time.Second

// Run follows the kernel until ctx is done, and then returns nil. It owns the socket from here on.
func (r *Routes) Run(ctx context.Context) (err error) {
	defer func() {
		if e := errors.Join(r.release(), r.socket.Close()); e != nil {
			err = errors.Join(err, fmt.Errorf("stop watching routes: %w", e))
		}
	}()
	stop := context.AfterFunc(ctx, func() { r.socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	next := time.Now().Add(interval)
	for {
		r.plane.watchedNow()
		if err := r.socket.SetReadDeadline(next); err != nil {
			return fmt.Errorf("watch routes: %w", err)
		}
		// After the deadline was set: a ctx that ends from here on sets another.
		if ctx.Err() != nil {
			return nil
		}
		err := r.receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			err = r.resync()
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = nil
		}
		if err == nil && !time.Now().Before(next) {
			next = time.Now().Add(interval)
			r.plane.regainAll()
			err = r.keepAlive()
		}
		if err != nil {
			return fmt.Errorf("watch routes: %w", err)
		}
	}
}

// receive waits for one datagram and follows its messages.
func (r *Routes) receive() error {
	var (
		n    int
		from unix.Sockaddr
		err  error
	)
	waitErr := r.raw.Read(func(fd uintptr) bool {
		n, from, err = unix.Recvfrom(int(fd), r.buffer, 0)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err = errors.Join(waitErr, err); err != nil {
		return err
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return nil // not the kernel
	}
	messages, err := syscall.ParseNetlinkMessage(r.buffer[:n])
	if err != nil {
		return r.resync()
	}
	stale := false
	for i := range messages {
		changed, err := r.follow(&messages[i])
		if err != nil {
			return err
		}
		stale = stale || changed
	}
	if stale {
		r.plane.routesChanged()
	}
	return nil
}

// follow takes over what a message says. It reports whether routes that XDP looked up may be wrong now.
func (r *Routes) follow(m *syscall.NetlinkMessage) (stale bool, err error) {
	switch m.Header.Type {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		n, err := netlink.NeighDeserialize(m.Data)
		if err != nil {
			return true, nil // a message that is not understood may mean anything
		}
		r.plane.followNeighbour(n, m.Header.Type == unix.RTM_DELNEIGH)
		return false, nil
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		// Bridges report their ports in messages of their own family, which are no whole links.
		if len(m.Data) > 0 && m.Data[0] != unix.AF_UNSPEC {
			return false, nil
		}
		l, err := netlink.LinkDeserialize(nil, m.Data)
		if err != nil {
			return true, nil
		}
		return true, r.plane.followLink(l, m.Header.Type == unix.RTM_DELLINK)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true, r.plane.followAddresses()
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		// struct rtmsg: family, dst_len, src_len, tos, table
		if len(m.Data) > 4 && m.Data[4] == unix.RT_TABLE_LOCAL {
			return true, r.plane.followLocals()
		}
		return true, nil
	case unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		return true, nil
	}
	return false, nil
}

// resync takes everything over from the kernel anew.
func (r *Routes) resync() error {
	links, err := r.plane.nl.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list devices: %w", err)
	}
	if err := r.plane.missing(links); err != nil {
		return err
	}
	for _, l := range links {
		if err := r.plane.followLink(l, false); err != nil {
			return err
		}
	}
	if err := r.plane.followAddresses(); err != nil {
		return err
	}
	if err := r.plane.followLocals(); err != nil {
		return err
	}
	if err := r.keepAlive(); err != nil {
		return err
	}
	r.plane.routesChanged()
	return nil
}

// routesChanged makes XDP look up routes again. The number is the first tick of the next 4 ms: look-ups
// are remembered in units of that size, and one in the current unit may have been before the change.
func (p *Plane) routesChanged() {
	atomic.StoreUint32(&p.mem.gateway[0].RouteChanged, NowTick()|3+1)
}

// followLink takes over name, MAC, MTU and state of a port, VLAN devices that come and go, and devices
// that ports wait for.
func (p *Plane) followLink(l netlink.Link, gone bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := l.Attrs()
	for _, port := range p.ports {
		if !port.present() {
			continue
		}
		if int(port.Index) == a.Index {
			if gone {
				return p.lose(port)
			}
			return p.followPort(port, l)
		}
		if port.Inline() {
			continue
		}
		vid, dev, ok := vlanOn(l, port)
		old, had := port.vlanDevices[vid]
		switch {
		case had && old.index == dev.index && gone:
			delete(port.vlanDevices, vid)
			return p.removeVLANDevice(port, vid, dev)
		case had && old.index == dev.index && old.name != dev.name:
			port.vlanDevices[vid] = dev
			if p.life != nil {
				return p.life.state.rename(old.name, dev.name)
			}
		case ok && !gone && old.index != dev.index:
			port.vlanDevices[vid] = dev
			return p.takeVLANDevice(port, vid, dev)
		}
	}
	if !gone {
		p.returns(a)
	}
	return nil
}

// takeVLANDevice does for a VLAN device that appears while the port stands what Attach does for those
// that it finds.
func (p *Plane) takeVLANDevice(port *Port, vid uint16, dev device) error {
	if err := p.addVLANDevice(port, vid, dev); err != nil {
		return port.errorf("%w", err)
	}
	return p.ns.do(func() error {
		err := p.setNeighbourTimes([]string{dev.name})
		if err == nil {
			err = p.forwardDevice(dev.name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return port.errorf("%w", err)
		}
		return nil // or gone again
	})
}

func (p *Plane) followPort(port *Port, l netlink.Link) error {
	a := l.Attrs()
	if a.Name != port.Device {
		if err := p.renamed(port, a.Name); err != nil {
			return err
		}
	}
	if len(a.HardwareAddr) != len(port.MAC) {
		return nil
	}
	was, old := *port, port.source()
	p.follow(port, l)
	switch {
	case was.Up && !port.Up:
		p.tell(port, PortDown, "")
	case port.Up && !was.Up:
		p.tell(port, PortUp, "")
	}
	if was.MAC != port.MAC {
		p.tell(port, PortMAC, "%s, it was %s", net.HardwareAddr(port.MAC[:]), net.HardwareAddr(was.MAC[:]))
	}
	if was.MTU != port.MTU {
		p.tell(port, PortMTU, "%d, it was %d", port.MTU, was.MTU)
	}
	if was.Up != port.Up || was.MAC != port.MAC || was.MTU != port.MTU {
		p.storePort(port)
	}
	if port.source() == old {
		return nil
	}
	for i := nexthopPort; i < len(p.mem.nexthops); i++ {
		hop := &p.mem.nexthops[i]
		if atomic.LoadUint32(&hop.State) >= nexthopPending && hop.Port == port.ID {
			atomic.StoreUint64(&hop.Src, port.source())
		}
	}
	return nil
}

// followAddresses takes over the ports' own addresses.
func (p *Plane) followAddresses() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range p.ports {
		if !port.present() {
			continue
		}
		was4, was6 := port.IP4, port.IP6
		if err := p.readAddresses(port); err != nil {
			if errors.Is(err, unix.ENODEV) || errors.Is(err, netlink.ErrDumpInterrupted) {
				continue
			}
			return port.errorf("%w", err)
		}
		if was4 != port.IP4 || was6 != port.IP6 {
			p.storePort(port)
		}
	}
	return p.copyNATAddresses(p.ports)
}
