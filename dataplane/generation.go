package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// Generation is one policy, ready to run.
type Generation struct {
	// Epoch numbers the policy. Flows with an epoch older by signed comparison are judged again, so
	// it rises with every change that may refuse what was allowed.
	Epoch uint32
	// ACL holds the rules; nil refuses everything.
	ACL *flowtable.ACL
	// Where ACL came from another pipe by its Revise, that pipe and what Revise said of the change. If the generation in
	// force has the one, and nothing but the rules differs from it, the change is made in its memory.
	Revised *flowtable.ACL
	Change  *flowtable.ForestChange
	// Rules is the highest rule id in ACL. It must be below Sizes.Rules, or it has no counter.
	Rules int
	// MACs gives the identities of source MAC addresses, all above 0. Flows keep the identity of their
	// opener, so a number must not change its meaning from one generation to the next.
	MACs map[[6]byte]uint16
	// Workers lets flows have stages, for the rest of the plane's life. Without it the programs have
	// nothing of them, and Works (but for MSS) and ForceStages are not looked at.
	Workers     bool
	Works       map[uint32]RuleWork // of rules that ask for workers or a smaller MSS, by id
	ForceStages uint8               // stages of every flow, but for those of the host
	// ClampMSS has the MSS of SYNs held to what ports and rules say. Without it the programs have nothing of that.
	ClampMSS bool
	// NAT is what is translated; nil: nothing that begins now. Flows keep the translation that they have. Its
	// pipes' set nodes are numbered behind ACL's, Destinations' before Sources'.
	// Every generation with one needs an epoch of its own.
	NAT      *flowtable.NAT
	NATNames []string // of its rules, by id; "" is none. Counters are kept by name from one generation to the next
	// Numbers say what rule ids, zones and identities of MACs mean, for the run that takes the plane over
	// one day; nothing: what the generation before said of them still holds. The plane only keeps them. It is quick to keep
	// where Whole is the same memory as before.
	Numbers NumbersText
}

// programs are those that the slots hold.
type programs struct {
	xdp, guard *ebpf.Program
}

func (p *programs) close() {
	p.xdp.Close()
	p.guard.Close()
}

// loaded is a generation in the kernel.
type loaded struct {
	programs
	tables
	epoch      uint32
	generation *Generation // nil: published by a run before
	tapped     *programs   // in the slots instead, while somebody captures
	inPlace    bool        // it has programs and tables of the one before
}

// tables are what all programs of a generation share, those of a capture too. Of one that a run before
// published there are none.
type tables struct {
	edition *edition
	nat     *natTables // nil: it translates nothing
	pipes   *pipeTables
}

func (t *tables) close() {
	t.edition.close()
	t.nat.close()
	t.pipes.close()
}

func (l *loaded) close() {
	l.programs.close()
	l.tables.close()
	l.untap()
}

// inSlots are the programs that the slots hold while the generation runs.
func (l *loaded) inSlots() *programs {
	if l.tapped != nil {
		return l.tapped
	}
	return &l.programs
}

// untap closes the programs of a capture.
func (l *loaded) untap() {
	if l.tapped != nil {
		l.tapped.close()
		l.tapped = nil
	}
}

// Publish loads a generation and puts it in force on all ports by one update of a slot: the next
// packet runs under it, and no packet sees parts of two. The egress guard goes first, so that a reply
// is never refused by rules older than those that admitted the request's packet. On an error the
// running generation stays.
//
// A program that the verifier refuses is an *ebpf.VerifierError in the chain.
func (p *Plane) Publish(g Generation) error {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	if done, err := p.revise(&g); done || err != nil {
		return err
	}
	next, err := p.prepare(g)
	if err != nil {
		return err
	}
	p.giveWorks(&g) // before packets ask for them
	if err := p.put(&g, next); err != nil {
		next.close()
		p.giveWorks(p.generation())
		return err
	}
	p.settleNATPorts(next)
	return nil
}

// prepare loads a generation, beside the one in force.
func (p *Plane) prepare(g Generation) (*loaded, error) {
	if err := p.countable(&g); err != nil {
		return nil, err
	}
	next, err := p.loadGeneration(g)
	if err != nil {
		return nil, fmt.Errorf("publish policy %d: %w", g.Epoch, explainPermission(err))
	}
	return next, nil
}

