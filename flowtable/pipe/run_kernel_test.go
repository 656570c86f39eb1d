package pipe_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// kernelBatch is the number of packets that one run of the kernel program takes.
const (
	kernelBits  = 10
	kernelBatch = 1 << kernelBits
)

// kernel runs a compiled pipeline's instructions in the kernel, on packets that stand in an array as their fields.
type kernel struct {
	prog *ebpf.Program
	maps map[string]*ebpf.Map
}

func needsRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("not root: loading eBPF programs left out")
	}
}

func fill[T any](tb testing.TB, m *ebpf.Map, values []T) {
	tb.Helper()
	if len(values) == 0 {
		return
	}
	index := make([]uint32, len(values))
	for i := range index {
		index[i] = uint32(i)
	}
	if _, err := m.BatchUpdate(index, values, nil); err != nil {
		tb.Fatal(err)
	}
}

func read[T any](tb testing.TB, m *ebpf.Map, n int) []T {
	tb.Helper()
	index, values := make([]uint32, n), make([]T, n)
	var cursor ebpf.MapBatchCursor
	if _, err := m.BatchLookup(&cursor, index, values, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		tb.Fatal(err)
	}
	return values
}

// newKernel loads a program; nil is one that does nothing. Without batch it takes one packet a run, drawn at random.
func newKernel(tb testing.TB, p *pipe.Program, o pipe.Options, batch bool) *kernel {
	tb.Helper()
	object, err := bpf.LoadPipes()
	if err != nil {
		tb.Fatal(err)
	}
	spec := harness(tb, batch)
	if p != nil {
		spec.Instructions = append(spec.Instructions, own(tb, object)...)
		if err := p.Replace(spec); err != nil {
			tb.Fatal(err)
		}
	} else {
		p = &pipe.Program{Memory: &pipe.Memory{Arena: &pipe.Arena{}}}
	}
	all := &ebpf.CollectionSpec{
		Maps:     map[string]*ebpf.MapSpec{},
		Programs: map[string]*ebpf.ProgramSpec{"pipes_test": spec}, Variables: object.Variables, ByteOrder: object.ByteOrder,
	}
	array := func(name string, size uintptr, entries int) {
		object.Maps[name] = &ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: uint32(entries)}
	}
	array("fields", unsafe.Sizeof(bpf.PipesPipeFields{}), kernelBatch)
	array("answers", 4, kernelBatch)
	array("state", 8, 1)
	for i := range spec.Instructions {
		if name := spec.Instructions[i].Reference(); spec.Instructions[i].IsLoadFromMap() {
			all.Maps[name] = object.Maps[name]
			all.Maps[name].Pinning = ebpf.PinNone
		}
	}
	for _, v := range []struct {
		name  string
		value uint64
	}{{bpf.PipesVarPipeSeed, o.Seed}, {bpf.PipesVarPipeSpreadSeed, o.SpreadSeed}} {
		if err := object.Variables[v.name].Set(v.value); err != nil {
			tb.Fatal(err)
		}
	}
	for name := range all.Variables {
		if all.Maps[all.Variables[name].SectionName] == nil {
			delete(all.Variables, name)
		}
	}
	k := &kernel{}
	var fills []func()
	put := func(name string, n int, put func(m *ebpf.Map)) {
		m := all.Maps[name]
		if m == nil {
			return
		}
		m.MaxEntries = uint32(max(1, n))
		fills = append(fills, func() { put(k.maps[name]) })
	}
	put(bpf.PipesMapPipeEntries, len(p.Memory.Entries), func(m *ebpf.Map) { fill(tb, m, p.Memory.Entries) })
	put(bpf.PipesMapPipeBuckets, len(p.Memory.Buckets), func(m *ebpf.Map) { fill(tb, m, p.Memory.Buckets) })
	put(bpf.PipesMapPipeMeters, len(p.Memory.Meters), func(m *ebpf.Map) { fill(tb, m, p.Memory.Meters) })
	put(bpf.PipesMapPipeTries, len(p.Memory.Tries), func(m *ebpf.Map) { fill(tb, m, p.Memory.Tries) })
	put(bpf.PipesMapPipeRoots, len(p.Memory.Arena.Roots), func(m *ebpf.Map) { fill(tb, m, p.Memory.Arena.Roots) })
	put(bpf.PipesMapPipeNodes4, len(p.Memory.Arena.Nodes4), func(m *ebpf.Map) { fill(tb, m, p.Memory.Arena.Nodes4) })
	put(bpf.PipesMapPipeNodes6, len(p.Memory.Arena.Nodes6), func(m *ebpf.Map) { fill(tb, m, p.Memory.Arena.Nodes6) })
	var set4 []bpf.XDPSet4Node
	var set6 []bpf.XDPSet6Node
	var forest flowtable.Forest
	banks := make([]bpf.XDPForestBank, bpf.XDPForestLimitFOREST_BANKS)
	for _, a := range p.Classifiers() {
		a.PutRoots(&banks[0])
		four, six := a.Sets()
		set4, set6 = append(set4, four...), append(set6, six...)
		forest.Append(a.Forest())
	}
	put(bpf.XDPMapSetNodes4, len(set4), func(m *ebpf.Map) { fill(tb, m, set4) })
	put(bpf.XDPMapSetNodes6, len(set6), func(m *ebpf.Map) { fill(tb, m, set6) })
	put(bpf.XDPMapForestNodes, len(forest.Nodes), func(m *ebpf.Map) { fill(tb, m, forest.Nodes) })
	put(bpf.XDPMapForestRules4, len(forest.Rules4), func(m *ebpf.Map) { fill(tb, m, forest.Rules4) })
	put(bpf.XDPMapForestRules6, len(forest.Rules6), func(m *ebpf.Map) { fill(tb, m, forest.Rules6) })
	put(bpf.XDPMapForestRoots, len(banks), func(m *ebpf.Map) { fill(tb, m, banks) })
	put(bpf.XDPMapForestChecks, len(forest.Checks), func(m *ebpf.Map) { fill(tb, m, forest.Checks) })
	c, err := ebpf.NewCollection(all)
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			err = fmt.Errorf("%w: %s", err, strings.Join(ve.Log[max(0, len(ve.Log)-30):], "\n"))
		}
		tb.Fatalf("load: %v\n%v", err, spec.Instructions[20:45])
	}
	tb.Cleanup(c.Close)
	k.prog, k.maps = c.Programs["pipes_test"], c.Maps
	for _, fill := range fills {
		fill()
	}
	return k
}

