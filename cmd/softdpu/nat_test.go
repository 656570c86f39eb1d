package main

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/gateway"
)

func TestNATTable(t *testing.T) {
	var out bytes.Buffer
	tables := []*table{
		natTable([]gateway.NATRuleStatus{
			{Name: "branch", Kind: "masquerade", Text: "masquerade", File: "/etc/softdpu/policy.d/nat.yaml", Line: 3, Flows: 61_000, Opened: 1_234_567, Exhausted: 7, PortsUsed: 60_500, FullestPercent: 93.4, FullestOf: "tcp"},
			{Name: "www", Kind: "dnat", Text: "dnat to 10.20.1.5:8080", File: "nat.yaml", Line: 9, Conflicts: 1},
			{Name: "old", Kind: "snat", File: "nat.yaml", Line: 4, Flows: 2, Opened: 9, Gone: true},
		}),
		natAddressTable([]gateway.NATAddressStatus{
			{Port: "wan0", IP4: netip.MustParseAddr("203.0.113.5"), IP6: netip.MustParseAddr("2001:db8::5")}, {Port: "wan0", VLAN: 10, IP4: netip.MustParseAddr("198.51.100.2")},
		}),
	}
	for _, table := range tables {
		if err := table.write(&out, 0); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.TrimPrefix(`
RULE    WHAT                    FLOWS  OPENED  EXHAUSTED  CONFLICTS  PORTS  FULLEST   WHERE
branch  masquerade              61.0k    1.2M          7          0  60.5k  93 % tcp  nat.yaml:3
www     dnat to 10.20.1.5:8080      0       0          0          1      0  -         nat.yaml:9
old     snat                        2       9          0          0      0  -         gone
MASQUERADE AT  VLAN  IPV4          IPV6
wan0              -  203.0.113.5   2001:db8::5
wan0             10  198.51.100.2  none
`, "\n")
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// Where a rule limits its sources there is a column for those that were refused, and a table of who has most.
func TestNATTableShowsLimits(t *testing.T) {
	var out bytes.Buffer
	rules := []gateway.NATRuleStatus{
		{Name: "branch", Text: "masquerade at most 500 flows a source", File: "nat.yaml", Line: 3, Flows: 520, Opened: 900, Limited: 70, PortsUsed: 520, SourceLimit: 500, SourcesNear: 1,
			Sources: []gateway.NATSourceStatus{{Source: "10.20.1.7", Flows: 500}, {Source: "fd20:1::/64", Flows: 20}}},
		{Name: "www", Text: "dnat to 10.20.1.5:8080", File: "nat.yaml", Line: 9},
	}
	for _, table := range []*table{natTable(rules), natSourceTable(rules)} {
		if err := table.write(&out, 0); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.TrimPrefix(`
RULE    WHAT                                   FLOWS  OPENED  EXHAUSTED  CONFLICTS  LIMITED  PORTS  FULLEST  WHERE
branch  masquerade at most 500 flows a source    520     900          0          0       70    520  -        nat.yaml:3
www     dnat to 10.20.1.5:8080                     0       0          0          0        0      0  -        nat.yaml:9
SOURCE       RULE    FLOWS  LIMIT
10.20.1.7    branch    500    500
fd20:1::/64  branch     20    500
`, "\n")
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if natSourceTable(rules[1:]) != nil {
		t.Error("without a limit there is a table of sources")
	}
}

// Mappings have a column where some rule has them.
func TestNATTableShowsMappings(t *testing.T) {
	var out bytes.Buffer
	rules := []gateway.NATRuleStatus{
		{Name: "phones", Kind: "masquerade", Text: "masquerade, mapping endpoint-independent", File: "nat.yaml", Line: 3, Flows: 9, Mapping: "endpoint-independent", Mappings: 4},
		{Name: "rest", Kind: "masquerade", Text: "masquerade", File: "nat.yaml", Line: 4, Flows: 2, Mapping: "address-and-port-dependent"},
	}
	if err := natTable(rules).write(&out, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FLOWS  MAPPINGS  OPENED", "    9         4       0", "    2         0       0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// Only if a flow is translated is there a column for what it becomes.
func TestFlowTableShowsTranslations(t *testing.T) {
	flow := gateway.Flow{
		Proto: "tcp", SrcIP: netip.MustParseAddr("10.20.1.7"), SrcPort: 40000, DestIP: netip.MustParseAddr("203.0.113.6"), DestPort: 443,
		From: "lan", To: "wan", State: "established", Tier: "xdp", Rule: "web",
	}
	text := func(flows ...gateway.Flow) string {
		var out bytes.Buffer
		if err := flowTable(flows, 0).write(&out, 0); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := text(flow); strings.Contains(got, "BECOMES") {
		t.Errorf("flows that are not translated are shown as\n%s", got)
	}
	for _, tt := range []struct {
		name string
		nat  gateway.FlowNAT
		want string
	}{
		{"source", gateway.FlowNAT{SrcIP: netip.MustParseAddr("198.51.100.1"), SrcPort: 2001, DestIP: flow.DestIP, DestPort: 443}, " 198.51.100.1:2001 > * "},
		{"destination", gateway.FlowNAT{SrcIP: flow.SrcIP, SrcPort: 40000, DestIP: netip.MustParseAddr("10.20.1.5"), DestPort: 8443}, " * > 10.20.1.5:8443 "},
		{"both", gateway.FlowNAT{SrcIP: netip.MustParseAddr("10.20.1.1"), SrcPort: 40000, DestIP: netip.MustParseAddr("10.20.1.5"), DestPort: 443}, " 10.20.1.1:40000 > 10.20.1.5:443 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			translated := flow
			translated.NAT = &tt.nat
			got := text(flow, translated)
			lines := strings.Split(got, "\n")
			if !strings.Contains(lines[0], "BECOMES") || !strings.Contains(lines[2], tt.want) || strings.Contains(lines[1], tt.want) {
				t.Errorf("shown is\n%swithout %q", got, tt.want)
			}
		})
	}
}
