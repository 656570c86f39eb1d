package pipe_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/oracle"
	"github.com/softdpu/softdpu/flowtable/pipe/random"
)

// three holds the Go executor, the instructions in the kernel and the oracle against each other.
type three struct {
	line    *pipe.Pipeline
	program *pipe.Program
	world   *oracle.World
	kernel  *kernel // nil: without
	tick    uint32
	hits    int
	steps   int
}

func newThree(t *testing.T, line *pipe.Pipeline, o pipe.Options, inKernel bool) *three {
	t.Helper()
	for _, p := range line.Pipes {
		if !inKernel { // where meters go by the kernel's own clock
			break
		}
		p.Monitor.Meter = ""
		for _, e := range p.Entries {
			if e.Monitor != nil {
				e.Monitor.Meter = ""
			}
		}
	}
	if _, err := line.Check(); err != nil {
		t.Fatal(err)
	}
	line, err := line.Resolve(random.Ports)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipe.Compile(line, o)
	if err != nil {
		t.Fatal(err)
	}
	r := threeOf(line, p, o)
	if inKernel {
		r.kernel = newKernel(t, p, o, true)
	}
	return r
}

// threeOf is about a program and what it should do.
func threeOf(line *pipe.Pipeline, p *pipe.Program, o pipe.Options) *three {
	r := &three{line: line, program: p, world: oracle.New(line)}
	r.world.Hash = func(key []uint32) uint32 { return pipe.SpreadWords(o.SpreadSeed, key) }
	r.world.Slots = func(of *pipe.Pipe) []int { return p.Slots(slices.Index(line.Pipes, of)) }
	r.world.CT = func(packet *oracle.Packet) (uint32, bool) { return found(packet[:]) }
	p.CT = func(f *bpf.PipesPipeFields) (ok bool) {
		f.Word[bpf.PipesPipeWordPIPE_CT_STATE], ok = found(f.Word[:])
		return ok
	}
	return r
}

// The word that says the entry of an ordered list is of no meaning elsewhere.
const wordIndex = int(bpf.PipesPipeWordPIPE_INDEX)

const fieldWords = int(bpf.PipesPipeWordPIPE_TICK) // words from here on are the walk's own

// agree takes a batch of packets through all three, and compares what they counted.
func (r *three) agree(t *testing.T, source *random.Source) {
	t.Helper()
	r.walks(t, source)
	r.counts(t)
}

// walks takes a batch of packets through all three.
func (r *three) walks(t *testing.T, source *random.Source) {
	t.Helper()
	packets := make([]bpf.PipesPipeFields, kernelBatch)
	for i := range packets {
		packets[i].Word = source.Next().Words
		r.tick++
		packets[i].Word[bpf.PipesPipeWordPIPE_TICK] = r.tick
	}
	after := slices.Clone(packets)
	var answers []uint32
	if r.kernel != nil {
		answers = r.kernel.run(t, after)
	}
	for i := range packets {
		f := packets[i]
		want := r.world.Walk(oracle.Packet(f.Word), uint64(f.Word[bpf.PipesPipeWordPIPE_TICK])<<20)
		got, walk := r.program.Run(&f)
		if fault := r.differs(want, got, &f); fault != "" {
			t.Fatalf("packet %v\nGo: %s\nwalk %+v, oracle %s", packets[i].Word, fault, walk, describe(want))
		}
		if len(walk) != len(want.Walk) {
			t.Fatalf("packet %v\nGo walks %+v, oracle %s", packets[i].Word, walk, describe(want))
		}
		for j, s := range want.Walk {
			if r.line.Pipes[walk[j].Pipe] != s.Pipe || walk[j].Found != s.Found || s.Entry != nil && s.Pipe.Entries[walk[j].Entry] != s.Entry {
				t.Fatalf("packet %v\nstep %d in Go is %+v, oracle %s", packets[i].Word, j, walk[j], describe(want))
			}
			r.steps++
			if s.Found {
				r.hits++
			}
		}
		if r.kernel == nil {
			continue
		}
		if answers[i] != got || !slices.Equal(after[i].Word[:wordIndex], f.Word[:wordIndex]) {
			t.Fatalf("packet %v\nkernel answers %#x and leaves %v\nGo answers %#x and leaves %v\noracle %s", packets[i].Word, answers[i], after[i].Word, got, f.Word, describe(want))
		}
	}
}

