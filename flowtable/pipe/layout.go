package pipe

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"

	"github.com/softdpu/softdpu/bpf"
)

// Layout says where which entry counts, as a number that only a program of the same pipes and entries has, in whatever
// process: one whose counts are at the same places.
func (p *Program) Layout() (layout [4]uint64) {
	h := sha256.New()
	w := bufio.NewWriter(h) // neither fails
	var b []byte
	number := func(n uint32) { b = binary.LittleEndian.AppendUint32(b, n) }
	text := func(s string) {
		number(uint32(len(s)))
		b = append(b, s...)
	}
	value := func(v Value) {
		number(uint32(len(v)))
		for _, word := range v {
			number(word)
		}
	}
	for _, pl := range p.Pipes {
		text(pl.Pipe.Name)
		text(string(pl.Pipe.Kind))
		number(pl.Miss)
		number(pl.First)
		number(uint32(len(pl.Places)))
		for i, place := range pl.Places {
			e := pl.Pipe.Entries[i]
			number(place)
			text(e.Name)
			b, _ = e.Prefix.AppendBinary(b) // never fails
			number(uint32(e.Priority))
			number(uint32(e.Index))
			number(uint32(len(e.Match)))
			for _, m := range e.Match {
				number(uint32(m.Field.Word))
				value(m.Value)
				value(m.Mask)
				value(m.Last)
			}
			number(uint32(len(e.Conditions)))
			for _, c := range e.Conditions {
				number(uint32(c.Field.Word))
				text(string(c.Compare))
				if number(c.Value); c.With != nil {
					text(c.With.Name)
				}
			}
			_, _ = w.Write(b)
			b = b[:0]
		}
	}
	for i, name := range p.Pipeline.Counters {
		text(name)
		number(p.Counters[i])
	}
	_, _ = w.Write(b)
	_ = w.Flush()
	sum := h.Sum(nil)
	for i := range layout {
		layout[i] = binary.LittleEndian.Uint64(sum[8*i:])
	}
	return layout
}

// AdoptCounts adds what entries have counted in the memory of a program of the same layout, which may be of a process that is
// no more. Entries that have come to places there since count for none here. No packet counts there any more.
func (p *Program) AdoptCounts(entries []bpf.PipesPipeEntry) {
	one := func(place uint32) {
		if place == 0 || int(place) >= len(entries) {
			return
		}
		old, now := readEntry(&entries[place]), &p.Memory.Entries[place]
		if old.Number == now.Number && old.Key == now.Key {
			carry(now, &old)
		}
	}
	for _, pl := range p.Pipes {
		one(pl.Miss)
		if pl.single() {
			one(pl.First)
		}
		for _, place := range pl.Places {
			one(place)
		}
	}
	for _, place := range p.Counters {
		one(place)
	}
}
