package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// sizedByFlows names the maps that have another size with another FlowsMax, and nothing else: a run with
// one takes over all other maps, and the flows in these are moved when it publishes its first policy.
// The cells start at zero: no packet that the run before's workers had will be sent.
var sizedByFlows = map[string]bool{
	bpf.XDPMapFlows4: true, bpf.XDPMapFlows6: true, bpf.XDPMapOverflow4: true, bpf.XDPMapOverflow6: true,
	bpf.XDPMapLegCells: true,
}

// conversion is the move of the run before's flows into tables of this run's size. Packets go through the
// old ones until a policy is published; that is one write for all ports.
type conversion struct {
	plane *Plane
	maps  map[string]*ebpf.Map // the old ones
	mem   memory
	move  *flowtable.Move
}

// Moved says how many flows of the run before are in tables of another size, and how many are not: those
// that began while they were copied, and those for which this run's tables are too small.
type Moved struct{ Carried, Left int }

// Moved reports what became of the flows of the run before, if they had to be moved and a policy has been
// published since.
func (p *Plane) Moved() (Moved, bool) {
	if p.life == nil || p.life.moved == nil {
		return Moved{}, false
	}
	return *p.life.moved, true
}

// Converting reports whether flows of the run before move when the next policy is published.
func (p *Plane) Converting() bool { return p.converting() != nil }

// converting returns the conversion that the next policy brings into force, nil if there is none.
func (p *Plane) converting() *conversion {
	if p.life == nil {
		return nil
	}
	return p.life.conversion
}

// convert makes tables of this run's size beside those of the run before, and pins them with all that is
// taken over, in a directory of their own.
func (p *Plane) convert(old map[string]*ebpf.Map) error {
	for name := range sizedByFlows {
		m, err := ebpf.NewMap(p.spec.Maps[name])
		if err != nil {
			return fmt.Errorf("make map %s: %w", name, err)
		}
		if first := p.maps[name]; first != nil {
			old[name] = first // of the right size already: all move together
		}
		p.maps[name] = m
	}
	p.life.conversion = &conversion{plane: p, maps: old}
	return p.pinPlane()
}

// copy fills the new tables, while packets go through the old ones.
func (c *conversion) copy() (err error) {
	if c.mem.flows4, err = view[bpf.XDPFlow4Group](&c.mem, c.maps[bpf.XDPMapFlows4]); err != nil {
		return err
	}
	if c.mem.flows6, err = view[bpf.XDPFlow6Group](&c.mem, c.maps[bpf.XDPMapFlows6]); err != nil {
		return err
	}
	cfg := flowtable.TableConfig{Seed: c.plane.seed, StripeBits: stripeBits(uint32(len(c.mem.flows4)))}
	from, err := flowtable.MapTable(cfg, c.mem.flows4, c.mem.flows6, &c.plane.mem.gateway[0])
	if err != nil {
		return err
	}
	to, err := c.plane.Table()
	if err != nil {
		return err
	}
	beside4, beside6, err := c.beside()
	if err != nil {
		return err
	}
	c.move = flowtable.NewMove(from, to)
	c.move.Copy(beside4, beside6)
	return nil
}

// beside copies the flows of the old overflow.
func (c *conversion) beside() (flows4 []bpf.XDPFlow4, flows6 []bpf.XDPFlow6, err error) {
	if flows4, err = overflow[bpf.XDPFlow4Key, bpf.XDPFlow4](c.maps[bpf.XDPMapOverflow4]); err != nil {
		return nil, nil, err
	}
	flows6, err = overflow[bpf.XDPFlow6Key, bpf.XDPFlow6](c.maps[bpf.XDPMapOverflow6])
	return flows4, flows6, err
}

// settle ends the conversion, now that a policy is in force that uses the new tables.
func (c *conversion) settle() error {
	p, l := c.plane, c.plane.life
	l.conversion, l.directory = nil, ""
	defer c.close()
	if err := l.state.converted(l.number); err != nil {
		return err
	}
	if err := Grace(); err != nil {
		return err
	}
	beside4, beside6, err := c.beside()
	if err != nil {
		return err
	}
	credits := p.mem.credits
	moved := Moved{}
	moved.Carried, moved.Left = c.move.Settle(beside4, beside6, func(s *flowtable.Sum) {
		if int(s.Rule) < len(credits) {
			credits[s.Rule].Packets += s.Packets[0] + s.Packets[1]
			credits[s.Rule].Bytes += s.Bytes[0] + s.Bytes[1]
		}
		replies := &credits[bpf.XDPBuiltinRuleRULE_REPLIES]
		replies.Packets += s.Packets[1]
		replies.Bytes += s.Bytes[1]
	})
	gw := &p.mem.gateway[0]
	atomic.AddInt64(&gw.Overflow4, -int64(len(beside4)))
	atomic.AddInt64(&gw.Overflow6, -int64(len(beside6)))
	l.moved = &moved
	return l.pins.removePlanes(l.number)
}

func (c *conversion) close() {
	c.mem.close()
	for _, m := range c.maps {
		m.Close() // what is pinned is still there
	}
}

// decideConversion finds out which tables packets go through, if the run before ended in a conversion:
// those of the policy in force.
func (p *Plane) decideConversion() error {
	l := p.life
	next := l.state.Convert
	if next == 0 {
		return nil
	}
	used, err := usesTables(l.pins.plane(next))
	if err != nil {
		return fmt.Errorf("find the tables in use: %w", err)
	}
	if !used {
		next = l.state.Plane
	}
	return l.state.converted(next)
}

// usesTables reports whether the policy in force goes through the tables that are pinned in a directory.
func usesTables(dir string) (bool, error) {
	slot := bpf.XDPMapGenerations
	if inFront(dir) {
		slot = bpf.XDPMapAfterPipes
	}
	generations, err := ebpf.LoadPinnedMap(filepath.Join(dir, slot), nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // it ended before it had pinned all
	}
	if err != nil {
		return false, err
	}
	defer generations.Close()
	table, err := ebpf.LoadPinnedMap(filepath.Join(dir, bpf.XDPMapFlows4), nil)
	if err != nil {
		return false, err
	}
	defer table.Close()
	info, err := table.Info()
	if err != nil {
		return false, err
	}
	id, _ := info.ID()
	var prog *ebpf.Program
	if err := generations.Lookup(uint32(0), &prog); err != nil {
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, nil
		}
		return false, err
	}
	defer prog.Close()
	running, err := prog.Info()
	if err != nil {
		return false, err
	}
	ids, _ := running.MapIDs()
	return slices.Contains(ids, id), nil
}
