package flowtable

import (
	"sync/atomic"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
)

// A translated flow has two entries: its own, under its original tuple, and its alias, under the outer one.
// docs/PACKET-PATH.md, section 15.

// aliasOpening is what the alias of a flow is made of, before the flow itself.
type aliasOpening struct {
	outer  *Tuple   // of the flow, opener's direction
	target *flowKey // of the flow: its original tuple's

	ports uint32 // element of the nat_ports that are set, in which outer's source port is taken; or natNoPorts
	tally uint32 // 1 + place where the flow counts for its source, 0: nowhere

	sourceRule, destinationRule uint32
	mapped                      uint8  // MAPPED_*
	now                         uint32 // tick

	left ended // a flow that gave way to the alias; set by createAlias
}

// aliasResult is how the making of an alias ended.
type aliasResult uint8

const (
	aliasMade  aliasResult = iota
	aliasOwn               // it is there already: of the same flow
	aliasTaken             // the tuple is another flow's
	aliasFull              // the table has no place
)

// alias is a copy of an alias's entry.
type alias struct {
	target              flowKey
	ports, layout       uint32
	source, destination uint32 // rules
	created             uint32 // tick
	port                uint16
	tally               uint32 // 1 + place
	mapped              uint8
}

// isAlias and isFlow say what stands in a slot with this word.
func isAlias(word uint64) bool { return stateOf(word) == bpf.XDPFlowStateFLOW_ALIAS }
func isFlow(word uint64) bool  { return word&WordStateMask != 0 && !isAlias(word) }

// alias4 and alias6 read an entry of their family as an alias.
func (e *entry) alias4() *bpf.XDPAlias4 { return (*bpf.XDPAlias4)(unsafe.Pointer(e.flow4)) }
func (e *entry) alias6() *bpf.XDPAlias6 { return (*bpf.XDPAlias6)(unsafe.Pointer(e.flow6)) }

// alias copies an alias. It is whole if the generation is the same before and after.
func (e *entry) alias() alias {
	if e.flow4 != nil {
		a := e.alias4()
		return alias{
			target: flowKey{family: 4, v4: a.Target},
			ports:  atomic.LoadUint32(&a.Ports), layout: atomic.LoadUint32(&a.Layout),
			source: a.SourceRule, destination: a.DestinationRule, created: a.Created, port: a.Port, tally: atomic.LoadUint32(&a.Tally),
			mapped: a.Mapped,
		}
	}
	a := e.alias6()
	return alias{
		target: flowKey{family: 6, v6: a.Target},
		ports:  atomic.LoadUint32(&a.Ports), layout: atomic.LoadUint32(&a.Layout),
		source: a.SourceRule, destination: a.DestinationRule, created: a.Created, port: a.Port, tally: atomic.LoadUint32(&a.Tally),
		mapped: a.Mapped,
	}
}

// outer returns the outer tuple of a translated flow, in its opener's direction. It reports false for a
// flow that is not translated.
func (e *entry) outer() (Tuple, bool) {
	if e.leg[0].Flags&legXlat == 0 {
		return Tuple{}, false
	}
	o := e.opener()
	t := e.tuple(o)
	if t.Kind == KeyMapping {
		t.Domain = 0 // which was the nat rule's
	}
	if e.flow4 != nil {
		t.Src, t.Dst = addr4(e.flow4.Xlat[o]), addr4(e.flow4.Xlat[o^1])
	} else {
		t.Src, t.Dst = addr6(&e.flow6.Xlat[o]), addr6(&e.flow6.Xlat[o^1])
	}
	t.SrcPort, t.DstPort = swap16(e.leg[o].XlatPort), swap16(e.leg[o^1].XlatPort)
	return t, true
}

// translate writes the outer tuple, given in the opener's direction, into a flow.
func (e *entry) translate(outer *Tuple, opener uint8) {
	for i := range e.leg {
		e.leg[i].Flags |= legXlat
	}
	e.leg[opener].XlatPort, e.leg[opener^1].XlatPort = swap16(outer.SrcPort), swap16(outer.DstPort)
	if e.flow4 != nil {
		e.flow4.Xlat[opener], e.flow4.Xlat[opener^1] = load32(outer.Src[:]), load32(outer.Dst[:])
	} else {
		e.flow6.Xlat[opener], e.flow6.Xlat[opener^1] = words(&outer.Src), words(&outer.Dst)
	}
}

// sameKey reports whether two keys are equal, whoever sends.
func sameKey(a, b *flowKey) bool { return a.family == b.family && a.v4 == b.v4 && a.v6 == b.v6 }

// follow returns the flow of an alias, if it is translated and its outer tuple, in either direction, is
// `outer`. It is for those who only read, as see is.
func (t *Table) follow(of entry, outer *Tuple) (entry, bool) {
	k, target := keyOf(outer), of.alias().target
	flow, ok := t.see(&target)
	if !ok || !isFlow(flow.word()) {
		return entry{}, false
	}
	return flow, flow.leadsTo(&k)
}

// followKey is follow by a key, for those who change entries.
func (t *Table) followKey(of *entry, outer *flowKey) (entry, bool) {
	target := of.alias().target
	flow, ok := t.find(&target)
	if !ok || !isFlow(flow.word()) {
		return entry{}, false
	}
	return flow, flow.leadsTo(outer)
}

