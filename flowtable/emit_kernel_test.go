package flowtable

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
)

// kernelBatch is the number of keys that one run of the kernel classifier answers.
const (
	kernelBits  = 10
	kernelBatch = 1 << kernelBits
)

// kernelAudits is one more than the reports that are kept for a key.
const kernelAudits = 64

// kernelClassifier runs a pipe's instructions in the kernel. Its program walks over an array of keys;
// the audit function notes its calls beside the key whose number stands in its padding.
type kernelClassifier struct {
	prog                   *ebpf.Program
	keys, verdicts, audits *ebpf.Map
	state                  *ebpf.Map
}

// kernelNeedsRoot skips a test that loads programs.
func kernelNeedsRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("not root: loading eBPF programs left out")
	}
}

func kernelMap(tb testing.TB, name string, value, entries uint32) *ebpf.Map {
	tb.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: value, MaxEntries: entries})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { m.Close() })
	return m
}

// kernelLookup adds r0 = &m[*(u32 *)(fp - 4)], or a jump to absent.
func kernelLookup(f *emitFunc, m *ebpf.Map, absent emitLabel) {
	f.add(asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4), asm.FnMapLookupElem.Call())
	f.jumpImm(asm.JEq, asm.R0, 0, asm.R0, absent)
}

func kernelFunction(tb testing.TB, f *emitFunc, name string, params ...btf.FuncParam) asm.Instructions {
	tb.Helper()
	insns, err := f.finish()
	if err != nil {
		tb.Fatal(err)
	}
	i32 := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	insns[0] = btf.WithFuncMetadata(insns[0], &btf.Func{
		Name: name, Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: i32, Params: params},
	}).WithSymbol(name)
	return insns
}

// harness returns a program that calls a classify that answers a constant, for ReplaceClassifier to
// replace. With batch it answers kernelBatch keys a run, else one, drawn at random in each run.
func (k *kernelClassifier) harness(tb testing.TB, batch bool) *ebpf.ProgramSpec {
	tb.Helper()
	u32 := &btf.Int{Name: "unsigned int", Size: 4, Encoding: btf.Unsigned}
	key := btf.FuncParam{Name: "key", Type: &btf.Pointer{Target: &btf.Struct{
		Name: "classify_key", Size: uint32(unsafe.Sizeof(bpf.XDPClassifyKey{})),
	}}}

	main := &emitFunc{}
	loop, out := main.label(), main.label()
	main.add(asm.Mov.Imm(asm.R6, 0))
	if batch {
		main.place(loop)
	} else {
		main.add(asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word))
		kernelLookup(main, k.state, out)
		main.add( // a linear congruential generator: in turn, branch predictors would learn the keys by heart
			asm.LoadMem(asm.R6, asm.R0, 0, asm.DWord),
			asm.LoadImm(asm.R1, 6364136223846793005, asm.DWord), asm.Mul.Reg(asm.R6, asm.R1), asm.Add.Imm(asm.R6, 1),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord),
			asm.RSh.Imm(asm.R6, 64-kernelBits),
		)
	}
	main.add(asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word))
	kernelLookup(main, k.keys, out)
	main.add(asm.Mov.Reg(asm.R1, asm.R0))
	main.call("classify")
	if batch {
		main.add(asm.Mov.Reg(asm.R7, asm.R0))
		kernelLookup(main, k.verdicts, out)
		main.add(asm.StoreMem(asm.R0, 0, asm.R7, asm.Word), asm.Add.Imm(asm.R6, 1))
		main.jumpImm(asm.JLT, asm.R6, kernelBatch, asm.R0, loop)
	}
	main.place(out)
	main.ret(2)

	constant := &emitFunc{}
	constant.add(asm.Mov.Reg(asm.R6, asm.R1))
	constant.ret(0)

	audit := &emitFunc{}
	end := audit.label()
	audit.add(asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Reg(asm.R7, asm.R2))
	audit.jumpImm(asm.JEq, asm.R6, 0, asm.R0, end)
	audit.add(asm.LoadMem(asm.R1, asm.R6, int16(unsafe.Offsetof(bpf.XDPClassifyKey{}.Pad)), asm.Half), asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word))
	kernelLookup(audit, k.audits, end)
	audit.add(asm.LoadMem(asm.R1, asm.R0, 0, asm.Word))
	audit.jumpImm(asm.JGE, asm.R1, kernelAudits-1, asm.R0, end)
	audit.add(
		asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.Word),
		asm.LSh.Imm(asm.R1, 2), asm.Add.Reg(asm.R0, asm.R1), asm.StoreMem(asm.R0, 0, asm.R7, asm.Word),
	)
	audit.place(end)
	audit.ret(0)

	spec := &ebpf.ProgramSpec{Name: "acl_test", Type: ebpf.XDP, License: "GPL"}
	spec.Instructions = append(spec.Instructions, kernelFunction(tb, main, "main", btf.FuncParam{Name: "ctx", Type: &btf.Pointer{Target: &btf.Struct{Name: "xdp_md", Size: 24}}})...)
	spec.Instructions = append(spec.Instructions, kernelFunction(tb, constant, "classify", key)...)
	spec.Instructions = append(spec.Instructions, kernelFunction(tb, audit, "audit", key, btf.FuncParam{Name: "rule", Type: u32})...)
	return spec
}

