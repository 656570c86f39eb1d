package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// movingTranslated is a table with n flows, every second of them translated, and one over the same counts
// for them to move to. The first few of the old table's are copies beside its groups, as kernel hashes
// hold them: flows, and aliases of flows in the groups.
func movingTranslated(t *testing.T, n int, groups int, flowsMax int64) (from, to *Table, originals []Tuple, outers map[Tuple]Tuple, beside4 []bpf.XDPFlow4, beside6 []bpf.XDPFlow6) {
	t.Helper()
	from = newTable(t, TableConfig{Groups4: 128, Groups6: 128, Seed: 5, StripeBits: 3, FlowsMax: 2000, HalfOpenMax: 2000})
	to, err := MapTable(TableConfig{Seed: 5, StripeBits: 1, FlowsMax: flowsMax, HalfOpenMax: flowsMax},
		make([]bpf.XDPFlow4Group, groups), make([]bpf.XDPFlow6Group, groups), from.state)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(8, uint64(groups)))
	outers = map[Tuple]Tuple{}
	for i := range uint32(n) {
		original, state := randomTuple(rng, []uint8{4, 6}[i/2%2]), bpf.XDPFlowStateFLOW_ESTABLISHED
		if i%3 == 0 {
			state = bpf.XDPFlowStateFLOW_SYN_SENT
		}
		originals = append(originals, original)
		if i%2 == 0 {
			opened(from, original, state, i)
		} else {
			outers[original] = randomOuter(rng, original)
			translated(from, original, outers[original], state, i, natNoPorts)
		}
		e := held(from, original)
		e.count[0].Packets = uint64(i)
		if i < 4 || i > 20 {
			continue
		}
		if i%5 == 0 && i%2 == 1 {
			e = held(from, outers[original])
		} else if i%5 != 1 {
			continue
		}
		if e.flow4 != nil {
			beside4 = append(beside4, *e.flow4)
		} else {
			beside6 = append(beside6, *e.flow6)
		}
		e.core.Word = 0
	}
	from.state.Overflow4, from.state.Overflow6 = int64(len(beside4)), int64(len(beside6))
	if n > 20 && (len(beside4) < 2 || len(beside6) < 2) {
		t.Fatalf("%d and %d beside the groups", len(beside4), len(beside6))
	}
	return from, to, originals, outers, beside4, beside6
}

// recount returns what a table holds, and fails if a translated flow and its alias are not both there.
func recount(t *testing.T, table *Table) (h holding) {
	t.Helper()
	for e := range table.entries() {
		word := e.word()
		if word&WordStateMask == 0 {
			continue
		}
		h.add(e.id.Family, stateOf(word))
		if isAlias(word) {
			k := e.key()
			if _, ok := table.followKey(&e, &k); !ok {
				t.Fatalf("an alias without its flow: %+v", e.alias())
			}
		}
		if outer, ok := e.outer(); isFlow(word) && ok {
			if f, ok := table.Lookup(outer); !ok || f.Tuple != e.tuple(e.opener()) {
				t.Fatalf("a flow without its alias: %+v", viewOf(&e, word))
			}
		}
	}
	return h
}

// Translated flows are in the table of another size with their aliases, wherever both stood.
func TestMoveAliases(t *testing.T) {
	for _, groups := range []int{128, 2048} {
		from, to, originals, outers, beside4, beside6 := movingTranslated(t, 200, groups, 2000)
		m := NewMove(from, to)
		m.Copy(beside4, beside6)
		for i, original := range originals {
			outer := outers[original]
			for _, by := range []Tuple{original, outer.reverse()} {
				if by.Family == 0 {
					continue
				}
				f, ok := to.Lookup(by)
				if !ok || f.Tuple != original || f.Created != uint32(i) || f.Packets[0]+f.Packets[1] != uint64(i) {
					t.Fatalf("%d groups: flow %d is %+v, %v", groups, i, f, ok)
				}
				if outer, is := outers[original]; is != (f.NAT != nil) || is && *f.NAT != (Translation{outer, 11, 12}) {
					t.Fatalf("%d groups: flow %d is translated to %+v", groups, i, f.NAT)
				}
			}
		}
		// A translated flow that begins meanwhile is left behind, with its alias.
		rng := rand.New(rand.NewPCG(9, 9))
		late := randomTuple(rng, 6)
		translated(from, late, randomOuter(rng, late), bpf.XDPFlowStateFLOW_ESTABLISHED, 990, natNoPorts)
		carried, left := m.Settle(beside4, beside6, func(*Sum) {})
		h := recount(t, to)
		want := bpf.XDPGatewayState{Flows: h.flows + h.aliases, Flows6: h.six, HalfOpen: h.half, Aliases: h.aliases,
			Overflow4: int64(len(beside4)), Overflow6: int64(len(beside6))}
		if carried != 200 || left != 1 || h.flows != 200 || h.aliases != 100 || *to.State() != want {
			t.Errorf("%d groups: %d carried, %d left, %+v, and the counts are %+v", groups, carried, left, h, to.State())
		}
	}
}

// In a table that is too small no translated flow is without its alias, and no alias without its flow.
func TestMoveAliasesIntoTooSmallATable(t *testing.T) {
	for _, tc := range []struct {
		groups   int
		flowsMax int64
	}{{8, 2000}, {32, 2000}, {128, 120}, {128, 121}, {2, 1}} {
		from, to, originals, _, beside4, beside6 := movingTranslated(t, 300, tc.groups, tc.flowsMax)
		m := NewMove(from, to)
		m.Copy(beside4, beside6)
		var credited, counted uint64
		carried, left := m.Settle(beside4, beside6, func(s *Sum) { credited += s.Packets[0] + s.Packets[1] })
		h := recount(t, to)
		s := to.State()
		if int64(carried) != h.flows || carried+left != len(originals) || left == 0 || h.flows+h.aliases > tc.flowsMax ||
			s.Flows != h.flows+h.aliases || s.Aliases != h.aliases || s.Flows6 != h.six || s.HalfOpen != h.half {
			t.Errorf("%+v: %d carried, %d left, %+v, and the counts are %+v", tc, carried, left, h, s)
		}
		to.Sums(func(s *Sum) { counted += s.Packets[0] + s.Packets[1] })
		if want := uint64(300 * 299 / 2); counted+credited != want {
			t.Errorf("%+v: %d packets on flows and %d credited of %d", tc, counted, credited, want)
		}
	}
}
