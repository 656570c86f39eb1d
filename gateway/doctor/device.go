package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/gateway"
)

// devices looks at the device of each port, and at the pairs.
func (e *examination) devices(i *dataplane.Inspector, c *gateway.Config, configs []dataplane.PortConfig, status *gateway.Status) {
	seen := make(map[string]*dataplane.Device)
	for n, config := range configs {
		d := i.Look(config)
		if d.Err != nil {
			e.port(Error, "device", config.Name, "", "%v", d.Err)
			continue
		}
		seen[config.Name] = d
		runs := runningPort(status, d.Port.Device)
		mode := e.mode(d, runs)
		e.hooks(d, runs != nil)
		e.offloads(d, mode)
		e.mtu(d, c.Ports[n].MTU, mode)
		e.otherEnd(d, mode)
		if !d.Port.Inline() {
			e.sysctls(d)
		}
	}
	for _, pair := range c.Inline {
		a, b := seen[pair[0]], seen[pair[1]]
		if a != nil && b != nil && a.Port.MTU != b.Port.MTU {
			e.port(Warning, "mtu", pair[0], "give both ports one MTU", "it has MTU %d and its inline peer %s has %d: larger packets are dropped (too-big), and nobody is told", a.Port.MTU, pair[1], b.Port.MTU)
		}
	}
	if status == nil && len(c.Inline)*2 < len(c.Ports) {
		e.forwarding()
	}
}

// runningPort returns the port of the running gateway that has the device.
func runningPort(s *gateway.Status, device string) *gateway.PortStatus {
	if s == nil {
		return nil
	}
	for i := range s.Ports {
		if s.Ports[i].Device == device {
			return &s.Ports[i]
		}
	}
	return nil
}

// mode says in which mode the port runs or would run, as far as the driver tells.
func (e *examination) mode(d *dataplane.Device, runs *gateway.PortStatus) dataplane.Mode {
	port := &d.Port
	switch {
	case runs != nil && runs.Mode == dataplane.ModeGeneric.String():
		return dataplane.ModeGeneric // why has been found
	case runs != nil:
		return dataplane.ModeNative
	case port.Mode == dataplane.ModeGeneric:
		e.port(Info, "native-xdp", port.Name, "leave xdp_mode out", "the configuration asks for generic mode, several times slower than native")
		return dataplane.ModeGeneric
	case d.Native == dataplane.No && port.Mode == dataplane.ModeNative:
		e.port(Error, "native-xdp", port.Name, "set xdp_mode: auto", "driver %s has no native XDP, which the configuration asks for", driver(port))
		return dataplane.ModeGeneric
	case d.Native == dataplane.No:
		e.port(Warning, "native-xdp", port.Name, "use a device whose driver has native XDP", "driver %s has no native XDP: the port will run in generic mode, several times slower", driver(port))
		return dataplane.ModeGeneric
	case d.Native == dataplane.Unknown:
		e.port(Info, "native-xdp", port.Name, "", "whether driver %s has native XDP shows only when the gateway starts", driver(port))
	}
	return dataplane.ModeNative
}

func driver(p *dataplane.Port) string {
	if p.Driver != "" {
		return p.Driver
	}
	return p.Kind
}

// leftRemedy is for what a gateway that stopped or was killed has left on purpose.
const leftRemedy = "start the gateway, which takes over, or `softdpu detach`"

// hooks looks at programs of others on the device. Ours are those of the daemon that runs.
func (e *examination) hooks(d *dataplane.Device, runs bool) {
	name := d.Port.Name
	switch x := d.XDP; {
	case x == nil || runs && x.Ours:
	case x.Ours:
		e.port(Warning, "xdp-hook", name, leftRemedy, "%s of a gateway is on device %s, and none answers", x.Owner, d.Port.Device)
	default:
		found := fmt.Sprintf("device %s runs %s already", d.Port.Device, x.Owner)
		if x.Pinned != "" {
			found += ", pinned as " + x.Pinned
		}
		e.port(Error, "xdp-hook", name, x.Remedy, "%s", found)
	}
	for _, h := range d.TC {
		if h.Ours {
			if !runs {
				e.port(Warning, "tc-hook", name, leftRemedy, "%s of a gateway is on %s, and none answers", h.Owner, h.Hook)
			}
			continue
		}
		what := "it sees what XDP hands to the kernel, and nothing of what XDP forwards"
		if h.Hook == "egress" {
			what = "it sees what the kernel sends, and nothing of what XDP forwards"
		}
		e.port(Info, "tc-hook", name, h.Remedy, "%s is on %s beside the gateway's: %s", h.Owner, h.Hook, what)
	}
}

