package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
)

// The program loads as it is in the object, and sends what it is given on to the policy.
func TestPipesLoad(t *testing.T) {
	requireRoot(t)
	spec, err := LoadPipes()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	var o struct {
		Program *ebpf.Program `ebpf:"softdpu_pipes"`
	}
	if err := spec.LoadAndAssign(&o, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	defer o.Program.Close()
}
