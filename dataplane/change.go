package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// A Move is a place, a port's untagged frames or one of its VLANs, that belongs to another zone now.
type Move struct {
	Port, Pair uint8 // number of the port, and of its inline pair, 0 = routed
	VLAN       uint16
	From, To   uint8 // zones, 0 = none
}

// A Moving says which places move in a Change.
type Moving struct {
	Moves    []Move
	Ports    []Port         // before
	Occupied map[uint8]bool // zones that have a place still
}

// A Mover gives flows the zones that their places have after a Change. Its functions are called in this
// order, and must not call the plane.
type Mover struct {
	// Find looks for the flows that have to move, while packets pass.
	Find func(*Moving)
	// Move moves them, in the moment in which no packet of these places is judged, and returns how to take
	// that back.
	Move func() (undo func())
	// Rest moves those that came after Find, while packets pass.
	Rest func()
}

// A Changed is what a Change did to the ports.
type Changed struct {
	Moves   []Move
	Added   []Port
	Removed []Port // whose flows have nowhere to go
}

// PortsRefused is the error of a Change whose ports cannot be as configured.
type PortsRefused struct{ err error }

func (e *PortsRefused) Error() string { return fmt.Sprintf("change ports: %v", e.err) }

func (e *PortsRefused) Unwrap() error { return e.err }

// Each returns what is wrong, one by one.
func (e *PortsRefused) Each() (all []error) {
	var split func(error)
	split = func(err error) {
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			for _, one := range several.Unwrap() {
				split(one)
			}
			return
		}
		all = append(all, err)
	}
	split(e.err)
	return all
}

// Change puts a generation in force together with other ports, all or nothing: after an error everything
// is as it was. Ports that stay keep their programs and links, and their packets pass as before; a port is
// the same if it has the same device, whatever it is called now.
//
// New ports are taken as Attach takes them, and refuse everything until the generation is in force. What a
// place holds that moves to another zone is refused for a moment (vlan-unknown, egress-not-a-port), so that
// no packet is judged by the zone of one policy and the rules of another; in that moment its flows get their
// new zones. Ports that leave are given back last. What is wrong with the ports is a *PortsRefused in the error's chain.
//
// The plane must be one that is kept.
func (p *Plane) Change(configs []PortConfig, g Generation, mover Mover) (*Changed, error) {
	if p.life == nil {
		return nil, errors.New("change ports: the plane is not kept")
	}
	p.publishing.Lock()
	defer p.publishing.Unlock()
	next, err := p.prepare(g)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &portChange{plane: p, before: p.ports}
	err = c.match(configs)
	if err == nil {
		err = p.attempt(func() error { return c.run(&g, next, &mover) })
	}
	if err != nil {
		next.close()
		return nil, &PortsRefused{err}
	}
	p.portsChanged()
	p.setStages(&g)
	p.settleNATPorts(next)
	c.leave()
	if err := p.copyNATAddresses(p.ports); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("masquerading may use an address of a port that is no more: %v", err))
	}
	if err := p.savePorts(); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("the next start will not take over the ports as they are: %v", err))
	}
	return &Changed{c.moves, c.added(), c.removed()}, nil
}

// PortsDiffer reports whether the ports are not as configured here, so that Change has something to do.
func (p *Plane) PortsDiffer(configs []PortConfig) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(configs) != len(p.ports) {
		return true
	}
	for i, port := range p.ports {
		was, is := port.PortConfig, configs[i]
		if was.Device = port.wanted; !maps.Equal(was.VLANs, is.VLANs) {
			return true
		}
		was.VLANs, is.VLANs = nil, nil
		if !reflect.DeepEqual(was, is) {
			return true
		}
	}
	return false
}

// portChange is a Change under way.
type portChange struct {
	plane         *Plane
	before, after []*Port
	was           map[*Port]*Port // of a port after, itself before
	kept          map[*Port]bool  // those after that go on with the device that they have
	moves         []Move
}

// stays reports whether a port goes on with the device that it has.
func (c *portChange) stays(port *Port) bool { return c.kept[port] }

