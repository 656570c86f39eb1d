package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// moving is two tables of different sizes over the same counts, the old one with flows of both families.
func moving(t *testing.T, to TableConfig) (*Table, *Table, []Tuple) {
	t.Helper()
	from := newTable(t, TableConfig{Groups4: 64, Groups6: 64, Seed: 5, FlowsMax: 200, HalfOpenMax: 100, OverflowMax: 20})
	to.Seed = 5
	next, err := MapTable(to, make([]bpf.XDPFlow4Group, to.Groups4), make([]bpf.XDPFlow6Group, to.Groups6), from.state)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(8, 8))
	var tuples []Tuple
	for i := range uint32(150) {
		tuple, state := randomTuple(rng, []uint8{4, 6}[i%2]), bpf.XDPFlowStateFLOW_ESTABLISHED
		if i%3 == 0 {
			state = bpf.XDPFlowStateFLOW_SYN_SENT
		}
		opened(from, tuple, state, i)
		e := held(from, tuple)
		e.count[0].Packets, e.count[1].Bytes = uint64(i), uint64(i)
		tuples = append(tuples, tuple)
	}
	return from, next, tuples
}

func held(t *Table, tuple Tuple) entry {
	k := keyOf(&tuple)
	e, _ := t.find(&k)
	return e
}

// Every flow is in the table of another size as it was, and what comes between copy and settlement counts
// once: on the flow that goes on, and on the rule for what the new table does not hold.
func TestMove(t *testing.T) {
	for _, groups := range []int{32, 64, 1024} {
		from, to, tuples := moving(t, TableConfig{Groups4: groups, Groups6: groups, FlowsMax: 200, HalfOpenMax: 100})
		m := NewMove(from, to)
		m.Copy(nil, nil)
		for i, tuple := range tuples {
			want, _ := from.Lookup(tuple)
			got, ok := to.Lookup(tuple)
			want.ID, got.ID = FlowID{}, FlowID{}
			if !ok || got != want {
				t.Fatalf("%d groups: flow %d is %+v, was %+v", groups, i, got, want)
			}
		}

		// Meanwhile: 4 packets of flow 1, whose connection then ends; flow 3 is established; flow 6 gives its
		// place to another connection; a new flow comes. Then two packets go through the new table.
		e := held(from, tuples[1])
		e.count[0].Packets += 4
		e.core.Word = e.core.Word&^WordStateMask | uint64(bpf.XDPFlowStateFLOW_TIME_WAIT)
		e = held(from, tuples[3])
		e.core.Word = e.core.Word&^WordStateMask | uint64(bpf.XDPFlowStateFLOW_ESTABLISHED)
		from.moved(bpf.XDPFlowStateFLOW_SYN_SENT, bpf.XDPFlowStateFLOW_ESTABLISHED)
		e = held(from, tuples[6])
		e.core.Word += 1 << WordGenerationBit
		e.count[0].Packets, e.core.Rule = 900, 990
		late := randomTuple(rand.New(rand.NewPCG(9, 9)), 6)
		opened(from, late, bpf.XDPFlowStateFLOW_ESTABLISHED, 991)
		e = held(from, late)
		e.count[1].Packets = 70
		e = held(to, tuples[1])
		e.count[0].Packets += 2

		credits := map[uint32]uint64{}
		carried, left := m.Settle(nil, nil, func(s *Sum) { credits[s.Rule] += s.Packets[0] + s.Packets[1] })
		if carried != 150 || left != 2 {
			t.Errorf("%d groups: %d carried, %d left", groups, carried, left)
		}
		// What flow 6 had counted is credited by who took its place, and its copy still bears it.
		if credits[1] != 4 || credits[991] != 70 || credits[990] != 900 || int64(credits[6]) != -6 || len(credits) != 4 {
			t.Errorf("%d groups: credited %v", groups, credits)
		}
		if f, _ := to.Lookup(tuples[1]); f.State != bpf.XDPFlowStateFLOW_TIME_WAIT || f.Packets[0]+f.Packets[1] != 3 {
			t.Errorf("%d groups: flow 1 is %+v", groups, f)
		}
		if f, _ := to.Lookup(tuples[3]); f.State != bpf.XDPFlowStateFLOW_ESTABLISHED {
			t.Errorf("%d groups: flow 3 is %+v", groups, f)
		}
		var all, six, half int64
		for f := range to.All() {
			all++
			if f.Tuple.Family == 6 {
				six++
			}
			if halfOpen(f.State) {
				half++
			}
		}
		if all != 150 || to.Flows() != all || to.Flows6() != six || to.HalfOpen() != half {
			t.Errorf("%d groups: %d flows, %d of IPv6, %d half-open, and the counts are %+v", groups, all, six, half, to.State())
		}
	}
}

// A table that is too small takes the established flows first; the others are left behind, with what they
// counted, and so are those beside the groups that are not carried.
func TestMoveIntoTooSmallATable(t *testing.T) {
	from, to, tuples := moving(t, TableConfig{Groups4: 64, Groups6: 64, FlowsMax: 120, HalfOpenMax: 10})
	beside := []bpf.XDPFlow4{*held(from, tuples[2]).flow4}
	beside[0].Key.LoPort++
	from.counted(4, bpf.XDPFlowStateFLOW_ESTABLISHED, 1)
	m := NewMove(from, to)
	m.Copy(beside, nil)
	var credited uint64
	carried, left := m.Settle(beside, nil, func(s *Sum) { credited += s.Packets[0] + s.Packets[1] })
	if carried != 111 || left != 40 || to.Flows() != 111 || to.HalfOpen() != 10 {
		t.Errorf("%d carried, %d left, %+v", carried, left, to.State())
	}
	var counted, want uint64
	for i, tuple := range tuples {
		want += uint64(i)
		f, ok := to.Lookup(tuple)
		if ok {
			counted += f.Packets[0] + f.Packets[1]
		}
		if established := i%3 != 0; established && !ok {
			t.Errorf("established flow %d is left behind", i)
		}
	}
	if counted+credited != want {
		t.Errorf("%d packets on flows and %d credited of %d", counted, credited, want)
	}
}
