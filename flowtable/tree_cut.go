package flowtable

import (
	"cmp"
	"slices"
)

// treeTolerance is what a cut may leave, in sixteenths of the square of what it cuts: 16 is a cut whose
// halves cost 0.7 of the whole each. A little more than 16 lets through cuts that win nothing by
// themselves but make the next ones win (fw1 of ClassBench, 1,000 entries: 19 questions a search
// instead of 30); the budget bounds what it costs.
const treeTolerance = 18

// treeQuestion is a question that cuts a sub-problem in two.
type treeQuestion struct {
	op    treeOp
	dim   int
	value aclNum
	set   int32 // set id of treeIn
}

// treeWeight is the cost of the items that have an edge at value.
type treeWeight struct {
	value  aclNum
	weight int
}

// treeCutter looks for the best question. It keeps its lists between calls.
type treeCutter struct {
	first, last, exact []treeWeight
	edges              []aclNum
	large              []int32
}

// choose returns the question after which least work is left, taking the square of what either half
// costs as the measure: that prefers even halves and shuns copying. It answers false where every cut
// copies so much that nothing is won.
func (c *treeCutter) choose(b *treeBuilder, items []treeItem) (best treeQuestion, ok bool) {
	if len(items) < 2 {
		return best, false
	}
	weights := make([]int, len(items))
	total := 0
	for i := range items {
		weights[i] = b.cost(&items[i])
		total += weights[i]
	}
	score := total * total / 16 * treeTolerance
	consider := func(q treeQuestion, no, yes int) {
		if s := no*no + yes*yes; s < score {
			best, score, ok = q, s, true
		}
	}
	for d := range treeDims {
		c.dimension(b, items, weights, d, total, consider)
	}
	return best, ok
}

// dimension considers the questions of one dimension.
func (c *treeCutter) dimension(b *treeBuilder, items []treeItem, weights []int, dim, total int, consider func(treeQuestion, int, int)) {
	p := b.pools[dim]
	c.first, c.last, c.exact, c.edges, c.large = c.first[:0], c.last[:0], c.exact[:0], c.edges[:0], c.large[:0]
	open := 0
	for i := range items {
		id := items[i].sets[dim]
		if id == aclAny {
			open += weights[i]
			continue
		}
		set := p.sets[id]
		if len(set) > treeInlineRanges {
			c.large = append(c.large, id)
		} else {
			for _, r := range set {
				if r.first != (aclNum{}) {
					c.edges = append(c.edges, r.first)
				}
				if r.last != p.max {
					c.edges = append(c.edges, r.last.next())
				}
			}
		}
		c.first = append(c.first, treeWeight{set[0].first, weights[i]})
		c.last = append(c.last, treeWeight{set[len(set)-1].last, weights[i]})
		if v, one := p.exact(id); one {
			c.exact = append(c.exact, treeWeight{v, weights[i]})
		}
	}
	if len(c.first) == 0 {
		return
	}
	byValue := func(a, b treeWeight) int { return a.value.compare(b.value) }
	slices.SortFunc(c.first, byValue)
	slices.SortFunc(c.last, byValue)
	slices.SortFunc(c.exact, byValue)
	slices.SortFunc(c.edges, aclNum.compare)

	// began: cost of the items that begin below t; ended: of those that end below it.
	began, ended, f, l := 0, 0, 0, 0
	for i, t := range c.edges {
		if i > 0 && t == c.edges[i-1] {
			continue
		}
		for ; f < len(c.first) && c.first[f].value.less(t); f++ {
			began += c.first[f].weight
		}
		for ; l < len(c.last) && c.last[l].value.less(t); l++ {
			ended += c.last[l].weight
		}
		consider(treeQuestion{op: treeAtLeast, dim: dim, value: t}, open+began, total-ended)
	}

	// Equality takes the question off every item that holds the value: one node each less.
	began, ended, f, l = 0, 0, 0, 0
	for i := 0; i < len(c.exact); {
		v, same := c.exact[i].value, 0
		for ; i < len(c.exact) && c.exact[i].value == v; i++ {
			same += c.exact[i].weight
		}
		for ; f < len(c.first) && !v.less(c.first[f].value); f++ {
			began += c.first[f].weight
		}
		for ; l < len(c.last) && c.last[l].value.less(v); l++ {
			ended += c.last[l].weight
		}
		consider(treeQuestion{op: treeEqual, dim: dim, value: v}, total-same, open+began-ended-(f-l))
	}

	if len(c.large) > 0 {
		c.largeSets(p, items, weights, dim, open, consider)
	}
}

// largeSets considers the sets that are one question each, the most frequent ones first.
func (c *treeCutter) largeSets(p *aclPool, items []treeItem, weights []int, dim, open int, consider func(treeQuestion, int, int)) {
	const most = 8
	count := map[int32]int{}
	for _, id := range c.large {
		count[id]++
	}
	ids := make([]int32, 0, len(count))
	for id := range count {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b int32) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
	})
	for _, set := range ids[:min(len(ids), most)] {
		no, yes := open, open
		for i := range items {
			id := items[i].sets[dim]
			if id == aclAny {
				continue
			}
			if !p.inside(id, set) {
				no += weights[i]
			}
			if p.inside(set, id) {
				yes += weights[i] - 1
			} else if p.meet(set, id) {
				yes += weights[i]
			}
		}
		consider(treeQuestion{op: treeIn, dim: dim, set: set}, no, yes)
	}
}
