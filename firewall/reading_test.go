package firewall

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/flowtable"
)

// readingPolicy has n rules, with everything around them that they may speak of.
func readingPolicy(n int) string {
	var b strings.Builder
	b.WriteString(head + `zones:
  lan: {ports: [lan0], addresses: [10.0.0.0/8]}
  wan: {ports: [wan0]}
sets:
  bad: {type: prefix, entries: [192.0.2.0/24]}
  web: {type: port, entries: [80, 443]}
  cards: {type: mac, entries: ["02:00:00:00:00:01"]}
  listed: {type: prefix, file: listed.txt}
workloads:
  till: {addresses: [10.1.0.0/16], labels: {pci: "yes"}}
services:
  ssh: tcp/22
# the rules
rules:
`)
	for i := range n {
		b.WriteString(readingRule(fmt.Sprint("r", i), i))
	}
	b.WriteString(`
tests:
  - name: first
    packet: {in: lan0, out: wan0, src: 10.1.2.3, dst: 192.0.2.1, service: tcp/443}
    expect: {verdict: deny, rule: r1}
`)
	return b.String()
}

// readingRule writes a rule, in one of several ways.
func readingRule(name string, kind int) string {
	switch kind % 9 {
	case 0:
		return fmt.Sprintf("  - {name: %s, from: lan, to: wan, service: ssh, action: allow}\n", name)
	case 1:
		return fmt.Sprintf("  - name: %s\n    from: {addresses: [10.%d.0.0/16]}\n    to: {set: bad}\n    action: deny # as ever\n\n", name, kind%256)
	case 2:
		return fmt.Sprintf("  # why\n  - {name: %s, from: {set: [bad, cards]}, to: any, service: {proto: tcp, port: {set: web}}, action: reject}\n", name)
	case 3:
		return fmt.Sprintf("  - description: |\n      Two\n      lines\n    name: %s\n    from: {labels: {pci: \"yes\"}}\n    to: host\n    action: allow\n    expires: 2026-0%d-01\n", name, 1+kind/9%9)
	case 4:
		return fmt.Sprintf("  - {name: %s, from: any, to: {zone: wan, addresses: [2001:db8::/32]}, service: icmp/echo-reply, action: allow}\n", name)
	case 5:
		return fmt.Sprintf("  - name: %s\n    from: till\n    to: any\n    action: allow\n    mirror:\n      packets: 10\n      port: mon0\n", name)
	case 6:
		return fmt.Sprintf("  - {name: %s, from: {zone: lan, addresses: [198.51.100.0/24]},\n     to: {set: listed}, action: deny}\n", name)
	case 7:
		return fmt.Sprintf("  - {name: %s, from: any, to: any, service: [tcp/80, udp/53], action: allow, mode: audit}\n", name)
	}
	return fmt.Sprintf("  - {name: %s, from: {addresses: [10.0.0.0/8]}, to: {addresses: [2001:db8::/32]}, service: tcp, action: allow, mss_clamp: 1200}\n", name)
}

