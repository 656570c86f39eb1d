package main

import (
	"github.com/spf13/cobra"

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

softdpu-early.service does this at boot. Where a gateway has been started since, it is refused: what that
has left holds. It needs root, or CAP_NET_ADMIN.`,
		Example: "  sudo softdpu block",
		Args:    takes(0),
	}
	file := cmd.Flags().StringP("config", "c", defaultConfig, "the gateway's configuration")
	cmd.RunE = func(*cobra.Command, []string) error {
		notes, err := gateway.Block(*file)
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
