package dataplane

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// natSources are the files of bpf/ that hold nothing but translation.
var natSources = []string{"alias.h", "mapping.h", "nat.h", "open.h", "pass.h", "ports.h", "translate.h"}

// specOf returns the object with all programs but the dispatchers, translation switched on or off.
func specOf(t *testing.T, translates bool) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := bpf.LoadXDP()
	if err != nil {
		t.Fatal(err)
	}
	keepPrograms(spec, bpf.XDPProgSoftdpu, bpf.XDPProgSoftdpuTapped, bpf.XDPProgGuard, bpf.XDPProgGuardTapped)
	if err := spec.Variables[bpf.XDPVarHaveNat].Set(boolByte(translates)); err != nil {
		t.Fatal(err)
	}
	return spec
}

// A policy that translates nothing has programs in which nothing is left of translation: no function, no map,
// no reading of the constant that switches it on. The object has all of that, or the test would see nothing.
func TestWithoutNAT(t *testing.T) {
	left := func(spec *ebpf.CollectionSpec, name string) (functions, maps []string, reads int) {
		have := spec.Variables[bpf.XDPVarHaveNat]
		prog := spec.Programs[name]
		for i := range prog.Instructions {
			ins := &prog.Instructions[i]
			if fn := btf.FuncMetadata(ins); fn != nil && slices.Contains(natSources, fileOf(ins.Source())) {
				functions = append(functions, fn.Name)
			}
			if ins.IsLoadFromMap() && strings.HasPrefix(ins.Reference(), "nat_") {
				maps = append(maps, ins.Reference())
			}
			if readsConstant(ins, have) {
				reads++
			}
		}
		return functions, maps, reads
	}
	with, without := specOf(t, true), specOf(t, false)
	if err := withoutNAT(without); err != nil {
		t.Fatal(err)
	}
	for name := range with.Programs {
		if functions, maps, reads := left(with, name); len(functions) == 0 || len(maps) == 0 || reads == 0 {
			t.Errorf("%s in the object: functions %v, maps %v, %d readings of the constant", name, functions, maps, reads)
		}
		if functions, maps, reads := left(without, name); len(functions)+len(maps)+reads != 0 {
			t.Errorf("%s without translation: functions %v, maps %v, %d readings of the constant", name, functions, maps, reads)
		}
	}
}

// A policy that translates without mappings has none of theirs, and one whose mappings let nobody in nothing that
// does: no function, no reading of their constants. The rest is there.
func TestWithoutMapping(t *testing.T) {
	for _, tt := range []struct {
		name     string
		takeOut  func(*ebpf.CollectionSpec) error
		gone     []string
		constant []string
		stay     []string
	}{
		{"without mappings", withoutMapping, slices.Concat(mappingFunctions, filteringFunctions), []string{bpf.XDPVarHaveMapping, bpf.XDPVarHaveFiltering},
			[]string{"miss_translated", "choose_source", "enter_alias"}},
		{"without filtering", withoutFiltering, filteringFunctions, []string{bpf.XDPVarHaveFiltering}, append([]string{"miss_translated"}, mappingFunctions...)},
	} {
		spec := specOf(t, true)
		count := func(prog string) (there, read int) {
			for i := range spec.Programs[prog].Instructions {
				ins := &spec.Programs[prog].Instructions[i]
				if fn := btf.FuncMetadata(ins); fn != nil && slices.Contains(tt.gone, fn.Name) {
					there++
				}
				if slices.ContainsFunc(tt.constant, func(c string) bool { return readsConstant(ins, spec.Variables[c]) }) {
					read++
				}
			}
			return there, read
		}
		if there, read := count(bpf.XDPProgSoftdpu); there != len(tt.gone) || read == 0 {
			t.Errorf("%s: the object has %d of %v and %d readings", tt.name, there, tt.gone, read)
		}
		if err := tt.takeOut(spec); err != nil {
			t.Fatal(err)
		}
		for prog := range spec.Programs {
			if there, read := count(prog); there+read != 0 {
				t.Errorf("%s: %s has %d of %v and %d readings", tt.name, prog, there, tt.gone, read)
			}
		}
		for _, name := range tt.stay {
			if !slices.ContainsFunc(spec.Programs[bpf.XDPProgSoftdpu].Instructions, func(ins asm.Instruction) bool { return ins.Symbol() == name }) {
				t.Errorf("%s: function %s is gone as well", tt.name, name)
			}
		}
	}
}

// The kernel loads them, and without one instruction of translation.
func TestWithoutNATLoaded(t *testing.T) {
	testenv.RequireRoot(t)
	lines := func(spec *ebpf.CollectionSpec, name string) (n int) {
		t.Helper()
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer coll.Close()
		info, err := coll.Programs[name].Info()
		if err != nil {
			t.Fatal(err)
		}
		insns, err := info.Instructions()
		if err != nil {
			t.Fatal(err)
		}
		for i := range insns {
			// the compiler may let one of its moves begin a line that it does not belong to
			if slices.Contains(natSources, fileOf(insns[i].Source())) && insns[i].OpCode != asm.Mov.Reg(0, 0).OpCode {
				n++
			}
		}
		t.Logf("%s: %d instructions, %d lines of translation begin there", name, len(insns), n)
		return n
	}
	for _, name := range []string{bpf.XDPProgSoftdpu, bpf.XDPProgGuard} {
		with, without := specOf(t, true), specOf(t, false)
		keepPrograms(with, name)
		keepPrograms(without, name)
		if err := withoutNAT(without); err != nil {
			t.Fatal(err)
		}
		if lines(with, name) == 0 {
			t.Errorf("%s translates without an instruction for it", name)
		}
		if n := lines(without, name); n != 0 {
			t.Errorf("%s does not translate, and has %d lines of it", name, n)
		}
	}
}

// fileOf returns the name of the file of an instruction's line, "" if it begins none.
func fileOf(line any) string {
	if l, ok := line.(*btf.Line); ok && l != nil {
		return filepath.Base(l.FileName())
	}
	return ""
}
