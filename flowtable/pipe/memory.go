package pipe

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// Size gives the maps of the program in C the sizes that the program's memory has.
func (p *Program) Size(spec *ebpf.CollectionSpec) {
	for name, n := range map[string]int{
		bpf.PipesMapPipeEntries: len(p.Memory.Entries), bpf.PipesMapPipeBuckets: len(p.Memory.Buckets),
		bpf.PipesMapPipeRoots: len(p.Memory.Arena.Roots), bpf.PipesMapPipeNodes4: len(p.Memory.Arena.Nodes4), bpf.PipesMapPipeNodes6: len(p.Memory.Arena.Nodes6),
	} {
		spec.Maps[name].MaxEntries = uint32(max(1, n))
	}
}

// Constants are those of the program in C that depend on the pipeline, by name.
func (p *Program) Constants() map[string]any {
	constants := map[string]any{
		bpf.PipesVarUsed:       p.Used,
		bpf.PipesVarTracing:    boolByte(p.options.Trace),
		bpf.PipesVarCheckIp:    boolByte(p.Used>>wordHas&1 == 1),
		bpf.PipesVarPipeLayout: p.Layout(),
		bpf.PipesVarPipeSeed:   p.options.Seed, bpf.PipesVarPipeSpreadSeed: p.options.SpreadSeed,
	}
	for i, name := range []string{bpf.PipesVarRaw0, bpf.PipesVarRaw1, bpf.PipesVarRaw2, bpf.PipesVarRaw3} {
		value := ^uint32(0)
		if i < len(p.Pipeline.Raws) {
			r := p.Pipeline.Raws[i]
			value = uint32(rawBases[r.Base])<<16 | uint32(r.Offset)
		}
		constants[name] = value
	}
	return constants
}

var rawBases = map[string]bpf.PipesPipeBase{
	"l2": bpf.PipesPipeBasePIPE_BASE_L2, "l3": bpf.PipesPipeBasePIPE_BASE_L3,
	"l4": bpf.PipesPipeBasePIPE_BASE_L4, "payload": bpf.PipesPipeBasePIPE_BASE_PAYLOAD,
}

func boolByte(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// MoveTo has the program use other memory, sized as its own is ([Program.Size]), which becomes as its own is. Grace is what
// tables wait for before they use a place again: until no packet is under way that may have found it.
func (p *Program) MoveTo(m *Memory, grace func()) error {
	if len(m.Entries) < len(p.Memory.Entries) || len(m.Buckets) < len(p.Memory.Buckets) || len(m.Meters) < len(p.Memory.Meters) {
		return fmt.Errorf("move pipeline %s to other memory: it is smaller", p.Pipeline.Name)
	}
	copy(m.Entries, p.Memory.Entries)
	copy(m.Buckets, p.Memory.Buckets)
	copy(m.Meters, p.Memory.Meters)
	copy(m.Tries, p.Memory.Tries)
	if err := p.MovePrefixes(m, grace); err != nil {
		return err
	}
	for _, pl := range p.Pipes {
		var err error
		if pl.Table != nil {
			c := p.Config(pl.Number, *m)
			c.Now, c.Grace = pl.Table.Now, grace
			pl.Table, err = OpenTable(c)
		}
		for _, t := range pl.tuples {
			if err != nil {
				break
			}
			c := t.table.TableConfig
			c.Entries, c.Buckets, c.Grace = m.Entries, m.Buckets[t.bucket:int(t.bucket)+len(c.Buckets)], grace
			t.table, err = OpenTable(c)
		}
		if err != nil {
			return fmt.Errorf("move pipe %s to other memory: %w", pl.Pipe.Name, err)
		}
	}
	p.Memory = m
	return nil
}

// Adopt adds the counts of another program to those of this one, for entries of the same name, or else of the same match, in
// pipes of the same name and kind. No packet counts in the other one any more.
func (p *Program) Adopt(before *Program) {
	old := make(map[string]*Planned)
	for _, pl := range before.Pipes {
		old[pl.Pipe.Name] = pl
	}
	for _, pl := range p.Pipes {
		from := old[pl.Pipe.Name]
		if from == nil || from.Pipe.Kind != pl.Pipe.Kind {
			continue
		}
		carryAt(p, before, pl.Miss, from.Miss)
		if len(pl.Places) == 0 && len(from.Places) == 0 {
			carryAt(p, before, pl.First, from.First)
		}
		places := make(map[string][]uint32, len(from.Places)) // several may ask the same
		for i, place := range from.Places {
			id := from.Pipe.Entries[i].identity()
			places[id] = append(places[id], place)
		}
		for i, place := range pl.Places {
			id := pl.Pipe.Entries[i].identity()
			if at := places[id]; len(at) > 0 {
				carryAt(p, before, place, at[0])
				places[id] = at[1:]
			}
		}
	}
	for i, name := range p.Pipeline.Counters {
		for j, other := range before.Pipeline.Counters {
			if name == other {
				carryAt(p, before, p.Counters[i], before.Counters[j])
			}
		}
	}
}

func carryAt(p, before *Program, to, from uint32) {
	if to != 0 && from != 0 {
		old := readEntry(&before.Memory.Entries[from])
		carry(&p.Memory.Entries[to], &old)
	}
}

// identity is what an entry is known by when its pipeline is replaced.
func (e *Entry) identity() string {
	if e.Name != "" {
		return e.Name
	}
	return fmt.Sprintf("%s\x00%s\x00%v %d %d", matchesText(e.Match), conditionsText(e.Conditions), e.Prefix, e.Priority, e.Index)
}

func matchesText(list []Match) (text string) {
	for _, m := range list {
		text += fmt.Sprintf("%s %v/%v-%v;", m.Field.Name, m.Value, m.Mask, m.Last)
	}
	return text
}

func conditionsText(list []Condition) (text string) {
	for _, c := range list {
		with := fmt.Sprint(c.Value)
		if c.With != nil {
			with = c.With.Name
		}
		text += fmt.Sprintf("%s %s %s;", c.Field.Name, c.Compare, with)
	}
	return text
}
