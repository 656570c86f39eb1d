package dataplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// keep opens a plane that outlives the process, with a policy, and attaches it.
func (g *gateway) keep(t *testing.T, old func(*kernel), o Options) (*Plane, error) {
	t.Helper()
	k, err := probeKernel()
	if err != nil {
		t.Fatal(err)
	}
	old(&k)
	o.FlowsMax, o.Keep = 4096, true
	var p *Plane
	err = g.ns.Do(func() (err error) {
		p, err = open(o, k)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err = p.Publish(Generation{Epoch: p.NextEpoch()}); err == nil {
		err = p.Attach(o.Ports)
	}
	return p, err
}

// kept is keep for what must succeed.
func (g *gateway) kept(t *testing.T, old func(*kernel), o Options) *Plane {
	t.Helper()
	p, err := g.keep(t, old, o)
	if err != nil {
		if p != nil {
			p.Close()
		}
		t.Fatal(err)
	}
	return p
}

func (g *gateway) detach(t *testing.T) {
	t.Helper()
	g.do(t, func() error {
		found, err := Detach()
		if err == nil && !found {
			err = fmt.Errorf("nothing was found")
		}
		return err
	})
}

func leave(t *testing.T, p *Plane) {
	t.Helper()
	if err := p.Leave(); err != nil {
		t.Fatal(err)
	}
}

func thisKernel(*kernel) {}

// Two runs, one over the other, and whoever takes them off: Detach after both, or Close of the second.
func TestKeepGivesEverythingBack(t *testing.T) {
	t.Parallel()
	inline := []PortConfig{
		{Name: "lan0", Device: "lan", Zone: 2, Peer: "wan0"},
		{Name: "wan0", Device: "wan", Zone: 3, Peer: "lan0", Mode: ModeGeneric, FixOffloads: true},
	}
	for _, tt := range []struct {
		name, topology string
		old            func(*kernel)
		ports          []PortConfig
	}{
		{"this kernel", "client-server", thisKernel, routed()},
		{"clsact", "client-server", func(k *kernel) { k.tcx = false }, routed()},
		{"IPv6 forwarding of all devices", "client-server", func(k *kernel) { k.force6 = false }, routed()},
		{"inline, generic, offloads of another namespace", "inline", thisKernel, inline},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, tt.topology)
			before, far := g.snapshot(t), g.far(t)
			for _, byClose := range []bool{false, true} {
				p := g.kept(t, tt.old, Options{Ports: tt.ports})
				during := g.snapshot(t)
				leave(t, p)
				for _, line := range differences(during, g.snapshot(t)) {
					t.Errorf("gone with the process: %s", line)
				}
				p = g.kept(t, tt.old, Options{Ports: tt.ports})
				if taken, why := p.TakenOver(); !taken {
					t.Errorf("not taken over: %s", why)
				}
				for _, port := range p.Ports() {
					if port.Running == ModeAuto || port.Guard == "" {
						t.Errorf("port %s is %+v", port.Name, port)
					}
				}
				for _, line := range differences(during, g.snapshot(t)) {
					t.Errorf("changed by the second run: %s", line)
				}
				if byClose {
					if err := p.Close(); err != nil {
						t.Error(err)
					}
				} else {
					leave(t, p)
					g.detach(t)
				}
				for _, line := range append(differences(before, g.snapshot(t)), differences(far, g.far(t))...) {
					t.Errorf("not given back (by Close: %v): %s", byClose, line)
				}
			}
		})
	}
}

// A port that the second run has no more is given back, and the others stay.
func TestKeepGivesBackPorts(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]func(*kernel){"this kernel": thisKernel, "clsact": func(k *kernel) { k.tcx = false }} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, "three-zone")
			before := g.snapshot(t)
			three := append(routed(), PortConfig{Name: "dmz0", Device: "dmz", Zone: 4})
			leave(t, g.kept(t, old, Options{Ports: three}))
			p := g.kept(t, old, Options{Ports: routed()})
			if taken, why := p.TakenOver(); taken || !strings.Contains(why, "ports") {
				t.Errorf("taken over: %v, %s", taken, why)
			}
			for _, line := range differences(before, g.snapshot(t)) {
				if strings.Contains(line, "ipv6/conf/dmz/forwarding") && !forcesIPv6() {
					continue // the switch of all devices, which the other ports need, is on
				}
				if strings.Contains(line, "dmz") {
					t.Errorf("not given back: %s", line)
				}
			}
			if got := g.sysctl(t, "ipv4/conf/lan/forwarding"); got != "1" {
				t.Errorf("forwarding of lan is %s", got)
			}
			if n := len(p.life.pins.planes()); n != 1 {
				t.Errorf("%d sets of maps are pinned", n)
			}
			leave(t, p)
			g.detach(t)
			for _, line := range differences(before, g.snapshot(t)) {
				t.Errorf("not given back: %s", line)
			}
		})
	}
}

