package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// pipeMemory makes the maps that hold the pipes of one generation alone, filled: large sets, and pipes of
// many entries. Each gets its size in maps.
func pipeMemory(pipes []pipe, maps map[string]*ebpf.MapSpec) (map[string]*ebpf.Map, error) {
	var set4 []bpf.XDPSet4Node
	var set6 []bpf.XDPSet6Node
	var forest flowtable.Forest
	banks := make([]bpf.XDPForestBank, bpf.XDPForestLimitFOREST_BANKS)
	for _, p := range pipes {
		if p.acl != nil {
			of4, of6 := p.acl.Sets()
			set4, set6 = append(set4, of4...), append(set6, of6...)
			forest.Append(p.acl.Forest())
			p.acl.PutRoots(&banks[0])
		}
	}
	made := map[string]*ebpf.Map{}
	for name, fill := range map[string]func(*ebpf.MapSpec) (*ebpf.Map, error){
		bpf.XDPMapSetNodes4:    func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, set4) },
		bpf.XDPMapSetNodes6:    func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, set6) },
		bpf.XDPMapForestNodes:  func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, forest.Nodes) },
		bpf.XDPMapForestRules4: func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, forest.Rules4) },
		bpf.XDPMapForestRules6: func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, forest.Rules6) },
		bpf.XDPMapForestChecks: func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, forest.Checks) },
		bpf.XDPMapForestRoots:  func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, banks) },
	} {
		m, err := fill(maps[name])
		if err != nil {
			closeMaps(made)
			return nil, fmt.Errorf("make map %s: %w", name, err)
		}
		made[name] = m
	}
	return made, nil
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// filled makes an array that holds values, through its memory: that takes a thousandth of the time of
// updates. It writes the size into the spec.
func filled[T any](spec *ebpf.MapSpec, values []T) (*ebpf.Map, error) {
	spec.MaxEntries = uint32(max(1, len(values)))
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, err
	}
	mem := &memory{}
	defer mem.close()
	in, err := view[T](mem, m)
	if err != nil {
		m.Close()
		return nil, err
	}
	copy(in, values)
	return m, nil
}
