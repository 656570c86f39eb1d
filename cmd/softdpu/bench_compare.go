package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bench"
)

func newBenchCompareCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare A.json B.json",
		Short: "Tell what differs beyond noise between two results of a benchmark",
		Args:  takes(0, "A.json", "B.json"),
		Long: `Compares what two runs of one benchmark printed with -o json. A figure differs beyond noise when a
Mann-Whitney U test tells the rounds of both runs apart at a level of 0.01; with too few rounds for that,
five of each, when their ranges do not touch. Ratios to a peer are compared too: they hold where the
machine was faster or slower as a whole.

The exit code is 0 if nothing differs beyond noise, 1 if something does.`,
		Example: `  sudo softdpu bench xdp -o json > before.json
  softdpu bench compare before.json after.json`,
	}
	format := addOutputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		var reports [2]*bench.Report
		for i, name := range args {
			var err error
			if reports[i], err = bench.ReadReportFile(name); err != nil {
				return err
			}
		}
		c, err := bench.Compare(args[0], args[1], reports[0], reports[1])
		if err != nil {
			return err
		}
		if err := printComparison(env, format, c); err != nil {
			return err
		}
		if c.Differs {
			return answerNo(nil)
		}
		return nil
	}
	return cmd
}

func printComparison(env *Env, format *outputFormat, c *bench.Comparison) error {
	if format.json {
		return printJSON(env.Stdout, c)
	}
	for _, w := range c.Warnings {
		env.note("warning: %s", visible(w))
	}
	t := newTable("NAME", ">A", ">B", "UNIT", ">CHANGE", "TEST", "DIFFERS")
	for _, f := range c.Figures {
		test, differs := f.Test, ""
		if f.Test == "u-test" {
			test = fmt.Sprintf("u-test, p=%.3f", f.P)
		}
		if f.Differs {
			differs = "yes"
		}
		t.add(f.Name, figure(f.A), figure(f.B), f.Unit, fmt.Sprintf("%+.1f%%", f.Change), test, differs)
	}
	if err := t.write(env.Stdout, env.Width()); err != nil {
		return err
	}
	for _, only := range []struct {
		file  string
		names []string
	}{{c.A, c.OnlyA}, {c.B, c.OnlyB}} {
		if len(only.names) > 0 {
			fmt.Fprintf(env.Stdout, "only in %s: %s\n", only.file, visible(strings.Join(only.names, ", ")))
		}
	}
	return nil
}
