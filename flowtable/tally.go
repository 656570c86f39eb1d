package flowtable

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// How many flows each source has by a nat rule with a limit, docs/PACKET-PATH.md section 15.5.

// Of nat_tallies (abi.h: NAT_TALLY_*).
const (
	tallyGroups = 16384
	tallyWords  = 8
	tallyCount  = 0xffffff // of a word: its count; above it stands the tag
	tallyTries  = 16
)

// tallyPlaces is how many words there are: more than sources can have flows at once, since each has one in one of two
// groups.
const tallyPlaces = tallyGroups * tallyWords

// SourceLimitMost is the highest limit that a rule can have.
const SourceLimitMost = 1_000_000

// natTallies are the counts of nat_tallies. Any number of goroutines and XDP may use them at the same time.
type natTallies []bpf.XDPNatTallies

// SetTallies has the table count flows of sources in this memory (abi.h: nat_tallies), which must stay as
// long as the table is used. Without it nothing counts.
func (t *Table) SetTallies(tallies []bpf.XDPNatTallies) { t.tallies = tallies }

// LimitsSources reports whether some rule limits the flows of a source.
func (n *NAT) LimitsSources() bool {
	return n != nil && slices.ContainsFunc(n.Rules, func(r bpf.XDPNatRule) bool { return r.SourceLimit != 0 })
}

// tallySource is what a source counts as: its IPv4 address, or the /64 of its IPv6 address.
func tallySource(a *packet.Addr) uint64 { return binary.LittleEndian.Uint64(a[:]) }

func (t *Table) tallyHash(rule uint32, source uint64) uint64 {
	h := (source ^ t.cfg.Seed) * 0xff51afd7ed558ccd
	h ^= h >> 32
	h = (h ^ uint64(rule)) * 0xc4ceb9fe1a85ec53
	h ^= h >> 29
	h *= 0x9E3779B97F4A7C15
	return h ^ h>>32
}

// takeTally counts one more flow of a source by a rule. It returns 1 + the place where it counts, and false if
// the source has as many as limit already or there is no place.
func (t *Table) takeTally(rule, limit uint32, source uint64) (tally uint32, ok bool) {
	h := t.tallyHash(rule, source)
	tag := h &^ tallyCount
	one := uint32(h % tallyGroups)
	groups := [2]uint32{one, one ^ uint32((h>>10|1)%tallyGroups)}
	if len(t.tallies) < tallyGroups {
		return 0, false
	}
	for range tallyTries {
		sum, was, own, place := uint32(0), uint64(0), false, uint32(0)
		var room, free [2]uint32
		for g, group := range groups {
			for i := tallyWords - 1; i >= 0; i-- {
				word := atomic.LoadUint64(&t.tallies[group].Word[i])
				at := group*tallyWords + uint32(i)
				switch {
				case word&tallyCount == 0:
					free[g] = at
					room[g]++
				case word&^tallyCount == tag:
					sum += uint32(word & tallyCount)
					own, was, place = true, word, at
				}
			}
		}
		if sum >= limit {
			return 0, false
		}
		if !own {
			g := 0
			if room[1] > room[0] {
				g = 1
			}
			if room[g] == 0 {
				return 0, false
			}
			place = free[g]
			if was = atomic.LoadUint64(t.tallyWord(place)); was&tallyCount != 0 {
				continue // it was free
			}
		}
		if atomic.CompareAndSwapUint64(t.tallyWord(place), was, tag|was&tallyCount+1) {
			return 1 + place, true
		}
	}
	return 0, false
}

func (t *Table) tallyWord(place uint32) *uint64 {
	return &t.tallies[place/tallyWords].Word[place%tallyWords]
}

// giveTally takes a flow that has ended off the count of its source, if it counts.
func (t *Table) giveTally(tally uint32) {
	if tally == 0 || tally > tallyPlaces || t.tallies == nil {
		return
	}
	word := t.tallyWord(tally - 1)
	for {
		was := atomic.LoadUint64(word)
		if was&tallyCount == 0 || atomic.CompareAndSwapUint64(word, was, was-1) {
			return
		}
	}
}

// adoptTally has a flow count that was opened before its rule had a limit, as the alias e of that word, if its
// rule has one under n. A source that has more than that, keeps them.
func (t *Table) adoptTally(e *entry, word uint64, a *alias, n *NAT, original *Tuple) {
	if a.tally != 0 || n == nil || t.tallies == nil || int(a.source) >= len(n.Rules) || n.Rules[a.source].SourceLimit == 0 {
		return
	}
	tally, ok := t.takeTally(a.source, tallyCount, tallySource(&original.Src))
	if !ok {
		return
	}
	at, beside := e.tallyPair(), uint32(a.port)|uint32(a.mapped)<<16
	without, with := pair(beside, 0), pair(beside, tally)
	if !atomic.CompareAndSwapUint64(at, without, with) ||
		(e.word()^word)&^WordMarked != 0 && atomic.CompareAndSwapUint64(at, with, without) {
		t.giveTally(tally) // the alias is no more
	}
}
