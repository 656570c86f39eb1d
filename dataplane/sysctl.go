package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// procSysNet is the network tree of the namespace of the thread that opens files in it.
const procSysNet = "/proc/sys/net"

// setSysctl writes value to a file below /proc/sys/net, by default path elements such as
// "ipv4/conf/eth1/forwarding", and pushes the return to the old value on the undo list. A file that
// does not exist is an fs.ErrNotExist.
func (p *Plane) setSysctl(name, value string) error {
	old, err := readSysctl(name)
	if err != nil {
		return err
	}
	if old == value {
		return nil
	}
	if err := p.record(sysctlChange(name, old)); err != nil {
		return err
	}
	if err := writeSysctl(name, value); err != nil {
		return err
	}
	p.undo = append(p.undo, func() error { return restoreSysctl(name, old) })
	return nil
}

// sysctlChange names a setting by the device that it is of, the third element of its path.
func sysctlChange(name, old string) change {
	return change{Kind: changeSysctl, Owner: strings.Split(name, "/")[2], Name: name, Old: old}
}

// restoreSysctl writes what was there before. A file that went with its device needs nothing.
func restoreSysctl(name, old string) error {
	now, err := readSysctl(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now == old {
		return nil
	}
	if err == nil {
		err = writeSysctl(name, old)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readSysctl(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(procSysNet, name))
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func writeSysctl(name, value string) error {
	// No O_CREATE: procfs refuses it with EACCES where ENOENT is meant.
	f, err := os.OpenFile(filepath.Join(procSysNet, name), os.O_WRONLY, 0)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "read-only") {
			return fmt.Errorf("set sysctl: %w: /proc/sys must be writable, in a container by --privileged or a mount of it", err)
		}
		return fmt.Errorf("set sysctl: %w", err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
	}
	return nil
}

// setForwarding lets bpf_fib_lookup answer for the routed ports and the VLAN devices on them. From
// now on the kernel, too, would forward what comes in there: dispatcher and guard must stand.
func (p *Plane) setForwarding() error {
	forwarded4, _ := readSysctl("ipv4/ip_forward")
	forwarded6, _ := readSysctl("ipv6/conf/all/forwarding")
	ours := p.life != nil && slices.ContainsFunc(p.life.state.Changes, func(c change) bool { return c.Name == "ipv6/conf/all/forwarding" })
	if forwarded4 == "1" || forwarded6 == "1" && !ours {
		p.notes = append(p.notes, "the kernel's forwarding was on before: once softdpu is taken off the kernel forwards by itself again")
	}
	for _, dev := range p.routedDevices() {
		if err := p.forwardDevice(dev); err != nil {
			return err
		}
	}
	return nil
}

// forwardDevice turns on the switches of one device. For IPv6 there are two: `forwarding` lets
// bpf_fib_lookup answer, `force_forwarding` lets the kernel forward what XDP hands it. Without the
// second (before Linux 6.17) only the switch of all devices does that.
func (p *Plane) forwardDevice(dev string) error {
	if err := p.setSysctl(filepath.Join("ipv4/conf", dev, "forwarding"), "1"); err != nil {
		return err
	}
	err := fs.ErrNotExist
	if p.kernel.force6 {
		err = p.setSysctl(filepath.Join("ipv6/conf", dev, "force_forwarding"), "1")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return p.setForwarding6()
	}
	if err != nil {
		return err
	}
	p.noteRouterAdvertisements(dev)
	return p.setSysctl(filepath.Join("ipv6/conf", dev, "forwarding"), "1")
}

// noteRouterAdvertisements says what forwarding takes from a device that had its route from them.
func (p *Plane) noteRouterAdvertisements(dev string) {
	for _, port := range p.ports {
		if port.Device != dev {
			continue
		}
		if ra, err := readSysctl(filepath.Join("ipv6/conf", dev, "accept_ra")); err == nil && ra == "1" {
			port.note("IPv6 forwarding is on, so the kernel takes no router advertisements here: set net.ipv6.conf.%s.accept_ra to 2 if its default route comes from them", dev)
		}
	}
}

// setForwarding6 turns on the switch of all devices, which writes every device's own: those are
// remembered one by one.
func (p *Plane) setForwarding6() error {
	const dir = "ipv6/conf"
	if on, err := readSysctl(filepath.Join(dir, "all/forwarding")); err == nil && on == "1" {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(procSysNet, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	if err != nil {
		return fmt.Errorf("list IPv6 devices: %w", err)
	}
	old := make(map[string]string)
	for _, e := range entries {
		if e.Name() == "all" {
			continue
		}
		name := filepath.Join(dir, e.Name(), "forwarding")
		if old[e.Name()], err = readSysctl(name); err != nil {
			return err
		}
		c := sysctlChange(name, old[e.Name()])
		c.Owner = "all" // the switch of all devices sets it
		if err := p.record(c); err != nil {
			return err
		}
	}
	p.undo = append(p.undo, func() error {
		var errs []error
		for dev, value := range old {
			errs = append(errs, restoreSysctl(filepath.Join(dir, dev, "forwarding"), value))
		}
		return errors.Join(errs...)
	})
	for _, port := range p.ports {
		if !port.Inline() {
			p.noteRouterAdvertisements(port.Device)
		}
	}
	return p.setSysctl(filepath.Join(dir, "all/forwarding"), "1")
}

// neighbourSysctls make the kernel notice within 7 s that a neighbour's MAC has changed silently; with
// its defaults it takes 10 to 33. Milliseconds where the name says so, else seconds.
var neighbourSysctls = [][2]string{
	{"base_reachable_time_ms", "2000"},
	{"delay_first_probe_time", "1"},
	{"retrans_time_ms", "500"},
	{"interval_probe_time_ms", "1000"}, // since 6.0
}

func (p *Plane) setNeighbourTimes(devices []string) error {
	for _, dev := range devices {
		for _, family := range []string{"ipv4", "ipv6"} {
			for _, s := range neighbourSysctls {
				err := p.setSysctl(filepath.Join(family, "neigh", dev, s[0]), s[1])
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
	}
	return nil
}

// routedDevices names the devices whose routes and neighbours matter.
func (p *Plane) routedDevices() (names []string) {
	for _, port := range p.ports {
		if port.Inline() || !port.present() {
			continue
		}
		names = append(names, port.Device)
		for _, dev := range port.vlanDevices {
			names = append(names, dev.name)
		}
	}
	return names
}
