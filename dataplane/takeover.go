package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

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
	outgrown := make(map[string]*ebpf.Map)
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
		if sizedByFlows[name] && m.MaxEntries() != spec.MaxEntries {
			outgrown[name] = m
			delete(p.maps, name)
			spec = spec.Copy()
			spec.MaxEntries = m.MaxEntries()
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
		for _, m := range outgrown {
			m.Close()
		}
		return p.letGo()
	}
	l.taken, l.number = true, l.state.Plane
	p.seed = l.state.Seed
	if len(outgrown) > 0 {
		return p.convert(outgrown)
	}
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
	case s.Layout != layoutVersion:
		return fmt.Sprintf("its tables have layout %q, and this version's have %q", s.Layout, layoutVersion)
	}
	if !slices.Equal(fingerprints(p.options.Ports), s.Ports) {
		return "the ports, their devices or their zones are others"
	}
	if !p.options.Numbers.equal(s.Numbers.text) {
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
	// Of clones: a map or program that was pinned before would be moved.
	for name, m := range p.maps {
		if err := pinMap(m, filepath.Join(l.directory, name)); err != nil {
			return err
		}
	}
	if err := pinMap(p.credits, filepath.Join(l.directory, creditsName)); err != nil {
		return err
	}
	for name, prog := range p.programs() {
		clone, err := (*prog).Clone()
		if err == nil {
			err = errors.Join(clone.Pin(filepath.Join(l.directory, name)), clone.Close())
		}
		if err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	return nil
}

func pinMap(m *ebpf.Map, file string) error {
	clone, err := m.Clone()
	if err == nil {
		err = errors.Join(clone.Pin(file), clone.Close())
	}
	if err != nil {
		return fmt.Errorf("pin map %s: %w", filepath.Base(file), err)
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
	if err := p.resumeNATAddresses(); err != nil {
		return err
	}
	p.nat.may, p.nat.limits, p.nat.maps = p.life.state.NAT, p.life.state.SourceLimits, p.life.state.Mappings
	g := &loaded{epoch: p.life.state.Epoch}
	err := p.resumeFront()
	if err == nil {
		err = p.maps[p.slot()].Lookup(uint32(0), &g.xdp)
	}
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
