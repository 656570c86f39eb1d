package firewall

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/softdpu/softdpu/flowtable"
)

// FuzzPolicy: no text crashes the parser or the compiler; every error points into the text; what is
// accepted compiles, twice to the same, into entries that a pipe takes.
func FuzzPolicy(f *testing.F) {
	f.Add(good)
	if text, err := os.ReadFile("testdata/branch.yaml"); err == nil {
		f.Add(string(text))
	}
	f.Add(head + "zones: {a: {ports: [p], vlans: [1, 2]}}\nrules:\n  - name: r\n    from: {zone: a, labels: {x: y}}\n    to: [host]\n    action: allow\n")
	f.Add(natPolicy)
	f.Add(head + "zones: {a: {ports: [p]}}\nnat:\n  - {name: n, from: a, to: {addresses: [::/0]}, service: udp, dnat: {servers: [{address: 2001:db8::1, port: 1}]}}\n  - {name: m, from: any, to: [host, a], keep: true}\n")
	f.Add("a: [\"\\u263a\", 'it''s', |\n  x\n]\n")
	f.Add("? a\n: - b\n  - &x c\n  - *x\n<<: {z: 1}\n--- !!map\n...\n")
	f.Add("a:\n- \"b\n- c\"\n-\n  d: [e,\n f]\nb:\n - |\n  - x\n - y\n")
	f.Fuzz(func(t *testing.T, text string) {
		sameInParts(t, text)
		sameReading(t, &Reading{partSize: 1, longText: maxFile}, []Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
		lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(text, "\ufeff")), "\n")
		inside := func(e Error) {
			if e.Line == 0 {
				return
			}
			if e.File != "p.yaml" || e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Column > utf8.RuneCountInString(lines[e.Line-1])+1 || e.Source != lines[e.Line-1] {
				t.Fatalf("error outside the file: %+v", e)
			}
			if e.Msg == "" || !strings.Contains(e.Render(), "p.yaml:") {
				t.Fatalf("error without words: %+v", e)
			}
		}
		p, err := Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("error is %T", err)
			}
			for _, e := range errs {
				inside(e)
			}
			return
		}
		c, err := Compile(p, CompileOptions{Now: day})
		again, errAgain := Compile(p, CompileOptions{Now: day})
		if !reflect.DeepEqual(c, again) || !reflect.DeepEqual(err, errAgain) {
			t.Fatal("two compilations differ")
		}
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) {
				t.Fatalf("error is %T", err)
			}
			return
		}
		for _, w := range c.Warnings {
			inside(w)
		}
		for _, r := range RunTests(c, linear(c.Entries), nil) {
			if r.Err != nil {
				inside(*r.Err)
			}
		}
		if _, err := flowtable.CompileACL(c.Entries); err != nil {
			t.Fatal(err)
		}
		for _, e := range slices.Concat(c.NATDestinations, c.NATSources) {
			id := e.Verdict & 0xffffff
			if id == 0 {
				continue // exempt
			}
			if int(id) >= len(c.NAT.Rules) || c.NAT.Rules[id].Kind == 0 || c.NATRules[id].Name == "" || c.NATRules[id].Family != e.Family {
				t.Fatalf("entry of nat rule %d of %d", id, len(c.NATRules))
			}
		}
		for _, e := range c.Entries {
			if int(e.Verdict&0xffffff) >= len(c.Rules) {
				t.Fatalf("entry of rule %d of %d", e.Verdict&0xffffff, len(c.Rules))
			}
		}
	})
}
