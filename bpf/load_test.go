package bpf

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// The kernel's verifier takes every program, and what each costs it is printed: a figure near a
// million means that the next change may not load.
func TestLoad(t *testing.T) {
	t.Run("as it runs by default", func(t *testing.T) { load(t, nil) })
	t.Run("telling every drop", func(t *testing.T) { load(t, map[string]any{XDPVarDropEvents: ^uint64(0)}) })
	t.Run("capturing everything", func(t *testing.T) {
		load(t, map[string]any{XDPVarTapPoints: uint8(7), XDPVarTapPorts: ^uint64(0), XDPVarTapBytes: uint32(65536)})
	})
	t.Run("with workers", func(t *testing.T) {
		load(t, map[string]any{XDPVarHaveWorkers: uint8(1), XDPVarForceStages: uint8(1)})
	})
	t.Run("with workers, capturing everything", func(t *testing.T) {
		load(t, map[string]any{
			XDPVarHaveWorkers: uint8(1), XDPVarDropEvents: ^uint64(0),
			XDPVarTapPoints: uint8(7), XDPVarTapPorts: ^uint64(0), XDPVarTapBytes: uint32(65536),
		})
	})
	t.Run("clamping", func(t *testing.T) { load(t, map[string]any{XDPVarHaveMss: uint8(1)}) })
	t.Run("translating", func(t *testing.T) { loadFrom(t, LoadXDP, nil) })
	t.Run("translating, simulated", func(t *testing.T) {
		loadFrom(t, LoadXDP, map[string]any{XDPVarHaveSourceLimit: uint8(1), XDPVarSimulate: uint8(1)})
	})
	t.Run("mapping and filtering", func(t *testing.T) {
		loadFrom(t, LoadXDP, map[string]any{XDPVarHaveMapping: uint8(1), XDPVarHaveFiltering: uint8(1)})
	})
	t.Run("translating with limits and mappings, clamping, with workers, capturing everything", func(t *testing.T) {
		loadFrom(t, LoadXDP, map[string]any{
			XDPVarHaveSourceLimit: uint8(1), XDPVarHaveMss: uint8(1), XDPVarHaveWorkers: uint8(1), XDPVarDropEvents: ^uint64(0), XDPVarHaveMacs: uint8(1),
			XDPVarHaveMapping: uint8(1), XDPVarHaveFiltering: uint8(1),
			XDPVarTapPoints: uint8(7), XDPVarTapPorts: ^uint64(0), XDPVarTapBytes: uint32(65536),
		})
	})
	t.Run("with workers, simulated", func(t *testing.T) {
		load(t, map[string]any{XDPVarHaveWorkers: uint8(1), XDPVarSimulate: uint8(1)})
	})
}

// What nobody asks for is not in the program: without a clamp it lacks all that clamps.
func TestLoadWithoutClamp(t *testing.T) {
	without, with := load(t, nil), load(t, map[string]any{XDPVarHaveMss: uint8(1)})
	for _, name := range []string{XDPProgSoftdpu, XDPProgSoftdpuTapped} {
		if more := with[name] - without[name]; more < 200 {
			t.Errorf("%s has %d instructions, and %d with a clamp", name, without[name], with[name])
		}
	}
	for _, name := range []string{XDPProgGuard, XDPProgGuardTapped} {
		if with[name] != without[name] {
			t.Errorf("%s has %d instructions, and %d with a clamp, which is not its affair", name, without[name], with[name])
		}
	}
}

// load loads all programs, without translation, and returns how many instructions each has then.
func load(t *testing.T, constants map[string]any) map[string]int {
	t.Helper()
	return loadFrom(t, LoadWithoutNAT, constants)
}

func loadFrom(t *testing.T, object func() (*ebpf.CollectionSpec, error), constants map[string]any) map[string]int {
	t.Helper()
	requireRoot(t)
	spec, err := object()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			log := ve.Log
			t.Fatalf("%v\n%s", err, strings.Join(log[max(0, len(log)-40):], "\n"))
		}
		t.Fatal(err)
	}
	defer coll.Close()
	sizes := make(map[string]int)
	for name, prog := range coll.Programs {
		info, err := prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := info.VerifiedInstructions()
		size, _ := info.TranslatedSize()
		t.Logf("%-16s %7d instructions verified, %6d loaded", name, n, size/8)
		sizes[name] = int(size / 8)
	}
	return sizes
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("loading programs needs root, and CI has it")
		}
		t.Skip("loading programs needs root")
	}
}
