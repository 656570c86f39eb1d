package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newRootCommand builds the whole tree of verbs.
func newRootCommand(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "softdpu",
		Short: "A DPU in software: XDP forwarding under a zero-trust policy",
		Long: `softdpu forwards packets in XDP under a policy file: nothing passes that no rule allows, and every
verdict names its rule. One binary does everything: the daemon, the policy tools, the lab.

Exit codes: 0 yes or done; 1 the answer is no; 2 wrong use, no permission, unreadable file, no daemon.`,
		Example: `  sudo softdpu lab up client-server        two hosts and a gateway in network namespaces
  sudo softdpu lab exec client -- ping -c 3 10.10.1.1
  sudo softdpu lab down`,
		Version:       version().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	// Before the verbs are made: that of completion takes its output when it is made.
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetFlagErrorFunc(explainFlagError)
	lab := newLabCommand(env)
	lab.AddCommand(newDemoCommand(env))
	root.AddCommand(
		newBenchCommand(env),
		newCaptureCommand(env),
		newExplainCommand(env),
		newBlockCommand(env),
		newDetachCommand(env),
		newDoctorCommand(env),
		newDropsCommand(env),
		newFlowsCommand(env),
		lab,
		newManCommand(env),
		newNATCommand(env),
		newRulesCommand(env),
		newWorkersCommand(env),
		newRunCommand(env),
		newPolicyCommand(env),
		newSetCommand(env),
		newPipelineCommand(env),
		newSimCommand(env),
		newStatusCommand(env),
		newVersionCommand(env),
	)
	root.SetHelpCommand(newHelpCommand(root))
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			group(c)
		}
	}
	return group(root)
}

func newHelpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return unknownCommand(cmd, rest[0])
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// group makes a command that only holds others complain about a verb that it does not know, and about
// a missing one.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.DisableFlagsInUseLine = true
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cmd.SetOut(cmd.ErrOrStderr())
		if err := cmd.Help(); err != nil {
			return err
		}
		return &codeError{code: exitError}
	}
	return cmd
}

func unknownCommand(cmd *cobra.Command, typed string) error {
	var known []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			known = append(known, c.Name())
		}
	}
	return usagef(cmd, "%s has no command %q%s", cmd.CommandPath(), typed, suggestion(typed, known))
}

// explainFlagError adds the nearest flag. A flag that a group does not know usually belongs to a verb
// that it does not know either, which is then the better thing to say.
func explainFlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return &usageError{cmd, err}
	}
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	name := unknown.GetSpecifiedName()
	if unknown.GetSpecifiedShortnames() != "" {
		return usagef(cmd, "%s has no flag -%s", cmd.CommandPath(), name)
	}
	return usagef(cmd, "%s has no flag --%s%s", cmd.CommandPath(), name, suggestion("--"+name, known))
}

// takes makes a command insist on its arguments, which are named as its Use line names them: required
// ones first, then up to optional more.
func takes(optional int, required ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(required) {
			return usagef(cmd, "%s needs %s", cmd.CommandPath(), required[len(args)])
		}
		if most := len(required) + optional; len(args) > most {
			return usagef(cmd, "%s takes no argument %q", cmd.CommandPath(), args[most])
		}
		return nil
	}
}

// complete offers the words for the first argument to the shell.
func complete(words func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return words(), cobra.ShellCompDirectiveNoFileComp
	}
}

// note prints a line for people to the error output, out of the way of what scripts read.
func (e *Env) note(format string, args ...any) {
	fmt.Fprintf(e.Stderr, format+"\n", args...)
}
