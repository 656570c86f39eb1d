package main

import (
	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/dataplane"
)

func newDetachCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "detach",
		Short: "Take off what a gateway has left in this network namespace",
		Long: `Take off what a gateway has left in this network namespace after a stop or a crash: XDP and guards, with
the policy in them, and the flow table. Sysctls, offloads and MTUs are set back to what they were
before its first start. The machine is then without softdpu: what its kernel forwards, it forwards
without a policy. While a gateway runs here it is refused. It needs root.`,
		Example: "  sudo softdpu detach\n  sudo softdpu lab exec gw -- softdpu detach",
		Args:    takes(0),
		RunE: func(*cobra.Command, []string) error {
			found, err := dataplane.Detach()
			if err != nil {
				return err
			}
			if found {
				env.note("everything is taken off, and the host is as it was before softdpu")
			} else {
				env.note("softdpu has left nothing here")
			}
			return nil
		},
	}
}
