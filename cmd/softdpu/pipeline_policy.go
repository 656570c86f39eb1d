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

// policyTable lists the gateway's own pipes.
func policyTable(r *pipe.Report) *table {
	t := newTable("PIPE", "KIND", "ENTRY", "MATCH", "FORWARD", ">FLOWS", ">PACKETS", ">BYTES", ">IDLE", "PLACE")
	for i := range r.Pipes {
		p := &r.Pipes[i]
		name, kind := p.Name, string(p.Kind)
		row := func(e *pipe.EntryReport, title string) {
			flows, packets, bytes, idle, place := "-", "-", "-", "-", "-"
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
			if e.File != "" {
				place = fmt.Sprintf("%s:%d", e.File, e.Line)
			}
			t.add(name, kind, title, strings.Join(e.Match, " "), ownForward(e), flows, packets, bytes, idle, place)
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
