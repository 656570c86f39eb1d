package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Features is what a driver says it can do with XDP, as bits of linux/netdev.h.
type Features uint64

const (
	FeatureBasic     Features = 1 << 0 // runs programs: drop, pass, send back
	FeatureRedirect  Features = 1 << 1 // redirects, to sockets too
	FeatureTransmit  Features = 1 << 2 // takes what others redirect to it
	FeatureZeroCopy  Features = 1 << 3 // zero-copy sockets
	FeatureReceiveSG Features = 1 << 5 // receives packets of several buffers
	FeatureSendSG    Features = 1 << 6 // takes redirected packets of several buffers
)

// A Device is what can be known of a device before a socket is bound to it.
type Device struct {
	Name   string
	Index  int
	Driver string // or the kind of a virtual device
	Up     bool
	MTU    int // bytes, without the Ethernet header
	Queues int // numbered from 0; 0 if the kernel does not say

	// Known says that the kernel knows what follows (Linux 6.3). A driver may say that it has zero-copy and
	// still refuse: only a bind proves it.
	Known             bool
	Features          Features
	ZeroCopySegments  int  // buffers of one packet, in zero-copy mode; 0 if the kernel does not say
	TransmitChecksums bool // in zero-copy mode, on request (Linux 6.8)

	// XDP is how a program runs on the device now: Copy is native; Any if there is none.
	XDP Mode
}

// Inspect looks at a device of the calling thread's network namespace. It changes nothing and needs no
// privilege.
func Inspect(device string) (Device, error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return Device{}, fmt.Errorf("find device %s: %w", device, err)
	}
	a := l.Attrs()
	d := Device{Name: a.Name, Index: a.Index, Driver: l.Type(), MTU: a.MTU,
		Up: a.RawFlags&unix.IFF_UP != 0, Queues: max(a.NumRxQueues, a.NumTxQueues)}
	if x := a.Xdp; x != nil && x.Attached {
		d.XDP = Copy
		if x.AttachMode == nl.XDP_ATTACHED_SKB {
			d.XDP = Generic
		}
	}
	if e, err := ethtool.NewEthtool(); err == nil {
		if name, err := e.DriverName(device); err == nil && name != "" {
			d.Driver = name
		}
		// The devices' queues in use; what netlink says above is how many there could be.
		if c, err := e.GetChannels(device); err == nil && c.RxCount+c.TxCount+c.CombinedCount > 0 {
			d.Queues = int(c.CombinedCount + max(c.RxCount, c.TxCount))
		}
		e.Close()
	}
	d.ask()
	return d, nil
}

// Attributes of the netlink family netdev (linux/netdev.h).
const (
	netdevCommandGet   = 1
	netdevIndex        = 1
	netdevXDPFeatures  = 3
	netdevZCMaxSegs    = 4
	netdevXSKFeatures  = 6
	xskFeatureChecksum = 1 << 1
)

// ask asks the kernel what the driver can do. A kernel before 6.3 cannot say.
func (d *Device) ask() {
	h, err := netlink.NewHandle(unix.NETLINK_GENERIC)
	if err != nil {
		return
	}
	defer h.Close()
	family, err := h.GenlFamilyGet("netdev")
	if err != nil {
		return
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	// Not by nl.Genlmsg, which leaves the reserved bytes undefined: this family wants them to be 0.
	req.AddRawData(append([]byte{netdevCommandGet, 1, 0, 0},
		nl.NewRtAttr(netdevIndex, nl.Uint32Attr(uint32(d.Index))).Serialize()...))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(msgs) == 0 || len(msgs[0]) < nl.SizeofGenlmsg {
		return
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][nl.SizeofGenlmsg:])
	if err != nil {
		return
	}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == netdevXDPFeatures && len(a.Value) >= 8:
			d.Features, d.Known = Features(binary.NativeEndian.Uint64(a.Value)), true
		case a.Attr.Type == netdevZCMaxSegs && len(a.Value) >= 4:
			d.ZeroCopySegments = int(binary.NativeEndian.Uint32(a.Value))
		case a.Attr.Type == netdevXSKFeatures && len(a.Value) >= 8:
			d.TransmitChecksums = binary.NativeEndian.Uint64(a.Value)&xskFeatureChecksum != 0
		}
	}
}