// editText changes lines of a text: in most ways that a person does, and some that nobody should.
func editText(text string, n int, draw func(n int) int) string {
	lines := strings.Split(text, "\n")
	i, j := draw(len(lines)), draw(len(lines))
	switch draw(26) {
	case 0, 1, 2:
		lines = slices.Insert(lines, i, strings.Split(strings.TrimSuffix(readingRule(fmt.Sprint("new", n), draw(9)), "\n"), "\n")...)
	case 3, 4:
		lines = slices.Delete(lines, i, i+1)
	case 5, 6: // a rule in one line moves
		line := lines[i]
		lines = slices.Insert(slices.Delete(lines, i, i+1), min(j, len(lines)-1), line)
	case 7:
		lines[i] = strings.NewReplacer("allow", "deny", "deny", "reject", "reject", "allow").Replace(lines[i])
	case 8:
		lines[i] = strings.NewReplacer("/16", "/15", "/24", "/23", "lan", "wan", "ssh", "tcp/2222").Replace(lines[i])
	case 9:
		lines[i] = strings.Replace(lines[i], "name: r", "name: n", 1)
	case 10:
		lines = slices.Insert(lines, i, []string{"", "  # a comment", "# at the edge", "   "}[draw(4)])
	case 11:
		lines[i] += []string{" # more", "  ", "\r", "\t"}[draw(4)]
	case 12:
		lines[i] = "  " + lines[i]
	case 13:
		lines[i] = strings.TrimPrefix(lines[i], " ")
	case 14:
		lines = slices.Insert(lines, i, lines[j]) // a name is there twice
	case 15:
		if i+1 < len(lines) {
			lines[i] += lines[i+1]
			lines = slices.Delete(lines, i+1, i+2)
		}
	case 16:
		at := draw(len(lines[i]) + 1)
		lines[i] = lines[i][:at] + []string{"\x00", "\xff", "\"", "{", "]", "'", "&a ", ": ", "- ", "\u2028", "\n", "\r"}[draw(12)] + lines[i][at:]
	case 17:
		lines = lines[:i+1]
	case 18:
		a, b := min(i, j), max(i, j)
		lines = slices.Delete(lines, a, min(b, a+draw(40)))
	case 19:
		a := lines[min(i, j):max(i, j)]
		lines = slices.Insert(lines, max(i, j), slices.Clone(a[:min(len(a), 3)])...)
	case 20:
		text := strings.Join(lines, "\n")
		return []string{strings.ReplaceAll(text, "\n", "\r\n"), strings.ReplaceAll(text, "\r\n", "\n"), "\ufeff" + text, strings.TrimSuffix(text, "\n"), text + "\n"}[draw(5)]
	case 21:
		lines = slices.Insert(lines, i, []string{"---", "...", "rules:", "tests:", "  - rules", "nat: []", "sets: {}"}[draw(7)])
	case 22:
		a, b := draw(len(text)+1), draw(len(text)+1)
		return text[:min(a, b)] + text[min(max(a, b), min(a, b)+draw(200)):]
	case 23: // of every rule
		return strings.ReplaceAll(text, "2026-01-01", "2026-01-02")
	case 24:
		lines = slices.Insert(lines, i, "    log: true")
	case 25:
		lines[i], lines[j] = lines[j], lines[i]
	}
	return strings.Join(lines, "\n")
}

// sameReading compares a reading with one from the beginning.
func sameReading(t *testing.T, r *Reading, sources []Source, readFile func(string) ([]byte, error)) *Policy {
	t.Helper()
	got, err := r.Parse(sources, readFile)
	want, wantErr := parseWhole(sources, readFile)
	if !reflect.DeepEqual(err, wantErr) {
		t.Fatalf("says %v\nnot %v", err, wantErr)
	}
	if !reflect.DeepEqual(got, want) {
		a, b := reflect.ValueOf(got).Elem(), reflect.ValueOf(want).Elem()
		for i := range a.NumField() {
			if x, y := fmt.Sprintf("%+v", a.Field(i)), fmt.Sprintf("%+v", b.Field(i)); x != y && a.Type().Field(i).Name != "Rules" {
				t.Errorf("%s is %.3000s\nnot %.3000s", a.Type().Field(i).Name, x, y)
			}
		}
		for i := range min(len(got.Rules), len(want.Rules)) {
			if !reflect.DeepEqual(got.Rules[i], want.Rules[i]) {
				t.Errorf("rule %d is %+v\nnot %+v", i, got.Rules[i], want.Rules[i])
			}
		}
		t.Fatalf("another policy than one read from the beginning of\n%s", sources[0].Text)
	}
	if got == nil {
		return nil
	}
	for i := range got.Rules {
		if got.RulePos(i) != want.RulePos(i) {
			t.Fatalf("rule %d is in %+v, not %+v", i, got.RulePos(i), want.RulePos(i))
		}
	}
	return got
}

