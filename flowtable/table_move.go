package flowtable

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
)

// A Move carries the flows of a table over to another of another size, while packets go on through the
// old one: Copy, then whatever has packets go through the new one, a grace period, and Settle. Both tables
// share hash seed and State, and nobody ages either meanwhile.
//
// What happens between Copy and that is not lost, but for flows that begin then: they are left behind, as
// are those for which the new table is too small, half-open ones first. A translated flow and its alias are
// carried together or not at all.
type Move struct {
	from, to           *Table
	carried            []carried // from the old groups
	covered4, covered6 []uint64  // bit masks of the old slots of carried
	besides            []entry   // aliases beside the old groups, while Copy runs

	holds holding // what was carried
}

// holding is what of a table its State counts.
type holding struct{ flows, aliases, six, half int64 }

// add counts a flow of a family in a state.
func (h *holding) add(family uint8, s bpf.XDPFlowState) {
	if s == bpf.XDPFlowStateFLOW_ALIAS {
		h.aliases++
	} else {
		h.flows++
	}
	if family == 6 {
		h.six++
	}
	if halfOpen(s) {
		h.half++
	}
}

// carried is a flow that is in both tables.
type carried struct {
	from, to FlowID // places
	word     uint64 // of its copy
	sum      Sum    // what it had counted then
}

// NewMove prepares a move. The new table must be empty, and is used by nobody until Copy has returned.
func NewMove(from, to *Table) *Move {
	return &Move{
		from: from, to: to, carried: make([]carried, 0, max(0, from.Flows())),
		covered4: make([]uint64, len(from.groups4)*GroupSlots/64+1), covered6: make([]uint64, len(from.groups6)*GroupSlots/64+1),
	}
}

// covered returns the word and the mask of an old slot's bit.
func (m *Move) covered(id *FlowID) (word *uint64, mask uint64) {
	n := int(id.Group)*GroupSlots + int(id.Slot)
	if id.Family == 4 {
		return &m.covered4[n/64], 1 << (n % 64)
	}
	return &m.covered6[n/64], 1 << (n % 64)
}

// isCarried reports whether the flow of an old place was copied. Those beside the groups were copied from
// another place.
func (m *Move) isCarried(e *entry) bool {
	if e.id.Overflow {
		k := e.key()
		_, found := m.to.find(&k)
		return found
	}
	word, mask := m.covered(&e.id)
	return *word&mask != 0
}

// Copy copies the flows, and those of the kernel's hashes beside the old groups. Established ones come
// first.
func (m *Move) Copy(beside4 []bpf.XDPFlow4, beside6 []bpf.XDPFlow6) {
	for i := range beside4 {
		m.noteBeside(entry4(&beside4[i], FlowID{Overflow: true}))
	}
	for i := range beside6 {
		m.noteBeside(entry6(&beside6[i], FlowID{Overflow: true}))
	}
	for _, all := range []bool{false, true} {
		for e := range m.from.held(beside4, beside6) {
			if word := e.word(); isFlow(word) && (all || !halfOpen(stateOf(word))) && !m.isCarried(&e) {
				m.copy(&e)
			}
		}
	}
	m.besides = nil
}

// noteBeside remembers the aliases among what is beside the old groups: they are few.
func (m *Move) noteBeside(e entry) {
	if isAlias(e.word()) {
		m.besides = append(m.besides, e)
	}
}

// aliasOf returns the alias of a translated flow in the old table.
func (m *Move) aliasOf(e *entry, outer *Tuple) (entry, bool) {
	k, target := keyOf(outer), e.key()
	is := func(e *entry) bool {
		a := e.alias()
		return isAlias(e.word()) && sameKey(&a.target, &target)
	}
	if a, ok := m.from.find(&k); ok {
		return a, is(&a)
	}
	for _, a := range m.besides {
		if own := a.key(); sameKey(&own, &k) && is(&a) {
			return a, true
		}
	}
	return entry{}, false
}

func (m *Move) copy(e *entry) {
	for range 4 { // a half-open flow may give its slot away meanwhile
		var c carried
		c.word = e.word() &^ (WordMarked | WordBusy)
		state := stateOf(c.word)
		if !sumOf(e, &c.sum) || m.holds.flows+m.holds.aliases >= m.to.cfg.FlowsMax ||
			halfOpen(state) && m.holds.half >= m.to.cfg.HalfOpenMax {
			return
		}
		// The alias first, as XDP makes them.
		var own entry
		if outer, ok := e.outer(); ok {
			if own, ok = m.copyAlias(e, &outer); !ok {
				return
			}
		}
		at, ok := m.put(e, c.word)
		if ok && e.word()>>WordGenerationBit != c.word>>WordGenerationBit {
			at.core.Word, ok = 0, false
		} else if !ok {
			c.word = 0 // there is no place
		}
		if !ok {
			if own.core != nil {
				own.core.Word = 0
			}
			if c.word == 0 {
				return
			}
			continue
		}
		m.holds.add(at.id.Family, state)
		if own.core != nil {
			m.holds.add(own.id.Family, bpf.XDPFlowStateFLOW_ALIAS)
		}
		if !e.id.Overflow {
			c.from, c.to = e.id, at.id
			m.carried = append(m.carried, c)
			word, mask := m.covered(&e.id)
			*word |= mask
		}
		return
	}
}

