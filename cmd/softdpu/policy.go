package main

import "github.com/spf13/cobra"

func newPolicyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Begin and check policy files, and put them in force",
		Long: `Zero trust: nothing passes that no rule allows. A policy is one or more YAML files; all of them load or
none does. 'init' and 'check' work on files and need no daemon; 'apply' tells the running gateway to read
its own again.`,
		Example: "  sudo softdpu policy init\n  softdpu policy check -c softdpu.yaml",
	}
	cmd.AddCommand(newPolicyCheckCommand(env), newPolicyInitCommand(env), newPolicyApplyCommand(env))
	return group(cmd)
}
