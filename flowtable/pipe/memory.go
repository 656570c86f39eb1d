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
