package pipe

import (
	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// Program is a compiled pipeline: what became of each pipe, and the memory that its tables begin with.
type Program struct {
	Pipeline *Pipeline
	Pipes    []*Planned // by number
	Order    []int      // numbers of the pipes that packets reach, each before those that it leads to
	Memory   *Memory
	Counters []uint32   // places of the counters that entries share, by number
	Groups   [][]uint32 // of ports: ids, ascending, by number
	Used     uint64     // words of struct pipe_fields that are read, one bit each
	Hash     [32]byte   // of the pipeline's content and of the options: equal ones do the same

	// CT looks a packet up in the gateway's flow table for [Program.Run], and sets its ct.state; nil: nothing is found.
	CT func(*bpf.PipesPipeFields) bool

	// Now is the time in ns for meters of [Program.Run]; nil: that of the packet's tick.
	Now func() uint64

	clock   func() uint32 // tick; nil: always 0
	pairs   []pair        // of a program that it takes the place of, until Adopt
	named   numbers
	options Options
	root    int
	mirrors [][]uint32           // ids of the ports of each
	join    map[[2]uint32]uint32 // 1 + number of the mirror, forward: group
	meters  []MeterState         // for Run
	turns   []uint32             // of each pipe that takes turns: for Run
}

// tick is the time.
func (p *Program) tick() uint32 {
	if p.clock == nil {
		return 0
	}
	return p.clock()
}

// Form is what a pipe became.
type Form string

// Forms of pipes.
const (
	InCode    Form = "code"   // instructions: a search tree
	InBuckets Form = "exact"  // tables of exact matches in memory
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
	Leads  []int   // numbers of the pipes that packets may go on to; what entries that come later name must be among them

	First  uint32   // place of the pipe's first entry in Memory.Entries
	End    uint32   // behind its last one
	Places []uint32 // of each entry of the pipe
	Miss   uint32   // place of the record that counts misses
	Table  *Table   // of exact matches
	LPM    *LPMTable
	ACL    *flowtable.ACL

	room     int               // entries that its tables have room for
	free     []uint32          // places of an LPM pipe that no entry has
	names    map[string]*Entry // of entries that have one; nil until somebody asks
	need     uint32            // enum pipe_has: without these a packet is a miss
	keys     []term            // of exact matches and of hashes
	tree     *tree             // InCode
	bucket   uint32            // InBuckets, and a consistent hash: the first one
	trie     uint32            // InTrie without an exact part: number of its table
	group    uint32            // InTrie with one: first place of the records of exact parts
	tuples   []*tuple          // of a control pipe InBuckets
	actions  []action
	forward  uint32 // of all entries; 0: each says
	miss     uint32
	common   bpf.PipesPipeEntry // what the records of all entries have in common
	indirect []uint32           // forwards whose index is a word's
	mirrors  []uint32           // 1 + number of those that packets may come with; 0 among them: with none
	counts   source
	counter  source
	meter    source
	mirror   source
	ages     bool // an entry ages, or has
	alone    bool // every entry has instructions of its own, with its operands in them
}

// source is where what an entry says about something is to be had.
type source uint8

const (
	nowhere   source = iota // no entry says anything
	always                  // all say the same
	fromEntry               // each entry's record says it
)

// Memory is what maps of a program hold: mapped, or of the heap for those who run without a kernel. Place 0 of
// Entries is nobody's.
type Memory struct {
	Entries []bpf.PipesPipeEntry
	Buckets []bpf.PipesPipeBucket
	Meters  []bpf.PipesPipeMeter
	Tries   []uint64 // words of tables of prefixes, by number
	Arena   *Arena   // of tables of prefixes
}
