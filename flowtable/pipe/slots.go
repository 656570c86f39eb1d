package pipe

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// slots lays out the entries of a hash pipe by number.
func (c *compiler) slots(pl *Planned, records []bpf.PipesPipeEntry) error {
	p := pl.Pipe
	pl.Form = InSlots
	pl.keys = keysOf(p.Match)
	switch p.Algorithm {
	case Flood:
		var ports []string
		for _, e := range p.Entries {
			f := e.Forward
			if f == nil {
				f = p.Forward
			}
			ports = append(ports, f.Name)
		}
		ids, err := c.ports(ports)
		if err != nil {
			return err
		}
		group, err := c.group(ids)
		if err != nil {
			return err
		}
		return c.one(pl, &Forward{To: ToDrop}, toPorts|group)
	case Consistent:
		for i := range records {
			pl.Places[i] = c.place()
			c.Memory.Entries[pl.Places[i]] = records[i]
		}
		pl.bucket = uint32(len(c.Memory.Buckets))
		c.Memory.Buckets = append(c.Memory.Buckets, make([]bpf.PipesPipeBucket, (p.Size+bucketSlots-1)/bucketSlots)...)
		for slot, i := range consistent(p) {
			c.Memory.Buckets[int(pl.bucket)+slot/bucketSlots].Slot[slot%bucketSlots] = uint64(pl.Places[i])
		}
		return nil
	}
	for range p.Size {
		c.place()
	}
	for i, e := range p.Entries {
		pl.Places[i] = pl.First + uint32(e.Index)
		c.Memory.Entries[pl.Places[i]] = records[i]
	}
	return nil
}

// one gives a pipe that has no entries a record for all packets that it finds.
func (c *compiler) one(pl *Planned, forward *Forward, to uint32) error {
	pl.Places = nil
	r, err := c.record(pl, &Entry{Forward: forward})
	r.Forward, r.Action = to, 0
	pl.First = c.place()
	c.Memory.Entries[pl.First] = r
	pl.forward = to
	return err
}

// single tells whether the pipe has such a record.
func (pl *Planned) single() bool { return pl.Form == InFlows || pl.Pipe.floods() }

// keysOf are the words that are hashed or compared, with what of them.
func keysOf(match []MatchField) (keys []term) {
	for _, m := range match {
		for i, mask := range m.Field.Full() {
			k := term{m.Field.Word + i, mask, m.Field.Only != 0}
			if m.Mask != nil && m.Mask[i]&mask != mask {
				k.mask, k.part = m.Mask[i]&mask, true
			}
			keys = append(keys, k)
		}
	}
	return keys
}

// consistent returns the entry of each slot, after Maglev (Eisenbud and others, NSDI 2016): entries take turns in
// proportion to their weights, each its next free slot in an order of its own. An entry is who it is by its index.
func consistent(p *Pipe) []int {
	type taker struct {
		entry, at, skip, got, weight int
	}
	takers := make([]taker, len(p.Entries))
	for i, e := range p.Entries {
		h := uint64(e.Index+1) * 0x9e3779b97f4a7c15
		h ^= h >> 32
		h *= 0xd6e8feb86659fd93
		h ^= h >> 32
		takers[i] = taker{i, int(h % uint64(p.Size)), int(h>>32)%p.Size | 1, 0, max(1, e.Weight)} // odd: it comes to every slot of a power of two
	}
	slices.SortFunc(takers, func(a, b taker) int { return cmp.Compare(p.Entries[a.entry].Index, p.Entries[b.entry].Index) })
	slots := make([]int, p.Size)
	taken := make([]bool, p.Size)
	for range p.Size {
		next := &takers[0]
		for i := range takers {
			if t := &takers[i]; (t.got+1)*next.weight < (next.got+1)*t.weight {
				next = t
			}
		}
		for taken[next.at] {
			next.at = (next.at + next.skip) & (p.Size - 1)
		}
		slots[next.at], taken[next.at] = next.entry, true
		next.got++
	}
	return slots
}