// What counters and flows hold is there in the next run, under the same seed; a number with another
// meaning is not.
func TestKeepTakesOver(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "client-server")
	numbers := func() (saved NumbersText) {
		g.do(t, func() (err error) {
			saved, err = Numbers()
			return err
		})
		return saved
	}
	p := g.kept(t, thisKernel, Options{Ports: routed()})
	for name := range p.spec.Maps {
		_, err := os.Stat(filepath.Join(p.life.pins.plane(p.life.number), name))
		if pinned := err == nil; pinned == perGeneration[name] {
			t.Errorf("map %s is pinned: %v", name, pinned)
		}
	}
	if got := numbers(); got.Whole != nil {
		t.Errorf("numbers that nobody gave are %s", got)
	}
	p.life.state.Boot = "the id that another mount namespace shows"
	if err := p.Publish(Generation{Epoch: p.NextEpoch(), Numbers: NumbersText{Whole: json.RawMessage(`{"web": 7}`)}}); err != nil {
		t.Fatal(err)
	}
	p.mem.flows4[5].Slot[1].Core.Rule = 7
	p.Credits()[7].Packets = 42
	p.mem.cells[5].Leg[1][0] = 7 << 16
	p.mem.queues[bpf.QueueIndex(1, 0)].Size = 9
	seed, epoch := p.seed, p.NextEpoch()
	leave(t, p)

	if !bytes.Contains(numbers().Whole, []byte(`"web": 7`)) {
		t.Errorf("numbers are %s", numbers())
	}
	p = g.kept(t, thisKernel, Options{Ports: routed(), Numbers: numbers()})
	if taken, why := p.TakenOver(); !taken {
		t.Fatalf("not taken over: %s", why)
	}
	if p.mem.flows4[5].Slot[1].Core.Rule != 7 || p.Credits()[7].Packets != 42 || p.seed != seed {
		t.Errorf("flow %+v, credit %+v, seed %x, was %x", p.mem.flows4[5].Slot[1].Core, p.Credits()[7], p.seed, seed)
	}
	// Packets of workers keep their numbers, and the workers have ended.
	if cell, size := p.mem.cells[5].Leg[1][0], p.mem.queues[bpf.QueueIndex(1, 0)].Size; cell != 7<<16 || size != 0 {
		t.Errorf("a cell holds %#x, and a worker takes %d packets", cell, size)
	}
	if got, _ := p.Epoch(); got != epoch {
		t.Errorf("epoch %d, want %d", got, epoch)
	}
	// Health looks at the links that were there before.
	if problems := p.Problems(); len(problems) != 1 || !strings.Contains(problems[0].Error(), "routes are not followed") {
		t.Errorf("problems are %v", problems)
	}
	if p.kernel.tcx {
		guards := p.ports[1].guards
		p.ports[1].guards = nil
		says(t, p, "without guards", "the egress guard is not attached to device wan: there is no link")
		p.ports[1].guards = guards
	}
	leave(t, p)

	// A start that does not come to its end leaves the numbers of the maps that it would have replaced.
	g.do(t, func() error {
		k, err := probeKernel()
		if err != nil {
			return err
		}
		other, err := open(Options{FlowsMax: 4096, Keep: true, Ports: routed()}, k)
		if err != nil {
			return err
		}
		if taken, _ := other.TakenOver(); taken {
			t.Error("taken over without its numbers")
		}
		err = other.Publish(Generation{Epoch: other.NextEpoch(), Numbers: NumbersText{Whole: json.RawMessage(`{"other": 7}`)}})
		return errors.Join(err, other.Leave())
	})
	if !bytes.Contains(numbers().Whole, []byte(`"web": 7`)) {
		t.Errorf("numbers are %s", numbers())
	}

	p = g.kept(t, thisKernel, Options{Ports: routed()})
	if taken, why := p.TakenOver(); taken || !strings.Contains(why, "numbers") {
		t.Errorf("taken over: %v, %s", taken, why)
	}
	if p.mem.flows4[5].Slot[1].Core.Rule != 0 || p.Credits()[7].Packets != 0 {
		t.Error("flows of other rules were kept")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A start that fails leaves the run before as it was, and one that died half-way is made good.
func TestKeepFailedStart(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "client-server")
	before := g.snapshot(t)
	leave(t, g.kept(t, thisKernel, Options{Ports: routed()}))
	during := g.snapshot(t)

	bad := routed()
	bad[1].Mode = ModeGeneric // the first port has been switched over by then
	bad[0].Zone = 9
	p, err := g.keep(t, thisKernel, Options{Ports: bad})
	if err == nil || !strings.Contains(err.Error(), "softdpu detach") {
		t.Errorf("a change of mode: %v", err)
	}
	if n := len(p.life.pins.planes()); n != 2 {
		t.Errorf("%d sets of maps are pinned", n)
	}
	leave(t, p)
	for _, line := range differences(during, g.snapshot(t)) {
		t.Errorf("left by a start that failed: %s", line)
	}
	p = g.kept(t, thisKernel, Options{Ports: routed()})
	if taken, why := p.TakenOver(); !taken {
		t.Errorf("not taken over: %s", why)
	}

	// As if it had died while it moved the links.
	p.life.state.Next = 9
	if err := p.life.state.save(); err != nil {
		t.Fatal(err)
	}
	leave(t, p)
	p = g.kept(t, thisKernel, Options{Ports: routed()})
	if taken, why := p.TakenOver(); taken || !strings.Contains(why, "did not come to its end") {
		t.Errorf("taken over: %v, %s", taken, why)
	}
	leave(t, p)
	g.detach(t)
	for _, line := range differences(before, g.snapshot(t)) {
		t.Errorf("not given back: %s", line)
	}
}

