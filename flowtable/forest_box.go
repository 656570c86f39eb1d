package flowtable

import (
	"math"
	"math/bits"

	"github.com/softdpu/softdpu/bpf"
)

// The fields by which trees cut. An address is two, of which IPv4 has only the lower.
const (
	forestSrcHi = iota
	forestSrcLo
	forestDstHi
	forestDstLo
	forestDstPort
	forestSrcPort
	forestProto
	forestFrom
	forestTo
	forestContext
	forestFields
)

// forestLayout is where fields stand in struct classify_key, as 64-bit words in host order, little-endian.
var forestLayout = [forestFields]struct{ word, low, width uint8 }{
	forestSrcHi:   {0, 0, 64},
	forestSrcLo:   {1, 0, 64},
	forestDstHi:   {2, 0, 64},
	forestDstLo:   {3, 0, 64},
	forestSrcPort: {4, 0, 16},
	forestDstPort: {4, 16, 16},
	forestProto:   {4, 32, 8},
	forestFrom:    {4, 48, 8},
	forestTo:      {4, 56, 8},
	forestContext: {5, 0, 16},
}

// forestRange is a closed interval of one field.
type forestRange struct{ first, last uint64 }

// forestBox is a rule of a leaf: what an entry asks, or one of its alternatives.
type forestBox struct {
	field [forestFields]forestRange
	entry uint32
	flags uint8
}

// The most boxes that one entry becomes: of alternatives in one dimension, and of those in several. What has more
// is asked for their hull, and then by a check: a search in a large set of its own.
const (
	forestAlternatives = 1024
	forestProduct      = 32
	forestAudited      = 4 // of audit entries, whose tree copies all that it cannot cut
)

// forestBoxes is about the most boxes of a family: entries of long lists have fewer alternatives where there
// are many.
const forestBoxes = 1 << 21

// forestWriter makes the memory of one family.
type forestWriter struct {
	*forestArena
	family       uint8
	tb           *treeBuilder
	boxes        []forestBox
	alternatives int
	looks        int                                     // at boxes that windows may still be chosen by
	take         func(array, n int) (at uint32, ok bool) // where what is made goes
}

func newForestWriter(f *aclForest, tb *treeBuilder, items int) *forestWriter {
	if f.count == nil {
		f.count = make([]int32, 1<<forestMaxBits)
	}
	return &forestWriter{
		forestArena: f.forestArena, family: tb.family, tb: tb, boxes: make([]forestBox, 0, items),
		alternatives: max(4, min(forestAlternatives, forestBoxes/max(1, items))),
		looks:        forestLooks,
		take:         f.append,
	}
}

// forestDims are the dimensions that may have alternatives.
var forestDims = [...]int{treeSrc, treeDst, treeFrom, treeTo, treeProto}

// enter adds an entry at its place: its boxes, and what the maps say of it beside.
func (w *forestWriter) enter(it *treeItem, place uint32) {
	checked := w.item(it, place)
	entry := bpf.XDPForestEntry{Verdict: w.tb.entries[it.entry].Verdict}
	if len(checked) > 0 {
		entry.Check = w.base.checks + uint32(len(w.memory.Checks))
		for i, d := range checked {
			w.check(d, it.sets[d], i == len(checked)-1)
		}
		w.notes[place].trees = forestChecked
	}
	w.order[place] = entry
	w.notes[place].context = w.context(it)
}

// context returns what the boxes of an entry ask of the context.
func (w *forestWriter) context(it *treeItem) [2]uint16 {
	r := w.ranges(treeContext, it.sets[treeContext])[0]
	return [2]uint16{uint16(r.first.lo), uint16(r.last.lo)}
}

// item adds the boxes of an entry, and returns the dimensions that they leave to checks.
func (w *forestWriter) item(it *treeItem, place uint32) (checked []int) {
	number := forestFirst + place
	var ranges [treeDims][]aclRange
	for d, id := range it.sets {
		ranges[d] = w.ranges(d, id)
	}
	if it.sets[treeContext] != aclAny {
		checked = append(checked, treeContext) // a rule has no place for it
	}
	for {
		boxes, widest, limit := 1, -1, w.alternatives
		if w.tb.entries[it.entry].Audit {
			limit = forestAudited
		}
		for _, d := range forestDims {
			n := len(ranges[d])
			if n > 1 && boxes > 1 {
				limit = min(limit, forestProduct)
			}
			boxes *= n
			if n > 1 && (widest < 0 || n > len(ranges[widest])) {
				widest = d
			}
		}
		if boxes <= limit {
			break
		}
		ranges[widest] = w.hull(widest, it.sets[widest])
		checked = append(checked, widest)
	}
	flags := uint8(0)
	if len(checked) > 0 {
		flags = uint8(bpf.XDPForestFlagFOREST_CHECKED)
	}
	for _, src := range ranges[treeSrc] {
		for _, dst := range ranges[treeDst] {
			for _, from := range ranges[treeFrom] {
				for _, to := range ranges[treeTo] {
					for _, proto := range ranges[treeProto] {
						b := forestBox{entry: number, flags: flags}
						b.address(w.tb.family, forestSrcHi, src)
						b.address(w.tb.family, forestDstHi, dst)
						b.short(forestSrcPort, ranges[treeSrcPort][0])
						b.short(forestDstPort, ranges[treeDstPort][0])
						b.exact(forestProto, proto, bpf.XDPForestFlagFOREST_EXACT_PROTO)
						b.exact(forestFrom, from, bpf.XDPForestFlagFOREST_EXACT_FROM)
						b.exact(forestTo, to, bpf.XDPForestFlagFOREST_EXACT_TO)
						b.short(forestContext, ranges[treeContext][0])
						w.boxes = append(w.boxes, b)
					}
				}
			}
		}
	}
	return checked
}

