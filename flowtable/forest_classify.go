package flowtable

import (
	"math/bits"

	"github.com/softdpu/softdpu/bpf"
)

// forestKey is a key as the words by which trees cut.
type forestKey [6]uint64

func newForestKey(k *bpf.XDPClassifyKey) forestKey {
	return forestKey{
		k.SrcHi, k.SrcLo, k.DstHi, k.DstLo,
		uint64(k.Sport) | uint64(k.Dport)<<16 | uint64(k.Proto)<<32 | uint64(k.Family)<<40 | uint64(k.From)<<48 | uint64(k.To)<<56,
		uint64(k.Context),
	}
}

// classify does what the generated program does, on the same memory.
func (f *aclForest) classify(a *ACL, k *bpf.XDPClassifyKey, audit func(rule uint32)) uint32 {
	family := 0
	switch k.Family {
	case 4:
	case 6:
		family = 1
	default:
		return 0
	}
	words := newForestKey(k)
	best, verdict := forestNowhere, uint32(0)
	trees := &f.family[family]
	for i := range trees.decide {
		root := &trees.decide[i]
		if root.lowest >= best {
			break
		}
		at, n := f.leaf(&words, root.node)
		for i := range n {
			who := f.who(family, at+i)
			if who.Entry >= best {
				break
			}
			if e := f.entry(family, at, n, i); f.matches(a, family, at+i, e, k) {
				best, verdict = who.Entry, e.Verdict
				break
			}
		}
	}
	if audit != nil {
		for i := range trees.audit {
			at, n := f.leaf(&words, trees.audit[i].node)
			for i := uint32(0); i < n && f.who(family, at+i).Entry < best; i++ {
				if e := f.entry(family, at, n, i); f.matches(a, family, at+i, e, k) {
					audit(e.Verdict & aclRuleMask)
				}
			}
		}
	}
	return verdict
}

// entry returns what the entry of rule i of a leaf of n rules answers, that begins at a place of the maps.
func (f *aclForest) entry(family int, at, n, i uint32) *bpf.XDPForestEntry {
	if family == 0 {
		return f.entry4(at+n-f.base.rules4, i)
	}
	return &f.memory.Rules6[at+i-f.base.rules6].Entry
}

// child returns the node to which a key leads from one that cuts.
func (f *aclForest) child(k *forestKey, node uint64) uint64 {
	width := node >> bpf.XDPForestNodeFOREST_BITS_SHIFT & uint64(bpf.XDPForestNodeFOREST_BITS_MASK)
	word := k[node>>bpf.XDPForestNodeFOREST_WORD_SHIFT&uint64(bpf.XDPForestNodeFOREST_WORD_MASK)]
	value := word >> (node >> bpf.XDPForestNodeFOREST_SHIFT_SHIFT & uint64(bpf.XDPForestNodeFOREST_SHIFT_MASK)) & (1<<width - 1)
	return f.memory.Nodes[uint32(node)+uint32(value)-f.base.nodes]
}

// leaf returns where the rules begin to which a key leads from a node, as they are numbered in the maps, and
// how many they are.
func (f *aclForest) leaf(k *forestKey, node uint64) (at, n uint32) {
	for node>>bpf.XDPForestNodeFOREST_BITS_SHIFT&uint64(bpf.XDPForestNodeFOREST_BITS_MASK) != 0 {
		node = f.child(k, node)
	}
	return uint32(node), uint32(node >> bpf.XDPForestNodeFOREST_COUNT_SHIFT & uint64(bpf.XDPForestNodeFOREST_COUNT_MASK))
}

func (f *aclForest) who(family int, rule uint32) *bpf.XDPForestWho {
	if family == 0 {
		return &f.memory.Rules4[rule-f.base.rules4].Who
	}
	return &f.memory.Rules6[rule-f.base.rules6].Who
}

