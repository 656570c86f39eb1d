// Package dataplane loads the programs, owns the ports and keeps the routes.
//
// A Plane holds the programs and their maps. Open makes both; nothing passes yet. Publish puts a
// policy in force on all ports at once; Attach takes the ports, all or none; WatchRoutes keeps what
// XDP remembers of routes and neighbours in step with the kernel. Close gives everything back.
//
//	plane, err := dataplane.Open(dataplane.Options{FlowsMax: 1_000_000})
//	err = plane.Publish(dataplane.Generation{Epoch: 1, ACL: compiled})
//	err = plane.Attach(ports)
//	routes, err := plane.WatchRoutes()
//	err = routes.Run(ctx) // until ctx is done
//	err = plane.Close()
//
// With Options.Keep the packet path outlives the process, however that ends, and the next Open takes it
// over; Leave instead of Close ends the process's part in it alone, and Detach takes everything off.
//
// Devices, sysctls and routes are those of the network namespace whose thread called Open.
package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// Plane is the packet path: programs, maps and ports. Its methods are safe for concurrent use, except
// that nothing may use it, or memory that it handed out, once Close is called.
type Plane struct {
	options Options
	sizes   Sizes
	seed    uint64
	kernel  kernel

	ns *namespace
	nl *netlink.Handle

	spec       *ebpf.CollectionSpec // sized, without the constants of a generation
	withoutNAT *ebpf.CollectionSpec // spec, compiled without translation
	maps       map[string]*ebpf.Map // shared by all generations
	mem        *memory

	dispatch, guardDispatch, mark *ebpf.Program

	credits *ebpf.Map
	life    *life // nil unless the plane outlives its process

	publishing sync.Mutex
	running    atomic.Pointer[loaded]
	crew       atomic.Pointer[crew]      // nil: no workers
	capture    *Capture                  // that runs; publishing is held
	retired    *retired                  // of a change in place; publishing is held
	front      *front                    // what stands in the generation's slot before it; nil: nothing; publishing is held
	workers    bool                      // flows may have stages; publishing is held
	watched    atomic.Pointer[time.Time] // when the route watcher last said that it lives

	natMu sync.RWMutex
	nat   nat

	mu     sync.Mutex // what follows
	fronts []*front   // front, and while one takes its place that too
	ports  []*Port
	placed bool           // by Attach or Place
	undo   []func() error // of Attach, in the order of doing
	files  []func() error // closes what undo needs, and links; called after it
	notes  []string
	losses []link.Link           // what counts losses behind XDP
	locals map[netip.Prefix]bool // what the map of that name holds

	addresses natAddresses

	held heldCounts
}

// kernel is what the running kernel offers.
type kernel struct {
	major, minor int
	frags        bool // redirects of multi-buffer packets, 6.3; programs for them have been since 5.18
	tcx          bool // tc programs attached by bpf_link, 6.6
	force6       bool // IPv6 forwarding switch of a port, 6.17
	rxTags       bool // drivers can tell XDP programs of VLAN tags beside the frame, 6.8
}

// needs is the oldest kernel that can run the programs, and what earlier ones lack.
var needs = struct {
	major, minor int
	what         string
}{5, 18, "helpers bpf_xdp_load_bytes, bpf_xdp_store_bytes and bpf_xdp_get_buff_len, and on arm64 compare-and-exchange"}

// perGeneration names the maps that are not shared: the constants, tables and the edition that only the generation they
// were made for may see, those of a capture, and what the object holds for bpf2go alone.
var perGeneration = map[string]bool{
	bpf.XDPMapMacs: true, bpf.XDPMapSetNodes4: true, bpf.XDPMapSetNodes6: true, bpf.XDPMapRuleWorks: true, ".rodata": true, ".bss": true, editionMap: true,
	bpf.XDPMapForestNodes: true, bpf.XDPMapForestRules4: true, bpf.XDPMapForestRules6: true,
	bpf.XDPMapForestChecks: true, bpf.XDPMapForestRoots: true,
	bpf.XDPMapNatRules: true, bpf.XDPMapNatBuckets: true, bpf.XDPMapNatServers: true, bpf.XDPMapNatPorts: true, bpf.XDPMapNatCounters: true,
	bpf.XDPMapTaps: true, bpf.XDPMapTapBuffers: true, bpf.XDPMapTapCounters: true,
}