// Pins of a network namespace that has gone are no run before, although a device may have come out of it with its links:
// this one's programs take their place.
func TestKeepDiscardsPinsOfTheDead(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "client-server")
	leave(t, g.kept(t, thisKernel, Options{Ports: routed()}))
	file := stateFile(nsInode(t, g))
	var s *state
	g.do(t, func() (err error) { s, err = readState(file); return err })
	if s.stale != "" || s.Epoch != 1 {
		t.Fatalf("%+v", s)
	}
	s.Cookie++
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	g.do(t, func() error {
		if numbers, err := Numbers(); numbers.Whole != nil || err != nil {
			t.Errorf("numbers of the dead: %s, %v", numbers, err)
		}
		return nil
	})

	p := g.kept(t, thisKernel, Options{Ports: routed()})
	if p.Inherited() || !slices.ContainsFunc(p.Notes(), func(n string) bool { return strings.Contains(n, "another network namespace, which has gone") }) {
		t.Errorf("inherited: %v; notes %q", p.Inherited(), p.Notes())
	}
	if epoch, _ := p.Epoch(); epoch != 1 {
		t.Errorf("the epoch is %d", epoch)
	}
	for _, port := range p.Ports() {
		if port.Running != ModeNative || port.Guard == "" {
			t.Errorf("port %s is %+v", port.Name, port)
		}
	}
	leave(t, p)
	p = g.kept(t, thisKernel, Options{Ports: routed()})
	if taken, why := p.TakenOver(); !taken || len(p.Notes()) > 0 && strings.Contains(p.Notes()[0], "discarded") {
		t.Errorf("the run before is not taken over: %s; notes %q", why, p.Notes())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if pins, _ := filepath.Glob(fmt.Sprintf("%s/*netns-%d*", pinRoot, nsInode(t, g))); len(pins) != 0 {
		t.Errorf("left is %v", pins)
	}
}

// What another network namespace of the same inode number has left is nobody's.
func TestKeepStaleState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	testenv.RequireRoot(t)
	s, err := readState(file)
	if err != nil {
		t.Fatal(err)
	}
	s.Plane = 3
	if err := s.record(sysctlChange("ipv4/conf/lan/forwarding", "0")); err != nil {
		t.Fatal(err)
	}
	if err := s.record(sysctlChange("ipv4/conf/lan/forwarding", "1")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	again, err := readState(file)
	if err != nil || again.Plane != 3 || len(again.Changes) != 1 || again.Changes[0].Old != "0" || again.Changes[0].Owner != "lan" {
		t.Errorf("%+v, %v", again, err)
	}
	s.Cookie++
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	if again, err = readState(file); err != nil || again.Plane != 0 || len(again.Changes) != 0 || !strings.Contains(again.stale, "another network namespace") {
		t.Errorf("%+v, %v", again, err)
	}
	s.Cookie--
	s.Boot = "earlier"
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	if again, err = readState(file); err != nil || again.Plane != 0 || again.stale != "an earlier boot" {
		t.Errorf("%+v, %v", again, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = readState(file); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("damaged: %v", err)
	}
}

func TestKeepLocked(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.kept(t, thisKernel, Options{Ports: routed()})
	if _, err := g.keep(t, thisKernel, Options{Ports: routed()}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("another softdpu (pid %d)", os.Getpid())) {
		t.Errorf("a second one: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// The lab removes what a gateway in it has pinned.
func TestKeepEndsWithItsLab(t *testing.T) {
	testenv.RequireRoot(t)
	lab, err := testenv.Up("client-server", testenv.Options{Prefix: "t-keep"})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := lab.Namespace(testenv.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	leave(t, (&gateway{lab, ns}).kept(t, thisKernel, Options{Ports: routed()}))
	var st unix.Stat_t
	if err := unix.Stat(ns.Path(), &st); err != nil {
		t.Fatal(err)
	}
	pins := func() []string {
		left, _ := filepath.Glob(fmt.Sprintf("/run/softdpu/*netns-%d*", st.Ino))
		pinned, _ := filepath.Glob(fmt.Sprintf("%s/*netns-%d*", pinRoot, st.Ino))
		return append(left, pinned...)
	}
	if len(pins()) != 3 {
		t.Errorf("pinned is %v", pins())
	}
	if _, err := testenv.Down("t-keep"); err != nil {
		t.Fatal(err)
	}
	if len(pins()) != 0 {
		t.Errorf("left is %v", pins())
	}
}

func TestLayoutVersion(t *testing.T) {
	text, err := os.ReadFile("../bpf/abi.h")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), fmt.Sprintf("#define LAYOUT_VERSION %s\n", layoutVersion)) {
		t.Errorf("LAYOUT_VERSION of abi.h is not %s", layoutVersion)
	}
}
