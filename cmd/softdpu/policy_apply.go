package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
)

// applyReport is what `softdpu policy apply -o json` prints. Epoch and counts are those of the policy
// that was put in force, else 0.
type applyReport struct {
	OK       bool              `json:"ok"`
	Epoch    uint32            `json:"epoch"`
	Files    []string          `json:"files"`
	Rules    int               `json:"rules"` // of the policy, without the built-in ones
	Tests    int               `json:"tests"` // all of them passed
	Errors   []gateway.Mistake `json:"errors"`
	Warnings []gateway.Mistake `json:"warnings"`
}

func newPolicyApplyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Have the running gateway put its policy in force as it is written now",
		Long: `Have the running gateway read its configuration and policy again and put them in force, all or nothing;
SIGHUP does the same. Everything is checked before, the policy's own tests included: if anything is
wrong, the policy before stays in force and no packet notices. No link goes down. Established
connections are judged again with their next packet; those that are no longer allowed are cut.

A reload puts in force the policy, management, override_management, flows.timeouts, ports and inline.
Ports come, go and move between zones with the policy, and the flows of the others do not notice. Other
keys that have changed are refused: they need a restart.

Exit code 0: the policy is in force. 1: an error in the policy or the configuration, or a test that
failed; nothing was changed. 2: no gateway runs here, or no permission.`,
		Example: `  sudo softdpu policy apply
  sudo softdpu policy apply -o json`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		report := applyReport{Files: []string{}, Errors: []gateway.Mistake{}, Warnings: []gateway.Mistake{}}
		done, err := gateway.NewClient(*socket).Reload(cmd.Context())
		var errs firewall.Errors
		switch {
		case errors.As(err, &errs) && format.json:
			report.Errors = gateway.Mistakes(errs)
			if err := printJSON(env.Stdout, report); err != nil {
				return err
			}
			return answerNo(nil)
		case errors.As(err, &errs):
			if _, err := fmt.Fprintf(env.Stdout, "%s\n%s, nothing was changed\n", errs.Error(), quantity(len(errs), "error")); err != nil {
				return fmt.Errorf("print errors: %w", err)
			}
			return answerNo(nil)
		case err != nil:
			return err
		}
		report.OK, report.Epoch, report.Files = true, done.Epoch, done.Files
		report.Rules, report.Tests, report.Warnings = done.Rules, done.Tests, done.Warnings
		if format.json {
			return printJSON(env.Stdout, report)
		}
		return report.print(env)
	}
	return cmd
}

// print writes the report for people, of a policy that is in force.
func (r *applyReport) print(env *Env) error {
	for i := range r.Warnings {
		if _, err := fmt.Fprintf(env.Stdout, "warning: %s\n", r.Warnings[i].FirewallError().Render()); err != nil {
			return fmt.Errorf("print warnings: %w", err)
		}
	}
	tests := "no tests"
	if r.Tests > 0 {
		tests = quantity(r.Tests, "test") + " passed"
	}
	_, err := fmt.Fprintf(env.Stdout, "ok: epoch %d is in force: %s in %s; %s; %s\n", r.Epoch,
		quantity(r.Rules, "rule"), quantity(len(r.Files), "file"), tests, quantity(len(r.Warnings), "warning"))
	if err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}
