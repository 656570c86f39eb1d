package main

import (
	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bench"
)

func newBenchPipesCommand(env *Env) *cobra.Command {
	var o bench.PipesOptions
	cmd := &cobra.Command{
		Use:   "pipes",
		Short: "Change tables of exact matches while packets look things up, beside a hash map of the kernel",
		Long: `Time how fast entries come into a table of a pipe and leave it while packets look keys up in it, and what a
look-up costs, beside a hash map of the kernel that is changed by its batches. A table of ten million entries and its peer take
4 GiB of memory; --sizes asks for less.`,
		Args: takes(0),
		Example: `  sudo softdpu bench pipes
  sudo softdpu bench pipes --sizes 1000,1000000 -o json`,
	}
	format := addOutputFlag(cmd)
	cmd.Flags().IntVar(&o.Rounds, "rounds", 7, "measurements of each figure")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of keys and of the order of packets")
	cmd.Flags().IntSliceVar(&o.Sizes, "sizes", bench.PipesSizes, "numbers of entries")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Progress = func(step string) { env.note("%s", step) }
		report, err := bench.Pipes(cmd.Context(), o)
		if err != nil {
			return err
		}
		return format.print(env, report, benchTable(report))
	}
	return cmd
}