// Open loads the programs and makes all maps, in the network namespace of the calling thread. No port
// is touched. It needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and Linux 5.18.
//
// RLIMIT_MEMLOCK is left alone: since 5.11 the kernel does not charge BPF memory to it.
func Open(o Options) (*Plane, error) {
	k, err := probeKernel()
	if err != nil {
		return nil, err
	}
	return open(o, k)
}

func open(o Options, k kernel) (p *Plane, err error) {
	p = &Plane{options: o, seed: o.HashSeed, kernel: k, workers: o.Workers, nat: nat{past: make(map[string]bpf.XDPNatCounter)}}
	if p.sizes, err = o.Sizes(); err != nil {
		return nil, err
	}
	if p.options.EventRate == 0 {
		p.options.EventRate = 1000
	}
	if p.seed == 0 {
		var b [8]byte
		rand.Read(b[:]) // never fails
		p.seed = binary.NativeEndian.Uint64(b[:])
	}
	defer func() {
		if err != nil {
			// Whatever runs here was there before.
			p.undo = nil
			p.release()
			p = nil
		}
	}()
	if !p.MultiBuffer() {
		p.notes = append(p.notes, "this kernel has no multi-buffer XDP that can forward (Linux 6.3): packets larger than a page need generic mode")
	}
	if err = p.openHost(); err != nil {
		return p, err
	}
	if o.Keep {
		if err = p.openLife(); err != nil {
			return p, err
		}
	}
	if err = p.load(); err != nil {
		return p, explainPermission(err)
	}
	return p, nil
}

// openHost opens the network namespace of the calling thread.
func (p *Plane) openHost() (err error) {
	if p.ns, err = currentNamespace(); err != nil {
		return err
	}
	err = p.ns.do(func() (err error) {
		p.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	return nil
}

// MultiBuffer reports whether the programs take packets of several buffers. Where the kernel would drop
// those that they redirect they do not, so that a driver refuses such an MTU; what only simulates sends
// nothing.
func (p *Plane) MultiBuffer() bool {
	return p.kernel.frags || p.options.Simulate
}

// load makes the shared maps and the programs that are never replaced.
func (p *Plane) load() (err error) {
	if p.spec, err = p.sized(bpf.LoadXDP); err != nil {
		return err
	}
	if p.withoutNAT, err = p.sized(bpf.LoadWithoutNAT); err != nil {
		return err
	}
	p.maps = make(map[string]*ebpf.Map)
	if p.life != nil {
		if err := p.takeOver(); err != nil {
			return err
		}
	}
	if p.life == nil || !p.life.taken {
		if err := p.make(); err != nil {
			return err
		}
	}
	if p.mem, err = mapMemory(p.maps, p.credits); err != nil {
		return err
	}
	if p.life != nil && p.life.taken {
		p.forgetWorkers()
		return p.resume()
	}
	p.setEthertypes()
	return nil
}

// sized reads an object and gives its maps their sizes.
func (p *Plane) sized(object func() (*ebpf.CollectionSpec, error)) (*ebpf.CollectionSpec, error) {
	spec, err := object()
	if err != nil {
		return nil, fmt.Errorf("read program object: %w", err)
	}
	for name, entries := range map[string]uint32{
		bpf.XDPMapFlows4: p.sizes.Groups, bpf.XDPMapFlows6: p.sizes.Groups,
		bpf.XDPMapOverflow4: p.sizes.OverflowMax, bpf.XDPMapOverflow6: p.sizes.OverflowMax,
		bpf.XDPMapLegCells: 2 * p.sizes.Groups, bpf.XDPMapFragments: p.sizes.FragmentGroups, bpf.XDPMapRules: p.sizes.Rules,
		bpf.XDPMapTaps: captureRing, bpf.XDPMapTapBuffers: uint32(ebpf.MustPossibleCPU()),
	} {
		spec.Maps[name].MaxEntries = entries
	}
	if !p.MultiBuffer() {
		for _, prog := range spec.Programs {
			prog.Flags &^= unix.BPF_F_XDP_HAS_FRAGS // all programs that share a PROG_ARRAY, or none
		}
	}
	return spec, nil
}

// make makes maps and programs anew.
func (p *Plane) make() (err error) {
	first := p.spec.Copy()
	keepPrograms(first, bpf.XDPProgDispatch, bpf.XDPProgGuardDispatch, bpf.XDPProgMark)
	withoutCapture(first)
	if err := p.setConstants(first, false); err != nil {
		return err
	}
	coll, err := ebpf.NewCollection(first)
	if err != nil {
		return fmt.Errorf("load dispatchers: %w", err)
	}
	defer coll.Close()
	p.dispatch = coll.DetachProgram(bpf.XDPProgDispatch)
	p.guardDispatch = coll.DetachProgram(bpf.XDPProgGuardDispatch)
	p.mark = coll.DetachProgram(bpf.XDPProgMark)
	for name := range coll.Maps {
		if !perGeneration[name] {
			p.maps[name] = coll.DetachMap(name)
		}
	}
	if p.credits, err = ebpf.NewMap(creditsSpec(p.sizes.Rules)); err != nil {
		return fmt.Errorf("make map %s: %w", creditsName, err)
	}
	if p.life != nil {
		return p.pinPlane()
	}
	return nil
}

func (p *Plane) setEthertypes() {
	of := &p.mem.gateway[0].Ethertypes
	for i := range of {
		of[i] = 0
		if i < len(p.options.Ethertypes) {
			of[i] = networkOrder16(p.options.Ethertypes[i])
		}
	}
}

// Notes returns what the operator should know of how the plane runs, beside what each Port says.
func (p *Plane) Notes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.notes...)
}