// own are the functions in C that pipelines call, but for pipe_ct: see found.
func own(tb testing.TB, object *ebpf.CollectionSpec) (insns asm.Instructions) {
	tb.Helper()
	inside := false
	for _, ins := range object.Programs[bpf.PipesProgSoftdpuPipes].Instructions {
		if name := ins.Symbol(); name != "" {
			inside = name != "softdpu_pipes" && name != "run_pipes" && name != "pipe_ct"
		}
		if inside {
			insns = append(insns, btf.WithFuncMetadata(ins.WithSource(nil), btf.FuncMetadata(&ins)))
		}
	}
	u32 := &btf.Int{Name: "unsigned int", Size: 4, Encoding: btf.Unsigned}
	fields := btf.FuncParam{Name: "f", Type: &btf.Pointer{Target: &btf.Struct{Name: "pipe_fields", Size: uint32(unsafe.Sizeof(bpf.PipesPipeFields{}))}}}
	stub := func(t *flowtable.Text, name string, numbers ...string) {
		params := []btf.FuncParam{fields}
		for _, n := range numbers {
			params = append(params, btf.FuncParam{Name: n, Type: u32})
		}
		f, err := t.Finish(&btf.Func{Name: name, Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: u32, Params: params}})
		if err != nil {
			tb.Fatal(err)
		}
		insns = append(insns, f...)
	}
	ct := flowtable.NewText(0)
	none := ct.Label()
	ct.Add(asm.Mov.Reg(asm.R6, asm.R1))
	ct.JumpNull(asm.R6, none)
	ct.Add(
		asm.LoadMem(asm.R0, asm.R6, int16(4*bpf.PipesPipeWordPIPE_L4SPORT), asm.Word), asm.And.Imm32(asm.R0, 3),
		asm.StoreMem(asm.R6, int16(4*bpf.PipesPipeWordPIPE_CT_STATE), asm.R0, asm.Word),
	)
	ct.JumpImm(asm.JEq, asm.R0, 0, none)
	ct.Return(1)
	ct.Place(none)
	ct.Return(0)
	stub(ct, "pipe_ct")
	return insns
}

