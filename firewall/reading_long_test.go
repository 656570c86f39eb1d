package firewall

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// manyRules is a policy of rules of a line each.
func manyRules(n int) string {
	var b strings.Builder
	b.WriteString(head + "rules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: r%d, from: {addresses: [10.%d.%d.0/24]}, to: {addresses: [192.0.2.%d]}, service: tcp/%d, action: allow}\n",
			i, i>>8%256, i%256, i%256, 1+i%65000)
	}
	return b.String()
}

// What a person does not notice of a short policy decides about a long one: a rule of many that is changed is neither read
// nor compiled with all others.
func TestReadingIsQuick(t *testing.T) {
	const rules = 20_000
	text := manyRules(rules)
	var all, one time.Duration
	var r Reading
	c := new(Compiled)
	for n := range 8 {
		if n == 4 {
			all, one = one, 0
		}
		opts := CompileOptions{}
		if n < 4 {
			r = Reading{}
		} else {
			text = strings.Replace(text, fmt.Sprintf("name: r%d,", n*4000%rules), fmt.Sprintf("name: other%d,", n), 1)
			opts = CompileOptions{Previous: c.Identities, After: c}
		}
		start := time.Now()
		p, err := r.Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
		if err == nil {
			c, err = Compile(p, opts)
		}
		took := time.Since(start)
		if err != nil || len(c.Entries) != rules+4 {
			t.Fatalf("%v, %d entries", err, len(c.Entries))
		}
		if one == 0 || took < one {
			one = took
		}
	}
	if t.Logf("all rules take %v, one of them %v", all, one); one > all/5 {
		t.Errorf("all rules take %v, one of them %v", all, one)
	}
}

// Mistakes in a long policy are told of as in a short one, but for what would take reading it as a whole.
func TestReadingMistakesOfALongText(t *testing.T) {
	text := manyRules(30_000)
	var r Reading
	if _, err := r.Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ old, new, want string }{
		{"name: r20000,", "nome: r20000,", `p.yaml:20004:6: unknown key "nome" in a rule`},
		{"{name: r20000,", "{name: r1,", "= first in p.yaml:5:12"},
		{"{name: r20000,", "{name: r20000, name: x,", "= the first stands in line 20004"},
		{"tcp/20001, action: allow}", "tcp/20001, action: allow", "p.yaml:20005:3: not YAML"},
		{"tcp/20001, action: allow}", "tcp/20001, action: \"allow}", "not YAML"},
		{"{name: r20000, from: {", "{name: r20000, from: ", "p.yaml:20004:37: not YAML: ',' or '}' must be specified"},
	} {
		_, err := r.Parse([]Source{{Name: "p.yaml", Text: []byte(strings.Replace(text, tt.old, tt.new, 1))}}, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s says %.500v", tt.new, err)
		}
	}
	// Quotes that reach over the items of a list are none of it, however it looks.
	quoted := strings.Replace(text, "tcp/20001, action: allow}", "tcp/20001, action: allow, owner: \"\n  - {x\n  - y\"}", 1)
	if p, err := Parse([]Source{{Name: "p.yaml", Text: []byte(quoted)}}, nil); err != nil || p.Rules[20_000].Owner != " - {x - y" {
		t.Errorf("says %.500v", err)
	}
}

// What has been read again and again keeps no text that no policy has any more.
func TestReadingKeepsNoOldText(t *testing.T) {
	var b strings.Builder
	b.WriteString(head + "rules:\n")
	const rules = 50
	for i := range rules {
		fmt.Fprintf(&b, "  # %s\n  - {name: r%d, from: any, to: any, service: tcp/%d, action: allow}\n", strings.Repeat("x", 50<<10), i, 1+i)
	}
	text := b.String()
	var r Reading
	var kept *Policy
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := uint64(0)
	for i := range rules {
		text = strings.Replace(text, fmt.Sprintf("name: r%d,", i), fmt.Sprintf("name: new%d,", i), 1)
		p, err := r.Parse([]Source{{Name: "p.yaml", Text: []byte(text)}}, nil)
		if err != nil || r.last == nil {
			t.Fatal(err)
		}
		if kept = p; i == 0 {
			before = held()
		}
	}
	if after := held(); after > before+1<<20 {
		t.Errorf("%d bytes are held after the first of many changes, %d after the last", before, after)
	}
	runtime.KeepAlive(text)
	runtime.KeepAlive(&r)
	if kept.Rules[0].Name != "new0" || kept.Rules[rules-1].Name != "new49" {
		t.Errorf("rules are %s and %s", kept.Rules[0].Name, kept.Rules[rules-1].Name)
	}
}

// BenchmarkReadingEdit reads and compiles a policy of 100,000 rules after one of them has changed: in turn one comes, goes,
// moves, and gets another action.
func BenchmarkReadingEdit(b *testing.B) {
	lines := strings.SplitAfter(manyRules(100_000), "\n")
	first := strings.Count(head, "\n") + 1
	random := rand.New(rand.NewPCG(1, 2))
	var r Reading
	var c *Compiled
	var parse, compile []time.Duration
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		i, j := first+random.IntN(len(lines)-first-1), first+random.IntN(len(lines)-first-1)
		switch n % 4 {
		case 0:
			lines = slices.Insert(lines, i, strings.Replace(lines[j], "name: ", fmt.Sprintf("name: new%d-", n), 1))
		case 1:
			lines = slices.Delete(lines, i, i+1)
		case 2:
			line := lines[i]
			lines = slices.Insert(slices.Delete(lines, i, i+1), j, line)
		case 3:
			lines[i] = strings.Replace(lines[i], "action: allow", "action: deny", 1)
		}
		text := []byte(strings.Join(lines, ""))
		opts := CompileOptions{After: c}
		if c != nil {
			opts.Previous = c.Identities
		}
		b.StartTimer()
		start := time.Now()
		p, err := r.Parse([]Source{{Name: "p.yaml", Text: text}}, nil)
		if err != nil {
			b.Fatal(err)
		}
		read := time.Now()
		if c, err = Compile(p, opts); err != nil {
			b.Fatal(err)
		}
		if n > 0 { // the first reads all
			parse, compile = append(parse, read.Sub(start)), append(compile, time.Since(read))
		}
	}
	for _, of := range []struct {
		what  string
		times []time.Duration
	}{{"parse", parse}, {"compile", compile}} {
		if slices.Sort(of.times); len(of.times) > 0 {
			b.ReportMetric(float64(of.times[len(of.times)/2].Microseconds())/1e3, "ms/"+of.what+"-p50")
			b.ReportMetric(float64(of.times[len(of.times)*99/100].Microseconds())/1e3, "ms/"+of.what+"-p99")
		}
	}
}
