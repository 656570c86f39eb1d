package flowtable

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

func scanTable(t testing.TB) *Table {
	return newTable(t, TableConfig{Groups4: 64, Groups6: 64, Seed: 1, FlowsMax: 300, HalfOpenMax: 300, OverflowMax: 20})
}

// testTimeouts are the same for all protocols.
var testTimeouts = func() (t Timeouts) {
	for class := range t {
		t[class] = [bpf.XDPFlowStateFLOW_STATE_LEN]uint32{
			bpf.XDPFlowStateFLOW_SYN_SENT: 100, bpf.XDPFlowStateFLOW_SYN_RECEIVED: 100, bpf.XDPFlowStateFLOW_NEW: 50,
			bpf.XDPFlowStateFLOW_ESTABLISHED: 1000, bpf.XDPFlowStateFLOW_REPLIED: 200, bpf.XDPFlowStateFLOW_TIME_WAIT: 20,
		}
	}
	return t
}()

func TestScanByState(t *testing.T) {
	const created = 0xffffff00 // ticks wrap during the test
	for _, tc := range []struct {
		name  string
		state bpf.XDPFlowState
		seen  [2]uint32 // after creation
		now   uint32    // after creation
		freed bool
	}{
		{"established, idle below its time-out", bpf.XDPFlowStateFLOW_ESTABLISHED, [2]uint32{0, 0}, 999, false},
		{"established, idle", bpf.XDPFlowStateFLOW_ESTABLISHED, [2]uint32{0, 0}, 1000, true},
		{"one direction lives", bpf.XDPFlowStateFLOW_ESTABLISHED, [2]uint32{0, 500}, 1400, false},
		{"both directions idle", bpf.XDPFlowStateFLOW_ESTABLISHED, [2]uint32{400, 500}, 1500, true},
		{"time-wait", bpf.XDPFlowStateFLOW_TIME_WAIT, [2]uint32{300, 290}, 320, true},
		{"UDP without a reply, busy", bpf.XDPFlowStateFLOW_NEW, [2]uint32{500, 0}, 520, false},
		{"UDP without a reply, idle", bpf.XDPFlowStateFLOW_NEW, [2]uint32{500, 0}, 550, true},
		{"handshake that is kept busy", bpf.XDPFlowStateFLOW_SYN_SENT, [2]uint32{99, 99}, 100, true},
		{"handshake in time", bpf.XDPFlowStateFLOW_SYN_RECEIVED, [2]uint32{50, 60}, 99, false},
		{"a state without a time-out", bpf.XDPFlowStateFLOW_CLOSED, [2]uint32{0, 0}, 1 << 30, false},
		{"seen ahead of the scan's clock", bpf.XDPFlowStateFLOW_NEW, [2]uint32{60, 0}, 55, false},
	} {
		for _, family := range []uint8{4, 6} {
			table := scanTable(t)
			tuple := randomTuple(rand.New(rand.NewPCG(1, uint64(family))), family)
			opened(table, tuple, tc.state, created)
			k := keyOf(&tuple)
			e, _ := table.find(&k)
			for i, seen := range tc.seen {
				e.leg[i].Seen = created + seen
			}
			graces := 0
			n := table.Scan(created+tc.now, &testTimeouts, func() { graces++ }, func(f *Flow) {
				if f.Tuple != tuple || f.State != tc.state {
					t.Errorf("%s: freed %+v", tc.name, f)
				}
			})
			if (n == 1) != tc.freed || graces != n {
				t.Errorf("%s, IPv%d: %d freed after %d grace periods", tc.name, family, n, graces)
			}
			if _, there := table.Lookup(tuple); there == tc.freed || table.Flows() != int64(1-n) {
				t.Errorf("%s, IPv%d: there %v, %d flows", tc.name, family, there, table.Flows())
			}
		}
	}
}

// What a packet does between mark and free saves its flow.
func TestScanRaces(t *testing.T) {
	type hit func(*Table, *entry)
	for _, tc := range []struct {
		name  string
		hit   hit
		freed int
	}{
		{"no packet", func(*Table, *entry) {}, 1},
		{"a hit that saw the mark", func(_ *Table, e *entry) { setWord(&e.core.Word, WordMarked, 0) }, 0},
		{"a hit that read the word before", func(_ *Table, e *entry) { storeSeen(&e.leg[1], 500) }, 0},
		{"evicted for another flow", func(table *Table, e *entry) {
			tuple := randomTuple(rand.New(rand.NewPCG(8, 8)), 4)
			k := keyOf(&tuple)
			table.replace(e, &k, &opening{state: bpf.XDPFlowStateFLOW_NEW, now: 500})
		}, 0},
	} {
		table := scanTable(t)
		tuple := randomTuple(rand.New(rand.NewPCG(1, 1)), 4)
		opened(table, tuple, bpf.XDPFlowStateFLOW_NEW, 100)
		k := keyOf(&tuple)
		e, _ := table.find(&k)
		before := e.word()
		n := table.Scan(500, &testTimeouts, func() {
			if e.word() != before|WordMarked {
				t.Fatalf("%s: not marked during the grace period", tc.name)
			}
			tc.hit(table, &e)
		}, func(*Flow) {})
		if n != tc.freed || table.Flows() != int64(1-n) || table.HalfOpen() != int64(1-n) {
			t.Errorf("%s: %d freed, %d flows, %d half-open", tc.name, n, table.Flows(), table.HalfOpen())
		}
		if e.word()&WordMarked != 0 {
			t.Errorf("%s: the mark stays", tc.name)
		}
		if n == 1 && e.word() != (before>>WordGenerationBit+1)<<WordGenerationBit {
			t.Errorf("%s: word %#x after %#x", tc.name, e.word(), before)
		}
	}
}

