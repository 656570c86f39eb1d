package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/gateway"
)

// pipelineEntries is how many entries of a pipe are shown unless more are asked for.
const pipelineEntries = 20

func newPipelineShowCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Show all pipes in force with their counts, or those of files",
		Long: `Show the pipes of the running gateway in the order in which packets come to them: those of the pipeline in front
of the policy, if there is one, then the gateway's own, which are the policy with its nat rules. Of each, the
entries, where these forward to, and what they have counted. A rule with several entries has its counts at the
first one.

With a file, show that pipeline as it would be compiled, and with --policy or -c a policy's pipes, without
counts and without a gateway.

--plan shows instead what the compiler has made of each pipe, why, and how many nanoseconds it predicts for a
packet that enters it. -o mermaid draws a graph for a page of Markdown.`,
		Example: `  sudo softdpu pipeline show
  sudo softdpu pipeline show --plan
  softdpu pipeline show edge.yaml -o mermaid
  softdpu pipeline show --policy policy.d --plan`,
		Args: takes(1),
	}
	var source policySource
	source.addConfigFlag(cmd)
	source.addPolicyFlag(cmd)
	format, socket := "table", addSocketFlag(cmd)
	cmd.Flags().StringVarP(&format, "output", "o", format, "what to print: table, json or mermaid")
	plan := cmd.Flags().Bool("plan", false, "what became of each pipe, and why")
	most := cmd.Flags().Int("entries", pipelineEntries, "most entries of each pipe")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if format != "table" && format != "json" && format != "mermaid" {
			return usagef(cmd, "-o %s: it is table, json or mermaid", format)
		}
		if *most < 0 {
			return usagef(cmd, "--entries %d: it is how many entries to show", *most)
		}
		var shown *shownPipelines
		var err error
		if len(args) == 1 || source.config != "" || len(source.policies) > 0 {
			shown, err = pipesOfFiles(env, args, &source, *most)
		} else {
			shown, err = pipesInForce(cmd.Context(), gateway.NewClient(*socket), *most)
		}
		switch {
		case err != nil:
			return err
		case format == "json" && shown.Policy == nil:
			return printJSON(env.Stdout, shown.Pipeline)
		case format == "json":
			return printJSON(env.Stdout, shown)
		case format == "mermaid":
			_, err := io.WriteString(env.Stdout, pipe.Mermaid(shown.Pipeline, shown.own()))
			return err
		}
		return shown.tables(env, *plan)
	}
	return cmd
}

// pipesOfFiles compiles a pipeline, a policy, or both.
func pipesOfFiles(env *Env, args []string, source *policySource, most int) (*shownPipelines, error) {
	s := &shownPipelines{}
	if len(args) == 1 {
		prog, err := compilePipelineFile(env, args[0])
		if err != nil {
			return nil, err
		}
		s.Pipeline = prog.Report(most, 0)
		s.Pipeline.Forget()
	}
	if source.config == "" && len(source.policies) == 0 {
		return s, nil
	}
	var err error
	s.Policy, err = loadPolicyPipes(env, source, most)
	return s, err
}

// tables prints what there is for people.
func (s *shownPipelines) tables(env *Env, plan bool) error {
	front := pipelineTable
	own := func(r *pipe.Report) *table { return policyTable(r, s.Policy.Epoch != nil, env.Width()) }
	if plan {
		front, own = planTable, planTable
	}
	switch {
	case s.Pipeline != nil:
		if err := front(s.Pipeline).write(env.Stdout, env.Width()); err != nil {
			return err
		}
	case s.Policy.Epoch != nil:
		if _, err := fmt.Fprintln(env.Stdout, "no pipeline is in force: packets go to the policy at once"); err != nil {
			return err
		}
	}
	if s.Policy == nil {
		return nil
	}
	head := ""
	if s.Pipeline != nil || s.Policy.Epoch != nil {
		head = "\nThe policy's own pipes:\n"
	}
	if _, err := io.WriteString(env.Stdout, head); err != nil {
		return err
	}
	return own(s.Policy.Pipeline).write(env.Stdout, env.Width())
}

func pipelineTable(r *pipe.Report) *table {
	t := newTable("PIPE", "KIND", "ENTRY", "MATCH", "FORWARD", ">PACKETS", ">BYTES", ">IDLE")
	for i := range r.Pipes {
		p := &r.Pipes[i]
		name, kind := p.Name, string(p.Kind)
		row := func(e *pipe.EntryReport, title string) {
			packets, bytes, idle := "-", "-", "-"
			if e.Packets != nil {
				packets, bytes = fmt.Sprint(*e.Packets), fmt.Sprint(*e.Bytes)
			}
			if e.IdleS != nil {
				idle = interval(*e.IdleS)
			}
			t.add(name, kind, title, strings.Join(e.Match, " "), e.Forward, packets, bytes, idle)
			name, kind = "", ""
		}
		for k := range p.Entries {
			row(&p.Entries[k], p.Entries[k].Name)
		}
		if n := p.Total - len(p.Entries); n > 0 {
			row(&pipe.EntryReport{}, fmt.Sprintf("(%d more)", n))
		}
		row(&p.Miss, "(miss)")
	}
	for _, c := range r.Counters {
		t.add("", "counter", c.Name, "", "", c.Packets, c.Bytes, "-")
	}
	return t
}

func planTable(r *pipe.Report) *table {
	t := newTable("PIPE", "KIND", ">ENTRIES", "BECAME", ">INSTRUCTIONS", ">NS", "WHY")
	for i := range r.Pipes {
		p := &r.Pipes[i]
		became, ns := string(p.Became), fmt.Sprintf("%.0f", p.NS)
		if became == "" {
			became, ns = "nothing", "-"
		}
		t.add(p.Name, p.Kind, p.Total, became, p.Instructions, ns, p.Why)
	}
	return t
}
