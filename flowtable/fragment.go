package flowtable

import (
	"fmt"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

const (
	fragmentSlots  = 4 // datagrams of a group
	fragmentRanges = 8 // disjoint ranges that are tracked of one datagram
)

var fragmentLife = Ticks(30 * time.Second)

// fragmentKey names a datagram.
type fragmentKey struct {
	src, dst packet.Addr
	id       uint32
	domain   uint16
	proto    uint8 // what the IPv4 header or the IPv6 fragment header names
	family   uint8 // 4 or 6; 0 = a free slot
}

// span is a range of a datagram's payload, in bytes, end excluded.
type span struct{ start, end int }

// datagram is what is known of one fragmented datagram whose first fragment was judged.
type datagram struct {
	key              fragmentKey
	srcPort, dstPort uint16 // of the flow key, in the direction of the datagram
	transport        uint8  // protocol of the transport header
	reason           bpf.XDPReason
	rule             uint32 // that refused it, or by which its flow was allowed
	tick             uint32 // of the first fragment
	total            int    // payload length once the last fragment was seen, else 0
	spans            int    // used elements of span
	span             [fragmentRanges]span
}

// fragments is the table of datagrams whose later fragments may still come.
type fragments struct {
	groups [][fragmentSlots]datagram
	seed   uint64
}

func newFragments(groups int, seed uint64) (*fragments, error) {
	if groups <= 0 || groups&(groups-1) != 0 {
		return nil, fmt.Errorf("make fragment table: %d groups: not a power of two", groups)
	}
	return &fragments{groups: make([][fragmentSlots]datagram, groups), seed: seed}, nil
}

func (t *fragments) group(k *fragmentKey) *[fragmentSlots]datagram {
	h := hashStart(uint64(k.id)<<32|uint64(k.domain)<<16|uint64(k.proto)<<8|uint64(k.family), t.seed)
	for _, a := range []*packet.Addr{&k.src, &k.dst} {
		h = hashWord(h, pair(load32(a[0:]), load32(a[4:])))
		h = hashWord(h, pair(load32(a[8:]), load32(a[12:])))
	}
	return &t.groups[int(hashEnd(h))&(len(t.groups)-1)]
}

func (d *datagram) live(now uint32) bool { return d.key.family != 0 && age(now, d.tick) < fragmentLife }

// find returns the live datagram with the key, or nil.
func (t *fragments) find(k *fragmentKey, now uint32) *datagram {
	g := t.group(k)
	for i := range g {
		if g[i].key == *k && g[i].live(now) {
			return &g[i]
		}
	}
	return nil
}

// enter returns a slot for a new datagram, in the place of a dead one or the oldest, with its first
// fragment's range of n bytes taken.
func (t *fragments) enter(k *fragmentKey, now uint32, n int) *datagram {
	g := t.group(k)
	oldest, most := 0, int64(-1)
	for i := range g {
		a := int64(fragmentLife)
		if g[i].live(now) {
			a = int64(age(now, g[i].tick))
		}
		if a > most {
			oldest, most = i, a
		}
	}
	d := &g[oldest]
	*d = datagram{key: *k, tick: now, spans: 1}
	d.span[0] = span{0, n}
	return d
}

// take marks a fragment's range as seen. With the last one the datagram is whole, and its slot free. An
// overlap makes the datagram dead: it is refused as such from then on. More ranges than are tracked refuse this fragment only.
func (d *datagram) take(s span, last bool) bpf.XDPReason {
	const overlap = bpf.XDPReasonREASON_FRAGMENT_OVERLAP
	if d.reason == overlap {
		return overlap
	}
	bad := d.total != 0 && (s.end > d.total || last && s.end != d.total)
	for _, seen := range d.span[:d.spans] {
		bad = bad || s.start < seen.end && seen.start < s.end || last && seen.end > s.end
	}
	if bad {
		d.reason = overlap
		return overlap
	}

	merged := s
	kept := 0
	var rest [fragmentRanges]span
	for _, seen := range d.span[:d.spans] {
		switch {
		case seen.end == s.start:
			merged.start = seen.start
		case seen.start == s.end:
			merged.end = seen.end
		default:
			rest[kept] = seen
			kept++
		}
	}
	if kept == fragmentRanges {
		return bpf.XDPReasonREASON_FRAGMENT_TOO_MANY
	}
	rest[kept] = merged
	d.span, d.spans = rest, kept+1
	if last {
		d.total = s.end
	}
	if d.spans == 1 && d.span[0].end == d.total {
		d.key.family = 0 // whole: its identification may be used again at once
	}
	return bpf.XDPReasonREASON_NONE
}
