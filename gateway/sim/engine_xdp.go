package sim

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// What XDP programs return (linux/bpf.h: enum xdp_action).
const (
	xdpAborted  = 0
	xdpPass     = 2
	xdpTX       = 3
	xdpRedirect = 4
)

const (
	// outputRoom is added to the longest frame for what a program puts in front of it.
	outputRoom = 512

	ethernetLen = 14 // the kernel's test run takes no shorter frame
)

// xdpEngine is the program that `run` loads, run by BPF_PROG_TEST_RUN. Control and result go through
// mapped memory, frames through buffers that live outside the Go heap.
type xdpEngine struct {
	plane   *dataplane.Plane
	program *ebpf.Program
	sim     *bpf.XDPSim
	flows   *flowtable.Table
	clamps  bool                // some port holds SYNs to an MSS
	twin    *flowtable.Executor // over the same table: it is asked where packets go, and processes none
	pieces  datagramRoutes
	in, out []byte
	attr    testRun
}

// testRun is union bpf_attr as BPF_PROG_TEST_RUN reads and writes it.
type testRun struct {
	program, retval  uint32
	sizeIn, sizeOut  uint32
	dataIn, dataOut  uint64
	repeat, duration uint32
	ctxIn, ctxOut    uint32
	ctxInPtr         uint64
	ctxOutPtr        uint64
	flags, cpu       uint32
	batch, pad       uint32
}

func newXDPEngine(s *Sim, options dataplane.Options, rules pipes, addresses map[bpf.XDPNatDevice]bpf.XDPNatAddress) (e *xdpEngine, err error) {
	e = &xdpEngine{}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
			e = nil
		}
	}()
	if e.plane, err = dataplane.Open(options); err != nil {
		return e, err
	}
	if err = e.place(s); err != nil {
		return e, err
	}
	e.clamps = len(s.portMSS()) > 0
	if err = e.plane.SetNATAddresses(addresses); err != nil {
		return e, err
	}
	e.sim = e.plane.Sim()
	if e.flows, err = e.plane.Table(); err != nil {
		return e, err
	}
	if e.twin, err = newExecutor(s, e.flows, rules, addresses); err != nil {
		return e, err
	}
	if err = e.publish(s.epoch, s.policy, rules, s.policy.Stages(s.cfg.ForceStages)); err != nil {
		return e, err
	}
	for _, b := range []*[]byte{&e.in, &e.out} {
		if *b, err = unix.Mmap(-1, 0, MaxFrame+outputRoom, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
			return e, fmt.Errorf("map frame buffer: %w", err)
		}
	}
	return e, nil
}

func (e *xdpEngine) place(s *Sim) error {
	ports := make([]dataplane.Port, len(s.byID))
	for i, at := range s.byID {
		p := dataplane.Port{
			PortConfig: dataplane.PortConfig{Name: at.Name, Zone: at.entry.Zone, VLANs: at.vlans, MSSClamp: at.MSSClamp},
			Index:      at.entry.Ifindex, MAC: at.MAC, MTU: at.MTU, IP4: at.IP4, IP6: at.IP6,
		}
		if at.peer != nil {
			p.Peer = at.peer.Name
		}
		if at.FixChecksums {
			p.FixChecksum = dataplane.SwitchOn
		}
		ports[i] = p
	}
	if err := e.plane.Place(ports); err != nil {
		return err
	}
	for i := firstHop; i < len(s.hops); i++ {
		if err := e.plane.SetNexthop(i, s.hops[i]); err != nil {
			return err
		}
	}
	return nil
}

func (e *xdpEngine) publish(epoch uint32, policy *firewall.Compiled, rules pipes, stages flowtable.Stages) error {
	works := make(map[uint32]dataplane.RuleWork)
	for rule, bits := range stages.Rules {
		works[rule] = dataplane.RuleWork{Stages: bits}
	}
	mss := policy.MSS()
	for rule, limit := range mss {
		work := works[rule]
		work.MSS = limit
		works[rule] = work
	}
	err := e.plane.Publish(dataplane.Generation{
		Epoch: epoch, ACL: rules.acl, Rules: len(policy.Rules) - 1, MACs: identities(policy), NAT: rules.nat, NATNames: natNames(policy),
		Workers: stages.Force != 0 || len(stages.Rules) > 0, ForceStages: stages.Force, Works: works,
		ClampMSS: e.clamps || len(mss) > 0,
	})
	if err != nil {
		return err
	}
	program, err := e.plane.Program()
	if err != nil {
		return fmt.Errorf("take program: %w", err)
	}
	err = e.program.Close()
	e.program = program
	e.twin.SetNAT(rules.nat)
	e.twin.Publish(epoch, rules.acl, len(policy.Rules)-1)
	return err
}

