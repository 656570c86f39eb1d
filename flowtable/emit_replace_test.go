package flowtable

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
)

// The object's own programs load with a pipe in the classifier's place, whether it calls audit() or
// leaves it without a caller, is small or in parts, and after another pipe.
func TestReplaceClassifierOfObject(t *testing.T) {
	kernelNeedsRoot(t)
	s := aclSource{rand.New(rand.NewPCG(9, 9))}
	quiet := s.entries(30)
	for i := range quiet {
		quiet[i].Audit = false
	}
	for _, row := range []struct {
		name  string
		pipes [][]ACLEntry
	}{
		{"empty", [][]ACLEntry{nil}},
		{"without audit", [][]ACLEntry{quiet}},
		{"with audit", [][]ACLEntry{s.entries(30)}},
		{"parts and sets", [][]ACLEntry{aclLarge(s)}},
		{"small after large", [][]ACLEntry{aclLarge(s), s.entries(5)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			spec, err := bpf.LoadWithoutNAT()
			if err != nil {
				t.Fatal(err)
			}
			for name, prog := range spec.Programs {
				if name != "softdpu" && name != "guard" {
					delete(spec.Programs, name)
					continue
				}
				for _, entries := range row.pipes {
					a, err := CompileACL(entries)
					if err != nil {
						t.Fatal(err)
					}
					if err := ReplaceClassifier(prog, a); err != nil {
						t.Fatal(err)
					}
				}
			}
			c, err := ebpf.NewCollection(spec)
			if err != nil {
				t.Fatal(kernelLog(err))
			}
			c.Close()
		})
	}
}

// aclLarge needs several parts, sets of their own and sets in maps.
func aclLarge(s aclSource) []ACLEntry {
	entries := aclFirewallRules(2000)
	for i := range entries {
		entries[i].Audit = i%40 == 7
	}
	threats := ACLEntry{Proto: U8Range{0, 255}, SrcPort: U16Range{0, 65535}, DstPort: U16Range{0, 65535}, Verdict: Verdict(5000, 2, 0)}
	for range 6000 {
		threats.Dst = append(threats.Dst,
			aclPrefix(aclPrefix4(s.Uint32(), 20+s.IntN(13))), aclPrefix(aclPrefix6(s.Uint64(), 24+s.IntN(105))))
	}
	some := threats
	some.Dst, some.Src, some.Audit = nil, threats.Dst[:100], true
	return append([]ACLEntry{threats, some}, entries...)
}

func TestInstructionsOfLargePipe(t *testing.T) {
	kernelNeedsRoot(t)
	s := aclSource{rand.New(rand.NewPCG(10, 10))}
	entries := aclLarge(s)
	a := codeACL(entries)
	funcs, err := emitACL(a, emitClassifyName)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[emitKind]int{}
	for _, fn := range funcs {
		kinds[fn.kind]++
	}
	if set4, set6 := a.Sets(); kinds[emitPart] < 2 || kinds[emitSet] < 1 || len(set4) < 2 || len(set6) < 2 {
		t.Fatalf("%d parts, %d sets, %d and %d nodes of sets: the pipe is too small for this test", kinds[emitPart], kinds[emitSet], len(set4), len(set6))
	}
	k := newKernelClassifier(t, a, true)
	keys := make([]bpf.XDPClassifyKey, kernelBatch)
	for i := range keys {
		switch i % 4 {
		case 0:
			keys[i] = s.key(entries[:2])
		case 1:
			keys[i] = s.key(entries)
		default:
			keys[i] = aclInsideKey(s.Rand, entries[2:])
		}
	}
	matched, reported := aclAgree(t, entries, a, k, keys)
	if matched < kernelBatch/3 || reported == 0 {
		t.Errorf("%d keys matched, %d reports: the test asks too little", matched, reported)
	}
}

func TestInstructionsRefuseWhatDoesNotFit(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	entries := make([]ACLEntry, 300)
	for i := range entries {
		entries[i] = ACLEntry{Proto: U8Range{0, 255}, SrcPort: U16Range{0, 65535}, DstPort: U16Range{0, 65535}, Verdict: 1}
		for range aclCodeRanges - 1 {
			entries[i].Src = append(entries[i].Src, aclPrefix(aclPrefix6(r.Uint64(), 128)))
		}
	}
	e := entries[len(entries)-1]
	a := codeACL(entries)
	if _, err := a.Instructions(); err == nil || !strings.Contains(err.Error(), "250000 instructions") {
		t.Errorf("error %v, want one that names the limit of 250000 instructions", err)
	}
	k := bpf.XDPClassifyKey{Family: 6, SrcHi: aclAddr(e.Src[7].First).hi, SrcLo: aclAddr(e.Src[7].First).lo}
	if got := a.Classify(&k, nil); got != 1 {
		t.Errorf("verdict %#x in Go, which has no such limit, want 1", got)
	}
}

func TestReplaceClassifierRefuses(t *testing.T) {
	a, err := CompileACL(nil)
	if err != nil {
		t.Fatal(err)
	}
	bare := &ebpf.ProgramSpec{Name: "bare", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("main"), asm.Return()}}
	if err := ReplaceClassifier(bare, a); err == nil || !strings.Contains(err.Error(), "no function classify") {
		t.Errorf("error %v of a program without classify", err)
	}
	stripped := &ebpf.ProgramSpec{Name: "stripped", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("classify"), asm.Return()}}
	if err := ReplaceClassifier(stripped, a); err == nil || !strings.Contains(err.Error(), "no type information") {
		t.Errorf("error %v of a program without types", err)
	}
}

// The same entries give the same program, whatever the order of Go's maps.
func TestInstructionsAreDeterministic(t *testing.T) {
	entries := aclLarge(aclSource{rand.New(rand.NewPCG(13, 13))})
	var tags [2]string
	for i := range tags {
		a, err := CompileACL(entries)
		if err != nil {
			t.Fatal(err)
		}
		insns, err := a.Instructions()
		if err != nil {
			t.Fatal(err)
		}
		tags[i] = fmt.Sprint(insns)
	}
	if tags[0] != tags[1] {
		t.Error("two compilations of the same entries differ")
	}
}

// Instructions stand alone: classify comes first, every function has a name and a type.
func TestInstructionsAreTyped(t *testing.T) {
	s := aclSource{rand.New(rand.NewPCG(12, 12))}
	typed(t, codeACL(aclLarge(s)))
	typed(t, plantACL(t, aclLarge(s)))
}

func typed(t *testing.T, a *ACL) {
	t.Helper()
	insns, err := a.Instructions()
	if err != nil {
		t.Fatal(err)
	}
	if insns[0].Symbol() != "classify" {
		t.Errorf("the first function is %q", insns[0].Symbol())
	}
	names := map[string]bool{"audit": true}
	for _, own := range kernelOwn {
		names[own] = true
	}
	for i := range insns {
		name, fn := insns[i].Symbol(), btf.FuncMetadata(&insns[i])
		if (name != "") != (fn != nil) || fn != nil && (fn.Name != name || fn.Linkage != btf.GlobalFunc) {
			t.Errorf("instruction %d: symbol %q with type %v", i, name, fn)
		}
		if name != "" && insns[i].OpCode.Class().IsJump() {
			t.Errorf("function %s begins with a jump", name)
		}
		names[name] = true
	}
	for _, name := range insns.FunctionReferences() {
		if !names[name] {
			t.Errorf("function %s is called but not there", name)
		}
	}
}
