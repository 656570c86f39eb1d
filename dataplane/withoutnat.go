package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// natFunctions are those of the programs that only translation calls. What only they call goes with them.
var natFunctions = []string{
	"miss_translated", "follow4", "follow6", "end_translation4", "end_translation6", "take_back4", "take_back6",
	"translate_headers", "translate_error", "pass_translated", "guard_translated",
}

// mappingFunctions are those that only endpoint-independent mapping calls, filteringFunctions those that only
// its filtering does.
var (
	mappingFunctions   = []string{"find_mapping", "enter_mapping_alias", "enter_mapping", "enter_peer", "finish_mapping"}
	filteringFunctions = []string{"admit", "choose_hairpin", "keep_destination"}
)

// withoutNAT takes translation out of the programs of a spec whose have_nat is 0: the functions that only it
// calls, and each reading of the constant. What is behind that constant the kernel leaves out itself.
func withoutNAT(spec *ebpf.CollectionSpec) error {
	if err := without(spec, bpf.XDPVarHaveNat, natFunctions); err != nil {
		return err
	}
	return withoutMapping(spec)
}

// withoutMapping does so with endpoint-independent mapping and its filtering, have_mapping and have_filtering.
func withoutMapping(spec *ebpf.CollectionSpec) error {
	if err := without(spec, bpf.XDPVarHaveMapping, mappingFunctions); err != nil {
		return err
	}
	return withoutFiltering(spec)
}

func withoutFiltering(spec *ebpf.CollectionSpec) error {
	return without(spec, bpf.XDPVarHaveFiltering, filteringFunctions)
}

// without takes out what is behind a constant that is 0.
func without(spec *ebpf.CollectionSpec, constant string, functions []string) error {
	have := spec.Variables[constant]
	if have == nil {
		return fmt.Errorf("take out translation: the program object has no constant %s: it does not fit this binary", constant)
	}
	for name, prog := range spec.Programs {
		if err := flowtable.DropFunctions(prog, functions...); err != nil {
			return fmt.Errorf("take translation out of %s: %w", name, err)
		}
		foldZero(prog.Instructions, have)
	}
	return nil
}

// foldZero has instructions know that a constant of one byte is 0. A reading is a load of its address and one
// through that; a register set to 0 is left of it, and where both use the same a jump to the next instruction,
// which the kernel takes out. It would refuse a program that used the address once more.
func foldZero(insns asm.Instructions, of *ebpf.VariableSpec) {
	for i := range len(insns) - 1 {
		at, read := &insns[i], &insns[i+1]
		if !readsConstant(at, of) || read.OpCode != asm.LoadMemOp(asm.Byte) || read.Src != at.Dst || read.Offset != 0 || read.Symbol() != "" {
			continue
		}
		zero := asm.Mov.Imm(read.Dst, 0)
		if read.Dst == at.Dst {
			zero = asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja)}
		}
		insns[i+1] = zero.WithSource(read.Source())
		insns[i] = asm.LoadImm(at.Dst, 0, asm.DWord).WithSymbol(at.Symbol()).WithSource(at.Source())
	}
}

// readsConstant reports whether an instruction loads the address of a constant.
func readsConstant(ins *asm.Instruction, of *ebpf.VariableSpec) bool {
	return ins.IsLoadFromMap() && ins.Src == asm.PseudoMapValue && ins.Reference() == of.SectionName &&
		uint32(uint64(ins.Constant)>>32) == of.Offset
}
