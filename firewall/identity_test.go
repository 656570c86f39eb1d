package firewall

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// after compiles a policy that follows another at a time of day; previous may be nil.
func after(t *testing.T, previous *Identities, now time.Time, text string) *Compiled {
	t.Helper()
	c, err := compileAfter(t, previous, now, text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func compileAfter(t *testing.T, previous *Identities, now time.Time, text string) (*Compiled, error) {
	t.Helper()
	p, err := Parse([]Source{{Name: "p.yaml", Text: []byte("apiVersion: softdpu/v1\nkind: Policy\n" + text)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return Compile(p, CompileOptions{Now: now, Previous: previous})
}

func rulesText(names ...string) string {
	text := "zones: {lan: {ports: [p1]}, wan: {ports: [p2]}}\nrules:\n"
	for i, name := range names {
		text += fmt.Sprintf("  - {name: %s, from: {zone: lan}, to: {zone: wan}, service: tcp/%d, action: allow}\n", name, 1000+i)
	}
	return text
}

func TestRulesKeepTheirIDs(t *testing.T) {
	one := after(t, nil, day, rulesText("a", "b", "c"))
	if want := []uint32{RuleFirst, RuleFirst + 1, RuleFirst + 2}; !slices.Equal(one.Order, want) {
		t.Fatalf("the first policy has ids %v", one.Order)
	}
	two := after(t, one.Identities, day, rulesText("new", "c", "a"))
	if want := []uint32{RuleFirst + 3, RuleFirst + 2, RuleFirst}; !slices.Equal(two.Order, want) {
		t.Errorf("the second has ids %v, want %v", two.Order, want)
	}
	if r := two.Rules[RuleFirst+1]; r.Name != "b" || !r.Gone || r.Line != 6 {
		t.Errorf("the rule that is gone is %+v", r)
	}
	var decided []uint32
	for _, e := range two.Entries {
		if id := e.Verdict & (maxRules - 1); id >= RuleFirst {
			decided = append(decided, id)
		}
	}
	if !slices.Equal(decided, two.Order) {
		t.Errorf("entries stand in the order %v, not the policy's %v", decided, two.Order)
	}
	three := after(t, two.Identities, day, rulesText("b"))
	if three.Order[0] != RuleFirst+1 || three.Rules[RuleFirst+1].Gone {
		t.Errorf("b came back as %d, %+v", three.Order[0], three.Rules[three.Order[0]])
	}
}

func TestZonesKeepTheirIDs(t *testing.T) {
	one := after(t, nil, day, "zones: {dmz: {ports: [p3]}, lan: {ports: [p1]}, wan: {ports: [p2]}}\n")
	id := func(c *Compiled, port string) uint8 {
		z, _ := c.ZoneOf(port, 0)
		return z
	}
	tests := []struct {
		name, zones string
		want        map[string]uint8 // id of each port
		names       []string         // by id
	}{
		{"another order and a new zone", "{a: {ports: [p4]}, lan: {ports: [p1]}, wan: {ports: [p2]}, dmz: {ports: [p3]}}",
			map[string]uint8{"p1": id(one, "p1"), "p2": id(one, "p2"), "p3": id(one, "p3"), "p4": 5}, []string{"", "host", "dmz", "lan", "wan", "a"}},
		{"renamed", "{office: {ports: [p1]}, wan: {ports: [p2]}, dmz: {ports: [p3]}}",
			map[string]uint8{"p1": id(one, "p1"), "p2": id(one, "p2"), "p3": id(one, "p3")}, []string{"", "host", "dmz", "office", "wan"}},
		{"names swapped", "{wan: {ports: [p1]}, lan: {ports: [p2]}, dmz: {ports: [p3]}}",
			map[string]uint8{"p1": id(one, "p1"), "p2": id(one, "p2"), "p3": id(one, "p3")}, []string{"", "host", "dmz", "wan", "lan"}},
		{"a port more", "{lan: {ports: [p1, p4]}, wan: {ports: [p2]}, dmz: {ports: [p3]}}",
			map[string]uint8{"p1": id(one, "p1"), "p4": id(one, "p1"), "p2": id(one, "p2"), "p3": id(one, "p3")}, []string{"", "host", "dmz", "lan", "wan"}},
		{"one gone, another new", "{lan: {ports: [p1]}, wan: {ports: [p2]}, guests: {ports: [p3, p4]}}",
			map[string]uint8{"p1": id(one, "p1"), "p2": id(one, "p2"), "p3": 5, "p4": 5}, []string{"", "host", "", "lan", "wan", "guests"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := after(t, one.Identities, day, "zones: "+tt.zones+"\n")
			for port, want := range tt.want {
				if got := id(c, port); got != want {
					t.Errorf("port %s lies in zone %d, want %d", port, got, want)
				}
			}
			if !slices.Equal(c.Zones, tt.names) {
				t.Errorf("zones are %q, want %q", c.Zones, tt.names)
			}
		})
	}
	gone := after(t, one.Identities, day, "zones: {lan: {ports: [p1]}}\n")
	if got := gone.Identities.ZoneName(id(one, "p2")); got != "wan" {
		t.Errorf("the zone that is gone is called %q", got)
	}
	back := after(t, gone.Identities, day, "zones: {lan: {ports: [p1]}, wan: {ports: [p2]}}\n")
	if id(back, "p2") != id(one, "p2") {
		t.Errorf("wan came back as %d", id(back, "p2"))
	}
}

func TestMACsKeepTheirIDs(t *testing.T) {
	load := func(macs string) string {
		return "zones: {lan: {ports: [p1]}}\nworkloads: {w: {zone: lan, macs: [" + macs + "]}}\n"
	}
	one := after(t, nil, day, load(`"02:00:00:00:00:05", "02:00:00:00:00:07"`))
	two := after(t, one.Identities, day, load(`"02:00:00:00:00:01", "02:00:00:00:00:07"`))
	want := map[MAC]uint16{{2, 0, 0, 0, 0, 1}: 3, {2, 0, 0, 0, 0, 7}: 2}
	if !maps.Equal(two.MACs, want) {
		t.Errorf("MACs are %v, want %v", two.MACs, want)
	}
	three := after(t, two.Identities, day, load(`"02:00:00:00:00:05"`))
	if three.MACs[MAC{2, 0, 0, 0, 0, 5}] != 1 {
		t.Errorf("the MAC that came back is %v", three.MACs)
	}
}

// A number is given away only when it has rested and no flow bears it.
func TestRelease(t *testing.T) {
	first := after(t, nil, day, rulesText("a", "b", "c")+"workloads: {w: {macs: [\"02:00:00:00:00:05\"]}}\n")
	second := after(t, first.Identities, day, rulesText("c"))
	borne := &Borne{Rules: map[uint32]bool{RuleFirst: true}}
	later := day.Add(IdentityRest)
	for _, tt := range []struct {
		name string
		from *Identities
		want uint32
	}{
		{"not released", second.Identities, RuleFirst + 3},
		{"too early", second.Identities.Release(later.Add(-1), borne), RuleFirst + 3},
		{"rested, a borne by a flow", second.Identities.Release(later, borne), RuleFirst + 1},
		{"rested, b borne by a flow", second.Identities.Release(later, &Borne{Rules: map[uint32]bool{RuleFirst + 1: true}}), RuleFirst},
	} {
		if got := after(t, tt.from, later, rulesText("new", "c")); got.Order[0] != tt.want {
			t.Errorf("%s: a new rule has id %d, want %d", tt.name, got.Order[0], tt.want)
		}
	}
	if got := after(t, second.Identities.Release(later, borne), later, "workloads: {w: {macs: [\"02:00:00:00:00:06\"]}}\n"); got.MACs[MAC{2, 0, 0, 0, 0, 6}] != 1 {
		t.Errorf("a new MAC has %v, want the one that is free", got.MACs)
	}
	if name := second.Identities.Release(later, borne).RuleName(RuleFirst + 1); name != "" {
		t.Errorf("a free id is still called %q", name)
	}
	if !reflect.DeepEqual(second.Identities, after(t, first.Identities, day, rulesText("c")).Identities) {
		t.Error("Release changed what it was asked of, or Compile is not deterministic")
	}
}

func TestZonesRunOut(t *testing.T) {
	text := func(prefix string, n int) string {
		s := "zones:\n"
		for i := range n {
			s += fmt.Sprintf("  %s%d: {ports: [%s%d]}\n", prefix, i, prefix, i)
		}
		return s
	}
	first := after(t, nil, day, text("a", 200))
	_, err := compileAfter(t, first.Identities, day, text("b", 100))
	if err == nil || !strings.Contains(err.Error(), "no number is left for zone") || !strings.Contains(err.Error(), "restart") {
		t.Errorf("more zones than numbers: %v", err)
	}
	second := after(t, first.Identities, day, text("a", 1))
	later := day.Add(IdentityRest)
	if _, err := compileAfter(t, second.Identities.Release(later, new(Borne)), later, text("b", 100)); err != nil {
		t.Errorf("after they were released: %v", err)
	}
}
