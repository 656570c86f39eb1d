package xsk

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// AttachOptions of Attach. The zero value attaches in the driver if it can, and passes to the kernel what
// arrives on a queue without a socket.
type AttachOptions struct {
	// Mode is Generic, or one of the others for a program in the driver. Any tries both.
	Mode        Mode
	MultiBuffer bool // the program takes packets of several buffers (Linux 5.18)
	// DropRest drops what arrives on a queue without a socket instead of passing it to the kernel.
	DropRest bool
}

// A Redirect is a small XDP program that sends what arrives on a queue to the socket that was added for
// it: all that the package needs to be used by itself. A program of one's own does the same with
// bpf_redirect_map and an XSKMAP that is given Socket.FD.
type Redirect struct {
	device   Device
	mode     Mode
	attempts []Attempt
	sockets  *ebpf.Map
	program  *ebpf.Program
	link     link.Link
}

// Attach loads the program and attaches it to a device of the calling thread's network namespace. It is
// detached by Close, and when the process ends however that comes. It needs CAP_NET_ADMIN and CAP_BPF.
func Attach(device string, o AttachOptions) (*Redirect, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dev, err := Inspect(device)
	if err != nil {
		return nil, err
	}
	r := &Redirect{device: dev}
	if err := r.load(o); err != nil {
		return nil, errors.Join(fmt.Errorf("attach to %s: %w", device, err), r.Close())
	}
	modes := []struct {
		mode  Mode
		flags link.XDPAttachFlags
	}{{Copy, link.XDPDriverMode}, {Generic, link.XDPGenericMode}}
	switch o.Mode {
	case Any:
	case Generic:
		modes = modes[1:]
	default:
		modes = modes[:1]
	}
	for _, m := range modes {
		r.link, err = link.AttachXDP(link.XDPOptions{Program: r.program, Interface: dev.Index, Flags: m.flags})
		if err != nil {
			err = r.explain(err, m.mode)
		}
		r.attempts = append(r.attempts, Attempt{m.mode, err})
		if err == nil {
			r.mode = m.mode
			return r, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("attach to %s: %w", device, err), r.Close())
}

// maxQueues is the size of the map if the device does not say how many queues it has.
const maxQueues = 64

func (r *Redirect) load(o AttachOptions) error {
	queues := r.device.Queues
	if queues == 0 {
		queues = maxQueues
	}
	var err error
	r.sockets, err = ebpf.NewMap(&ebpf.MapSpec{Name: "xsk_sockets", Type: ebpf.XSKMap,
		KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues)})
	if err != nil {
		return fmt.Errorf("make map of sockets: %w", err)
	}
	spec := &ebpf.ProgramSpec{
		Name:         "xsk_redirect",
		Type:         ebpf.XDP,
		License:      "Dual BSD/GPL",
		Instructions: redirectProgram(r.sockets.FD(), o.DropRest),
	}
	if o.MultiBuffer {
		spec.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	if r.program, err = ebpf.NewProgram(spec); err != nil {
		return fmt.Errorf("load program: %w", err)
	}
	return nil
}

// redirectProgram is `return bpf_redirect_map(&sockets, ctx->rx_queue_index, rest)`. The rest is the
// verdict where the map has no socket.
func redirectProgram(sockets int, drop bool) asm.Instructions {
	const (
		rxQueueIndex = 16 // in struct xdp_md
		xdpDrop      = 1
		xdpPass      = 2
	)
	rest := int32(xdpPass)
	if drop {
		rest = xdpDrop
	}
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, rxQueueIndex, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets),
		asm.Mov.Imm(asm.R3, rest),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	}
}

func (r *Redirect) explain(err error, mode Mode) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: the device has an XDP program already (`ip link show %s` has its number)", err, r.device.Name)
	case mode == Copy && errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: driver %s has no XDP", err, r.device.Driver)
	case mode == Copy && (errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EINVAL)):
		return fmt.Errorf("%w: driver %s refuses the program; its MTU is %d: set MultiBuffer if that does not fit a page",
			err, r.device.Driver, r.device.MTU)
	}
	return err
}

// Mode returns how the program runs: Copy is in the driver, whatever mode sockets have; Generic is behind
// it.
func (r *Redirect) Mode() Mode { return r.mode }

// Attempts returns the modes that Attach tried, in order; the last is the one in use.
func (r *Redirect) Attempts() []Attempt { return r.attempts }

// Add sends what arrives on the socket's queue to the socket from now on.
func (r *Redirect) Add(s *Socket) error {
	if s.device.Index != r.device.Index {
		return fmt.Errorf("add socket of %s to the program on %s: packets go to sockets of their own device only",
			s.device.Name, r.device.Name)
	}
	if err := r.sockets.Put(uint32(s.queue), uint32(s.fd)); err != nil {
		return fmt.Errorf("add socket of %s queue %d: %w", s.device.Name, s.queue, err)
	}
	return nil
}

// Remove ends that. Packets under way may still arrive at the socket.
func (r *Redirect) Remove(s *Socket) error {
	err := r.sockets.Delete(uint32(s.queue))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove socket of %s queue %d: %w", s.device.Name, s.queue, err)
	}
	return nil
}

// Close detaches the program.
func (r *Redirect) Close() error {
	var errs []error
	if r.link != nil {
		errs = append(errs, r.link.Close())
	}
	if r.program != nil {
		errs = append(errs, r.program.Close())
	}
	if r.sockets != nil {
		errs = append(errs, r.sockets.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detach from %s: %w", r.device.Name, err)
	}
	return nil
}
