package bpf

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// natSources are the files that hold nothing but translation.
var natSources = []string{"alias.h", "nat.h", "mapping.h", "open.h", "pass.h", "ports.h", "tally.h", "translate.h"}

// The form without translation has nothing of it: no function, no map, no line. The other has all of that,
// or the test would see nothing; and either runs on the maps of the other.
func TestWithoutNAT(t *testing.T) {
	with, without := read(t, LoadXDP), read(t, LoadWithoutNAT)
	for name := range with.Programs {
		if !slices.Contains([]string{XDPProgSoftdpu, XDPProgSoftdpuTapped, XDPProgGuard, XDPProgGuardTapped}, name) {
			continue
		}
		if found := translation(with.Programs[name]); len(found) < 100 {
			t.Errorf("%s has of translation only %v", name, found)
		}
		if found := translation(without.Programs[name]); len(found) > 0 {
			t.Errorf("%s without translation has of it %v", name, found)
		}
	}
	if a, b := slices.Sorted(maps.Keys(with.Maps)), slices.Sorted(maps.Keys(without.Maps)); !slices.Equal(a, b) {
		t.Errorf("maps %v, and without translation %v", a, b)
	}
	for name, m := range with.Maps {
		other := without.Maps[name]
		if other != nil && name != ".rodata" && (m.Type != other.Type || m.KeySize != other.KeySize || m.ValueSize != other.ValueSize || m.Flags != other.Flags) {
			t.Errorf("map %s is %v, and without translation %v", name, m, other)
		}
	}
}

// natShapes are the functions that do more, or something of their own, for a policy that translates. All
// others are the same in both forms, instruction by instruction.
var natShapes = map[string]bool{
	"find_again": true, "forward": true, "forward_tapped": true, // look flows up, and go on
	"enter_flow": true, "insert4": true, "insert6": true, "judge_opening": true, "rejudge": true, // open and judge them
	"fib_route": true, "route_leg": true, "quoted_xdp": true, "quoted_tc": true,
	"refuse": true, "pass": true, "answer_icmp": true,
	"guard": true, "guard_tapped": true, "judge_own": true, "judge_own_tapped": true,
}

// As the kernel runs them, function by function: what only translation calls is not there, what does more for
// it is shorter, and nothing else differs.
func TestWithoutNATLoaded(t *testing.T) {
	for _, name := range []string{XDPProgSoftdpu, XDPProgGuard} {
		with, without := functions(t, LoadXDP, name), functions(t, LoadWithoutNAT, name)
		for _, fn := range slices.Sorted(maps.Keys(with.size)) {
			t.Logf("%-8s %-20s %5d with, %5d without translation", name, fn, with.size[fn], without.size[fn])
		}
		for fn, size := range without.size {
			switch most, ok := with.size[fn]; {
			case fn == "miss": // which miss_translated takes the place of
			case !ok:
				t.Errorf("%s has %s only without translation", name, fn)
			case natShapes[fn] && size > most:
				t.Errorf("%s of %s has %d instructions, and without translation %d", fn, name, most, size)
			case !natShapes[fn] && with.text[fn] != without.text[fn]:
				t.Errorf("%s of %s is another without translation: %d instructions and %d", fn, name, most, size)
			}
		}
	}
}

// read returns the programs and maps of an object.
func read(t *testing.T, object func() (*ebpf.CollectionSpec, error)) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := object()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// translation returns the functions, maps and lines of a program that only translation has.
func translation(prog *ebpf.ProgramSpec) (found []string) {
	for i := range prog.Instructions {
		ins := &prog.Instructions[i]
		if l, ok := ins.Source().(*btf.Line); ok && slices.Contains(natSources, filepath.Base(l.FileName())) {
			found = append(found, filepath.Base(l.FileName())+": "+strings.TrimSpace(l.Line()))
		}
		if ref := ins.Reference(); strings.HasPrefix(ref, "nat_") || strings.Contains(ref, "translate") {
			found = append(found, ref)
		}
	}
	return found
}

// loadedFunctions are those of a program as the kernel runs it, by name.
type loadedFunctions struct {
	size map[string]int    // instructions
	text map[string]string // the same in writing, without the numbers of maps
}

// functions loads a program of an object alone.
func functions(t *testing.T, object func() (*ebpf.CollectionSpec, error), name string) loadedFunctions {
	t.Helper()
	requireRoot(t)
	spec := read(t, object)
	maps.DeleteFunc(spec.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
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
	loaded := loadedFunctions{make(map[string]int), make(map[string]string)}
	text, fn := make(map[string]*strings.Builder), ""
	for i := range insns {
		ins := &insns[i]
		if f := btf.FuncMetadata(ins); f != nil {
			fn = f.Name
			text[fn] = new(strings.Builder)
		}
		loaded.size[fn] += int(ins.Width())
		offset, constant := ins.Offset, ins.Constant
		if ins.IsLoadFromMap() || ins.IsFunctionCall() {
			offset, constant = 0, 0 // the kernel's own numbers
		}
		fmt.Fprintln(text[fn], ins.OpCode, ins.Dst, ins.Src, offset, constant, ins.Reference())
	}
	for fn, b := range text {
		loaded.text[fn] = b.String()
	}
	return loaded
}
