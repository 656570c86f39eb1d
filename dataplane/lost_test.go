package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// follow runs a plane's watcher until the returned function is called, or the test's end.
func follow(t *testing.T, p *Plane) (stop func()) {
	t.Helper()
	routes, err := p.WatchRoutes()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- routes.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func healthy(p *Plane) error { return errors.Join(p.Problems()...) }

// What hangs on a port's device comes back with it, whatever that is: program and guards of either kind, a
// dispatcher bound to the device, MTU, offloads, sysctls, promiscuity. No descriptor is left behind.
func TestDeviceReturns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		old   func(*kernel)
		ports []PortConfig
	}{
		{"routed", thisKernel, []PortConfig{{Name: "lan0", Device: "lan", Zone: 2, SetMTU: 1400}, {Name: "wan0", Device: "wan", Zone: 3}}},
		{"VLANs", thisKernel, []PortConfig{
			{Name: "lan0", Device: "lan", Zone: 2, VLANs: map[uint16]uint8{10: 4}, FixOffloads: true}, {Name: "wan0", Device: "wan", Zone: 3},
		}},
		{"clsact", func(k *kernel) { k.tcx, k.force6 = false, false }, routed()},
		{"generic", thisKernel, []PortConfig{
			{Name: "lan0", Device: "lan", Zone: 2, Mode: ModeGeneric, FixOffloads: true}, {Name: "wan0", Device: "wan", Zone: 3},
		}},
		{"inline", thisKernel, []PortConfig{
			{Name: "lan0", Device: "lan", Zone: 2, Peer: "wan0"}, {Name: "wan0", Device: "wan", Zone: 3, Peer: "lan0"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, "client-server")
			p := g.kept(t, tt.old, Options{Ports: tt.ports})
			stop := follow(t, p)
			if err := healthy(p); err != nil {
				t.Fatal(err)
			}
			var files int
			for round := range 2 {
				u, err := g.lab.Unplug(testenv.Gateway, "lan")
				if err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, 10*time.Second, func() error {
					if port := p.Ports()[0]; port.Missing == "" || port.Up {
						return fmt.Errorf("the port is %+v", port)
					}
					return nil
				})
				if err := u.Replug(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, 10*time.Second, func() error { return healthy(p) })
				port := p.Ports()[0]
				if want := tt.ports[0].SetMTU; want != 0 && port.MTU != want {
					t.Errorf("its MTU is %d", port.MTU)
				}
				if want := tt.ports[0].Mode; want != ModeAuto && port.Running != want {
					t.Errorf("it runs in %s mode", port.Running)
				}
				testenv.Eventually(t, 10*time.Second, func() error { // the watcher may be writing a file
					open, err := os.ReadDir("/proc/self/fd")
					if round == 0 {
						files = len(open)
					} else if len(open) > files {
						return fmt.Errorf("%d descriptors are open, and were %d", len(open), files)
					}
					return err
				})
			}
			if pins, changes := p.life.pins.linkFiles(), p.life.state.records(); len(pins) > 6 || changes > 60 {
				t.Errorf("there are %d pins and %d changes to undo", len(pins), changes)
			}
			stop()
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if pins, _ := filepath.Glob(fmt.Sprintf("%s/*netns-%d*", pinRoot, nsInode(t, g))); len(pins) != 0 {
				t.Errorf("pins are left: %v", pins)
			}
		})
	}
}

func nsInode(t *testing.T, g *gateway) (inode uint64) {
	t.Helper()
	g.do(t, func() error {
		ns, err := currentNamespace()
		if err == nil {
			inode = ns.id.Ino
			err = ns.close()
		}
		return err
	})
	return inode
}

// Messages that were lost are made up for: a port's device went, came back as another, or waits to be
// taken.
func TestResyncFindsDevices(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	routes, err := p.WatchRoutes() // and nobody listens
	if err != nil {
		t.Fatal(err)
	}
	defer routes.socket.Close()
	resync := func() {
		t.Helper()
		if err := routes.resync(); err != nil {
			t.Fatal(err)
		}
	}
	u, err := g.lab.Unplug(testenv.Gateway, "lan")
	if err != nil {
		t.Fatal(err)
	}
	resync()
	if port := p.Ports()[0]; port.Missing == "" {
		t.Errorf("the port is %+v", port)
	}
	if err := u.Replug(); err != nil {
		t.Fatal(err)
	}
	resync()
	if err := healthy(p); err != nil {
		t.Error(err)
	}
	if u, err = g.lab.Unplug(testenv.Gateway, "lan"); err == nil {
		err = u.Replug()
	}
	if err != nil {
		t.Fatal(err)
	}
	resync()
	if err := healthy(p); err != nil {
		t.Error(err)
	}
}

