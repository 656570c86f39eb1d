// Package oracle says what becomes of a packet in a pipeline, straight from the model: it asks each entry of a pipe in
// turn. It is what the compiled executors are held against, so it knows nothing of how they find entries, and is slow.
package oracle

import (
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// Packet is a packet's words, as enum pipe_word numbers them.
type Packet [bpf.PipesPipeWordPIPE_WORDS]uint32

// World is a pipeline, and what its packets leave behind. It is for one goroutine.
type World struct {
	// Hash is the hash of a hash pipe's key: of its fields' words under their masks. [pipe.Hash] pipes need it.
	Hash func(key []uint32) uint32
	// Slots are the places of a consistent hash's entries, as many as its size (of the gateway's own pipes some other number),
	// each the place of an entry in its pipe.
	Slots func(p *pipe.Pipe) []int
	// CT looks a packet up in the flow table; nil: there are no flows.
	CT func(*Packet) (state uint32, found bool)

	pipeline *pipe.Pipeline
	meters   map[string]*bucket
	turns    map[*pipe.Pipe]uint32
	// Counts are those of entries that count, Misses of pipes, Shared of counters by name.
	Counts map[*pipe.Entry]Count
	Misses map[*pipe.Pipe]Count
	Shared map[string]Count
}

// Count is how many packets, and bytes of their frames as they came.
type Count struct{ Packets, Bytes uint64 }

// Step is a pipe that a packet came to.
type Step struct {
	Pipe  *pipe.Pipe
	Entry *pipe.Entry // nil: a miss, and of a pipe without entries
	Found bool
}

// Result is what became of a packet.
type Result struct {
	To    pipe.Target // no pipe
	Ports []uint32    // ids of all ports that it leaves by, ascending: of forwards, stages, mirrors and flooding
	Stage pipe.Stage  // what a worker does with it before
	// Bypass says that it leaves by the forward's port alone while there is no worker.
	Bypass bool
	TTL    bool // it was dropped since its time to live had run out
	Walk   []Step
	// Audited are entries that matched on the way and decided nothing.
	Audited []*pipe.Entry
	After   Packet // as the last action left it
}

// New begins with a resolved pipeline ([pipe.Pipeline.Resolve]) that was checked, full meters and counts of 0.
func New(p *pipe.Pipeline) *World {
	w := &World{
		pipeline: p, meters: make(map[string]*bucket), turns: make(map[*pipe.Pipe]uint32),
		Counts: make(map[*pipe.Entry]Count), Misses: make(map[*pipe.Pipe]Count), Shared: make(map[string]Count),
	}
	for _, m := range p.Meters {
		w.meters[m.Name] = newBucket(m)
	}
	return w
}

// Words of a packet that are more to a walk than fields.
const (
	wordRandom = bpf.PipesPipeWordPIPE_RANDOM
	wordColor  = bpf.PipesPipeWordPIPE_COLOR
	wordLength = bpf.PipesPipeWordPIPE_LENGTH
	wordHas    = bpf.PipesPipeWordPIPE_HAS
	wordVLANs  = bpf.PipesPipeWordPIPE_VLANS
	wordID0    = bpf.PipesPipeWordPIPE_VLAN0ID
	wordPCP0   = bpf.PipesPipeWordPIPE_VLAN0PCP
	wordID1    = bpf.PipesPipeWordPIPE_VLAN1ID
	wordPCP1   = bpf.PipesPipeWordPIPE_VLAN1PCP
	wordTTL    = bpf.PipesPipeWordPIPE_IP_TTL
	wordCT     = bpf.PipesPipeWordPIPE_CT_STATE
)

const (
	hasVLAN0 = uint32(bpf.PipesPipeHasPIPE_HAS_VLAN0)
	hasVLAN1 = uint32(bpf.PipesPipeHasPIPE_HAS_VLAN1)
	hasIP    = uint32(bpf.PipesPipeHasPIPE_HAS_IP)
)

// Walk takes a packet through the pipeline at a time in ns, which never goes back.
func (w *World) Walk(packet Packet, now uint64) Result {
	t := &turn{World: w, now: now, Result: Result{After: packet}}
	next := &pipe.Forward{To: pipe.ToPipe, Name: w.pipeline.Root}
	for next.To == pipe.ToPipe {
		i := slices.IndexFunc(w.pipeline.Pipes, func(p *pipe.Pipe) bool { return p.Name == next.Name })
		next = t.pass(w.pipeline.Pipes[i], t.index(next))
	}
	t.To = next.To
	if next.To == pipe.ToPort && !t.flooded {
		t.out(next.Name)
	}
	if next.To == pipe.ToStage {
		t.Stage, t.Bypass = next.Stage, next.Bypass
		t.out(next.Name)
		if next.Copy != "" {
			t.out(next.Copy)
		}
	}
	for _, m := range w.pipeline.Mirrors {
		if m.Name == t.mirror {
			for _, port := range m.Ports {
				t.out(port)
			}
		}
	}
	slices.Sort(t.Ports)
	t.Ports = slices.Compact(t.Ports)
	return t.Result
}

// turn is one packet's walk.
type turn struct {
	*World
	Result
	now     uint64
	mirror  string // the last one that an entry named
	flooded bool
}

func (t *turn) out(port string) { t.Ports = append(t.Ports, t.pipeline.Ports[port]) }

func (t *turn) has(f *pipe.Field) bool { return t.After[wordHas]&f.Has == f.Has }

// value is what the packet has in a field.
func (t *turn) value(f *pipe.Field) pipe.Value { return t.After[f.Word : f.Word+f.Words()] }

// index is the entry of an ordered list that is forwarded to.
func (t *turn) index(f *pipe.Forward) uint32 {
	switch {
	case f.IndexFrom == nil:
		return uint32(f.Index)
	case !t.has(f.IndexFrom):
		return 0
	}
	return t.value(f.IndexFrom)[0]
}

// pass takes the packet through one pipe and says where it goes next.
func (t *turn) pass(p *pipe.Pipe, index uint32) *pipe.Forward {
	e, found := t.find(p, index)
	t.Result.Walk = append(t.Result.Walk, Step{p, e, found})
	if !found {
		t.Misses[p] = t.Misses[p].plus(t.After[wordLength])
		return &p.Miss
	}
	monitor, forward := &p.Monitor, p.Forward
	if e != nil && e.Monitor != nil {
		monitor = e.Monitor
	}
	if e != nil && e.Forward != nil {
		forward = e.Forward
	}
	t.note(p, e, monitor)
	if p.Kind == pipe.Hash && p.Algorithm == pipe.Flood {
		t.flood(p)
		return &pipe.Forward{To: pipe.ToPort}
	}
	if !t.act(p, e) {
		return &pipe.Forward{To: pipe.ToDrop}
	}
	return forward
}

func (c Count) plus(bytes uint32) Count { return Count{c.Packets + 1, c.Bytes + uint64(bytes)} }

// note does what the monitor says: counts, mirrors, colours.
func (t *turn) note(p *pipe.Pipe, e *pipe.Entry, m *pipe.Monitor) {
	length := t.After[wordLength]
	if e != nil && (m.Count || m.Age > 0) {
		t.Counts[e] = t.Counts[e].plus(length)
	}
	if m.Counter != "" {
		t.Shared[m.Counter] = t.Shared[m.Counter].plus(length)
	}
	if m.Mirror != "" {
		t.mirror = m.Mirror
	}
	if m.Meter != "" {
		t.After[wordColor] = t.meters[m.Meter].color(length, t.After[wordColor], t.now)
	}
}

func (t *turn) flood(p *pipe.Pipe) {
	t.flooded = true
	for _, e := range p.Entries {
		forward := e.Forward
		if forward == nil {
			forward = p.Forward
		}
		t.out(forward.Name)
	}
}