// matches tells whether a key is in a rule, and in what its entry asks beside.
func (f *aclForest) matches(a *ACL, family int, rule uint32, e *bpf.XDPForestEntry, k *bpf.XDPClassifyKey) bool {
	if family == 0 {
		r := &f.memory.Rules4[rule-f.base.rules4]
		if uint32(k.SrcLo)-r.Src > r.SrcSpan || uint32(k.DstLo)-r.Dst > r.DstSpan || !forestRest(&r.Ports, &r.Who, k) {
			return false
		}
		return f.checked(a, &r.Who, e, k)
	}
	r := &f.memory.Rules6[rule-f.base.rules6]
	if forestOutside(k.SrcHi, k.SrcLo, &r.Src) || forestOutside(k.DstHi, k.DstLo, &r.Dst) || !forestRest(&r.Ports, &r.Who, k) {
		return false
	}
	return f.checked(a, &r.Who, e, k)
}

func forestOutside(hi, lo uint64, p *bpf.XDPForestPrefix) bool {
	return (hi^p.Hi)&p.HiMask|(lo^p.Lo)&p.LoMask != 0
}

func forestRest(p *bpf.XDPForestPorts, w *bpf.XDPForestWho, k *bpf.XDPClassifyKey) bool {
	return k.Sport-p.Sport <= p.SportSpan && k.Dport-p.Dport <= p.DportSpan &&
		(w.Flags&uint8(bpf.XDPForestFlagFOREST_EXACT_PROTO) == 0 || k.Proto == w.Proto) &&
		(w.Flags&uint8(bpf.XDPForestFlagFOREST_EXACT_FROM) == 0 || k.From == w.From) &&
		(w.Flags&uint8(bpf.XDPForestFlagFOREST_EXACT_TO) == 0 || k.To == w.To)
}

// checked searches the sets that an entry asks.
func (f *aclForest) checked(a *ACL, w *bpf.XDPForestWho, e *bpf.XDPForestEntry, k *bpf.XDPClassifyKey) bool {
	if w.Flags&uint8(bpf.XDPForestFlagFOREST_CHECKED) == 0 {
		return true
	}
	for at := e.Check - f.base.checks; ; at++ {
		c := &f.memory.Checks[at]
		if !a.inMap(c, k) {
			return false
		}
		if c.Last != 0 {
			return true
		}
	}
}

// inMap searches a set in the memory of the maps.
func (a *ACL) inMap(c *bpf.XDPForestCheck, k *bpf.XDPClassifyKey) bool {
	var value aclNum
	switch bpf.XDPSetField(c.Field) {
	case bpf.XDPSetFieldSET_SRC:
		value = aclNum{k.SrcHi, k.SrcLo}
	case bpf.XDPSetFieldSET_DST:
		value = aclNum{k.DstHi, k.DstLo}
	case bpf.XDPSetFieldSET_FROM:
		value.lo = uint64(k.From)
	case bpf.XDPSetFieldSET_TO:
		value.lo = uint64(k.To)
	case bpf.XDPSetFieldSET_PROTO:
		value.lo = uint64(k.Proto)
	default:
		value.lo = uint64(k.Context)
	}
	address := bpf.XDPSetField(c.Field) == bpf.XDPSetFieldSET_SRC || bpf.XDPSetField(c.Field) == bpf.XDPSetFieldSET_DST
	if address && k.Family == 6 {
		return set6Has(a.set6[c.First-a.base6:][:c.Nodes], value)
	}
	return set4Has(a.set4[c.First-a.base4:][:c.Nodes], value.lo)
}

// set4Has searches a tree of values of at most 32 bits.
func set4Has(nodes []bpf.XDPSet4Node, value uint64) bool {
	inside := false
	for at := 0; at < len(nodes); {
		n, below := &nodes[at], 0
		for _, edge := range n.Edge {
			_, less := bits.Sub64(value, uint64(edge), 0)
			below += 1 - int(less)
		}
		inside = n.Inside>>below&1 == 1
		at = at*(set4Edges+1) + 1 + below
	}
	return inside
}

// set6Has searches a tree of IPv6 addresses.
func set6Has(nodes []bpf.XDPSet6Node, value aclNum) bool {
	inside := false
	for at := 0; at < len(nodes); {
		n, below := &nodes[at], 0
		for i := range n.Hi {
			_, less := bits.Sub64(value.lo, n.Lo[i], 0)
			_, less = bits.Sub64(value.hi, n.Hi[i], less)
			below += 1 - int(less)
		}
		inside = n.Inside>>below&1 == 1
		at = at*(set6Edges+1) + 1 + below
	}
	return inside
}
