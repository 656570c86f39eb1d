package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	EditTime time.Duration     // that single edits of a set may take, five at least and 100 at most; 0 = 15 s
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
	for kind := range o.Rules {
		if !slices.Contains(PolicyKinds, kind) {
			return nil, fmt.Errorf("rules of kind %q: the kinds are %v", kind, PolicyKinds)
		}
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
	if r.rig, err = newRigOf(labPrefix+"-policy", dataplane.Options{FlowsMax: 1 << 16, Rules: 100_000}, constant, acl); err != nil {
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
	env := newEnvironment(o.Seed)
	env.Driver, env.XDPMode, env.Engine, env.Pinning = "test run on "+r.lan.Kind, r.lan.Running.String(), "xdp", "CPU 1"
	env.Method = "BPF_PROG_TEST_RUN over different packets in random order, each denied by the rule that it meets; the same program with a classifier that always denies is subtracted round by round; p99: every round timed by itself, over the mean of the constant one"
	report = &Report{Bench: "policy", Environment: env}
	for _, kind := range o.Kinds {
		text, err := filters(kind, o.Rules[kind], o.Seed)
		if err != nil {
			return nil, err
		}
		name := "our own rules like ClassBench's, of seed " + fmt.Sprint(o.Seed)
		if file := o.Rules[kind]; file != "" {
			name = file
		}
		report.Environment.RuleSets = append(report.Environment.RuleSets, kind+": "+name)
		for _, size := range o.Sizes {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			results, err := r.set(ctx, kind, size, text)
			if err != nil {
				return nil, fmt.Errorf("%d rules of %s: %w", size, kind, err)
			}
			report.Results = append(report.Results, results...)
		}
	}
	return report, nil
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
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// policyRig is a gateway whose classifier is changed for each set of rules.
type policyRig struct {
	*rig
	o        PolicyOptions
	constant *ebpf.Program // denies everything without a look at it
	epoch    uint32
}

// set measures one set of rules.
func (r *policyRig) set(ctx context.Context, kind string, size int, text []byte) ([]Result, error) {
	name := fmt.Sprintf("%s-%d", kind, size)
	policy, rules, err := denyingPolicy(text, kind, size)
	if err != nil {
		return nil, err
	}
	r.o.Progress(fmt.Sprintf("%s: compiling %d rules", name, rules))
	compiles := max(1, min(r.o.Rounds, 100_000/size))
	var seconds []float64
	var compiled *firewall.Compiled
	var acl *flowtable.ACL
	for range compiles {
		begin := time.Now()
		if compiled, acl, err = compile(policy); err != nil {
			return nil, err
		}
		if err := r.publish(compiled, acl); err != nil {
			return nil, err
		}
		seconds = append(seconds, time.Since(begin).Seconds())
	}
	compileResult := summarize("compile-"+name, "s", seconds)
	prog, err := r.plane.Program()
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	rnd := rand.New(rand.NewPCG(r.o.Seed, uint64(size)))
	headers, err := drawHeaders(ownEntries(compiled), r.o.Headers, rnd)
	if err != nil {
		return nil, err
	}
	var misses []Result
	err = r.pinned(func() error {
		m, err := r.layHeaders(headers, prog)
		if err != nil {
			return err
		}
		defer m.coll.Close()
		for round := -1; round < r.o.Rounds; round++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := m.measure(r, round >= 0); err != nil {
				return err
			}
			r.o.Progress(fmt.Sprintf("%s: round %d of %d", name, round+1, r.o.Rounds))
		}
		mean, p99 := summarize("miss-"+name, "ns", m.mean), summarize("miss-"+name+"-p99", "ns", m.p99)
		if goal := missGoals[size][kind]; goal > 0 {
			mean = mean.against(goal)
		}
		misses = []Result{mean, p99}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.o.Progress(name + ": changing single rules")
	edits, err := r.changeOne(policy, rnd)
	if err != nil {
		return nil, err
	}
	slices.Sort(edits)
	change := summarize("change-one-"+name, "s", []float64{edits[(len(edits)-1)*99/100]})
	if size == 100_000 {
		compileResult, change = compileResult.against(compileGoal), change.against(changeGoal)
	}
	return append(misses, compileResult, change), nil
}

// ownEntries are those of the policy's rules, without the built-in ones.
func ownEntries(compiled *firewall.Compiled) []flowtable.ACLEntry {
	const rule = 1<<24 - 1
	return slices.DeleteFunc(slices.Clone(compiled.Entries), func(e flowtable.ACLEntry) bool { return e.Verdict&rule < firewall.RuleFirst })
}

func (r *policyRig) publish(compiled *firewall.Compiled, acl *flowtable.ACL) error {
	return r.gw.Do(func() error {
		r.epoch++
		return r.plane.Publish(dataplane.Generation{Epoch: 1 + r.epoch, ACL: acl, Rules: len(compiled.Rules) - 1})
	})
}
