package flowtable

import "github.com/softdpu/softdpu/bpf"

// SetBeside says how a mapped table finds one of the entries that are beside its groups: a copy of what the kernel's
// hash has under a key, nil if that is nothing. Lookup, Complete and Executor.Routed then know them too, and
// whatever lists flows knows by which rules they were translated if it is their alias that is beside.
func (t *Table) SetBeside(find4 func(bpf.XDPFlow4Key) *bpf.XDPFlow4, find6 func(bpf.XDPFlow6Key) *bpf.XDPFlow6) {
	t.beside4, t.beside6 = find4, find6
}

// see is find for those who only read: what it returns may be a copy of an entry.
func (t *Table) see(k *flowKey) (entry, bool) {
	e, ok := t.find(k)
	if ok || t.beside4 == nil || t.besideGroups(k.family) <= 0 {
		return e, ok
	}
	if k.family == 4 {
		if f := t.beside4(k.v4); f != nil {
			return entry4(f, FlowID{Overflow: true}), true
		}
		return entry{}, false
	}
	if f := t.beside6(k.v6); f != nil {
		return entry6(f, FlowID{Overflow: true}), true
	}
	return entry{}, false
}
