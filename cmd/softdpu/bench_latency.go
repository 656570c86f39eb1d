package main

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/bench"
)

func newBenchLatencyCommand(env *Env) *cobra.Command {
	var o bench.LatencyOptions
	var showPeer bool
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Time packets through XDP and through a worker, beside the kernel's forwarding",
		Args:  takes(0),
		Example: `  sudo softdpu bench latency
  sudo softdpu bench latency --rate 200000 --rounds 5 -o json
  softdpu bench latency --show-peer`,
	}
	format := addOutputFlag(cmd)
	cmd.Flags().IntVar(&o.Rounds, "rounds", 25, "measurements of each contender")
	cmd.Flags().DurationVar(&o.Duration, "duration", 500*time.Millisecond, "of one measurement, at most 850ms")
	cmd.Flags().Float64Var(&o.Rate, "rate", 0, "frames a second; 0 for half of what the kernel carries without loss")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the times at which frames are sent")
	cmd.Flags().BoolVar(&showPeer, "show-peer", false, "print what the contenders run with, and measure nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if showPeer {
			for _, c := range bench.LatencyContenders() {
				fmt.Fprintf(env.Stdout, "### %s\n%s\n", c.Name, c.Config)
			}
			return nil
		}
		o.Progress = func(step string) { env.note("%s", step) }
		report, err := bench.Latency(cmd.Context(), o)
		if err != nil {
			return err
		}
		if err := format.print(env, report, benchTable(report)); err != nil || format.json {
			return err
		}
		for _, t := range []*table{percentileTable(report.Histograms), histogramTable(report.Histograms)} {
			fmt.Fprintln(env.Stdout)
			if err := t.write(env.Stdout, env.Width()); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// percentileTable shows what became of all frames of all rounds, and how late the sender was.
func percentileTable(list []bench.Histogram) *table {
	names := []string{"ALL ROUNDS", ">SENT", ">LOST", ">TWICE"}
	for _, p := range list[0].Percentiles {
		if p.Percent == 100 {
			names = append(names, ">MAX")
		} else {
			names = append(names, fmt.Sprintf(">P%g", p.Percent))
		}
	}
	t := newTable(append(names, "UNIT")...)
	for _, h := range list {
		row := []any{h.Name, h.Sent, h.Lost, h.Doubled}
		due, late := []any{"  since due", "", "", ""}, []any{"  sent late", "", "", ""}
		for _, p := range h.Percentiles {
			row, due, late = append(row, figure(p.Value)), append(due, figure(p.SinceDue)), append(late, figure(p.Late))
		}
		for _, r := range [][]any{row, due, late} {
			t.add(append(r, h.Unit)...)
		}
	}
	return t
}

// histogramTable draws the share of frames that took so long, by powers of two of nanoseconds.
func histogramTable(list []bench.Histogram) *table {
	const bar = 24 // columns for all frames
	t := newTable(">FROM US", ">BELOW")
	powers, first := 0, 64
	counts := make([][64]uint64, len(list))
	for i, h := range list {
		t.columns = append(t.columns, column{name: strings.ToUpper(h.Name)})
		for _, b := range h.Buckets {
			p := max(bits.Len64(uint64(math.Round(b.From*1000)))-1, 0)
			counts[i][p] += b.Packets
			powers, first = max(powers, p+1), min(first, p)
		}
	}
	for p := first; p < powers; p++ {
		row := []any{figure(float64(uint64(1)<<p) / 1000), figure(float64(uint64(2)<<p) / 1000)}
		for i, h := range list {
			share := float64(counts[i][p]) / float64(max(h.Sent, 1))
			row = append(row, fmt.Sprintf("%7.3f%% %s", 100*share, strings.Repeat("#", int(math.Round(share*bar)))))
		}
		t.add(row...)
	}
	row := []any{"lost", ""}
	for _, h := range list {
		row = append(row, fmt.Sprintf("%7.3f%%", 100*float64(h.Lost)/float64(max(h.Sent, 1))))
	}
	t.add(row...)
	return t
}
