package dataplane

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// Of linux/netdev.h and linux/if_link.h.
const (
	actBasic    = 1 << 0 // XDP_DROP, XDP_PASS, XDP_TX
	actTransmit = 1 << 2 // frames that others redirect to it
	iflaMaxMTU  = 51
)

// An Answer is yes, no, or that nobody can tell.
type Answer uint8

const (
	Unknown Answer = iota
	Yes
	No
)

// KernelFeatures is what the running kernel offers, by its version.
type KernelFeatures struct {
	Release         string
	MultiBuffer     bool // forwards packets of several buffers, 6.3
	TCX             bool // 6.6
	HiddenTags      bool // tells XDP of tags beside the frame, 6.8
	ForceForwarding bool // IPv6 forwarding switch of a port, 6.17
}

// InspectKernel looks at the running kernel. It is an error if the programs cannot run on it.
func InspectKernel() (KernelFeatures, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return KernelFeatures{}, fmt.Errorf("read kernel version: %w", err)
	}
	f := KernelFeatures{Release: unix.ByteSliceToString(u.Release[:])}
	k, err := probeKernel()
	if err != nil {
		return f, err
	}
	f.MultiBuffer, f.TCX, f.HiddenTags = k.frags, k.tcx, k.rxTags
	_, err = os.Stat(filepath.Join(procSysNet, "ipv6/conf/all/force_forwarding"))
	f.ForceForwarding = err == nil
	return f, nil
}

// An Inspector looks at devices as Attach does, and changes nothing. Devices are those of the network
// namespace whose thread called NewInspector. It is used by one goroutine at a time.
type Inspector struct{ plane *Plane }

