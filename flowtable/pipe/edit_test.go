package pipe_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

// naive are the entries of a pipe as a list, which changes are made to one after the other.
type naive struct {
	pipe    *Pipe
	most    int
	entries []*Entry
}

// sameKey tells whether two entries are one to a person: they cannot both be in the pipe.
func (n *naive) sameKey(a, b *Entry) bool {
	switch n.pipe.Kind {
	case Hash, OrderedList:
		return a.Index == b.Index
	case Control, ACL:
		if a.Name != "" || b.Name != "" {
			return a.Name == b.Name
		}
		if a.Priority != b.Priority || fmt.Sprint(a.Conditions) != fmt.Sprint(b.Conditions) {
			return false
		}
	}
	text := func(e *Entry) (text string) {
		for i := range e.Match {
			text += e.Match[i].Field.Name + "=" + e.Match[i].Text() + " "
		}
		return text + e.Prefix.String()
	}
	return text(a) == text(b)
}

func (n *naive) edit(c Change, e *Entry) (wants []error) {
	at := slices.IndexFunc(n.entries, func(o *Entry) bool { return n.sameKey(o, e) })
	if c == RemoveEntry && len(e.Match) == 0 && !e.Prefix.IsValid() && e.Name != "" && n.pipe.Kind != Hash && n.pipe.Kind != OrderedList {
		at = slices.IndexFunc(n.entries, func(o *Entry) bool { return o.Name == e.Name })
	}
	named := -1
	if e.Name != "" {
		named = slices.IndexFunc(n.entries, func(o *Entry) bool { return o.Name == e.Name })
	}
	switch {
	case c != InsertEntry && at < 0:
		return []error{ErrNotFound}
	case c == RemoveEntry:
		n.entries = slices.Delete(n.entries, at, at+1)
		return nil
	case c == InsertEntry && at >= 0:
		return []error{ErrDuplicate, ErrName}
	case named >= 0 && named != at:
		return []error{ErrName}
	case c == UpdateEntry:
		n.entries[at] = e
		return nil
	case len(n.entries) >= n.most:
		return []error{ErrFull}
	}
	n.entries = append(n.entries, e)
	return nil
}

// edits is a pipeline that changes as a gateway's does.
type edits struct {
	options Options
	model   *Pipeline // resolved, as it is kept
	program *Program
	rebuilt int
	tick    uint32
}

func (e *edits) clock() uint32 { return e.tick }

// apply makes the changes, in place if that can be; not ok: they ask what pipes cannot do, and nothing is changed.
func (e *edits) apply(t *testing.T, number int, batch []Edit) (done []Edited, ok bool) {
	t.Helper()
	for i, err := range e.model.CheckEdits(number, batch) {
		if err != nil {
			t.Fatalf("edit %d: %v", i, err)
		}
	}
	e.tick++
	_, ports, errs := e.model.ResolveEdits(number, batch, random.Ports)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	e.program.Pipeline.UsePorts(ports)
	done, err := e.program.Edit(number, batch)
	if err == nil {
		e.model.Pipes[number].Follow(batch, done)
		return done, true
	}
	if !errors.Is(err, ErrRebuild) {
		t.Fatal(err)
	}
	next, done := e.model.Edit(number, batch)
	if _, err := next.Check(); err != nil {
		return nil, false
	}
	resolved, err := next.Resolve(random.Ports)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := Compile(resolved, e.options)
	if err != nil {
		t.Fatalf("%v: %v", number, err)
	}
	prog.Begin(e.program, e.clock)
	prog.Adopt(e.program)
	e.model, e.program, e.rebuilt = next, prog, e.rebuilt+1
	return done, true
}