// leadsTo reports whether a flow is translated and this is the key of its outer tuple.
func (e *entry) leadsTo(outer *flowKey) bool {
	own, ok := e.outer()
	if !ok {
		return false
	}
	k := keyOf(&own)
	return sameKey(&k, outer)
}

// createAlias makes the alias of a flow that is about to be made, by the rules of create.
func (t *Table) createAlias(a *aliasOpening) aliasResult {
	a.left = ended{}
	k := keyOf(a.outer)
	if e, ok := t.find(&k); ok {
		word := e.word()
		if !isAlias(word) || word&WordHiOpened != hiOpened(k.sender) {
			return aliasTaken
		}
		if there := e.alias(); !sameKey(&there.target, a.target) {
			return aliasTaken
		}
		setWord(&e.core.Word, WordMarked, 0)
		return aliasOwn
	}
	c := t.candidates(&k)
	full := t.Flows() >= t.cfg.FlowsMax
	group, free := t.emptier(k.family, &c)
	var e entry
	switch {
	case free > 0 && !full:
		e = t.freeSlot(k.family, &c, group)
		t.countedAlias(k.family, 1)
	case t.evict(k.family, &c, &e, &a.left):
		atomic.AddInt64(&t.state.Aliases, 1)
	case free == 0 && !full && t.overflow(&k, &e):
		t.countedAlias(k.family, 1)
	default:
		t.Counters.Refused++
		return aliasFull
	}
	t.fillAlias(&e, &k, a)
	return aliasMade
}

// fillAlias writes an alias into an entry.
func (t *Table) fillAlias(e *entry, k *flowKey, a *aliasOpening) {
	generation := (e.word()>>WordGenerationBit + 1) << WordGenerationBit
	atomic.StoreUint64(&e.core.Word, WordBusy|generation)
	port := a.outer.SrcPort
	if a.ports == natNoPorts {
		port = 0
	}
	if e.flow4 != nil {
		*e.alias4() = bpf.XDPAlias4{
			Key: k.v4, Word: WordBusy | generation, Hash: t.hash(a.target), Ports: a.ports, Target: a.target.v4,
			Layout: t.natLayout, SourceRule: a.sourceRule, DestinationRule: a.destinationRule, Created: a.now, Port: port, Tally: a.tally,
			Mapped: a.mapped,
		}
	} else {
		*e.alias6() = bpf.XDPAlias6{
			Key: k.v6, Word: WordBusy | generation, Hash: t.hash(a.target), Ports: a.ports, Target: a.target.v6,
			Layout: t.natLayout, SourceRule: a.sourceRule, DestinationRule: a.destinationRule, Created: a.now, Port: port, Tally: a.tally,
			Mapped: a.mapped,
		}
	}
	atomic.StoreUint64(&e.core.Word, uint64(bpf.XDPFlowStateFLOW_ALIAS)|hiOpened(k.sender)|generation)
}

// tallyPair is the port, what the flow was made by and the tally of an alias, to be exchanged together.
func (e *entry) tallyPair() *uint64 {
	if e.flow4 != nil {
		return (*uint64)(unsafe.Pointer(&e.alias4().Port))
	}
	return (*uint64)(unsafe.Pointer(&e.alias6().Port))
}

// hiOpened is the flag of a word for an opener's leg.
func hiOpened(opener uint8) uint64 { return uint64(opener) * WordHiOpened }

// countedAlias corrects the counts by n aliases.
func (t *Table) countedAlias(family uint8, n int64) {
	t.counted(family, bpf.XDPFlowStateFLOW_ALIAS, n)
	atomic.AddInt64(&t.state.Aliases, n)
}

// dropAlias frees the alias of a translated flow, and gives its port back. The flow's entry must still be as
// it was.
func (t *Table) dropAlias(flow *entry) {
	if outer, ok := flow.outer(); ok {
		k := flow.key()
		t.freeAlias(&outer, &k)
	}
}

// cancelAlias takes back an alias whose flow could not be made, with its port.
func (t *Table) cancelAlias(a *aliasOpening) { t.freeAlias(a.outer, a.target) }

// freeAlias frees the alias of a flow with these tuples, and reports whether it was there.
func (t *Table) freeAlias(outer *Tuple, target *flowKey) bool {
	k := keyOf(outer)
	e, ok := t.find(&k)
	if !ok {
		return false
	}
	for {
		word := e.word()
		a := e.alias()
		if !isAlias(word) || !sameKey(&a.target, target) {
			return false
		}
		if t.freeAliasAt(&e, word, &a) {
			return true
		}
	}
}

// freeAliasAt frees an alias that still has the word with which it was copied.
func (t *Table) freeAliasAt(e *entry, word uint64, a *alias) bool {
	if !atomic.CompareAndSwapUint64(&e.core.Word, word, (word>>WordGenerationBit+1)<<WordGenerationBit) {
		return false
	}
	t.giveBack(a)
	t.countedAlias(a.target.family, -1)
	if e.id.Overflow {
		t.leaveOverflow(e)
	}
	return true
}

// giveBack gives back what an alias had that has ended: its port, if it was taken in the layout of now, and
// its part in what its source has.
func (t *Table) giveBack(a *alias) {
	t.giveTally(a.tally)
	if a.layout == t.natLayout && a.ports != natNoPorts {
		t.natPorts.give(a.ports, a.port)
	}
}
