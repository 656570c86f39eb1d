package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// PolicySizes are the nominal numbers of rules.
var PolicySizes = []int{10, 1000, 10_000, 100_000}

// PolicyOptions of `bench policy`. The zero value is a full run.
type PolicyOptions struct {
	Rounds   int               // of each set; 0 = 7
	Seed     uint64            // of rules and packets; 0 = 1
	Kinds    []string          // empty = PolicyKinds
	Sizes    []int             // empty = PolicySizes
	Rules    map[string]string // files in ClassBench's format by kind; a kind without one has our own rules
	Headers  int               // different packets, a power of two; 0 = 1,048,576
	EditTime time.Duration     // that single edits of 100,000 rules may take, five at least and 100 at most, of fewer rules and by the peer a third; 0 = 15 s
	PeerTime time.Duration     // of each measurement of the peer's forwarding; 0 = 300 ms
	Progress func(string)
}

// What a packet that no flow is known of may cost to classify, in ns over an empty program, by number of rules.
var missGoals = map[int]map[string]float64{
	10:      {"acl1": 30, "fw1": 30, "ipc1": 30},
	100_000: {"acl1": 400, "fw1": 800, "ipc1": 400},
}

// Seconds that 100,000 rules may take, and a single change of them in 99 of 100 cases.
const compileGoal, changeGoal = 5, 0.1

// Policy measures what it costs to classify a packet by many rules, and to put the rules in force: method in
// docs/BENCHMARKS.md.
func Policy(ctx context.Context, o PolicyOptions) (report *Report, err error) {
	o.fill()
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Progress("building the lab")
	constant, _, err := compile("apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\n")
	if err != nil {
		return nil, err
	}
	deny := firewall.RuleFirst
	acl, err := flowtable.CompileACL([]flowtable.ACLEntry{{
		Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
		Verdict: flowtable.Verdict(deny, uint32(bpf.XDPActionACTION_DENY), 0),
	}})
	if err != nil {
		return nil, err
	}
	r := &policyRig{o: o}
	if r.rig, err = newRigOf(labPrefix+"-policy", dataplane.Options{FlowsMax: 1 << 16, Rules: 100_000 + 1000}, constant, acl); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.gw.Do(func() error { return r.route("0.0.0.0/0", "10.10.2.2", "wan") }); err != nil {
		return nil, err
	}
	if r.constant, err = r.plane.Program(); err != nil {
		return nil, err
	}
	defer r.constant.Close()
	r.env = newEnvironment(o.Seed)
	env := &r.env
	env.Driver, env.XDPMode, env.Engine, env.Pinning = "test run on "+r.lan.Kind, r.lan.Running.String(), "xdp", "CPU 1"
	env.Method = "BPF_PROG_TEST_RUN over different packets in random order, each denied by the rule that it meets; the same program with a classifier that always denies is subtracted round by round; p99: every round timed by itself, over the mean of the constant one; nftables beside it: frames of the same trace as fast as the kernel forwards them with at most " + fmt.Sprint(flightWindow) + " on their way, " + fmt.Sprint(o.PeerTime) + " each round, less the same without a rule"
	env.Peers, env.PeerConfig = map[string]string{}, map[string]string{}
	r.startPeer()
	report = &Report{Bench: "policy", Results: []Result{}}
	for _, kind := range o.Kinds {
		text, err := filters(kind, o.Rules[kind], o.Seed)
		if err != nil {
			return nil, err
		}
		name := "our own rules like ClassBench's, of seed " + fmt.Sprint(o.Seed)
		if file := o.Rules[kind]; file != "" {
			name = file
		}
		env.RuleSets = append(env.RuleSets, kind+": "+name)
		for _, size := range o.Sizes {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			results, err := r.set(ctx, kind, size, text)
			switch {
			case errors.Is(err, errSetLeftOut):
				r.leaveOut(fmt.Sprintf("%s-%d", kind, size), err)
			case err != nil:
				return nil, fmt.Errorf("%d rules of %s: %w", size, kind, err)
			}
			report.Results = append(report.Results, results...)
		}
	}
	if len(report.Results) == 0 {
		return nil, fmt.Errorf("measure rules: none of the sets could be: %s", strings.Join(env.LeftOut, "; "))
	}
	report.Environment = *env
	return report, nil
}

func (o *PolicyOptions) check() error {
	for _, kind := range slices.Concat(slices.Sorted(maps.Keys(o.Rules)), o.Kinds) {
		if !slices.Contains(PolicyKinds, kind) {
			return fmt.Errorf("rules of kind %q: the kinds are %v", kind, PolicyKinds)
		}
	}
	for _, size := range o.Sizes {
		if size < 1 {
			return fmt.Errorf("%d rules: name a number from 1", size)
		}
	}
	return nil
}

func (o *PolicyOptions) fill() {
	if o.Rounds == 0 {
		o.Rounds = 7
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if len(o.Kinds) == 0 {
		o.Kinds = PolicyKinds
	}
	if len(o.Sizes) == 0 {
		o.Sizes = PolicySizes
	}
	if o.Headers == 0 {
		o.Headers = 1 << 20
	}
	if o.EditTime == 0 {
		o.EditTime = 15 * time.Second
	}
	if o.PeerTime == 0 {
		o.PeerTime = 300 * time.Millisecond
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// policyRig is a gateway whose classifier is changed for each set of rules.
type policyRig struct {
	*rig
	o        PolicyOptions
	env      Environment
	peer     *policyPeer   // nil: there is none
	constant *ebpf.Program // denies everything without a look at it
	epoch    uint32
	rules    *rules // in force
}

// errSetLeftOut is about a set that is not measured: the others are.
var errSetLeftOut = errors.New("left out")

func (r *policyRig) leaveOut(what string, err error) {
	text := what + ": " + err.Error()
	r.o.Progress(text)
	r.env.LeftOut = append(r.env.LeftOut, text)
}

// startPeer starts nftables, where it is installed and the kernel has it.
func (r *policyRig) startPeer() {
	version, err := exec.Command("nft", "--version").Output()
	if err != nil {
		r.leaveOut("nftables", fmt.Errorf("find the peer: %w: install nftables", err))
		return
	}
	if r.peer, err = newPolicyPeer(labPrefix+"-policy", r.lan.MAC, r.o.PeerTime); err != nil {
		r.peer = nil
		r.leaveOut("nftables", fmt.Errorf("start the peer: %w", err))
		return
	}
	r.env.Peers["nftables"], r.env.Peers["kernel"] = strings.TrimSpace(string(version)), r.env.Kernel
	r.env.Pinning = "softdpu CPU 1; the peer's generator CPU 0, its NAPI thread and the sink behind it CPU 1"
	r.env.PeerConfig[nftPeer] = nftForward
	r.env.PeerConfig["no rule"] = "nft -f -, with:\n" + nftBare
}

func (r *policyRig) close() error {
	var err error
	if r.peer != nil {
		err = r.peer.close()
	}
	return errors.Join(err, r.rig.close())
}
