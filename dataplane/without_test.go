package dataplane

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// The object has every function that is taken out, and the constants are read nowhere afterwards.
func TestWithout(t *testing.T) {
	for constant, functions := range onlyFor {
		spec, err := bpf.LoadXDP()
		if err != nil {
			t.Fatal(err)
		}
		found := func() (there []string, reads int) {
			for i := range spec.Programs[bpf.XDPProgSoftdpu].Instructions {
				ins := &spec.Programs[bpf.XDPProgSoftdpu].Instructions[i]
				if slices.Contains(functions, ins.Symbol()) {
					there = append(there, ins.Symbol())
				}
				if readsConstant(ins, spec.Variables[constant]) {
					reads++
				}
			}
			return there, reads
		}
		if there, reads := found(); len(there) != len(functions) || reads == 0 {
			t.Errorf("%s: the object has %v of %v, and %d readings", constant, there, functions, reads)
		}
		if err := without(spec, constant, functions...); err != nil {
			t.Fatal(err)
		}
		if there, reads := found(); len(there) != 0 || reads != 0 {
			t.Errorf("%s: left are %v, and %d readings", constant, there, reads)
		}
	}
}

// What a policy that translates does not use of translation is not in its programs: no line of the file that
// holds it.
func TestWithoutLoaded(t *testing.T) {
	testenv.RequireRoot(t)
	for _, tt := range []struct{ name, constant, file string }{
		{"limits of sources", bpf.XDPVarHaveSourceLimit, "tally.h"},
		{"mappings", bpf.XDPVarHaveMapping, "mapping.h"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			size := func(have bool) (lines, size int) {
				t.Helper()
				spec, err := bpf.LoadXDP()
				if err != nil {
					t.Fatal(err)
				}
				keepPrograms(spec, bpf.XDPProgSoftdpu)
				// nothing comes in by mappings that there are not
				if err := without(spec, bpf.XDPVarHaveFiltering, onlyFor[bpf.XDPVarHaveFiltering]...); err != nil {
					t.Fatal(err)
				}
				if err := spec.Variables[tt.constant].Set(boolByte(have)); err != nil {
					t.Fatal(err)
				}
				if !have {
					if err := without(spec, tt.constant, onlyFor[tt.constant]...); err != nil {
						t.Fatal(err)
					}
				}
				coll, err := ebpf.NewCollection(spec)
				if err != nil {
					t.Fatal(err)
				}
				defer coll.Close()
				info, err := coll.Programs[bpf.XDPProgSoftdpu].Info()
				if err != nil {
					t.Fatal(err)
				}
				insns, err := info.Instructions()
				if err != nil {
					t.Fatal(err)
				}
				for i := range insns {
					if fileOf(insns[i].Source()) == tt.file && insns[i].OpCode != asm.Mov.Reg(0, 0).OpCode {
						lines++
					}
				}
				return lines, len(insns)
			}
			with, large := size(true)
			left, small := size(false)
			t.Logf("%d instructions, and %d without", large, small)
			if with == 0 || left != 0 || small >= large {
				t.Errorf("%d lines in %d instructions; without %d in %d", with, large, left, small)
			}
		})
	}
}

// fileOf returns the name of the file of an instruction's line, "" if it begins none.
func fileOf(line any) string {
	if l, ok := line.(*btf.Line); ok && l != nil {
		return filepath.Base(l.FileName())
	}
	return ""
}
