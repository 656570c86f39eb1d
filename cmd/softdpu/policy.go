package main

import "github.com/spf13/cobra"

func newPolicyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Begin and check policy files, and put them in force",
		Long: `Zero trust: nothing passes that no rule allows. A policy is one or more YAML files; all of them load or
none does. 'init', 'import' and 'check' work on files and need no daemon; the others ask the running gateway: 'diff'
what the files would change, 'apply' to put them in force, 'history' what was in force, and 'rollback' to
put that in force again.`,
		Example: "  sudo softdpu policy init\n  softdpu policy check -c softdpu.yaml",
	}
	cmd.AddCommand(newPolicyCheckCommand(env), newPolicyInitCommand(env), newPolicyImportCommand(env), newPolicyApplyCommand(env),
		newPolicyDiffCommand(env), newPolicyHistoryCommand(env), newPolicyRollbackCommand(env), newPolicyConfirmCommand(env))
	return group(cmd)
}
