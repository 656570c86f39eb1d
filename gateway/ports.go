package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// change puts a policy in force under an epoch, and with it the ports of its configuration, if those are
// others than before. Flows that have an end at a port that is no more end with it (port-removed); those of
// ports that move to another zone are judged again there.
func (g *running) change(r *Ruleset, epoch uint32) error {
	configs := r.portConfigs(r.config)
	if !g.plane.PortsDiffer(configs) {
		return g.publish(r, epoch)
	}
	if err := g.pipelines.allows(r.config); err != nil {
		return err
	}
	next, err := g.generation(r, epoch)
	if err != nil {
		return err
	}
	done, err := g.plane.Change(configs, next, g.mover())
	var refused *dataplane.PortsRefused
	if errors.As(err, &refused) {
		return r.config.portErrors(refused)
	}
	if err != nil {
		return err
	}
	g.events.namePorts(g.plane.Ports())
	if err := g.pipelines.renumber(); err != nil {
		g.options.Log.Error("ports changed, and the pipeline in front of the policy goes by their numbers of before", "error", err)
	}
	for _, p := range done.Added {
		g.events.port("port-added", &evePort{Name: p.Name, Device: p.Device}, "")
	}
	for _, p := range done.Removed {
		g.events.port("port-removed", &evePort{Name: p.Name, Device: p.Device}, "")
	}
	ended, err := g.endFlows(r, done)
	log := g.options.Log.With("added", len(done.Added), "removed", len(done.Removed), "moved", len(done.Moves), "flows_ended", ended)
	if err != nil {
		// They go by their time-outs, as drops.
		log.Error("ports changed, and flows of those that are no more could not be ended", "error", err)
		return nil
	}
	log.Info("ports changed")
	return nil
}

// portErrors says what keeps ports from being taken, each where the port is named.
func (c *Config) portErrors(refused *dataplane.PortsRefused) (errs firewall.Errors) {
	for _, err := range refused.Each() {
		pos := firewall.Pos{File: c.File}
		for i := range c.Ports {
			if strings.Contains(err.Error(), "port "+c.Ports[i].Name+": ") {
				pos = c.Ports[i].Pos
			}
		}
		errs = append(errs, pos.Errorf("%v", err))
	}
	return errs
}

// A place is a port and one of its VLANs, 0 for its untagged frames.
type place struct {
	port uint8 // number; 0 = not known, or the gateway itself
	vlan uint16
}

// whereabouts finds the places of flows' ends.
type whereabouts struct {
	hops  []bpf.XDPNexthop
	peers map[uint8]uint8 // inline
}

func (g *running) whereabouts(ports []dataplane.Port) *whereabouts {
	w := &whereabouts{g.plane.Nexthops(), make(map[uint8]uint8)}
	ids := make(map[string]uint8)
	for _, p := range ports {
		ids[p.Name] = p.ID
	}
	for _, p := range ports {
		if p.Peer != "" {
			w.peers[p.ID] = ids[p.Peer]
		}
	}
	return w
}

// of returns where a flow's opener is, by where replies leave, and its other end.
func (w *whereabouts) of(f *flowtable.Flow) (opener, other place) {
	opener, other = w.at(f.Nexthop[1], f), w.at(f.Nexthop[0], f)
	if peer := w.peers[other.port]; peer != 0 {
		opener = place{peer, other.vlan}
	}
	return opener, other
}

func (w *whereabouts) at(nexthop uint16, f *flowtable.Flow) place {
	switch {
	case nexthop <= nexthopHost:
		return place{}
	case nexthop < nexthopFirst:
		return place{uint8(nexthop - dataplane.PortNexthop(0)), f.Tuple.Domain & 0xfff}
	case int(nexthop) >= len(w.hops) || atomic.LoadUint32(&w.hops[nexthop].State) == 0:
		return place{}
	}
	hop := &w.hops[nexthop]
	var tag [2]byte
	binary.NativeEndian.PutUint16(tag[:], hop.Vlan)
	return place{hop.Port, binary.BigEndian.Uint16(tag[:]) & 0xfff}
}

