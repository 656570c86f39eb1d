package flowtable

import (
	"math/bits"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Of nat_ports (abi.h: NAT_*).
const (
	natNoPorts = 0xffffffff // in the place of an element: no port is chosen
	natClasses = 3          // TCP, UDP, ICMP
	natSlices  = 4          // of the remote ends
	natTries   = 8          // ports that are tried for one flow
	natSpread  = 40503      // from one try's start to the next
)

// natClass returns the class of a protocol whose source port, or identifier, can be chosen.
func natClass(proto uint8) (class uint32, ok bool) {
	switch proto {
	case packet.ProtoTCP:
		return 0, true
	case packet.ProtoUDP:
		return 1, true
	case packet.ProtoICMP, packet.ProtoICMPv6:
		return 2, true
	}
	return 0, false
}

// natElement returns the element of nat_ports for a flow: first is its rule's, address counts in the rule's
// pool, and outer tells its class and slice; its source port does not matter. It reports false for
// protocols without ports to choose. Of a rule with mappings, nobody is outer's other end.
func (t *Table) natElement(first, address uint32, outer *Tuple) (uint32, bool) {
	class, ok := natClass(outer.Proto)
	if !ok || first == natNoPorts {
		return natNoPorts, false
	}
	remote := *outer
	remote.SrcPort, remote.Domain, remote.Kind = 0, 0, KeyFlow
	k := keyOf(&remote)
	return first + (address*natClasses+class)*natSlices + t.hash(&k)&(natSlices-1), true
}

// natPorts are the taken ports of nat_ports, by element. Any number of goroutines and XDP may use them at
// the same time. What is taken is a hint: a port can be in use and not taken, and for a moment the other
// way round.
type natPorts []bpf.XDPNatBitmap

// take takes a port and reports whether it was free.
func (n natPorts) take(element uint32, port uint16) bool {
	if uint64(element) >= uint64(len(n)) {
		return false
	}
	b, w := &n[element], port>>6
	bit := uint64(1) << (port & 63)
	old := atomic.OrUint64(&b.Taken[w], bit)
	if old&bit != 0 {
		return false
	}
	if old|bit == ^uint64(0) {
		full := uint64(1) << (w & 63)
		atomic.OrUint64(&b.Full[w>>6], full)
		// Who gave a port of this word back in between has found nothing to take off.
		if atomic.LoadUint64(&b.Taken[w]) != ^uint64(0) {
			atomic.AndUint64(&b.Full[w>>6], ^full)
		}
	}
	return true
}

// give frees a port.
func (n natPorts) give(element uint32, port uint16) {
	if uint64(element) >= uint64(len(n)) {
		return
	}
	b, w := &n[element], port>>6
	atomic.AndUint64(&b.Taken[w], ^(uint64(1) << (port & 63)))
	atomic.AndUint64(&b.Full[w>>6], ^(uint64(1) << (w & 63)))
}

// next returns the first free port from start on, in ascending order and from 0 again behind the last. Ok
// is false if none is free.
func (n natPorts) next(element uint32, start uint16) (port uint16, ok bool) {
	if uint64(element) >= uint64(len(n)) {
		return 0, false
	}
	b := &n[element]
	w := int(start >> 6)
	if free := ^atomic.LoadUint64(&b.Taken[w]) >> (start & 63) << (start & 63); free != 0 {
		return uint16(w<<6 | bits.TrailingZeros64(free)), true
	}
	// The rest of the word's full, the others, and it again: the start's own word comes last, from its
	// beginning.
	const fulls = len(b.Full)
	at := (w + 1) & (len(b.Taken) - 1)
	mask := ^uint64(0) << (at & 63)
	for i := range fulls + 1 {
		f := (at>>6 + i) & (fulls - 1)
		for open := ^atomic.LoadUint64(&b.Full[f]) & mask; open != 0; open &= open - 1 {
			w := f<<6 | bits.TrailingZeros64(open)
			if free := ^atomic.LoadUint64(&b.Taken[w]); free != 0 {
				return uint16(w<<6 | bits.TrailingZeros64(free)), true
			}
		}
		mask = ^uint64(0)
	}
	return 0, false
}

// SetNATPorts has ports of translated flows that end given back to these bitmaps (abi.h: nat_ports) from
// here on: those of the generation `layout`. Ports that were taken in another layout are nobody's to give.
// The memory must stay as long as it is set; nil: there is none. Not to be called while a Scan or a Kill
// runs.
func (t *Table) SetNATPorts(layout uint32, bitmaps []bpf.XDPNatBitmap) {
	t.natLayout, t.natPorts = layout, bitmaps
}