// countable reports whether there are counters for all rules of a generation.
func (p *Plane) countable(g *Generation) error {
	if g.Rules >= int(p.sizes.Rules) {
		return fmt.Errorf("publish policy %d: it has rule ids up to %d and this run has counters for %d: restart to have room for more", g.Epoch, g.Rules, p.sizes.Rules-1)
	}
	return nil
}

// announce remembers a generation that is about to be in force: the next run's must be above it, and know its
// numbers.
func (p *Plane) announce(g *Generation) error {
	if p.life == nil {
		return nil
	}
	if err := p.life.publish(g); err != nil {
		return fmt.Errorf("publish policy %d: %w", g.Epoch, err)
	}
	return nil
}

// put puts a loaded generation in force. After an error the one before is, and next is the caller's.
func (p *Plane) put(g *Generation, next *loaded) error {
	if err := p.announce(g); err != nil {
		return err
	}
	conversion := p.converting()
	if conversion != nil {
		if err := conversion.copy(); err != nil {
			return fmt.Errorf("publish policy %d: carry flows over: %w", g.Epoch, err)
		}
	}
	p.captureGeneration(next)
	prev := p.running.Load()
	if err := p.swap(prev, next); err != nil {
		return fmt.Errorf("publish policy %d: %w", g.Epoch, err)
	}
	p.workers = p.workers || g.Workers
	p.nat.may, p.nat.limits, p.nat.maps = p.nat.may || g.NAT != nil, p.nat.limits || g.NAT.LimitsSources(), p.nat.maps || g.NAT.Maps()
	if prev != nil {
		prev.close() // the slot held it; packets inside keep it until they leave
	}
	p.reclaim()
	if prev.revisedBy(g) {
		g.ACL.Free(g.Change) // in its own tables nobody has ever read there
	}
	if conversion != nil {
		if err := conversion.settle(); err != nil {
			return fmt.Errorf("publish policy %d: carry flows over: %w", g.Epoch, err)
		}
	}
	return nil
}

// swap puts a generation in the place of the one that is in force, if there is one. After an error that is.
func (p *Plane) swap(prev, next *loaded) error {
	p.natMu.Lock() // a port that is given back meanwhile would be given to either
	defer p.natMu.Unlock()
	p.numberNATPorts(next)
	if err := p.putInSlots(next.inSlots()); err != nil {
		if prev != nil {
			p.numberNATPorts(prev)
			return errors.Join(err, p.putInSlots(prev.inSlots()))
		}
		return errors.Join(err, ignoreAbsent(p.maps[bpf.XDPMapGuards].Delete(uint32(0))))
	}
	p.running.Store(next)
	p.showNAT(next.nat)
	return nil
}

// Program returns the running generation's XDP program, for test runs and its tag; nil before the
// first Publish. The caller closes it.
func (p *Plane) Program() (*ebpf.Program, error) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	g := p.running.Load()
	if g == nil {
		return nil, nil
	}
	return g.inSlots().xdp.Clone()
}

// Epoch returns the running generation's number; false before the first Publish.
func (p *Plane) Epoch() (uint32, bool) {
	if g := p.running.Load(); g != nil {
		return g.epoch, true
	}
	return 0, false
}

// putInSlots has the next packet run under other programs, the guard's first.
func (p *Plane) putInSlots(next *programs) error {
	if err := p.maps[bpf.XDPMapGuards].Put(uint32(0), next.guard); err != nil {
		return fmt.Errorf("put egress guard in force: %w", err)
	}
	if err := p.maps[p.slot()].Put(uint32(0), next.xdp); err != nil {
		return fmt.Errorf("put XDP program in force: %w", err)
	}
	return nil
}

// slot names the map that holds the generation's XDP program.
func (p *Plane) slot() string {
	if p.front != nil {
		return bpf.XDPMapAfterPipes
	}
	return bpf.XDPMapGenerations
}

