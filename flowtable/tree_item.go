package flowtable

import "slices"

// treeItem is an entry within a sub-problem: what is still to be asked of each dimension, as set ids.
type treeItem struct {
	entry int32
	sets  [treeDims]int32
}

func (it *treeItem) decided() bool { return it.sets == [treeDims]int32{} }

// items turns the entries that can match the builder's family into a problem.
func (b *treeBuilder) items() []treeItem {
	var items []treeItem
	for i := range b.entries {
		e := &b.entries[i]
		if e.Family != 0 && e.Family != b.family {
			continue
		}
		it := treeItem{entry: int32(i)}
		it.sets[treeSrc] = b.addresses(treeSrc, e.Src)
		it.sets[treeDst] = b.addresses(treeDst, e.Dst)
		it.sets[treeSrcPort] = b.between(treeSrcPort, uint64(e.SrcPort.First), uint64(e.SrcPort.Last))
		it.sets[treeDstPort] = b.between(treeDstPort, uint64(e.DstPort.First), uint64(e.DstPort.Last))
		it.sets[treeProto] = b.between(treeProto, uint64(e.Proto.First), uint64(e.Proto.Last))
		it.sets[treeFrom] = b.zones(treeFrom, e.From)
		it.sets[treeTo] = b.zones(treeTo, e.To)
		it.sets[treeContext] = b.contexts(e.Contexts)
		if !slices.Contains(it.sets[:], aclNone) {
			items = append(items, it)
		}
	}
	return items
}

func (b *treeBuilder) between(dim int, first, last uint64) int32 {
	return b.pools[dim].intern([]aclRange{{aclNum{lo: first}, aclNum{lo: last}}})
}

func (b *treeBuilder) addresses(dim int, alternatives []AddrRange) int32 {
	if len(alternatives) == 0 {
		return aclAny
	}
	// Rules that name one large set have one list.
	list := treeList{dim, &alternatives[0], len(alternatives)}
	if id, known := b.lists[list]; known {
		return id
	}
	var ranges []aclRange
	for _, r := range alternatives {
		if r.First.Is4() == (b.family == 4) {
			ranges = append(ranges, aclRange{aclAddr(r.First), aclAddr(r.Last)})
		}
	}
	id := b.pools[dim].union(ranges)
	b.lists[list] = id
	return id
}

// treeList is a list of addresses, by where it lies.
type treeList struct {
	dim   int
	first *AddrRange
	len   int
}

func (b *treeBuilder) zones(dim int, zones Zones) int32 {
	if zones == (Zones{}) {
		return aclAny
	}
	key := treeZones{dim, zones}
	if id, known := b.zoned[key]; known {
		return id
	}
	var ranges []aclRange
	for z := range 256 {
		if zones.Has(uint8(z)) {
			n := aclNum{lo: uint64(z)}
			ranges = append(ranges, aclRange{n, n})
		}
	}
	id := b.pools[dim].union(ranges)
	b.zoned[key] = id
	return id
}

// treeZones are the zones of a dimension. Many entries name the same few.
type treeZones struct {
	dim   int
	zones Zones
}

func (b *treeBuilder) contexts(ids []uint16) int32 {
	if len(ids) == 0 {
		return aclAny
	}
	ranges := make([]aclRange, len(ids))
	for i, id := range ids {
		n := aclNum{lo: uint64(id)}
		ranges[i] = aclRange{n, n}
	}
	return b.pools[treeContext].union(ranges)
}

// cost is the number of nodes that asking an item in full takes, its answer included.
func (b *treeBuilder) cost(it *treeItem) int {
	n := 1
	for d, id := range it.sets {
		n += b.questions(d, id)
	}
	return n
}

// questions is the number of nodes that asking for one set takes.
func (b *treeBuilder) questions(dim int, id int32) int {
	if id == aclAny {
		return 0
	}
	p := b.pools[dim]
	set := p.sets[id]
	if len(set) > treeInlineRanges {
		return 3
	}
	if _, one := p.exact(id); one {
		return 1
	}
	n := 2 * len(set)
	if set[0].first == (aclNum{}) {
		n--
	}
	if set[len(set)-1].last == p.max {
		n--
	}
	return n
}

func (b *treeBuilder) costs(items []treeItem) int {
	n := 0
	for i := range items {
		n += b.cost(&items[i])
	}
	return n
}
