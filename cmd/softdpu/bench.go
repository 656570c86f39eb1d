package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bench"
)

func newBenchCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the packet path on this machine",
		Long: `Each benchmark builds its own lab in network namespaces, measures, and takes it down again. Figures come
with their spread, and as ratios to a peer that ran in turn with ours. docs/BENCHMARKS.md has the methods.`,
		Example: `  sudo softdpu bench xdp
  sudo softdpu bench gateway -o json
  sudo softdpu bench xsk l2fwd`,
	}
	cmd.AddCommand(newBenchXDPCommand(env), newBenchGatewayCommand(env), newBenchXSKCommand(env), newBenchLatencyCommand(env), newBenchPolicyCommand(env), newBenchPipesCommand(env), newBenchCompareCommand(env))
	return group(cmd)
}

func newBenchXDPCommand(env *Env) *cobra.Command {
	var o bench.XDPOptions
	cmd := &cobra.Command{
		Use:   "xdp",
		Short: "Time the XDP program packet by packet, without a network",
		Args:  takes(0),
		Example: `  sudo softdpu bench xdp
  sudo softdpu bench xdp --only ipv4-hit,ipv6-hit -o json`,
	}
	format := addOutputFlag(cmd)
	cmd.Flags().IntVar(&o.Rounds, "rounds", 15, "measurements of each scenario")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the order of packets")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "scenarios to run, by name")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Progress = func(step string) { env.note("%s", step) }
		report, err := bench.XDP(cmd.Context(), o)
		if err != nil {
			return err
		}
		return format.print(env, report, benchTable(report))
	}
	return cmd
}

func newBenchGatewayCommand(env *Env) *cobra.Command {
	var o bench.GatewayOptions
	var showPeer bool
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Forward on one core, beside the kernel under nftables and a bare XDP redirect",
		Args:  takes(0),
		Example: `  sudo softdpu bench gateway
  sudo softdpu bench gateway --rounds 3 --duration 300ms -o json
  softdpu bench gateway --show-peer`,
	}
	format := addOutputFlag(cmd)
	cmd.Flags().IntVar(&o.Rounds, "rounds", 9, "measurements of each contender")
	cmd.Flags().DurationVar(&o.Duration, "duration", time.Second, "of one measurement")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "contenders to run, by name")
	cmd.Flags().BoolVar(&showPeer, "show-peer", false, "print what the contenders run with, and measure nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if showPeer {
			for _, c := range bench.GatewayContenders() {
				fmt.Fprintf(env.Stdout, "### %s\n%s\n", c.Name, c.Config)
			}
			return nil
		}
		o.Progress = func(step string) { env.note("%s", step) }
		report, err := bench.Gateway(cmd.Context(), o)
		if err != nil {
			return err
		}
		return format.print(env, report, benchTable(report))
	}
	return cmd
}

func benchTable(r *bench.Report) *table {
	t := newTable("NAME", ">MEDIAN", ">MIN", ">MAX", "UNIT", ">ROUNDS", "AGAINST", ">ITS VALUE", ">RATIO")
	for _, v := range r.Results {
		peer, ratio := "", ""
		if v.Peer != "" {
			peer, ratio = figure(v.PeerValue), figure(v.Ratio)
		}
		t.add(v.Name, figure(v.Median), figure(v.Min), figure(v.Max), v.Unit, v.Rounds, v.Peer, peer, ratio)
	}
	return t
}

// figure prints three significant digits of small numbers and whole large ones.
func figure(v float64) string {
	if v < 100 && v > -100 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}
