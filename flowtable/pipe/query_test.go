package pipe_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
	. "github.com/softdpu/softdpu/flowtable/pipe"
)

// queried has pipes hosts (0), rules (1), routes (2), spread (3).
func queried() *Pipeline {
	prefix := func(text string) *Entry {
		return &Entry{Prefix: netip.MustParsePrefix(text), Match: []Match{is("vlan.0.id", 1)}}
	}
	return &Pipeline{Name: "queried", Root: "hosts", BypassesPolicy: true, Pipes: []*Pipe{
		{Name: "hosts", Kind: Basic, Match: []MatchField{{Field: field("port")}, {Field: field("ip.dscp"), Mask: Value{0x38}}}, Size: 10,
			Monitor: Monitor{Age: 10 * time.Second}, Forward: toPipe("rules"), Miss: *to(ToDrop), Entries: []*Entry{
				{Name: "a", Match: []Match{{Field: field("port"), Port: "lan0"}, is("ip.dscp", 0x28)}},
				{Name: "b", Match: []Match{{Field: field("port"), Port: "wan0"}, is("ip.dscp", 0x28)}},
			}},
		{Name: "rules", Kind: Control, Miss: *toPipe("routes"), Forward: to(ToDrop), Entries: []*Entry{
			{Name: "web", Match: []Match{within("l4.dport", "80-90"), is("ip.proto", 6)}},
			{Name: "ten", Match: []Match{within("ipv4.src", "10.0.0.0/8")}},
			{Match: []Match{is("ip.proto", 6)}},
		}},
		{Name: "routes", Kind: LPM, Match: []MatchField{{Field: field("ipv4.dst")}, {Field: field("vlan.0.id")}}, Forward: toPipe("spread"), Miss: *to(ToDrop),
			Entries: []*Entry{prefix("10.0.0.0/8"), prefix("10.0.0.0/9")}},
		{Name: "spread", Kind: Hash, Algorithm: ByHash, Size: 2, Match: []MatchField{{Field: field("ipv4.src")}}, Miss: *to(ToDrop), Forward: to(ToDrop),
			Entries: []*Entry{{Index: 1}, {Index: 0}}},
	}}
}

var queriedPorts = map[string]uint32{"lan0": 1, "wan0": 2, "wan1": 3}

