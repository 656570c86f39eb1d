package pipe

import (
	"net/netip"
	"time"

	"github.com/softdpu/softdpu/firewall/mistake"
)

// Kind is what a pipe can do.
type Kind string

// Kinds of pipes, as files name them.
const (
	Basic       Kind = "basic"        // one set of fields with masks; an entry is a value of each
	Control     Kind = "control"      // each entry has fields, masks and conditions of its own, and a priority
	LPM         Kind = "lpm"          // the longest prefix of one address, beside fields that must be equal
	ACL         Kind = "acl"          // prefixes, protocols, ranges of ports, and a priority
	Hash        Kind = "hash"         // an entry is chosen by number: a hash of fields, at random, in turn, ...
	OrderedList Kind = "ordered-list" // an entry is chosen by the number that is forwarded with; it holds a list of actions
	CT          Kind = "ct"           // looks the packet up in the gateway's flow table
)

// Pipeline is a set of pipes that packets walk through, from the root on. Its numbers (of pipes, entries, meters)
// are places in its slices. Once it is compiled it is not changed but by [Pipe.Follow].
type Pipeline struct {
	Name   string
	Root   string // name of the pipe that every packet enters
	Pipes  []*Pipe
	Meters []*Meter
	// Counters are those that entries share, by name.
	Counters []string
	// Mirrors are groups of ports that get a copy.
	Mirrors []*Mirror
	// Raws are up to four fields of 32 bits that the pipeline takes from places of its own.
	Raws []*Raw
	// BypassesPolicy must be set if packets may go to a port or to the host without the policy's rules.
	BypassesPolicy bool
	// Ports are the ids of the ports that the pipeline names, by name: [Pipeline.Resolve] fills them in.
	Ports map[string]uint32
	Pos   Pos
	// Own says that it describes the gateway's own pipes, which are not compiled from it: see [Describing]. Only such a
	// pipeline has entries with Among, Audit and Log, and forwards to [ToRoute].
	Own bool
}

// Pos is where something stands in a file; without a file it is empty.
type Pos = mistake.Pos

// Pipe is one table.
type Pipe struct {
	Name string
	Kind Kind
	Pos  Pos

	// Match are the fields of a basic and a hash pipe, the address (first) and the exact part of an LPM pipe; of an
	// ordered list and of the other kinds nil. A packet that lacks one of the fields is a miss, but not in a hash pipe,
	// which takes the words as they are. A packet that is not IP is a miss in an ACL pipe.
	Match []MatchField
	// Algorithm is how a hash pipe chooses.
	Algorithm Algorithm
	// Size is how many entries there is room for; 0: as many as are given. A hash pipe's is a power of two.
	Size int
	// Resizable says that adding beyond Size is no error but makes the pipe larger, without loss of packets, entries or counts.
	Resizable bool
	// Fixed says that entries do not change while the pipeline is in force, so that they may become instructions.
	Fixed bool
	// Actions are templates that entries choose from; an entry that names none does the first. Operands that say
	// FromEntry are the entries' own.
	Actions []Action
	Monitor Monitor  // of all entries
	Forward *Forward // of entries that name none; nil: each entry must
	Miss    Forward  // of packets that no entry matches
	Entries []*Entry

	grown int // how many entries it has room for since it was made larger; 0: it was not
}

// Room is how many entries a pipe has room for, as it is compiled.
func (p *Pipe) Room() int { return max(p.Size, p.grown, len(p.Entries), 1) }

// MatchField is a field with the mask under which it is compared; a nil mask is all ones.
type MatchField struct {
	Field *Field
	Mask  Value
	Pos   Pos
}

// Algorithm is how a hash pipe chooses an entry among its Size.
type Algorithm string

// Algorithms of hash pipes.
const (
	ByHash     Algorithm = "hash"        // of the fields
	Consistent Algorithm = "consistent"  // the same, but a change of entries or weights moves few
	Random     Algorithm = "random"      // drawn for each packet
	Identity   Algorithm = "identity"    // the lower bits of the fields' last word
	RoundRobin Algorithm = "round-robin" // in turn, for each CPU
	Flood      Algorithm = "flood"       // all: a copy to the port of each entry
)

// Value is a field's value: as many words as the field has, the most significant first, host order.
type Value []uint32

// Match is what an entry asks of one field.
type Match struct {
	Field *Field
	Value Value
	Mask  Value // nil: all ones
	// Last, if not nil, makes it a range from Value to Last (ports of ACL pipes; any field of 32 bits at most in control pipes).
	Last Value
	// Among, if not nil, are the ranges of which one must hold the field, in the place of all of these.
	Among []Span
	Port  string // of field port, in the place of Value: its name, until [Pipeline.Resolve]
	Pos   Pos
}

// Span is a closed interval of a field's values, whose words are the first ones.
type Span struct{ First, Last [4]uint32 }

// Compare is how a condition holds two values against each other.
type Compare string

// Comparisons, unsigned.
const (
	EQ Compare = "=="
	NE Compare = "!="
	LT Compare = "<"
	LE Compare = "<="
	GT Compare = ">"
	GE Compare = ">="
)

