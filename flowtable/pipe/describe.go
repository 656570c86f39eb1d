package pipe

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall/mistake"
)

// Describe gives a packet a field of the pipeline, written as in entries, and what a packet with that field has. Ports are
// known by the ids that they have.
func (p *Pipeline) Describe(f *bpf.PipesPipeFields, ports map[string]uint32, name, text string) error {
	field := p.Field(name)
	if field == nil {
		hint := "docs/pipes.md lists the fields"
		if near := mistake.Nearest(name, p.FieldNames()); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return fmt.Errorf("there is no such field: %s", hint)
	}
	var v Value
	if field.Word == int(bpf.PipesPipeWordPIPE_PORT) {
		id, ok := ports[text]
		if !ok {
			return fmt.Errorf("the pipeline names no port %q", text)
		}
		v = Value{id}
	} else {
		m, err := field.Parse(text)
		if err != nil {
			return err
		}
		if v = m.Value; m.Last != nil {
			return fmt.Errorf("%q is a range: a packet has one value", text)
		}
	}
	copy(f.Word[field.Word:], v)
	f.Word[wordHas] |= field.Has
	for _, implied := range [][2]uint32{
		{hasIPv4 | hasIPv6, hasIP}, {hasTCP | hasUDP, hasPorts},
	} {
		if f.Word[wordHas]&implied[0] != 0 {
			f.Word[wordHas] |= implied[1]
		}
	}
	switch f.Word[bpf.PipesPipeWordPIPE_IP_PROTO] {
	case 6:
		f.Word[wordHas] |= hasTCP | hasPorts
	case 17:
		f.Word[wordHas] |= hasUDP | hasPorts
	}
	tags := f.Word[wordHas] & (hasVLAN0 | hasVLAN1)
	if tags&hasVLAN1 != 0 {
		f.Word[wordHas] |= hasVLAN0
		tags |= hasVLAN0
	}
	f.Word[bpf.PipesPipeWordPIPE_VLANS] = max(f.Word[bpf.PipesPipeWordPIPE_VLANS], uint32(bits.OnesCount32(tags)))
	return nil
}

// ForwardsTo reports whether packets go there from any of the pipes.
func (p *Pipeline) ForwardsTo(to Target) bool {
	return slices.ContainsFunc(p.Pipes, func(pipe *Pipe) bool {
		return slices.ContainsFunc(pipe.everyForward(), func(f *Forward) bool { return f.To == to })
	})
}

// Stages are the workers' stages that the pipeline forwards to, in the order of the documentation.
func (p *Pipeline) Stages() (used []Stage) {
	for _, stage := range Stages() {
		if slices.ContainsFunc(p.Pipes, func(pipe *Pipe) bool {
			return slices.ContainsFunc(pipe.everyForward(), func(f *Forward) bool { return f.To == ToStage && f.Stage == stage })
		}) {
			used = append(used, stage)
		}
	}
	return used
}

// PortNames are the ports that the pipeline names, sorted.
func (p *Pipeline) PortNames() []string {
	used := make(map[string]bool)
	note := func(f *Forward) {
		if f != nil {
			for _, name := range f.ports() {
				used[name] = true
			}
		}
	}
	for _, pipe := range p.Pipes {
		for _, f := range pipe.everyForward() {
			note(f)
		}
	}
	for _, pipe := range p.Pipes {
		for _, e := range pipe.Entries {
			for i := range e.Match {
				if name := e.Match[i].Port; name != "" {
					used[name] = true
				}
			}
		}
	}
	for _, m := range p.Mirrors {
		for _, name := range m.Ports {
			used[name] = true
		}
	}
	return slices.Sorted(maps.Keys(used))
}
