package main

import (
	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/gateway"
)

func newDropsCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Count what the running gateway dropped, by reason",
		Long: `Count what the running gateway dropped, by reason: each packet in exactly one. What a rule dropped is
counted by rule too, see 'softdpu rules'. The table also counts what went to the kernel instead. --watch shows what comes on
top each second.`,
		Example: `  sudo softdpu drops
  sudo softdpu drops --all
  sudo softdpu drops --watch
  sudo softdpu drops -o json`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	all := cmd.Flags().Bool("all", false, "show also the reasons for which nothing was dropped")
	live := addWatchFlags(cmd, counterSorts...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := live.check(cmd, format); err != nil {
			return err
		}
		client := gateway.NewClient(*socket)
		if *live.on {
			w := &counterWatch{kind: "WHAT", noun: "not forwarded by XDP", sort: *live.sort, read: readDrops(client, *all)}
			return watch(cmd.Context(), env, w.next)
		}
		drops, err := client.Drops(cmd.Context(), *all)
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, drops)
		}
		passes, err := client.Passes(cmd.Context())
		if err != nil {
			return err
		}
		t := newTable("DROPPED", ">PACKETS", ">BYTES")
		for _, d := range drops {
			t.add(d.Reason, d.Packets, size(d.Bytes))
		}
		if err := t.write(env.Stdout, env.Width()); err != nil {
			return err
		}
		if len(drops) == 0 {
			env.note("nothing was dropped")
		}
		t = newTable("TO THE KERNEL", ">PACKETS", ">BYTES")
		for _, p := range passes {
			if p.Packets > 0 || *all {
				t.add(p.Cause, p.Packets, size(p.Bytes))
			}
		}
		return t.write(env.Stdout, env.Width())
	}
	return cmd
}
