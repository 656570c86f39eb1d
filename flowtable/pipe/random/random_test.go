package random

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/flowtable/pipe"
)

// TestPipelines: what is made is without mistakes, and all there is comes up.
func TestPipelines(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := Pipeline(r, Size{})
		if _, err := p.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if _, err := p.Resolve(Ports); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		note(seen, p)
	}
	for _, kind := range pipe.Kinds() {
		if seen["kind "+string(kind)] < 20 {
			t.Errorf("kind %s comes up %d times", kind, seen["kind "+string(kind)])
		}
	}
	for _, f := range pipe.Fields {
		if seen["field "+f.Name] < 3 {
			t.Errorf("field %s comes up %d times", f.Name, seen["field "+f.Name])
		}
	}
	for _, what := range []string{
		"op set", "op add", "op copy", "op ttl", "op push-vlan", "op pop-vlan", "to pipe", "to port", "to drop", "to host", "to policy",
		"hash", "consistent", "random", "identity", "round-robin", "flood", "mirror", "meter", "counter", "count", "age",
		"range", "condition", "operand", "index from a field", "raw",
	} {
		if seen[what] < 10 {
			t.Errorf("%s comes up %d times", what, seen[what])
		}
	}
}

func note(seen map[string]int, p *pipe.Pipeline) {
	field := func(f *pipe.Field) {
		if f != nil {
			seen["field "+f.Name]++
		}
	}
	action := func(a *pipe.Action) {
		for _, op := range a.Ops {
			seen["op "+string(op.Kind)]++
			if op.FromEntry {
				seen["operand"]++
			}
		}
	}
	monitor := func(m *pipe.Monitor) {
		for what, there := range map[string]bool{"mirror": m.Mirror != "", "meter": m.Meter != "", "counter": m.Counter != "", "count": m.Count, "age": m.Age > 0} {
			if there {
				seen[what]++
			}
		}
	}
	for range p.Raws {
		seen["raw"]++
	}
	for _, q := range p.Pipes {
		seen["kind "+string(q.Kind)]++
		seen[string(q.Algorithm)]++
		monitor(&q.Monitor)
		for i := range q.Actions {
			action(&q.Actions[i])
		}
		for _, f := range forwards(q) {
			seen["to "+string(f.To)]++
			if f.IndexFrom != nil {
				seen["index from a field"]++
			}
		}
		for _, m := range q.Match {
			field(m.Field)
		}
		for _, e := range q.Entries {
			for _, m := range e.Match {
				field(m.Field)
				if m.Last != nil {
					seen["range"]++
				}
			}
			for _, c := range e.Conditions {
				seen["condition"]++
				field(c.Field)
			}
			for i := range e.List {
				action(&e.List[i])
			}
			if e.Monitor != nil {
				monitor(e.Monitor)
			}
		}
	}
}
