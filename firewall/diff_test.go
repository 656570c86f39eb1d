package firewall

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const diffPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0], addresses: [10.20.0.0/16]}
  wan: {ports: [wan0]}
sets:
  bad: {type: prefix, entries: [192.0.2.0/24, 198.51.100.7]}
  high: {type: port, entries: [8000-8010]}
workloads:
  pos: {zone: lan, addresses: [10.20.1.0/24], labels: {pci: "yes"}}
services:
  web: [tcp/80, tcp/443]
  app: {proto: tcp, port: {set: high}}
rules:
  - {name: no-bad, from: any, to: {set: bad}, action: deny}
  - {name: pay, from: pos, to: {zone: wan, addresses: [203.0.113.0/28]}, service: tcp/443, action: allow}
  - {name: browse, from: lan, to: wan, service: web, action: allow, log: true}
  - {name: apps, from: lan, to: wan, service: app, action: allow}
tests:
  - {name: browsing, packet: {in: lan0, out: wan0, src: 10.20.2.2, dst: 203.0.113.99, service: tcp/80}, expect: {verdict: allow, rule: browse}}
`

func parsed(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tell writes differences for the eye.
func tell(all []Difference) (lines []string) {
	for _, d := range all {
		line := fmt.Sprintf("%s %s %s:%d", d.How, d.Kind, d.Name, d.Line)
		for _, f := range d.Fields {
			line += fmt.Sprintf(" %s(%s)(%s)", f.Key, f.Old, f.New)
		}
		lines = append(lines, line)
	}
	return lines
}

// Each change of a policy is told as what it is, with the place where it stands, and nothing else is.
func TestDiff(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit []string // pairs
		want []string
	}{
		{"nothing", nil, nil},
		{"comments and layout", []string{"rules:\n", "\n# rules\nrules:\n", "[tcp/80, tcp/443]", "\n    - tcp/80\n    - tcp/443"}, nil},
		{"an action", []string{"service: tcp/443, action: allow", "service: tcp/443, action: reject"}, []string{"changed rule pay:16 action(allow)(reject)"}},
		{"what workers do", []string{"web, action: allow", "web, action: allow, on_failure: bypass, mirror: {port: mon0, packets: 4}", "app, action: allow", "app, action: allow, on_failure: drop, mirror: mon0"}, []string{
			"changed rule browse:17 on_failure()(bypass) mirror()(mon0, the first 4 packets)",
			"changed rule apps:18 mirror()(mon0)"}},
		{"an MSS", []string{"web, action: allow", "web, action: allow, mss_clamp: 1300"}, []string{"changed rule browse:17 mss_clamp()(1300)"}},
		{"a rule more", []string{"  - {name: pay", "  - {name: new, from: lan, to: host, service: icmp/echo-request, action: allow, expires: 2030-01-31}\n  - {name: pay"},
			[]string{"added rule new:16 from()(zone lan) to()(zone host) service()(icmp/8) action()(allow) expires()(2030-01-31)"}},
		{"a rule fewer", []string{"  - {name: apps, from: lan, to: wan, service: app, action: allow}\n", ""}, []string{"removed rule apps:18"}},
		{"a rule has another name", []string{"{name: pay,", "{name: paying,"}, []string{"removed rule pay:16",
			"added rule paying:16 from()(workload pos) to()(zone wan and addresses 203.0.113.0/28) service()(tcp/443) action()(allow)"}},
		{"rules trade places", []string{"{name: no-bad,", "{name: x,", "{name: pay,", "{name: no-bad,", "{name: x,", "{name: pay,"}, []string{
			"changed rule pay:15 from(workload pos)(any) to(zone wan and addresses 203.0.113.0/28)(set bad) service(tcp/443)(any) action(allow)(deny)",
			"changed rule no-bad:16 from(any)(workload pos) to(set bad)(zone wan and addresses 203.0.113.0/28) service(any)(tcp/443) action(deny)(allow)",
			"moved rule pay:15 place(behind no-bad)(first)"}},
		{"a service", []string{"web: [tcp/80, tcp/443]", "web: [tcp/80, udp/443]"}, []string{
			"changed service web:12 service(tcp/80, tcp/443)(tcp/80, udp/443)",
			"changed rule browse:17 service(tcp/80, tcp/443)(tcp/80, udp/443)"}},
		{"entries", []string{"192.0.2.0/24, 198", "192.0.2.0/25, 198.51.100.9, 198"}, []string{
			"changed set bad:7 entries(1: 192.0.2.0/24)(2: 192.0.2.0/25, 198.51.100.9)"}},
		{"the order of entries", []string{"[192.0.2.0/24, 198.51.100.7]", "[198.51.100.7, 192.0.2.0/24]"}, nil},
		{"a zone", []string{"wan: {ports: [wan0]}", "wan: {ports: [wan0], untrusted: true, addresses: [10.0.0.1-10.0.0.9]}"}, []string{
			"changed zone wan:5 addresses()(10.0.0.1-10.0.0.9) untrusted()(true)"}},
		{"a label", []string{`pci: "yes"`, `pci: "no", site: a`}, []string{"changed workload pos:10 labels(pci=yes)(pci=no, site=a)"}},
		{"nat", []string{"rules:\n", "nat:\n  - {name: branch, from: lan, to: wan, masquerade: {}}\n  - {name: farm, from: wan, to: 192.0.2.1, service: tcp/80, dnat: {servers: [{address: 10.20.1.1, port: 8080}, {address: 10.20.1.2, drain: true}]}}\nrules:\n"}, []string{
			"added nat branch:15 from()(zone lan) to()(zone wan) service()(any) masquerade()(ports 1024-65535)",
			"added nat farm:16 from()(zone wan) to()(addresses 192.0.2.1) service()(tcp/80) dnat()(to 10.20.1.1:8080, 10.20.1.2 drain)"}},
		{"a test", []string{"rule: browse", "rule: pay", "dst: 203.0.113.99", "dst: 203.0.113.9"}, []string{
			"changed test browsing:20 packet(in lan0 out wan0 src 10.20.2.2 dst 203.0.113.99 proto 6 ports 49152 to 80)(in lan0 out wan0 src 10.20.2.2 dst 203.0.113.9 proto 6 ports 49152 to 80) rule(browse)(pay)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := diffPolicy
			for i := 0; i < len(tt.edit); i += 2 {
				if !strings.Contains(text, tt.edit[i]) {
					t.Fatalf("%q does not stand there", tt.edit[i])
				}
				text = strings.Replace(text, tt.edit[i], tt.edit[i+1], 1)
			}
			got := tell(Diff(parsed(t, diffPolicy), parsed(t, text)))
			if !slices.Equal(got, tt.want) {
				t.Errorf("tells\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// Rules of translation are told as rules are, and the seventeenth server too.
func TestDiffNAT(t *testing.T) {
	servers := func(last string) string {
		var all []string
		for i := range 20 {
			all = append(all, fmt.Sprintf("{address: 10.30.0.%d}", i+1))
		}
		return strings.Join(append(all, last), ", ")
	}
	before := strings.Replace(natPolicy, "{address: 10.30.0.8, port: 8443, drain: true}", servers("{address: 10.30.1.1}"), 1)
	before = strings.Replace(before, "{address: 10.30.0.7, weight: 2}, ", "", 1)
	after := strings.Replace(before, "{address: 10.30.1.1}", "{address: 10.30.1.1, weight: 3}", 1)
	after = strings.Replace(after, "masquerade: {ports: 20000-29999}", "snat: {addresses: 203.0.113.7}", 1)
	lines := strings.Split(after, "\n")
	lines[13], lines[14] = lines[14], lines[13]
	got := Diff(parsed(t, before), parsed(t, strings.Join(lines, "\n")))
	want := []string{
		"changed nat branch:17 masquerade(ports 20000-29999)() snat()(to 203.0.113.7)",
		"changed nat farm:21 dnat(", "moved nat not-from-partners:14 place(behind not-to-vpn)(first)",
	}
	for i, line := range tell(got) {
		if i >= len(want) || !strings.HasPrefix(line, want[i]) || len(got) != len(want) {
			t.Fatalf("tells\n%s", strings.Join(tell(got), "\n"))
		}
	}
	if c := CountChanges(got); c != (Changes{NAT: Change{Changed: 2, Moved: 1}}) {
		t.Errorf("counts %+v", c)
	}
}

// A long list is compared whole, and not written out.
func TestDiffLongLists(t *testing.T) {
	entries := make([]string, 5000)
	for i := range entries {
		entries[i] = fmt.Sprintf("10.%d.%d.0/24", i/250, i%250)
	}
	policy := func(list []string) *Policy {
		return parsed(t, strings.Replace(diffPolicy, "192.0.2.0/24, 198.51.100.7", strings.Join(list, ","), 1))
	}
	got := Diff(policy(entries[:4000]), policy(entries[100:]))
	if len(got) != 1 || !strings.HasPrefix(got[0].Fields[0].New, "1000: 10.16.0.0/24, ") || !strings.HasSuffix(got[0].Fields[0].New, ", and 984 more") || !strings.HasPrefix(got[0].Fields[0].Old, "100: ") {
		t.Errorf("%v", tell(got))
	}
	if c := CountChanges(got); c != (Changes{Sets: Change{Changed: 1}}) {
		t.Errorf("counts %+v", c)
	}
}

// The rules that are told to move are the fewest: all others stand in the same order in both.
func TestMovedRules(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 8))
	for round := range 300 {
		before := make([]Rule, random.IntN(9))
		for i := range before {
			before[i].Name = fmt.Sprint(i)
		}
		after := slices.Clone(before)
		for range random.IntN(4) {
			if len(after) > 1 {
				i, j := random.IntN(len(after)), random.IntN(len(after))
				r := after[i]
				after = slices.Insert(slices.Delete(after, i, i+1), j, r)
			}
		}
		named := make(map[string]bool)
		for _, d := range sectionOf(KindRule, before, after, func(r *Rule) string { return r.Name }, func(*Rule) Pos { return Pos{} }, nil).moved() {
			named[d.Name] = true
		}
		stay := func(moved func(string) bool) (names []string, inOrder bool) {
			inOrder = true
			for _, r := range after {
				if !moved(r.Name) {
					inOrder = inOrder && (len(names) == 0 || names[len(names)-1] < r.Name)
					names = append(names, r.Name)
				}
			}
			return names, inOrder
		}
		if _, inOrder := stay(func(n string) bool { return named[n] }); !inOrder {
			t.Fatalf("round %d: %v of %v move", round, named, after)
		}
		for set := range 1 << len(before) { // no smaller choice does
			names, inOrder := stay(func(n string) bool { return set>>(n[0]-'0')&1 == 1 })
			if inOrder && len(before)-len(names) < len(named) {
				t.Fatalf("round %d: %d rules move, and %d would do", round, len(named), len(before)-len(names))
			}
		}
	}
}

// What is compared without being written out is all that a rule says, whatever it comes to say.
func TestSameRule(t *testing.T) {
	if !sameRule(&Rule{Name: "a"}, &Rule{Name: "b", Mirror: Mirror{below: 1, column: 2}, From: Selector{Zones: []string{}}}) {
		t.Error("rules that differ in name and place alone are not the same")
	}
	about := reflect.TypeFor[Rule]()
	for i := range about.NumField() {
		f := about.Field(i)
		if f.Name == "Name" {
			continue
		}
		var a, b Rule
		v := reflect.ValueOf(&b).Elem().Field(i)
		switch v.Interface().(type) {
		case Selector:
			v.Set(reflect.ValueOf(Selector{Sets: []string{"s"}}))
		case []ServiceMatch:
			v.Set(reflect.ValueOf([]ServiceMatch{{Family: 4}}))
		case time.Time:
			v.Set(reflect.ValueOf(day))
		case Mirror:
			v.Set(reflect.ValueOf(Mirror{Packets: 1}))
		default:
			switch {
			case v.CanUint():
				v.SetUint(1)
			case v.CanInt():
				v.SetInt(1)
			case v.Kind() == reflect.Bool:
				v.SetBool(true)
			default:
				v.SetString("x")
			}
		}
		if sameRule(&a, &b) || sameRule(&b, &a) {
			t.Errorf("rules with another %s are the same", f.Name)
		}
	}
}

// Of two readings that share their rules the same is told as of two that do not.
func TestDiffOfSharedRules(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 22))
	names := 0
	rule := func() string {
		names++
		return fmt.Sprintf("  - {name: r%d, from: lan, to: {zone: wan, addresses: [203.0.113.%d]}, service: tcp/%d, action: allow}\n", names, random.IntN(3), 1+random.IntN(2))
	}
	var lines []string
	for range 30 {
		lines = append(lines, rule())
	}
	var reading Reading
	read := func(with func([]Source) (*Policy, error)) *Policy {
		t.Helper()
		text := "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan0]}, wan: {ports: [wan0]}}\nrules:\n" + strings.Join(lines, "")
		p, err := with([]Source{{Name: "p.yaml", Text: []byte(text)}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	again := func(s []Source) (*Policy, error) { return reading.Parse(s, nil) }
	afresh := func(s []Source) (*Policy, error) { return Parse(s, nil) }
	moves := 0
	for round := range 300 {
		shared, apart := read(again), read(afresh)
		for range 1 + random.IntN(4) {
			i, j := random.IntN(len(lines)), random.IntN(len(lines))
			switch line := lines[i]; random.IntN(4) {
			case 0:
				lines = slices.Insert(lines, j, rule())
			case 1:
				lines = slices.Delete(lines, i, i+1)
			case 2:
				lines = slices.Insert(slices.Delete(lines, i, i+1), min(j, len(lines)-1), line)
			default:
				lines[i] = strings.Replace(line, "action: allow", "action: deny", 1)
			}
		}
		for len(lines) < 20 {
			lines = append(lines, rule())
		}
		got, want := Diff(shared, read(again)), Diff(apart, read(afresh))
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d: %q, want %q", round, tell(got), tell(want))
		}
		moves += CountChanges(got).Rules.Moved
	}
	if moves < 100 {
		t.Errorf("%d rules have moved: the test asks too little", moves)
	}
}