// Random batches of changes, to pipes of all kinds: each is answered as a plain list answers it, and packets then go as
// the oracle says that they go through the entries of that list, in Go and in the kernel.
func TestEditsAgainstList(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("seed %d", seed)
	rounds := 30
	if os.Getenv("SOFTDPU_LONG") != "" {
		rounds = 3000
	}
	inPlace, rebuilt, refused, hits := map[Kind]int{}, map[Kind]int{}, 0, 0
	wanted := map[error]int{}
	for i := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		line := random.Pipeline(r, random.Size{Pipes: 4, Entries: 40, Algorithms: []Algorithm{ByHash, Consistent, Random, Identity, Flood}}) // turns begin anew with a world
		for _, p := range line.Pipes {
			p.Monitor.Meter = "" // of which programs that take turns have their own
			for _, e := range p.Entries {
				if e.Monitor != nil {
					e.Monitor.Meter = ""
				}
			}
		}
		line, err := line.Resolve(random.Ports)
		if err != nil {
			t.Fatal(err)
		}
		start := *line
		start.Pipes = slices.Clone(line.Pipes)
		var lists []*naive
		for n, p := range line.Pipes {
			begin := *p
			list := &naive{pipe: &begin, most: MaxEntries}
			for _, e := range p.Entries {
				if p.Kind != Hash && r.IntN(2) == 0 || slices.ContainsFunc(list.entries, func(o *Entry) bool { return list.sameKey(o, e) }) {
					continue
				}
				list.entries = append(list.entries, e)
			}
			if p.Kind != Hash && p.Kind != CT {
				switch size := len(list.entries) + r.IntN(12); {
				case r.IntN(3) == 0 && !p.Fixed && p.Kind != OrderedList:
					begin.Size, begin.Resizable = r.IntN(2)*size, true
				case size > 0:
					begin.Size, list.most = size, size
				case !p.Fixed && (p.Kind == Basic || p.Kind == LPM):
					list.most = 1
				}
			}
			begin.Entries = slices.Clone(list.entries)
			start.Pipes[n] = &begin
			lists = append(lists, list)
		}
		if _, err := start.Check(); err != nil {
			continue
		}
		e := &edits{options: Options{Seed: r.Uint64(), SpreadSeed: r.Uint64()}, model: &start}
		resolved, err := start.Resolve(random.Ports)
		if err != nil {
			t.Fatal(err)
		}
		if e.program, err = Compile(resolved, e.options); err != nil {
			t.Fatal(err)
		}
		e.program.Begin(nil, e.clock)
		for round := range 8 {
			n := r.IntN(len(lists))
			pool, list := line.Pipes[n].Entries, lists[n]
			if len(pool) == 0 {
				continue
			}
			var batch []Edit
			for range 1 + r.IntN(12) {
				entry := *pool[r.IntN(len(pool))]
				change := Change(r.IntN(3))
				if other := pool[r.IntN(len(pool))]; change == UpdateEntry && r.IntN(2) == 0 && other.Forward != nil {
					entry.Forward, entry.Monitor = other.Forward, other.Monitor
				}
				if r.IntN(6) == 0 {
					entry.Name = pool[r.IntN(len(pool))].Name
				}
				if change == RemoveEntry && entry.Name != "" && r.IntN(2) == 0 && list.pipe.Kind != Hash && list.pipe.Kind != OrderedList {
					entry = Entry{Name: entry.Name}
				}
				one := []Edit{{change, &entry}}
				if start.CheckEdits(n, one)[0] == nil {
					batch = append(batch, one...)
				}
			}
			if len(batch) == 0 {
				continue
			}
			before, made := slices.Clone(list.entries), e.rebuilt
			var wants [][]error
			for _, edit := range batch {
				wants = append(wants, list.edit(edit.Change, edit.Entry))
			}
			done, ok := e.apply(t, n, batch)
			if !ok {
				list.entries = before
				refused++
				continue
			}
			if e.rebuilt > made {
				rebuilt[list.pipe.Kind]++
			} else {
				inPlace[list.pipe.Kind]++
			}
			for k := range batch {
				if got := done[k].Err; len(wants[k]) == 0 && got != nil || len(wants[k]) > 0 && !slices.Contains(wants[k], got) {
					t.Fatalf("round %d of %d, pipe %s of kind %s: edit %d, %d %+v: %v, want %v", round, i, list.pipe.Name, list.pipe.Kind, k, batch[k].Change, batch[k].Entry, got, wants[k])
				}
				wanted[done[k].Err]++
			}
			e.agree(t, r, line, lists, round == 7 && i%3 == 0, &hits)
		}
	}
	t.Logf("in place %v, by another program %v, refused %d, hits %d, answers %v", inPlace, rebuilt, refused, hits, wanted)
	for _, kind := range []Kind{Basic, LPM} {
		if inPlace[kind] == 0 {
			t.Errorf("nothing was changed in place in a pipeline with a pipe of kind %s", kind)
		}
	}
	for _, err := range []error{nil, ErrDuplicate, ErrNotFound, ErrFull, ErrName} {
		if wanted[err] == 0 {
			t.Errorf("nothing was answered by %v", err)
		}
	}
	if hits == 0 {
		t.Error("no packet found an entry")
	}
}

