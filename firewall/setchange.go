package firewall

import (
	"slices"

	"github.com/softdpu/softdpu/flowtable"
)

// SetChange is what a set holds instead of, beside and without what the policy says of it.
type SetChange struct {
	Instead *Set // of the same type; nil: what the policy says
	Added   []Entry
	Removed map[Entry]bool // of the policy's own entries, or of those instead
}

// WithSets returns the policy with other entries in the sets that changes names; those that the policy does
// not have are passed over. P and what it holds stay as they are.
func (p *Policy) WithSets(changes map[string]SetChange) *Policy {
	out := *p
	out.Sets = slices.Clone(p.Sets)
	ports := false
	for i := range out.Sets {
		s := &out.Sets[i]
		if c, ok := changes[s.Name]; ok {
			*s = s.with(c)
			ports = ports || s.Type == SetPort
		}
	}
	if !ports {
		return &out
	}
	holds := make(map[string]*Set)
	for i := range out.Sets {
		holds[out.Sets[i].Name] = &out.Sets[i]
	}
	out.Services = slices.Clone(p.Services)
	for i := range out.Services {
		out.Services[i].Matches = withPorts(out.Services[i].Matches, holds)
	}
	out.Rules = slices.Clone(p.Rules)
	for i, r := range out.Rules {
		if services := withPorts(r.Services, holds); len(services) > 0 && &services[0] != &r.Services[0] {
			with := *r
			with.Services = services
			out.Rules[i] = &with
		}
	}
	out.NAT = slices.Clone(p.NAT)
	for i := range out.NAT {
		out.NAT[i].Services = withPorts(out.NAT[i].Services, holds)
	}
	return &out
}

// with returns the set after a change. Added entries have no line.
func (s *Set) with(c SetChange) Set {
	out := *s
	if i := c.Instead; i != nil {
		out.Prefixes, out.Ports, out.MACs, out.Names, out.lines, out.File = i.Prefixes, i.Ports, i.MACs, i.Names, i.lines, i.File
		if len(c.Added)+len(c.Removed) == 0 {
			return out
		}
		s = i
	}
	n := s.Len() + len(c.Added)
	out.lines = make([]int32, 0, n)
	switch s.Type {
	case SetPrefix:
		out.Prefixes = slices.Grow(out.Prefixes[:0:0], n)
	case SetPort:
		out.Ports = slices.Grow(out.Ports[:0:0], n)
	case SetMAC:
		out.MACs = slices.Grow(out.MACs[:0:0], n)
	case SetName:
		out.Names = slices.Grow(out.Names[:0:0], n)
	}
	for i := range s.lines {
		if e := s.Entry(i); len(c.Removed) == 0 || !c.Removed[e] {
			out.put(e, int(s.lines[i]))
		}
	}
	for _, e := range c.Added {
		out.put(e, 0)
	}
	return out
}

// portList is where the ports of a service come from.
type portList struct {
	own  []flowtable.U16Range // written in the service itself
	sets []string             // of type port
}

// withPorts returns services whose ports are those that the sets hold now.
func withPorts(in []ServiceMatch, sets map[string]*Set) []ServiceMatch {
	out := in
	for i := range in {
		m := in[i]
		if m.src == nil && m.dst == nil {
			continue
		}
		if &out[0] == &in[0] {
			out = slices.Clone(in)
		}
		if m.src != nil {
			m.SrcPorts = m.src.resolve(sets)
		}
		if m.dst != nil {
			m.DstPorts = m.dst.resolve(sets)
		}
		out[i] = m
	}
	return out
}

func (l *portList) resolve(sets map[string]*Set) []flowtable.U16Range {
	all := slices.Clone(l.own)
	for _, name := range l.sets {
		all = append(all, sets[name].Ports...)
	}
	return joinPorts(all)
}
