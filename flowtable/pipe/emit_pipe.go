package pipe

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf/asm"

	"github.com/softdpu/softdpu/bpf"
)

// Places in struct pipe_entry.
const (
	recordPackets = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Packets))
	recordBytes   = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Bytes))
	recordUsed    = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Used))
	recordForward = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Forward))
	recordAction  = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Action))
	recordMeter   = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Meter))
	recordValue   = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Value))
	recordCounter = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Counter))
	recordMirror  = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Mirror))
	recordRank    = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Rank))
	recordFlags   = int16(unsafe.Offsetof(bpf.PipesPipeEntry{}.Flags))
)

// pipe writes one pipe: the search, what is done on a hit, and a miss. Where it begins nothing is held but regFields.
func (t *text) pipe(s *stretch, pl *Planned) error {
	miss, hit := t.Label(), t.Label()
	t.Place(s.labels[t.e.rank[pl.Number]-s.from])
	if pl.alone {
		hits := map[int]label{}
		var order []int
		t.tree(pl.tree, 0, func(entry int) {
			if _, ok := hits[entry]; !ok {
				hits[entry] = t.Label()
				order = append(order, entry)
			}
			t.GoTo(hits[entry])
		}, miss)
		for _, entry := range order {
			t.Place(hits[entry])
			if err := t.hit(s, pl, &known{pl.Places[entry], &t.e.Memory.Entries[pl.Places[entry]]}); err != nil {
				return err
			}
		}
	} else if pl.single() {
		if pl.Form == InFlows {
			t.Add(asm.Mov.Reg(asm.R1, regFields))
			t.Call("pipe_ct")
			t.JumpImm(asm.JEq, asm.R0, 0, miss)
		}
		if err := t.hit(s, pl, &known{pl.First, &t.e.Memory.Entries[pl.First]}); err != nil {
			return err
		}
	} else {
		if err := t.find(pl, hit, miss); err != nil {
			return err
		}
		t.Place(hit)
		if err := t.hit(s, pl, nil); err != nil {
			return err
		}
	}
	t.Place(miss)
	if t.Used(miss) {
		t.step(pl, &known{})
		t.record(known{place: pl.Miss})
		t.count(regRecord)
		t.forward(s, pl.miss)
	}
	return nil
}

// find leaves the place of the entry that matches in regPlace and goes to hit, or to miss.
func (t *text) find(pl *Planned, hit, miss label) error {
	switch pl.Form {
	case InCode:
		if pl.tree.nodes[0].size <= treeInline {
			t.tree(pl.tree, 0, func(entry int) {
				t.Add(asm.Mov.Imm32(regPlace, int32(pl.Places[entry])))
				t.GoTo(hit)
			}, miss)
			return nil
		}
		name := fmt.Sprintf("%s_find%d", emitName, pl.Number)
		if err := t.e.search(pl, name); err != nil {
			return err
		}
		t.Add(asm.Mov.Reg(asm.R1, regFields))
		t.Call(name)
		t.JumpImm(asm.JEq, asm.R0, 0, miss)
		t.Add(asm.Mov.Reg32(regPlace, asm.R0))
		return nil
	case InBuckets:
		if pl.Table == nil {
			return t.among(pl, miss)
		}
		t.ask(pl.need, pl.keys, pl.bucket, pl.Table, miss)
		t.Add(asm.Mov.Reg32(regPlace, asm.R0))
		return nil
	case InTrie:
		t.longest(pl, miss)
		return nil
	case InACL:
		return t.classify(pl, miss)
	case InSlots:
		return t.slot(pl)
	}
	return fmt.Errorf("form %s is not there yet", pl.Form)
}

// known is an entry that is known where instructions for it are written.
type known struct {
	place  uint32
	record *bpf.PipesPipeEntry
}

// record has regRecord point to a record.
func (t *text) record(k known) {
	if k.place != 0 {
		t.Add(asm.StoreImm(asm.RFP, stackKey, int64(k.place), asm.Word))
	} else {
		t.Add(asm.StoreMem(asm.RFP, stackKey, regPlace, asm.Word))
	}
	t.LookUp(bpf.PipesMapPipeEntries, t.broken)
	t.Add(asm.Mov.Reg(regRecord, asm.R0))
}

// count adds the packet to a record.
func (t *text) count(r asm.Register) {
	t.Add(asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(r, asm.R1, asm.DWord, recordPackets))
	t.load(asm.R1, wordLength)
	t.Add(asm.AddAtomic.Mem(r, asm.R1, asm.DWord, recordBytes))
	t.load(asm.R1, wordTick)
	t.Add(asm.StoreMem(r, recordUsed, asm.R1, asm.Word))
}