func compiledQueried(t *testing.T, line *Pipeline) *Program {
	t.Helper()
	if _, err := line.Check(); err != nil {
		t.Fatal(err)
	}
	resolved, err := line.Resolve(queriedPorts)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := Compile(resolved, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

func TestFind(t *testing.T) {
	line := queried()
	prog := compiledQueried(t, line)
	for _, tt := range []struct {
		pipe  string
		name  string
		match string
		want  string // numbers, or what is wrong
	}{
		{"hosts", "", "", "[0 1]"},
		{"hosts", "b", "", "[1]"},
		{"hosts", "c", "", "[]"},
		{"hosts", "", "port=wan0 ip.dscp=0x28", "[1]"},
		{"hosts", "", "ip.dscp=0x28/0x38 port=wan0", "[1]"},
		{"hosts", "a", "port=wan0 ip.dscp=0x28", "[]"},
		{"hosts", "", "port=wan1 ip.dscp=0x28", "[]"},
		{"hosts", "", "ip.dscp=0x28", "[0 1]"},
		{"hosts", "", "port=wan7", `the gateway has no port "wan7"`},
		{"hosts", "", "prot=wan0", `"prot=wan0" does not ask for a field`},
		{"hosts", "", "port", `does not ask for a field`},
		{"rules", "", "l4.dport=80-90", "[0]"},
		{"rules", "", "l4.dport=80", "[]"},
		{"rules", "", "l4.dport=nine", "field l4.dport: "},
		{"rules", "", "ip.proto=tcp", "[0 2]"},
		{"rules", "", "ipv4.src=10.0.0.0/8", "[1]"},
		{"rules", "", "ipv4.src=10.0.0.0/9", "[]"},
		{"routes", "", "ipv4.dst=10.0.0.0/9", "[1]"},
		{"routes", "", "vlan.0.id=1", "[0 1]"},
		{"routes", "", "ipv4.dst=10.0.0.0/9 vlan.0.id=2", "[]"},
		{"spread", "", "index=0", "[1]"},
		{"spread", "", "index=x", `"x" is no index`},
	} {
		number := line.Number(tt.pipe)
		q, err := line.ParseQuery(tt.name, strings.Fields(tt.match), queriedPorts)
		if err != nil {
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%+v: %v", tt, err)
			}
			continue
		}
		found, next := prog.Find(number, q, 0, 100, 100)
		if got := fmt.Sprint(found); got != tt.want || next != -1 {
			t.Errorf("%+v: %s, then %d", tt, got, next)
		}
	}
	// In parts.
	var all []int
	for from, rounds := 0, 0; from >= 0; rounds++ {
		found, next := prog.Find(1, Query{Index: -1}, from, 2, 1)
		all = append(all, found...)
		if from = next; rounds > 3 || len(found) > 1 {
			t.Fatalf("found %v, then %d", found, next)
		}
	}
	if !slices.Equal(all, []int{0, 1, 2}) {
		t.Errorf("in parts there are %v", all)
	}
}

// An entry ages from when it is there, or was used, on; another program that has it too goes on with its time.
func TestAgesFromTheBeginning(t *testing.T) {
	tick := uint32(1 << 20)
	clock := func() uint32 { return tick }
	second := flowtable.Ticks(time.Second)
	old := func(p *Program) (names []string) {
		if !p.Ages(0) || p.Ages(1) {
			t.Fatal("another pipe ages")
		}
		for from := uint32(0); from < p.Span(0); from += 3 {
			p.Aged(0, from, from+3, tick, 2, func(places []uint32) {
				for _, place := range places {
					number, _ := p.At(place)
					names = append(names, p.Pipeline.Pipes[0].Entries[number].Name)
				}
			})
		}
		slices.Sort(names)
		return names
	}
	wants := func(p *Program, want ...string) {
		t.Helper()
		if got := old(p); !slices.Equal(got, want) {
			t.Errorf("old are %v, want %v", got, want)
		}
	}
	line := queried()
	first := compiledQueried(t, line)
	first.Begin(nil, clock)
	wants(first)
	tick += 9 * second
	wants(first)
	packet := bpf.PipesPipeFields{}
	packet.Word[bpf.PipesPipeWordPIPE_PORT] = 1
	packet.Word[bpf.PipesPipeWordPIPE_IP_DSCP] = 0x28
	packet.Word[bpf.PipesPipeWordPIPE_HAS] = uint32(bpf.PipesPipeHasPIPE_HAS_IP)
	packet.Word[bpf.PipesPipeWordPIPE_TICK] = tick
	first.Run(&packet)
	added := &Entry{Name: "c", Match: []Match{{Field: field("port"), Value: Value{3}}, is("ip.dscp", 0x28)}}
	if done, err := first.Edit(0, []Edit{{InsertEntry, added}}); err != nil || done[0].Err != nil {
		t.Fatal(done, err)
	}
	tick += 2 * second
	wants(first, "b")
	if age, unused, ok := first.Unused(0, 1, tick); !ok || age != 10*time.Second || unused.Round(100*time.Millisecond) != 11*time.Second {
		t.Errorf("ages %v after %s, unused for %s", ok, age, unused)
	}
	if r := first.Counted(0, 0); r.Name != "a" || *r.Packets != 1 {
		t.Errorf("counted is %+v", r)
	}

	next, _ := line.Edit(0, []Edit{{InsertEntry, added}, {InsertEntry, &Entry{Name: "d", Match: []Match{{Field: field("port"), Port: "lan0"}, is("ip.dscp", 8)}}}})
	other := compiledQueried(t, next)
	other.Begin(first, clock)
	other.Adopt(first)
	wants(other, "b")
	tick += 9 * second
	wants(other, "a", "b", "c")
	tick += 2 * second
	wants(other, "a", "b", "c", "d")
	if r := other.Counted(0, 0); *r.Packets != 1 {
		t.Errorf("another program counts %d", *r.Packets)
	}
	// A start knows nothing of how long it was unused before.
	third := compiledQueried(t, next)
	third.Begin(nil, clock)
	wants(third)
}

// Entries come into a basic pipe as fast as they are to.
func TestEditRate(t *testing.T) {
	if os.Getenv("SOFTDPU_LONG") == "" {
		t.Skip("SOFTDPU_LONG is not set: rates on a busy machine say little")
	}
	const n, part = 1_000_000, 10_000
	prog := compiledQueried(t, &Pipeline{Name: "rate", Root: "a", Pipes: []*Pipe{
		{Name: "a", Kind: Basic, Size: n, Match: []MatchField{{Field: field("ipv4.src")}}, Forward: to(ToPolicy), Miss: *to(ToPolicy), Monitor: Monitor{Count: true}},
	}})
	entries := make([]*Entry, n)
	for i := range entries {
		entries[i] = &Entry{Match: []Match{is("ipv4.src", uint32(i)*2654435761)}}
	}
	for _, change := range []Change{InsertEntry, UpdateEntry, RemoveEntry} {
		began := time.Now()
		for from := 0; from < n; from += part {
			batch := make([]Edit, part)
			for i := range batch {
				batch[i] = Edit{change, entries[from+i]}
			}
			done, err := prog.Edit(0, batch)
			if err != nil || slices.ContainsFunc(done, func(e Edited) bool { return e.Err != nil }) {
				t.Fatalf("change %d: %v", change, err)
			}
		}
		rate := n / time.Since(began).Seconds()
		t.Logf("change %d: %.0f entries a second", change, rate)
		if change == InsertEntry && rate < 300_000 {
			t.Errorf("%.0f entries a second come in, fewer than 300,000", rate)
		}
	}
}
