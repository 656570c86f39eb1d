package bpf

import "testing"

// The tables of pipes load by themselves too.
func TestLoadPipeTables(t *testing.T) {
	loadFrom(t, LoadPipeBench, map[string]any{PipeBenchVarCountHits: uint32(1)})
}
