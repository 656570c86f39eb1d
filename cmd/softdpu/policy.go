package main

import "github.com/spf13/cobra"

func newPolicyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Begin and check policy files",
		Long: `Zero trust: nothing passes that no rule allows. A policy is one or more YAML files; all of them load or
none does. These verbs work on files and need no daemon and no privileges.`,
		Example: "  sudo softdpu policy init\n  softdpu policy check -c softdpu.yaml",
	}
	cmd.AddCommand(newPolicyCheckCommand(env), newPolicyInitCommand(env))
	return group(cmd)
}