// The kernel says that it could not say everything: then all is looked at anew.
func TestOverflowOfTheWatcher(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	routes, err := p.WatchRoutes()
	if err != nil {
		t.Fatal(err)
	}
	var small error
	err = routes.raw.Control(func(fd uintptr) { small = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
	if err := errors.Join(err, small); err != nil {
		t.Fatal(err)
	}
	g.do(t, func() error {
		lo, err := netlink.LinkByName("lo")
		for i := 0; err == nil && i < 200; i++ {
			err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: cidr(fmt.Sprintf("192.0.2.%d/32", i))})
		}
		return err
	})
	u, err := g.lab.Unplug(testenv.Gateway, "lan")
	if err == nil {
		err = u.Replug()
	}
	if err != nil {
		t.Fatal(err)
	}
	if p.Ports()[0].Missing != "" {
		t.Fatal("somebody listened")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- routes.Run(ctx) }()
	testenv.Eventually(t, 10*time.Second, func() error { return healthy(p) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A device that comes back and cannot be taken is left alone, which is said, and tried again.
func TestDeviceRefused(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	var mu sync.Mutex
	var told []PortChange
	p.options.OnPort = func(e PortEvent) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, e.What)
	}
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	follow(t, p)
	g.do(t, func() error {
		l, err := netlink.LinkByName("lan")
		if err == nil {
			err = netlink.LinkDel(l)
		}
		if err == nil {
			err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}})
		}
		if err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("br")
		if err != nil {
			return err
		}
		// Under another name, it is made a member before the port's name is given to it.
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = "other", bridge.Attrs().Index
		veth := netlink.NewVeth(attrs)
		veth.PeerName = "end"
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return netlink.LinkSetName(veth, "lan")
	})
	testenv.Eventually(t, 10*time.Second, func() error {
		if port := p.Ports()[0]; port.Missing == "" || !strings.Contains(port.Missing, "member of bridge br") {
			return fmt.Errorf("the port is %+v", port)
		}
		return nil
	})
	g.do(t, func() error {
		l, err := netlink.LinkByName("lan")
		if err == nil {
			err = netlink.LinkSetNoMaster(l)
		}
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		return err
	})
	testenv.Eventually(t, 10*time.Second, func() error {
		if port := p.Ports()[0]; port.Missing != "" {
			return fmt.Errorf("the port is %+v", port)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if lost, refused, back := slices.Index(told, PortLost), slices.Index(told, PortRefused), slices.Index(told, PortReturned); lost < 0 || refused < lost || back < refused {
		t.Errorf("told were %v", told)
	}
	if n := len(told); n > 6 {
		t.Errorf("%d times it was told: %v", n, told)
	}
}

// found looks a port up as XDP does.
func found(p *Plane, index uint32) bool {
	mul := atomic.LoadUint32(&p.mem.gateway[0].PortMul)
	return atomic.LoadUint32(&p.mem.ports[index*mul>>24].Ifindex) == index
}

// Ports whose places in the table collide get others, and each is found at any time.
func TestSeatsCollide(t *testing.T) {
	p, err := Open(Options{FlowsMax: 4096, Simulate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var ports []Port
	for i := range 20 {
		ports = append(ports, Port{PortConfig: PortConfig{Name: fmt.Sprint("p", i), Zone: 2}, Index: uint32(i + 2), MTU: 1500})
	}
	if err := p.Place(ports); err != nil {
		t.Fatal(err)
	}
	stop, missed := make(chan struct{}), make(chan uint32, 1)
	go func() {
		// As XDP looks a port up, without rest.
		defer close(missed)
		for {
			for i := range ports {
				// Nothing keeps this look-up from lasting longer than a packet's may: then it counts not.
				index, mul := ports[i].Index, atomic.LoadUint32(&p.mem.gateway[0].PortMul)
				if !found(p, index) && atomic.LoadUint32(&p.mem.gateway[0].PortMul) == mul {
					missed <- index
					return
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	moved := 0
	for n := range 20 {
		mul := p.mem.gateway[0].PortMul
		// An index that collides with the first port's.
		index := uint32(1000)
		for index*mul>>24 != ports[0].Index*mul>>24 || found(p, index) {
			index++
		}
		port := &Port{PortConfig: PortConfig{Name: fmt.Sprint("new", n), Zone: 3}, Index: index, ID: uint8(40 + n%20), MTU: 1500}
		if err := p.seat(port, append(slices.Clone(p.ports), port)); err != nil {
			t.Fatal(err)
		}
		if p.mem.gateway[0].PortMul != mul {
			moved++
		}
		if !found(p, index) {
			t.Fatalf("port %d is not found", index)
		}
		p.clearSeat(port)
	}
	close(stop)
	if index, ok := <-missed; ok {
		t.Errorf("port %d was not found for a moment", index)
	}
	if moved == 0 {
		t.Error("no port had to move")
	}
}
