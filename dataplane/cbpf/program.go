package cbpf

import (
	"fmt"
	"math"
	"strings"
)

// An Instruction is one of classic BPF, as in struct sock_filter.
type Instruction struct {
	Code   uint16
	JT, JF uint8
	K      uint32
}

// A Program is a classic BPF filter. Its answer to a frame is yes if it returns anything but 0.
type Program []Instruction

// All takes every frame.
var All = Program{{Code: classRET, K: math.MaxUint32}}

// maxInstructions is what Linux and libpcap take.
const maxInstructions = 4096

// Classes, sizes, modes and operations of linux/bpf_common.h.
const (
	classLD, classLDX, classST, classSTX   = 0x00, 0x01, 0x02, 0x03
	classALU, classJMP, classRET, classMSC = 0x04, 0x05, 0x06, 0x07

	sizeW, sizeH, sizeB = 0x00, 0x08, 0x10

	modeIMM, modeABS, modeIND, modeMEM, modeLEN, modeMSH = 0x00, 0x20, 0x40, 0x60, 0x80, 0xa0

	aluADD, aluSUB, aluMUL, aluDIV, aluOR, aluAND = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50
	aluLSH, aluRSH, aluNEG, aluMOD, aluXOR        = 0x60, 0x70, 0x80, 0x90, 0xa0

	jmpJA, jmpJEQ, jmpJGT, jmpJGE, jmpJSET = 0x00, 0x10, 0x20, 0x30, 0x40

	sourceX = 0x08 // of an operand; else K
	returnA = 0x10 // of a return; else K
	miscTXA = 0x80 // else TAX
)

const (
	memoryWords = 16         // of scratch memory
	beside      = 0xfffff000 // offsets from here on are Linux's own, of what lies beside the packet
)

// Parse reads a program as `tcpdump -ddd` prints it: the number of instructions, then one a line as four
// decimal numbers. The error says in which line it is no filter that could be run.
func Parse(text string) (Program, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var n int
	if _, err := fmt.Sscanf(lines[0], "%d", &n); err != nil {
		return nil, fmt.Errorf("read filter program: line 1 is not the number of its instructions")
	}
	if n != len(lines)-1 {
		return nil, fmt.Errorf("read filter program: it has %d instructions and says %d", len(lines)-1, n)
	}
	if n < 1 || n > maxInstructions {
		return nil, fmt.Errorf("read filter program: %d instructions, and it can have from 1 to %d", n, maxInstructions)
	}
	p := make(Program, n)
	for i, line := range lines[1:] {
		in := &p[i]
		var rest string
		if got, _ := fmt.Sscan(line, &in.Code, &in.JT, &in.JF, &in.K, &rest); got != 4 {
			return nil, fmt.Errorf("read filter program: line %d is not four numbers (code, jump if true, jump if false, operand)", i+2)
		}
	}
	for i := range p {
		if err := p.check(i); err != nil {
			return nil, fmt.Errorf("read filter program: instruction %d: %w", i, err)
		}
	}
	if last := p[n-1]; last.Code&7 != classRET {
		return nil, fmt.Errorf("read filter program: its last instruction does not return")
	}
	return p, nil
}

// known are the codes that libpcap's interpreter knows.
var known = func() map[uint16]bool {
	k := make(map[uint16]bool)
	for _, size := range []uint16{sizeW, sizeH, sizeB} {
		k[classLD|size|modeABS], k[classLD|size|modeIND] = true, true
	}
	for _, mode := range []uint16{modeIMM, modeMEM, modeLEN} {
		k[classLD|mode], k[classLDX|mode] = true, true
	}
	k[classLDX|sizeB|modeMSH], k[classST], k[classSTX] = true, true, true
	for _, op := range []uint16{aluADD, aluSUB, aluMUL, aluDIV, aluOR, aluAND, aluLSH, aluRSH, aluMOD, aluXOR} {
		k[classALU|op], k[classALU|op|sourceX] = true, true
	}
	k[classALU|aluNEG], k[classJMP|jmpJA] = true, true
	for _, op := range []uint16{jmpJEQ, jmpJGT, jmpJGE, jmpJSET} {
		k[classJMP|op], k[classJMP|op|sourceX] = true, true
	}
	k[classRET], k[classRET|returnA], k[classMSC], k[classMSC|miscTXA] = true, true, true, true
	return k
}()

// check refuses an instruction that could not be run, or would mean something else here.
func (p Program) check(i int) error {
	in, left := p[i], uint64(len(p)-1-i)
	if !known[in.Code] {
		return fmt.Errorf("code %d is none of classic BPF", in.Code)
	}
	switch in.Code & 7 {
	case classLD:
		if in.Code&0xe0 == modeABS && in.K >= beside {
			return fmt.Errorf("it asks for what is not in the frame, as `inbound` does: direction and port are not the filter's to choose")
		}
	case classALU:
		switch op := in.Code & 0xf0; {
		case in.Code&sourceX != 0:
		case (op == aluDIV || op == aluMOD) && in.K == 0:
			return fmt.Errorf("it divides by 0")
		case (op == aluLSH || op == aluRSH) && in.K > 31:
			return fmt.Errorf("it shifts by %d bits of 32", in.K)
		}
	case classJMP:
		// A program with a jump back (`protochain`) may never end.
		far := max(uint64(in.JT), uint64(in.JF))
		if in.Code&0xf0 == jmpJA {
			far = uint64(in.K)
		}
		if far >= left {
			return fmt.Errorf("it jumps out of the program, or back as `protochain` does: such a filter cannot be run in the kernel")
		}
	}
	memory := in.Code&7 == classST || in.Code&7 == classSTX || in.Code&7 <= classLDX && in.Code&0xe0 == modeMEM
	if memory && in.K >= memoryWords {
		return fmt.Errorf("it uses word %d of a memory of %d", in.K, memoryWords)
	}
	return nil
}
