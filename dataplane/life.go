package dataplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// life is what a plane that outlives its process knows of the run before it.
type life struct {
	pins  *pins
	state *state
	held  map[string]*heldLink // what the run before left on devices, by name

	inherited bool   // there was a run before
	taken     bool   // its maps are used on
	afresh    string // why they are not, if it was inherited
	directory string // of maps that this run made, until Attach has succeeded
	number    int    // of the plane in use

	linked  map[string]bool      // links that this run uses
	links   map[string]link.Link // of them, those that this run has made
	records int                  // changes in the state when this run began

	numbers json.RawMessage // of the generation published, while the state still tells of the maps before
}

// Numbers returns what the latest generation of an earlier run, in the network namespace of the calling
// thread, said of its numbers: see Generation. It returns nil if there was none.
func Numbers() (json.RawMessage, error) {
	ns, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	defer ns.close()
	s, err := readState(stateFile(ns.id.Ino))
	if err != nil || s.Plane == 0 {
		return nil, err
	}
	return s.Numbers, nil
}

// publish remembers a generation that is about to be in force. Its numbers are those of the maps that it
// runs on: until commit, new ones are not those that a run after a failure finds.
func (l *life) publish(g *Generation) error {
	if l.taken || l.directory == "" {
		return l.state.publish(g.Epoch, g.Numbers)
	}
	if g.Numbers != nil {
		l.numbers = g.Numbers
	}
	return l.state.publish(g.Epoch, nil)
}

// openLife finds what there is. p.ns and p.nl are open.
func (p *Plane) openLife() error {
	pins, err := openPins(p.ns.id.Ino)
	if err != nil {
		return err
	}
	l := &life{pins: pins, linked: make(map[string]bool), links: make(map[string]link.Link)}
	p.life = l
	err = p.ns.do(func() (err error) {
		l.state, err = readState(pins.stateFile())
		return err
	})
	if err != nil {
		return err
	}
	l.records = len(l.state.Changes)
	if l.held, err = pins.links(); err != nil {
		return err
	}
	l.inherited = l.state.Plane != 0 || len(l.held) > 0
	return nil
}

func (l *life) close() {
	if l.directory != "" {
		// Nothing hangs on these maps: Attach has failed, or was never called.
		_ = os.RemoveAll(l.directory)
	}
	for _, h := range l.held {
		h.Close()
	}
	for _, made := range l.links {
		made.Close()
	}
	l.pins.close()
}

