package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// Exactly the chosen flows end, in the groups and beside them, with their counts.
func TestKill(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 1, Groups6: 1, FlowsMax: 100, HalfOpenMax: 100, OverflowMax: 20})
	rng := rand.New(rand.NewPCG(4, 4))
	var tuples []Tuple
	for i := range uint32(24) {
		tuple := randomTuple(rng, []uint8{4, 6}[i%2])
		state := bpf.XDPFlowStateFLOW_ESTABLISHED
		if i >= 20 { // earlier ones would be evicted
			state = bpf.XDPFlowStateFLOW_SYN_SENT
		}
		opened(table, tuple, state, i)
		k := keyOf(&tuple)
		e, _ := table.find(&k)
		e.count[0].Packets = uint64(i)
		tuples = append(tuples, tuple)
	}
	chosen := func(f *Flow) bool { return f.Created%4 < 2 }
	before := table.HalfOpen()
	graces, half := 0, int64(0)
	n := table.Kill(chosen, func() {
		graces++
		for f := range table.All() {
			if f.Revoked != chosen(&f) {
				t.Errorf("flow %d in the grace period: revoked %v", f.Created, f.Revoked)
			}
		}
	}, func(f *Flow) {
		if f.Tuple != tuples[f.Created] || f.Packets[0]+f.Packets[1] != uint64(f.Created) || f.Revoked {
			t.Errorf("freed %+v", f)
		}
		if halfOpen(f.State) {
			half++
		}
	})
	if n != 12 || graces != 1 || table.Flows() != 12 || table.Flows6() != 6 || table.HalfOpen() != before-half {
		t.Errorf("%d killed after %d grace periods, %+v", n, graces, table.State())
	}
	for i, tuple := range tuples {
		if f, there := table.Lookup(tuple); there == (i%4 < 2) || f.Revoked {
			t.Errorf("flow %d: there %v, %+v", i, there, f)
		}
	}
	if n := table.Kill(func(*Flow) bool { return false }, func() { t.Error("a grace period for nothing") }, nil); n != 0 {
		t.Errorf("%d killed of none", n)
	}
}

// What packets do to a flow between its revocation and its end.
func TestKillRaces(t *testing.T) {
	for _, tc := range []struct {
		name   string
		during func(table *Table, e *entry, round int)
		killed int
		rounds int
	}{
		{"nothing", func(*Table, *entry, int) {}, 1, 1},
		{"packets of a busy flow go on counting", func(_ *Table, e *entry, _ int) {
			e.count[0].Packets += 7
			storeSeen(&e.leg[0], 500)
		}, 1, 1},
		{"a packet under way moves its state", func(_ *Table, e *entry, _ int) {
			setWord(&e.core.Word, WordStateMask, uint64(bpf.XDPFlowStateFLOW_FIN_WAIT))
		}, 1, 1},
		{"a new policy revives it once", func(_ *Table, e *entry, round int) {
			if round == 1 {
				setWord(&e.core.Word, WordRevoked, 0)
			}
		}, 1, 2},
		{"it gives its place to another flow, which stays", func(table *Table, e *entry, _ int) {
			tuple := randomTuple(rand.New(rand.NewPCG(8, 8)), 4)
			k := keyOf(&tuple)
			table.replace(e, &k, &opening{state: bpf.XDPFlowStateFLOW_ESTABLISHED, now: 500})
		}, 0, 1},
	} {
		table := scanTable(t)
		tuple := randomTuple(rand.New(rand.NewPCG(1, 1)), 4)
		opened(table, tuple, bpf.XDPFlowStateFLOW_ESTABLISHED, 100)
		k := keyOf(&tuple)
		e, _ := table.find(&k)
		var last Flow
		rounds := 0
		n := table.Kill(func(*Flow) bool { return true }, func() {
			rounds++
			if e.word()&WordRevoked == 0 {
				t.Errorf("%s: not revoked in the grace period", tc.name)
			}
			tc.during(table, &e, rounds)
		}, func(f *Flow) { last = *f })
		if n != tc.killed || rounds != tc.rounds || table.Flows() != int64(1-n) {
			t.Errorf("%s: %d killed in %d rounds, %d flows", tc.name, n, rounds, table.Flows())
		}
		if n == 1 && last.Packets[0]+last.Packets[1] != e.count[0].Packets+e.count[1].Packets {
			t.Errorf("%s: credited %v of %v", tc.name, last.Packets, e.count)
		}
		if n == 0 && e.word()&WordRevoked != 0 {
			t.Errorf("%s: the other flow is revoked", tc.name)
		}
	}
}

// The next packet of a killed flow is judged as if there had been none.
func TestKilledFlowIsJudgedAnew(t *testing.T) {
	r := newRig(t)
	frame := fromClient4.udp(t, 5000, 53, 10)
	r.want(lanIf, frame, Forward, reasonNone)
	if n := r.Table().Kill(func(*Flow) bool { return true }, func() {}, func(*Flow) {}); n != 1 {
		t.Fatalf("%d killed", n)
	}
	created := r.Table().Counters.Created
	r.want(lanIf, frame, Forward, reasonNone)
	if r.Table().Counters.Created != created+1 || r.Table().Flows() != 1 {
		t.Errorf("%+v, %d flows", r.Table().Counters, r.Table().Flows())
	}
}