// The packet path takes the mark off itself.
func TestHitTakesMarkOff(t *testing.T) {
	r := newRig(t)
	frame := fromClient4.udp(t, 5000, 53, 10)
	r.want(lanIf, frame, Forward, reasonNone)
	r.now += 10 * second
	n := r.Table().Scan(Tick(r.now), &testTimeouts, func() {
		r.now += second / 1000
		if res := r.want(lanIf, frame, Forward, reasonNone); res.Word&WordMarked != 0 {
			t.Error("the mark outlives a hit")
		}
	}, func(*Flow) {})
	if n != 0 || r.Table().Flows() != 1 {
		t.Errorf("%d freed", n)
	}
}

func TestScanOverflow(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 1, Groups6: 1, FlowsMax: 100, HalfOpenMax: 100, OverflowMax: 20})
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range uint32(20) {
		opened(table, randomTuple(rng, 4), bpf.XDPFlowStateFLOW_REPLIED, i)
		opened(table, randomTuple(rng, 6), bpf.XDPFlowStateFLOW_REPLIED, i)
	}
	s := table.State()
	if s.Overflow4 != 16 || s.Overflow6 != 16 {
		t.Fatalf("%d and %d in the overflow", s.Overflow4, s.Overflow6)
	}
	var packets uint64
	n := table.Scan(209, &testTimeouts, func() {}, func(f *Flow) { packets++ })
	if n != 20 || packets != 20 || table.Flows() != 20 {
		t.Errorf("%d freed, %d left", n, table.Flows())
	}
	if table.Scan(219, &testTimeouts, func() {}, func(*Flow) {}) != 20 || s.Overflow4 != 0 || s.Overflow6 != 0 || s.Flows != 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestFlowAges(t *testing.T) {
	f := Flow{Created: Tick(5 * second), Seen: [2]uint32{Tick(7 * second), Tick(6 * second)}}
	now := Tick(10 * second)
	if a, i := f.Age(now), f.Idle(now); a.Round(10*time.Millisecond) != 5*time.Second || i.Round(10*time.Millisecond) != 3*time.Second {
		t.Errorf("age %v, idle %v", a, i)
	}
}

// halfFull is a table of 2^21 slots of which half hold flows that stay.
func halfFull(b *testing.B) *Table {
	const groups = 1 << 19
	table := newTable(b, TableConfig{Groups4: groups, Groups6: 1, FlowsMax: 1 << 20, HalfOpenMax: 1 << 20})
	for g := range table.groups4 {
		for s := range 2 {
			f := &table.groups4[g].Slot[s*2]
			f.Core.Word = uint64(bpf.XDPFlowStateFLOW_ESTABLISHED)
			f.Leg[0].Seen, f.Leg[1].Seen = 1000, 900
		}
	}
	table.state.Flows = 2 * groups
	return table
}

// BenchmarkScan2M is a scan that looks at every flow, as the first does. It must stay under 20 ms on a
// machine that has nothing else to do, and under Read2M.
func BenchmarkScan2M(b *testing.B) {
	table := halfFull(b)
	for b.Loop() {
		table.schedule.due4 = table.schedule.due4[:0]
		if n := table.Scan(1500, &testTimeouts, func() {}, func(*Flow) {}); n != 0 {
			b.Fatalf("%d freed", n)
		}
	}
}

// BenchmarkScanAgain2M is a scan a second after another, of flows that may be idle for long while others
// may be for a minute.
func BenchmarkScanAgain2M(b *testing.B) {
	table, timeouts := halfFull(b), UniformTimeouts(TimeoutTicks(time.Minute))
	timeouts[ClassOther][bpf.XDPFlowStateFLOW_ESTABLISHED] = TimeoutTicks(24 * 24 * time.Hour)
	now := uint32(1500)
	for b.Loop() {
		now += Ticks(time.Second)
		if n := table.Scan(now, &timeouts, func() {}, func(*Flow) {}); n != 0 {
			b.Fatalf("%d freed", n)
		}
	}
}

// BenchmarkRead2M is what a scan is held against on a noisy machine: one load of each slot, in order.
func BenchmarkRead2M(b *testing.B) {
	table := halfFull(b)
	var sum uint64
	for b.Loop() {
		for g := range table.groups4 {
			for s := range table.groups4[g].Slot {
				sum += table.groups4[g].Slot[s].Core.Word
			}
		}
	}
	if sum == 0 {
		b.Fatal("no flows")
	}
}
