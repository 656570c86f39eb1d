package pipe_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

func compiled(t *testing.T, line *pipe.Pipeline, o pipe.Options) *pipe.Program {
	t.Helper()
	line, err := line.Resolve(random.Ports)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipe.Compile(line, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// vlans is a basic pipe of n VLANs whose packets go to a port.
func vlans(n int, fixed bool) *pipe.Pipe {
	f := pipe.LookupField("vlan.0.id")
	p := &pipe.Pipe{Name: "vlans", Kind: pipe.Basic, Fixed: fixed, Match: []pipe.MatchField{{Field: f}}, Forward: &pipe.Forward{To: pipe.ToPort, Name: "lan0"}, Miss: pipe.Forward{To: pipe.ToDrop}}
	for i := range n {
		p.Entries = append(p.Entries, &pipe.Entry{Match: []pipe.Match{{Field: f, Value: pipe.Value{uint32(i)}}}})
	}
	return p
}

func TestForms(t *testing.T) {
	for _, row := range []struct {
		name  string
		pipe  *pipe.Pipe
		form  pipe.Form
		why   string
		limit pipe.Limits
	}{
		{"few that are fixed", vlans(4, true), pipe.InCode, "fixed", pipe.Limits{}},
		{"few that change", vlans(4, false), pipe.InBuckets, "may change", pipe.Limits{}},
		{"many that are fixed", vlans(1000, true), pipe.InBuckets, "a look-up takes less", pipe.Limits{}},
		{"more than fit", vlans(1000, true), pipe.InBuckets, "larger than a program", pipe.Limits{Program: 2000, Always: true}},
	} {
		t.Run(row.name, func(t *testing.T) {
			line := &pipe.Pipeline{Name: "forms", Root: "vlans", BypassesPolicy: true, Pipes: []*pipe.Pipe{row.pipe}}
			p := compiled(t, line, pipe.Options{Limits: row.limit})
			if pl := p.Pipes[0]; pl.Form != row.form || !strings.Contains(pl.Why, row.why) || pl.NS <= 0 || pl.Insns <= 0 {
				t.Errorf("%s, since %q, of %.1f ns and %d instructions", pl.Form, pl.Why, pl.NS, pl.Insns)
			}
			again := compiled(t, line, pipe.Options{Limits: row.limit})
			other := compiled(t, line, pipe.Options{Limits: row.limit, Trace: true})
			if again.Hash != p.Hash || other.Hash == p.Hash {
				t.Error("the hash does not tell what programs do")
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	to := func(name string) *pipe.Forward { return &pipe.Forward{To: pipe.ToPipe, Name: name} }
	control := func(name string, forward *pipe.Forward, monitor pipe.Monitor) *pipe.Pipe {
		return &pipe.Pipe{Name: name, Kind: pipe.Control, Forward: forward, Miss: pipe.Forward{To: pipe.ToDrop}, Monitor: monitor, Entries: []*pipe.Entry{{}}}
	}
	long := pipe.Action{}
	for range 16 {
		long.Ops = append(long.Ops, pipe.Op{Kind: pipe.Add, Field: pipe.LookupField("ipv6.src"), Value: pipe.Value{1, 2, 3, 4}})
	}
	for _, row := range []struct {
		name, want string
		line       pipe.Pipeline
		limits     pipe.Limits
	}{
		{"circle", "circle: b -> c -> b", pipe.Pipeline{Root: "a", Pipes: []*pipe.Pipe{
			control("a", to("b"), pipe.Monitor{}), control("b", to("c"), pipe.Monitor{}), control("c", to("b"), pipe.Monitor{}),
		}}, pipe.Limits{}},
		{"no root", "no root pipe", pipe.Pipeline{Root: "z"}, pipe.Limits{}},
		{"mirrored to the host", "pipe b: packets with mirror m go to the host, to the policy or to a worker, where nothing copies them: forward them to a port, or drop them", pipe.Pipeline{
			Root: "a", Mirrors: []*pipe.Mirror{{Name: "m", Ports: []string{"mon0"}}}, Pipes: []*pipe.Pipe{
				control("a", to("b"), pipe.Monitor{Mirror: "m"}), control("b", &pipe.Forward{To: pipe.ToHost}, pipe.Monitor{}),
			}}, pipe.Limits{}},
		{"actions that do not fit", "more than 256: make lists of actions shorter", pipe.Pipeline{Root: "a", Pipes: []*pipe.Pipe{
			{Name: "a", Kind: pipe.Control, Forward: &pipe.Forward{To: pipe.ToDrop}, Miss: pipe.Forward{To: pipe.ToDrop}, Actions: []pipe.Action{long}, Entries: []*pipe.Entry{{}}},
		}}, pipe.Limits{Function: 256}},
	} {
		t.Run(row.name, func(t *testing.T) {
			line, err := row.line.Resolve(random.Ports)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pipe.Compile(line, pipe.Options{Limits: row.limits}); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
}

// A mirror's group of ports holds the port that the packet goes to as well.
func TestMirrorsShareGroups(t *testing.T) {
	p := vlans(3, true)
	p.Monitor.Mirror = "m"
	p.Entries[2].Forward = &pipe.Forward{To: pipe.ToDrop}
	program := compiled(t, &pipe.Pipeline{
		Name: "mirrors", Root: "vlans", BypassesPolicy: true, Pipes: []*pipe.Pipe{p},
		Mirrors: []*pipe.Mirror{{Name: "m", Ports: []string{"mon0", "wan0"}}},
	}, pipe.Options{})
	for i, want := range [][]uint32{{1, 3, 5}, {1, 3, 5}, {3, 5}} {
		f := bpf.PipesPipeFields{}
		f.Word[bpf.PipesPipeWordPIPE_HAS] = uint32(bpf.PipesPipeHasPIPE_HAS_VLAN0)
		f.Word[bpf.PipesPipeWordPIPE_VLAN0ID] = uint32(i)
		forward, _ := program.Run(&f)
		if kind := forward >> bpf.PipesPipeForwardPIPE_FORWARD_SHIFT; kind != uint32(bpf.PipesPipeForwardPIPE_TO_PORTS) {
			t.Fatalf("VLAN %d: answer %#x, want a group of ports", i, forward)
		}
		if got := program.Groups[forward&uint32(bpf.PipesPipeForwardPIPE_FORWARD_MASK)]; !slices.Equal(got, want) {
			t.Errorf("VLAN %d goes to ports %v, want %v", i, got, want)
		}
	}
}

// What a later entry needs and the program has no instructions for is told, and nothing else.
func TestRecordsOfLaterEntries(t *testing.T) {
	second := vlans(1, false)
	second.Name = "second"
	first := vlans(2, false)
	program := compiled(t, &pipe.Pipeline{
		Name: "later", Root: "vlans", BypassesPolicy: true, Pipes: []*pipe.Pipe{first, second},
		Counters: []string{"c"}, Meters: []*pipe.Meter{{Name: "m", Type: "rfc2697"}},
	}, pipe.Options{})
	if _, err := program.Record(0, &pipe.Entry{}); err != nil {
		t.Errorf("error %v of an entry like those before", err)
	}
	for _, e := range []*pipe.Entry{
		{Monitor: &pipe.Monitor{Count: true}}, {Monitor: &pipe.Monitor{Counter: "c"}}, {Monitor: &pipe.Monitor{Meter: "m"}},
		{Forward: &pipe.Forward{To: pipe.ToDrop}}, {Forward: &pipe.Forward{To: pipe.ToPipe, Name: "second"}},
	} {
		if _, err := program.Record(0, e); !errors.Is(err, pipe.ErrRebuild) {
			t.Errorf("error %v of entry %+v, want ErrRebuild", err, e)
		}
	}
}

// The kernel loads the kernel's part of pipelines that trace, and of those with every kind of pipe that are large.
func TestTraced(t *testing.T) {
	needsRoot(t)
	r := rand.New(rand.NewPCG(3, 3))
	line := random.Pipeline(r, random.Size{Pipes: 30, Entries: 30})
	three := newThree(t, line, pipe.Options{Trace: true}, true)
	three.agree(t, random.Packets(r, three.line))
	walks := three.kernel.maps[bpf.PipesMapPipeWalks]
	var perCPU []bpf.PipesPipeTrace
	if err := walks.Lookup(uint32(0), &perCPU); err != nil {
		t.Fatal(err)
	}
	steps := uint32(0)
	for i := range perCPU {
		steps += perCPU[i].Steps
	}
	if steps == 0 {
		t.Error("a program that traces has told of no pipe")
	}
}
