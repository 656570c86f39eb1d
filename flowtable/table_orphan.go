package flowtable

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// orphanTicks is how long an alias may be without its flow: 2 s. A flow is made right behind its alias.
const orphanTicks = 1908

// orphan reports whether an alias has no flow whose outer tuple is its own. Where flows that the table does
// not see are beside the groups, none counts as orphan.
func (t *Table) orphan(e *entry) bool {
	if t.overflow4 == nil && t.besideGroups(e.id.Family) > 0 {
		return false
	}
	k := e.key()
	_, ok := t.followKey(e, &k)
	return !ok
}

// isOrphan reports whether an entry is an alias that has been an orphan for too long.
func (t *Table) isOrphan(e *entry, now uint32) bool {
	return isAlias(e.word()) && age(now, e.alias().created) >= orphanTicks && t.orphan(e)
}

func (t *Table) besideGroups(family uint8) int64 {
	if family == 4 {
		return atomic.LoadInt64(&t.state.Overflow4)
	}
	return atomic.LoadInt64(&t.state.Overflow6)
}

// freeOrphan frees a marked alias that still has no flow, with its port. Who found it to be its own flow's
// has taken the mark off.
func (t *Table) freeOrphan(m *mark) {
	if !t.orphan(&m.e) {
		m.takeOff()
		return
	}
	a := m.e.alias()
	t.freeAliasAt(&m.e, m.word, &a)
}

// markAlias marks the alias of a flow that is about to be freed, while the flow is still there: whoever opens
// it anew right then finds its own alias and takes the mark off, and so keeps it. The zero mark: there is
// none.
func (t *Table) markAlias(f *Flow) mark {
	k, target := keyOf(&f.NAT.Outer), keyOf(&f.Tuple)
	e, ok := t.find(&k)
	if !ok {
		return mark{}
	}
	word := e.word()
	if a := e.alias(); !isAlias(word) || !sameKey(&a.target, &target) {
		return mark{}
	}
	if !atomic.CompareAndSwapUint64(&e.core.Word, word, word|WordMarked) {
		return mark{}
	}
	return mark{e: e, word: word | WordMarked}
}

// DropAlias frees the alias of a flow that its owner has taken out of a kernel hash beside the groups, as
// View4 and View6 read it, and gives its port back. Aliases that are beside the groups themselves are not
// found: they are orphans from then on.
func (t *Table) DropAlias(f *Flow) {
	if f.NAT == nil {
		return
	}
	m := t.markAlias(f)
	if m.word == 0 {
		return
	}
	k := m.e.key()
	if _, again := t.followKey(&m.e, &k); again {
		m.takeOff() // it was opened anew
		return
	}
	a := m.e.alias()
	t.freeAliasAt(&m.e, m.word, &a)
}

// Orphan4 reports whether an entry of a kernel hash beside the groups is an alias, made 2 s ago or more, and
// its flow neither in the groups nor among beside, which is what the hash holds.
func (t *Table) Orphan4(f *bpf.XDPFlow4, now uint32, beside []bpf.XDPFlow4) bool {
	e := entry4(f, FlowID{Overflow: true})
	if !t.lonely(&e, now) {
		return false
	}
	a, k := e.alias(), e.key()
	for i := range beside {
		if flow := entry4(&beside[i], FlowID{Overflow: true}); beside[i].Key == a.target.v4 && flow.leadsTo(&k) {
			return false
		}
	}
	return true
}

// Orphan6 is Orphan4 for IPv6.
func (t *Table) Orphan6(f *bpf.XDPFlow6, now uint32, beside []bpf.XDPFlow6) bool {
	e := entry6(f, FlowID{Overflow: true})
	if !t.lonely(&e, now) {
		return false
	}
	a, k := e.alias(), e.key()
	for i := range beside {
		if flow := entry6(&beside[i], FlowID{Overflow: true}); beside[i].Key == a.target.v6 && flow.leadsTo(&k) {
			return false
		}
	}
	return true
}

// lonely reports whether an entry is an alias of some age whose flow is not in the groups.
func (t *Table) lonely(e *entry, now uint32) bool {
	if !isAlias(e.word()) || age(now, e.alias().created) < orphanTicks {
		return false
	}
	k := e.key()
	_, ok := t.followKey(e, &k)
	return !ok
}

// Release4 gives back what an alias had that its owner has taken out of a kernel hash beside the groups: its
// port, and its place among the aliases of State.
func (t *Table) Release4(f *bpf.XDPFlow4) {
	e := entry4(f, FlowID{Overflow: true})
	t.release(&e)
}

// Release6 is Release4 for IPv6.
func (t *Table) Release6(f *bpf.XDPFlow6) {
	e := entry6(f, FlowID{Overflow: true})
	t.release(&e)
}

func (t *Table) release(e *entry) {
	a := e.alias()
	t.giveBack(&a)
	atomic.AddInt64(&t.state.Aliases, -1)
}
