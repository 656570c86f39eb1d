package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/gateway"
)

func newBlockCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "block",
		Short: "Forward nothing in this network namespace before the gateway starts",
		Long: `Forward nothing in this network namespace before the gateway starts, for the time between the machine's
start and the gateway's. Whatever turns the kernel's forwarding on, and whatever devices come, the kernel
drops what it would forward, and what it would bridge from or to a port. The gateway takes the block away
once it judges packets; 'softdpu detach' does so without one. The machine itself stays reachable.

softdpu-early.service does this at boot, and when the machine goes down. Where a gateway has been started
since, the exit code is 1 and nothing is done: what that has left holds. With --force the packets of
allowed flows that a gateway hands to the kernel are dropped too. It needs root, or CAP_NET_ADMIN.`,
		Example: "  sudo softdpu block",
		Args:    takes(0),
	}
	file := cmd.Flags().StringP("config", "c", defaultConfig, "the gateway's configuration")
	force := cmd.Flags().Bool("force", false, "also where a gateway runs or has left something")
	cmd.RunE = func(*cobra.Command, []string) error {
		notes, err := gateway.Block(*file, *force)
		if errors.Is(err, dataplane.ErrGatewayBefore) {
			return answerNo(err)
		}
		if err != nil {
			return err
		}
		for _, n := range notes {
			env.note("%s", n)
		}
		return nil
	}
	return cmd
}
