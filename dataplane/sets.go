package dataplane

import (
	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// setNodes4 returns what makes the map of a generation's large sets, filled; nil holds none.
func setNodes4(a *flowtable.ACL) func(*ebpf.MapSpec) (*ebpf.Map, error) {
	var nodes []bpf.XDPSet4Node
	if a != nil {
		nodes, _ = a.Sets()
	}
	return func(spec *ebpf.MapSpec) (*ebpf.Map, error) { return filled(spec, nodes) }
}

// setNodes6 is setNodes4 of IPv6.
func setNodes6(a *flowtable.ACL) func(*ebpf.MapSpec) (*ebpf.Map, error) {
	var nodes []bpf.XDPSet6Node
	if a != nil {
		_, nodes = a.Sets()
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
