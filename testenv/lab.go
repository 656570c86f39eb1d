package testenv

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoLab says that no lab of the prefix is up.
var ErrNoLab = errors.New("no lab is up")

// ErrNotRoot says that namespaces cannot be made or entered for want of privilege.
var ErrNotRoot = errors.New("network namespaces need root: run it with sudo")

// Options of a lab. The zero value is a person's lab.
type Options struct {
	Prefix string // of the namespaces' names; "" is DefaultPrefix
	MTU    int    // of all devices, in bytes; 0 is 1500
	Queues int    // receive and transmit queues of every device; 0 is 1
}

func (o Options) normal() (Options, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	if !validPrefix.MatchString(o.Prefix) {
		return o, fmt.Errorf("use prefix %q: it must be up to 32 lower-case letters, digits and dashes", o.Prefix)
	}
	if o.MTU < 1280 || o.MTU > 65535 {
		return o, fmt.Errorf("use MTU %d: it must be 1280 (the least of IPv6) to 65535", o.MTU)
	}
	if o.Queues < 1 || o.Queues > 64 {
		return o, fmt.Errorf("use %d queues: there must be 1 to 64", o.Queues)
	}
	return o, nil
}

var validPrefix = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// A Lab is a topology that is up. It holds nothing open and needs no Close.
type Lab struct {
	Topology Topology
	Prefix   string
}

// Up builds a lab. What is left of an earlier one of the same prefix, whole or crashed, is removed
// first with the processes in it. After an error nothing is left behind.
func Up(topology string, o Options) (*Lab, error) {
	t, err := TopologyByName(topology)
	if err != nil {
		return nil, err
	}
	if o, err = o.normal(); err != nil {
		return nil, err
	}
	unlock, err := lockLabs()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := remove(o.Prefix); err != nil {
		return nil, err
	}
	l := &Lab{t, o.Prefix}
	if err := l.build(o); err != nil {
		_, downErr := remove(o.Prefix)
		return nil, errors.Join(fmt.Errorf("bring up %s: %w", topology, err), downErr)
	}
	return l, nil
}

// Open returns the lab that is up under the prefix ("" is DefaultPrefix), or ErrNoLab.
func Open(prefix string) (*Lab, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	labs, err := List()
	if err != nil {
		return nil, err
	}
	for _, s := range labs {
		if s.Prefix != prefix {
			continue
		}
		t, err := TopologyByName(s.Topology)
		return &Lab{t, prefix}, err
	}
	return nil, fmt.Errorf("open lab %s: %w", prefix, ErrNoLab)
}

// Down removes the lab of that prefix ("" is DefaultPrefix), whole or crashed: it ends the processes
// in its namespaces, other than the calling one, and removes devices and namespaces. It reports
// whether there was anything to remove.
func Down(prefix string) (bool, error) {
	o, err := Options{Prefix: prefix}.normal()
	if err != nil {
		return false, err
	}
	unlock, err := lockLabs()
	if err != nil {
		return false, err
	}
	defer unlock()
	return remove(o.Prefix)
}

// Namespace returns the node's namespace. It takes the short name ("client") and the whole one
// ("sdpu-client").
func (l *Lab) Namespace(node string) (*Namespace, error) {
	var names []string
	for _, n := range l.Topology.Nodes {
		whole := l.Prefix + "-" + n.Name
		if node == n.Name || node == whole {
			return OpenNamespace(whole)
		}
		names = append(names, n.Name)
	}
	return nil, fmt.Errorf("find namespace %q: %s has %s", node, l.Topology.Name, strings.Join(names, ", "))
}

func (l *Lab) namespace(node string) *Namespace { return &Namespace{l.Prefix + "-" + node} }

// build makes everything, in an order in which each step needs only earlier ones.
func (l *Lab) build(o Options) error {
	for _, n := range l.Topology.Nodes {
		ns, err := createNamespace(l.Prefix + "-" + n.Name)
		if err != nil {
			return err
		}
		if err := ns.Do(prepare); err != nil {
			return fmt.Errorf("prepare %s: %w", ns.name, err)
		}
	}
	for _, link := range l.Topology.Links {
		if err := l.join(link, o); err != nil {
			return fmt.Errorf("join %s and %s: %w", link.A.Device, link.B.Device, err)
		}
	}
	for _, n := range l.Topology.Nodes {
		for _, d := range n.Devices {
			if err := l.namespace(n.Name).Do(func() error { return l.configure(d) }); err != nil {
				return fmt.Errorf("configure %s: %w", d.Name, err)
			}
		}
	}
	for _, n := range l.Topology.Nodes {
		if err := l.namespace(n.Name).Do(func() error { return finish(n) }); err != nil {
			return fmt.Errorf("configure %s: %w", n.Name, err)
		}
	}
	return nil
}

// prepare sets what devices inherit when they are made later, and brings up the loopback.
func prepare() error {
	settings := []struct{ name, value string }{
		{"ipv4/ip_forward", "0"},
		{"ipv6/conf/all/forwarding", "0"},
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		// Addresses at once, and no router solicitations in captures.
		{"ipv6/conf/default/accept_dad", "0"},
		{"ipv6/conf/default/accept_ra", "0"},
		{"ipv6/conf/default/autoconf", "0"},
		{"ipv6/conf/default/router_solicitations", "0"},
	}
	for _, s := range settings {
		if err := setSysctl(s.name, s.value); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	return nil
}

// setSysctl writes below /proc/sys/net, which is that of the calling thread's namespace.
func setSysctl(name, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", name, value, err)
	}
	return nil
}

