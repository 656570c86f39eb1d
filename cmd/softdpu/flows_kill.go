package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/gateway"
)

func newFlowsKillCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kill (--filter EXPRESSION | --all)",
		Short: "End connections of the running gateway at once",
		Long: `End the connections that a filter chooses, at once: their next packet is judged as if it were the
first of all. A TCP connection is cut by that, since its packets are in mid-stream (drop reason not-syn),
unless its rule has midstream; what opens a flow with any packet, as UDP does, goes on if a rule still
allows it. Other connections do not notice. It needs root; the group of the socket may only read.

The filter is that of 'softdpu flows', which shows what it would choose.`,
		Example: `  sudo softdpu flows kill --filter 'src 10.20.1.7 and dport 443'
  sudo softdpu flows kill --filter 'rule guests'
  sudo softdpu flows kill --all`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	filter := cmd.Flags().String("filter", "", "end the flows that this expression chooses")
	all := cmd.Flags().Bool("all", false, "end every flow")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		blank := strings.TrimSpace(*filter) == ""
		switch {
		case blank && !*all:
			return usagef(cmd, "say which flows to end: --filter EXPRESSION, or --all")
		case !blank && *all:
			return usagef(cmd, "--filter and --all exclude each other")
		}
		if _, err := gateway.ParseFilter(*filter); err != nil {
			return usagef(cmd, "%w", err)
		}
		n, err := gateway.NewClient(*socket).KillFlows(cmd.Context(), strings.TrimSpace(*filter))
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, gateway.Killed{Killed: n})
		}
		env.note("%s killed", quantity(n, "flow"))
		return nil
	}
	return cmd
}
