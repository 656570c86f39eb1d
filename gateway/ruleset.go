package gateway

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// A Ruleset is the policy of a gateway, checked and ready to be published. It is immutable.
type Ruleset struct {
	Files    []string
	Sums     map[string][sha256.Size]byte // of every file that was read, those of sets too
	Read     time.Time
	Compiled *firewall.Compiled
	ACL      *flowtable.ACL
	NAT      *flowtable.NAT // nil: nothing is translated

	revision *revision // nil: ACL was compiled anew

	Warnings firewall.Errors

	config *Config          // that names it
	policy *firewall.Policy // as it was read
	failed int              // tests: not 0 only for a policy that was in force before
	live   liveSets         // what sets were given at runtime, beside policy

	written  *firewall.Compiled // what policy comes to without live; Compiled itself if there is nothing of that
	withSets *firewall.Policy   // policy with live, nil: there is nothing of that

	options firewall.CompileOptions // it was compiled with
}

// passed is the number of the policy's tests that have passed.
func (r *Ruleset) passed() int { return len(r.Compiled.Tests) - r.failed }

// PrepareRuleset reads the policy that the configuration names, compiles it for this gateway and runs
// the policy's tests through the compiled classifier. It changes nothing. Route answers which zone a
// destination lies in, for tests without `out`; it may be nil. The error is a firewall.Errors if the
// text is at fault, another error if a file cannot be read.
func PrepareRuleset(c *Config, now time.Time, route func(r *Ruleset, in string, dst netip.Addr) (zone string, ok bool)) (*Ruleset, error) {
	return prepareRuleset(c, c.CompileOptions(now), route)
}

// prepareRuleset is PrepareRuleset with other options than a first policy's.
func prepareRuleset(c *Config, options firewall.CompileOptions, route func(r *Ruleset, in string, dst netip.Addr) (zone string, ok bool)) (*Ruleset, error) {
	k, err := readCandidate(c)
	if err != nil {
		return nil, err
	}
	return k.prepare(options, route)
}

// Instructions returns the program that the classifier of a policy of those files becomes. The error is a
// firewall.Errors: the policy is too large.
func Instructions(files []string, acl *flowtable.ACL) (asm.Instructions, error) {
	instructions, err := acl.Instructions()
	if err == nil {
		return instructions, nil
	}
	e := firewall.Error{Msg: fmt.Sprintf("policy is too large: %v", err), Hint: "use fewer rules, or fewer sets of addresses"}
	if len(files) > 0 {
		e.File = files[0]
	}
	return nil, firewall.Errors{e}
}

// compileRuleset makes a policy ready for this gateway, to follow another, which may be nil. It runs no tests.
func compileRuleset(c *Config, policy *firewall.Policy, options firewall.CompileOptions, after *Ruleset) (*Ruleset, error) {
	if after != nil {
		options.After = after.written
	}
	compiled, err := firewall.Compile(policy, options)
	if err != nil {
		return nil, err
	}
	options.After = nil // or all that were before would stay
	if errs := c.zoneless(compiled, policy.Monitors()); len(errs) > 0 {
		return nil, errs
	}
	r := &Ruleset{
		Files: policy.Files, Sums: policy.Sums, Read: options.Now, Compiled: compiled, Warnings: compiled.Warnings,
		config: c, policy: policy, options: options, written: compiled,
	}
	if after != nil && len(after.live) > 0 && len(compiled.Tests) == 0 {
		return r, nil // nobody asks its pipes: withLive makes those that will be in force
	}
	if err := r.compilePipes(after); err != nil {
		r.revision.drop()
		return nil, fmt.Errorf("compile policy: %w", err)
	}
	return r, nil
}

