package dataplane

import (
	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
)

// setNodes4 returns what makes the map of a generation's large sets, filled.
func setNodes4(pipes []pipe) func(*ebpf.MapSpec) (*ebpf.Map, error) {
	var nodes []bpf.XDPSet4Node
	for _, p := range pipes {
		if p.acl != nil {
			of, _ := p.acl.Sets()
			nodes = append(nodes, of...)
		}
	}
	return func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, nodes) }
}

// setNodes6 is setNodes4 of IPv6.
func setNodes6(pipes []pipe) func(*ebpf.MapSpec) (*ebpf.Map, error) {
	var nodes []bpf.XDPSet6Node
	for _, p := range pipes {
		if p.acl != nil {
			_, of := p.acl.Sets()
			nodes = append(nodes, of...)
		}
	}
	return func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, nodes) }
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
