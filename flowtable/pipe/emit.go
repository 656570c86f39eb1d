package pipe

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// The function that a program gets, and what the names of all others begin with.
const emitName = "run_pipes"

// Registers that hold something throughout. All survive calls.
const (
	regFields  = asm.R6 // struct pipe_fields
	regPlace   = asm.R7 // of the entry that matched
	regRecord  = asm.R8 // its record
	regForward = asm.R9
)

const (
	fieldsKey = int16(unsafe.Offsetof(bpf.PipesPipeFields{}.Key))
	fieldsACL = int16(unsafe.Offsetof(bpf.PipesPipeFields{}.Acl))
	stackKey  = -4 // of look-ups in maps
)

// maxFunctions is how many functions may be generated: kernels take 256 with those written in C.
const maxFunctions = 200

// treeInline is the largest search, in slots, that stands where its pipe does and not in a function of its own.
const treeInline = 1500

// emitter writes a program: run_pipes, which walks through the pipes, and what it calls. Small pipelines are one
// function. Otherwise pipes stand, in the order of the program, in several that run_pipes calls in turn: each is given the
// pipe to begin at, and answers where the packet goes, which may be a pipe in a later one. Searches that are large are
// functions that answer the place of the entry that matched; parts of them that do not fit are functions again.
type emitter struct {
	*Program
	functions []asm.Instructions // behind the first
	slots     int
	rank      []int // of pipes in Order
}

// Instructions returns the function run_pipes and those that it calls, but not those of the program in C. Errors say what
// is too large.
func (p *Program) Instructions() (asm.Instructions, []asm.Instructions, error) {
	e := &emitter{Program: p, rank: make([]int, len(p.Pipes))}
	for i, n := range p.Order {
		e.rank[n] = i
	}
	first, err := e.walk()
	if err != nil {
		return nil, nil, err
	}
	if n := len(e.functions) + 1; n > maxFunctions {
		return nil, nil, fmt.Errorf("its pipes need %d functions, more than the %d that fit into a program: %w", n, maxFunctions, errSize)
	}
	if limit := p.options.Limits.program(); e.slots > limit {
		return nil, nil, fmt.Errorf("its pipes need %d instructions, more than the %d that fit into a program: %w", e.slots, limit, errSize)
	}
	return first, e.functions, nil
}

// Replace puts the program in the place of the function run_pipes of one that was loaded from the object.
func (p *Program) Replace(spec *ebpf.ProgramSpec) error {
	first, others, err := p.Instructions()
	if err != nil {
		return err
	}
	return flowtable.ReplaceFunction(spec, emitName, first, others...)
}

func (l Limits) function() int { return limit(l.Function, flowtable.TextSlots) }
func (l Limits) program() int  { return limit(l.Program, flowtable.TextsSlots) }
func (l Limits) code() int     { return limit(l.Code, codeEntries) }

func limit(given, most int) int {
	if given > 0 && given < most {
		return given
	}
	return most
}

// types of generated functions: only sizes matter to the verifier.
var (
	typeU32    = &btf.Int{Name: "unsigned int", Size: 4, Encoding: btf.Unsigned}
	typeFields = &btf.Struct{Name: "pipe_fields", Size: uint32(unsafe.Sizeof(bpf.PipesPipeFields{})), Members: []btf.Member{{
		Name: "words", Type: &btf.Array{Index: typeU32, Type: typeU32, Nelems: uint32(unsafe.Sizeof(bpf.PipesPipeFields{}) / 4)},
	}}}
)

// function is the type of a generated function: u32 (struct pipe_fields *), or with more numbers.
func function(name string, numbers ...string) *btf.Func {
	params := []btf.FuncParam{{Name: "f", Type: &btf.Pointer{Target: typeFields}}}
	for _, n := range numbers {
		params = append(params, btf.FuncParam{Name: n, Type: typeU32})
	}
	return &btf.Func{Name: name, Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: typeU32, Params: params}}
}

type label = flowtable.TextLabel

// text is a generated function that is being written.
type text struct {
	*flowtable.Text
	e      *emitter
	broken label // answers drop: where the verifier wants an answer and no packet comes
}

func (e *emitter) text() *text {
	t := &text{Text: flowtable.NewText(e.options.Limits.function()), e: e}
	t.broken = t.Label()
	return t
}

// begin is the head of each function: a null pointer is broken.
func (t *text) begin() {
	t.Add(asm.Mov.Reg(regFields, asm.R1))
	t.JumpNull(regFields, t.broken)
}

// end is the foot.
func (t *text) end(fn *btf.Func, broken uint32) (asm.Instructions, error) {
	t.Place(t.broken)
	t.Return(broken)
	insns, err := t.Finish(fn)
	t.e.slots += t.Slots()
	if err != nil {
		err = fmt.Errorf("%w: %w", err, errSize)
	}
	return insns, err
}

func (t *text) load(r asm.Register, word int) {
	t.Add(asm.LoadMem(r, regFields, int16(4*word), asm.Word))
}

func (t *text) store(word int, r asm.Register) {
	t.Add(asm.StoreMem(regFields, int16(4*word), r, asm.Word))
}

func (t *text) storeImm(word int, value uint32) {
	t.Add(asm.StoreImm(regFields, int16(4*word), int64(int32(value)), asm.Word))
}

