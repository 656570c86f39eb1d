package main

import "github.com/spf13/cobra"

func newPolicyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check policy files and put them in force",
		Long: `Zero trust: nothing passes that no rule allows. A policy is one or more YAML files; all of them load or
none does. 'check' works on files and needs no daemon and no privileges; 'apply' tells the running
gateway to read its own again.`,
		Example: "  softdpu policy check -c softdpu.yaml",
	}
	cmd.AddCommand(newPolicyCheckCommand(env), newPolicyApplyCommand(env))
	return group(cmd)
}