// newKernelClassifier loads a; nil stands for a constant classifier.
func newKernelClassifier(tb testing.TB, a *ACL, batch bool) *kernelClassifier {
	tb.Helper()
	k := &kernelClassifier{
		keys:     kernelMap(tb, "keys", uint32(unsafe.Sizeof(bpf.XDPClassifyKey{})), kernelBatch),
		verdicts: kernelMap(tb, "verdicts", 4, kernelBatch),
		audits:   kernelMap(tb, "audits", 4*kernelAudits, kernelBatch),
		state:    kernelMap(tb, "state", 8, 1),
	}
	spec := k.harness(tb, batch)
	k.prog = kernelProgram(tb, spec, a)
	return k
}

// kernelProgram loads a program that calls the functions that pipes need, with a in the place of its classifier; nil: with
// the one that it has.
func kernelProgram(tb testing.TB, spec *ebpf.ProgramSpec, a *ACL) *ebpf.Program {
	tb.Helper()
	spec.Instructions = append(spec.Instructions, kernelFunctions(tb)...)
	if a == nil {
		insns, err := emitCalled(spec.Instructions)
		if err != nil {
			tb.Fatal(err)
		}
		spec.Instructions = insns
	} else if err := ReplaceClassifier(spec, a); err != nil {
		tb.Fatal(err)
	}
	kernelMaps(tb, spec.Instructions, a)
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		tb.Fatalf("load: %v", kernelLog(err))
	}
	tb.Cleanup(func() { prog.Close() })
	return prog
}

// kernelOwn are the program's own functions that pipes call, audit excepted.
var kernelOwn = []string{
	emitSet4Name, emitSet6Name,
	forestFunctions[0].leaf, forestFunctions[0].report, forestFunctions[1].leaf, forestFunctions[1].report,
}

// kernelFunctions returns the program's own functions that pipes call.
func kernelFunctions(tb testing.TB) (insns asm.Instructions) {
	tb.Helper()
	object, err := bpf.LoadXDP()
	if err != nil {
		tb.Fatal(err)
	}
	inside := false
	for _, ins := range object.Programs[bpf.XDPProgSoftdpu].Instructions {
		if name := ins.Symbol(); name != "" {
			inside = slices.Contains(kernelOwn, name)
		}
		if inside {
			insns = append(insns, btf.WithFuncMetadata(ins.WithSource(nil), btf.FuncMetadata(&ins)))
		}
	}
	return insns
}