// agree holds what the pipes are now against the lists, and packets against the oracle.
func (e *edits) agree(t *testing.T, r *rand.Rand, line *Pipeline, lists []*naive, inKernel bool, hits *int) {
	t.Helper()
	want := *e.program.Pipeline
	want.Pipes = nil
	for n, list := range lists {
		compiled := *e.program.Pipeline.Pipes[n]
		kept := e.model.Pipes[n].Entries
		if !slices.Equal(compiled.Entries, kept) || len(compiled.Entries) != len(list.entries) {
			t.Fatalf("pipe %s of kind %s has %d entries, the model %d, the list %d", compiled.Name, compiled.Kind, len(compiled.Entries), len(kept), len(list.entries))
		}
		switch compiled.Kind {
		case Control, ACL:
			if !slices.Equal(compiled.Entries, list.entries) {
				t.Fatalf("pipe %s of kind %s has its entries in another order", compiled.Name, compiled.Kind)
			}
		default:
			for _, entry := range list.entries {
				if !slices.Contains(compiled.Entries, entry) {
					t.Fatalf("pipe %s of kind %s has no entry %+v", compiled.Name, compiled.Kind, entry)
				}
			}
		}
		compiled.Entries = slices.Clone(compiled.Entries)
		want.Pipes = append(want.Pipes, &compiled)
	}
	three := threeOf(&want, e.program, e.options)
	if inKernel && os.Geteuid() == 0 {
		three.kernel = newKernel(t, e.program, e.options, true)
	}
	three.walks(t, random.Packets(r, line))
	*hits += three.hits
}