// match finds for each port of the new configuration the one that it was: of the same device, by its name
// in the configuration or, if it was renamed, by that of today; else of the same name. Numbers go with that.
func (c *portChange) match(configs []PortConfig) error {
	c.was, c.kept = make(map[*Port]*Port), make(map[*Port]bool)
	free := slices.Clone(c.before)
	take := func(is func(*Port) bool) *Port {
		i := slices.IndexFunc(free, is)
		if i < 0 {
			return nil
		}
		port := free[i]
		free = slices.Delete(free, i, i+1)
		return port
	}
	was, same := make([]*Port, len(configs)), make([]bool, len(configs))
	for i, config := range configs {
		was[i] = take(func(p *Port) bool { return p.wanted == config.Device })
		same[i] = was[i] != nil
	}
	for i, config := range configs {
		if was[i] == nil {
			was[i] = take(func(p *Port) bool { return p.present() && p.Device == config.Device })
			same[i] = was[i] != nil
		}
	}
	for i, config := range configs {
		if was[i] == nil {
			was[i] = take(func(p *Port) bool { return p.Name == config.Name && !p.Inline() && config.Peer == "" })
		}
	}
	numbers := numbering{make(map[string]uint8), make(map[string]uint8)}
	for _, p := range free {
		// Nobody else gets these in the same step. No port's name begins so.
		numbers.IDs["\x00"+p.Name], numbers.Pairs["\x00"+p.Name] = p.ID, p.pair
	}
	for i, config := range configs {
		port := &Port{PortConfig: config}
		if old := was[i]; old != nil {
			numbers.IDs[config.Name], numbers.Pairs[config.Name] = old.ID, old.pair
			if same[i] {
				*port = *old
				port.PortConfig = config
				port.Device, port.wanted = old.Device, config.Device
				port.peer, port.pair = nil, 0
				port.guards, port.vlanDevices = slices.Clone(old.guards), maps.Clone(old.vlanDevices)
				port.Notes = slices.DeleteFunc(slices.Clone(old.Notes), func(n string) bool { return n == renamedNote(old.Device, old.wanted) })
				if port.present() && port.Device != port.wanted {
					port.note("%s", renamedNote(port.Device, port.wanted))
				}
				if !port.present() {
					port.Device = port.wanted
				}
				c.kept[port] = true
			}
			c.was[port] = old
		}
		c.after = append(c.after, port)
	}
	if err := arrange(c.after, numbers); err != nil {
		return err
	}
	var errs []error
	for port, old := range c.was {
		if !c.stays(port) {
			continue
		}
		switch {
		case port.Inline() != old.Inline() || port.Inline() && c.was[port.peer] != old.peer:
			errs = append(errs, port.errorf("device %s cannot change between routed and inline, or its inline partner, while packets pass: apply without the port first, then with it", port.Device))
		case port.present() && port.Mode != ModeAuto && port.Mode != port.Running:
			errs = append(errs, port.errorf("device %s runs XDP in %s mode, and a change of mode would leave it without: apply without the port first, then with it", port.Device, port.Running))
		}
	}
	return errors.Join(errs...)
}

// run does everything that may fail, up to the moment in which the generation is in force.
func (c *portChange) run(g *Generation, next *loaded, mover *Mover) error {
	p := c.plane
	var errs []error
	for _, port := range c.after {
		if c.stays(port) {
			errs = append(errs, c.adjust(port))
		} else {
			port.fresh = true
			errs = append(errs, p.resolve(port))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := distinct(c.after); err != nil {
		return err
	}
	seats := slices.Concat(c.before, c.after)
	for _, port := range c.after {
		if c.stays(port) {
			continue
		}
		if err := c.takeShut(port, seats); err != nil {
			return err
		}
	}
	if err := p.copyNATAddresses(seats); err != nil {
		return err
	}
	if c.moves = c.findMoves(); len(c.moves) > 0 {
		mover.Find(c.moving())
	}
	if closing := slices.Concat(c.moves, c.endings()); len(closing) > 0 {
		p.undo = append(p.undo, func() error { return c.open(c.before) })
		if err := c.shut(closing); err != nil {
			return err
		}
		if Grace() != nil {
			time.Sleep(graceByTime)
		}
		if len(c.moves) > 0 {
			undo := mover.Move()
			p.undo = append(p.undo, func() error { undo(); return nil })
		}
	}
	if err := p.put(g, next); err != nil {
		return err
	}
	// In force: nothing fails any more.
	p.ports = c.after
	for _, port := range c.after {
		port.shut, port.fresh = false, false
	}
	if err := c.open(c.after); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("the tables of ports are not wholly up to date: %v", err))
	}
	p.routesChanged()
	if len(c.moves) > 0 {
		mover.Rest()
	}
	return nil
}

