package pipe

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// exact makes a basic pipe a table of exact matches.
func (c *compiler) exact(pl *Planned, records []bpf.PipesPipeEntry) error {
	p := pl.Pipe
	pl.Form, pl.tree = InBuckets, nil
	pl.keys = keysOf(p.Match)
	size := pl.room
	pl.First = uint32(len(c.Memory.Entries))
	c.Memory.Entries = append(c.Memory.Entries, make([]bpf.PipesPipeEntry, TablePlaces(size))...)
	pl.bucket = uint32(len(c.Memory.Buckets))
	c.Memory.Buckets = append(c.Memory.Buckets, make([]bpf.PipesPipeBucket, TableBuckets(size))...)
	c.later = append(c.later, func() (err error) {
		if pl.Table, err = NewTable(c.Config(pl.Number, *c.Memory)); err != nil {
			return err
		}
		batch := make([]Request, len(records))
		for i, e := range p.Entries {
			batch[i].Entry = records[i]
			copy(batch[i].Entry.Key[:], pl.Key(e))
		}
		for i, done := range pl.Table.Process(batch, nil) {
			if done.Err != nil {
				return fmt.Errorf("%s: %w", p.Entries[i].title(i), done.Err)
			}
			pl.Places[i] = done.Place
		}
		return nil
	})
	return nil
}

// Config says where the table of a pipe lies in a program's memory, or in a copy of it.
func (p *Program) Config(number int, m Memory) TableConfig {
	pl := p.Pipes[number]
	size := pl.room
	return TableConfig{
		Words: len(pl.keys), Size: size, Seed: p.options.Seed,
		Buckets: m.Buckets[pl.bucket : int(pl.bucket)+TableBuckets(size)], Entries: m.Entries, First: pl.First,
	}
}

// Key is what the table of a basic pipe has an entry under, and of an LPM pipe its exact part.
func (pl *Planned) Key(e *Entry) (key []uint32) {
	for i := range e.Match {
		for _, w := range e.Match[i].Value {
			key = append(key, w&pl.keys[len(key)].mask)
		}
	}
	return key
}

// keyOf is what a packet is looked up under.
func (pl *Planned) keyOf(f *bpf.PipesPipeFields) []uint32 {
	key := make([]uint32, len(pl.keys))
	for i, k := range pl.keys {
		key[i] = k.of(f)
	}
	return key
}

// ask leaves the place of the entry with the packet's key in r0, or goes to miss.
func (t *text) ask(need uint32, keys []term, bucket uint32, table *Table, miss label) {
	t.present(need, miss)
	t.key(keys)
	t.Add(
		asm.Mov.Reg(asm.R1, regFields), asm.Mov.Imm32(asm.R2, int32(bucket)),
		asm.Mov.Imm32(asm.R3, int32(table.Mask())), asm.Mov.Imm32(asm.R4, int32(len(keys))),
	)
	t.Call("pipe_find")
	t.JumpImm(asm.JEq, asm.R0, 0, miss)
}