// Sizes returns what the plane's options came to.
func (p *Plane) Sizes() Sizes { return p.sizes }

// Close gives the ports back and everything of the host that Attach changed, in reverse order, and
// then frees programs and maps. It goes on after an error and returns all of them. The route watcher
// and readers of mapped memory must have ended before. Of a plane that is kept it gives back what runs
// before this one changed, too.
func (p *Plane) Close() error {
	err := p.StopWorkers()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == nil {
		return errors.Join(err, p.detach(), p.release())
	}
	p.undo = nil
	return errors.Join(err, p.giveBack(), p.release())
}

// release closes what the process holds. p.mu is held.
func (p *Plane) release() (err error) {
	for _, closeFile := range p.files {
		err = errors.Join(err, closeFile())
	}
	p.files = nil
	err = errors.Join(err, p.unwatchLosses())
	p.natMu.Lock()
	p.nat.shown = nil
	p.natMu.Unlock()
	if old := p.running.Swap(nil); old != nil {
		old.close()
	}
	p.fronts = nil
	p.front.close()
	p.front = nil
	if p.mem != nil {
		p.mem.close()
	}
	for _, prog := range []*ebpf.Program{p.dispatch, p.guardDispatch, p.mark} {
		err = errors.Join(err, prog.Close())
	}
	for _, m := range p.maps {
		err = errors.Join(err, m.Close())
	}
	err = errors.Join(err, p.credits.Close())
	if p.life != nil {
		p.life.close()
	}
	if p.nl != nil {
		p.nl.Close()
	}
	if p.ns != nil {
		err = errors.Join(err, p.ns.close())
	}
	return err
}

func probeKernel() (kernel, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return kernel{}, fmt.Errorf("read kernel version: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	k, err := parseRelease(release)
	if err != nil {
		return kernel{}, err
	}
	if err := k.check(release); err != nil {
		return kernel{}, err
	}
	k.frags, k.tcx, k.force6 = k.atLeast(6, 3), k.atLeast(6, 6), true
	k.rxTags = k.atLeast(6, 8)
	return k, nil
}

// check refuses a kernel that could not load the programs.
func (k kernel) check(release string) error {
	if k.atLeast(needs.major, needs.minor) {
		return nil
	}
	return fmt.Errorf("kernel %s is too old: softdpu needs Linux %d.%d or newer (%s)", release, needs.major, needs.minor, needs.what)
}

func parseRelease(release string) (k kernel, err error) {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		minor = rest[:i]
	}
	if k.major, err = strconv.Atoi(major); err == nil {
		k.minor, err = strconv.Atoi(minor)
	}
	if err != nil {
		return kernel{}, fmt.Errorf("read kernel version %q: %w", release, err)
	}
	return k, nil
}

func (k kernel) atLeast(major, minor int) bool {
	return k.major > major || k.major == major && k.minor >= minor
}

// explainPermission adds what the kernel's EPERM does not say.
func explainPermission(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		var ve *ebpf.VerifierError
		if !errors.As(err, &ve) {
			return fmt.Errorf("%w: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON", err)
		}
	}
	return err
}

// networkOrder16 returns the number whose bytes in memory are v's in network order.
func networkOrder16(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