// kernelMaps has instructions search maps that hold the memory of pipes, one behind the other.
func kernelMaps(tb testing.TB, insns asm.Instructions, pipes ...*ACL) {
	tb.Helper()
	var set4 []bpf.XDPSet4Node
	var set6 []bpf.XDPSet6Node
	var forest Forest
	var bank bpf.XDPForestBank
	for _, a := range pipes {
		if a != nil {
			a.PutRoots(&bank)
			four, six := a.Sets()
			set4, set6 = append(set4, four...), append(set6, six...)
			forest.Append(a.Forest())
		}
	}
	maps := map[string]*ebpf.Map{
		bpf.XDPMapSetNodes4: kernelNodes(tb, bpf.XDPMapSetNodes4, set4), bpf.XDPMapSetNodes6: kernelNodes(tb, bpf.XDPMapSetNodes6, set6),
		bpf.XDPMapForestNodes:  kernelNodes(tb, bpf.XDPMapForestNodes, forest.Nodes),
		bpf.XDPMapForestRules4: kernelNodes(tb, bpf.XDPMapForestRules4, forest.Rules4), bpf.XDPMapForestRules6: kernelNodes(tb, bpf.XDPMapForestRules6, forest.Rules6),
		bpf.XDPMapForestChecks: kernelNodes(tb, bpf.XDPMapForestChecks, forest.Checks),
		bpf.XDPMapForestRoots:  kernelNodes(tb, bpf.XDPMapForestRoots, []bpf.XDPForestBank{bank}),
	}
	for i := range insns {
		if m := maps[insns[i].Reference()]; m != nil && insns[i].IsLoadFromMap() {
			if err := insns[i].AssociateMap(m); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

func kernelNodes[T any](tb testing.TB, name string, nodes []T) *ebpf.Map {
	tb.Helper()
	var node T
	m := kernelMap(tb, name, uint32(unsafe.Sizeof(node)), uint32(max(1, len(nodes))))
	index := make([]uint32, len(nodes))
	for i := range index {
		index[i] = uint32(i)
	}
	if len(nodes) > 0 {
		if _, err := m.BatchUpdate(index, nodes, nil); err != nil {
			tb.Fatal(err)
		}
	}
	return m
}

// kernelLog shortens a verifier's log to its end.
func kernelLog(err error) error {
	var ve *ebpf.VerifierError
	if errors.As(err, &ve) {
		return fmt.Errorf("%w: %s", err, strings.Join(ve.Log[max(0, len(ve.Log)-8):], "\n"))
	}
	return err
}

func (k *kernelClassifier) fill(tb testing.TB, keys []bpf.XDPClassifyKey) {
	tb.Helper()
	index, values := make([]uint32, len(keys)), make([]bpf.XDPClassifyKey, len(keys))
	for i, key := range keys {
		index[i], values[i] = uint32(i), key
		values[i].Pad = uint16(i)
	}
	if _, err := k.keys.BatchUpdate(index, values, nil); err != nil {
		tb.Fatal(err)
	}
	if _, err := k.audits.BatchUpdate(index, make([][kernelAudits]uint32, len(keys)), nil); err != nil {
		tb.Fatal(err)
	}
}

// classify answers kernelBatch keys.
func (k *kernelClassifier) classify(tb testing.TB, keys []bpf.XDPClassifyKey) ([]uint32, [][kernelAudits]uint32) {
	tb.Helper()
	k.fill(tb, keys)
	if ret, err := k.prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil || ret != 2 {
		tb.Fatalf("run: %d, %v", ret, err)
	}
	index, verdicts, audits := make([]uint32, kernelBatch), make([]uint32, kernelBatch), make([][kernelAudits]uint32, kernelBatch)
	var cursor ebpf.MapBatchCursor
	if _, err := k.verdicts.BatchLookup(&cursor, index, verdicts, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		tb.Fatal(err)
	}
	cursor = ebpf.MapBatchCursor{}
	if _, err := k.audits.BatchLookup(&cursor, index, audits, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		tb.Fatal(err)
	}
	for key := range audits {
		noted := &audits[key]
		for i := 1; i < kernelAudits && i <= int(noted[0]); i++ {
			noted[i] &= aclRuleMask // audit() gets the whole verdict
		}
	}
	return verdicts, audits
}