// compilePipes makes the pipes of a compiled policy: as a change of those of the one before where little else
// differs, which is then in force in a moment, however many its rules are.
func (r *Ruleset) compilePipes(after *Ruleset) (err error) {
	if after != nil {
		if acl, change, ok := after.ACL.Revise(r.Compiled.Entries); ok {
			r.ACL, r.revision = acl, &revision{of: after.ACL, to: acl, change: change}
		}
	}
	if r.ACL == nil {
		if r.ACL, err = flowtable.CompileACL(r.Compiled.Entries); err != nil {
			return err
		}
	}
	if r.revision != nil && r.Compiled.TranslatesAs(after.Compiled) {
		r.NAT = after.NAT
		return nil
	}
	r.NAT, err = r.Compiled.NATBehind(r.ACL)
	return err
}

// fits reports whether its pipes become programs. The error is a firewall.Errors: the policy is too large.
func (r *Ruleset) fits() error {
	pipes := []*flowtable.ACL{r.ACL}
	if r.NAT != nil {
		pipes = append(pipes, r.NAT.Destinations, r.NAT.Sources)
	}
	for _, pipe := range pipes {
		if pipe == nil {
			continue
		}
		if _, err := Instructions(r.Files, pipe); err != nil {
			return err
		}
	}
	return nil
}

// A revision says that the pipe of a policy's rules is a change of that of the one before, in the same memory.
type revision struct {
	of, to  *flowtable.ACL
	change  *flowtable.ForestChange
	dropped bool
}

// drop takes a revision back that was never in force, so that another one can be made. A nil one is none.
func (r *revision) drop() {
	if r != nil && !r.dropped {
		r.dropped = true
		r.to.Drop(r.change)
	}
}

// withLive is the ruleset with what sets were given at runtime instead of what it has of that now, if that
// makes any difference. After is what it is to follow, nil: nothing. Its policy's tests are not run: they are about
// what is written.
func (r *Ruleset) withLive(live liveSets, options firewall.CompileOptions, after *Ruleset) (*Ruleset, error) {
	if len(r.live)+len(live) == 0 {
		return r, nil
	}
	if r != after {
		r.revision.drop()
	}
	next := *r // files and warnings are those of what is written
	next.live, next.options, next.withSets = live, options, r.withLiveSets(live, after)
	next.ACL, next.NAT, next.revision = nil, nil, nil
	if after != nil {
		options.After = after.Compiled
	}
	var err error
	if next.Compiled, err = firewall.Compile(next.withSets, options); err == nil {
		if err = next.compilePipes(after); err == nil && r.ACL == nil {
			err = next.fits()
		}
	}
	if err != nil {
		next.revision.drop()
		return nil, fmt.Errorf("compile policy with what sets were given at runtime: %w", err)
	}
	if len(live) == 0 {
		next.written = next.Compiled
	}
	return &next, nil
}

// withLiveSets is the policy with what sets were given at runtime. Where that and the sets are those of the ruleset before,
// so is the memory of what they hold, and the rules that name them need not be compiled.
func (r *Ruleset) withLiveSets(live liveSets, after *Ruleset) *firewall.Policy {
	if after == nil || after.withSets == nil || !maps.Equal(live, after.live) || !sameMemory(r.policy.Sets, after.policy.Sets) ||
		slices.ContainsFunc(r.policy.Sets, func(s firewall.Set) bool { return s.Type == firewall.SetPort && live[s.Name] != nil }) {
		return r.policy.WithSets(live.changes(r.policy))
	}
	with := *r.policy
	with.Sets = after.withSets.Sets
	return &with
}

