package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// onlyFor are the functions that are called only behind a constant of the programs that translate.
var onlyFor = map[string][]string{
	bpf.XDPVarHaveSourceLimit: {"count_source"},
	bpf.XDPVarHaveMapping:     {"find_mapping", "enter_mapping_alias", "enter_mapping", "enter_peer", "finish_mapping"},
	bpf.XDPVarHaveFiltering:   {"admit", "choose_hairpin", "keep_destination"},
}

// without takes what is behind a constant that is 0 out of the programs of a spec: the functions that are called
// nowhere else, and each reading of the constant. The rest of what is behind it the kernel leaves out itself.
func without(spec *ebpf.CollectionSpec, constant string, functions ...string) error {
	have := spec.Variables[constant]
	if have == nil {
		return fmt.Errorf("take out what %s is for: the program object has no such constant: it does not fit this binary", constant)
	}
	for name, prog := range spec.Programs {
		if err := flowtable.DropFunctions(prog, functions...); err != nil {
			return fmt.Errorf("take what %s is for out of %s: %w", constant, name, err)
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
