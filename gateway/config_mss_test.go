package gateway

import (
	"testing"

	"github.com/softdpu/softdpu/dataplane"
)

const mssRules = `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}
rules:
  - {name: plain, from: lan, to: wan, service: tcp/1, action: allow}
  - {name: narrow, from: lan, to: wan, service: tcp/2, action: allow, mss_clamp: 1200}
  - {name: over, from: lan, to: wan, service: tcp/3, action: allow, mss_clamp: 1300, expires: 2020-01-01}
`

// XDP has the clamp in it where a port or a rule asks for it, and only there; it needs no workers.
func TestWhatClampsMSS(t *testing.T) {
	config := func(lan, wan string) string {
		return "apiVersion: softdpu/v1\nkind: Gateway\nports: {lan: {device: lan" + lan + "}, wan: {device: wan" + wan + "}}\npolicy: policy.yaml\nmanagement: none\n"
	}
	without := "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\nrules:\n" +
		"  - {name: over, from: lan, to: wan, service: tcp/3, action: allow, mss_clamp: 1300, expires: 2020-01-01}\n"
	for _, row := range []struct {
		name, config, policy string
		clamps               bool
		lan, wan, rule       uint16
	}{
		{"nothing", config("", ""), without, false, 0, 0, 0},
		{"port", config("", ", mss_clamp: auto"), without, true, 0, dataplane.MSSAuto, 0},
		{"number", config(", mss_clamp: 1360", ""), without, true, 1360, 0, 0},
		{"rule", config("", ""), mssRules, true, 0, 0, 1200},
	} {
		r := prepared(t, row.config, row.policy)
		g := r.generation(1)
		var rule uint16
		for _, work := range g.Works {
			rule += work.MSS
		}
		ports := r.portConfigs(r.config)
		if g.ClampMSS != row.clamps || g.Workers || rule != row.rule || ports[0].MSSClamp != row.lan || ports[1].MSSClamp != row.wan {
			t.Errorf("%s: clamps %v, workers %v, rules to %d, ports %+v", row.name, g.ClampMSS, g.Workers, rule, ports)
		}
	}
}