func sameMemory[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// zoneless refuses ports that no zone names, but for monitor ports: nothing could arrive there, and what
// leaves by them would have no zone that a rule could speak of. Monitors are those that rules mirror to; a
// rule that has expired still keeps its port.
func (c *Config) zoneless(compiled *firewall.Compiled, monitors map[string]firewall.Ref) (errs firewall.Errors) {
	used := make(map[string]bool)
	for _, p := range compiled.Ports {
		used[p.Port] = true
	}
	for _, p := range c.Ports {
		if _, monitor := monitors[p.Name]; !used[p.Name] && !monitor {
			errs = append(errs, p.Pos.Errorf("port %q belongs to no zone of the policy", p.Name).
				WithHint("name it under `ports` of a zone, mirror a rule to it, or take it out"))
		}
	}
	for _, pair := range c.Inline {
		for i, name := range pair {
			if rule, monitor := monitors[name]; monitor {
				errs = append(errs, rule.Pos.Errorf("port %q is joined with %q and cannot be a monitor port", name, pair[1-i]).
					WithHint("mirror to a port that no inline pair has"))
			}
		}
	}
	return errs
}

// generation is what the plane is given to run, but for what numbers mean.
func (r *Ruleset) generation(epoch uint32) dataplane.Generation {
	g := dataplane.Generation{
		Epoch: epoch, ACL: r.ACL, Rules: len(r.Compiled.Rules) - 1,
		Workers: len(r.neededBy()) > 0, Works: r.works(), ForceStages: r.config.ForceStages(),
		ClampMSS: r.clampsMSS(),
		NAT:      r.NAT, NATNames: r.natNames(),
	}
	if r.revision != nil {
		g.Revised, g.Change = r.revision.of, r.revision.change
	}
	if len(r.Compiled.MACs) > 0 {
		g.MACs = make(map[[6]byte]uint16, len(r.Compiled.MACs))
		for mac, identity := range r.Compiled.MACs {
			g.MACs[mac] = identity
		}
	}
	return g
}

// portConfigs says what each port of the configuration shall be, in the order of their names.
func (r *Ruleset) portConfigs(c *Config) []dataplane.PortConfig {
	peers := make(map[string]string)
	for _, pair := range c.Inline {
		peers[pair[0]], peers[pair[1]] = pair[1], pair[0]
	}
	ports := make([]dataplane.PortConfig, len(c.Ports))
	for i, p := range c.Ports {
		out := dataplane.PortConfig{
			Name: p.Name, Device: p.Device, Peer: peers[p.Name],
			Mode: xdpModes[p.XDPMode], FixOffloads: p.FixOffloads, FixChecksum: checksumSwitches[p.FixChecksums],
			SetMTU: p.MTU, MSSClamp: uint16(p.MSSClamp),
		}
		for _, z := range r.Compiled.Ports {
			switch {
			case z.Port != p.Name:
			case z.VLAN == 0:
				out.Zone = z.Zone
			default:
				if out.VLANs == nil {
					out.VLANs = make(map[uint16]uint8)
				}
				out.VLANs[z.VLAN] = z.Zone
			}
		}
		ports[i] = out
	}
	return ports
}

var xdpModes = map[XDPMode]dataplane.Mode{
	XDPAuto: dataplane.ModeAuto, XDPNative: dataplane.ModeNative, XDPGeneric: dataplane.ModeGeneric,
}

var checksumSwitches = map[FixChecksums]dataplane.Switch{
	FixChecksumsAuto: dataplane.SwitchAuto, FixChecksumsOn: dataplane.SwitchOn, FixChecksumsOff: dataplane.SwitchOff,
}

// zoneNames lists the zones of the policy, host first.
func (r *Ruleset) zoneNames() []string {
	return slices.DeleteFunc(slices.Clone(r.Compiled.Zones), func(name string) bool { return name == "" })
}

// zoneName names a zone id, one of an earlier policy too; ids that no policy had are numbers.
func (r *Ruleset) zoneName(id uint8) string {
	if int(id) < len(r.Compiled.Zones) && (id == 0 || r.Compiled.Zones[id] != "") {
		return r.Compiled.Zones[id]
	}
	if ids := r.Compiled.Identities; ids != nil && ids.ZoneName(id) != "" {
		return ids.ZoneName(id)
	}
	return fmt.Sprintf("zone-%d", id)
}

// rule describes a rule id, one of an earlier policy as it was there; one that no policy had has only
// its number as a name.
func (r *Ruleset) rule(id uint32) firewall.RuleInfo {
	if int(id) < len(r.Compiled.Rules) && r.Compiled.Rules[id].Name != "" {
		return r.Compiled.Rules[id]
	}
	return firewall.RuleInfo{Rule: &firewall.Rule{Name: fmt.Sprintf("rule-%d", id)}}
}
