package dataplane

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// nat is what a plane knows of translation.
type nat struct {
	may    bool // flows may be translated; publishing is held
	limits bool // flows may count for their sources, until the last one ends; publishing is held
	maps   bool // there may be mappings, and flows that came in by them; publishing is held

	// natMu is held, to read or to write.
	shown *natTables                   // of the generation in force; nil: it translates nothing
	past  map[string]bpf.XDPNatCounter // of those before, by name of rule
}

// natTables are a generation's tables of translation. All programs of the generation share them.
type natTables struct {
	names []string // of rules, by id
	maps  map[string]*ebpf.Map
	ports NATPorts
}

// NATPorts says which source ports are taken, under the generation in force: memory that XDP writes too.
type NATPorts struct {
	NAT     *flowtable.NAT
	Bitmaps []bpf.XDPNatBitmap // to be accessed atomically
	Layout  uint32             // number of the generation

	mem memory
}

// NATPorts returns which ports are taken, the zero value if the generation in force translates nothing. The
// memory is valid until done is called; until then no other generation comes into force, and nobody else
// may call NATPorts on the same goroutine.
func (p *Plane) NATPorts() (ports NATPorts, done func()) {
	p.natMu.RLock()
	if p.nat.shown != nil {
		ports = p.nat.shown.ports
	}
	return ports, p.natMu.RUnlock
}

// showNAT makes the tables of the generation in force those that people are told of, and keeps what those
// before have counted. A packet that is still under way in them is not counted.
// natMu is held.
func (p *Plane) showNAT(next *natTables) {
	counted, _ := p.nat.shown.counters() // of a map that is ours: there is no reason to fail
	for name, c := range counted {
		p.nat.past[name] = addNATCounters(p.nat.past[name], c)
	}
	p.nat.shown = next
}

// numberNATPorts takes the ports of all translated flows where a generation looks for them. natMu is held.
func (p *Plane) numberNATPorts(of *loaded) {
	if of.nat == nil || atomic.LoadInt64(&p.mem.gateway[0].Aliases) == 0 {
		return
	}
	table, err := p.Table()
	if err != nil {
		return // it could be made when the plane was opened
	}
	ports := &of.nat.ports
	table.SetNATPorts(ports.Layout, ports.Bitmaps)
	table.RebuildNATPorts(ports.Layout, ports.NAT, ports.Bitmaps)
}

// settleNATPorts does so for the flows that began while the generation came into force.
func (p *Plane) settleNATPorts(of *loaded) {
	if of.nat == nil || atomic.LoadInt64(&p.mem.gateway[0].Aliases) == 0 {
		return
	}
	if Grace() != nil {
		time.Sleep(graceByTime)
	}
	p.natMu.Lock()
	defer p.natMu.Unlock()
	p.numberNATPorts(of)
}

// NATCounters returns what became of new flows under each rule of translation that this run has had, by its
// name, over all CPUs.
func (p *Plane) NATCounters() (map[string]bpf.XDPNatCounter, error) {
	p.natMu.RLock()
	defer p.natMu.RUnlock()
	sums, err := p.nat.shown.counters()
	if err != nil {
		return nil, err
	}
	for name, c := range p.nat.past {
		sums[name] = addNATCounters(sums[name], c)
	}
	return sums, nil
}

// counters reads what rules have counted under one generation.
func (n *natTables) counters() (map[string]bpf.XDPNatCounter, error) {
	sums := make(map[string]bpf.XDPNatCounter)
	if n == nil {
		return sums, nil
	}
	var cpus []bpf.XDPNatCounter
	for id, name := range n.names {
		if name == "" {
			continue
		}
		if err := n.maps[bpf.XDPMapNatCounters].Lookup(uint32(id), &cpus); err != nil {
			return sums, fmt.Errorf("read %s: %w", bpf.XDPMapNatCounters, err)
		}
		for _, c := range cpus {
			sums[name] = addNATCounters(sums[name], c)
		}
	}
	return sums, nil
}

func addNATCounters(a, b bpf.XDPNatCounter) bpf.XDPNatCounter {
	a.Flows += b.Flows
	a.Exhausted += b.Exhausted
	a.Conflicts += b.Conflicts
	a.Limited += b.Limited
	return a
}

// Translates reports whether flows may be translated. It is so from the first generation on that asked for
// it, since flows keep their translation until they end.
func (p *Plane) Translates() bool {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	return p.nat.may
}