// frameOverhead is what a frame holds beside the MTU: Ethernet header and two VLAN tags, in bytes.
const frameOverhead = 14 + 4 + 4

// check refuses what the kernel would accept and then not do: packets of the device's MTU that fit no
// frame would all be dropped, and a program that runs in another mode makes the socket's another too.
func (d *Device) check(u *UMEM, queue int) error {
	if why := d.tooLong(u); why != "" {
		return errors.New(why)
	}
	if d.Queues > 0 && queue >= d.Queues {
		return fmt.Errorf("%s: %w", d.noSuchQueue(queue), unix.EINVAL)
	}
	switch mode := u.options.Mode; {
	case mode == Generic && d.XDP == Copy:
		return errors.New("its XDP program runs in the driver, not in generic mode: attach it with xdpgeneric")
	case d.XDP == Generic && (mode == ZeroCopy || mode == Copy && !u.options.AnyProgram):
		return errors.New("its XDP program runs in generic mode: attach it with xdpdrv")
	}
	return nil
}

func (d *Device) tooLong(u *UMEM) string {
	if longest := d.MTU + frameOverhead; !u.options.MultiBuffer && longest > u.Payload() {
		return fmt.Sprintf("its MTU of %d makes packets of up to %d bytes and a frame holds %d: take larger frames, a lower MTU, or packets of several frames (MultiBuffer)",
			d.MTU, longest, u.Payload())
	}
	return ""
}

func (d *Device) noSuchQueue(queue int) string {
	if d.Queues == 1 {
		return fmt.Sprintf("it has one queue, number 0, and %d was asked for", queue)
	}
	return fmt.Sprintf("it has queues 0 to %d, and %d was asked for", d.Queues-1, queue)
}

// explain says what keeps a socket from being bound in the mode, as far as it can be known.
func (d *Device) explain(err error, mode Mode, u *UMEM, queue int) string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	switch {
	case errors.Is(err, unix.EBUSY):
		add("another socket holds the queue (`ss --xdp` lists those of this namespace)")
	case errors.Is(err, unix.ENETDOWN):
		add("the device is down: `ip link set %s up`", d.Name)
	case errors.Is(err, unix.ENODEV):
		add("the device is gone")
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP):
		if d.Queues > 0 && queue >= d.Queues {
			add("%s", d.noSuchQueue(queue))
		}
		if u.options.MultiBuffer && !kernelAtLeast(6, 6) {
			add("MultiBuffer needs Linux 6.6")
		}
		if mode == ZeroCopy {
			d.explainZeroCopy(add, u)
		}
	}
	if len(why) == 0 {
		return "driver " + d.Driver + " does not say why"
	}
	return strings.Join(why, "; ")
}

func (d *Device) explainZeroCopy(add func(string, ...any), u *UMEM) {
	switch need := FeatureBasic | FeatureRedirect | FeatureZeroCopy; {
	case !d.Known:
		add("driver %s refuses it, and before Linux 6.3 the kernel does not say what a driver can do", d.Driver)
	case d.Features&need != need:
		add("driver %s has no zero-copy (xdp-features %#x)", d.Driver, uint64(d.Features))
	case u.options.MultiBuffer && d.ZeroCopySegments == 1:
		add("driver %s has zero-copy for packets of one frame only: leave MultiBuffer out", d.Driver)
	case d.Driver == "virtio_net":
		add("driver virtio_net says that it has zero-copy and refuses it, as it does where the host gives it no IOMMU (iommu_platform=on in QEMU)")
	default:
		add("driver %s says that it has zero-copy (xdp-features %#x) and refuses it", d.Driver, uint64(d.Features))
	}
	if longest := d.MTU + frameOverhead; longest > u.Payload() {
		add("packets of its MTU of %d take %d bytes, and a frame holds %d", d.MTU, longest, u.Payload())
	}
	if d.XDP == Generic {
		add("its XDP program runs in generic mode")
	}
}
