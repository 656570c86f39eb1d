package firewall

import (
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/flowtable"
)

// Entries that mean the same are the same, and have one way of writing.
func TestEntryText(t *testing.T) {
	for _, tt := range []struct {
		kind     SetType
		in, want string
	}{
		{SetPrefix, "192.0.2.1", "192.0.2.1"},
		{SetPrefix, "192.0.2.1/32", "192.0.2.1"},
		{SetPrefix, "192.0.2.0-192.0.2.255", "192.0.2.0/24"},
		{SetPrefix, "192.0.2.1-192.0.2.2", "192.0.2.1-192.0.2.2"},
		{SetPrefix, "192.0.2.4-192.0.2.7", "192.0.2.4/30"},
		{SetPrefix, "192.0.2.4-192.0.2.6", "192.0.2.4-192.0.2.6"},
		{SetPrefix, "0.0.0.0/0", "0.0.0.0/0"},
		{SetPrefix, "::/0", "::/0"},
		{SetPrefix, "2001:DB8::1", "2001:db8::1"},
		{SetPrefix, "2001:db8::-2001:db8::ffff", "2001:db8::/112"},
		{SetPort, "80", "80"},
		{SetPort, "80-80", "80"},
		{SetPort, "0-65535", "0-65535"},
		{SetMAC, "02-00-5E-10-00-01", "02:00:5e:10:00:01"},
		{SetName, "Example.COM", "example.com"},
	} {
		e, hint, err := ParseEntry(tt.kind, tt.in)
		if err != nil || e.Text(tt.kind) != tt.want {
			t.Errorf("%s is %q (%v, %s), want %q", tt.in, e.Text(tt.kind), err, hint, tt.want)
		}
		if again, _, err := ParseEntry(tt.kind, tt.want); err != nil || again != e {
			t.Errorf("%s and %s differ: %+v, %+v, %v", tt.in, tt.want, e, again, err)
		}
	}
	if _, _, err := ParseEntry("", "192.0.2.1"); err == nil {
		t.Error("an entry of no type")
	}
}

func entryOf(t *testing.T, kind SetType, text string) Entry {
	t.Helper()
	e, hint, err := ParseEntry(kind, text)
	if err != nil {
		t.Fatal(err, hint)
	}
	return e
}

func TestEntryCovers(t *testing.T) {
	for _, tt := range []struct {
		kind         SetType
		outer, inner string
		want         bool
	}{
		{SetPrefix, "10.0.0.0/8", "10.1.2.3", true},
		{SetPrefix, "10.1.2.3", "10.0.0.0/8", false},
		{SetPrefix, "0.0.0.0/0", "::1", false},
		{SetPrefix, "::/0", "192.0.2.1", false},
		{SetPort, "80-90", "85-90", true},
		{SetPort, "80-90", "85-91", false},
		{SetMAC, "02:00:00:00:00:01", "02:00:00:00:00:01", true},
		{SetName, "a.example", "b.example", false},
	} {
		outer, inner := entryOf(t, tt.kind, tt.outer), entryOf(t, tt.kind, tt.inner)
		if got := outer.Covers(tt.kind, inner); got != tt.want {
			t.Errorf("%s covers %s: %t", tt.outer, tt.inner, got)
		}
	}
}

const changing = `apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan0]}, wan: {ports: [wan0]}}
sets:
  nets: {type: prefix, entries: [192.0.2.0/25, 192.0.2.128/25]}
  doors:
    type: port
    entries:
      - 80
      - 443
services: {web: {proto: tcp, port: [22, {set: doors}], source_port: {set: doors}}}
rules:
  - {name: one, from: {set: nets}, to: any, service: web, action: allow}
  - {name: two, from: any, to: any, service: {proto: udp, port: {set: doors}}, action: allow}
`

// A policy has other entries in its sets wherever they are used, and the one before stays as it was.
func TestWithSets(t *testing.T) {
	p, err := Parse([]Source{{"p.yaml", []byte(changing)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	doors := p.Sets[1]
	if file, line := doors.Place(1); doors.Len() != 2 || file != "p.yaml" || line != 10 || doors.Entry(1).Text(SetPort) != "443" {
		t.Errorf("doors are %+v", doors)
	}
	next := p.WithSets(map[string]SetChange{
		"doors": {Added: []Entry{entryOf(t, SetPort, "8000-8001")}, Removed: map[Entry]bool{entryOf(t, SetPort, "80"): true}},
		"nets":  {Added: []Entry{entryOf(t, SetPrefix, "2001:db8::/32")}},
		"other": {Added: []Entry{entryOf(t, SetPort, "1")}},
	})
	ports := func(of []flowtable.U16Range) string {
		var all []string
		for _, r := range of {
			all = append(all, Entry{Ports: r}.Text(SetPort))
		}
		return strings.Join(all, " ")
	}
	for _, tt := range []struct {
		what, got, want string
	}{
		{"service", ports(next.Services[0].Matches[0].DstPorts), "22 443 8000-8001"},
		{"sources", ports(next.Services[0].Matches[0].SrcPorts), "443 8000-8001"},
		{"rule by name", ports(next.Rules[0].Services[0].DstPorts), "22 443 8000-8001"},
		{"rule", ports(next.Rules[1].Services[0].DstPorts), "443 8000-8001"},
		{"service before", ports(p.Services[0].Matches[0].DstPorts), "22 80 443"},
		{"rule before", ports(p.Rules[1].Services[0].DstPorts), "80 443"},
		{"set before", ports(p.Sets[1].Ports), "80 443"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, tt.got, tt.want)
		}
	}
	if !p.Uses("nets") || p.Uses("other") {
		t.Error("what rules use is not known")
	}
	held := next.Sets[0].Held()
	for text, want := range map[string]bool{"192.0.2.0/24": true, "192.0.2.7": true, "192.0.3.0": false, "2001:db8::1": true, "::/0": false} {
		if got := held(entryOf(t, SetPrefix, text)); got != want {
			t.Errorf("%s is held: %t", text, got)
		}
	}
	again := p.WithSets(nil)
	if !slices.Equal(again.Sets[1].Ports, doors.Ports) || len(again.Rules) != 2 {
		t.Errorf("without changes: %+v", again.Sets)
	}
}
