package firewall

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A policy that follows saved identities is the one that follows them unsaved.
func TestIdentitiesSaved(t *testing.T) {
	const mac = "workloads: {w: {zone: lan, macs: [\"02:00:00:00:00:05\"]}}\n"
	first := after(t, nil, day, rulesText("a", "b", "c")+mac)
	second := after(t, first.Identities, day, rulesText("c", "d"))
	text, err := json.Marshal(second.Identities)
	if err != nil {
		t.Fatal(err)
	}
	var read Identities
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	later := day.Add(IdentityRest)
	for _, released := range []bool{false, true} {
		want, got := second.Identities, &read
		if released {
			want, got = want.Release(later, new(Borne)), got.Release(later, new(Borne))
		}
		a, b := after(t, want, later, rulesText("e", "b")+mac), after(t, got, later, rulesText("e", "b")+mac)
		if !reflect.DeepEqual(a.Order, b.Order) || !reflect.DeepEqual(a.Zones, b.Zones) || !reflect.DeepEqual(a.MACs, b.MACs) {
			t.Errorf("released %v: ids %v, want %v", released, b.Order, a.Order)
		}
		if r := b.Rules[a.Order[1]]; r.Name != "b" || r.Gone {
			t.Errorf("b is %+v", r)
		}
	}
	if r := after(t, &read, day, rulesText("c")).Rules[RuleFirst]; r.Name != "a" || r.File != "p.yaml" || r.Line != 5 || !r.Gone {
		t.Errorf("a rule that is gone is read as %+v", r)
	}
}

// Files may be called anything.
func TestIdentitiesSavedOfAnyFile(t *testing.T) {
	for _, file := range []string{"plain.yaml", "qu\"ote \\.yaml", "z\u00fcrich.yaml", "a\nb\x7f.yaml", "<&>.yaml"} {
		i := Identities{rules: []RuleInfo{{Rule: &Rule{Name: "a"}, File: "other"}, freeRule, {Rule: &Rule{Name: "b"}, File: file, Line: 3, Gone: true}}, gone: map[int]time.Time{2: day}}
		var read Identities
		text, err := i.MarshalJSON()
		if err == nil {
			err = json.Unmarshal(text, &read)
		}
		if err != nil {
			t.Fatalf("%q: %v\n%s", file, err, text)
		}
		if r := read.rules[2]; r.Name != "b" || r.File != file || r.Line != 3 || !r.Gone || !read.gone[2].Equal(day) || read.rules[0].File != "other" || read.rules[1].Name != "" {
			t.Errorf("%q is read as %+v", file, read.rules)
		}
	}
}

func TestIdentitiesDamaged(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`{"rules":[{"id":6,"name":"a"}]}`, `rule "a" cannot have id 6`},
		{`{"rules":[{"id":16777216,"name":"a"}]}`, "cannot have id"},
		{`{"rules":[{"id":7,"name":"a"},{"id":8,"name":"a"}]}`, "cannot have id 8"},
		{`{"rules":[{"id":7,"name":"a"},{"id":7,"name":"b"}]}`, `"a" and "b" have id 7`},
		{`{"zones":[{"id":1,"name":"a"}]}`, "cannot have id 1"},
		{`{"zones":[{"id":256,"name":"a"}]}`, "cannot have id 256"},
		{`{"zones":[{"id":2,"name":"a"},{"id":2,"name":"b"}]}`, "have id 2"},
		{`{"macs":[{"id":0,"mac":"02:00:00:00:00:05"}]}`, "cannot have id 0"},
		{`{"macs":[{"id":1,"mac":"02:00"}]}`, "cannot have id 1"},
		{`{"nat":[{"id":0,"name":"a","family":4}]}`, `nat rule "a" cannot have id 0`},
		{`{"nat":[{"id":1,"name":"a","family":5}]}`, "cannot have id 1"},
		{`{"nat":[{"id":1,"name":"a","family":4},{"id":2,"name":"a","family":4}]}`, "cannot have id 2"},
		{`{"nat":[{"id":1,"name":"a","family":4},{"id":1,"name":"a","family":6}]}`, "have id 1"},
		{`{"rules":1}`, "read identities"},
		{`{"rulez":[]}`, "read identities"},
	} {
		i := Identities{rules: []RuleInfo{{Rule: &Rule{Name: "kept"}}}}
		if err := json.Unmarshal([]byte(tt.text), &i); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.text, err)
		}
		if i.RuleName(RuleFirst) != "kept" {
			t.Errorf("%s: half of it was read", tt.text)
		}
	}
}

// Identities that are saved as what they have other than earlier ones are read as if they were saved whole, whatever
// came and went in between.
func TestIdentitiesSavedSince(t *testing.T) {
	must := func(text []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	random := rand.New(rand.NewPCG(31, 7))
	policy := func() string {
		var names []string
		for n := range 12 {
			if random.IntN(2) == 0 {
				names = append(names, fmt.Sprintf("r%d", n))
			}
		}
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		text := rulesText(names...)
		if random.IntN(3) == 0 {
			text += fmt.Sprintf("workloads: {w: {zone: lan, macs: [\"02:00:00:00:00:0%d\"]}}\n", random.IntN(3))
		}
		if random.IntN(3) == 0 {
			text += fmt.Sprintf("nat: [{name: n%d, from: {zone: lan}, to: {zone: wan}, masquerade: {}}]\n", random.IntN(3))
		}
		return text
	}
	now := day
	var is *Identities
	for round := range 60 {
		if random.IntN(4) == 0 && is != nil {
			now = now.Add(IdentityRest)
			is = is.Release(now, new(Borne))
		}
		earlier := after(t, is, now, policy()).Identities
		is = earlier
		for range random.IntN(4) {
			now = now.Add(time.Second)
			is = after(t, is, now, policy()).Identities
		}
		whole, since := must(earlier.MarshalJSON()), must(is.Since(earlier))
		read, err := ReadIdentities(whole, since)
		if err != nil {
			t.Fatalf("round %d: %v\n%s\n%s", round, err, whole, since)
		}
		want := new(Identities)
		if err := want.UnmarshalJSON(must(is.MarshalJSON())); err != nil {
			t.Fatal(err)
		}
		for _, i := range []*Identities{read, want} {
			for n := range i.rules { // where a rule in force stands its policy says
				if !i.rules[n].Gone {
					i.rules[n].File, i.rules[n].Line = "", 0
				}
			}
			for len(i.rules) > 0 && i.rules[len(i.rules)-1].Name == "" {
				i.rules = i.rules[:len(i.rules)-1]
			}
		}
		if !reflect.DeepEqual(read, want) {
			t.Fatalf("round %d: read as %s, want %s\n%s\n%s", round, must(read.MarshalJSON()), must(want.MarshalJSON()), whole, since)
		}
	}
	if same := must(is.Since(is)); string(same) != "{}" {
		t.Errorf("nothing has changed, and %s is saved", same)
	}
	for _, damaged := range []string{`{"rules":[{"id":7,"name":"other"},{"id":8,"name":"other"}]}`, `{"rulez":[]}`, `[`} {
		if _, err := ReadIdentities(must(is.MarshalJSON()), []byte(damaged)); err == nil {
			t.Errorf("%s is read", damaged)
		}
	}
}
