package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/firewall/pipes"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/gateway"
)

// shownPipelines is what `softdpu pipeline show -o json` prints: what the API says of the pipeline in front of the policy,
// and the policy's own pipes.
type shownPipelines struct {
	Pipeline  *pipe.Report `json:"pipeline"` // null: none is in front
	AppliedAt *time.Time   `json:"applied_at,omitempty"`
	AppliedBy *string      `json:"applied_by,omitempty"`
	Comment   *string      `json:"comment,omitempty"`
	Policy    *shownPolicy `json:"policy,omitempty"`
}

// shownPolicy are the gateway's own pipes.
type shownPolicy struct {
	Epoch    *uint32      `json:"epoch,omitempty"` // of a running gateway
	Pipeline *pipe.Report `json:"pipeline"`
}

// own is the report of the gateway's own pipes; nil: they are not shown.
func (s *shownPipelines) own() *pipe.Report {
	if s.Policy == nil {
		return nil
	}
	return s.Policy.Pipeline
}

// pipesInForce asks a running gateway for all its pipes, with so many entries of each.
func pipesInForce(ctx context.Context, client *gateway.Client, most int) (*shownPipelines, error) {
	front, err := client.Pipeline(ctx, most)
	if err != nil {
		return nil, err
	}
	own, err := client.PolicyPipes(ctx, most)
	if err != nil {
		return nil, err
	}
	s := &shownPipelines{Policy: &shownPolicy{Epoch: &own.Epoch, Pipeline: &own.Runs}}
	if front != nil {
		s.Pipeline, s.AppliedAt, s.AppliedBy, s.Comment = &front.Runs, &front.AppliedAt, &front.AppliedBy, &front.Comment
	}
	return s, nil
}

// policyPipes compiles a policy of files and says which pipes it becomes.
func (o *offline) policyPipes(most int) (*pipes.Policy, error) {
	acl, err := flowtable.CompileACL(o.compiled.Entries)
	if err != nil {
		return nil, fmt.Errorf("compile policy: %w", err)
	}
	nat, err := o.compiled.NATBehind(acl)
	if err != nil {
		return nil, err
	}
	options := pipes.Options{Most: most}
	if o.config != nil {
		options.Inline = o.config.InlinePorts()
	}
	return pipes.New(o.compiled, acl, nat, options), nil
}

// loadPolicyPipes reads a policy of files for pipes.
func loadPolicyPipes(env *Env, source *policySource, most int) (*shownPolicy, error) {
	o, err := source.load(env, firewall.CompileOptions{})
	if err != nil {
		return nil, faults(err)
	}
	p, err := o.policyPipes(most)
	if err != nil {
		return nil, err
	}
	return &shownPolicy{Pipeline: p.Report(nil)}, nil
}

// narrow is the width from which on all columns of the gateway's own pipes have room.
const narrow = 120

// policyTable lists the gateway's own pipes. On a narrow terminal pipes are lines of their own, and less is told.
func policyTable(r *pipe.Report, live bool, width int) *table {
	slim := width > 0 && width < narrow
	names := []string{"PIPE", "KIND", "ENTRY", "MATCH", "FORWARD"}
	if slim {
		names = []string{"ENTRY", "MATCH", "FORWARD"}
	}
	if live {
		names = append(names, ">FLOWS", ">PACKETS")
	}
	if live && !slim {
		names = append(names, ">BYTES", ">IDLE")
	}
	if !slim {
		names = append(names, "PLACE")
	}
	t := newTable(names...)
	for i := range r.Pipes {
		p := &r.Pipes[i]
		name, kind := p.Name, string(p.Kind)
		if slim {
			t.add(fmt.Sprintf("%s (%s)", name, kind))
		}
		row := func(e *pipe.EntryReport, title string) {
			cells := []any{name, kind, title}
			if slim {
				cells = []any{"  " + title}
			}
			cells = append(cells, strings.Join(e.Match, " "), ownForward(e))
			if counts := ownCounts(e); live && slim {
				cells = append(cells, counts[:2]...)
			} else if live {
				cells = append(cells, counts...)
			}
			place := "-"
			if e.File != "" {
				place = fmt.Sprintf("%s:%d", e.File, e.Line)
			}
			t.add(append(cells, place)...) // which a slim table has no column for
			name, kind = "", ""
		}
		if p.Forward != "" {
			row(&pipe.EntryReport{Forward: p.Forward}, "(known)")
		}
		for k := range p.Entries {
			row(&p.Entries[k], p.Entries[k].Name)
		}
		if n := p.Total - len(p.Entries); n > 0 {
			row(&pipe.EntryReport{}, fmt.Sprintf("(%d more)", n))
		}
		row(&p.Miss, "(miss)")
	}
	return t
}

// ownCounts are the cells of what an entry of the gateway's own pipes has counted.
func ownCounts(e *pipe.EntryReport) []any {
	flows, packets, bytes, idle := "-", "-", "-", "-"
	if e.Flows != nil {
		flows = fmt.Sprint(*e.Flows)
	}
	if e.Packets != nil {
		packets = fmt.Sprint(*e.Packets)
	}
	if e.Bytes != nil {
		bytes = fmt.Sprint(*e.Bytes)
	}
	if e.IdleS != nil {
		idle = interval(*e.IdleS)
	}
	return []any{flows, packets, bytes, idle}
}

// ownForward says what an entry of the gateway's own pipes does and where it leads.
func ownForward(e *pipe.EntryReport) string {
	text := e.Forward
	if e.Does != "" {
		text = e.Does + ", " + text
	}
	if e.Log {
		text += ", log"
	}
	if e.Audit {
		text = "audit: " + text
	}
	return text
}
