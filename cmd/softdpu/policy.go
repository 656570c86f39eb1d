package main

import "github.com/spf13/cobra"

func newPolicyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check policy files",
		Long: `Zero trust: nothing passes that no rule allows. A policy is one or more YAML files; all of them load or
none does. These verbs work on files and need no daemon and no privileges.`,
		Example: "  softdpu policy check -c softdpu.yaml",
	}
	cmd.AddCommand(newPolicyCheckCommand(env))
	return group(cmd)
}
