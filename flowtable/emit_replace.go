package flowtable

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
)

// Instructions returns the pipe as eBPF: the global function `classify`, which takes a pointer to
// struct classify_key in host byte order (NULL: answers 0) and returns the verdict, and behind it the
// functions that it calls, all with type information. Audit entries call the function
// `audit(struct classify_key *, __u32 rule)`, and the sets of Sets `in_set4` and `in_set6(struct classify_key *,
// __u32 first, __u32 nodes, __u32 field)`, which are not among them; nor are those that compare the leaves of a
// forest, `forest_leaf4`, `forest_leaf6`, `forest_report4` and `forest_report6`. The functions need Linux 5.12
// (pointers as arguments of global functions). An error says that the pipe is too large for a
// program, and for which limit.
func (a *ACL) Instructions() (asm.Instructions, error) { return a.Function(emitClassifyName) }

// classifier is the type of a function that does what classify does.
func classifier(name string) *btf.Func {
	u32 := &btf.Int{Name: "unsigned int", Size: 4, Encoding: btf.Unsigned}
	u64 := &btf.Int{Name: "unsigned long", Size: 8, Encoding: btf.Unsigned}
	size := uint32(unsafe.Sizeof(bpf.XDPClassifyKey{}))
	// Only the size matters to the verifier.
	key := &btf.Struct{Name: "classify_key", Size: size, Members: []btf.Member{{
		Name: "words", Type: &btf.Array{Index: u32, Type: u64, Nelems: size / u64.Size},
	}}}
	return &btf.Func{
		Name: name, Linkage: btf.GlobalFunc,
		Type: &btf.FuncProto{Return: u32, Params: []btf.FuncParam{{Name: "key", Type: &btf.Pointer{Target: key}}}},
	}
}

// instructions emits the functions, classify with the type given. All get the source line given, if
// any: a program that has lines must have one for each function.
func (a *ACL) instructions(classify *btf.Func, line fmt.Stringer) (asm.Instructions, error) {
	proto, ok := classify.Type.(*btf.FuncProto)
	if !ok || len(proto.Params) != 1 {
		return nil, fmt.Errorf("emit %s: it is not a function of one parameter", classify.Name)
	}
	funcs, err := emitACL(a, classify.Name)
	if err != nil {
		return nil, fmt.Errorf("emit %s: %w", classify.Name, err)
	}
	number := btf.FuncParam{Name: "number", Type: proto.Return}
	types := map[emitKind]*btf.FuncProto{
		emitClassify: proto,
		emitSet:      {Return: proto.Return, Params: []btf.FuncParam{proto.Params[0], number}},
		emitPart: {
			Return: &btf.Int{Name: "unsigned long", Size: 8, Encoding: btf.Unsigned},
			Params: []btf.FuncParam{proto.Params[0], number},
		},
	}
	var insns asm.Instructions
	for _, fn := range funcs {
		t := classify
		if fn.kind != emitClassify {
			t = &btf.Func{Name: fn.name, Type: types[fn.kind], Linkage: btf.GlobalFunc}
		}
		fn.insns[0] = btf.WithFuncMetadata(fn.insns[0], t).WithSymbol(fn.name)
		fn.insns[0].Metadata.Set(emitGenerated{}, true)
		if line != nil {
			fn.insns[0] = fn.insns[0].WithSource(line)
		}
		insns = append(insns, fn.insns...)
	}
	return insns, nil
}

// ReplaceClassifier puts a in the place of the function `classify` of a program: see ReplacePipe.
func ReplaceClassifier(spec *ebpf.ProgramSpec, a *ACL) error {
	return ReplacePipe(spec, emitClassifyName, a)
}

// ReplacePipe puts a in the place of a function of a program that holds it, as loaded from the object or
// with another pipe in it, and takes out functions that nothing calls any more. The function is global
// and takes and returns what classify does (Instructions). The spec's other programs are not touched.
// Errors: a program without that function or without type information, and those of Instructions, whose
// limits hold for all pipes of a program together.
//
// A program may hold several pipes in functions of different names: all but their audit and what else
// Instructions leaves to the program are their own. Their large sets and forests share the maps, and are numbered
// by CompileACLAfter.
//
// Generated functions call each other two deep below the function, audit included; of the eight frames
// that the kernel allows, it may therefore be at most the sixth.
func ReplacePipe(spec *ebpf.ProgramSpec, function string, a *ACL) error {
	at, fn, err := functionOf(spec, function)
	if err != nil {
		return fmt.Errorf("replace %s of program %s: %w", function, spec.Name, err)
	}
	generated, err := a.instructions(fn, spec.Instructions[at].Source())
	if err != nil {
		return fmt.Errorf("replace %s of program %s: %w", function, spec.Name, err)
	}
	if err := replaceAt(spec, at, generated); err != nil {
		return fmt.Errorf("replace %s of program %s: %w", function, spec.Name, err)
	}
	return nil
}