// offloads looks for what hands XDP other frames than were on the wire.
func (e *examination) offloads(d *dataplane.Device, mode dataplane.Mode) {
	port := &d.Port
	report := func(check string, all []dataplane.Offload) {
		for _, o := range all {
			found := fmt.Sprintf("%s %s: %s on", o.Where, o.Does, strings.Join(o.Features, ", "))
			if port.FixOffloads {
				e.port(Info, check, port.Name, "", "%s; the gateway turns it off while it runs", found)
			} else {
				e.port(Error, check, port.Name, o.Remedy+", or set fix_offloads: true", "%s", found)
			}
		}
	}
	report("hidden-tags", d.Tags)
	if mode == dataplane.ModeGeneric {
		report("offloads", d.Generic)
	} else if len(d.Merging) > 0 {
		e.port(Warning, "offloads", port.Name, fmt.Sprintf("`ethtool -K %s %s off`", port.Device, strings.Join(d.Merging, " off ")),
			"device %s merges frames (%s on), which many drivers refuse together with native XDP", port.Device, strings.Join(d.Merging, ", "))
	}
	if port.FixChecksum == dataplane.SwitchOff && (port.Kind == "veth" || port.Kind == "tuntap") {
		e.port(Warning, "checksums", port.Name, "set fix_checksums: auto", "frames of a local stack come in by %s %s with checksums that are left to the device: forwarded, they are wrong, so that ping works and TCP does not", port.Kind, port.Device)
	}
}

// mtu compares what is asked for with what the device, the mode and the other end take.
func (e *examination) mtu(d *dataplane.Device, wanted int, mode dataplane.Mode) {
	port := &d.Port
	if wanted > 0 && d.MaxMTU > 0 && wanted > d.MaxMTU {
		e.port(Error, "mtu", port.Name, fmt.Sprintf("set mtu: %d or less", d.MaxMTU), "the configuration asks for MTU %d, and device %s takes at most %d", wanted, port.Device, d.MaxMTU)
		return
	}
	mtu := port.MTU
	if wanted > 0 {
		mtu = wanted
	}
	if k, err := dataplane.InspectKernel(); err == nil && !k.MultiBuffer && mtu > os.Getpagesize() && mode == dataplane.ModeNative {
		e.port(Warning, "mtu", port.Name, "lower the MTU, or install Linux 6.3", "MTU %d is more than a page: this kernel forwards such packets in generic mode only", mtu)
	}
	if d.OtherMTU > 0 && mtu > d.OtherMTU {
		e.port(Warning, "mtu", port.Name, "give both ends one MTU", "MTU %d is too large: the other end of device %s, %s, takes %d, and drops larger packets without a word", mtu, port.Device, d.OtherEnd, d.OtherMTU)
	}
}

// otherEnd looks at what a veth's other end must have.
func (e *examination) otherEnd(d *dataplane.Device, mode dataplane.Mode) {
	port := &d.Port
	if port.Kind != "veth" {
		return
	}
	if d.OtherWhy != nil {
		e.port(Info, "other-end", port.Name, "", "the other end of device %s was not looked at: %v", port.Device, d.OtherWhy)
	}
	if d.Reached == dataplane.No && mode == dataplane.ModeNative {
		other := d.OtherEnd
		if other == "" {
			other = "DEVICE"
		}
		e.port(Error, "no-gro", port.Name, fmt.Sprintf("`ethtool -K %s gro on` at the other end", other),
			"frames that XDP redirects to veth %s are dropped: its other end has neither GRO nor an XDP program, or more queues for sending than this end has for receipt", port.Device)
	}
}

// sysctls looks at settings that act on the packets that XDP hands to the kernel.
func (e *examination) sysctls(d *dataplane.Device) {
	port := &d.Port
	strict := max(sysctl("ipv4/conf/all/rp_filter"), sysctl("ipv4/conf/"+port.Device+"/rp_filter"))
	if strict == 1 {
		e.port(Info, "rp-filter", port.Name, fmt.Sprintf("`sysctl -w net.ipv4.conf.%s.rp_filter=2`, and the same of all", port.Device),
			"strict reverse path filtering is on: of packets whose way back leads elsewhere the kernel drops those that XDP hands to it")
	}
	if sysctl("ipv6/conf/"+port.Device+"/accept_ra") == 1 && sysctl("ipv6/conf/"+port.Device+"/disable_ipv6") == 0 {
		e.port(Info, "router-advertisements", port.Name, fmt.Sprintf("`sysctl -w net.ipv6.conf.%s.accept_ra=2`, if its default route comes from them", port.Device),
			"with forwarding on, as the gateway has it, the kernel takes no router advertisements here")
	}
}

// forwarding says what the kernel does once the gateway stops.
func (e *examination) forwarding() {
	if sysctl("ipv4/ip_forward") == 1 || sysctl("ipv6/conf/all/forwarding") == 1 {
		e.find(Warning, "forwarding", "`sysctl -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0`: the gateway turns on what it needs",
			"the kernel forwards by itself: without a running gateway everything passes, whatever the policy says")
	}
}

// sysctl reads a number below /proc/sys/net, -1 if there is none.
func sysctl(name string) int64 {
	n, err := readNumber(filepath.Join("/proc/sys/net", name))
	if err != nil {
		return -1
	}
	return n
}
