package pipe

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// Program is a compiled pipeline: what became of each pipe, and the memory that its tables begin with.
type Program struct {
	Pipeline *Pipeline
	Pipes    []*Planned // by number
	Memory   *Memory
}

// Form is what a pipe became.
type Form string

// Forms of pipes.
const (
	InCode    Form = "code"   // instructions: a search tree
	InBuckets Form = "exact"  // a table of exact matches in memory
	InTrie    Form = "prefix" // tables of prefixes in memory
	InACL     Form = "acl"    // flowtable's classifier: instructions, or a forest in memory
	InSlots   Form = "slots"  // entries by number
	InFlows   Form = "flows"  // the gateway's flow table
)

// Planned is a compiled pipe.
type Planned struct {
	Pipe   *Pipe
	Number int
	Form   Form
	Why    string  // one sentence: why this form
	NS     float64 // predicted for a packet that enters it
	Insns  int     // instructions

	First uint32 // place of the pipe's first entry in Memory.Entries; entry n of a pipe that is no exact table is at First + n
	Table *Table // of exact matches
	LPM   *LPMTable
	ACL   *flowtable.ACL
}

// Memory is what maps of a program hold: mapped, or of the heap for those who run without a kernel. Place 0 of
// Entries is nobody's.
type Memory struct {
	Entries []bpf.PipesPipeEntry
	Buckets []bpf.PipesPipeBucket
	Meters  []bpf.PipesPipeMeter
}

// Table and LPMTable stand here until their files come.
type (
	Table    struct{}
	LPMTable struct{}
)
