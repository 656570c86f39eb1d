package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// What a scan leaves out is what cannot expire: whatever packets do, each flow ends with the first scan
// at which a look at every slot finds it expired, and no other flow does.
func TestScheduleMissesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 8 {
		table := newTable(t, TableConfig{Groups4: 64, Groups6: 128, Seed: seed, FlowsMax: 400, HalfOpenMax: 300, OverflowMax: 20})
		timeouts := randomTimeouts(rng)
		var tuples [2000]Tuple
		for i := range tuples {
			tuples[i] = randomTuple(rng, 4+2*uint8(rng.Uint32()%2))
			tuples[i].Proto = []uint8{1, 6, 17, 47}[rng.IntN(4)]
		}
		now := rng.Uint32()
		for range 400 {
			for range rng.IntN(60) {
				now += rng.Uint32N(3)
				hitOrOpen(rng, table, tuples[rng.IntN(len(tuples))], now)
			}
			if rng.IntN(40) == 0 {
				timeouts = randomTimeouts(rng)
			}
			if rng.IntN(20) == 0 {
				now += 3000 // all but some end, and a family may be empty
			}
			want := map[FlowID]bool{}
			for f := range table.All() {
				k := keyOf(&f.Tuple)
				if e, _ := table.find(&k); timeouts.Expired(now, f.Tuple.Proto, e.core, e.leg) {
					want[f.ID] = true
				}
			}
			table.Scan(now, &timeouts, func() {}, func(f *Flow) {
				if !want[f.ID] {
					t.Fatalf("freed %+v at %d, which has not expired", f, now)
				}
				delete(want, f.ID)
			})
			for id := range want {
				t.Fatalf("%+v has expired at %d and stays", id, now)
			}
			checkCounts(t, table)
		}
	}
}

func randomTimeouts(rng *rand.Rand) (t Timeouts) {
	for class := range t {
		for state := range t[class] {
			if t[class][state] = 100 + rng.Uint32N(900); rng.IntN(10) == 0 {
				t[class][state] = 0
			}
		}
	}
	return t
}

// hitOrOpen is what a packet may do to a flow: open it, count as seen, change its state, or end a handshake
// and be refused.
func hitOrOpen(rng *rand.Rand, table *Table, tuple Tuple, now uint32) {
	k := keyOf(&tuple)
	e, ok := table.find(&k)
	tcp := tuple.Proto == 6
	if !ok {
		state := bpf.XDPFlowStateFLOW_NEW
		if tcp {
			state = bpf.XDPFlowStateFLOW_SYN_SENT
		}
		opened(table, tuple, state, now)
		return
	}
	before := stateOf(e.word())
	after, refused := before, false
	switch {
	case rng.IntN(2) == 0:
	case !tcp:
		after = bpf.XDPFlowStateFLOW_REPLIED
	case isOver(before):
		table.reopen(&e, &k, &opening{state: bpf.XDPFlowStateFLOW_SYN_SENT, now: now})
		return
	case before == bpf.XDPFlowStateFLOW_SYN_SENT:
		after = bpf.XDPFlowStateFLOW_SYN_RECEIVED
	case before == bpf.XDPFlowStateFLOW_SYN_RECEIVED:
		after, refused = bpf.XDPFlowStateFLOW_ESTABLISHED, rng.IntN(2) == 0
	default:
		after = []bpf.XDPFlowState{bpf.XDPFlowStateFLOW_FIN_WAIT, bpf.XDPFlowStateFLOW_TIME_WAIT, bpf.XDPFlowStateFLOW_CLOSED}[rng.IntN(3)]
	}
	if after != before {
		setWord(&e.core.Word, WordStateMask|WordMarked, uint64(after))
		table.moved(before, after)
	}
	if !refused {
		storeSeen(&e.leg[rng.IntN(2)], now)
	}
}

// checkCounts compares what the table counts with what it lists.
func checkCounts(t *testing.T, table *Table) {
	t.Helper()
	var want bpf.XDPGatewayState
	for f := range table.All() {
		want.Flows++
		if f.Tuple.Family == 6 {
			want.Flows6++
		}
		if halfOpen(f.State) {
			want.HalfOpen++
		}
		switch {
		case f.ID.Overflow && f.Tuple.Family == 4:
			want.Overflow4++
		case f.ID.Overflow:
			want.Overflow6++
		}
	}
	if *table.State() != want {
		t.Fatalf("the table counts %+v and lists %+v", *table.State(), want)
	}
}

// Groups that need no visit get none; the first scan, and the first with other time-outs, visits all.
func TestScheduleLeavesOut(t *testing.T) {
	const groups = 1024
	table := newTable(t, TableConfig{Groups4: groups, Groups6: groups, FlowsMax: 1000, HalfOpenMax: 1000})
	timeouts := UniformTimeouts(60_000)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		opened(table, randomTuple(rng, 4), bpf.XDPFlowStateFLOW_REPLIED, 0)
	}
	visited := func(now uint32) (n int) {
		for f := range table.All() {
			table.groups4[f.ID.Group].Slot[f.ID.Slot].Leg[0].Seen = now
		}
		before := append([]uint32(nil), table.schedule.due4...)
		table.Scan(now, &timeouts, func() {}, func(*Flow) {})
		if len(before) == 0 {
			return len(table.schedule.due4)
		}
		for g := range before {
			if before[g] != table.schedule.due4[g] {
				n++
			}
		}
		return n
	}
	if n := visited(10); n != groups || table.schedule.due6 != nil {
		t.Errorf("the first scan visited %d of %d groups; of IPv6, where there is no flow, %d", n, groups, len(table.schedule.due6))
	}
	total := 0
	for now := uint32(1000); now <= 61_000; now += 1000 {
		n := visited(now)
		if total += n; n > groups/16 {
			t.Errorf("%d groups were visited at %d, when no flow has expired", n, now)
		}
	}
	if total < groups || total > 2*groups {
		t.Errorf("%d visits in the time after which all %d groups must be looked at", total, groups)
	}
	timeouts[ClassTCP][bpf.XDPFlowStateFLOW_CLOSED]--
	if n := visited(61_500); n != groups {
		t.Errorf("with other time-outs %d of %d groups were visited", n, groups)
	}
}