// takeShut takes the device of a new port, which refuses everything so far.
func (c *portChange) takeShut(port *Port, seats []*Port) error {
	p := c.plane
	if err := errors.Join(p.setMTU(port), p.checkTags(port)); err != nil {
		return err
	}
	p.undo = append(p.undo, func() error { p.clearSeat(port); return nil })
	port.shut = true
	if err := p.seat(port, seats); err != nil {
		return port.errorf("%w", err)
	}
	for _, step := range []func(*Port) error{p.attachGuard, p.attachXDP, p.openInline} {
		if err := step(port); err != nil {
			return err
		}
	}
	return c.tune(port, nil)
}

// tune sets the sysctls of a routed port's devices, but for those that have theirs.
func (c *portChange) tune(port *Port, had map[uint16]device) error {
	p := c.plane
	if port.Inline() {
		return nil
	}
	var devices []string
	if had == nil {
		devices = append(devices, port.Device)
	}
	for vid, dev := range port.vlanDevices {
		if had[vid].index != dev.index {
			devices = append(devices, dev.name)
		}
	}
	if err := p.setNeighbourTimes(devices); err != nil {
		return port.errorf("%w", err)
	}
	for _, dev := range devices {
		if err := p.forwardDevice(dev); err != nil {
			return port.errorf("%w", err)
		}
	}
	return nil
}

// adjust prepares a port that stays for what its configuration says now. Nothing of it is in the tables.
func (c *portChange) adjust(port *Port) error {
	p, old := c.plane, c.was[port]
	if !port.present() {
		return nil
	}
	if err := p.setMTU(port); err != nil {
		return err
	}
	port.setFixChecksum()
	if err := p.readVLANDevices(port); err != nil {
		return port.errorf("%w", err)
	}
	if len(port.VLANs) > 0 && !maps.Equal(port.VLANs, old.VLANs) {
		if err := p.checkTags(port); err != nil {
			return err
		}
		if len(old.VLANs) == 0 && port.Running == ModeNative {
			if err := p.rebind(port); err != nil {
				return err
			}
		}
	}
	had := old.vlanDevices
	if had == nil {
		had = make(map[uint16]device)
	}
	return c.tune(port, had)
}

// rebind puts a dispatcher of its own in the place of the shared one on a port that has VLAN zones from now
// on. No packet sees neither.
func (p *Plane) rebind(port *Port) error {
	prog, why := p.boundFor(port)
	if why != nil {
		port.noteUnseenTags(why)
		return nil
	}
	defer prog.Close() // the link holds it
	if err := port.xdp.Update(prog); err != nil {
		port.noteUnseenTags(fmt.Errorf("put a dispatcher bound to the device in its place: %w", err))
		return nil
	}
	p.undo = append(p.undo, func() error { return ignoreMissing(port.xdp.Update(p.dispatch)) })
	return nil
}

// places are the zones of a port's untagged frames (VLAN 0) and of its VLANs.
func (p *Port) places() map[uint16]uint8 {
	places := map[uint16]uint8{0: p.Zone}
	maps.Copy(places, p.VLANs)
	return places
}

func (c *portChange) findMoves() (moves []Move) {
	for _, port := range c.after {
		old := c.was[port]
		if old == nil {
			continue
		}
		from, to := old.places(), port.places()
		all := slices.Collect(maps.Keys(from))
		for vid := range to {
			if _, had := from[vid]; !had {
				all = append(all, vid)
			}
		}
		slices.Sort(all)
		for _, vid := range all {
			if from[vid] != to[vid] {
				moves = append(moves, Move{port.ID, port.pair, vid, from[vid], to[vid]})
			}
		}
	}
	return moves
}

// endings are the places of ports that are no more: their zones' numbers may mean others now.
func (c *portChange) endings() (moves []Move) {
	for _, old := range c.before {
		if slices.ContainsFunc(c.after, func(p *Port) bool { return c.was[p] == old }) {
			continue
		}
		for vid, zone := range old.places() {
			moves = append(moves, Move{Port: old.ID, Pair: old.pair, VLAN: vid, From: zone})
		}
	}
	return moves
}