// NewInspector needs no privilege; what it cannot see without is Unknown.
func NewInspector() (*Inspector, error) {
	k, err := probeKernel()
	if err != nil {
		return nil, err
	}
	p := &Plane{kernel: k}
	if p.ns, err = currentNamespace(); err != nil {
		return nil, err
	}
	err = p.ns.do(func() (err error) {
		p.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		p.ns.close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &Inspector{p}, nil
}

// Close frees what the inspector holds.
func (i *Inspector) Close() error { return i.plane.Close() }

// A Device is what can be seen of a port's device.
type Device struct {
	Port   Port
	Err    error  // why it cannot be a port, whoever uses it; then nothing else is known
	MaxMTU int    // that the device takes, 0 = not known
	Native Answer // whether the driver has XDP
	// Reached says of a veth whether frames that XDP redirects to it arrive: the other end must have NAPI.
	Reached  Answer
	OtherEnd string // of a veth, "" if it cannot be seen
	OtherMTU int
	OtherWhy error        // why the other end cannot be seen
	XDP      *HookProgram // on the hook
	TC       []HookProgram
	Tags     []Offload // on, that hide VLAN tags, if the port has VLANs
	Generic  []Offload // on, that generic mode cannot do with
	Merging  []string  // features on of the device itself that many drivers have off with native XDP
}

// An Offload is a set of features that are on and in XDP's way.
type Offload struct {
	Where    string // "device eth0", "the other end of device wan, s0"
	Features []string
	Does     string
	Remedy   string
}

// A HookProgram is a BPF program on a device's hook.
type HookProgram struct {
	Hook   string // xdp, ingress, egress
	Name   string
	ID     uint32
	Ours   bool   // it has the name of one of ours
	Owner  string // what it is, and who holds it
	Pinned string // path, "" if none is seen
	Remedy string
}

// Look inspects the device of a port.
func (i *Inspector) Look(config PortConfig) *Device {
	d := &Device{Port: Port{PortConfig: config}}
	if err := i.plane.ns.do(func() error { return i.look(d) }); err != nil && d.Err == nil {
		d.Err = err
	}
	return d
}

func (i *Inspector) look(d *Device) error {
	p, port := i.plane, &d.Port
	l, err := p.suitable(port)
	if err != nil {
		return err
	}
	if err := p.describe(port, l); err != nil {
		return err
	}
	a := l.Attrs()
	d.MaxMTU = maxMTU(a.Index)
	if features, err := p.netdev(port.Index, netdevFeatures); err == nil {
		d.Native, d.Reached = answer(features&actBasic != 0), Unknown
		if port.Kind == "veth" {
			d.Reached = answer(features&actTransmit != 0)
		}
	}
	own := end{ns: p.ns, device: a.Name, name: "device " + a.Name}
	d.Merging = own.on([]string{"rx-lro", "rx-gro-hw"})
	if len(port.VLANs) > 0 && port.Kind != "veth" {
		d.Tags = own.appendOn(d.Tags, tagsStripped)
	}
	if port.Kind == "veth" {
		i.lookAtOtherEnd(d)
	}
	if all, err := p.nl.LinkList(); err == nil {
		for _, lower := range below(l, all) {
			name := lower.Attrs().Name
			at := end{ns: p.ns, device: name, name: fmt.Sprintf("device %s below device %s", name, a.Name)}
			d.Generic = at.appendOn(d.Generic, merges)
		}
	}
	if a.Xdp != nil && a.Xdp.Attached {
		d.XDP = &HookProgram{Hook: "xdp", ID: a.Xdp.ProgId}
		d.XDP.Owner, d.XDP.Remedy = p.xdpOwner(a)
		d.XDP.fill()
	}
	d.TC = i.tcPrograms(l)
	return nil
}

// lookAtOtherEnd inspects the other end of a veth.
func (i *Inspector) lookAtOtherEnd(d *Device) {
	other, err := i.plane.vethPeer(int(d.Port.Index), d.Port.Device)
	if err != nil {
		d.OtherWhy = err
		return
	}
	d.OtherEnd = other.device
	other.name = strings.TrimSuffix(other.name, ",")
	_ = other.ns.do(func() error { // one that has gone meanwhile has no MTU
		l, err := netlink.LinkByName(other.device)
		if err != nil {
			return err
		}
		d.OtherMTU = l.Attrs().MTU
		if d.Reached == Unknown { // a kernel before 6.3
			x := l.Attrs().Xdp
			d.Reached = answer(len(other.on([]string{"rx-gro"})) > 0 || x != nil && x.Attached)
		}
		return nil
	})
	if len(d.Port.VLANs) > 0 {
		d.Tags = other.appendOn(d.Tags, tagsLeftOut)
	}
	d.Generic = other.appendOn(d.Generic, leftToDo)
}

// on returns which of the features are on; none if that cannot be read.
func (at end) on(features []string) (on []string) {
	_ = at.change(func(e *ethtool.Ethtool) (err error) {
		on, err = featuresOn(e, at.device, features)
		return err
	})
	return on
}

func (at end) appendOn(to []Offload, o offload) []Offload {
	on := at.on(o.features)
	if len(on) == 0 {
		return to
	}
	remedy := fmt.Sprintf("`ethtool -K %s %s off`%s", at.device, strings.Join(on, " off "), at.there)
	return append(to, Offload{at.name, on, o.does, remedy})
}

func answer(yes bool) Answer {
	if yes {
		return Yes
	}
	return No
}

// maxMTU asks for the largest MTU that a device of the calling thread's namespace takes, 0 if it does not
// say.
func maxMTU(index int) int {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil || len(msgs) == 0 {
		return 0
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return 0
	}
	for _, a := range attrs {
		if a.Attr.Type == iflaMaxMTU && len(a.Value) >= 4 {
			return int(nl.NativeEndian().Uint32(a.Value))
		}
	}
	return 0
}

// tcPrograms lists the programs on the tc hooks of a device, by tcx and by clsact.
func (i *Inspector) tcPrograms(l netlink.Link) (out []HookProgram) {
	for _, hook := range []struct {
		name   string
		tcx    ebpf.AttachType
		parent uint32
	}{{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS}, {"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS}} {
		add := func(id uint32, remedy string) {
			h := HookProgram{Hook: hook.name, ID: id, Remedy: remedy}
			h.fill()
			h.Owner = fmt.Sprintf("a tc program %q (id %d)", h.Name, id)
			out = append(out, h)
		}
		if i.plane.kernel.tcx {
			if result, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: hook.tcx}); err == nil {
				for _, program := range result.Programs {
					add(uint32(program.ID), "`bpftool net` shows who attached it")
				}
			}
		}
		filters, err := i.plane.nl.FilterList(l, hook.parent)
		if err != nil {
			continue // there is no clsact qdisc
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok {
				add(uint32(b.Id), fmt.Sprintf("`tc filter show dev %s %s` lists it", l.Attrs().Name, hook.name))
			}
		}
	}
	return out
}

// fill looks up what the kernel says of the program, and where it is pinned.
func (h *HookProgram) fill() {
	prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(h.ID))
	if err != nil {
		return
	}
	defer prog.Close()
	if info, err := prog.Info(); err == nil {
		h.Name = info.Name
	}
	for _, ours := range []string{bpf.XDPProgDispatch, bpf.VLANProgDispatchVlan, bpf.XDPProgGuardDispatch, bpf.XDPProgMark} {
		h.Ours = h.Ours || h.Name == ours[:min(len(ours), 15)] // BPF_OBJ_NAME_LEN
	}
	h.Pinned = pinnedAt(ebpf.ProgramID(h.ID))
}

// pinsMax bounds the search for pins.
const pinsMax = 10_000

// pinnedAt returns a path under which a program, or a link of it, is pinned.
func pinnedAt(id ebpf.ProgramID) (found string) {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	seen := 0
	for line := range strings.Lines(string(mounts)) {
		field := strings.Fields(line)
		if len(field) < 3 || field[2] != "bpf" {
			continue
		}
		// What cannot be read is not looked at.
		_ = filepath.WalkDir(field[1], func(path string, e fs.DirEntry, err error) error {
			if seen++; seen > pinsMax || found != "" {
				return fs.SkipAll
			}
			if err != nil || !e.Type().IsRegular() {
				return nil
			}
			if prog, err := ebpf.LoadPinnedProgram(path, &ebpf.LoadPinOptions{ReadOnly: true}); err == nil {
				if info, err := prog.Info(); err == nil {
					if got, ok := info.ID(); ok && got == id {
						found = path
					}
				}
				prog.Close()
			} else if l, err := link.LoadPinnedLink(path, nil); err == nil {
				if info, err := l.Info(); err == nil && info.Program == id {
					found = path
				}
				l.Close()
			}
			return nil
		})
	}
	return found
}
