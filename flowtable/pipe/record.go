package pipe

import (
	"errors"
	"fmt"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// numbers are those of what a pipeline names: many entries ask.
type numbers struct{ pipes, meters, mirrors, counters map[string]int }

func newNumbers(p *Pipeline) (n numbers) {
	n = numbers{make(map[string]int), make(map[string]int), make(map[string]int), make(map[string]int)}
	for i, pipe := range p.Pipes {
		n.pipes[pipe.Name] = i
	}
	for i, m := range p.Meters {
		n.meters[m.Name] = i
	}
	for i, m := range p.Mirrors {
		n.mirrors[m.Name] = i
	}
	for i, name := range p.Counters {
		n.counters[name] = i
	}
	return n
}

// record returns what memory holds of an entry.
func (p *Program) record(pl *Planned, e *Entry) (r bpf.PipesPipeEntry, err error) {
	forward := e.Forward
	if forward == nil {
		forward = pl.Pipe.Forward
	}
	if forward == nil {
		return r, fmt.Errorf("neither it nor its pipe says where packets go")
	}
	if r.Forward, err = p.encode(forward); err != nil {
		return r, err
	}
	words := 0
	if pl.Pipe.Kind != OrderedList && len(pl.Pipe.Actions) > 0 {
		if e.Action < 0 || e.Action >= len(pl.Pipe.Actions) {
			return r, fmt.Errorf("there is no action %d", e.Action)
		}
		r.Action = uint16(1 + e.Action)
		words = pl.actions[e.Action].words
	}
	at := 0
	for _, v := range e.Values {
		if at+len(v) > MaxValues {
			return r, fmt.Errorf("it gives more than %d words of operands", MaxValues)
		}
		at += copy(r.Value[at:], v)
	}
	if pl.Pipe.Kind != OrderedList && at != words {
		return r, fmt.Errorf("it gives %d words of operands, its action needs %d", at, words)
	}
	m := pl.Pipe.monitor(e)
	if m.Count || m.Age > 0 {
		r.Flags |= entryCounts
	}
	if m.Age > 0 {
		r.Age = max(1, flowtable.Ticks(m.Age))
	}
	if m.Counter != "" {
		i, ok := p.named.counters[m.Counter]
		if !ok {
			return r, fmt.Errorf("there is no counter %q", m.Counter)
		}
		r.Counter = p.Counters[i]
	}
	if m.Meter != "" {
		i, ok := p.named.meters[m.Meter]
		if !ok {
			return r, fmt.Errorf("there is no meter %q", m.Meter)
		}
		r.Meter = uint16(1 + i)
	}
	if m.Mirror != "" {
		i, ok := p.named.mirrors[m.Mirror]
		if !ok {
			return r, fmt.Errorf("there is no mirror %q", m.Mirror)
		}
		r.Mirror = uint16(1 + i)
	}
	return r, nil
}

// encode returns a forward as enum pipe_forward.
func (p *Program) encode(f *Forward) (uint32, error) {
	switch f.To {
	case ToDrop:
		return toDrop, nil
	case ToHost:
		return toHost, nil
	case ToPolicy:
		return toPolicy, nil
	case ToPort:
		id, ok := p.Pipeline.Ports[f.Name]
		if !ok {
			return 0, fmt.Errorf("there is no port %q", f.Name)
		}
		return toPort | id&forwardMask, nil
	case ToStage:
		to := toStage | stageBits[f.Stage]<<stageShift
		if f.Bypass {
			to |= stageBypass
		}
		for i, name := range f.ports() {
			id, ok := p.Pipeline.Ports[name]
			if !ok {
				return 0, fmt.Errorf("there is no port %q", name)
			}
			to |= id & stagePort << (stageCopy * i)
		}
		return to, nil
	case ToPipe:
		n, ok := p.named.pipes[f.Name]
		if !ok {
			return 0, fmt.Errorf("there is no pipe %q", f.Name)
		}
		if f.IndexFrom != nil {
			has := uint32(0)
			for bit := range uint32(16) {
				if f.IndexFrom.Has>>bit&1 == 1 {
					has = bit + 1
				}
			}
			return toPipe | uint32(n) | uint32(f.IndexFrom.Word)<<forwardIndex | has<<forwardHas | forwardWord, nil
		}
		if f.Index < 0 || f.Index > maxIndex {
			return 0, fmt.Errorf("index %d of a list is more than %d", f.Index, maxIndex)
		}
		return toPipe | uint32(n) | uint32(f.Index)<<forwardIndex, nil
	}
	return 0, fmt.Errorf("unknown target %q", f.To)
}

// ErrRebuild says that an entry asks what the program has no instructions for: the pipeline must be compiled again.
var ErrRebuild = errors.New("the program must be compiled again for it")

// monitor returns what is noted about packets of an entry; nil: of one that says nothing itself.
func (p *Pipe) monitor(e *Entry) *Monitor {
	if e != nil && e.Monitor != nil {
		return e.Monitor
	}
	return &p.Monitor
}

// Record returns what stands in memory of an entry of a pipe, also of one that comes later. Errors: [ErrRebuild], and what
// is wrong with the entry.
func (p *Program) Record(number int, e *Entry) (bpf.PipesPipeEntry, error) {
	pl := p.Pipes[number]
	r, err := p.record(pl, e)
	if err != nil {
		return r, err
	}
	for _, f := range []struct {
		from source
		all  uint32
		mine uint32
	}{
		{pl.counts, uint32(pl.common.Flags & entryCounts), uint32(r.Flags & entryCounts)},
		{pl.counter, pl.common.Counter, r.Counter},
		{pl.meter, uint32(pl.common.Meter), uint32(r.Meter)},
		{pl.mirror, uint32(pl.common.Mirror), uint32(r.Mirror)},
	} {
		if f.from == nowhere && f.mine != 0 || f.from == always && f.mine != f.all {
			return r, fmt.Errorf("an entry of pipe %s monitors otherwise than those before: %w", pl.Pipe.Name, ErrRebuild)
		}
	}
	switch to := r.Forward; {
	case pl.forward != 0 && to != pl.forward:
		return r, fmt.Errorf("an entry of pipe %s forwards otherwise than those before: %w", pl.Pipe.Name, ErrRebuild)
	case to>>forwardShift == toPipe>>forwardShift && !slices.Contains(pl.Leads, int(to&forwardPipe)),
		to>>forwardShift == toPipe>>forwardShift && to&forwardWord != 0 && !slices.Contains(pl.indirect, to):
		return r, fmt.Errorf("no entry of pipe %s led to %s before: %w", pl.Pipe.Name, p.Pipeline.Pipes[to&forwardPipe].Name, ErrRebuild)
	}
	for _, m := range pl.mirrors {
		if r.Mirror != 0 {
			m = uint32(r.Mirror)
		}
		if _, ok := p.join[[2]uint32{m, r.Forward}]; m != 0 && !ok && r.Forward>>forwardShift != toPipe>>forwardShift {
			return r, fmt.Errorf("no packet of pipe %s was mirrored and sent there before: %w", pl.Pipe.Name, ErrRebuild)
		}
	}
	return r, nil
}
