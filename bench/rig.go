package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

// wires is a lab whose gateway has routes to wide networks behind the client and behind the server,
// and forwards nothing yet.
//
//	clients 10.128.0.0/9, fd20::/32 -- c0 | lan  gateway  wan | s0 -- servers 10.64.0.0/10, fd30::/32
type wires struct {
	lab           *testenv.Lab
	gw            *testenv.Namespace
	client, serve [6]byte // MACs of c0 and s0
	lanMAC        [6]byte
	wanMAC        [6]byte
}

// labPrefix begins the names of all namespaces that benchmarks make.
const labPrefix = "sdpu-bench"

func newWires(prefix string) (w *wires, err error) {
	w = &wires{}
	if w.lab, err = testenv.Up("client-server", testenv.Options{Prefix: prefix}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.gw, err = w.lab.Namespace("gw"); err != nil {
		return w, err
	}
	for _, d := range []struct {
		node, device string
		mac          *[6]byte
	}{{"client", "c0", &w.client}, {"server", "s0", &w.serve}, {"gw", "lan", &w.lanMAC}, {"gw", "wan", &w.wanMAC}} {
		if *d.mac, err = w.mac(d.node, d.device); err != nil {
			return w, err
		}
	}
	return w, w.gw.Do(func() error {
		for _, route := range []struct{ network, gateway, device string }{
			{"10.128.0.0/9", "10.10.1.2", "lan"}, {"10.64.0.0/10", "10.10.2.2", "wan"},
			{"fd20::/32", "fd10:1::2", "lan"}, {"fd30::/32", "fd10:2::2", "wan"},
		} {
			if err := w.route(route.network, route.gateway, route.device); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *wires) close() error {
	_, err := testenv.Down(w.lab.Prefix)
	return err
}

// rig is softdpu in a lab: the packet path that `run` loads, under a policy.
type rig struct {
	*wires
	plane    *dataplane.Plane
	stop     func() error // of the route watcher
	lan, wan dataplane.Port

	generation dataplane.Generation // what was published
}

// newRig builds the rig. The caller closes it.
func newRig(prefix string, options dataplane.Options, policy string) (r *rig, err error) {
	compiled, acl, err := compile(policy)
	if err != nil {
		return nil, err
	}
	options.Rules = len(compiled.Rules)
	return newRigOf(prefix, options, compiled, acl)
}

// newRigOf builds the rig with a classifier of the caller's.
func newRigOf(prefix string, options dataplane.Options, compiled *firewall.Compiled, acl *flowtable.ACL) (r *rig, err error) {
	w, err := newWires(prefix)
	if err != nil {
		return nil, err
	}
	r = &rig{wires: w, stop: func() error { return nil }}
	if err = r.gw.Do(func() error { return r.start(options, compiled, acl) }); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (w *wires) mac(node, device string) (mac [6]byte, err error) {
	ns, err := w.lab.Namespace(node)
	if err != nil {
		return mac, err
	}
	hw, err := ns.MAC(device)
	copy(mac[:], hw)
	return mac, err
}

func (r *rig) start(options dataplane.Options, compiled *firewall.Compiled, acl *flowtable.ACL) (err error) {
	if r.plane, err = dataplane.Open(options); err != nil {
		return err
	}
	r.generation = dataplane.Generation{Epoch: 1, ACL: acl, Rules: len(compiled.Rules) - 1, NAT: compiled.NAT}
	if err := r.plane.Publish(r.generation); err != nil {
		return err
	}
	var ports []dataplane.PortConfig
	for _, name := range []string{"lan", "wan"} {
		zone, _ := compiled.ZoneOf(name, 0)
		port := dataplane.PortConfig{Name: name, Device: name, Zone: zone, FixOffloads: true}
		if zone, ok := compiled.ZoneOf(name, rigVLAN); ok {
			port.VLANs = map[uint16]uint8{rigVLAN: zone}
		}
		ports = append(ports, port)
	}
	if err := r.plane.Attach(ports); err != nil {
		return err
	}
	r.lan, r.wan = r.plane.Ports()[0], r.plane.Ports()[1]
	routes, err := r.plane.WatchRoutes()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- routes.Run(ctx) }()
	r.stop = func() error { cancel(); return <-done }
	return nil
}

// route adds a route and a permanent neighbour for its gateway, so that nothing has to be resolved.
func (w *wires) route(network, gateway, device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	mac := w.client
	if device == "wan" {
		mac = w.serve
	}
	hop := netip.MustParseAddr(gateway)
	err = netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: hop.AsSlice(), HardwareAddr: net.HardwareAddr(mac[:])})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", gateway, err)
	}
	_, dst, err := net.ParseCIDR(network)
	if err == nil {
		err = netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: hop.AsSlice()})
	}
	if err != nil {
		return fmt.Errorf("add route to %s: %w", network, err)
	}
	return nil
}

func (r *rig) close() error {
	err := r.stop()
	if r.plane != nil {
		err = errors.Join(err, r.plane.Close())
	}
	return errors.Join(err, r.wires.close())
}

func compile(policy string) (*firewall.Compiled, *flowtable.ACL, error) {
	r, err := compileAfter([]byte(policy), nil)
	if err != nil {
		return nil, nil, err
	}
	return r.compiled, r.acl, nil
}

// rules are a policy that is compiled, perhaps as a change of the one before.
type rules struct {
	reading  *firewall.Reading
	compiled *firewall.Compiled
	acl      *flowtable.ACL
	revised  *flowtable.ACL // of which acl is a change, nil: it was compiled anew
	change   *flowtable.ForestChange
}

// compileAfter reads and compiles a policy as a gateway does where it follows another, which may be nil. The text must
// not be changed afterwards.
func compileAfter(policy []byte, before *rules) (*rules, error) {
	r := &rules{reading: new(firewall.Reading)}
	if before != nil {
		r.reading = before.reading
	}
	parsed, err := r.reading.Parse([]firewall.Source{{Name: "bench.yaml", Text: policy}}, nil)
	if err != nil {
		return nil, err
	}
	options := firewall.CompileOptions{Now: time.Now(), Ports: []string{"lan", "wan"}}
	if before != nil {
		options.Previous, options.After = before.compiled.Identities, before.compiled
	}
	if r.compiled, err = firewall.Compile(parsed, options); err != nil {
		return nil, err
	}
	if before != nil {
		if acl, change, ok := before.acl.Revise(r.compiled.Entries); ok {
			r.acl, r.revised, r.change = acl, before.acl, change
			return r, nil
		}
	}
	r.acl, err = flowtable.CompileACL(r.compiled.Entries)
	return r, err
}

// pin keeps the calling goroutine on one CPU until the function that it returns is called.
func pin(cpu int) (func(), error) {
	runtime.LockOSThread()
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return func() {
		unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}, nil
}
