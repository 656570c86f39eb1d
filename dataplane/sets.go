package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// pipeTables are the maps that hold the pipes of one generation alone, and their memory: large sets, and pipes of
// many entries.
type pipeTables struct {
	maps map[string]*ebpf.Map
	mem  memory

	set4   []bpf.XDPSet4Node
	set6   []bpf.XDPSet6Node
	forest flowtable.Forest
	banks  []bpf.XDPForestBank
}

// newPipeTables makes them, filled.
func newPipeTables(pipes []pipe, specs map[string]*ebpf.MapSpec) (*pipeTables, error) {
	var set4 []bpf.XDPSet4Node
	var set6 []bpf.XDPSet6Node
	var forest flowtable.Forest
	for _, p := range pipes {
		if p.acl != nil {
			of4, of6 := p.acl.Sets()
			set4, set6 = append(set4, of4...), append(set6, of6...)
			forest.Append(p.acl.Forest())
		}
	}
	t := &pipeTables{maps: make(map[string]*ebpf.Map)}
	var errs [7]error
	t.set4, errs[0] = filled(t, specs[bpf.XDPMapSetNodes4], set4)
	t.set6, errs[1] = filled(t, specs[bpf.XDPMapSetNodes6], set6)
	t.forest.Nodes, errs[2] = filled(t, specs[bpf.XDPMapForestNodes], forest.Nodes)
	t.forest.Rules4, errs[3] = filled(t, specs[bpf.XDPMapForestRules4], forest.Rules4)
	t.forest.Rules6, errs[4] = filled(t, specs[bpf.XDPMapForestRules6], forest.Rules6)
	t.forest.Checks, errs[5] = filled(t, specs[bpf.XDPMapForestChecks], forest.Checks)
	t.banks, errs[6] = filled(t, specs[bpf.XDPMapForestRoots], make([]bpf.XDPForestBank, bpf.XDPForestLimitFOREST_BANKS))
	if err := errors.Join(errs[:]...); err != nil {
		t.close()
		return nil, err
	}
	for _, p := range pipes {
		if p.acl != nil {
			p.acl.PutRoots(&t.banks[0])
		}
	}
	return t, nil
}

// change writes what a generation's rules have otherwise than those before, which are looked up by a bank, and
// returns the bank by which these are.
func (t *pipeTables) change(g *Generation, bank uint32) uint32 {
	g.Change.Write(t.forest, t.set4, t.set6)
	next := (bank + 1) % uint32(len(t.banks))
	t.banks[next] = t.banks[bank] // with the roots of pipes that stay
	g.ACL.PutRoots(&t.banks[next])
	return next
}

func (t *pipeTables) close() {
	if t == nil {
		return
	}
	for _, m := range t.maps {
		m.Close() // the programs hold it
	}
	t.mem.close()
}

// filled makes an array that holds values, and returns its memory: writing there takes a thousandth of the time of
// updates.
func filled[T any](t *pipeTables, spec *ebpf.MapSpec, values []T) ([]T, error) {
	spec = spec.Copy()
	spec.MaxEntries = uint32(max(1, len(values)))
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make map %s: %w", spec.Name, err)
	}
	t.maps[spec.Name] = m
	in, err := view[T](&t.mem, m)
	copy(in, values)
	return in, err
}
