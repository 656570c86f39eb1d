package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf/link"
)

// life is what a plane that outlives its process knows of the run before it.
type life struct {
	pins  *pins
	state *state
	held  map[string]*heldLink // what the run before left on devices, by name

	inherited  bool        // there was a run before
	taken      bool        // its maps are used on
	afresh     string      // why they are not, if it was inherited
	directory  string      // of maps that this run made, until Attach has succeeded
	number     int         // of the plane in use
	conversion *conversion // under way
	moved      *Moved      // by one
	lostEvents uint64      // of the run before

	linked  map[string]bool      // links that this run uses
	links   map[string]link.Link // of them, those that this run has made
	records int                  // changes in the state when this run began

	// Of the generations published, while the state still tells of the maps before.
	numbers NumbersText
	nat     bool
	limits  bool
	maps    bool
}

// Numbers returns what the latest generation of an earlier run, in the network namespace of the calling
// thread, said of its numbers: see Generation. It returns nothing if there was none.
func Numbers() (NumbersText, error) {
	ns, err := currentNamespace()
	if err != nil {
		return NumbersText{}, err
	}
	defer ns.close()
	s, err := readState(stateFile(ns.id.Ino))
	if err != nil || s.Plane == 0 {
		return NumbersText{}, err
	}
	return s.Numbers.text, nil
}

// SetNumbers gives the numbers of the running generation another meaning, for the run that takes over one
// day: see Generation.
func (p *Plane) SetNumbers(numbers NumbersText) error {
	if p.life == nil {
		return nil
	}
	return p.life.state.setNumbers(numbers)
}

// publish remembers a generation that is about to be in force. Its numbers are those of the maps that it
// runs on: until commit, new ones are not those that a run after a failure finds.
func (l *life) publish(g *Generation) error {
	if l.taken || l.directory == "" {
		return l.state.publish(g.Epoch, g.Numbers, g.NAT)
	}
	if g.Numbers.Whole != nil {
		l.numbers = g.Numbers
	}
	l.nat, l.limits, l.maps = l.nat || g.NAT != nil, l.limits || g.NAT.LimitsSources(), l.maps || g.NAT.Maps()
	return l.state.publish(g.Epoch, NumbersText{}, nil)
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
	if l.state.stale != "" {
		if err := pins.discard(); err != nil {
			return fmt.Errorf("discard what is left of %s: %w", l.state.stale, err)
		}
		p.notes = append(p.notes, "what is left of "+l.state.stale+" is discarded")
	}
	l.records = len(l.state.Changes)
	if err := p.decideConversion(); err != nil {
		return err
	}
	if l.held, err = pins.links(); err != nil {
		return err
	}
	l.inherited = l.state.Plane != 0 || len(l.held) > 0
	return nil
}

func (l *life) close() {
	if l.conversion != nil {
		l.conversion.close()
		_ = l.state.converted(l.state.Plane)
	}
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

// PickUp returns until when this run or one before it means to pick up TCP without its SYN, by
// SetPickUp; the zero time if none does.
func (p *Plane) PickUp() time.Time {
	if p.life == nil {
		return time.Time{}
	}
	p.life.state.mu.Lock()
	defer p.life.state.mu.Unlock()
	return p.life.state.PickUp
}

// SetPickUp remembers that for the runs after this one. The plane itself does nothing about it.
func (p *Plane) SetPickUp(until time.Time) error {
	if p.life == nil || until.Equal(p.PickUp()) {
		return nil
	}
	return p.life.state.setPickUp(until)
}

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
	before := struct {
		layout string
		plane  int
	}{s.Layout, s.Plane}
	s.Layout, s.Next, s.Seed = layoutVersion, 0, p.seed
	if l.conversion == nil {
		s.Plane = l.number
	} else {
		s.Convert = l.number
	}
	if !l.taken {
		s.Numbers.text, s.NAT, s.SourceLimits, s.Mappings = l.numbers, l.nat, l.limits, l.maps
	}
	if err := p.savePorts(); err != nil {
		return err
	}
	if l.conversion == nil {
		l.directory = ""
	}
	owners := map[string]bool{"all": true}
	for _, port := range p.ports {
		owners[port.Device] = true
		for _, dev := range port.vlanDevices {
			owners[dev.name] = true
		}
	}
	err := p.putBack(func(c *change) bool { return !owners[c.Owner] }, func(name string) bool { return !l.linked[name] })
	if l.inherited && !l.taken {
		l.lostEvents = lostEvents(l.pins.path(fmt.Sprintf("v%s-netns-%d", before.layout, l.pins.inode), planeName(before.plane)))
	}
	if l.conversion == nil {
		err = errors.Join(err, l.pins.removePlanes(l.number))
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
