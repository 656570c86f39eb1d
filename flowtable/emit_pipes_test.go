package flowtable

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
)

// Three pipes in one program, each with parts, sets and audits of its own, answer as each does alone. Their
// sets share the maps.
func TestReplacePipes(t *testing.T) {
	kernelNeedsRoot(t)
	names := [3]string{"classify", "nat_destinations", "nat_sources"}
	s := aclSource{rand.New(rand.NewPCG(21, 21))}
	var lists [][]ACLEntry
	var pipes []*ACL
	for i := range names {
		entries := append(s.entries(20), aclLarge(s)[:400]...)
		if i == 1 {
			entries = aclLarge(s) // in parts
		}
		a, err := CompileACLAfter(entries, append([]*ACL{nil}, pipes...)...)
		if err != nil {
			t.Fatal(err)
		}
		lists, pipes = append(lists, entries), append(pipes, a)
	}
	k := newKernelPipes(t, names, pipes)
	keys := make([]bpf.XDPClassifyKey, kernelBatch)
	for i := range keys {
		keys[i] = aclInsideKey(s.Rand, lists[i%len(lists)])
		if i%2 == 0 {
			keys[i] = s.key(lists[i%len(lists)])
		}
	}
	verdicts := k.classify(t, keys)
	for p, a := range pipes {
		matched := 0
		for i := range keys {
			want := a.Classify(&keys[i], nil)
			if verdicts[i][p] != want {
				t.Fatalf("%s answers %#x for %+v, alone and in Go %#x", names[p], verdicts[i][p], keys[i], want)
			}
			if want != 0 {
				matched++
			}
		}
		if set4, set6 := a.Sets(); matched < kernelBatch/10 || len(set4) == 0 || len(set6) == 0 {
			t.Errorf("%s: %d of %d keys matched, %d and %d nodes: the test asks too little", names[p], matched, len(keys), len(set4), len(set6))
		}
	}
}

// kernelPipes is a program that asks several pipes about each key.
type kernelPipes struct{ kernelClassifier }

func newKernelPipes(tb testing.TB, names [3]string, pipes []*ACL) *kernelPipes {
	tb.Helper()
	k := &kernelPipes{}
	k.keys = kernelMap(tb, "keys", uint32(unsafe.Sizeof(bpf.XDPClassifyKey{})), kernelBatch)
	k.verdicts = kernelMap(tb, "verdicts", uint32(4*len(names)), kernelBatch)
	k.audits = kernelMap(tb, "audits", 4*kernelAudits, kernelBatch)
	main := &emitFunc{}
	loop, out := main.label(), main.label()
	main.add(asm.Mov.Imm(asm.R6, 0))
	main.place(loop)
	main.add(asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word))
	kernelLookup(main, k.verdicts, out)
	main.add(asm.Mov.Reg(asm.R7, asm.R0))
	kernelLookup(main, k.keys, out)
	main.add(asm.Mov.Reg(asm.R8, asm.R0))
	for i, name := range names {
		main.add(asm.Mov.Reg(asm.R1, asm.R8))
		main.call(name)
		main.add(asm.StoreMem(asm.R7, int16(4*i), asm.R0, asm.Word))
	}
	main.add(asm.Add.Imm(asm.R6, 1))
	main.jumpImm(asm.JLT, asm.R6, kernelBatch, asm.R0, loop)
	main.place(out)
	main.ret(2)

	spec := pipesSpec(tb, main, names[:]...)
	for round := range 2 { // the second time in the place of pipes
		for i, name := range names {
			spec.Instructions = append(spec.Instructions, kernelFunctions(tb)...) // those before needed none, maybe
			if err := ReplacePipe(spec, name, pipes[(i+1-round)%len(pipes)]); err != nil {
				tb.Fatal(err)
			}
		}
	}
	kernelMaps(tb, spec.Instructions, pipes...)
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		tb.Fatalf("load: %v", kernelLog(err))
	}
	tb.Cleanup(func() { prog.Close() })
	k.prog = prog
	return k
}

// pipesSpec returns a program of main and of functions that answer a constant, for ReplacePipe to replace.
func pipesSpec(tb testing.TB, main *emitFunc, names ...string) *ebpf.ProgramSpec {
	tb.Helper()
	key := btf.FuncParam{Name: "key", Type: &btf.Pointer{Target: &btf.Struct{
		Name: "classify_key", Size: uint32(unsafe.Sizeof(bpf.XDPClassifyKey{})),
	}}}
	u32 := &btf.Int{Name: "unsigned int", Size: 4, Encoding: btf.Unsigned}
	spec := &ebpf.ProgramSpec{Name: "pipes_test", Type: ebpf.XDP, License: "GPL"}
	spec.Instructions = append(spec.Instructions, kernelFunction(tb, main, "main", btf.FuncParam{Name: "ctx", Type: &btf.Pointer{Target: &btf.Struct{Name: "xdp_md", Size: 24}}})...)
	for _, name := range names {
		constant := &emitFunc{}
		constant.add(asm.Mov.Reg(asm.R6, asm.R1))
		constant.ret(0)
		spec.Instructions = append(spec.Instructions, kernelFunction(tb, constant, name, key)...)
	}
	audit := &emitFunc{}
	audit.add(asm.Mov.Reg(asm.R6, asm.R1))
	audit.ret(0)
	spec.Instructions = append(spec.Instructions, kernelFunction(tb, audit, emitAuditName, key, btf.FuncParam{Name: "rule", Type: u32})...)
	return spec
}