// What is done in memory, and what only another program can do.
func TestEditInPlace(t *testing.T) {
	port := func(name string) Match { return Match{Field: field("port"), Value: Value{queriedPorts[name]}} }
	host := func(name, on string, forward *Forward) *Entry {
		return &Entry{Name: name, Match: []Match{port(on), is("ip.dscp", 0x28)}, Forward: forward}
	}
	route := func(text string, forward *Forward) *Entry {
		return &Entry{Prefix: netip.MustParsePrefix(text), Match: []Match{is("vlan.0.id", 1)}, Forward: forward}
	}
	for _, tt := range []struct {
		name   string
		pipe   int
		edit   Edit
		change func(*Pipeline)
		want   string // "" in place, else a part of why not
	}{
		{name: "an entry", edit: Edit{InsertEntry, host("c", "wan1", nil)}},
		{name: "a name alone", edit: Edit{RemoveEntry, &Entry{Name: "a"}}},
		{name: "a forward that no entry had", edit: Edit{UpdateEntry, host("a", "lan0", to(ToHost))}, want: "forwards otherwise"},
		{name: "a forward that no entry had, where each says its own", edit: Edit{UpdateEntry, host("a", "lan0", to(ToHost))}, change: func(p *Pipeline) {
			p.Pipes[0].Entries[1].Forward = to(ToDrop)
		}},
		{name: "a pipe that no entry led to", edit: Edit{UpdateEntry, host("a", "lan0", toPipe("routes"))}, want: "no entry of pipe hosts led to routes", change: func(p *Pipeline) {
			p.Pipes[0].Entries[1].Forward = to(ToDrop)
		}},
		{name: "a monitor that no entry had", edit: Edit{InsertEntry, &Entry{Match: []Match{port("wan1"), is("ip.dscp", 0x28)}, Monitor: &Monitor{}}}, want: "monitors otherwise"},
		{name: "fixed", edit: Edit{InsertEntry, host("c", "wan1", nil)}, want: "has become", change: func(p *Pipeline) { p.Pipes[0].Fixed = true }},
		{name: "beyond its room", edit: Edit{InsertEntry, host("c", "wan1", nil)}, want: "has room for 2 entries", change: func(p *Pipeline) { p.Pipes[0].Size, p.Pipes[0].Resizable = 2, true }},
		{name: "control", pipe: 1, edit: Edit{RemoveEntry, &Entry{Name: "web"}}, want: "has become"},
		{name: "a prefix", pipe: 2, edit: Edit{InsertEntry, route("0.0.0.0/0", nil)}, change: func(p *Pipeline) { p.Pipes[2].Size = 3 }},
		{name: "the only prefix", pipe: 2, edit: Edit{UpdateEntry, route("0.0.0.0/0", nil)}, change: func(p *Pipeline) { p.Pipes[2].Entries = []*Entry{route("0.0.0.0/0", nil)} }},
		{name: "another forward of a hash", pipe: 3, edit: Edit{UpdateEntry, &Entry{Index: 1, Forward: to(ToPolicy)}}, change: func(p *Pipeline) {
			p.Pipes[3].Entries[0].Forward = to(ToHost)
		}},
		{name: "more than the forward of a hash", pipe: 3, edit: Edit{UpdateEntry, &Entry{Index: 1, Monitor: &Monitor{Count: true}}}, want: "more than the forward", change: func(p *Pipeline) {
			p.Pipes[3].Entries[1].Monitor = &Monitor{Count: true}
		}},
		{name: "an index of a hash", pipe: 3, edit: Edit{RemoveEntry, &Entry{Index: 1}}, want: "chosen by number"},
		{name: "the weight of a consistent hash", pipe: 3, edit: Edit{UpdateEntry, &Entry{Index: 1, Weight: 2}}, want: "more than the forward", change: func(p *Pipeline) { p.Pipes[3].Algorithm = Consistent }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			line := queried()
			if tt.change != nil {
				tt.change(line)
			}
			prog := compiledQueried(t, line)
			done, err := prog.Edit(tt.pipe, []Edit{tt.edit})
			if tt.want != "" {
				if !errors.Is(err, ErrRebuild) || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("%v, want %q", err, tt.want)
				}
				next, done := prog.Pipeline.Edit(tt.pipe, []Edit{tt.edit})
				if done[0].Err != nil || slices.Equal(next.Pipes[tt.pipe].Entries, prog.Pipeline.Pipes[tt.pipe].Entries) {
					t.Errorf("the model has %+v", done)
				}
				return
			}
			if err != nil || done[0].Err != nil {
				t.Fatalf("%v, %+v", err, done)
			}
			for i, e := range prog.Pipeline.Pipes[tt.pipe].Entries {
				place := prog.Pipes[tt.pipe].Places[i]
				r, err := prog.Record(tt.pipe, e)
				if number, _ := prog.At(place); err != nil || number != i || prog.Memory.Entries[place].Forward != r.Forward {
					t.Errorf("entry %d at %d is number %d, forwards to %#x, want %#x, %v", i, place, number, prog.Memory.Entries[place].Forward, r.Forward, err)
				}
			}
		})
	}
}