// join makes the veth pair with each end where it belongs, so that no name ever stands elsewhere.
func (l *Lab) join(link Link, o Options) error {
	peer, err := l.namespace(link.B.Node).open()
	if err != nil {
		return err
	}
	defer peer.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link.A.Device
	attrs.MTU = o.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = o.Queues, o.Queues
	veth := netlink.NewVeth(attrs)
	veth.PeerName = link.B.Device
	veth.PeerNamespace = netlink.NsFd(peer.Fd())
	veth.PeerMTU = uint32(o.MTU)
	veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(o.Queues), uint32(o.Queues)
	return l.namespace(link.A.Node).Do(func() error { return netlink.LinkAdd(veth) })
}

// aliasPrefix begins every device's alias, which is how List knows a lab and its topology.
const aliasPrefix = "softdpu lab "

func (l *Lab) configure(d Device) error {
	link, err := netlink.LinkByName(d.Name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetAlias(link, aliasPrefix+l.Topology.Name); err != nil {
		return fmt.Errorf("set alias: %w", err)
	}
	if len(d.Addresses) == 0 {
		if err := setSysctl("ipv6/conf/"+d.Name+"/disable_ipv6", "1"); err != nil {
			return err
		}
	}
	for _, p := range d.Addresses {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s: %w", p, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	if d.GRO {
		return setGRO(d.Name)
	}
	return nil
}

// setGRO turns generic receive offload on, which makes veth receive through NAPI.
func setGRO(device string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	if err := e.Change(device, map[string]bool{"rx-gro": true}); err != nil {
		return fmt.Errorf("turn on GRO: %w", err)
	}
	return nil
}

// finish waits until the devices carry packets and hear neighbour solicitations, both of which the
// kernel arranges a moment after both ends are up, and adds the default routes.
func finish(n Node) error {
	for _, d := range n.Devices {
		if err := eventually(func() error { return carries(d.Name) }); err != nil {
			return err
		}
		if err := eventually(func() error { return hearsSolicitations(d) }); err != nil {
			return err
		}
	}
	for _, gw := range n.Default {
		all := netip.PrefixFrom(gw, 0).Masked()
		if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(all), Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("add default route by %s: %w", gw, err)
		}
	}
	return nil
}

func carries(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	if state := link.Attrs().OperState; state != netlink.OperUp {
		return fmt.Errorf("wait for carrier of %s: it is %s", device, state)
	}
	return nil
}

// hearsSolicitations checks that the device has joined the solicited-node groups of its addresses
// (RFC 4291, 2.7.1). A solicitation before that is lost, and the next one comes a second later.
func hearsSolicitations(d Device) error {
	joined, err := os.ReadFile("/proc/thread-self/net/igmp6")
	if err != nil {
		return fmt.Errorf("read multicast groups: %w", err)
	}
	for _, p := range d.Addresses {
		if a := p.Addr(); a.Is6() {
			b := a.As16()
			// Fields: index, device, group in hexadecimal, ...
			want := fmt.Sprintf("ff0200000000000000000001ff%02x%02x%02x", b[13], b[14], b[15])
			if !slices.ContainsFunc(strings.Split(string(joined), "\n"), func(line string) bool {
				f := strings.Fields(line)
				return len(f) > 2 && f[1] == d.Name && f[2] == want
			}) {
				return fmt.Errorf("wait for %s: it has not joined the solicited-node group of %s", d.Name, a)
			}
		}
	}
	return nil
}

// eventually calls fn until it returns nil, or for 5 s.
func eventually(fn func() error) error {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		err := fn()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// remove takes away every namespace that a lab of the prefix may have, of whatever topology.
func remove(prefix string) (bool, error) {
	found := false
	var errs []error
	for _, name := range possibleNamespaces(prefix) {
		n := &Namespace{name}
		if _, err := os.Lstat(n.Path()); errors.Is(err, os.ErrNotExist) {
			continue
		}
		found = true
		errs = append(errs, n.endProcesses(), n.removePins(), n.deleteDevices(), n.remove())
	}
	return found, errors.Join(errs...)
}

func possibleNamespaces(prefix string) []string {
	var names []string
	seen := map[string]bool{}
	for _, t := range Topologies() {
		for _, n := range t.Nodes {
			if name := prefix + "-" + n.Name; !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}

// deleteDevices removes the lab's veth pairs. Without it they would stay for as long as somebody,
// say a socket of the caller, keeps the namespace alive.
func (n *Namespace) deleteDevices() error {
	mounted, err := n.mounted()
	if err != nil || !mounted {
		return err
	}
	return n.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list devices of %s: %w", n.name, err)
		}
		var errs []error
		for _, l := range links {
			if l.Type() == "veth" && strings.HasPrefix(l.Attrs().Alias, aliasPrefix) {
				errs = append(errs, netlink.LinkDel(l))
			}
		}
		return errors.Join(errs...)
	})
}

// lockLabs serialises the making and removing of labs, by the lock that ip(8) takes too.
func lockLabs() (unlock func(), err error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", namespaceDir, err)
	}
	f, err := os.Open(namespaceDir)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", namespaceDir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", namespaceDir, err)
	}
	return func() { f.Close() }, nil
}
