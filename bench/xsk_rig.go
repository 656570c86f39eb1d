package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/testenv"
)

// xskRig is the device that is measured, and what loads it: a veth pair of the rig's own with a generator at
// its far end, or a device of the machine, which others load.
//
//	generator, counter  s0 ---- c0  sockets, workers
type xskRig struct {
	options  *XSKOptions
	device   string
	mac      [6]byte
	workers  []int // CPU of each
	template []byte
	traffic  xskTraffic

	lab       *testenv.Lab // nil on a device of the machine
	near, far *testenv.Namespace
	generator *xskGenerator
	settings  *deviceSettings
}

// xskPrefix begins the names of the namespaces that the bench makes.
const xskPrefix = labPrefix + "-xsk"

// newXSKRig builds the rig. The caller closes it.
func newXSKRig(o *XSKOptions) (r *xskRig, err error) {
	r = &xskRig{options: o, device: o.Interface, traffic: xskTraffic{rate: o.Rate, flows: o.Flows}}
	if o.Pcap != "" {
		if r.traffic.pcap, err = readReplay(o.Pcap, replayLongest); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if o.Interface == "" {
		return r, r.makeWire()
	}
	return r, r.takeDevice()
}

// makeWire makes the veth pair.
func (r *xskRig) makeWire() (err error) {
	o := r.options
	generators, err := r.placeOnWire()
	if err != nil {
		return err
	}
	prefix := o.prefix
	if prefix == "" {
		prefix = xskPrefix
	}
	if r.lab, err = testenv.Up("wire", testenv.Options{Prefix: prefix, Queues: o.Queues}); err != nil {
		return err
	}
	r.device = "c0"
	if r.near, err = r.lab.Namespace("client"); err != nil {
		return err
	}
	if r.far, err = r.lab.Namespace("server"); err != nil {
		return err
	}
	for _, ns := range []*testenv.Namespace{r.near, r.far} {
		if err := ns.Do(silence); err != nil {
			return err
		}
	}
	near, err := r.near.MAC(r.device)
	if err != nil {
		return err
	}
	far, err := r.far.MAC("s0")
	if err != nil {
		return err
	}
	copy(r.mac[:], near)
	there, here := r.mac, [6]byte(far)
	if o.Bench == TxPush {
		there, here = here, there
	}
	r.template = r.traffic.template(there, here)
	if o.BusyPoll > 0 {
		if err := r.deferInterrupts(); err != nil {
			return err
		}
	}
	r.generator, err = newGenerator(r.far, "s0", r.traffic, slices.Clone(r.template), generators)
	return err
}

// silence makes the kernel of the calling thread's network namespace say nothing by itself.
func silence() error {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0); err != nil {
		return fmt.Errorf("turn IPv6 off: %w", err)
	}
	return nil
}

// placeOnWire chooses the CPUs: what a CPU sends arrives on the veth queue of its number, modulo their
// number, so each queue has a generator's CPU; workers are on others where there are enough.
func (r *xskRig) placeOnWire() (generators []int, err error) {
	o := r.options
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	if len(o.CPUs) > 0 {
		if r.workers, err = checkCPUs(o.CPUs, cpus, o.Queues); err != nil {
			return nil, err
		}
	}
	for q := range o.Queues {
		var fit []int
		for _, c := range cpus {
			if c%o.Queues == q {
				fit = append(fit, c)
			}
		}
		if len(fit) == 0 {
			return nil, fmt.Errorf("place %d queues: the veth pair's generator needs a CPU for each, whose numbers differ modulo %d: there are CPUs %v", o.Queues, o.Queues, cpus)
		}
		at := slices.IndexFunc(fit, func(c int) bool { return !slices.Contains(r.workers, c) })
		generators = append(generators, fit[max(0, at)])
	}
	if len(o.CPUs) == 0 {
		r.workers = spread(cpus, generators, o.Queues)
	}
	return generators, nil
}