// shut refuses what comes from places that move or end, and lets no route leave there.
func (c *portChange) shut(closing []Move) error {
	p := c.plane
	var errs []error
	for _, m := range closing {
		for _, port := range c.before {
			if port.ID != m.Port {
				continue
			}
			if m.VLAN != 0 {
				errs = append(errs, p.maps[bpf.XDPMapVlanZones].Put(vlanKey(port, m.VLAN), uint8(zoneNone)))
				if dev, ok := port.vlanDevices[m.VLAN]; ok {
					errs = append(errs, deleted(p.maps[bpf.XDPMapEgresses].Delete(dev.index)))
				}
				continue
			}
			if !port.Inline() && port.present() {
				errs = append(errs, deleted(p.maps[bpf.XDPMapEgresses].Delete(port.Index)))
			}
			was := port.Zone
			port.Zone = zoneNone
			p.storePort(port)
			if port.Inline() {
				p.storePort(port.peer)
			}
			port.Zone = was
		}
	}
	return errors.Join(errs...)
}

// open writes ports into the tables, as they were or as they are.
func (c *portChange) open(ports []*Port) error {
	p := c.plane
	var errs []error
	for _, port := range ports {
		for _, other := range slices.Concat(c.before, c.after) {
			if other.ID != port.ID {
				continue
			}
			for vid := range other.VLANs {
				if port.VLANs[vid] == zoneNone {
					errs = append(errs, p.maps[bpf.XDPMapVlanZones].Put(vlanKey(port, vid), uint8(zoneNone)))
				}
			}
			for vid, dev := range other.vlanDevices {
				if port.vlanDevices[vid].index != dev.index {
					errs = append(errs, p.removeVLANDevice(port, vid, dev))
				}
			}
		}
		hop := port.nexthop()
		storeWords(&p.mem.nexthops[nexthopPort+int(port.ID)], &hop)
		if port.present() {
			errs = append(errs, p.setDevice(uint32(port.ID), port.Index))
		}
		p.storePort(port)
		errs = append(errs, p.fillZones(port))
	}
	return errors.Join(errs...)
}

func (c *portChange) moving() *Moving {
	m := &Moving{Moves: c.moves, Occupied: make(map[uint8]bool)}
	for _, port := range c.before {
		m.Ports = append(m.Ports, port.clone())
	}
	for _, port := range c.after {
		for _, zone := range port.places() {
			m.Occupied[zone] = true
		}
	}
	return m
}

func (c *portChange) added() (ports []Port) {
	for _, port := range c.after {
		if c.was[port] == nil {
			ports = append(ports, port.clone())
		}
	}
	return ports
}

// removed lists the ports that are no more.
func (c *portChange) removed() (ports []Port) {
	for _, old := range c.before {
		if !slices.ContainsFunc(c.after, func(p *Port) bool { return c.was[p] == old }) {
			ports = append(ports, old.clone())
		}
	}
	return ports
}

// leave gives back what ports had that are no more, or have another device now, and settings that are no
// longer asked for. What goes wrong is noted: the change is in force.
func (c *portChange) leave() {
	p := c.plane
	var errs []error
	for _, old := range c.before {
		i := slices.IndexFunc(c.after, func(port *Port) bool { return c.was[port] == old })
		if i >= 0 && c.stays(c.after[i]) {
			if port := c.after[i]; port.SetMTU == 0 && old.SetMTU != 0 && port.present() {
				errs = append(errs, p.ns.do(func() error { return p.unsetMTU(port) }))
			}
			continue
		}
		if i < 0 {
			storeWords(&p.mem.nexthops[nexthopPort+int(old.ID)], &bpf.XDPNexthop{})
			errs = append(errs, p.clearDevice(old), p.clearZones(old), p.dropDevice(uint32(old.ID)))
		} else if old.present() { // its number goes on with another device
			p.clearSeat(old)
			errs = append(errs, deleted(p.maps[bpf.XDPMapEgresses].Delete(old.Index)))
		}
		p.unready(old)
		if !old.present() {
			continue
		}
		if Grace() != nil {
			time.Sleep(graceByTime)
		}
		errs = append(errs, p.ns.do(func() error { return p.giveBackPort(old) }))
	}
	if err := errors.Join(errs...); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("what ports had that are no more is not wholly given back: %v", err))
	}
}

// giveBackPort sets the device of a port back as it was, and takes our programs off it.
func (p *Plane) giveBackPort(port *Port) error {
	owners := map[string]bool{port.Device: true}
	for _, dev := range port.vlanDevices {
		owners[dev.name] = true
	}
	names := make(map[string]bool)
	for _, kind := range []string{"xdp", "guard", "mark"} {
		names[linkName(kind, port.Index)] = true
	}
	err := p.putBack(func(c *change) bool { return owners[c.Owner] }, func(name string) bool { return names[name] })
	return errors.Join(err, p.unlink(port))
}