func ignoreAbsent(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

func (p *Plane) loadGeneration(g Generation) (*loaded, error) {
	next := &loaded{epoch: g.Epoch, generation: &g}
	err := p.makeTables(&g, &next.tables)
	if err != nil {
		next.tables.close()
		return nil, err
	}
	plain, err := p.loadPrograms(&g, &next.tables, nil)
	if err != nil {
		next.tables.close()
		return nil, err
	}
	next.programs = *plain
	return next, nil
}

// makeTables makes what the programs of a generation share. After an error the caller closes what there is.
func (p *Plane) makeTables(g *Generation, t *tables) (err error) {
	if t.edition, err = newEdition(p.spec.Maps[editionMap], g.Epoch); err != nil {
		return err
	}
	if t.nat, err = p.makeNAT(g); err != nil {
		return err
	}
	t.pipes, err = newPipeTables(g.pipes(), p.spec.Maps)
	return err
}

// loadPrograms loads a generation's programs, with a capture in the form that copies packets to it.
func (p *Plane) loadPrograms(g *Generation, t *tables, c *Capture) (*programs, error) {
	spec := p.formFor(g)
	xdp, guard, shared := bpf.XDPProgSoftdpu, bpf.XDPProgGuard, maps.Clone(p.maps)
	if c != nil {
		xdp, guard = bpf.XDPProgSoftdpuTapped, bpf.XDPProgGuardTapped
		maps.Copy(shared, c.maps)
	} else {
		withoutCapture(spec)
	}
	keepPrograms(spec, xdp, guard)
	if err := p.setConstants(spec, len(g.MACs) > 0); err != nil {
		return nil, err
	}
	if err := p.setWorks(spec, g); err != nil {
		return nil, err
	}
	if err := p.setNAT(spec, g, t.nat, shared); err != nil {
		return nil, err
	}
	macs := spec.Maps[bpf.XDPMapMacs]
	macs.MaxEntries = uint32(max(1, len(g.MACs)))
	macs.Contents = nil
	for mac, identity := range g.MACs {
		macs.Contents = append(macs.Contents, ebpf.MapKV{Key: mac, Value: identity})
	}
	shared[editionMap] = t.edition.held
	for name, m := range t.pipes.maps {
		spec.Maps[name].MaxEntries, shared[name] = m.MaxEntries(), m
	}
	if c != nil {
		if err := c.setCapture(spec); err != nil {
			return nil, err
		}
	}
	for _, pipe := range g.pipes() {
		for _, name := range []string{xdp, guard} {
			if name == guard && !pipe.guarded {
				continue
			}
			var err error
			if pipe.acl == nil { // what stands in its place calls all that any pipe may need
				err = flowtable.DropFunctions(spec.Programs[name], pipe.function)
			} else {
				err = flowtable.ReplacePipe(spec.Programs[name], pipe.function, pipe.acl)
			}
			if err != nil {
				return nil, fmt.Errorf("put the rules into %s: %w", name, err)
			}
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	return &programs{coll.DetachProgram(xdp), coll.DetachProgram(guard)}, nil
}

// setConstants writes the tunables of maps.h. The verifier sees them as constants.
func (p *Plane) setConstants(spec *ebpf.CollectionSpec, haveMACs bool) error {
	for name, value := range map[string]any{
		bpf.XDPVarHashSeed:     p.seed,
		bpf.XDPVarGroup4Mask:   p.sizes.Groups - 1,
		bpf.XDPVarGroup6Mask:   p.sizes.Groups - 1,
		bpf.XDPVarStripeBits:   p.sizes.StripeBits,
		bpf.XDPVarFlowsMax:     p.sizes.FlowsMax,
		bpf.XDPVarHalfOpenMax:  p.sizes.HalfOpenMax,
		bpf.XDPVarOverflowMax:  p.sizes.OverflowMax,
		bpf.XDPVarFragmentMask: p.sizes.FragmentGroups - 1,
		bpf.XDPVarSimulate:     boolByte(p.options.Simulate),
		bpf.XDPVarHaveMacs:     boolByte(haveMACs),
		bpf.XDPVarEventRate:    p.options.EventRate,
		bpf.XDPVarDropEvents:   p.options.DropEvents,
	} {
		v := spec.Variables[name]
		if v == nil {
			return fmt.Errorf("set constant %s: the program object has none: it does not fit this binary", name)
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	return nil
}

// keepPrograms leaves out all other programs, so that they are not loaded.
func keepPrograms(spec *ebpf.CollectionSpec, names ...string) {
	for name := range spec.Programs {
		if !slices.Contains(names, name) {
			delete(spec.Programs, name)
		}
	}
}

func boolByte(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
