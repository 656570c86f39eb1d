package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bench"
)

func newBenchPolicyCommand(env *Env) *cobra.Command {
	var o bench.PolicyOptions
	var showPeer bool
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Classify packets by many rules, and put many rules in force, beside nftables",
		Long: `Classify a million different packets, none of which has a flow, by rules like ClassBench's acl1, fw1 and
ipc1, our own or those of files, and time how long it takes to compile and publish them. nftables does the same in turn,
if it is installed. A set that one of both cannot load is left out, which the report says.`,
		Args: takes(0),
		Example: `  sudo softdpu bench policy
  sudo softdpu bench policy --sizes 10,1000 -o json
  sudo softdpu bench policy --rules acl1=acl1_10000.rules --kinds acl1 --sizes 10000
  softdpu bench policy --show-peer --sizes 10`,
	}
	format := addOutputFlag(cmd)
	cmd.Flags().IntVar(&o.Rounds, "rounds", 7, "measurements of each set of rules")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of our own rules and of the packets")
	cmd.Flags().StringSliceVar(&o.Kinds, "kinds", bench.PolicyKinds, "kinds of rules")
	cmd.Flags().IntSliceVar(&o.Sizes, "sizes", bench.PolicySizes, "numbers of rules: the first so many of a set; 100000 is all of it")
	cmd.Flags().StringToStringVar(&o.Rules, "rules", nil, "`KIND=FILE` in ClassBench's format, instead of our own rules")
	cmd.Flags().BoolVar(&showPeer, "show-peer", false, "print what nftables runs with, and measure nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if showPeer {
			peers, err := bench.PolicyContenders(o)
			if err != nil {
				return err
			}
			for _, c := range peers {
				fmt.Fprintf(env.Stdout, "### %s\n%s\n", c.Name, c.Config)
			}
			return nil
		}
		o.Progress = func(step string) { env.note("%s", step) }
		report, err := bench.Policy(cmd.Context(), o)
		if err != nil {
			return err
		}
		if err := format.print(env, report, benchTable(report)); err != nil {
			return err
		}
		for _, what := range report.Environment.LeftOut {
			env.note("%s", what)
		}
		return nil
	}
	return cmd
}
