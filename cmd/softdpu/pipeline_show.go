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
		Short: "Show the pipeline in force with its counts, or that of a file",
		Long: `Show the pipeline in front of the running gateway's policy: its pipes in the order in which packets come to
them, their entries, where these forward to, and what they have counted. With a file, that one as it would
be compiled, without counts and without a gateway.

--plan shows instead what the compiler has made of each pipe, why, and how many nanoseconds it predicts for a
packet that enters it. -o mermaid draws a graph for a page of Markdown.`,
		Example: `  sudo softdpu pipeline show
  sudo softdpu pipeline show --plan
  softdpu pipeline show edge.yaml -o mermaid`,
		Args: takes(1),
	}
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
		var report *pipe.Report
		var whole any
		if len(args) == 1 {
			prog, err := compilePipelineFile(env, args[0])
			if err != nil {
				return err
			}
			report = prog.Report(*most, 0)
			report.Forget()
			whole = report
		} else {
			in, err := gateway.NewClient(*socket).Pipeline(cmd.Context(), *most)
			if err != nil {
				return err
			}
			whole = in
			if in != nil {
				report = &in.Runs
			}
		}
		switch {
		case format == "json":
			return printJSON(env.Stdout, whole)
		case report == nil:
			_, err := fmt.Fprintln(env.Stdout, "no pipeline is in force: packets go to the policy at once")
			return err
		case format == "mermaid":
			_, err := io.WriteString(env.Stdout, report.Mermaid())
			return err
		case *plan:
			return planTable(report).write(env.Stdout, env.Width())
		}
		return pipelineTable(report).write(env.Stdout, env.Width())
	}
	return cmd
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
