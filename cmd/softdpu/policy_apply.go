package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
)

// applyReport is what `softdpu policy apply -o json` and `rollback` print. Epoch and counts are those of the policy
// that was put in force, else 0.
type applyReport struct {
	OK        bool              `json:"ok"`
	Epoch     uint32            `json:"epoch"`
	Entry     int               `json:"entry"`      // of the history
	Restored  int               `json:"restored"`   // entry that was rolled back to, 0 for none
	ComesBack *time.Time        `json:"comes_back"` // when the policy before does, unless this one is confirmed
	Files     []string          `json:"files"`
	Rules     int               `json:"rules"`   // of the policy, without the built-in ones
	NAT       int               `json:"nat"`     // rules of translation
	Tests     int               `json:"tests"`   // that passed
	TookMS    float64           `json:"took_ms"` // from the first look at the files to the policy in force
	Errors    []gateway.Mistake `json:"errors"`
	Warnings  []gateway.Mistake `json:"warnings"`
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

With --confirm the policy before comes back by itself unless 'softdpu policy confirm' is said in time: for
changes that may cut off whoever makes them. It does so also if the gateway dies meanwhile, as soon as it
is started again, and at once if the machine is. Until then no other change is taken.

Each change and each refused one is kept in 'softdpu policy history', with who asked for it.

Exit code 0: the policy is in force. 1: an error in the policy or the configuration, a test that failed,
or a change that waits to be confirmed; nothing was changed. 2: no gateway runs here, or no permission.`,
		Example: `  sudo softdpu policy apply -m "CHG-4711: card payments"
  sudo softdpu policy apply --confirm 2m
  sudo softdpu policy apply -o json`,
		Args: takes(0),
	}
	format, socket, comment := addOutputFlag(cmd), addSocketFlag(cmd), addCommentFlag(cmd)
	confirm := cmd.Flags().Duration("confirm", 0, "take the change back after this `time` unless 'softdpu policy confirm' comes before")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("confirm") && *confirm <= 0 {
			return usagef(cmd, "--confirm must be a time, as in 2m")
		}
		done, err := gateway.NewClient(*socket).Apply(cmd.Context(), gateway.ApplyOptions{Comment: *comment, Confirm: *confirm})
		return reportChange(env, format, done, err)
	}
	return cmd
}

// reportChange tells what became of a change of the policy.
func reportChange(env *Env, format *outputFormat, done *gateway.Reloaded, err error) error {
	report := applyReport{Files: []string{}, Errors: []gateway.Mistake{}, Warnings: []gateway.Mistake{}}
	var errs firewall.Errors
	var conflict *gateway.Conflict
	switch {
	case errors.As(err, &errs) && format.json:
		report.Errors = gateway.Mistakes(errs)
	case errors.As(err, &conflict) && format.json:
		report.Errors = []gateway.Mistake{{Message: conflict.Msg, Hint: conflict.Hint}}
	case errors.As(err, &errs):
		if _, err := fmt.Fprintf(env.Stdout, "%s\n%s, nothing was changed\n", errs.Error(), quantity(len(errs), "error")); err != nil {
			return fmt.Errorf("print errors: %w", err)
		}
		return answerNo(nil)
	case errors.As(err, &conflict):
		return answerNo(fmt.Errorf("nothing was changed: %w", err))
	case err != nil:
		return err
	}
	if err != nil {
		if err := printJSON(env.Stdout, report); err != nil {
			return err
		}
		return answerNo(nil)
	}
	report.OK, report.Epoch, report.Entry, report.Files = true, done.Epoch, done.Entry, done.Files
	report.Restored, report.ComesBack = done.Restored, done.ComesBack
	report.Rules, report.NAT, report.Tests, report.TookMS, report.Warnings = done.Rules, done.NAT, done.Tests, done.TookMS, done.Warnings
	if format.json {
		return printJSON(env.Stdout, report)
	}
	return report.print(env, time.Now())
}

// print writes the report for people, of a policy that is in force.
func (r *applyReport) print(env *Env, now time.Time) error {
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
		rulesAndNAT(r.Rules, r.NAT), quantity(len(r.Files), "file"), tests, quantity(len(r.Warnings), "warning"))
	if r.Restored != 0 && err == nil {
		_, err = fmt.Fprintf(env.Stdout, "rolled back to entry %d: the files on disk are not what is in force, until they change or 'softdpu policy apply'\n", r.Restored)
	}
	if r.ComesBack != nil && err == nil {
		_, err = fmt.Fprintf(env.Stdout, "the policy before comes back in %s unless you say 'softdpu policy confirm'\n", interval(max(0, r.ComesBack.Sub(now).Seconds())))
	}
	if err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}
