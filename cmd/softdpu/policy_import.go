package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
)

func newPolicyImportCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Turn another program's rules into a policy",
		Long: `Turn another program's rules into a policy. The policy is written to the standard output, and what became
of the rules to the standard error. Read it before you put it in force: it allows what those rules allowed.`,
		Example: "  softdpu policy import classbench acl1_1000.rules >policy.yaml",
	}
	cmd.AddCommand(newImportClassBenchCommand(env))
	return group(cmd)
}

func newImportClassBenchCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "classbench FILE",
		Short: "Turn a ClassBench filter set into a policy",
		Long: `Turn a ClassBench filter set (- is the standard input) into a policy: the rule of line N is named line-N,
allows, and stands in the order of the file; what none matches is denied. A range of ports speaks of TCP and
UDP only, and the column of flags is not read. The rules name no zones: add them, and the ports, for a gateway.

Exit code 1: a line is no rule; then nothing that was written is of use.`,
		Example: "  softdpu policy import classbench acl1_1000.rules >policy.yaml\n  xzcat acl1_1000.rules.xz | softdpu policy import classbench - >policy.yaml",
		Args:    takes(0, "FILE"),
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		from, name := env.Stdin, "standard input"
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("read the filter set: %w", err)
			}
			defer f.Close()
			from, name = f, args[0]
		}
		return importClassBench(env, from, name)
	}
	return cmd
}

func importClassBench(env *Env, from io.Reader, name string) error {
	done, err := firewall.ImportClassBench(env.Stdout, from, name)
	for _, w := range done.Warnings {
		env.note("warning: %s", w.Render())
	}
	var mistake firewall.Error
	switch {
	case errors.As(err, &mistake):
		env.note("%s\n1 error", mistake.Render())
		return answerNo(nil)
	case err != nil:
		return err
	}
	env.note("imported: %s of %s; %s", quantity(done.Rules, "rule"), quantity(done.Lines, "line"), quantity(len(done.Warnings), "warning"))
	return nil
}
