package pipes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

const policyText = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0]}
  wan: {ports: [wan0]}
services: {web: [tcp/80, udp/443]}
rules:
  - {name: watch, from: lan, to: wan, service: tcp/25, action: deny, mode: audit, log: true}
  - {name: web, from: lan, to: wan, service: web, action: allow}
nat:
  - {name: branch, from: lan, to: wan, masquerade: {}}
`

func compiled(t *testing.T, text string) (*firewall.Compiled, *flowtable.ACL, *flowtable.NAT) {
	t.Helper()
	p, err := firewall.Parse([]firewall.Source{{Name: "policy.yaml", Text: []byte(text)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := firewall.Compile(p, firewall.CompileOptions{Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := flowtable.CompileACL(c.Entries)
	if err != nil {
		t.Fatal(err)
	}
	nat, err := c.NATBehind(rules)
	if err != nil {
		t.Fatal(err)
	}
	return c, rules, nat
}

func pipeOf(t *testing.T, r *pipe.Report, name string) *pipe.PipeReport {
	t.Helper()
	i := slices.IndexFunc(r.Pipes, func(p pipe.PipeReport) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("there is no pipe %s", name)
	}
	return &r.Pipes[i]
}

// What was counted stands at the first entry of a rule, and what a rule in audit mode would have decided at its own.
func TestReportCounts(t *testing.T) {
	c, rules, nat := compiled(t, policyText)
	idle := 2.5
	r := New(c, rules, nat, Options{Most: 100}).Report(&Counts{
		Rules: func(id uint32) Count {
			return Count{Packets: 100 + uint64(id), Bytes: 1000, Flows: 7, Judged: 9, IdleS: &idle}
		},
		NAT: func(uint32) uint64 { return 5 },
	})
	var got []string
	for _, e := range append(pipeOf(t, r, Rules).Entries, pipeOf(t, r, Rules).Miss) {
		if strings.HasPrefix(e.Name, "builtin") {
			continue
		}
		text := fmt.Sprintf("%s:%d %s log=%v audit=%v", e.Name, e.Line, e.Forward, e.Log, e.Audit)
		if e.Packets != nil {
			text += fmt.Sprintf(" packets=%d", *e.Packets)
		}
		if e.Flows != nil {
			text += fmt.Sprintf(" flows=%d", *e.Flows)
		}
		got = append(got, text)
	}
	want := []string{
		"watch:8 drop (deny) log=true audit=true packets=9",
		fmt.Sprintf("web:9 pipe nat-out log=false audit=false packets=%d flows=7", 100+c.Order[1]),
		"web/2:9 pipe nat-out log=false audit=false",
		":0 drop (no-rule-matched) log=false audit=false packets=100",
	}
	if !slices.Equal(got, want) {
		t.Errorf("rules are\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	sources := pipeOf(t, r, Sources).Entries
	if len(sources) != 2 || *sources[0].Flows != 5 || sources[1].Flows != nil || sources[0].Does != "masquerade" || sources[0].File != "policy.yaml" {
		t.Errorf("sources are %+v", sources)
	}
	if p := pipeOf(t, r, Rules); p.Became != pipe.InACL || p.Instructions == 0 || p.NS <= pipeOf(t, r, Sources).NS {
		t.Errorf("the plan is %+v", p)
	}
}

// Of many rules as many are made as are asked for, and all are counted; what became of them is what is in force.
func TestReportOfMany(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan0]}, wan: {ports: [wan0]}}\nrules:\n")
	const many = 3000
	for i := range many {
		fmt.Fprintf(&b, "  - {name: r%d, from: lan, to: {zone: wan, addresses: [\"10.%d.%d.0/24\", \"2001:db8:%x::/48\"]}, service: tcp/%d, action: allow}\n", i, i>>8, i&255, i, 1+i)
	}
	c, rules, nat := compiled(t, b.String())
	r := New(c, rules, nat, Options{Most: 10}).Report(nil)
	whole := New(c, rules, nat, Options{Most: 1 << 20}).Report(nil)
	few, all := pipeOf(t, r, Rules), pipeOf(t, whole, Rules)
	if len(few.Entries) != 10 || few.Total != len(all.Entries) || all.Total != few.Total || few.Total != 2*many+4 {
		t.Errorf("%d of %d entries, and %d of %d", len(few.Entries), few.Total, len(all.Entries), all.Total)
	}
	if few.MemoryBytes == 0 || !strings.Contains(few.Why, "decision trees in memory") || few.Miss.Packets != nil {
		t.Errorf("the plan is %+v", few)
	}
}