// put copies an entry into a place of the new table, with this word. It reports false if there is none.
func (m *Move) put(e *entry, word uint64) (entry, bool) {
	k := e.key()
	at, ok := m.to.place(&k)
	if !ok {
		return entry{}, false
	}
	if e.flow4 != nil {
		*at.flow4 = *e.flow4
	} else {
		*at.flow6 = *e.flow6
	}
	at.core.Word = word
	return at, true
}

// copyAlias copies the alias of a flow, if it has one and there is room for both.
func (m *Move) copyAlias(flow *entry, outer *Tuple) (entry, bool) {
	if m.holds.flows+m.holds.aliases+1 >= m.to.cfg.FlowsMax {
		return entry{}, false
	}
	e, ok := m.aliasOf(flow, outer)
	if !ok {
		return entry{}, false
	}
	word := e.word() &^ (WordMarked | WordBusy)
	at, ok := m.put(&e, word)
	if ok && (e.word()^word)&^(WordMarked|WordBusy) != 0 {
		at.core.Word, ok = 0, false
	}
	return at, ok
}

// Settle ends the move, once no packet goes through the old table any more. It hands to credit what the
// new table does not hold of what was counted: on flows after their copy, modulo 2^64, and on those left
// behind, as a Sum that is good until credit returns. It returns how many flows there were of each kind.
// Beside are those of the kernel's hashes as they are now.
func (m *Move) Settle(beside4 []bpf.XDPFlow4, beside6 []bpf.XDPFlow6, credit func(*Sum)) (carried, left int) {
	var old holding
	var sum Sum
	for e := range m.from.held(beside4, beside6) {
		if isAlias(e.word()) {
			old.add(e.id.Family, bpf.XDPFlowStateFLOW_ALIAS)
		}
		if !sumOf(&e, &sum) {
			continue
		}
		old.add(e.id.Family, sum.State)
		if !m.isCarried(&e) {
			credit(&sum)
			left++
		}
	}
	for i := range m.carried {
		c := &m.carried[i]
		e := m.from.at(c.from.Family, c.from.Group, c.from.Slot)
		word := e.word()
		goesOn := word>>WordGenerationBit == c.word>>WordGenerationBit
		if goesOn {
			c.follow(m.to, word)
		}
		there := sumOf(&e, &sum)
		if there && !goesOn { // another flow has its place
			credit(&sum)
			left++
		}
		if !there || !goesOn {
			sum = Sum{Rule: c.sum.Rule} // XDP has credited all of it, and it counts on
		}
		for d := range 2 {
			sum.Packets[d] -= c.sum.Packets[d]
			sum.Bytes[d] -= c.sum.Bytes[d]
		}
		if sum.Packets != [2]uint64{} || sum.Bytes != [2]uint64{} {
			credit(&sum)
		}
	}
	m.correct(&old)
	return int(m.holds.flows), left
}

// follow brings the copy to the state that the flow has reached after it, unless packets have already.
func (c *carried) follow(to *Table, word uint64) {
	word &^= WordMarked | WordBusy
	e := to.at(c.to.Family, c.to.Group, c.to.Slot)
	if word != c.word && atomic.CompareAndSwapUint64(&e.core.Word, c.word, word) {
		to.moved(stateOf(c.word), stateOf(word))
	}
}

// correct makes the counts, which were those of the old table and of what began in the new one, those of
// the new one. The order is that of counted.
func (m *Move) correct(old *holding) {
	s, now := m.to.state, &m.holds
	if now.six < old.six {
		atomic.AddInt64(&s.Flows6, now.six-old.six)
	}
	atomic.AddInt64(&s.Flows, now.flows+now.aliases-old.flows-old.aliases)
	if now.six > old.six {
		atomic.AddInt64(&s.Flows6, now.six-old.six)
	}
	atomic.AddInt64(&s.HalfOpen, now.half-old.half)
	atomic.AddInt64(&s.Aliases, now.aliases-old.aliases)
}

// place returns a free place for a key in its emptier group.
func (t *Table) place(k *flowKey) (entry, bool) {
	c := t.candidates(k)
	group, free := t.emptier(k.family, &c)
	if free == 0 {
		return entry{}, false
	}
	for i := range uint32(GroupSlots) {
		if e := t.at(k.family, c.group[group], uint8(c.first^i)); isFree(e.word()) {
			return e, true
		}
	}
	return entry{}, false
}

// held walks the table as entries does, without families that hold nothing, and then those beside it.
func (t *Table) held(beside4 []bpf.XDPFlow4, beside6 []bpf.XDPFlow6) func(yield func(entry) bool) {
	return func(yield func(entry) bool) {
		four, six := t.holds()
		for e := range t.entries() {
			if (e.flow4 != nil && !four || e.flow6 != nil && !six) || yield(e) {
				continue
			}
			return
		}
		for i := range beside4 {
			if !yield(entry4(&beside4[i], FlowID{Overflow: true})) {
				return
			}
		}
		for i := range beside6 {
			if !yield(entry6(&beside6[i], FlowID{Overflow: true})) {
				return
			}
		}
	}
}

// key is that of a flow, without a sender.
func (e *entry) key() flowKey {
	if e.flow4 != nil {
		return flowKey{family: 4, v4: e.flow4.Key}
	}
	return flowKey{family: 6, v6: e.flow6.Key}
}
