package main

import "github.com/spf13/cobra"

func newSetCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Add entries to the sets of the running gateway, delete, replace and list them",
		Long: `Change the sets of the running gateway's policy without touching a file: what is added or deleted is in
force when the command returns, cuts established connections that are no longer allowed, and stays
through reloads and restarts, or for as long as --for says.`,
		Example: `  sudo softdpu set add threats 203.0.113.66 --for 1h
  sudo softdpu set del threats 203.0.113.66
  sudo softdpu set replace threats feed.txt
  sudo softdpu set list threats`,
	}
	cmd.AddCommand(newSetAddCommand(env), newSetDelCommand(env), newSetReplaceCommand(env), newSetListCommand(env))
	return group(cmd)
}
