package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attachXDP attaches the port's dispatcher: in the driver if it can, else, unless native was asked
// for, in the kernel's stack, keeping the driver's reason.
func (p *Plane) attachXDP(port *Port) error {
	switch {
	case port.attached == ModeGeneric && port.Mode == ModeNative, port.attached == ModeNative && port.Mode == ModeGeneric:
		return port.errorf("device %s runs XDP in %s mode since an earlier start, and a change of mode would leave it without: `softdpu detach` first", port.Device, port.attached)
	case port.attached == ModeGeneric && port.Mode == ModeAuto:
		port.WhyNotNative = p.life.state.WhyGeneric[linkName("xdp", port.Index)]
	case port.Mode != ModeGeneric:
		err := p.linkNative(port)
		if err == nil {
			port.Running = ModeNative
			return nil
		}
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
			return port.errorf("attach XDP to device %s: %w", port.Device, explainPermission(err))
		}
		why := p.whyNotNative(port, p.dispatch, err)
		if port.Mode == ModeNative {
			return port.errorf("attach XDP to device %s in native mode: %s: set xdp_mode: auto to fall back to generic mode", port.Device, why)
		}
		port.WhyNotNative = why
	}
	if err := p.checkGeneric(port); err != nil {
		if port.WhyNotNative != "" {
			err = fmt.Errorf("%w (generic mode, because of %s)", err, port.WhyNotNative)
		}
		return err
	}
	if err := p.linkXDP(port, p.dispatch, link.XDPGenericMode); err != nil {
		return port.errorf("attach XDP to device %s in generic mode: %w", port.Device, explainPermission(err))
	}
	port.Running = ModeGeneric
	if len(port.VLANs) > 0 {
		port.noteUnseenTags(errors.New("generic mode takes no program that could ask the driver"))
	}
	return nil
}

func (p *Plane) linkXDP(port *Port, prog *ebpf.Program, mode link.XDPAttachFlags) error {
	name := linkName("xdp", port.Index)
	if held, err := p.replace(name, prog); err != nil {
		return err
	} else if held != nil {
		port.xdp = held
		return nil
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: int(port.Index), Flags: mode})
	if err != nil {
		return err
	}
	if err := p.hold(name, l); err != nil {
		return err
	}
	port.xdp = l
	return nil
}

// hold keeps a new link until the end: of the process, or, where the packet path outlives that, until
// it is detached.
func (p *Plane) hold(name string, l link.Link) error {
	if p.life == nil {
		p.undo = append(p.undo, l.Close)
		return nil
	}
	p.life.links[name] = l
	p.undo = append(p.undo, func() error {
		delete(p.life.links, name)
		delete(p.life.linked, name)
		return l.Close()
	})
	if err := p.life.pins.hold(name, l); err != nil {
		return err
	}
	p.life.linked[name] = true
	p.undo = append(p.undo, func() error { return detachPinned(p.life.pins.home("links", name)) })
	return nil
}

// replace puts a program in the place of the one that an earlier run has left on a device. No packet
// sees neither. It returns the link, nil if that run left none there.
func (p *Plane) replace(name string, prog *ebpf.Program) (link.Link, error) {
	if p.life == nil || p.life.held[name] == nil {
		return nil, nil
	}
	held := p.life.held[name]
	info, err := prog.Info()
	if err != nil {
		return nil, fmt.Errorf("look at program: %w", err)
	}
	if id, ok := info.ID(); ok && uint32(id) == held.program {
		p.life.linked[name] = true
		return held, nil
	}
	before, err := ebpf.NewProgramFromID(ebpf.ProgramID(held.program))
	if err != nil {
		return nil, fmt.Errorf("open the program before: %w", err)
	}
	p.files = append(p.files, before.Close)
	if err := held.Update(prog); err != nil {
		return nil, fmt.Errorf("replace the program before: %w", err)
	}
	p.life.linked[name] = true
	p.undo = append(p.undo, func() error { return ignoreMissing(held.Update(before)) })
	return held, nil
}

// whyNotNative asks the driver again by netlink, which, unlike bpf(2), hands on the driver's own
// words. attachErr stands in where there are none.
func (p *Plane) whyNotNative(port *Port, prog *ebpf.Program, attachErr error) string {
	driver := port.driver()
	const flags = nl.XDP_FLAGS_DRV_MODE | nl.XDP_FLAGS_UPDATE_IF_NOEXIST
	err := setXDP(port.Index, prog.FD(), flags)
	if err == nil { // it would now: then whatever was in the way is gone, and this is not how we attach
		if err := setXDP(port.Index, -1, nl.XDP_FLAGS_DRV_MODE); err != nil {
			return fmt.Sprintf("driver %s: %v; and taking a trial program off: %v", driver, attachErr, err)
		}
		err = attachErr
	}
	why := fmt.Sprintf("driver %s: %v", driver, err)
	if errors.Is(attachErr, unix.EOPNOTSUPP) {
		why += " (it has no native XDP)"
	} else if port.MTU > 1500 {
		why += fmt.Sprintf(" (the MTU is %d; a smaller one may do)", port.MTU)
	}
	return why
}

// setXDP sets or, with fd -1, removes the XDP program of a device by netlink. Its error carries the
// kernel's extended message.
func setXDP(index uint32, fd int, flags uint32) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.SetExtAck(true); err != nil {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	xdp := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
	xdp.AddRtAttr(nl.IFLA_XDP_FD, nl.Uint32Attr(uint32(fd)))
	xdp.AddRtAttr(nl.IFLA_XDP_FLAGS, nl.Uint32Attr(flags))
	req.AddData(xdp)
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// xdpOwner says which program is attached to a device and by whom, and how to take it off.
func (p *Plane) xdpOwner(a *netlink.LinkAttrs) (owner, remedy string) {
	id := ebpf.ProgramID(a.Xdp.ProgId)
	name, tag := "", ""
	if prog, err := ebpf.NewProgramFromID(id); err == nil {
		if info, err := prog.Info(); err == nil {
			name, tag = " "+strconv.Quote(info.Name), ", tag "+info.Tag
		}
		prog.Close()
	}
	owner = fmt.Sprintf("an XDP program%s (id %d%s)", name, id, tag)
	remedy = fmt.Sprintf("`ip link set dev %s xdp off` takes it off", a.Name)
	if a.Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		remedy = fmt.Sprintf("`ip link set dev %s xdpgeneric off` takes it off", a.Name)
	}
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil || info.Program != id || info.XDP() == nil || int(info.XDP().Ifindex) != a.Index {
			continue
		}
		owner += fmt.Sprintf(", attached by bpf_link %d", info.ID)
		remedy = fmt.Sprintf("`bpftool link detach id %d` takes it off", info.ID)
		if process := linkHolder(info.ID); process != "" {
			owner += " of " + process
			remedy = "stop that process, or " + remedy
		}
		break
	}
	return owner, remedy
}

// linkHolder returns name and number of a process that holds a bpf_link open; empty if none can be
// seen, as when it is pinned.
func linkHolder(id link.ID) string {
	line := fmt.Sprintf("link_id:\t%d\n", id)
	infos, _ := filepath.Glob("/proc/[0-9]*/fdinfo/*")
	for _, path := range infos {
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), line) {
			continue
		}
		pid := strings.Split(path, "/")[2]
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), pid)
	}
	return ""
}