// walk writes run_pipes.
func (e *emitter) walk() (asm.Instructions, error) {
	// Each pipe alone, to know its size.
	sizes := make([]int, len(e.Order))
	total := 0
	for i, n := range e.Order {
		before := e.slots
		functions := e.functions
		t := e.text()
		s := e.stretch(t, i, i+1)
		if err := t.pipe(s, e.Pipes[n]); err != nil {
			return nil, fmt.Errorf("pipe %s: %w", e.Pipes[n].Pipe.Name, err)
		}
		sizes[i] = t.Slots()
		e.Pipes[n].Insns = t.Slots() + e.slots - before
		total += sizes[i]
		e.slots, e.functions = before, functions
	}
	room := e.options.Limits.function() - stretchSlots*(4+len(e.Order)) - 4*len(e.join)
	if total <= room {
		t := e.text()
		t.begin()
		s := e.stretch(t, 0, len(e.Order))
		t.GoTo(s.labels[0])
		if err := e.pipes(t, s); err != nil {
			return nil, err
		}
		t.Place(s.done)
		t.leave()
		return t.end(function(emitName), toDrop)
	}
	var ends []int
	for from := 0; from < len(e.Order); {
		to, slots := from, 0
		for to < len(e.Order) && (to == from || slots+sizes[to] <= room) {
			slots += sizes[to]
			to++
		}
		if err := e.part(len(ends), from, to); err != nil {
			return nil, err
		}
		ends = append(ends, to)
		from = to
	}
	return e.caller(ends)
}

// stretchSlots is about what a function takes beside its pipes, for each of them.
const stretchSlots = 10

// stretch are the pipes that one function holds.
type stretch struct {
	from, to int // in Order
	labels   []label
	done     label // the answer is in r0
	exits    map[uint32]label
}

func (e *emitter) stretch(t *text, from, to int) *stretch {
	s := &stretch{from: from, to: to, done: t.Label(), exits: map[uint32]label{}}
	for range to - from {
		s.labels = append(s.labels, t.Label())
	}
	return s
}

// pipes writes the pipes of a stretch.
func (e *emitter) pipes(t *text, s *stretch) error {
	for i := s.from; i < s.to; i++ {
		if err := t.pipe(s, e.Pipes[e.Order[i]]); err != nil {
			return fmt.Errorf("pipe %s: %w", e.Pipes[e.Order[i]].Pipe.Name, err)
		}
	}
	exits := make([]uint32, 0, len(s.exits))
	for forward := range s.exits {
		exits = append(exits, forward)
	}
	slices.Sort(exits)
	for _, forward := range exits {
		t.Place(s.exits[forward])
		t.Add(asm.Mov.Imm32(asm.R0, int32(forward)))
		t.GoTo(s.done)
	}
	return nil
}

func partName(n int) string { return fmt.Sprintf("%s_part%d", emitName, n) }

// part writes a function for some of the pipes: it is given the place in Order to begin at.
func (e *emitter) part(n, from, to int) error {
	t := e.text()
	t.begin()
	s := e.stretch(t, from, to)
	ranks := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		ranks = append(ranks, i)
	}
	t.Dispatch(asm.R2, ranks, s.labels)
	if err := e.pipes(t, s); err != nil {
		return err
	}
	t.Place(s.done)
	t.Add(asm.Return())
	insns, err := t.end(function(partName(n), "rank"), toDrop)
	e.functions = append(e.functions, insns)
	return err
}

// caller writes run_pipes if there are several parts; ends are the places in Order behind each. What a part answers for
// a pipe in a later one is toPipe with the pipe's place in Order.
func (e *emitter) caller(ends []int) (asm.Instructions, error) {
	t := e.text()
	t.begin()
	done := t.Label()
	t.Add(asm.Mov.Imm32(asm.R0, int32(toPipe)))
	for i, end := range ends {
		next := t.Label()
		t.JumpImm(asm.JLT, asm.R0, toPipe, done)
		t.Add(asm.Mov.Reg32(asm.R2, asm.R0), asm.And.Imm32(asm.R2, int32(forwardPipe)))
		if i < len(ends)-1 {
			t.JumpImm(asm.JGE, asm.R2, uint32(end), next)
		}
		t.Add(asm.Mov.Reg(asm.R1, regFields))
		t.Call(partName(i))
		t.Place(next)
	}
	t.JumpImm(asm.JGE, asm.R0, toPipe, t.broken)
	t.Place(done)
	t.leave()
	return t.end(function(emitName), toDrop)
}

// leave answers r0, or with a mirror the group of ports that gets the packet too.
func (t *text) leave() {
	if len(t.e.join) == 0 {
		t.Add(asm.Return())
		return
	}
	leave := t.Label()
	t.load(asm.R1, wordMirror)
	t.JumpImm(asm.JEq, asm.R1, 0, leave)
	pairs := make([][2]uint32, 0, len(t.e.join))
	for p := range t.e.join {
		pairs = append(pairs, p)
	}
	slices.SortFunc(pairs, func(a, b [2]uint32) int { return slices.Compare(a[:], b[:]) })
	for _, p := range pairs {
		next := t.Label()
		t.JumpImm(asm.JNE, asm.R1, p[0], next)
		t.JumpImm(asm.JNE, asm.R0, p[1], next)
		t.Return(toPorts | t.e.join[p])
		t.Place(next)
	}
	t.GoTo(t.broken)
	t.Place(leave)
	t.Add(asm.Return())
}