func (e *xdpEngine) routed(now uint64, ifindex uint32, frame []byte, local bool) (netip.Addr, bool) {
	dst, ok := e.twin.Routed(now, ifindex, frame, local)
	return e.pieces.routed(ifindex, frame, dst, ok)
}

func (e *xdpEngine) process(now uint64, ifindex uint32, frame []byte, route flowtable.Route) (outcome, error) {
	if len(frame) < ethernetLen {
		return outcome{reason: bpf.XDPReasonREASON_MALFORMED_ETHERNET}, nil
	}
	e.sim.Control = bpf.XDPSimControl{Now: now, Ifindex: ifindex, Route: route.Nexthop, RouteReason: uint32(route.Reason)}
	if route.Local {
		e.sim.Control.Local = 1
	}
	e.sim.Result = bpf.XDPSimResult{}
	verdict, n, err := e.run(frame)
	if err != nil {
		return outcome{}, err
	}
	r := &e.sim.Result
	out := outcome{
		reason: bpf.XDPReason(r.Reason), rule: r.Rule, action: bpf.XDPAction(r.Action),
		pass: uint8(r.Pass), nexthop: r.Nexthop, stages: uint8(r.Stages), xlat: uint8(r.Xlat),
	}
	switch {
	case verdict == xdpTX:
		out.verdict, out.frame = Answer, e.out[:n]
	case verdict == xdpPass:
		// What stands in front of it is for the kernel. A packet that is passed up is as long as it was.
		out.verdict, out.frame = Pass, e.out[max(0, n-len(frame)):n]
	case out.reason != bpf.XDPReasonREASON_NONE:
		out.verdict = Drop
	case verdict == xdpRedirect || verdict == xdpAborted:
		// No device stands behind a simulated port, so the redirect itself fails.
		out.verdict, out.frame = Forward, e.out[:n]
	default:
		out.reason = bpf.XDPReasonREASON_INTERNAL // allowed and still dropped: it could not be rewritten
	}
	return out, nil
}

// run runs the program once and returns its verdict and the length of what it left in e.out.
func (e *xdpEngine) run(frame []byte) (verdict uint32, n int, err error) {
	e.attr = testRun{
		program: uint32(e.program.FD()), repeat: 1,
		sizeIn: uint32(copy(e.in, frame)), sizeOut: uint32(len(e.out)),
		dataIn:  uint64(uintptr(unsafe.Pointer(unsafe.SliceData(e.in)))),
		dataOut: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(e.out)))),
	}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&e.attr)), unsafe.Sizeof(e.attr)); errno != 0 {
		return 0, 0, fmt.Errorf("run program on a frame of %d bytes: %w", len(frame), errno)
	}
	return e.attr.retval, int(e.attr.sizeOut), nil
}

func (e *xdpEngine) table() *flowtable.Table { return e.flows }

func (e *xdpEngine) age(now uint32, timeouts *flowtable.Timeouts) error {
	// Ports of translated flows that end are free again.
	ports, done := e.plane.NATPorts()
	defer done()
	e.flows.SetNATPorts(ports.Layout, ports.Bitmaps)
	defer e.flows.SetNATPorts(0, nil)
	e.flows.Scan(now, timeouts, func() {}, func(*flowtable.Flow) {}) // no packet is under way
	var beside []flowtable.Flow
	add := func(f flowtable.Flow, ok bool) {
		if ok {
			beside = append(beside, f)
		}
	}
	_, err := e.plane.AgeOverflow(now, timeouts,
		func(f *bpf.XDPFlow4) { add(flowtable.View4(f)) }, func(f *bpf.XDPFlow6) { add(flowtable.View6(f)) })
	for i := range beside {
		e.flows.DropAlias(&beside[i])
	}
	if err != nil {
		return err
	}
	return e.plane.SweepOverflow(e.flows, now)
}

func (e *xdpEngine) close() error {
	var errs []error
	for _, b := range [][]byte{e.in, e.out} {
		if b != nil {
			errs = append(errs, unix.Munmap(b))
		}
	}
	errs = append(errs, e.program.Close())
	if e.plane != nil {
		errs = append(errs, e.plane.Close())
	}
	return errors.Join(errs...)
}