// ranges returns the alternatives of a dimension as rules can say them: ranges of IPv4 addresses, prefixes of
// IPv6, single protocols and zones, or all.
func (w *forestWriter) ranges(dim int, id int32) []aclRange {
	set := w.tb.pools[dim].sets[id]
	switch {
	case id == aclAny:
		return set
	case dim == treeContext:
		return w.hull(dim, id)
	case emitWide(w.tb.family, uint8(dim)):
		var prefixes []aclRange
		for _, r := range set {
			prefixes = aclPrefixes(prefixes, r)
			if len(prefixes) > w.alternatives {
				break // too many as it is
			}
		}
		return prefixes
	case dim == treeProto || dim == treeFrom || dim == treeTo:
		var values []aclRange
		for _, r := range set {
			for v := r.first; ; v = v.next() {
				values = append(values, aclRange{v, v})
				if v == r.last {
					break
				}
			}
		}
		return values
	}
	return set
}

// hull returns the one range that holds a set, as a rule can say it.
func (w *forestWriter) hull(dim int, id int32) []aclRange {
	p := w.tb.pools[dim]
	set := p.sets[id]
	first, last := set[0].first, set[len(set)-1].last
	switch {
	case dim == treeProto || dim == treeFrom || dim == treeTo:
		return p.sets[aclAny]
	case emitWide(w.tb.family, uint8(dim)):
		return []aclRange{aclPrefixOf(first, last)}
	}
	return []aclRange{{first, last}}
}

// check adds the search of a set that an entry asks beside its rules.
func (w *forestWriter) check(dim int, id int32, last bool) {
	c := bpf.XDPForestCheck{First: uint32(w.tb.largeSet(dim, id)), Field: uint32(emitSetFields[uint8(dim)])} // First: see place
	if last {
		c.Last = 1
	}
	w.memory.Checks = append(w.memory.Checks, c)
}

// address puts an address into the pair of fields that begins at hi.
func (b *forestBox) address(family uint8, hi int, r aclRange) {
	if family == 4 {
		b.field[hi] = forestRange{last: math.MaxUint64}
		b.field[hi+1] = forestRange{r.first.lo, r.last.lo}
		return
	}
	b.field[hi] = forestRange{r.first.hi, r.last.hi}
	b.field[hi+1] = forestRange{last: math.MaxUint64}
	if r.first.hi == r.last.hi {
		b.field[hi+1] = forestRange{r.first.lo, r.last.lo}
	}
}

func (b *forestBox) short(field int, r aclRange) {
	b.field[field] = forestRange{r.first.lo, r.last.lo}
}

// exact sets a field that a rule compares with one value if at all.
func (b *forestBox) exact(field int, r aclRange, flag bpf.XDPForestFlag) {
	b.short(field, r)
	if r.first == r.last {
		b.flags |= uint8(flag)
	}
}

func (b *forestBox) ports() bpf.XDPForestPorts {
	s, d := b.field[forestSrcPort], b.field[forestDstPort]
	return bpf.XDPForestPorts{Sport: uint16(s.first), SportSpan: uint16(s.last - s.first), Dport: uint16(d.first), DportSpan: uint16(d.last - d.first)}
}

func (b *forestBox) who() bpf.XDPForestWho {
	return bpf.XDPForestWho{
		Entry: b.entry, Proto: uint8(b.field[forestProto].first), From: uint8(b.field[forestFrom].first),
		To: uint8(b.field[forestTo].first), Flags: b.flags,
	}
}

func (b *forestBox) rule4() bpf.XDPForestRule4 {
	s, d := b.field[forestSrcLo], b.field[forestDstLo]
	return bpf.XDPForestRule4{
		Src: uint32(s.first), SrcSpan: uint32(s.last - s.first), Dst: uint32(d.first), DstSpan: uint32(d.last - d.first),
		Ports: b.ports(), Who: b.who(),
	}
}

