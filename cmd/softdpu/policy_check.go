package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/gateway"
)

// checkReport is what `softdpu policy check -o json` prints. Counts are those of a policy without
// errors, else 0.
type checkReport struct {
	OK         bool              `json:"ok"`
	Files      []string          `json:"files"`
	Zones      int               `json:"zones"` // of the policy, without host
	Rules      int               `json:"rules"` // of the policy, without the built-in ones
	NAT        int               `json:"nat"`   // rules of translation
	Tests      int               `json:"tests"` // all of them passed
	Classifier *checkClassifier  `json:"classifier,omitempty"`
	Errors     []gateway.Mistake `json:"errors"`
	Warnings   []gateway.Mistake `json:"warnings"`
}

// checkClassifier is how large the compiled rules are, those of translation included.
type checkClassifier struct {
	Entries      int `json:"entries"`      // rows of the ACL pipes
	Instructions int `json:"instructions"` // of the generated eBPF
}

func newPolicyCheckCommand(env *Env) *cobra.Command {
	var source policySource
	cmd := &cobra.Command{
		Use:   "check [FILE|DIR]...",
		Short: "Check a policy and run its tests",
		Long: `Check a policy: every mistake is shown with file, line, column and remedy, then the policy is compiled
and its tests are run on the compiled classifier. With -c it is checked as 'softdpu run' would load it,
with the ports and the management of that configuration; with FILE or DIR arguments alone, every port
that the policy names is taken to exist. Without either it is -c ` + defaultConfig + `.

A test that does not say 'out' needs the routes: give --routes, from a file or by
  ip -j route show table all | softdpu policy check -c softdpu.yaml --routes -

Exit code 0: no error. 1: an error in the policy or the configuration, or a test that failed.`,
		Example: `  softdpu policy check -c softdpu.yaml
  softdpu policy check policy.d
  softdpu policy check -o json 10-base.yaml 50-branch.yaml`,
	}
	source.addConfigFlag(cmd)
	source.addRoutesFlag(cmd)
	format := addOutputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > 0 && source.config != "":
			return usagef(cmd, "%s takes -c or files, not both: the configuration names its policy", cmd.CommandPath())
		case len(args) == 0 && source.config == "":
			source.config = defaultConfig
		}
		source.policies = args
		report, warnings, err := source.check(env)
		if err != nil {
			errs := mistakes(err)
			if errs == nil {
				return err
			}
			report.Errors = gateway.Mistakes(errs)
			if !format.json {
				if _, err := fmt.Fprintf(env.Stdout, "%s\n%s\n", errs.Error(), quantity(len(errs), "error")); err != nil {
					return fmt.Errorf("print errors: %w", err)
				}
				return answerNo(nil)
			}
		}
		report.OK, report.Warnings = err == nil, gateway.Mistakes(warnings)
		if format.json {
			if err := printJSON(env.Stdout, report); err != nil {
				return err
			}
		} else if _, err := io.WriteString(env.Stdout, report.text(warnings)); err != nil {
			return fmt.Errorf("print report: %w", err)
		}
		if !report.OK {
			return answerNo(nil)
		}
		return nil
	}
	return cmd
}

// check does the work. The error is a firewall.Errors if the text is at fault.
func (s *policySource) check(env *Env) (report checkReport, warnings firewall.Errors, err error) {
	report.Files, report.Errors = []string{}, []gateway.Mistake{}
	set, err := s.ruleset(env)
	if err != nil {
		return report, nil, err
	}
	report.Files = set.Files
	report.Zones = len(set.Compiled.Zones) - flowtable.ZoneFirst
	report.Rules = len(set.Compiled.Order)
	report.Tests = len(set.Compiled.Tests)
	report.NAT = len(set.Compiled.NATOrder)
	pipes := []*flowtable.ACL{set.ACL}
	if n := set.Compiled.NAT; n != nil {
		pipes = append(pipes, n.Destinations, n.Sources)
	}
	size := &checkClassifier{Entries: len(set.Compiled.Entries) + len(set.Compiled.NATDestinations) + len(set.Compiled.NATSources)}
	for _, pipe := range pipes {
		if pipe == nil {
			continue
		}
		instructions, err := gateway.Instructions(set.Files, pipe)
		if err != nil {
			return report, nil, err
		}
		size.Instructions += len(instructions)
	}
	report.Classifier = size
	return report, set.Warnings, nil
}

// ruleset compiles the policy and runs its tests: with a configuration as the daemon does.
func (s *policySource) ruleset(env *Env) (*gateway.Ruleset, error) {
	if s.config != "" {
		config, err := gateway.LoadConfig(s.config)
		if err != nil {
			return nil, err
		}
		o := &offline{config: config}
		if err := s.loadRoutes(env, o); err != nil {
			return nil, err
		}
		var ask func(*gateway.Ruleset, string, netip.Addr) (string, bool)
		if route := o.router(); route != nil {
			ask = func(r *gateway.Ruleset, in string, dst netip.Addr) (string, bool) {
				o.compiled = r.Compiled
				return route(in, dst)
			}
		}
		set, err := gateway.PrepareRuleset(config, time.Now(), ask)
		if err == nil {
			set.Warnings = append(config.Warnings, set.Warnings...)
		}
		return set, err
	}
	o, err := s.load(env, firewall.CompileOptions{})
	if err != nil {
		return nil, err
	}
	acl, err := flowtable.CompileACL(o.compiled.Entries)
	if err != nil {
		return nil, fmt.Errorf("compile policy: %w", err)
	}
	var failed firewall.Errors
	for _, r := range firewall.RunTests(o.compiled, acl, o.router()) {
		if r.Err != nil {
			failed = append(failed, *r.Err)
		}
	}
	if len(failed) > 0 {
		return nil, failed.Sorted(o.policy.Files...)
	}
	return &gateway.Ruleset{Files: o.policy.Files, Compiled: o.compiled, ACL: acl, Warnings: o.compiled.Warnings}, nil
}

// text is the report for people, of a policy without errors.
func (r *checkReport) text(warnings firewall.Errors) string {
	var b strings.Builder
	for _, e := range warnings {
		fmt.Fprintf(&b, "warning: %s\n", e.Render())
	}
	tests := "no tests: add some, they run on every check"
	if r.Tests > 0 {
		tests = quantity(r.Tests, "test") + " passed"
	}
	fmt.Fprintf(&b, "ok: %s in %s, %s; %s; %s\n", rulesAndNAT(r.Rules, r.NAT), quantity(len(r.Files), "file"),
		quantity(r.Zones, "zone"), tests, quantity(len(warnings), "warning"))
	fmt.Fprintf(&b, "compiled: %s, %s\n", quantity(r.Classifier.Entries, "table row"), quantity(r.Classifier.Instructions, "instruction"))
	return b.String()
}

// rulesAndNAT writes how many rules a policy has, and rules of translation if it has any.
func rulesAndNAT(rules, nat int) string {
	text := quantity(rules, "rule")
	if nat > 0 {
		text += " and " + quantity(nat, "nat rule")
	}
	return text
}

// quantity writes a number with its noun.
func quantity(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
