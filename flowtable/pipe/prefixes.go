package pipe

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// prefixes makes an LPM pipe a table of prefixes.
func (c *compiler) prefixes(pl *Planned, records []bpf.PipesPipeEntry) error {
	p := pl.Pipe
	pl.Form, pl.tree = InTrie, nil
	pl.keys = keysOf(p.Match[1:])
	if len(pl.keys) > lpmExact {
		return fmt.Errorf("its exact part takes %d words of 32 bits, and at most %d are compared beside a prefix: have a basic pipe before it match some", len(pl.keys), lpmExact)
	}
	size := pl.room
	pl.First = uint32(len(c.Memory.Entries))
	c.Memory.Entries = append(c.Memory.Entries, make([]bpf.PipesPipeEntry, TablePlaces(size))...)
	groups := 0
	if len(pl.keys) == 0 {
		pl.trie = uint32(len(c.Memory.Tries))
		c.Memory.Tries = append(c.Memory.Tries, 0)
	} else {
		groups = size
		pl.group = uint32(len(c.Memory.Entries))
		c.Memory.Entries = append(c.Memory.Entries, make([]bpf.PipesPipeEntry, TablePlaces(size))...)
		pl.bucket = uint32(len(c.Memory.Buckets))
		c.Memory.Buckets = append(c.Memory.Buckets, make([]bpf.PipesPipeBucket, TableBuckets(size))...)
	}
	roots, nodes := ArenaSizes(size, groups, pl.six())
	c.roots += roots
	if pl.six() {
		c.nodes6 += nodes
	} else {
		c.nodes4 += nodes
	}
	c.later = append(c.later, func() error {
		config, err := c.Prefixes(pl.Number, *c.Memory, NewTable)
		if err != nil {
			return err
		}
		if pl.LPM, err = NewLPMTable(config); err != nil {
			return err
		}
		batch := make([]PrefixRequest, len(records))
		for i, e := range p.Entries {
			pl.Places[i] = pl.First + uint32(i)
			c.Memory.Entries[pl.Places[i]] = records[i]
			batch[i] = PrefixRequest{Prefix: e.Prefix, Place: pl.Places[i]}
			copy(batch[i].Exact[:], pl.Key(e))
		}
		for at := pl.First + uint32(TablePlaces(size)) - 1; at >= pl.First+uint32(len(records)); at-- {
			pl.free = append(pl.free, at)
		}
		done, err := pl.LPM.Process(batch, nil)
		for i := range done {
			if err == nil && done[i].Err != nil {
				err = fmt.Errorf("%s: %w", p.Entries[i].title(i), done[i].Err)
			}
		}
		return err
	})
	return nil
}

// six tells whether an LPM pipe is about IPv6.
func (pl *Planned) six() bool { return pl.Pipe.Match[0].Field.Bits == 128 }

// Prefixes says where the table of an LPM pipe lies in a program's memory, or in a copy of it; table is NewTable, or OpenTable
// for memory that has been written to.
func (p *Program) Prefixes(number int, m Memory, table func(TableConfig) (*Table, error)) (c LPMConfig, err error) {
	pl := p.Pipes[number]
	c = LPMConfig{Six: pl.six(), Arena: m.Arena}
	if len(pl.keys) == 0 {
		c.Word = &m.Tries[pl.trie]
		return c, nil
	}
	size := pl.room
	c.Groups, err = table(TableConfig{
		Words: len(pl.keys), Size: size, Seed: p.options.Seed,
		Buckets: m.Buckets[pl.bucket : int(pl.bucket)+TableBuckets(size)], Entries: m.Entries, First: pl.group,
	})
	return c, err
}

// longest returns the place of the entry with the longest prefix.
func (pl *Planned) longest(f *bpf.PipesPipeFields) uint32 {
	if f.Word[wordHas]&pl.need != pl.need {
		return 0
	}
	var key [MaxKey]uint32
	copy(key[:], pl.keyOf(f))
	address := pl.Pipe.Match[0].Field
	copy(key[lpmExact:], f.Word[address.Word:address.Word+address.Words()])
	return pl.LPM.Lookup(&key)
}

// longest leaves it in regPlace, or goes to miss.
func (t *text) longest(pl *Planned, miss label) {
	t.present(pl.need, miss)
	t.key(pl.keys)
	address := pl.Pipe.Match[0].Field
	for i := range address.Words() {
		t.load(asm.R1, address.Word+i)
		t.Add(asm.StoreMem(regFields, fieldsKey+int16(4*(lpmExact+i)), asm.R1, asm.Word))
	}
	family := 4
	if pl.six() {
		family = 6
	}
	t.Add(asm.Mov.Reg(asm.R1, regFields))
	if len(pl.keys) == 0 {
		t.Add(asm.Mov.Imm32(asm.R2, int32(pl.trie)))
		t.Call(fmt.Sprintf("pipe_lpm%d", family))
	} else {
		t.Add(asm.Mov.Imm32(asm.R2, int32(pl.bucket)), asm.Mov.Imm32(asm.R3, int32(pl.LPM.Groups.Mask())), asm.Mov.Imm32(asm.R4, int32(len(pl.keys))))
		t.Call(fmt.Sprintf("pipe_group%d", family))
	}
	t.JumpImm(asm.JEq, asm.R0, 0, miss)
	t.Add(asm.Mov.Reg32(regPlace, asm.R0))
}

// MovePrefixes has the program's tables of prefixes lie in other memory, to which its entries and buckets have been copied
// and which becomes the program's afterwards. Its arena, as large, is replaced by the program's own, moved. Grace is what
// tables wait for before they use a place again.
func (p *Program) MovePrefixes(m *Memory, grace func()) error {
	if m.Arena == nil || len(m.Tries) < len(p.Memory.Tries) {
		return fmt.Errorf("move tables of prefixes of pipeline %s: there is no room for them", p.Pipeline.Name)
	}
	if err := p.Memory.Arena.Move(m.Arena); err != nil {
		return err
	}
	m.Arena = p.Memory.Arena
	for _, pl := range p.Pipes {
		if pl.LPM == nil {
			continue
		}
		c, err := p.Prefixes(pl.Number, *m, OpenTable)
		if err != nil {
			return fmt.Errorf("move pipe %s: %w", pl.Pipe.Name, err)
		}
		c.Grace = grace
		if err := pl.LPM.Move(c); err != nil {
			return fmt.Errorf("move pipe %s: %w", pl.Pipe.Name, err)
		}
	}
	return nil
}