// differs says how the oracle's result is not this one; "" if it is.
func (r *three) differs(want oracle.Result, forward uint32, f *bpf.PipesPipeFields) string {
	if got := f.Word[:fieldWords]; !slices.Equal(got, want.After[:fieldWords]) {
		return fmt.Sprintf("leaves %v", f.Word)
	}
	kind, number := forward>>bpf.PipesPipeForwardPIPE_FORWARD_SHIFT, forward&uint32(bpf.PipesPipeForwardPIPE_FORWARD_MASK)
	to, ports := map[uint32]pipe.Target{
		uint32(bpf.PipesPipeForwardPIPE_TO_DROP): pipe.ToDrop, uint32(bpf.PipesPipeForwardPIPE_TO_HOST): pipe.ToHost,
		uint32(bpf.PipesPipeForwardPIPE_TO_POLICY): pipe.ToPolicy, uint32(bpf.PipesPipeForwardPIPE_TO_PORT): pipe.ToPort,
		uint32(bpf.PipesPipeForwardPIPE_TO_PORTS): pipe.ToPort, uint32(bpf.PipesPipeForwardPIPE_TO_STAGE): pipe.ToStage,
	}[kind], []uint32(nil)
	switch kind {
	case uint32(bpf.PipesPipeForwardPIPE_TO_PORT):
		ports = []uint32{number}
	case uint32(bpf.PipesPipeForwardPIPE_TO_PORTS):
		ports = r.program.Groups[number]
	case uint32(bpf.PipesPipeForwardPIPE_TO_STAGE):
		stages := map[uint32]pipe.Stage{bpf.StageForward: pipe.StageForward, bpf.StageMirror: pipe.StageMirror}
		if stages[number>>bpf.PipesPipeStagePIPE_STAGES&uint32(bpf.PipesPipeStagePIPE_STAGE_MASK)] != want.Stage ||
			(number&uint32(bpf.PipesPipeStagePIPE_STAGE_BYPASS) != 0) != want.Bypass {
			return fmt.Sprintf("answers %#x", forward)
		}
		ports = []uint32{number & 0xff}
		if id := number >> bpf.PipesPipeStagePIPE_STAGE_COPY & 0xff; id != 0 {
			ports = append(ports, id)
			slices.Sort(ports)
		}
	}
	if (to != want.To && len(ports) == 0) || !slices.Equal(ports, want.Ports) {
		return fmt.Sprintf("answers %#x", forward)
	}
	return ""
}

func describe(w oracle.Result) string {
	text := fmt.Sprintf("to %s, ports %v, ttl %t, after", w.To, w.Ports, w.TTL)
	for _, s := range w.Walk {
		text += fmt.Sprintf(" %s (%s)", s.Pipe.Name, s.Pipe.Kind)
		if s.Entry != nil {
			text += fmt.Sprintf(" entry %d", slices.Index(s.Pipe.Entries, s.Entry))
		} else if !s.Found {
			text += " miss"
		}
	}
	return text + fmt.Sprintf(" leaves %v", w.After)
}

// counts compares what entries, misses and shared counters have counted.
func (r *three) counts(t *testing.T) {
	t.Helper()
	memories := map[string][]bpf.PipesPipeEntry{"Go": r.program.Memory.Entries}
	if r.kernel != nil && r.kernel.maps[bpf.PipesMapPipeEntries] != nil {
		memories["kernel"] = read[bpf.PipesPipeEntry](t, r.kernel.maps[bpf.PipesMapPipeEntries], len(r.program.Memory.Entries))
	}
	for who, entries := range memories {
		check := func(place uint32, want oracle.Count, what string) {
			if e := &entries[place]; e.Packets != want.Packets || e.Bytes != want.Bytes {
				t.Fatalf("%s: %s has counted %d packets and %d bytes, oracle %+v", who, what, e.Packets, e.Bytes, want)
			}
		}
		for _, n := range r.program.Order {
			pl := r.program.Pipes[n]
			check(pl.Miss, r.world.Misses[pl.Pipe], "miss of pipe "+pl.Pipe.Name)
			for i, e := range pl.Pipe.Entries {
				if len(pl.Places) > 0 {
					check(pl.Places[i], r.world.Counts[e], fmt.Sprintf("entry %d of pipe %s", i, pl.Pipe.Name))
				}
			}
		}
		for i, name := range r.line.Counters {
			check(r.program.Counters[i], r.world.Shared[name], "counter "+name)
		}
	}
}

func TestThreeExecutors(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("seed %d", seed)
	rounds := 60
	if os.Getenv("SOFTDPU_LONG") != "" {
		rounds = 2000
	}
	hits, steps, parts := 0, 0, 0
	for i := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		size := random.Size{Kinds: readyKinds, Entries: []int{4, 12, 40}[i%3]}
		if i%10 == 5 {
			size.Pipes = 16 // of which no function of 600 instructions holds all
		}
		line := random.Pipeline(r, size)
		o := pipe.Options{Seed: r.Uint64(), SpreadSeed: r.Uint64(), Trace: i%7 == 3, Limits: pipe.Limits{Function: []int{0, 600, 1500}[r.IntN(3)], Code: []int{0, 10}[r.IntN(2)], Always: i%4 < 2}}
		if size.Pipes > 0 {
			o.Limits.Function = 600
		}
		resolved, err := line.Resolve(random.Ports)
		if err != nil {
			t.Fatal(err)
		}
		for o.Limits.Function > 0 && o.Limits.Function < 4000 { // or no function of so few instructions holds a pipe
			if _, err := pipe.Compile(resolved, o); err == nil || !strings.Contains(err.Error(), "instructions, more than") {
				break
			}
			o.Limits.Function += 200
		}
		three := newThree(t, line, o, i%3 > 0)
		three.agree(t, random.Packets(r, three.line))
		hits, steps = hits+three.hits, steps+three.steps
		if _, others, _ := three.program.Instructions(); slices.ContainsFunc(others, func(f asm.Instructions) bool { return f[0].Symbol() == "run_pipes_part1" }) {
			parts++
		}
	}
	t.Logf("%d of %d steps found an entry, %d programs are in parts", hits, steps, parts)
	if hits < steps/5 || parts == 0 {
		t.Errorf("%d of %d steps found an entry, %d programs are in parts: the test asks too little", hits, steps, parts)
	}
}

var readyKinds []pipe.Kind
