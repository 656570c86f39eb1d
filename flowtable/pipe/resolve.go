package pipe

import (
	"fmt"
	"maps"
	"slices"

	"github.com/softdpu/softdpu/firewall/mistake"
)

// Resolve returns a copy of p in which names of ports have become the ids that ports gives them: in p.Ports, and in the
// values of field port. What does not change is shared with p. The error is a [mistake.Errors] if a name is not among
// them.
func (p *Pipeline) Resolve(ports map[string]uint32) (*Pipeline, error) {
	r := &resolver{known: ports, used: make(map[string]uint32)}
	out := *p
	out.Pipes = make([]*Pipe, len(p.Pipes))
	for i, pipe := range p.Pipes {
		out.Pipes[i] = r.pipe(pipe)
	}
	for _, m := range p.Mirrors {
		for _, name := range m.Ports {
			r.port(m.Pos, fmt.Sprintf("mirror %q", m.Name), name)
		}
	}
	out.Ports = r.used
	if len(r.faults) > 0 {
		return nil, r.faults.Sorted()
	}
	return &out, nil
}

type resolver struct {
	known, used map[string]uint32
	faults      mistake.Errors
}

// port notes that the pipeline uses a port. Where says who names it.
func (r *resolver) port(pos Pos, where, name string) Value {
	id, ok := r.known[name]
	if !ok {
		e := pos.Errorf("%s: the gateway has no port %q", where, name).WithHint("its configuration names its ports")
		if near := mistake.Nearest(name, slices.Sorted(maps.Keys(r.known))); near != "" {
			e = e.WithHint("did you mean %q?", near)
		}
		r.faults = append(r.faults, e)
		return Value{0}
	}
	r.used[name] = id
	return Value{id}
}

func (r *resolver) forward(where string, f *Forward) {
	if f != nil {
		for _, name := range f.ports() {
			r.port(f.Pos, where, name)
		}
	}
}

// ports are the names of those that the forward names.
func (f *Forward) ports() []string {
	switch {
	case f.To == ToPort, f.To == ToStage && f.Copy == "":
		return []string{f.Name}
	case f.To == ToStage:
		return []string{f.Name, f.Copy}
	}
	return nil
}

func (r *resolver) pipe(p *Pipe) *Pipe {
	where := fmt.Sprintf("pipe %q", p.Name)
	r.forward(where, p.Forward)
	r.forward(where, &p.Miss)
	out := *p
	out.Entries = slices.Clone(p.Entries)
	for i, e := range p.Entries {
		where := where + ", " + e.title(i)
		r.forward(where, e.Forward)
		out.Entries[i] = r.entry(where, e)
	}
	return &out
}

// entry returns e itself if it does not match on ports.
func (r *resolver) entry(where string, e *Entry) *Entry {
	named := func(m Match) bool { return m.Port != "" }
	i := slices.IndexFunc(e.Match, named)
	if i < 0 {
		return e
	}
	out := *e
	out.Match = slices.Clone(e.Match)
	for i := range out.Match {
		if m := &out.Match[i]; named(*m) {
			m.Value, m.Port = r.port(m.Pos, where+", field "+m.Field.Name, m.Port), ""
		}
	}
	return &out
}

// title says which entry of its pipe it is, the i-th.
func (e *Entry) title(i int) string {
	if e.Name != "" {
		return fmt.Sprintf("entry %q", e.Name)
	}
	return fmt.Sprintf("entry %d", i)
}
