package pipe

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

// tree writes a search from a node on: hit writes what is done where an entry matches, and may not go on behind it. At
// each node nothing is held but regFields: fields are read again, from the same cache line, so that the verifier has no
// ranges to follow.
func (t *text) tree(tr *tree, id int32, hit func(entry int), miss label) {
	t.nodes(tr, id, hit, miss, nil)
}

// nodes writes a search; apart, if not nil, may write that of a node elsewhere, and reports whether it has.
func (t *text) nodes(tr *tree, id int32, hit func(entry int), miss label, apart func(id int32) bool) {
	n := &tr.nodes[id]
	if apart != nil && apart(id) {
		return
	}
	if n.kind == nodeLeaf {
		for i := range n.items {
			next := miss
			if i < len(n.items)-1 || n.no != 0 {
				next = t.Label()
			}
			t.item(&n.items[i], next)
			hit(n.items[i].entry)
			if next != miss {
				t.Place(next)
			}
		}
		switch {
		case n.no != 0:
			t.nodes(tr, n.no, hit, miss, apart)
		case len(n.items) == 0:
			t.GoTo(miss)
		}
		return
	}
	yes := t.Label()
	emptyYes, emptyNo := tr.empty(n.yes), tr.empty(n.no)
	if emptyYes {
		yes = miss
	}
	switch n.kind {
	case nodeAtLeast:
		t.term(n.term)
		if emptyNo {
			t.JumpImm(asm.JLT, asm.R1, n.value, miss)
		} else {
			t.JumpImm(asm.JGE, asm.R1, n.value, yes)
		}
	case nodePresent:
		t.load(asm.R1, wordHas)
		t.Add(asm.And.Imm32(asm.R1, int32(n.value)))
		if emptyNo {
			t.JumpImm(asm.JNE, asm.R1, n.value, miss)
		} else {
			t.JumpImm(asm.JEq, asm.R1, n.value, yes)
		}
	}
	if !emptyNo {
		t.nodes(tr, n.no, hit, miss, apart)
		t.Place(yes)
	}
	if yes != miss {
		t.nodes(tr, n.yes, hit, miss, apart)
	} else if emptyNo {
		t.GoTo(miss)
	}
}

func (tr *tree) empty(id int32) bool {
	n := &tr.nodes[id]
	return n.kind == nodeLeaf && len(n.items) == 0
}

// term reads a term into r1.
func (t *text) term(x term) {
	t.load(asm.R1, x.word)
	if x.part {
		t.Add(asm.And.Imm32(asm.R1, int32(x.mask)))
	}
}

// item goes on if an item matches, else to next.
func (t *text) item(it *item, next label) {
	if it.need != 0 {
		t.load(asm.R1, wordHas)
		t.Add(asm.And.Imm32(asm.R1, int32(it.need)))
		t.JumpImm(asm.JNE, asm.R1, it.need, next)
	}
	for i := range it.bounds {
		b := &it.bounds[i]
		t.term(b.term)
		switch {
		case b.first == b.last:
			t.JumpImm(asm.JNE, asm.R1, b.first, next)
			continue
		case b.first > 0:
			t.JumpImm(asm.JLT, asm.R1, b.first, next)
		}
		if b.last < b.term.mask {
			t.JumpImm(asm.JGT, asm.R1, b.last, next)
		}
	}
	for i := range it.conditions {
		c := &it.conditions[i]
		t.load(asm.R1, c.word)
		if c.with < 0 {
			t.JumpImm(opposite[c.compare], asm.R1, c.value, next)
			continue
		}
		t.load(asm.R2, c.with)
		t.JumpReg(opposite[c.compare], asm.R1, asm.R2, next)
	}
}

var opposite = map[Compare]asm.JumpOp{EQ: asm.JNE, NE: asm.JEq, LT: asm.JGE, LE: asm.JGT, GT: asm.JLE, GE: asm.JLT}

// Searches of functions of their own. What is smaller than the least stands where it is asked.
const treeLeast = 300

// search writes the search of a pipe as a function that answers the place of the entry that matched, 0 if none did. Parts
// of it that do not fit into one become functions that it calls.
func (e *emitter) search(pl *Planned, name string) error {
	parts := 0
	var write func(name string, id int32) error
	write = func(name string, id int32) error {
		t := e.text()
		t.begin()
		miss := t.Label()
		room := e.options.Limits.function() - 16
		var failed error
		apart := func(at int32) bool {
			size := pl.tree.nodes[at].size
			full := t.Slots()+pl.tree.nodes[at].slots() > room-room/8 // what is left is for calls of the parts
			if at == id || !full && (size < min(treeLeast, room/4) || size > room-16 || pl.tree.nodes[id].size <= room) {
				return false
			}
			parts++
			sub := fmt.Sprintf("%s_%d", name, parts)
			if err := write(sub, at); err != nil {
				failed = err
			}
			t.Add(asm.Mov.Reg(asm.R1, regFields))
			t.Call(sub)
			t.Add(asm.Return())
			return true
		}
		t.nodes(pl.tree, id, func(entry int) { t.Return(pl.Places[entry]) }, miss, apart)
		t.Place(miss)
		insns, err := t.end(function(name), 0)
		if err == nil {
			err = failed
		}
		e.functions = append(e.functions, insns)
		return err
	}
	return write(name, 0)
}
