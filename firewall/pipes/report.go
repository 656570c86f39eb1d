package pipes

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Count is what a rule has counted.
type Count struct {
	Packets, Bytes uint64
	Flows          uint64
	Judged         uint64   // times that it decided, or in audit mode would have
	IdleS          *float64 // since it decided last; nil: never
}

// Counts are what a running gateway has counted. A rule with several entries has them at the first one.
type Counts struct {
	Rules func(id uint32) Count  // by the id of a rule; of 0 what no rule matched
	NAT   func(id uint32) uint64 // flows that the nat rule with this id has translated
}

// Report describes the pipes, what became of them, and what was counted; nil: nothing is known of that.
func (p *Policy) Report(counts *Counts) *pipe.Report {
	became := make([]pipe.Became, len(p.Pipeline.Pipes))
	for i, of := range p.Pipeline.Pipes {
		became[i] = p.became(of)
	}
	r := pipe.Describing(p.Pipeline, became).Report(p.options.Most, 0)
	r.BypassesPolicy = false
	for i := range r.Pipes {
		out := &r.Pipes[i]
		out.Total = p.total[out.Name]
		if acl := became[i].ACL; acl != nil {
			sets, forest := memory(acl)
			out.MemoryBytes = sets + forest
		}
		if counts != nil {
			p.count(out, counts)
		}
	}
	return r
}

// count fills in what was counted.
func (p *Policy) count(r *pipe.PipeReport, counts *Counts) {
	ids := p.ids[r.Name]
	counted := make(map[string]bool)
	for i := range r.Entries {
		e := &r.Entries[i]
		if i >= len(ids) || ids[i] == 0 {
			continue
		}
		name := ""
		if r.Name == Rules {
			name = p.compiled.Rules[ids[i]].Name
		} else {
			name = p.compiled.NATRules[ids[i]].Name // its ids of both families
		}
		if counted[name] {
			continue
		}
		counted[name] = true
		switch {
		case r.Name != Rules:
			flows := counts.NAT(ids[i])
			e.Flows = &flows
		case e.Audit:
			c := counts.Rules(ids[i])
			e.Packets, e.IdleS = &c.Judged, c.IdleS
		default:
			fill(e, counts.Rules(ids[i]))
		}
	}
	if r.Name == Rules {
		fill(&r.Miss, counts.Rules(0))
		r.Miss.Flows = nil
	}
}

func fill(e *pipe.EntryReport, c Count) {
	e.Packets, e.Bytes, e.Flows, e.IdleS = &c.Packets, &c.Bytes, &c.Flows, c.IdleS
}

// became says what a pipe is in the running programs.
func (p *Policy) became(of *pipe.Pipe) pipe.Became {
	switch of.Kind {
	case pipe.CT:
		why := "flows are looked up where the gateway keeps them"
		if of.Name == Mappings {
			why = "mappings are looked up where the gateway keeps its flows"
		}
		return pipe.Became{Form: pipe.InFlows, Why: why}
	case pipe.Hash:
		return pipe.Became{Form: pipe.InSlots, Why: fmt.Sprintf("a consistent hash by way of %d buckets in memory", of.Size)}
	case pipe.Control:
		return pipe.Became{Form: pipe.InCode, Entries: len(of.Entries), Why: "a few questions that are part of the program"}
	}
	acl, rows := p.rules, len(p.compiled.Entries)
	switch of.Name {
	case Destinations:
		acl, rows = p.nat.Destinations, len(p.compiled.NATDestinations)
	case Sources:
		acl, rows = p.nat.Sources, len(p.compiled.NATSources)
	}
	b := pipe.Became{Form: pipe.InACL, ACL: acl, Entries: rows, Why: why(acl, rows)}
	if text, err := acl.Instructions(); err == nil {
		for i := range text {
			b.Instructions += int(text[i].Width())
		}
	}
	return b
}

// why says in a sentence what became of a classifier.
func why(acl *flowtable.ACL, rows int) string {
	var parts []string
	sets, forest := memory(acl)
	switch {
	case forest > 0:
		parts = append(parts, fmt.Sprintf("%d rows are too many for instructions: decision trees in memory, %s", rows, size(forest)))
	default:
		parts = append(parts, fmt.Sprintf("%d rows become a search of instructions", rows))
	}
	if sets > 0 {
		parts = append(parts, fmt.Sprintf("large sets are search trees in memory, %s", size(sets)))
	}
	return strings.Join(parts, "; ")
}

// memory is how many bytes of maps a classifier takes: for sets, and for its trees.
func memory(acl *flowtable.ACL) (sets, forest int) {
	four, six := acl.Sets()
	f := acl.Forest()
	return bytes(four) + bytes(six), bytes(f.Nodes) + bytes(f.Rules4) + bytes(f.Rules6) + bytes(f.Checks)
}

func bytes[T any](s []T) int { return len(s) * int(unsafe.Sizeof(*new(T))) }

// size writes how much memory it is.
func size(bytes int) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