// takeOver opens the maps and programs of the run before, if they mean what this run's would. Why not is
// in afresh then.
func (p *Plane) takeOver() error {
	l := p.life
	if !l.inherited {
		return nil
	}
	if l.afresh = p.differs(); l.afresh != "" {
		return nil
	}
	var err error
	dir := l.pins.plane(l.state.Plane)
	for name, spec := range p.spec.Maps {
		if perGeneration[name] {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if err != nil {
			l.afresh = fmt.Sprintf("map %s cannot be opened: %v", name, err)
			break
		}
		p.maps[name] = m
		if name == bpf.XDPMapRules && m.MaxEntries() > spec.MaxEntries {
			spec.MaxEntries, p.sizes.Rules = m.MaxEntries(), m.MaxEntries()
		}
		if err := spec.Compatible(m); err != nil {
			l.afresh = fmt.Sprintf("map %s is of another size or kind", name)
			break
		}
	}
	if l.afresh == "" {
		p.credits, err = ebpf.LoadPinnedMap(filepath.Join(dir, creditsName), nil)
		if err != nil || creditsSpec(p.sizes.Rules).Compatible(p.credits) != nil {
			l.afresh = "the counts of flows that have ended cannot be opened"
		}
	}
	for name, prog := range p.programs() {
		if l.afresh != "" {
			break
		}
		if *prog, err = ebpf.LoadPinnedProgram(filepath.Join(dir, name), nil); err != nil {
			l.afresh = fmt.Sprintf("program %s cannot be opened: %v", name, err)
		}
	}
	if l.afresh != "" {
		return p.letGo()
	}
	l.taken, l.number = true, l.state.Plane
	p.seed = l.state.Seed
	return nil
}

// letGo closes what takeOver has opened in vain.
func (p *Plane) letGo() error {
	var errs []error
	for _, m := range p.maps {
		errs = append(errs, m.Close())
	}
	clear(p.maps)
	for _, prog := range p.programs() {
		errs = append(errs, (*prog).Close())
		*prog = nil
	}
	errs = append(errs, p.credits.Close())
	p.credits = nil
	return errors.Join(errs...)
}

// programs are those that are never replaced, by name.
func (p *Plane) programs() map[string]**ebpf.Program {
	return map[string]**ebpf.Program{
		bpf.XDPProgDispatch: &p.dispatch, bpf.XDPProgGuardDispatch: &p.guardDispatch, bpf.XDPProgMark: &p.mark,
	}
}

// differs says what numbers in the maps of the run before would mean something else now.
func (p *Plane) differs() string {
	s := p.life.state
	switch {
	case s.Next != 0:
		return "a start before this one did not come to its end"
	case s.Plane == 0:
		return "its state is lost"
	}
	if !slices.Equal(fingerprints(p.options.Ports), s.Ports) {
		return "the ports, their devices or their zones are others"
	}
	if !bytes.Equal(p.options.Numbers, s.Numbers) {
		return "the policy cannot go on with the numbers of rules, zones and MAC addresses"
	}
	return ""
}

// fingerprints says of each port, by name, what its number in the maps stands for. The device is not
// among that: it may have gone and come back as another.
func fingerprints(ports []PortConfig) []string {
	prints := make([]string, 0, len(ports))
	for _, c := range ports {
		prints = append(prints, fmt.Sprintf("%s: device %s zone %d vlans %v peer %q", c.Name, c.Device, c.Zone, c.VLANs, c.Peer))
	}
	slices.Sort(prints)
	return prints
}

// pinPlane pins what this run has made, in a directory of its own.
func (p *Plane) pinPlane() error {
	l := p.life
	l.number = l.pins.next()
	l.directory = l.pins.plane(l.number)
	if err := os.MkdirAll(l.directory, 0o700); err != nil {
		return fmt.Errorf("make the directory of pins: %w", err)
	}
	for name, m := range p.maps {
		if err := m.Pin(filepath.Join(l.directory, name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	if err := p.credits.Pin(filepath.Join(l.directory, creditsName)); err != nil {
		return fmt.Errorf("pin map %s: %w", creditsName, err)
	}
	for name, prog := range p.programs() {
		if err := (*prog).Pin(filepath.Join(l.directory, name)); err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	return nil
}

// resume takes over what else the maps of the run before hold: own addresses, and the generation in
// force, which Publish replaces.
func (p *Plane) resume() error {
	var (
		key   bpf.XDPLocalKey
		value uint32
	)
	p.locals = make(map[netip.Prefix]bool)
	it := p.maps[bpf.XDPMapLocals].Iterate()
	for it.Next(&key, &value) {
		b := gatewayBytes(&key.Addr)
		addr := netip.AddrFrom16(b)
		if key.Family == 4 {
			addr = netip.AddrFrom4([4]byte(b[:4]))
		}
		p.locals[netip.PrefixFrom(addr, int(key.Prefixlen)-32)] = true
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read own addresses: %w", err)
	}
	g := &loaded{epoch: p.life.state.Epoch}
	err := p.maps[bpf.XDPMapGenerations].Lookup(uint32(0), &g.xdp)
	if err == nil {
		err = p.maps[bpf.XDPMapGuards].Lookup(uint32(0), &g.guard)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		g.close()
		return nil // it ended before its first policy
	}
	if err != nil {
		g.close()
		return fmt.Errorf("look up the policy in force: %w", err)
	}
	p.running.Store(g)
	return nil
}

// NextEpoch is one more than the highest that this run or, where it is a plane that is kept, those
// before it have published.
func (p *Plane) NextEpoch() uint32 {
	if p.life != nil {
		return p.life.state.Epoch + 1
	}
	if epoch, ok := p.Epoch(); ok {
		return epoch + 1
	}
	return 1
}

// TakenOver reports whether the plane goes on with the flows and counters of a run before it. Where there
// was one and it does not, afresh says why.
func (p *Plane) TakenOver() (taken bool, afresh string) {
	if p.life == nil {
		return false, ""
	}
	return p.life.taken, p.life.afresh
}

// Inherited reports whether a run before this one has left a policy in force here.
func (p *Plane) Inherited() bool { return p.life != nil && p.life.inherited }

// record remembers a change of the host that is about to be made, where the plane outlives its process.
func (p *Plane) record(c change) error {
	if p.life == nil {
		return nil
	}
	return p.life.state.record(c)
}

// begin remembers that links may hang on the maps that this run made, from here on.
func (p *Plane) begin() error {
	if p.life == nil || p.life.taken {
		return nil
	}
	p.life.state.Next = p.life.number
	return p.life.state.save()
}

// commit makes what Attach did the state from which the next run begins, and then takes off what the run
// before had and this one has not: its maps, and ports that are no longer configured.
func (p *Plane) commit() error {
	l, s := p.life, p.life.state
	s.Plane, s.Next, s.Seed = l.number, 0, p.seed
	if !l.taken {
		s.Numbers = l.numbers
	}
	if err := p.savePorts(); err != nil {
		return err
	}
	l.directory = ""
	owners := map[string]bool{"all": true}
	for _, port := range p.ports {
		owners[port.Device] = true
		for _, dev := range port.vlanDevices {
			owners[dev.name] = true
		}
	}
	err := p.putBack(func(c *change) bool { return !owners[c.Owner] }, func(name string) bool { return !l.linked[name] })
	for _, dir := range l.pins.planes() {
		if dir != l.pins.plane(l.number) {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	for _, file := range l.pins.linkFiles() {
		if to := l.pins.home("links", filepath.Base(file)); file != to {
			err = errors.Join(err, os.Rename(file, to))
		}
	}
	if err != nil {
		p.notes = append(p.notes, fmt.Sprintf("what the run before had is not wholly taken off: %v", err))
	}
	return nil
}

// putBack restores the chosen changes, the latest first, and detaches the chosen links, in the order that
// never lets the kernel forward unguarded: forwarding, XDP, guards, and then what XDP needed.
func (p *Plane) putBack(changes func(*change) bool, links func(name string) bool) error {
	var errs []error
	s := p.life.state
	restore := func(first bool) {
		for i := len(s.Changes) - 1; i >= 0; i-- {
			c := &s.Changes[i]
			if !changes(c) || first != (c.Kind == changeSysctl) {
				continue
			}
			if err := p.restore(c); err != nil {
				errs = append(errs, err)
				continue
			}
			s.Changes = slices.Delete(s.Changes, i, i+1)
		}
	}
	restore(true)
	files := p.life.pins.linkFiles()
	// xdp-N before guard-N and mark-N
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(filepath.Base(b), filepath.Base(a)) })
	for _, file := range files {
		if links(filepath.Base(file)) {
			errs = append(errs, detachPinned(file))
		}
	}
	restore(false)
	return errors.Join(append(errs, s.save())...)
}

// restore sets one thing back as it was. What went with its device needs nothing.
func (p *Plane) restore(c *change) error {
	switch c.Kind {
	case changeSysctl:
		return restoreSysctl(c.Name, c.Old)
	case changeFeatures:
		at := end{ns: p.ns, device: c.Device}
		if c.NetNS != nil {
			ns, err := p.namespaceByID(*c.NetNS)
			if err != nil {
				return nil // it has gone, with the device in it
			}
			defer ns.close()
			at.ns = ns
		}
		return at.turnOn(c.Features)
	case changeQdisc:
		return ignoreMissing(p.nl.QdiscDel(clsact(c.Index)))
	case changeFilters:
		var errs []error
		for _, f := range guardFilters(c.Index, nil, nil) {
			errs = append(errs, ignoreMissing(p.nl.FilterDel(f)))
		}
		return errors.Join(errs...)
	}
	l, err := p.nl.LinkByIndex(c.Index)
	if err != nil {
		return nil // gone
	}
	if c.Kind == changeMTU {
		err = p.nl.LinkSetMTU(l, c.MTU)
	} else {
		err = p.nl.SetPromiscOff(l)
	}
	if err = ignoreMissing(err); err != nil {
		return fmt.Errorf("restore %s of device %s: %w", c.Kind, c.Owner, err)
	}
	return nil
}

// savePorts remembers what ports there are now, for the next run.
func (p *Plane) savePorts() error {
	s := p.life.state
	configs := make([]PortConfig, len(p.ports))
	indices, why := make(map[string]uint32), make(map[string]string)
	for i, port := range p.ports {
		configs[i] = port.PortConfig
		configs[i].Device = port.wanted
		if !port.present() {
			continue
		}
		indices[port.Name] = port.Index
		if port.WhyNotNative != "" {
			why[linkName("xdp", port.Index)] = port.WhyNotNative
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Ports, s.Numbering, s.Indices, s.WhyGeneric = fingerprints(configs), numberingOf(p.ports), indices, why
	return s.write()
}

// Leave ends the process's part in a plane that was opened with Keep, and leaves everything else: XDP and
// guards stay with the policy in force, and the host as it was set. The next Open takes over.
func (p *Plane) Leave() error {
	if p.life == nil {
		return errors.New("leave the packet path: it was not opened to be kept")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.undo = nil
	return p.release()
}

// Detach takes everything off that gateways have left in the network namespace of the calling thread,
// and sets the host back as it was before the first of them. It reports whether there was anything, and
// refuses while a gateway runs.
func Detach() (found bool, err error) {
	p := &Plane{}
	if err := p.openHost(); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, p.release()) }()
	if err := p.openLife(); err != nil {
		return false, err
	}
	found = p.life.inherited || len(p.life.state.Changes) > 0
	return found, p.giveBack()
}

// giveBack is Detach for a plane that is open.
func (p *Plane) giveBack() error {
	all := func(*change) bool { return true }
	err := p.ns.do(func() error { return p.putBack(all, func(string) bool { return true }) })
	if err != nil {
		return fmt.Errorf("give the host back: %w", err)
	}
	p.life.directory = ""
	return p.life.pins.removeAll()
}

func isPromiscuous(l netlink.Link) bool { return l.Attrs().RawFlags&unix.IFF_PROMISC != 0 }