func (b *forestBox) rule6() bpf.XDPForestRule6 {
	return bpf.XDPForestRule6{Src: b.prefix(forestSrcHi), Dst: b.prefix(forestDstHi), Ports: b.ports(), Who: b.who()} // Entry: see forestWriter.rules
}

// prefix returns an IPv6 address, whose pair of fields begins at hi, as value and mask.
func (b *forestBox) prefix(hi int) bpf.XDPForestPrefix {
	upper, lower := b.field[hi], b.field[hi+1]
	return bpf.XDPForestPrefix{Hi: upper.first, Lo: lower.first, HiMask: ^(upper.first ^ upper.last), LoMask: ^(lower.first ^ lower.last)}
}

// boxOf4 and boxOf6 return the box of a rule.
func (f *forestArena) boxOf4(r *bpf.XDPForestRule4) forestBox {
	var b forestBox
	b.field[forestSrcHi].last, b.field[forestDstHi].last = math.MaxUint64, math.MaxUint64
	b.field[forestSrcLo] = forestRange{uint64(r.Src), uint64(r.Src) + uint64(r.SrcSpan)}
	b.field[forestDstLo] = forestRange{uint64(r.Dst), uint64(r.Dst) + uint64(r.DstSpan)}
	f.rest(&b, &r.Ports, &r.Who)
	return b
}

func (f *forestArena) boxOf6(r *bpf.XDPForestRule6) forestBox {
	var b forestBox
	b.field[forestSrcHi], b.field[forestSrcLo] = forestRange{r.Src.Hi, r.Src.Hi | ^r.Src.HiMask}, forestRange{r.Src.Lo, r.Src.Lo | ^r.Src.LoMask}
	b.field[forestDstHi], b.field[forestDstLo] = forestRange{r.Dst.Hi, r.Dst.Hi | ^r.Dst.HiMask}, forestRange{r.Dst.Lo, r.Dst.Lo | ^r.Dst.LoMask}
	f.rest(&b, &r.Ports, &r.Who)
	return b
}

// forestFirst is the number of the entry at the first place.
const forestFirst = 1

// rest sets what a box has beside addresses.
func (f *forestArena) rest(b *forestBox, p *bpf.XDPForestPorts, w *bpf.XDPForestWho) {
	b.entry, b.flags = w.Entry, w.Flags
	b.field[forestSrcPort] = forestRange{uint64(p.Sport), uint64(p.Sport) + uint64(p.SportSpan)}
	b.field[forestDstPort] = forestRange{uint64(p.Dport), uint64(p.Dport) + uint64(p.DportSpan)}
	for _, e := range [...]struct {
		field int
		flag  bpf.XDPForestFlag
		value uint8
	}{
		{forestProto, bpf.XDPForestFlagFOREST_EXACT_PROTO, w.Proto},
		{forestFrom, bpf.XDPForestFlagFOREST_EXACT_FROM, w.From},
		{forestTo, bpf.XDPForestFlagFOREST_EXACT_TO, w.To},
	} {
		if b.field[e.field] = (forestRange{0, 255}); w.Flags&uint8(e.flag) != 0 {
			b.field[e.field] = forestRange{uint64(e.value), uint64(e.value)}
		}
	}
	context := &f.notes[w.Entry-forestFirst].context
	b.field[forestContext] = forestRange{uint64(context[0]), uint64(context[1])}
}

// aclPrefixOf returns the longest IPv6 prefix that holds first and last.
func aclPrefixOf(first, last aclNum) aclRange {
	var host aclNum
	if differ := first.hi ^ last.hi; differ != 0 {
		host = aclNum{hi: 1<<bits.Len64(differ) - 1, lo: math.MaxUint64}
	} else if differ := first.lo ^ last.lo; differ != 0 {
		host.lo = 1<<bits.Len64(differ) - 1
	}
	return aclRange{
		aclNum{first.hi &^ host.hi, first.lo &^ host.lo},
		aclNum{first.hi | host.hi, first.lo | host.lo},
	}
}

// aclPrefixes appends the IPv6 prefixes that a range consists of.
func aclPrefixes(to []aclRange, r aclRange) []aclRange {
	p := aclPrefixOf(r.first, r.last)
	if p == r {
		return append(to, r)
	}
	// The bit below the common prefix is 0 in first and 1 in last.
	mid := p
	if differ := p.first.hi ^ p.last.hi; differ != 0 {
		mid.first.hi |= differ ^ differ>>1
	} else {
		differ := p.first.lo ^ p.last.lo
		mid.first.lo |= differ ^ differ>>1
	}
	below := mid.first
	if below.lo == 0 {
		below.hi--
	}
	below.lo--
	return aclPrefixes(aclPrefixes(to, aclRange{r.first, below}), aclRange{mid.first, r.last})
}