// Condition compares a field of 32 bits at most with another, or with a number. Only entries of control pipes have any.
// It does not hold if the packet lacks one of the fields ([Field.Has]).
type Condition struct {
	Field   *Field
	Compare Compare
	With    *Field // nil: Value
	Value   uint32
	Pos     Pos
}

// Entry is one row of a pipe.
type Entry struct {
	Name       string // for people: counters and traces; may be empty
	Match      []Match
	Conditions []Condition
	Prefix     netip.Prefix // of LPM pipes
	Priority   int          // control: 0 (first) to 7; ACL: 0 (first) to 1024; equal ones in their order
	Index      int          // hash and ordered list
	Weight     int          // consistent hash; 0 is 1
	Action     int          // number of the pipe's template
	Values     []Value      // operands that the template leaves to entries, in their order
	List       []Action     // ordered list: done instead of a template
	Monitor    *Monitor     // instead of the pipe's
	Forward    *Forward     // instead of the pipe's
	Audit      bool         // ACL: a packet that matches is noted, and decided by the entries behind it
	Log        bool         // the gateway tells of what it decides
	Pos        Pos
}

// Action is a list of changes, in their order.
type Action struct {
	Name string
	Ops  []Op
	Pos  Pos
}

// OpKind is what one step of an action does.
type OpKind string

// Steps of actions.
const (
	Set      OpKind = "set"       // Field = Field &^ Mask | Value & Mask
	Add      OpKind = "add"       // Field += Value or From, modulo its width
	Copy     OpKind = "copy"      // the lowest Bits of From >> FromShift to Field at Shift
	TTL      OpKind = "ttl"       // ip.ttl falls by one; at 1 or 0 the packet is dropped: pipe-ttl
	PushVLAN OpKind = "push-vlan" // a new outer tag: Value[0] = PCP << 12 | id
	PopVLAN  OpKind = "pop-vlan"  // the outer tag goes; nothing without one
)

// Op is one step. A step that changes or reads a field which the packet lacks ([Field.Has]) does nothing.
type Op struct {
	Kind      OpKind
	Field     *Field
	From      *Field
	Value     Value
	FromEntry bool // Value is the entry's
	Mask      Value
	Shift     int
	FromShift int
	Bits      int
	Pos       Pos
}

// Monitor is what is noted about packets that match.
type Monitor struct {
	Count   bool          // each entry counts packets and bytes, and notes when it was last used
	Counter string        // a shared one, too
	Meter   string        // name of a meter: it colours the packet
	Mirror  string        // name of a mirror
	Age     time.Duration // an entry unused for as long is told of (and removed if Remove)
	Remove  bool
}

// Meter is a token bucket after RFC 2697, 2698 or 4115 (Type), shared by all that name it.
type Meter struct {
	Name    string
	Type    string    // "rfc2697", "rfc2698", "rfc4115"
	Packets bool      // units are packets, else bytes of frames
	Aware   bool      // colour-aware: starts from the packet's colour
	Rate    [2]uint64 // units a second: CIR; PIR (2698) or EIR (4115)
	Size    [2]uint64 // units: CBS; PBS (2698) or EBS
	Pos     Pos
}

// Mirror is a group of ports that get a copy of a packet as it leaves. The kernel copies frames only as it sends
// them to ports, so an entry that mirrors forwards to a port or drops.
type Mirror struct {
	Name  string
	Ports []string
	Pos   Pos
}

// Raw is 32 bits of the packet, read as a big-endian number.
type Raw struct {
	Name   string
	Base   string // "l2", "l3", "l4", "payload": behind the header of TCP, UDP, ICMP or ESP
	Offset int    // bytes, up to 255
	Pos    Pos
}

// Target is a kind of forward.
type Target string

// Targets.
const (
	ToPipe   Target = "pipe"
	ToPort   Target = "port"
	ToDrop   Target = "drop"
	ToHost   Target = "host"   // the kernel of this machine
	ToPolicy Target = "policy" // the gateway's own pipes, which is what happens without a pipeline
	ToRoute  Target = "route"  // where the route leads, or this machine: of the gateway's own pipes
	ToStage  Target = "stage"  // a worker, which does the stage and sends the packet on by a port
)

// Forward is where a packet goes next.
type Forward struct {
	To   Target
	Name string // of a pipe or a port, also that by which a packet leaves behind a stage
	// Index chooses the entry of an ordered list; IndexFrom, if not nil, has a field say it. A field that the packet
	// lacks says 0.
	Index     int
	IndexFrom *Field
	Reason    string // of the gateway's own pipes: why a packet is dropped
	Stage     Stage  // what the worker does
	Copy      string // name of the port that gets a copy, of stage mirror
	Bypass    bool   // while no worker takes them packets leave without the stage; else they are dropped
	Pos       Pos
}

// Stage is what a worker does with a packet.
type Stage string

// Stages.
const (
	StageForward Stage = "forward" // nothing but sending it on
	StageMirror  Stage = "mirror"  // a copy goes to another port
)