// Slots returns the number of the entry in each slot of a pipe of a consistent hash.
func (p *Program) Slots(number int) []int {
	pl := p.Pipes[number]
	slots := make([]int, pl.Pipe.Size)
	for i := range slots {
		place := p.Memory.Buckets[int(pl.bucket)+i/bucketSlots].Slot[i%bucketSlots]
		slots[i] = int(p.Memory.Entries[place].Number)
	}
	return slots
}

// slot returns the place of the entry that a hash pipe chooses.
func (p *Program) slot(pl *Planned, f *bpf.PipesPipeFields) uint32 {
	n := uint32(0)
	switch pl.Pipe.Algorithm {
	case Flood:
		return pl.First
	case ByHash, Consistent:
		n = SpreadWords(p.options.SpreadSeed, pl.keyOf(f))
	case Random:
		n = f.Word[wordRandom]
	case Identity:
		n = pl.keys[len(pl.keys)-1].of(f)
	case RoundRobin:
		n = p.turns[pl.Number]
		p.turns[pl.Number]++
	}
	n &= uint32(pl.Pipe.Size - 1)
	if pl.Pipe.Algorithm == Consistent {
		return uint32(p.Memory.Buckets[pl.bucket+n/uint32(bucketSlots)].Slot[n%uint32(bucketSlots)])
	}
	return pl.First + n
}

// slot leaves the place of the entry that a hash pipe chooses in regPlace.
func (t *text) slot(pl *Planned) error {
	size := pl.Pipe.Size
	switch pl.Pipe.Algorithm {
	case ByHash, Consistent:
		t.key(pl.keys)
		t.Add(asm.Mov.Reg(asm.R1, regFields), asm.Mov.Imm32(asm.R2, int32(len(pl.keys))))
		t.Call("pipe_hash")
		t.Add(asm.Mov.Reg32(regPlace, asm.R0))
	case Random:
		t.load(regPlace, wordRandom)
	case Identity:
		t.term(pl.keys[len(pl.keys)-1])
		t.Add(asm.Mov.Reg32(regPlace, asm.R1))
	case RoundRobin:
		t.Add(asm.StoreImm(asm.RFP, stackKey, int64(pl.Number), asm.Word))
		t.LookUp(bpf.PipesMapPipeTurns, t.broken)
		t.Add(
			asm.LoadMem(regPlace, asm.R0, 0, asm.Word), asm.Mov.Reg32(asm.R1, regPlace), asm.Add.Imm32(asm.R1, 1),
			asm.StoreMem(asm.R0, 0, asm.R1, asm.Word),
		)
	default:
		return fmt.Errorf("there is no algorithm %q", pl.Pipe.Algorithm)
	}
	t.Add(asm.And.Imm32(regPlace, int32(size-1)))
	if pl.Pipe.Algorithm != Consistent {
		t.Add(asm.Add.Imm32(regPlace, int32(pl.First)))
		return nil
	}
	t.Add(
		asm.Mov.Reg32(asm.R1, regPlace), asm.RSh.Imm32(asm.R1, 3), asm.Add.Imm32(asm.R1, int32(pl.bucket)),
		asm.StoreMem(asm.RFP, stackKey, asm.R1, asm.Word),
	)
	t.LookUp(bpf.PipesMapPipeBuckets, t.broken)
	t.Add(
		asm.And.Imm32(regPlace, int32(bucketSlots-1)), asm.LSh.Imm32(regPlace, 3), asm.Add.Reg(asm.R0, regPlace),
		asm.LoadMem(regPlace, asm.R0, 0, asm.Word), // the lower half: the place
	)
	return nil
}

// key writes the words that are hashed or compared.
func (t *text) key(keys []term) {
	for i, k := range keys {
		t.term(k)
		t.Add(asm.StoreMem(regFields, fieldsKey+int16(4*i), asm.R1, asm.Word))
	}
}

// present goes to miss if the packet lacks something that entries match on.
func (t *text) present(need uint32, miss label) {
	if need == 0 {
		return
	}
	t.load(asm.R1, wordHas)
	t.Add(asm.And.Imm32(asm.R1, int32(need)))
	t.JumpImm(asm.JNE, asm.R1, need, miss)
}