// sameCompilation compares what a policy compiles to after another with what it does without that.
func sameCompilation(t *testing.T, p *Policy, opts CompileOptions) *Compiled {
	t.Helper()
	got, err := Compile(p, opts)
	opts.After = nil
	want, wantErr := Compile(p, opts)
	if !reflect.DeepEqual(err, wantErr) {
		t.Fatalf("says %v\nnot %v", err, wantErr)
	}
	if got == nil {
		return nil
	}
	x, y := *got, *want
	x.source.sets, y.source.sets = nil, nil // of lists that no rule has any more too
	a, b := reflect.ValueOf(&x).Elem(), reflect.ValueOf(&y).Elem()
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if x, y := reflect.NewAt(a.Field(i).Type(), a.Field(i).Addr().UnsafePointer()).Interface(), reflect.NewAt(b.Field(i).Type(), b.Field(i).Addr().UnsafePointer()).Interface(); !reflect.DeepEqual(x, y) {
			t.Errorf("%s is %.3000s\nnot %.3000s", name, fmt.Sprintf("%+v", x), fmt.Sprintf("%+v", y))
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return got
}

func TestReadingEdits(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	listed := "203.0.113.0/24\n"
	readFile := func(path string) ([]byte, error) { return []byte(listed), nil }
	kept, good := 0, 0
	for round := range 8 {
		var compiled *Compiled
		live := make(map[string]SetChange)
		r := Reading{partSize: 1 + random.IntN(600), longText: maxFile}
		text := readingPolicy(5 + random.IntN(60))
		other := head + "rules:\n" + readingRule("z1", round) + readingRule("z2", round+1)
		for n := range 100 {
			next, nextOther := text, other
			for range 1 + random.IntN(2) {
				next = editText(next, n, random.IntN)
			}
			if random.IntN(20) == 0 {
				nextOther = editText(other, 1000+n, random.IntN)
			}
			if random.IntN(50) == 0 {
				listed += fmt.Sprintf("198.51.%d.0/24\n", random.IntN(256))
			}
			last := r.last
			policy := sameReading(t, &r, []Source{{Name: "p.yaml", Text: []byte(next)}, {Name: "q.yaml", Text: []byte(nextOther)}}, readFile)
			if policy == nil {
				continue // try another edit
			}
			text, other = next, nextOther
			opts := CompileOptions{Now: day.AddDate(0, random.IntN(3), 0), After: compiled}
			if compiled != nil {
				if opts.Previous = compiled.Identities; random.IntN(4) == 0 {
					opts.Previous = opts.Previous.Release(opts.Now, new(Borne))
				}
			}
			if random.IntN(8) == 0 {
				opts.Management = Management{From: []Ref{{Name: "lan"}}, Services: []Ref{{Name: "ssh"}}, Override: random.IntN(2) == 0}
			}
			if random.IntN(8) == 0 {
				live["bad"] = SetChange{Added: []Entry{{Addresses: prefixRange(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 3, byte(n)}), 32))}}}
				live["web"] = SetChange{Added: []Entry{{Ports: flowtable.U16Range{First: uint16(n), Last: uint16(n)}}}}
			}
			if c := sameCompilation(t, policy.WithSets(live), opts); c != nil {
				compiled = c
			}
			if good++; last != nil && r.last != nil && last.loader == r.last.loader {
				kept++
			}
		}
	}
	t.Logf("%d good policies, %d as changes", good, kept)
	if good < 150 || kept < good/3 {
		t.Errorf("of 800 edits %d were good and %d of these read as changes", good, kept)
	}
}

