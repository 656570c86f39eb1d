package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/softdpu/softdpu/flowtable"
)

// A header is what a packet is classified by.
type header struct {
	src, dst     uint32 // IPv4
	sport, dport uint16
	proto        byte
}

// drawHeaders draws n different headers that entries' rules meet: of a random rule's fields each has its lowest
// value, its highest one, or one between. Headers that no router would forward are left out, and ICMP with them, of
// which most is never classified.
func drawHeaders(entries []flowtable.ACLEntry, n int, rnd *rand.Rand) ([]header, error) {
	out, seen := make([]header, 0, n), make(map[header]bool, n)
	for tries := 0; len(out) < n; tries++ {
		if tries > 50*n {
			return nil, fmt.Errorf("draw %d different headers: the rules give only %d: name a larger set", n, len(out))
		}
		e := &entries[rnd.IntN(len(entries))]
		h := header{
			src: drawAddress(e.Src, rnd), dst: drawAddress(e.Dst, rnd),
			proto: byte(draw(uint32(e.Proto.First), uint32(e.Proto.Last), rnd)),
		}
		if e.Proto.First != e.Proto.Last { // any: what has ports
			h.proto = []byte{6, 17}[rnd.IntN(2)]
		}
		if h.proto == 6 || h.proto == 17 {
			h.sport = uint16(draw(uint32(e.SrcPort.First), uint32(e.SrcPort.Last), rnd))
			h.dport = uint16(draw(uint32(e.DstPort.First), uint32(e.DstPort.Last), rnd))
		}
		if h.proto == 1 || !routable(h.src) || !routable(h.dst) || h.src == h.dst || seen[h] {
			continue
		}
		seen[h] = true
		out = append(out, h)
	}
	return out, nil
}

func draw(first, last uint32, rnd *rand.Rand) uint32 {
	switch rnd.IntN(3) {
	case 0:
		return first
	case 1:
		return last
	}
	return first + uint32(rnd.Uint64N(uint64(last-first)+1))
}

func drawAddress(ranges []flowtable.AddrRange, rnd *rand.Rand) uint32 {
	if len(ranges) == 0 {
		return draw(0, 1<<32-1, rnd)
	}
	r := ranges[rnd.IntN(len(ranges))]
	number := func(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }
	return draw(number(r.First), number(r.Last), rnd)
}

// routable reports whether a router forwards what comes from or goes to a, and whether the lab's hosts do not have it.
func routable(a uint32) bool {
	first := a >> 24
	return first != 0 && first != 127 && first < 224 && a>>8 != 10<<16|10<<8|1 && a>>8 != 10<<16|10<<8|2
}
