package pipe_test

import (
	"maps"
	"strings"
	"testing"

	. "github.com/softdpu/softdpu/flowtable/pipe"
)

func TestResolve(t *testing.T) {
	p := reach(everything())
	p.Pipes[rules].Entries[0].Match = append(p.Pipes[rules].Entries[0].Match, Match{Field: field("port"), Port: "lan1"})
	got, err := p.Resolve(map[string]uint32{"lan0": 1, "lan1": 2, "wan0": 3, "wan1": 4, "mon0": 5, "mon1": 6, "other": 7})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]uint32{"lan0": 1, "lan1": 2, "wan0": 3, "wan1": 4, "mon0": 5, "mon1": 6}; !maps.Equal(got.Ports, want) {
		t.Errorf("ports are %v", got.Ports)
	}
	if m := got.Pipes[rules].Entries[0].Match[2]; m.Port != "" || len(m.Value) != 1 || m.Value[0] != 2 {
		t.Errorf("match is %+v", m)
	}
	if m := p.Pipes[rules].Entries[0].Match[2]; m.Port != "lan1" || m.Value != nil {
		t.Errorf("the pipeline itself has changed: %+v", m)
	}
	if _, err := got.Check(); err != nil {
		t.Error(err)
	}
}

func TestResolveTellsOfUnknownPorts(t *testing.T) {
	p := reach(everything())
	p.Pipes[rules].Entries[0].Match = append(p.Pipes[rules].Entries[0].Match, Match{Field: field("port"), Port: "lan7"})
	_, err := p.Resolve(map[string]uint32{"lan0": 1, "lan1": 2, "wan0": 3, "mon0": 5})
	if err == nil {
		t.Fatal("it takes them")
	}
	for _, want := range []string{
		`pipe "rules", entry "probe", field port: the gateway has no port "lan7"`, `did you mean "lan0"?`,
		`pipe "spread", entry 1: the gateway has no port "wan1"`, `mirror "tap": the gateway has no port "mon1"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %s but\n%v", want, err)
		}
	}
}
