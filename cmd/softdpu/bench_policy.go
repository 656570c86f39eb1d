package main

import (
	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bench"
)

func newBenchPolicyCommand(env *Env) *cobra.Command {
	var o bench.PolicyOptions
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Classify packets by many rules, and put many rules in force",
		Long: `Classify a million different packets, none of which has a flow, by rules like ClassBench's acl1, fw1 and
ipc1, our own or those of files, and time how long it takes to compile and publish them.`,
		Args: takes(0),
		Example: `  sudo softdpu bench policy
  sudo softdpu bench policy --sizes 10,1000 -o json
  sudo softdpu bench policy --rules acl1=acl1_10000.rules --kinds acl1 --sizes 10000`,
	}
	format := addOutputFlag(cmd)
	cmd.Flags().IntVar(&o.Rounds, "rounds", 7, "measurements of each set of rules")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of our own rules and of the packets")
	cmd.Flags().StringSliceVar(&o.Kinds, "kinds", bench.PolicyKinds, "kinds of rules")
	cmd.Flags().IntSliceVar(&o.Sizes, "sizes", bench.PolicySizes, "numbers of rules: the first so many of a set; 100000 is all of it")
	cmd.Flags().StringToStringVar(&o.Rules, "rules", nil, "`KIND=FILE` in ClassBench's format, instead of our own rules")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Progress = func(step string) { env.note("%s", step) }
		report, err := bench.Policy(cmd.Context(), o)
		if err != nil {
			return err
		}
		return format.print(env, report, benchTable(report))
	}
	return cmd
}
