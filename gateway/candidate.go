package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/firewall"
)

// A candidate is a policy that may be put in force, with the configuration that names it and every file
// of both as it was read.
type candidate struct {
	config   *Config
	policy   *firewall.Policy // nil: it could not be read
	files    []sourceFile     // configuration, policy in order, sets
	restored int              // entry of the history that it comes from; 0: the files on disk
	after    *Ruleset         // that it is to follow; nil: none
}

// A sourceFile is one of the files that make a policy.
type sourceFile struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Sum  string `json:"sha256"`
	Size int64  `json:"size"` // bytes
	text []byte // nil if the history has it
}

// Kinds of files.
const (
	sourceConfig = "configuration"
	sourcePolicy = "policy"
	sourceSet    = "set"
)

// prepare compiles the policy for this gateway and runs its tests through the compiled classifier. A
// policy that was in force before has passed its tests then: what of them fails now, because a rule has
// expired or a route is another, is a warning.
func (k *candidate) prepare(options firewall.CompileOptions, route func(r *Ruleset, in string, dst netip.Addr) (zone string, ok bool)) (_ *Ruleset, err error) {
	r, err := compileRuleset(k.config, k.policy, options, k.after)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.revision.drop()
		}
	}()
	if err := r.fits(); err != nil {
		return nil, err
	}
	var ask func(string, netip.Addr) (string, bool)
	if route != nil {
		ask = func(in string, dst netip.Addr) (string, bool) { return route(r, in, dst) }
	}
	var failed firewall.Errors
	for _, result := range firewall.RunTests(r.Compiled, r.ACL, ask) {
		if result.Err != nil {
			failed = append(failed, *result.Err)
		}
	}
	failed = failed.Sorted(k.policy.Files...)
	if len(failed) > 0 && k.restored == 0 {
		return nil, failed
	}
	r.failed = len(failed)
	r.Warnings = append(slices.Clip(r.Warnings), failed...)
	return r, nil
}

// hash is that of the policy, as Ruleset.hash; "" if it could not be read.
func (k *candidate) hash() string {
	if k == nil || k.policy == nil {
		return ""
	}
	return hashOf(k.policy.Sums)
}

// diskState is what the files on disk would make of the policy: enough to tell whether somebody has
// changed them. What of the configuration is not about the policy is left out.
type diskState struct {
	Keys string            `json:"keys"` // what the configuration says of the policy
	Sums map[string]string `json:"sums"` // SHA-256 of each file of policy and sets, "" if it cannot be read
}

func (a *diskState) equal(b *diskState) bool { return a.Keys == b.Keys && maps.Equal(a.Sums, b.Sums) }

// onDisk looks at the files that a start would read, right or wrong. C is the configuration that runs.
func (p *policyReader) onDisk(c *Config) *diskState {
	disk, err := LoadConfig(c.File)
	if err != nil {
		d := &diskState{Sums: map[string]string{c.File: ""}}
		if text, err := firewall.ReadFile(c.File); err == nil {
			sum := sha256.Sum256(text)
			d.Sums[c.File] = hex.EncodeToString(sum[:])
		}
		return d
	}
	k, _ := p.read(disk) // what is wrong with them is not asked
	d := k.state(disk.policyKeys())
	if paths, err := firewall.PolicyFiles(disk.Policy); err == nil {
		for _, path := range paths {
			if _, read := d.Sums[path]; !read {
				d.Sums[path] = ""
			}
		}
	}
	return d
}

// state is what onDisk returns if these are the files, and the configuration says this of the policy.
func (k *candidate) state(keys string) *diskState {
	d := &diskState{Keys: keys, Sums: make(map[string]string)}
	for _, f := range k.files {
		if f.Kind != sourceConfig {
			d.Sums[f.Path] = f.Sum
		}
	}
	return d
}

// policyKeys is what the configuration says of the policy, in one text.
func (c *Config) policyKeys() string {
	var parts []string
	for _, key := range c.reloadKeys() {
		parts = append(parts, key[0]+"="+key[1])
	}
	return strings.Join(parts, " ")
}

// reloadKeys are the keys about the policy with their values, in one form whatever they are written like.
func (c *Config) reloadKeys() [][2]string {
	names := func(refs []firewall.Ref) (out []string) {
		for _, r := range refs {
			out = append(out, r.Name)
		}
		return out
	}
	ports := make([]string, len(c.Ports))
	for i, p := range c.Ports {
		ports[i] = p.Name + ": " + asKeys(p)
	}
	return [][2]string{
		{"ports", strings.Join(ports, ", ")},
		{"inline", fmt.Sprint(c.Inline)},
		{"policy", c.Policy},
		{"management", fmt.Sprintf("%q %q", names(c.Management.From), names(c.Management.Services))},
		{"override_management", fmt.Sprint(c.Management.Override)},
		{"flows.timeouts", asKeys(c.Flows.Timeouts)},
		{"force_stage", c.ForceStage},
	}
}

// asKeys writes the fields of a struct as keys that are given, but for its name and places.
func asKeys(of any) string {
	var keys []string
	for v, i := reflect.ValueOf(of), 0; i < v.NumField(); i++ {
		name, value := v.Type().Field(i).Name, v.Field(i)
		if _, place := value.Interface().(firewall.Pos); !place && name != "Name" && !value.IsZero() {
			keys = append(keys, fmt.Sprintf("%s: %v", snake(name), value))
		}
	}
	return "{" + strings.Join(keys, ", ") + "}"
}

// bringBack is the configuration under which a policy of before is put in force again: that of its time,
// or, where this would need a restart, this one with the keys about the policy as they were then.
func (c *Config) bringBack(then *Config) *Config {
	if len(c.restartFor(then)) == 0 {
		return then
	}
	out := *c
	out.Ports, out.Inline = then.Ports, then.Inline
	out.Policy, out.PolicyPos, out.Management, out.Flows.Timeouts = then.Policy, then.PolicyPos, then.Management, then.Flows.Timeouts
	out.ForceStage = then.ForceStage
	if c.policyKeys() != then.policyKeys() {
		out.Sum, out.Text = then.Sum, then.Text
	}
	return &out
}
