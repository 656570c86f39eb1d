package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// Of linux/netdev.h.
const (
	netdevCommandGet    = 1
	netdevIndex         = 1
	netdevFeatures      = 3 // bit mask of what a driver can do with XDP
	netdevRxMetadata    = 5 // bit mask of the kfuncs that a driver has
	netdevRxMetadataTag = 4 // bpf_xdp_metadata_rx_vlan_tag
)

// linkNative attaches a port's dispatcher in the driver. All ports share one, but for those with VLAN
// zones: theirs is bound to its device, and so can ask the driver whether a tag stands beside the frame.
// Where there cannot be such a one the port says so, and has the shared one too.
func (p *Plane) linkNative(port *Port) error {
	if len(port.VLANs) == 0 {
		return p.linkXDP(port, p.dispatch, link.XDPDriverMode)
	}
	why := p.linkBound(port)
	if why == nil {
		return nil
	}
	err := p.linkXDP(port, p.dispatch, link.XDPDriverMode)
	if err == nil {
		port.noteUnseenTags(why)
	}
	return err
}

// boundFor loads a dispatcher of the port's own, bound to its device. Its error says why there can be
// none.
func (p *Plane) boundFor(port *Port) (*ebpf.Program, error) {
	if !p.kernel.rxTags {
		return nil, errors.New("this kernel does not tell XDP of them (Linux 6.8 does)")
	}
	features, err := p.rxMetadata(port)
	if err != nil {
		return nil, err
	}
	if features&netdevRxMetadataTag == 0 {
		return nil, fmt.Errorf("driver %s does not tell XDP of them", port.driver())
	}
	prog, err := p.loadBound(port)
	if err != nil {
		if errors.Is(err, unix.EINVAL) && !p.kernel.atLeast(6, 16) {
			return nil, errors.New("this kernel lets no program bound to its device make tail calls (Linux 6.16 does)")
		}
		return nil, fmt.Errorf("load a dispatcher bound to the device: %w", err)
	}
	return prog, nil
}

// linkBound attaches such a dispatcher.
func (p *Plane) linkBound(port *Port) error {
	prog, err := p.boundFor(port)
	if err != nil {
		return err
	}
	defer prog.Close() // the link holds it
	if err := p.linkXDP(port, prog, link.XDPDriverMode); err != nil {
		return fmt.Errorf("attach a dispatcher bound to the device: %w", err)
	}
	return nil
}

// loadBound loads the dispatcher that checks for hidden tags, for the port's device alone. The kernel
// looks that up in the namespace of the calling thread.
func (p *Plane) loadBound(port *Port) (*ebpf.Program, error) {
	spec, err := bpf.LoadVLAN()
	if err != nil {
		return nil, fmt.Errorf("read program object: %w", err)
	}
	prog := spec.Programs[bpf.VLANProgDispatchVlan]
	prog.Ifindex = port.Index
	prog.Flags |= unix.BPF_F_XDP_DEV_BOUND_ONLY
	if !p.MultiBuffer() {
		prog.Flags &^= unix.BPF_F_XDP_HAS_FRAGS // as in load
	}
	shared := make(map[string]*ebpf.Map)
	for _, name := range []string{bpf.VLANMapGenerations, bpf.VLANMapReasons} {
		shared[name] = p.maps[name]
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	return coll.DetachProgram(bpf.VLANProgDispatchVlan), nil
}

// rxMetadata asks the kernel what the driver can tell XDP programs beside the frame. A program cannot
// find out at load: where the driver has no answer, each call has none.
func (p *Plane) rxMetadata(port *Port) (features uint64, err error) {
	if features, err = p.netdev(port.Index, netdevRxMetadata); err != nil {
		return 0, fmt.Errorf("ask what driver %s tells XDP: %w", port.driver(), err)
	}
	return features, nil
}

// netdev asks the kernel for one attribute of what it says of a device and XDP (Linux 6.3).
func (p *Plane) netdev(index uint32, attribute uint16) (uint64, error) {
	family, err := p.nl.GenlFamilyGet("netdev")
	if err != nil {
		return 0, err
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	// Not by nl.Genlmsg, which leaves the reserved bytes undefined: this family wants them to be 0.
	req.AddRawData(append([]byte{netdevCommandGet, 1, 0, 0}, nl.NewRtAttr(netdevIndex, nl.Uint32Attr(index)).Serialize()...))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type == attribute && len(a.Value) >= 8 {
				return binary.NativeEndian.Uint64(a.Value), nil
			}
		}
	}
	return 0, errors.New("the kernel does not say")
}

// noteUnseenTags says that nothing would notice tags that are hidden after the look-up at the start.
func (p *Port) noteUnseenTags(why error) {
	offload := "rxvlan off at device " + p.Device
	if p.Kind == "veth" {
		offload = "txvlan off at the other end of device " + p.Device
	}
	p.note("VLAN tags that are hidden from now on would not be noticed, and their frames taken for untagged ones: %v; leave %s", why, offload)
}

// driver names what moves the device's frames.
func (p *Port) driver() string {
	if p.Driver == "" {
		return p.Kind
	}
	return p.Driver
}