// spread chooses n CPUs, from the last on, and those that are busy only when all others are.
func spread(cpus, busy []int, n int) (chosen []int) {
	cpus = slices.Clone(cpus)
	slices.Reverse(cpus)
	slices.SortStableFunc(cpus, func(a, b int) int {
		return len(slices.DeleteFunc([]int{a}, func(c int) bool { return !slices.Contains(busy, c) })) -
			len(slices.DeleteFunc([]int{b}, func(c int) bool { return !slices.Contains(busy, c) }))
	})
	for i := range n {
		chosen = append(chosen, cpus[i%len(cpus)])
	}
	return chosen
}

// allowedCPUs returns the CPUs that this process may run on.
func allowedCPUs() (cpus []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	for c := range len(set) * strconv.IntSize {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

// checkCPUs gives each queue its CPU of those that were asked for.
func checkCPUs(asked, allowed []int, queues int) ([]int, error) {
	for _, c := range asked {
		if !slices.Contains(allowed, c) {
			return nil, fmt.Errorf("pin to CPU %d: this process may run on CPUs %v", c, allowed)
		}
	}
	if len(asked) != queues {
		return nil, fmt.Errorf("pin %d workers to CPUs %v: there must be one CPU for each queue", queues, asked)
	}
	return asked, nil
}

// deferInterrupts makes the veth pair's NAPI leave the work to busy polling, as deviceSettings does on
// devices of the machine. sysfs shows the namespace's devices only to processes that were started in it.
func (r *xskRig) deferInterrupts() error {
	for name, value := range busyPollSettings {
		cmd := r.near.Command(r.options.context, "sh", "-c", "echo "+value+" > /sys/class/net/"+r.device+"/"+name)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("set %s of %s: %w: %s", name, r.device, err, out)
		}
	}
	return nil
}

// takeDevice prepares a device of the machine.
func (r *xskRig) takeDevice() error {
	o := r.options
	l, err := netlink.LinkByName(o.Interface)
	if err != nil {
		return fmt.Errorf("find device %s: %w", o.Interface, err)
	}
	if !o.Force {
		if why, err := carriesDefaultRoute(l); err != nil {
			return err
		} else if why != "" {
			return fmt.Errorf("%w: %s: a bench takes its packets away and may cut you off from this machine; --force does it all the same", errDefaultRoute, why)
		}
	}
	copy(r.mac[:], l.Attrs().HardwareAddr)
	cpus, err := localCPUs(o.Interface)
	if err != nil {
		return err
	}
	if len(o.CPUs) > 0 {
		all, err := allowedCPUs()
		if err != nil {
			return err
		}
		if r.workers, err = checkCPUs(o.CPUs, all, o.Queues); err != nil {
			return err
		}
	} else {
		r.workers = spread(cpus, nil, o.Queues)
	}
	r.template = r.traffic.template(xskNobody, r.mac)
	r.settings, err = takeDeviceSettings(o.stateDir(), o.Interface)
	if err != nil {
		return err
	}
	if o.QueuesAsked {
		if err := r.settings.setQueues(o.Queues); err != nil {
			return err
		}
	}
	if o.BusyPoll > 0 {
		return r.settings.setBusyPoll()
	}
	return nil
}

// xskNobody is to whom tx-push sends on a device of the machine: a locally administered address that no
// device has by itself.
var xskNobody = [6]byte{0x02, 's', 'd', 'p', 'u', 0}

var errDefaultRoute = errors.New("refuse the default route's device")

// carriesDefaultRoute says which default route goes by the device, or by one that stands on it or under it:
// "" if none does.
func carriesDefaultRoute(l netlink.Link) (string, error) {
	concerned := map[int]string{l.Attrs().Index: l.Attrs().Name}
	links, err := netlink.LinkList()
	if err != nil {
		return "", fmt.Errorf("list devices: %w", err)
	}
	for range links { // as deep as devices may be stacked
		for _, other := range links {
			a := other.Attrs()
			if _, below := concerned[a.ParentIndex]; below && a.ParentIndex != 0 && other.Type() != "veth" {
				concerned[a.Index] = a.Name
			}
			if _, ok := concerned[a.Index]; ok && a.MasterIndex != 0 {
				for _, m := range links {
					if m.Attrs().Index == a.MasterIndex {
						concerned[a.MasterIndex] = m.Attrs().Name
					}
				}
			}
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if route.Dst != nil {
			if ones, _ := route.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		if route.Type != unix.RTN_UNICAST {
			continue
		}
		hops := []int{route.LinkIndex}
		for _, h := range route.MultiPath {
			hops = append(hops, h.LinkIndex)
		}
		for _, index := range hops {
			if name, ok := concerned[index]; ok && index != 0 {
				return "the default route goes by " + name, nil
			}
		}
	}
	return "", nil
}

// localCPUs returns the CPUs near a device, all if it is near none, of those that this process may run on.
func localCPUs(device string) ([]int, error) {
	all, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile("/sys/class/net/" + device + "/device/local_cpulist")
	if err != nil {
		return all, nil // a virtual device
	}
	near := parseCPUList(strings.TrimSpace(string(raw)))
	near = slices.DeleteFunc(near, func(c int) bool { return !slices.Contains(all, c) })
	if len(near) == 0 {
		return all, nil
	}
	return near, nil
}

// parseCPUList reads a list such as 0-3,8, and leaves out what it cannot read.
func parseCPUList(s string) (cpus []int) {
	for _, part := range strings.Split(s, ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		last := first
		if ranged {
			if last, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		for c := first; c <= last; c++ {
			cpus = append(cpus, c)
		}
	}
	return cpus
}

// do calls fn in the device's network namespace.
func (r *xskRig) do(fn func() error) error {
	if r.near == nil {
		return fn()
	}
	return r.near.Do(fn)
}

// refused returns how many of the generator's frames the veth pair's queue has refused since it was made.
func (r *xskRig) refused() (n uint64, err error) {
	err = r.far.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool: %w", err)
		}
		defer e.Close()
		all, err := e.Stats("s0")
		if err != nil {
			return fmt.Errorf("read counters of s0: %w", err)
		}
		for name, v := range all {
			if strings.HasSuffix(name, "_xdp_xmit_errors") {
				n += v
			}
		}
		return nil
	})
	return n, err
}

// pinning says which CPU does what.
func (r *xskRig) pinning() string {
	s := "workers on CPUs " + joinInts(r.workers)
	if r.generator != nil && r.options.Bench != TxPush {
		s += ", generator and the socket's softirq on CPUs " + joinInts(r.generator.cpus)
	}
	return s
}

func joinInts(v []int) string {
	var s []string
	for _, n := range v {
		s = append(s, strconv.Itoa(n))
	}
	return strings.Join(s, ",")
}

// detach takes an XDP program away that a peer has left on the device.
func (r *xskRig) detach() error {
	return r.do(func() error {
		l, err := netlink.LinkByName(r.device)
		if err != nil {
			return err
		}
		if x := l.Attrs().Xdp; x == nil || !x.Attached {
			return nil
		}
		if err := netlink.LinkSetXdpFd(l, -1); err != nil {
			return fmt.Errorf("detach the peer's program from %s: %w", r.device, err)
		}
		return nil
	})
}

// attached reports whether the device has an XDP program.
func (r *xskRig) attached() (yes bool, err error) {
	err = r.do(func() error {
		d, err := xsk.Inspect(r.device)
		yes = d.XDP != xsk.Any
		return err
	})
	return yes, err
}

func (r *xskRig) close() error {
	var err error
	if r.generator != nil {
		err = r.generator.close()
	}
	if r.lab != nil {
		_, downErr := testenv.Down(r.lab.Prefix)
		err = errors.Join(err, downErr)
	}
	if r.settings != nil {
		err = errors.Join(err, r.settings.restore(time.Second))
	}
	return err
}

func macText(m [6]byte) string { return net.HardwareAddr(m[:]).String() }
