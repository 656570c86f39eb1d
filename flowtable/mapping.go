package flowtable

import (
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Endpoint-independent mapping, docs/PACKET-PATH.md section 15.12: entries in the state FLOW_MAPPING. Their
// keys are those of no packet. A mapping is translated as a flow is and has an alias, with the port; what an
// end has sent to is not.

// What lives at least as long as the flow of an alias (abi.h: MAPPED_*).
const (
	mappedSource      = 0x01 // the mapping by which its opener leaves
	mappedPeer        = 0x02 // that its opener has sent to its other end
	mappedDestination = 0x04 // the mapping by which its opener came in
)

func isMapping(word uint64) bool { return stateOf(word) == bpf.XDPFlowStateFLOW_MAPPING }

// mappingOf returns the tuple of the mapping that the source of t has for an address outside, by a nat rule.
func mappingOf(t *Tuple, outside *packet.Addr, rule uint32) Tuple {
	return Tuple{
		Family: t.Family, Proto: t.Proto, Kind: KeyMapping, Src: t.Src, SrcPort: t.SrcPort,
		Dst: *outside, DstPort: uint16(rule), Domain: uint16(rule >> 16),
	}
}

// peerOf returns the tuple of what the source of t has sent to.
func peerOf(t *Tuple, peer *packet.Addr) Tuple {
	return Tuple{Family: t.Family, Proto: t.Proto, Kind: KeyPeer, Src: t.Src, SrcPort: t.SrcPort, Dst: *peer}
}

// withoutRemote returns the tuple with nobody as its other end.
func (t *Tuple) withoutRemote() *Tuple {
	out := *t
	out.Dst, out.DstPort = packet.Addr{}, 0
	return &out
}

// kind returns the key's kind.
func (k *flowKey) kind() uint8 {
	if k.family == 4 {
		return k.v4.Kind
	}
	return k.v6.Kind
}

// family returns that of an entry.
func (e *entry) family() uint8 {
	if e.flow4 != nil {
		return 4
	}
	return 6
}

// mapping returns the entry in the state FLOW_MAPPING with a tuple.
func (t *Table) mapping(of *Tuple) (entry, bool) {
	k := keyOf(of)
	e, ok := t.find(&k)
	return e, ok && isMapping(e.word())
}

// use returns such an entry, which from here on lives for its time-out.
func (t *Table) use(of *Tuple, now uint32) (entry, bool) {
	e, ok := t.mapping(of)
	if ok {
		storeSeen(&e.leg[0], now)
		setWord(&e.core.Word, WordMarked, 0)
	}
	return e, ok
}

// useMapping uses the mapping of the source of a tuple.
func (t *Table) useMapping(of *Tuple, outside *packet.Addr, rule, now uint32) (entry, bool) {
	m := mappingOf(of, outside, rule)
	return t.use(&m, now)
}

// keepMapped has what the flow of an alias was made by live on from a tick.
func (t *Table) keepMapped(e *entry, now uint32) {
	a := e.alias()
	if a.mapped == 0 {
		return
	}
	k := e.key()
	flow, ok := t.followKey(e, &k)
	if !ok {
		return
	}
	original := flow.tuple(flow.opener())
	outer, _ := flow.outer()
	t.keep(&a, &original, &outer, [2]uint32{now, now})
}

// keep has what a flow was made by live on from the last packet of the end inside. Seen are the ticks of
// the last packets, the opener's first.
func (t *Table) keep(a *alias, original, outer *Tuple, seen [2]uint32) {
	if a.mapped&mappedSource != 0 {
		t.touch(mappingOf(original, &outer.Src, a.source), seen[0])
	}
	if a.mapped&mappedPeer != 0 {
		t.touch(peerOf(original, &outer.Dst), seen[0])
	}
	if a.mapped&mappedDestination != 0 {
		inside := outer.reverse()
		t.touch(mappingOf(&inside, &original.Dst, a.destination), seen[1])
	}
}

// touch notes that a mapping was used at a tick. A scan that has marked it finds it changed.
func (t *Table) touch(of Tuple, seen uint32) {
	e, ok := t.mapping(&of)
	if !ok {
		return
	}
	for {
		old := atomic.LoadUint32(&e.leg[0].Seen)
		if int32(seen-old) <= 0 || atomic.CompareAndSwapUint32(&e.leg[0].Seen, old, seen) {
			return
		}
	}
}