// makeNAT makes the tables of what a generation translates; nil if that is nothing.
func (p *Plane) makeNAT(g *Generation) (_ *natTables, err error) {
	if g.NAT == nil {
		return nil, nil
	}
	n := &natTables{names: g.NATNames, maps: make(map[string]*ebpf.Map), ports: NATPorts{NAT: g.NAT, Layout: g.Epoch}}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	for _, m := range []struct {
		name string
		make func(*ebpf.MapSpec) (*ebpf.Map, error)
	}{
		{bpf.XDPMapNatRules, func(s *ebpf.MapSpec) (*ebpf.Map, error) { return batchFilled(s, g.NAT.Rules) }},
		{bpf.XDPMapNatBuckets, func(s *ebpf.MapSpec) (*ebpf.Map, error) { return batchFilled(s, g.NAT.Buckets) }},
		{bpf.XDPMapNatServers, func(s *ebpf.MapSpec) (*ebpf.Map, error) { return batchFilled(s, g.NAT.Servers) }},
		{bpf.XDPMapNatCounters, func(s *ebpf.MapSpec) (*ebpf.Map, error) { return sized(s, len(g.NAT.Rules)) }},
		{bpf.XDPMapNatPorts, func(s *ebpf.MapSpec) (*ebpf.Map, error) { return sized(s, g.NAT.Bitmaps()) }},
	} {
		if n.maps[m.name], err = m.make(p.spec.Maps[m.name].Copy()); err != nil {
			return nil, fmt.Errorf("make map %s: %w", m.name, err)
		}
	}
	ports, err := view[bpf.XDPNatBitmap](&n.ports.mem, n.maps[bpf.XDPMapNatPorts])
	if err != nil {
		return nil, err
	}
	n.ports.Bitmaps = ports[:g.NAT.Bitmaps()]
	copy(n.ports.Bitmaps, g.NAT.NewBitmaps())
	return n, nil
}

func (n *natTables) close() {
	if n == nil {
		return
	}
	for _, m := range n.maps {
		m.Close() // the programs hold it
	}
	n.ports.mem.close()
}

// formFor returns the programs that a generation needs. Those that never meet a translated flow have nothing of
// translation.
func (p *Plane) formFor(g *Generation) *ebpf.CollectionSpec {
	if p.nat.may || g.NAT != nil {
		return p.spec.Copy()
	}
	return p.withoutNAT.Copy()
}

// setNAT prepares a spec for what a generation translates, and adds its tables to the maps that its programs
// share with others.
func (p *Plane) setNAT(spec *ebpf.CollectionSpec, g *Generation, nat *natTables, shared map[string]*ebpf.Map) error {
	if nat != nil {
		for name, m := range nat.maps {
			spec.Maps[name].MaxEntries, shared[name] = m.MaxEntries(), m
		}
	}
	have := map[string]bool{
		bpf.XDPVarHaveSourceLimit: p.nat.limits || g.NAT.LimitsSources(),
		bpf.XDPVarHaveMapping:     p.nat.maps || g.NAT.Maps(),
		bpf.XDPVarHaveFiltering:   g.NAT.Filters(),
	}
	for constant, is := range have {
		if err := spec.Variables[constant].Set(boolByte(is)); err != nil {
			return fmt.Errorf("set constant %s: %w", constant, err)
		}
		if is {
			continue
		}
		if err := without(spec, constant, onlyFor[constant]...); err != nil {
			return err
		}
	}
	if err := spec.Variables[bpf.XDPVarNatLayout].Set(g.Epoch); err != nil {
		return fmt.Errorf("set constant %s: %w", bpf.XDPVarNatLayout, err)
	}
	return nil
}

// pipes are the ACLs of a generation by the functions that they replace, in the order in which their memory
// stands. Those that are nil answer 0.
func (g *Generation) pipes() []pipe {
	destinations, sources := pipe{function: "nat_destinations"}, pipe{function: "nat_sources"}
	if g.NAT != nil {
		destinations.acl, sources.acl = g.NAT.Destinations, g.NAT.Sources
	}
	return []pipe{{"classify", g.ACL, true}, destinations, sources}
}

type pipe struct {
	function string
	acl      *flowtable.ACL
	guarded  bool // the egress guard has the function too
}

// sized makes a map of at least one element.
func sized(spec *ebpf.MapSpec, entries int) (*ebpf.Map, error) {
	spec.MaxEntries = uint32(max(1, entries))
	return ebpf.NewMap(spec)
}

// batchFilled makes an array that holds values and cannot be mapped.
func batchFilled[T any](spec *ebpf.MapSpec, values []T) (*ebpf.Map, error) {
	m, err := sized(spec, len(values))
	if err != nil || len(values) == 0 {
		return m, err
	}
	keys := make([]uint32, len(values))
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		m.Close()
		return nil, fmt.Errorf("fill it: %w", err)
	}
	return m, nil
}
