package pipe

import (
	"github.com/softdpu/softdpu/bpf"
)

// Step is a pipe that a packet came to, and what it did there.
type Step struct {
	Pipe    int    // number
	Place   uint32 // of the entry in Memory.Entries; 0: a miss, and of a pipe without entries that found the packet
	Entry   int    // number in its pipe; -1: none
	Found   bool
	Forward uint32 // enum pipe_forward; what it answers if no pipe comes behind
}

// Run takes a packet through the program as its instructions do, over the same memory, and returns enum pipe_forward and
// the walk. It is for one goroutine.
func (p *Program) Run(f *bpf.PipesPipeFields) (forward uint32, walk []Step) {
	pl := p.Pipes[p.root]
	for range p.Pipes {
		s := p.pass(pl, f)
		walk = append(walk, s)
		if s.Forward>>forwardShift != toPipe>>forwardShift {
			return p.leave(f, s.Forward), walk
		}
		pl = p.Pipes[s.Forward&forwardPipe]
		if pl.Pipe.Kind == OrderedList {
			f.Word[wordIndex] = index(f, s.Forward)
		}
	}
	return toDrop, walk
}

// index is the entry of an ordered list that a forward leads to.
func index(f *bpf.PipesPipeFields, to uint32) uint32 {
	if to&forwardWord == 0 {
		return to >> forwardIndex & maxIndex
	}
	if bit := to >> forwardHas & 31; bit > 0 && f.Word[wordHas]>>(bit-1)&1 == 0 {
		return 0
	}
	return f.Word[to>>forwardIndex&63]
}

// leave is where a packet goes that a mirror may copy.
func (p *Program) leave(f *bpf.PipesPipeFields, forward uint32) uint32 {
	m := f.Word[wordMirror]
	if m == 0 || len(p.join) == 0 {
		return forward
	}
	if group, ok := p.join[[2]uint32{m, forward}]; ok {
		return toPorts | group
	}
	return toDrop
}

// pass takes a packet through one pipe.
func (p *Program) pass(pl *Planned, f *bpf.PipesPipeFields) Step {
	s := Step{Pipe: pl.Number, Entry: -1}
	if s.Place, s.Found = p.find(pl, f); !s.Found {
		p.count(pl.Miss, f)
		s.Forward = pl.miss
		return s
	}
	r := &p.Memory.Entries[s.Place]
	if len(pl.Places) > 0 {
		s.Entry = int(r.Number)
	}
	if r.Flags&entryCounts != 0 {
		p.count(s.Place, f)
	}
	if r.Counter != 0 {
		p.count(r.Counter, f)
	}
	if r.Mirror != 0 {
		f.Word[wordMirror] = uint32(r.Mirror)
	}
	if r.Meter != 0 {
		p.meter(f, uint32(r.Meter-1))
	}
	s.Forward = r.Forward
	if r.Action > 0 && !pl.actions[r.Action-1].run(f, r.Value[:]) {
		s.Forward = toDrop | reasonTTL
	}
	return s
}

func (p *Program) count(place uint32, f *bpf.PipesPipeFields) {
	r := &p.Memory.Entries[place]
	r.Packets++
	r.Bytes += uint64(f.Word[wordLength])
	r.Used = f.Word[wordTick]
}

// find returns the place of the entry that matches.
func (p *Program) find(pl *Planned, f *bpf.PipesPipeFields) (place uint32, found bool) {
	switch pl.Form {
	case InCode:
		if n := pl.tree.find(f); n >= 0 {
			return pl.Places[n], true
		}
	case InBuckets:
		if pl.Table == nil {
			place = p.among(pl, f)
		} else if f.Word[wordHas]&pl.need == pl.need {
			place = pl.Table.Lookup(pl.keyOf(f))
		}
		return place, place != 0
	case InTrie:
		place = pl.longest(f)
		return place, place != 0
	case InACL:
		if k, ok := aclKey(f); ok {
			place = pl.ACL.Classify(&k, nil)
		}
		return place, place != 0
	case InSlots:
		return p.slot(pl, f), true
	case InFlows:
		f.Word[wordCT] = 0
		return pl.First, p.CT != nil && p.CT(f)
	}
	return 0, false
}