// step tells of a pipe that the packet came to.
func (t *text) step(pl *Planned, k *known) {
	if !t.e.options.Trace {
		return
	}
	t.Add(asm.Mov.Reg(asm.R1, regFields), asm.Mov.Imm32(asm.R2, int32(pl.Number)))
	if k != nil {
		t.Add(asm.Mov.Imm32(asm.R3, int32(k.place)))
	} else {
		t.Add(asm.Mov.Reg32(asm.R3, regPlace))
	}
	t.Call("pipe_step")
}

// hit writes what is done with a packet that an entry matched: one that is known, or the one at regPlace.
func (t *text) hit(s *stretch, pl *Planned, k *known) error {
	if k == nil && pl.Form == InCode && pl.tree.nodes[0].size <= treeInline {
		t.forget(regPlace)
	}
	t.step(pl, k)
	if t.asks(pl, k) {
		at := known{}
		if k != nil {
			at = *k
		}
		t.record(at)
	}
	t.monitor(pl, k)
	if err := t.act(s, pl, k); err != nil {
		return err
	}
	switch {
	case k != nil:
		t.forward(s, k.record.Forward)
	case pl.forward != 0:
		t.forward(s, pl.forward)
	default:
		t.forwardRecord(s, pl)
	}
	return nil
}

// forget has the verifier know nothing of a number: it would follow what comes for each place again.
func (t *text) forget(r asm.Register) {
	t.load(asm.R1, wordPort)
	t.Add(asm.Mov.Reg32(asm.R2, asm.R1), asm.Xor.Reg32(asm.R1, asm.R2), asm.Add.Reg32(r, asm.R1))
}

// asks tells whether a hit reads or writes the entry's record.
func (t *text) asks(pl *Planned, k *known) bool {
	if k != nil {
		return k.record.Flags&entryCounts != 0
	}
	if pl.counts != nowhere || pl.counter == fromEntry || pl.meter == fromEntry || pl.mirror == fromEntry || pl.forward == 0 {
		return true
	}
	return len(pl.actions) > 1 || len(pl.actions) == 1 && pl.actions[0].words > 0
}

// monitor counts, mirrors and meters.
func (t *text) monitor(pl *Planned, k *known) {
	from := func(s source, v uint32) (source, uint32) {
		switch {
		case k == nil:
			return s, v
		case v != 0:
			return always, v
		}
		return nowhere, 0
	}
	r := &pl.common
	if k != nil {
		r = k.record
	}
	switch counts, _ := from(pl.counts, uint32(r.Flags&entryCounts)); counts {
	case always:
		t.count(regRecord)
	case fromEntry:
		not := t.Label()
		t.Add(asm.LoadMem(asm.R1, regRecord, recordFlags, asm.Half), asm.And.Imm32(asm.R1, int32(entryCounts)))
		t.JumpImm(asm.JEq, asm.R1, 0, not)
		t.count(regRecord)
		t.Place(not)
	}
	switch counter, place := from(pl.counter, r.Counter); counter {
	case always:
		t.Add(asm.StoreImm(asm.RFP, stackKey, int64(place), asm.Word))
		t.LookUp(bpf.PipesMapPipeEntries, t.broken)
		t.count(asm.R0)
	case fromEntry:
		not := t.Label()
		t.Add(asm.LoadMem(asm.R1, regRecord, recordCounter, asm.Word))
		t.JumpImm(asm.JEq, asm.R1, 0, not)
		t.Add(asm.StoreMem(asm.RFP, stackKey, asm.R1, asm.Word))
		t.LookUp(bpf.PipesMapPipeEntries, t.broken)
		t.count(asm.R0)
		t.Place(not)
	}
	switch mirror, number := from(pl.mirror, uint32(r.Mirror)); mirror {
	case always:
		t.storeImm(wordMirror, number)
	case fromEntry:
		not := t.Label()
		t.Add(asm.LoadMem(asm.R1, regRecord, recordMirror, asm.Half))
		t.JumpImm(asm.JEq, asm.R1, 0, not)
		t.store(wordMirror, asm.R1)
		t.Place(not)
	}
	switch meter, number := from(pl.meter, uint32(r.Meter)); meter {
	case always:
		t.Add(asm.Mov.Reg(asm.R1, regFields), asm.Mov.Imm32(asm.R2, int32(number-1)))
		t.Call("pipe_measure")
	case fromEntry:
		not := t.Label()
		t.Add(asm.LoadMem(asm.R2, regRecord, recordMeter, asm.Half))
		t.JumpImm(asm.JEq, asm.R2, 0, not)
		t.Add(asm.Mov.Reg(asm.R1, regFields), asm.Add.Imm32(asm.R2, -1))
		t.Call("pipe_measure")
		t.Place(not)
	}
}

