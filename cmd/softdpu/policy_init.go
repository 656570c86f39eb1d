package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
)

// initOptions are the flags of `softdpu policy init`, and the devices that they came to.
type initOptions struct {
	dir    string
	lan    []string
	wan    string
	inline bool

	inside  []candidate
	outside candidate
	// The operator's session comes in from the outside.
	manageOutside bool
}

func newPolicyInitCommand(env *Env) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a configuration and a policy to begin with",
		Long: `Write a configuration and a policy to begin with for this machine: softdpu.yaml and
policy.d/50-policy.yaml, with comments. The device of the default route becomes the port wan0, the other
Ethernet devices lan0, lan1 ...; --wan and --lan name others. Nothing is allowed but SSH to the gateway
itself from inside, and from outside if that is where your own SSH session comes from.

Files that are there are not written over. Nothing else is changed: edit, check, then start.`,
		Example: `  sudo softdpu policy init
  sudo softdpu policy init --wan eth0 --lan eth1 --lan eth2
  sudo softdpu policy init --wan eth0 --lan eth1 --inline
  softdpu policy init --dir ./try`,
		Args: takes(0),
	}
	cmd.Flags().StringVar(&o.dir, "dir", filepath.Dir(defaultConfig), "`directory` to write to")
	cmd.Flags().StringSliceVar(&o.lan, "lan", nil, "`device` on the inside (several: repeat it)")
	cmd.Flags().StringVar(&o.wan, "wan", "", "`device` on the outside")
	cmd.Flags().BoolVar(&o.inline, "inline", false, "join the two devices as a bump in the wire instead of routing between them")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd, env) }
	return cmd
}

func (o *initOptions) run(cmd *cobra.Command, env *Env) error {
	if err := o.refuseToOverwrite(); err != nil {
		return err
	}
	if err := o.chooseDevices(cmd); err != nil {
		return err
	}
	o.findOperator(env)
	config, policy := filepath.Join(o.dir, "softdpu.yaml"), filepath.Join(o.dir, "policy.d", "50-policy.yaml")
	if err := os.MkdirAll(filepath.Dir(policy), 0o755); err != nil {
		return fmt.Errorf("make directory for the policy: %w", err)
	}
	// The configuration last: with it the gateway can start.
	for _, f := range []struct{ path, text string }{{policy, o.policyText()}, {config, o.configText()}} {
		if err := writeNew(f.path, f.text); err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "wrote %s\n", f.path)
	}
	source := policySource{config: config}
	report, _, err := source.check(env)
	if err != nil {
		return fmt.Errorf("check what was written: %w", err)
	}
	fmt.Fprintf(env.Stdout, "checked: %s, %s, %s passed\n", quantity(report.Zones, "zone"), quantity(report.Rules, "rule"), quantity(report.Tests, "test"))
	_, err = fmt.Fprint(env.Stdout, o.nextSteps(config, policy))
	return err
}

// findOperator looks whether the operator's own session would be cut off by management from inside alone.
func (o *initOptions) findOperator(env *Env) {
	address, ok := operatorAddress(env)
	o.manageOutside = ok && !o.inline && slices.ContainsFunc(o.outside.addresses, func(p netip.Prefix) bool { return p.Contains(address) })
}

// refuseToOverwrite names what is there. Other policies in policy.d would be loaded together with ours.
func (o *initOptions) refuseToOverwrite() error {
	present, err := filepath.Glob(filepath.Join(o.dir, "policy.d", "*.y*ml"))
	if err != nil {
		return fmt.Errorf("look for policies in %s: %w", o.dir, err)
	}
	if config := filepath.Join(o.dir, "softdpu.yaml"); exists(config) {
		present = append([]string{config}, present...)
	}
	if len(present) == 0 {
		return nil
	}
	errs := []error{fmt.Errorf("write into %s: there is something already, and nothing was changed: remove it, or choose another --dir", o.dir)}
	for _, path := range present {
		errs = append(errs, fmt.Errorf("  %s", path))
	}
	return errors.Join(errs...)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// writeNew writes a file that must not be there.
func writeNew(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// nextSteps says what to do now, and what would be in the way of a start.
func (o *initOptions) nextSteps(config, policy string) string {
	text := ""
	for _, c := range append(slices.Clone(o.inside), o.outside) {
		if !c.up {
			text += fmt.Sprintf("%s is down: ip link set %s up\n", c.name, c.name)
		}
	}
	option := ""
	if config != defaultConfig {
		option = " -c " + config
	}
	start := "systemctl enable softdpu-early softdpu; systemctl start softdpu   (or: softdpu run)"
	if option != "" {
		start = "softdpu run" + option
	}
	if o.manageOutside {
		text += "management is open from outside too, where your session comes from\n"
	}
	return text + fmt.Sprintf("next: edit %s, then\n  softdpu policy check%s\n  %s\n", policy, option, start)
}