// ReplaceFunction puts instructions in the place of a global function of a program, whose type stays, and
// takes out functions that nothing calls any more. Jumps in body must be numbers of instructions, not
// references, and its first instruction no jump. Behind body come functions that it calls, each with its name and
// type. The spec's other programs are not touched. Errors: a program without that function or without type
// information.
func ReplaceFunction(spec *ebpf.ProgramSpec, name string, body asm.Instructions, called ...asm.Instructions) error {
	at, fn, err := functionOf(spec, name)
	if err == nil {
		body = slices.Clone(body)
		body[0] = btf.WithFuncMetadata(body[0], fn).WithSymbol(name)
		for _, function := range called {
			body = append(body, function...)
		}
		if line := spec.Instructions[at].Source(); line != nil {
			for i := range body {
				if body[i].Symbol() != "" { // a program that has lines must have one for each function
					body[i] = body[i].WithSource(line)
				}
			}
		}
		err = replaceAt(spec, at, body)
	}
	if err != nil {
		return fmt.Errorf("replace function %s of program %s: %w", name, spec.Name, err)
	}
	return nil
}

// DropFunctions takes functions out of a program, and those that only they called. Calls of them answer 0
// instead, and are best where the program never comes. A name that the program has no function of is none.
func DropFunctions(spec *ebpf.ProgramSpec, names ...string) error {
	insns := slices.Clone(spec.Instructions)
	for i := range insns {
		if ins := &insns[i]; ins.IsFunctionCall() && slices.Contains(names, ins.Reference()) {
			*ins = asm.Mov.Imm(asm.R0, 0).WithSymbol(ins.Symbol()).WithSource(ins.Source())
		}
	}
	insns, err := emitCalled(insns)
	if err != nil {
		return fmt.Errorf("drop functions of program %s: %w", spec.Name, err)
	}
	spec.Instructions = insns
	return nil
}

// functionOf returns where a function of a program begins, and its type.
func functionOf(spec *ebpf.ProgramSpec, name string) (at int, fn *btf.Func, err error) {
	at = slices.IndexFunc(spec.Instructions, func(ins asm.Instruction) bool { return ins.Symbol() == name })
	if at < 0 {
		return 0, nil, fmt.Errorf("it has no function %s", name)
	}
	if fn = btf.FuncMetadata(&spec.Instructions[at]); fn == nil {
		return 0, nil, fmt.Errorf("function %s has no type information: was the object stripped?", name)
	}
	return at, fn, nil
}

// replaceAt puts functions in the place of the one that begins at a place.
func replaceAt(spec *ebpf.ProgramSpec, at int, functions asm.Instructions) error {
	end := at + 1
	for end < len(spec.Instructions) && spec.Instructions[end].Symbol() == "" {
		end++
	}
	// The new functions go before the old ones of the same name, if another pipe was there: the
	// first function of a name is the one that stays.
	insns := make(asm.Instructions, 0, len(spec.Instructions)+len(functions))
	insns = append(insns, spec.Instructions[:at]...)
	insns = append(insns, functions...)
	insns = append(insns, spec.Instructions[end:]...)
	insns, err := emitCalled(insns)
	if err != nil {
		return err
	}
	if err := emitFits(insns); err != nil {
		return err
	}
	spec.Instructions = insns
	return nil
}

// emitGenerated is the key of metadata that generated functions bear on their first instruction.
type emitGenerated struct{}

// emitFits refuses a program whose pipes together no kernel would load.
func emitFits(insns asm.Instructions) error {
	generated, slots, functions := false, 0, 0
	for i := range insns {
		if insns[i].Symbol() != "" {
			if generated = insns[i].Metadata.Get(emitGenerated{}) != nil; generated {
				functions++
			}
		}
		if generated {
			slots += int(insns[i].Width())
		}
	}
	switch {
	case functions > emitMaxFuncs:
		return fmt.Errorf("its pipes need %d functions, more than the %d that fit into a program", functions, emitMaxFuncs)
	case slots > emitMaxSlots:
		return fmt.Errorf("its pipes need %d instructions, more than the %d that fit into a program", slots, emitMaxSlots)
	}
	return nil
}

// emitCalled returns the functions of a program that its first one calls, directly or not: the
// verifier refuses others as unreachable. Functions of one name are the first of them.
func emitCalled(insns asm.Instructions) (asm.Instructions, error) {
	type function struct {
		name string
		body asm.Instructions
	}
	var functions []function
	index := map[string]int{}
	for i := 0; i < len(insns); {
		end := i + 1
		for end < len(insns) && insns[end].Symbol() == "" {
			end++
		}
		name := insns[i].Symbol()
		if name == "" {
			return nil, errors.New("its first instruction has no symbol")
		}
		if _, again := index[name]; !again {
			index[name] = len(functions)
			functions = append(functions, function{name, insns[i:end]})
		}
		i = end
	}
	called := make([]bool, len(functions))
	var visit func(i int)
	visit = func(i int) {
		called[i] = true
		for _, name := range functions[i].body.FunctionReferences() {
			if j, ok := index[name]; ok && !called[j] {
				visit(j)
			}
		}
	}
	visit(0)
	var kept asm.Instructions
	for i, fn := range functions {
		if called[i] {
			kept = append(kept, fn.body...)
		}
	}
	return kept, nil
}