// A rezoning moves flows that have an end at a place that moves into the zone where that is now. Where an
// end is is not known before it has spoken: then it moves if its zone does as a whole.
type rezoning struct {
	ledger *ledger
	where  *whereabouts
	moves  map[place]dataplane.Move
	whole  map[uint8]uint8 // zones that move as a whole, and where to
	found  []flowtable.Flow
}

// mover moves the gateway's flows.
func (g *running) mover() dataplane.Mover {
	z := &rezoning{ledger: g.ledger}
	return dataplane.Mover{
		Find: func(m *dataplane.Moving) {
			z.where = g.whereabouts(m.Ports)
			z.prepare(m)
			z.find()
		},
		Move: z.move,
		Rest: func() {
			z.find()
			z.move()
		},
	}
}

func (z *rezoning) prepare(m *dataplane.Moving) {
	z.moves, z.whole = make(map[place]dataplane.Move), make(map[uint8]uint8)
	for _, move := range m.Moves {
		z.moves[place{move.Port, move.VLAN}] = move
		if to, had := z.whole[move.From]; had && to != move.To {
			z.whole[move.From] = 0
		} else {
			z.whole[move.From] = move.To
		}
	}
	for zone := range m.Occupied {
		delete(z.whole, zone) // some of it stays
	}
}

// find lists the flows that have to move.
func (z *rezoning) find() {
	z.ledger.mu.Lock()
	defer z.ledger.mu.Unlock()
	z.found = z.found[:0]
	for f := range z.ledger.table.All() {
		if from, to := z.zones(&f); from != f.From || to != f.To {
			z.found = append(z.found, f)
		}
	}
}

// move moves those found.
func (z *rezoning) move() (undo func()) {
	z.ledger.mu.Lock()
	defer z.ledger.mu.Unlock()
	var moved []flowtable.Flow
	for i := range z.found {
		f := &z.found[i]
		if from, to := z.zones(f); z.ledger.table.Rezone(f, from, to) {
			moved = append(moved, *f)
		}
	}
	return func() {
		z.ledger.mu.Lock()
		defer z.ledger.mu.Unlock()
		for _, f := range moved {
			from, to := f.From, f.To
			f.From, f.To = z.zones(&f)
			z.ledger.table.Rezone(&f, from, to)
		}
	}
}

// zones returns where the flow's ends are, as zones.
func (z *rezoning) zones(f *flowtable.Flow) (from, to uint8) {
	opener, other := z.where.of(f)
	return z.zone(opener, f.From), z.zone(other, f.To)
}

func (z *rezoning) zone(at place, now uint8) uint8 {
	if now == zoneHost {
		return now
	}
	if m, moves := z.moves[at]; moves && m.From == now && m.To != 0 {
		return m.To
	}
	if to := z.whole[now]; at == (place{}) && to != 0 {
		return to
	}
	return now
}

// endFlows ends the flows that have an end at a port or VLAN that is no more, or in a zone without any. It
// returns their number.
func (g *running) endFlows(r *Ruleset, done *dataplane.Changed) (int, error) {
	gone, ports := make(map[place]bool), make(map[uint8]bool)
	for _, m := range done.Moves {
		if m.To == 0 {
			gone[place{m.Port, m.VLAN}] = true
		}
	}
	for _, p := range done.Removed {
		ports[p.ID] = true
	}
	if len(gone)+len(ports) == 0 {
		return 0, nil
	}
	zones := map[uint8]bool{zoneHost: true}
	for _, p := range r.Compiled.Ports {
		zones[p.Zone] = true
	}
	w := g.whereabouts(append(g.plane.Ports(), done.Removed...))
	n, err := g.ageing.kill(func(f *flowtable.Flow) bool {
		a, b := w.of(f)
		return gone[a] || gone[b] || ports[a.port] || ports[b.port] || !zones[f.From] || !zones[f.To]
	}, endPortRemoved)
	if err != nil {
		return n, fmt.Errorf("end flows of ports that are no more: %w", err)
	}
	return n, nil
}
