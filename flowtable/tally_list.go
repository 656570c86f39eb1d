package flowtable

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/softdpu/softdpu/dataplane/packet"
)

// Source is a source and how many flows it has by a rule with a limit.
type Source struct {
	Rule   uint32       // id of the nat rule
	Prefix netip.Prefix // one IPv4 address, or the /64 of IPv6 addresses
	Flows  int
}

// Sources returns the sources that have flows by rules with limits, those with the most flows first. Beside
// holds what is beside the groups in kernel hashes; it may be nil. Flows that come or go meanwhile may or may not
// be counted.
func (t *Table) Sources(beside *Table) []Source {
	seen := make([]bool, tallyPlaces)
	flows := make(map[Source]int) // two places are one source's, at times
	t.counting(beside, func(_ *entry, a *alias) {
		if seen[a.tally-1] {
			return
		}
		word := atomic.LoadUint64(t.tallyWord(a.tally - 1))
		prefix := t.inside(a, word&^tallyCount)
		if seen[a.tally-1] = prefix.IsValid(); prefix.IsValid() {
			flows[Source{Rule: a.source, Prefix: prefix}] += int(word & tallyCount)
		}
	})
	var list []Source
	for s, n := range flows {
		if s.Flows = n; n > 0 {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b Source) int {
		return cmp.Or(b.Flows-a.Flows, cmp.Compare(a.Rule, b.Rule), a.Prefix.Addr().Compare(b.Prefix.Addr()))
	})
	return list
}

// inside returns the source of a flow by its alias: the end of its original tuple that has the tag of its place.
func (t *Table) inside(a *alias, tag uint64) netip.Prefix {
	var ends [2]packet.Addr
	if a.target.family == 4 {
		ends = [2]packet.Addr{addr4(a.target.v4.Lo), addr4(a.target.v4.Hi)}
	} else {
		ends = [2]packet.Addr{addr6(&a.target.v6.Lo), addr6(&a.target.v6.Hi)}
	}
	for i := range ends {
		if t.tallyHash(a.source, tallySource(&ends[i]))&^tallyCount != tag {
			continue
		}
		bits := 32
		if a.target.family == 6 {
			bits = 64
		}
		return netip.PrefixFrom(address(a.target.family, &ends[i]), bits).Masked()
	}
	return netip.Prefix{} // it has ended
}

// counting calls fn with each alias that counts for a source.
func (t *Table) counting(beside *Table, fn func(*entry, *alias)) {
	if t.tallies == nil {
		return
	}
	for _, table := range []*Table{t, beside} {
		if table == nil || atomic.LoadInt64(&t.state.Aliases) == 0 {
			continue
		}
		for e := range table.entries() {
			word := e.word()
			if !isAlias(word) {
				continue
			}
			a := e.alias()
			if a.tally != 0 && a.tally <= tallyPlaces && e.word()>>WordGenerationBit == word>>WordGenerationBit {
				fn(&e, &a)
			}
		}
	}
}
