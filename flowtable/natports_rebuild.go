package flowtable

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// RebuildNATPorts takes the ports of all translated flows in bitmaps (NAT.NewBitmaps) of another layout,
// that of the generation `layout` with the nat rules n, and has the aliases say so: SetNATPorts comes
// first, so that what ends meanwhile gives its port back there. A flow whose rule no longer chooses ports,
// or none of its address, or not this one, has no port there. A nil n is one without rules. Flows whose rule has a limit there
// and had none when they were opened count for their sources from then on.
//
// It runs against packets under way. Call it before the generation is published, and once more behind that
// and a grace period, for what was opened in between; those beside the groups in kernel hashes are left
// out. If the generation is not published after all, call both for the one that runs. Bits are hints: a
// port that is missed is tried once for nothing. One RebuildNATPorts, Scan or Kill at a time.
func (t *Table) RebuildNATPorts(layout uint32, n *NAT, bitmaps []bpf.XDPNatBitmap) {
	if atomic.LoadInt64(&t.state.Aliases) == 0 {
		return
	}
	allowed := n.allowed()
	for e := range t.entries() {
		word := e.word()
		if !isAlias(word) {
			continue
		}
		a := e.alias()
		if a.layout == layout {
			continue
		}
		k := e.key()
		flow, ok := t.followKey(&e, &k)
		if !ok {
			continue // it is being made, or an orphan
		}
		outer, _ := flow.outer()
		original := flow.tuple(flow.opener())
		element := t.elementOf(n, &a, &original, &outer)
		if uint64(element) >= uint64(len(allowed)) || a.port < allowed[element].First || a.port > allowed[element].Last {
			element = natNoPorts // whoever gives a port back lets others choose it
		}
		natPorts(bitmaps).take(element, a.port)
		if !t.layOut(&e, word, &a, layout, element) {
			natPorts(bitmaps).give(element, a.port)
			continue
		}
		if k.kind() != KeyMapping {
			t.adoptTally(&e, word, &a, n, &original)
		}
	}
}

// elementOf returns the element of nat_ports in which the port of a flow is taken under nat rules, or
// natNoPorts.
func (t *Table) elementOf(n *NAT, a *alias, original, outer *Tuple) uint32 {
	id := a.source
	if id == 0 && original.Src != outer.Src {
		id = a.destination // a hairpin
	}
	if n == nil || id == 0 || uint64(id) >= uint64(len(n.Rules)) || a.port != outer.SrcPort {
		return natNoPorts
	}
	r := &n.Rules[id]
	address := uint32(0)
	switch bpf.XDPNatKind(r.Kind) {
	case bpf.XDPNatKindNAT_MASQUERADE:
	case bpf.XDPNatKindNAT_DESTINATION:
		if r.Flags&natHairpin == 0 {
			return natNoPorts
		}
	case bpf.XDPNatKindNAT_SOURCE:
		var ok bool
		if address, ok = numberInPool(r, outer); !ok {
			return natNoPorts
		}
	default:
		return natNoPorts
	}
	if r.Flags&natMapping != 0 {
		outer = outer.withoutRemote() // also of a flow that began without a mapping
	}
	element, _ := t.natElement(r.Ports, address, outer)
	return element
}

// numberInPool returns which address of a rule's pool is the source of a tuple.
func numberInPool(r *bpf.XDPNatRule, of *Tuple) (uint32, bool) {
	if r.Family != of.Family {
		return 0, false
	}
	first := addr6(&r.Address)
	if r.Family == 4 {
		first = addr4(r.Address[0])
	}
	if r.Family == 4 {
		first, last := binary.BigEndian.Uint32(first[:]), binary.BigEndian.Uint32(of.Src[:])
		return last - first, last-first < r.Addresses
	}
	var number packet.Addr // of.Src - first
	borrow := 0
	for i := len(number) - 1; i >= 0; i-- {
		d := int(of.Src[i]) - int(first[i]) - borrow
		number[i], borrow = byte(d), 0
		if d < 0 {
			borrow = 1
		}
	}
	low := binary.BigEndian.Uint32(number[12:])
	return low, [12]byte(number[:]) == [12]byte{} && low < r.Addresses
}

// layOut moves an alias to another layout. It reports false if the slot is another's by now: each part is
// exchanged together with one beside it that tells the alias. In between it has no port.
func (t *Table) layOut(e *entry, word uint64, a *alias, layout, element uint32) bool {
	var ports, layouts *uint64 // hash and ports; layout and source rule
	if e.flow4 != nil {
		ports, layouts = (*uint64)(unsafe.Pointer(&e.alias4().Hash)), (*uint64)(unsafe.Pointer(&e.alias4().Layout))
	} else {
		ports, layouts = (*uint64)(unsafe.Pointer(&e.alias6().Hash)), (*uint64)(unsafe.Pointer(&e.alias6().Layout))
	}
	hash := t.hash(&a.target)
	return atomic.CompareAndSwapUint64(ports, pair(hash, a.ports), pair(hash, natNoPorts)) &&
		atomic.CompareAndSwapUint64(layouts, pair(a.layout, a.source), pair(layout, a.source)) &&
		atomic.CompareAndSwapUint64(ports, pair(hash, natNoPorts), pair(hash, element)) &&
		(e.word()^word)&^WordMarked == 0
}