// Changes that edits drawn at random seldom make.
func TestReadingChanges(t *testing.T) {
	const begin, a, b = head + "zones: {lan: {ports: [lan0]}}\nrules:\n", "  - {name: a, from: any, to: any, action: allow}\n", "  - name: b\n    from: any\n    to: lan\n    action: deny\n"
	for _, tt := range []struct {
		name, before, after string
		kept                bool // is read as a change
	}{
		{"the last line goes on", begin + a + b + "    description: x", begin + a + b + "    description: xy", true},
		{"the last line goes on as if it were another", begin + a + b + "    description: x", begin + a + b + "    description: x" + a2(a, "c"), false},
		{"the last line ends", begin + a + strings.TrimSuffix(b, "\n"), begin + a + b, true},
		{"the last line does not end", begin + a + b, begin + a + strings.TrimSuffix(b, "\n"), true},
		{"a key before an item", begin + a + b + a2(a, "c"), begin + a + b + "    log: true\n" + a2(a, "c"), true},
		{"a comment before the first item", begin + a + b, begin + "# first\n" + a + b, false},
		{"a name of before is gone", begin + a + b + "tests:\n- {name: x, packet: {in: lan0, out: lan0, src: 10.0.0.1, dst: 10.0.0.2, service: tcp/1}, expect: {verdict: allow, rule: a}}\n",
			begin + b + "tests:\n- {name: x, packet: {in: lan0, out: lan0, src: 10.0.0.1, dst: 10.0.0.2, service: tcp/1}, expect: {verdict: allow, rule: a}}\n", false},
		{"what stands behind the rules moves", head + "rules:\n" + a + b + "zones:\n  lan: {ports: [lan0]}\n", head + "rules:\n" + a + a2(a, "c") + b + "zones:\n  lan: {ports: [lan0]}\n", false},
		{"tests move", begin + a + b + "tests: []\n", begin + a + a2(a, "c") + b + "tests: []\n", true},
		{"two rules change places", begin + a + b + a2(a, "c"), begin + a2(a, "c") + b + a, true},
		{"all rules go", begin + a + b, begin, false},
		{"an item is cut in two", begin + a + b, begin + a + strings.Replace(b, "    to:", "  -\n    to:", 1), false},
		{"lines end as on Windows", begin + a + b, strings.ReplaceAll(begin+a+b, "\n", "\r\n"), false},
		{"lines of rules end as on Windows", begin + a + b, begin + strings.ReplaceAll(a+b, "\n", "\r\n"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Reading{partSize: 1, longText: maxFile}
			sameReading(t, &r, []Source{{Name: "p.yaml", Text: []byte(tt.before)}}, nil)
			last := r.last
			if last == nil {
				t.Fatal("is not read in parts")
			}
			sameReading(t, &r, []Source{{Name: "p.yaml", Text: []byte(tt.after)}}, nil)
			if kept := r.last != nil && r.last != last && r.last.loader == last.loader; kept != tt.kept {
				t.Errorf("read as a change: %v", kept)
			}
			sameReading(t, &r, []Source{{Name: "p.yaml", Text: []byte(tt.before)}}, nil)
		})
	}
}

func a2(rule, name string) string { return strings.Replace(rule, "name: a", "name: "+name, 1) }

// The policy that a compilation goes by need not be the one whose numbers it takes over.
func TestCompileAfterOthersNumbers(t *testing.T) {
	compile := func(text string) (*Policy, *Compiled) {
		p, err := Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, func(string) ([]byte, error) { return nil, nil })
		if err != nil {
			t.Fatal(err)
		}
		c, err := Compile(p, CompileOptions{Now: day})
		if err != nil {
			t.Fatal(err)
		}
		return p, c
	}
	text := readingPolicy(12)
	p, c := compile(text)
	_, names := compile(strings.NewReplacer("name: r", "name: s", "rule: r", "rule: s").Replace(text))
	_, macs := compile(strings.Replace(text, "02:00:00:00:00:01", "02:00:00:00:00:02", 1))
	_, zones := compile(strings.Replace(text, "  lan: {ports: [lan0]", "  aaa: {ports: [aaa0]}\n  lan: {ports: [lan0]", 1))
	for _, other := range []*Compiled{names, macs, zones} {
		sameCompilation(t, p, CompileOptions{Now: day, After: c, Previous: other.Identities})
	}
}

// FuzzReading makes edits of a policy out of bytes.
func FuzzReading(f *testing.F) {
	f.Add([]byte{3, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add([]byte("what is read again is what is read from the beginning"))
	f.Fuzz(func(t *testing.T, script []byte) {
		draw := func(n int) int {
			if len(script) < 2 {
				script = nil
				return 0
			}
			v := int(script[0])<<8 | int(script[1])
			script = script[2:]
			return v % n
		}
		r := Reading{partSize: 1 + draw(600), longText: maxFile}
		text := readingPolicy(1 + draw(12))
		readFile := func(string) ([]byte, error) { return []byte("203.0.113.0/24\n"), nil }
		var compiled *Compiled
		for n := range 8 {
			next := text
			if n > 0 {
				next = editText(text, n, draw)
			}
			policy := sameReading(t, &r, []Source{{Name: "p.yaml", Text: []byte(next)}}, readFile)
			if policy == nil {
				continue
			}
			text = next
			opts := CompileOptions{Now: day, After: compiled}
			if compiled != nil {
				opts.Previous = compiled.Identities
			}
			if c := sameCompilation(t, policy, opts); c != nil {
				compiled = c
			}
			if len(script) == 0 {
				return
			}
		}
	})
}