// classify answers kernelBatch keys, each by every pipe.
func (k *kernelPipes) classify(tb testing.TB, keys []bpf.XDPClassifyKey) [][3]uint32 {
	tb.Helper()
	k.fill(tb, keys)
	if ret, err := k.prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil || ret != 2 {
		tb.Fatalf("run: %d, %v", ret, err)
	}
	index, verdicts := make([]uint32, kernelBatch), make([][3]uint32, kernelBatch)
	var cursor ebpf.MapBatchCursor
	if _, err := k.verdicts.BatchLookup(&cursor, index, verdicts, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		tb.Fatal(err)
	}
	return verdicts
}

func TestReplacePipeRefuses(t *testing.T) {
	a, err := CompileACL(nil)
	if err != nil {
		t.Fatal(err)
	}
	bare := &ebpf.ProgramSpec{Name: "bare", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("main"), asm.Return()}}
	if err := ReplacePipe(bare, "nat_sources", a); err == nil || !strings.Contains(err.Error(), "no function nat_sources") {
		t.Errorf("error %v of a program without nat_sources", err)
	}
}

// Pipes that fit alone, and not together, are refused, and the program stays as it was.
func TestReplacePipesRefusesTooMuch(t *testing.T) {
	empty, err := CompileACL(nil)
	if err != nil {
		t.Fatal(err)
	}
	large := codeACL(aclLarge(aclSource{rand.New(rand.NewPCG(22, 22))}))
	for _, row := range []struct {
		want      string
		functions int
		slots     int // of each
	}{{"", 1, emitMaxSlots - 200_000}, {"250000 that fit", 1, emitMaxSlots - 1000}, {"200 that fit", emitMaxFuncs, 3}} {
		main := &emitFunc{}
		main.add(asm.Mov.Reg(asm.R6, asm.R1))
		main.call("classify")
		main.call("nat_sources")
		main.ret(2)
		spec := pipesSpec(t, main, "classify", "nat_sources")
		if err := ReplacePipe(spec, "nat_sources", empty); err != nil {
			t.Fatal(err)
		}
		// As large as they may be, in the place of another pipe.
		at, fn, err := functionOf(spec, "nat_sources")
		if err != nil {
			t.Fatal(err)
		}
		var other asm.Instructions
		for i := range row.functions {
			one := make(asm.Instructions, row.slots)
			for j := range one {
				one[j] = asm.Mov.Imm(asm.R0, 0)
			}
			name := "nat_sources"
			if i > 0 {
				name = fmt.Sprintf("nat_sources_part%d", i)
			}
			if i+1 < row.functions {
				one[1] = asm.Call.Label(fmt.Sprintf("nat_sources_part%d", i+1))
			}
			one[0] = btf.WithFuncMetadata(one[0], fn).WithSymbol(name)
			one[0].Metadata.Set(emitGenerated{}, true)
			other = append(other, one...)
		}
		if err := replaceAt(spec, at, other); err != nil {
			t.Fatal(err)
		}
		before := len(spec.Instructions)
		err = ReplacePipe(spec, "classify", large)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("error %v, want %q", err, row.want)
		}
		if err != nil && len(spec.Instructions) != before {
			t.Error("a refused pipe has changed the program")
		}
	}
}

// The object's own program loads with three large pipes in it: rules in parts, and nat rules with sets.
func TestReplacePipesOfObject(t *testing.T) {
	kernelNeedsRoot(t)
	spec, err := bpf.LoadXDP()
	if err != nil {
		t.Fatal(err)
	}
	for name := range spec.Programs {
		if name != bpf.XDPProgSoftdpu {
			delete(spec.Programs, name)
		}
	}
	s := aclSource{rand.New(rand.NewPCG(23, 23))}
	var before []*ACL
	for i, function := range []string{"classify", "nat_destinations", "nat_sources"} {
		entries := aclLarge(s)
		if i > 0 {
			entries = entries[:500]
			for j := range entries {
				entries[j].Audit = false
			}
		}
		a, err := CompileACLAfter(entries, before...)
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, a)
		if err := ReplacePipe(spec.Programs[bpf.XDPProgSoftdpu], function, a); err != nil {
			t.Fatal(err)
		}
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(kernelLog(err))
	}
	c.Close()
}
