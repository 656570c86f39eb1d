package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A candidate is a network device that can be a port.
type candidate struct {
	index     int
	name      string
	kind      string // of the link: "device" is hardware
	up        bool
	addresses []netip.Prefix // networks that it is in, without link-local ones
}

// candidates returns the Ethernet devices of this network namespace that belong to nobody else, in
// name order.
func candidates() ([]candidate, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	var out []candidate
	for _, l := range links {
		a := l.Attrs()
		if a.EncapType != "ether" || a.MasterIndex != 0 || a.Flags&net.FlagLoopback != 0 {
			continue
		}
		switch l.Type() {
		case "bridge", "dummy", "ifb", "vlan", "vxlan", "macvlan", "ipvlan":
			continue
		}
		c := candidate{index: a.Index, name: a.Name, kind: l.Type(), up: a.Flags&net.FlagUp != 0}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", a.Name, err)
		}
		for _, addr := range addrs {
			ip, ok := netip.AddrFromSlice(addr.IP)
			bits, _ := addr.Mask.Size()
			if p := netip.PrefixFrom(ip.Unmap(), bits).Masked(); ok && !p.Addr().IsLinkLocalUnicast() && !slices.Contains(c.addresses, p) {
				c.addresses = append(c.addresses, p)
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b candidate) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// defaultDevice returns the index of the device that the default route leaves by, 0 without one.
func defaultDevice() (int, error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return 0, fmt.Errorf("list routes: %w", err)
		}
		best := -1
		for i, r := range routes {
			if isDefault := r.Dst == nil || r.Dst.IP.IsUnspecified() && isAll(r.Dst.Mask); !isDefault || r.Type > unix.RTN_UNICAST {
				continue
			}
			if best < 0 || r.Priority < routes[best].Priority {
				best = i
			}
		}
		if best >= 0 {
			if r := routes[best]; r.LinkIndex == 0 && len(r.MultiPath) > 0 {
				return r.MultiPath[0].LinkIndex, nil
			}
			return routes[best].LinkIndex, nil
		}
	}
	return 0, nil
}

func isAll(m net.IPMask) bool {
	ones, _ := m.Size()
	return ones == 0
}

// chooseDevices fills in what the flags left open: the default route's device is wan, the others lan.
func (o *initOptions) chooseDevices(cmd *cobra.Command) error {
	all, err := candidates()
	if err != nil {
		return err
	}
	find := func(name string) (candidate, error) {
		if i := slices.IndexFunc(all, func(c candidate) bool { return c.name == name }); i >= 0 {
			return all[i], nil
		}
		return candidate{}, usagef(cmd, "there is no device %s that could be a port; there are: %s", name, candidateNames(all))
	}
	if o.wan == "" {
		index, err := defaultDevice()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(c candidate) bool { return c.index == index && !slices.Contains(o.lan, c.name) })
		if i < 0 {
			return usagef(cmd, "no default route says which device is the outside one: name it with --wan; there are: %s", candidateNames(all))
		}
		o.wan = all[i].name
	}
	if o.outside, err = find(o.wan); err != nil {
		return err
	}
	names := o.lan
	if len(names) == 0 {
		names = o.proposeInside(all)
	}
	if len(names) == 0 {
		return usagef(cmd, "a gateway joins two networks, and there is no device beside %s: plug one in, or name one with --lan", o.wan)
	}
	for _, name := range names {
		c, err := find(name)
		if err != nil {
			return err
		}
		if name == o.wan || slices.ContainsFunc(o.inside, func(in candidate) bool { return in.name == name }) {
			return usagef(cmd, "device %s is named twice", name)
		}
		o.inside = append(o.inside, c)
	}
	if o.inline && len(o.inside) != 1 {
		return usagef(cmd, "an inline pair has one device inside, not %d: name it with --lan; there are: %s", len(o.inside), candidateNames(all))
	}
	return nil
}

// proposeInside returns the devices beside wan: hardware where there is some, because what Docker and
// virtual machines add is theirs.
func (o *initOptions) proposeInside(all []candidate) []string {
	var hardware, others []string
	for _, c := range all {
		switch {
		case c.name == o.wan:
		case c.kind == "device":
			hardware = append(hardware, c.name)
		default:
			others = append(others, c.name)
		}
	}
	if len(hardware) > 0 {
		return hardware
	}
	return others
}

func candidateNames(all []candidate) string {
	if len(all) == 0 {
		return "none"
	}
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	return strings.Join(names, ", ")
}

// operatorAddress returns the address of this machine that the operator's SSH session speaks to, if
// there is one. sudo takes it out of the environment, so the parents are asked too.
func operatorAddress(env *Env) (netip.Addr, bool) {
	if a, ok := sshAddress(env.Getenv("SSH_CONNECTION")); ok {
		return a, true
	}
	for pid := os.Getppid(); pid > 1; {
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err != nil {
			break
		}
		for _, v := range strings.Split(string(environ), "\x00") {
			if value, ok := strings.CutPrefix(v, "SSH_CONNECTION="); ok {
				return sshAddress(value)
			}
		}
		if pid, err = parentOf(pid); err != nil {
			break
		}
	}
	return netip.Addr{}, false
}

// sshAddress takes the third word: client, its port, server, its port.
func sshAddress(connection string) (netip.Addr, bool) {
	words := strings.Fields(connection)
	if len(words) != 4 {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(words[2])
	return a.Unmap(), err == nil
}

func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The name stands in parentheses and may hold anything; state and parent follow it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return 0, errors.New("stat is cut short")
	}
	return strconv.Atoi(fields[1])
}