// run does an action to a packet; values are the entry's operands. It reports whether the packet lives.
func (a *action) run(f *bpf.PipesPipeFields, values []uint32) bool {
	for i := range a.steps {
		s := &a.steps[i]
		if f.Word[wordHas]&s.need != s.need {
			continue
		}
		switch s.Kind {
		case Set:
			for i, mask := range s.Field.Full() {
				if s.Mask != nil {
					mask &= s.Mask[i]
				}
				w := &f.Word[s.Field.Word+i]
				*w = *w&^mask | s.operand(i, values)&mask
			}
			f.Word[wordWritten] |= wrote(s.Field)
		case Add:
			s.add(f, values)
			f.Word[wordWritten] |= wrote(s.Field)
		case Copy:
			s.copy(f)
			f.Word[wordWritten] |= wrote(s.Field)
		case TTL:
			if f.Word[wordTTL] <= 1 {
				return false
			}
			f.Word[wordTTL]--
			f.Word[wordWritten] |= wroteTTL
		case PushVLAN:
			push(f, s.operand(0, values))
		case PopVLAN:
			pop(f)
		}
	}
	return true
}

// add adds from the least significant word on.
func (s *step) add(f *bpf.PipesPipeFields, values []uint32) {
	full := s.Field.Full()
	carry := uint64(0)
	for j := range full {
		i := len(full) - 1 - j
		more := uint32(0)
		if s.From == nil {
			more = s.operand(i, values)
		} else if j < s.From.Words() {
			more = f.Word[s.From.Word+s.From.Words()-1-j]
		}
		w := &f.Word[s.Field.Word+i]
		sum := uint64(*w) + uint64(more) + carry
		carry = sum >> 32
		*w = uint32(sum) & full[i]
	}
}

// copy reads all that it moves before it writes: the fields may be one.
func (s *step) copy(f *bpf.PipesPipeFields) {
	pieces := s.pieces()
	moved := make([]uint32, len(pieces))
	for i, p := range pieces {
		if p.low < 0 {
			continue
		}
		v := uint64(f.Word[p.low])
		if p.high >= 0 {
			v |= uint64(f.Word[p.high]) << 32
		}
		moved[i] = uint32(v>>p.right<<p.left) & p.mask
	}
	for i, p := range pieces {
		f.Word[p.word] = f.Word[p.word]&^p.mask | moved[i]
	}
}

// push does nothing to a packet that has two tags.
func push(f *bpf.PipesPipeFields, tag uint32) {
	w := &f.Word
	if w[wordVLANs] >= 2 {
		return
	}
	w[wordVLAN1ID], w[wordVLAN1PCP] = w[wordVLAN0ID], w[wordVLAN0PCP]
	w[wordVLAN0ID], w[wordVLAN0PCP] = tag&0xfff, tag>>12&7
	w[wordVLANs]++
	w[wordHas] |= w[wordHas]&hasVLAN0<<vlanShift | hasVLAN0
	w[wordWritten] |= wroteVLAN
}

func pop(f *bpf.PipesPipeFields) {
	w := &f.Word
	if w[wordVLANs] == 0 {
		return
	}
	w[wordVLAN0ID], w[wordVLAN0PCP] = w[wordVLAN1ID], w[wordVLAN1PCP]
	w[wordVLAN1ID], w[wordVLAN1PCP] = 0, 0
	w[wordVLANs]--
	w[wordHas] = w[wordHas]&^(hasVLAN0|hasVLAN1) | w[wordHas]>>vlanShift&hasVLAN0
	w[wordWritten] |= wroteVLAN
}

// meter has a meter colour a packet.
func (p *Program) meter(f *bpf.PipesPipeFields, number uint32) {
	now := uint64(f.Word[wordTick]) << tickShift
	if p.Now != nil {
		now = p.Now()
	}
	f.Word[wordColor] = p.meters[number].Measure(&p.Memory.Meters[number], now, f.Word[wordLength], f.Word[wordColor])
}
