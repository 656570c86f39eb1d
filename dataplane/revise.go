package dataplane

import (
	"maps"
	"slices"
	"time"

	"github.com/softdpu/softdpu/flowtable"
)

// revise puts a generation in force by a change of what the one in force has in memory, where nothing else differs
// between them: it writes where no packet reads, and then stores the edition, which is one word. Whoever dies
// in between leaves the generation that was in force. It answers false, and has done nothing, if the
// generation takes programs of its own.
func (p *Plane) revise(g *Generation) (bool, error) {
	prev := p.running.Load()
	if !prev.revisedBy(g) || p.converting() != nil || !p.sharesProgram(prev.generation, g) {
		return false, nil
	}
	err := p.countable(g)
	if err == nil {
		err = p.announce(g)
	}
	if err != nil {
		return false, err
	}
	p.reclaim() // or a packet might be where this writes
	next := &loaded{programs: prev.programs, tables: prev.tables, epoch: g.Epoch, generation: g, tapped: prev.tapped, inPlace: true}
	next.edition.store(g.Epoch, next.pipes.change(g, next.edition.bank()))
	p.running.Store(next)
	p.retire(g)
	return true, nil
}

// revisedBy reports whether a generation's rules are a change of those of l.
func (l *loaded) revisedBy(g *Generation) bool {
	return l != nil && l.generation != nil && g.Change != nil && g.Revised == l.generation.ACL
}

// sharesProgram reports whether a generation differs from the one before in its rules alone, so that their programs
// are the same if these are.
func (p *Plane) sharesProgram(prev, g *Generation) bool {
	return (p.workers || g.Workers) == p.workers && prev.ForceStages == g.ForceStages && prev.ClampMSS == g.ClampMSS &&
		prev.NAT == g.NAT && slices.Equal(prev.NATNames, g.NATNames) &&
		maps.Equal(prev.MACs, g.MACs) && maps.Equal(prev.Works, g.Works)
}

// retired is what a change has left, until no packet can be in it.
type retired struct {
	acl    *flowtable.ACL
	change *flowtable.ForestChange
	over   chan struct{} // closed then
}

// retire begins to wait for the packets that may be in what a change has replaced.
func (p *Plane) retire(g *Generation) {
	r := &retired{g.ACL, g.Change, make(chan struct{})}
	p.retired = r
	go func() {
		if Grace() != nil {
			time.Sleep(graceByTime)
		}
		close(r.over)
	}()
}

// reclaim gives back what the change before has left, once no packet can be in it. p.publishing is held.
func (p *Plane) reclaim() {
	if r := p.retired; r != nil {
		<-r.over
		r.acl.Free(r.change)
		p.retired = nil
	}
}

// InPlace reports whether the generation in force came as a change of what the one before it had in memory, without
// a program of its own.
func (p *Plane) InPlace() bool {
	g := p.running.Load()
	return g != nil && g.inPlace
}
