package gateway

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

const mirrorConfig = `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan}, wan: {device: wan}, mon0: {device: mon}}
policy: policy.yaml
management: none
`

const mirrorPolicy = `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}
rules:
  - {name: plain, from: lan, to: wan, service: tcp/1, action: allow}
  - {name: all, from: lan, to: wan, service: tcp/2, action: allow, mirror: mon0}
  - {name: some, from: lan, to: wan, service: tcp/3, action: allow, mirror: {port: mon0, packets: 4}, on_failure: bypass}
  - {name: go-on, from: lan, to: wan, service: tcp/4, action: allow, on_failure: bypass}
  - {name: over, from: lan, to: wan, service: tcp/5, action: allow, mirror: mon0, expires: 2020-01-01}
`

func prepared(t *testing.T, config, policy string) *Ruleset {
	t.Helper()
	r, err := PrepareRuleset(write(t, config, policy), time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhatNeedsWorkers(t *testing.T) {
	r := prepared(t, mirrorConfig, mirrorPolicy)
	id := func(name string) uint32 {
		for i := range r.Compiled.Rules {
			if r.Compiled.Rules[i].Name == name {
				return uint32(i)
			}
		}
		t.Fatalf("no rule %s", name)
		return 0
	}
	want := []string{"rule all mirrors to mon0", "rule some mirrors to mon0, the first 4 packets"}
	if got := r.neededBy(); !reflect.DeepEqual(got, want) {
		t.Errorf("needed by %q, want %q", got, want)
	}
	g := r.generation(7)
	works := map[uint32]dataplane.RuleWork{
		id("all"):   {Stages: bpf.StageMirror, Mirror: "mon0"},
		id("some"):  {Stages: bpf.StageMirror, Bypass: true, Mirror: "mon0", MirrorPackets: 4},
		id("go-on"): {Bypass: true},
	}
	if !g.Workers || g.ForceStages != 0 || !reflect.DeepEqual(g.Works, works) {
		t.Errorf("generation with workers %v, stages %d, works %+v", g.Workers, g.ForceStages, g.Works)
	}

	// The monitor port has no zone, on any VLAN.
	for _, p := range r.portConfigs(r.config) {
		if p.Name == "mon0" && (p.Zone != 0 || p.VLANs != nil) {
			t.Errorf("monitor port %+v", p)
		}
	}
	for _, row := range []struct {
		config, policy string
		want           []string
		stages         uint8
	}{
		{mirrorConfig + "force_stage: forward\nworkers: {}\n", mirrorPolicy, append([]string{"force_stage: forward", "workers in the configuration"}, want...), bpf.StageForward},
		{labRouted, labPolicy, nil, 0},
		{labRouted + "workers: {count: 1}\n", labPolicy, []string{"workers in the configuration"}, 0},
	} {
		r := prepared(t, row.config, row.policy)
		g := r.generation(1)
		if got := r.neededBy(); !reflect.DeepEqual(got, row.want) || g.Workers != (len(row.want) > 0) || g.ForceStages != row.stages {
			t.Errorf("needed by %q, want %q; generation with workers %v, stages %d", got, row.want, g.Workers, g.ForceStages)
		}
	}
}

// Why a worker carries a flow, as `flows` says it.
func TestWhyWorker(t *testing.T) {
	mirrored := prepared(t, mirrorConfig, mirrorPolicy)
	forced := prepared(t, mirrorConfig+"force_stage: forward\n", mirrorPolicy)
	id := func(name string) uint32 {
		for i := range mirrored.Compiled.Rules {
			if mirrored.Compiled.Rules[i].Name == name {
				return uint32(i)
			}
		}
		return 0
	}
	const forward, mirror = bpf.StageForward, bpf.StageMirror
	for _, row := range []struct {
		name   string
		rules  *Ruleset
		rule   string
		stages [2]uint8
		flow   flowtable.Flow
		want   string
	}{
		{"forced", forced, "plain", [2]uint8{forward, forward}, flowtable.Flow{}, "force_stage: forward in the configuration"},
		{"forced and mirrored", forced, "all", [2]uint8{forward | mirror, forward | mirror}, flowtable.Flow{}, "force_stage: forward in the configuration"},
		{"no longer forced", mirrored, "plain", [2]uint8{0, forward}, flowtable.Flow{Ready: true}, "it moves up with the next packet that finds none under way"},
		{"mirrored", mirrored, "all", [2]uint8{mirror, mirror}, flowtable.Flow{Packets: [2]uint64{900, 900}}, "rule all mirrors it"},
		{"its first packets", mirrored, "some", [2]uint8{mirror, mirror}, flowtable.Flow{Packets: [2]uint64{2, 1}}, "its first 4 packets are mirrored"},
		{"they are over", mirrored, "some", [2]uint8{mirror, mirror}, flowtable.Flow{Packets: [2]uint64{2, 2}}, "it moves up with the next packet that finds none under way"},
		{"and said to be", mirrored, "some", [2]uint8{mirror, mirror}, flowtable.Flow{Packets: [2]uint64{2, 1}, Ready: true}, "it moves up with the next packet that finds none under way"},
		{"in the overflow", mirrored, "some", [2]uint8{mirror, mirror}, flowtable.Flow{Packets: [2]uint64{9, 9}, ID: flowtable.FlowID{Overflow: true}}, "it is in the overflow table"},
	} {
		f := row.flow
		f.Rule, f.Stages = id(row.rule), row.stages
		if got := row.rules.whyWorker(&f); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

// A port that rules mirror to belongs to no zone and to no inline pair, and a port in neither is refused
// unless it is one.
func TestMonitorPorts(t *testing.T) {
	for _, row := range []struct{ name, config, policy, at, want string }{
		{"nobody mirrors to it", mirrorConfig, strings.ReplaceAll(mirrorPolicy, "mirror: mon0", "log: true")[:strings.Index(mirrorPolicy, "  - {name: some")-3],
			"softdpu.yaml:3:", `port "mon0" belongs to no zone of the policy`},
		{"inline", strings.Replace(mirrorConfig, "mon0: {device: mon}", "mon0: {device: mon}, x: {device: x}", 1) + "inline: [[mon0, x]]\n",
			strings.Replace(mirrorPolicy, "wan: {ports: [wan]}", "wan: {ports: [wan]}, x: {ports: [x]}", 1), "policy.yaml:6:", `port "mon0" is joined with "x" and cannot be a monitor port`},
		{"unknown", strings.Replace(mirrorConfig, ", mon0: {device: mon}", "", 1), mirrorPolicy, "policy.yaml:6:", `unknown port "mon0"`},
	} {
		_, err := PrepareRuleset(write(t, row.config, row.policy), time.Now(), nil)
		var errs firewall.Errors
		if !errors.As(err, &errs) || !strings.Contains(err.Error(), row.at) || !strings.Contains(err.Error(), row.want) || errs[0].Hint == "" {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}