// act does what the entry's action says.
func (t *text) act(s *stretch, pl *Planned, k *known) error {
	if len(pl.actions) == 0 || k != nil && k.record.Action == 0 {
		return nil
	}
	ttl := t.exit(s, toDrop|reasonTTL)
	if k != nil {
		t.steps(pl, &pl.actions[k.record.Action-1], k, ttl)
		return nil
	}
	slots, apart := t.e.actionSlots(pl)
	names := make([]string, len(slots))
	if apart {
		var err error
		if names, err = t.e.groups(pl, slots); err != nil {
			return err
		}
	}
	one := func(i int) {
		if names[i] == "" {
			t.steps(pl, &pl.actions[i], nil, ttl)
			return
		}
		t.Add(asm.Mov.Reg(asm.R1, regFields), asm.Mov.Reg32(asm.R2, regPlace), asm.Mov.Imm32(asm.R3, int32(i)))
		t.Call(names[i])
		t.JumpImm(asm.JNE, asm.R0, 0, s.done)
	}
	if len(pl.actions) == 1 {
		one(0)
		return nil
	}
	end := t.Label()
	t.Add(asm.LoadMem(asm.R1, regRecord, recordAction, asm.Half))
	t.JumpImm(asm.JEq, asm.R1, 0, end)
	t.JumpImm(asm.JGT, asm.R1, uint32(len(pl.actions)), t.broken)
	numbers, labels := make([]int, len(pl.actions)), make([]label, len(pl.actions))
	for i := range numbers {
		numbers[i], labels[i] = i+1, t.Label()
	}
	t.Dispatch(asm.R1, numbers, labels)
	for i := range pl.actions {
		t.Place(labels[i])
		one(i)
		if i < len(pl.actions)-1 {
			t.GoTo(end)
		}
	}
	t.Place(end)
	return nil
}

// forward goes where a number of enum pipe_forward says.
func (t *text) forward(s *stretch, to uint32) {
	if to>>forwardShift != toPipe>>forwardShift {
		t.GoTo(t.exit(s, to))
		return
	}
	pl := t.e.Pipes[to&forwardPipe]
	if pl.Pipe.Kind == OrderedList {
		if to&forwardWord == 0 {
			t.storeImm(wordIndex, to>>forwardIndex&maxIndex)
		} else {
			t.load(asm.R1, int(to>>forwardIndex&63))
			if bit := to >> forwardHas & 31; bit > 0 {
				there := t.Label()
				t.load(asm.R2, wordHas)
				t.Add(asm.And.Imm32(asm.R2, 1<<(bit-1)))
				t.JumpImm(asm.JNE, asm.R2, 0, there)
				t.Add(asm.Mov.Imm32(asm.R1, 0))
				t.Place(there)
			}
			t.store(wordIndex, asm.R1)
		}
	}
	t.GoTo(t.enter(s, pl))
}

// enter is where a pipe begins, or what answers that it is in a later part.
func (t *text) enter(s *stretch, pl *Planned) label {
	rank := t.e.rank[pl.Number]
	if rank >= s.from && rank < s.to {
		return s.labels[rank-s.from]
	}
	return t.exit(s, toPipe|uint32(rank))
}

// exit is what answers a number.
func (t *text) exit(s *stretch, answer uint32) label {
	l, ok := s.exits[answer]
	if !ok {
		l = t.Label()
		s.exits[answer] = l
	}
	return l
}

// forwardRecord goes where the entry's record says.
func (t *text) forwardRecord(s *stretch, pl *Planned) {
	t.Add(asm.LoadMem(asm.R0, regRecord, recordForward, asm.Word))
	if len(pl.Leads) == 0 {
		t.GoTo(s.done)
		return
	}
	t.JumpImm(asm.JLT, asm.R0, toPipe, s.done)
	for _, to := range pl.indirect {
		next := t.Label()
		t.JumpImm(asm.JNE, asm.R0, to, next)
		t.forward(s, to)
		t.Place(next)
	}
	if slices.ContainsFunc(pl.Leads, func(n int) bool { return t.e.Pipes[n].Pipe.Kind == OrderedList }) {
		t.Add(asm.Mov.Reg32(asm.R1, asm.R0), asm.RSh.Imm32(asm.R1, forwardIndex), asm.And.Imm32(asm.R1, maxIndex))
		t.store(wordIndex, asm.R1)
	}
	t.Add(asm.And.Imm32(asm.R0, int32(forwardPipe)))
	for i, n := range pl.Leads {
		if i == len(pl.Leads)-1 {
			t.JumpImm(asm.JNE, asm.R0, uint32(n), t.broken)
			t.GoTo(t.enter(s, t.e.Pipes[n]))
		} else {
			t.JumpImm(asm.JEq, asm.R0, uint32(n), t.enter(s, t.e.Pipes[n]))
		}
	}
}