// found is what pipe_ct finds in the kernel.
func found(words []uint32) (state uint32, ok bool) {
	state = words[bpf.PipesPipeWordPIPE_L4SPORT] & 3
	return state, state != 0
}

func harness(tb testing.TB, batch bool) *ebpf.ProgramSpec {
	tb.Helper()
	u32 := &btf.Int{Name: "unsigned int", Size: 4, Encoding: btf.Unsigned}
	pointer := func(name string, size uintptr) btf.FuncParam {
		return btf.FuncParam{Name: "p", Type: &btf.Pointer{Target: &btf.Struct{Name: name, Size: uint32(size)}}}
	}
	function := func(t *flowtable.Text, name string, param btf.FuncParam) asm.Instructions {
		insns, err := t.Finish(&btf.Func{Name: name, Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: u32, Params: []btf.FuncParam{param}}})
		if err != nil {
			tb.Fatal(err)
		}
		return insns
	}
	main := flowtable.NewText(0)
	loop, out := main.Label(), main.Label()
	main.Add(asm.Mov.Imm(asm.R6, 0))
	if batch {
		main.Place(loop)
	} else {
		main.Add(asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word))
		main.LookUp("state", out)
		main.Add( // a linear congruential generator: in turn, branch predictors would learn the packets by heart
			asm.LoadMem(asm.R6, asm.R0, 0, asm.DWord),
			asm.LoadImm(asm.R1, 6364136223846793005, asm.DWord), asm.Mul.Reg(asm.R6, asm.R1), asm.Add.Imm(asm.R6, 1),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord),
			asm.RSh.Imm(asm.R6, 64-kernelBits),
		)
	}
	main.Add(asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word))
	main.LookUp("fields", out)
	main.Add(asm.Mov.Reg(asm.R1, asm.R0))
	main.Call("run_pipes")
	if batch {
		main.Add(asm.Mov.Reg(asm.R7, asm.R0))
		main.LookUp("answers", out)
		main.Add(asm.StoreMem(asm.R0, 0, asm.R7, asm.Word), asm.Add.Imm(asm.R6, 1))
		main.JumpImm(asm.JLT, asm.R6, kernelBatch, loop)
	}
	main.Place(out)
	main.Return(2)
	constant := flowtable.NewText(0)
	constant.Add(asm.Mov.Reg(asm.R6, asm.R1))
	constant.Return(0)
	spec := &ebpf.ProgramSpec{Name: "pipes_test", Type: ebpf.XDP, License: "GPL"}
	spec.Instructions = append(spec.Instructions, function(main, "main", pointer("xdp_md", 24))...)
	spec.Instructions = append(spec.Instructions, function(constant, "run_pipes", pointer("pipe_fields", unsafe.Sizeof(bpf.PipesPipeFields{})))...)
	return spec
}

// run takes packets through the pipeline, in their order, and returns what it answers; their fields are what it leaves.
func (k *kernel) run(tb testing.TB, packets []bpf.PipesPipeFields) []uint32 {
	tb.Helper()
	fill(tb, k.maps["fields"], packets)
	if ret, err := k.prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil || ret != 2 {
		tb.Fatalf("run: %d, %v", ret, err)
	}
	copy(packets, read[bpf.PipesPipeFields](tb, k.maps["fields"], kernelBatch))
	return read[uint32](tb, k.maps["answers"], kernelBatch)
}
