package flowtable

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/softdpu/softdpu/bpf"
)

func newTable(t testing.TB, cfg TableConfig) *Table {
	t.Helper()
	table, err := NewTable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// opened creates a flow and reports how.
func opened(t *Table, tuple Tuple, state bpf.XDPFlowState, now uint32) (ended, bool) {
	k := keyOf(&tuple)
	o := opening{state: state, now: now, rule: now, epoch: 1, from: 2, to: 3}
	if k.sender == 1 {
		o.flags |= WordHiOpened
	}
	_, left, ok := t.create(&k, &o)
	return left, ok
}

func TestNewTableRefuses(t *testing.T) {
	for _, cfg := range []TableConfig{{}, {Groups4: 3, Groups6: 4}, {Groups4: 4}, {Groups4: 4, Groups6: 4, StripeBits: 3}} {
		if _, err := NewTable(cfg); err == nil {
			t.Errorf("NewTable(%+v) made a table", cfg)
		}
	}
}

func TestTableFindsWhatItHolds(t *testing.T) {
	for _, family := range []uint8{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			table := newTable(t, TableConfig{Groups4: 1024, Groups6: 1024, Seed: 99, StripeBits: 4, FlowsMax: 2000, HalfOpenMax: 2000, OverflowMax: 100})
			rng := rand.New(rand.NewPCG(7, uint64(family)))
			want := map[Tuple]uint32{}
			for i := range uint32(2000) {
				tuple := randomTuple(rng, family)
				if _, ok := opened(table, tuple, bpf.XDPFlowStateFLOW_ESTABLISHED, i); !ok {
					t.Fatalf("flow %d of 2,000 has no place in 4,096 slots", i)
				}
				want[tuple] = i
			}
			for tuple, i := range want {
				for _, dir := range []Tuple{tuple, tuple.reverse()} {
					if f, ok := table.Lookup(dir); !ok || f.Tuple != tuple || f.Created != i || f.Rule != i {
						t.Fatalf("Lookup(%+v) = %+v, %v; want flow %d", dir, f, ok, i)
					}
				}
				tuple.Domain++
				if _, ok := table.Lookup(tuple); ok {
					t.Fatal("found in another routing domain")
				}
			}
			ids := map[FlowID]bool{}
			for f := range table.All() {
				if want[f.Tuple] != f.Created || ids[f.ID] {
					t.Fatalf("All lists %+v", f)
				}
				ids[f.ID] = true
			}
			if len(ids) != 2000 || table.Flows() != 2000 || table.HalfOpen() != 0 {
				t.Errorf("All lists %d flows, counts say %d and %d half-open", len(ids), table.Flows(), table.HalfOpen())
			}
			if _, ok := opened(table, randomTuple(rng, family), bpf.XDPFlowStateFLOW_NEW, 0); ok || table.Counters.Refused != 1 {
				t.Errorf("flow beyond FlowsMax: %v, %d refused", ok, table.Counters.Refused)
			}
		})
	}
}

func TestAllStops(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 4, Groups6: 4, FlowsMax: 100, HalfOpenMax: 100, OverflowMax: 50})
	rng := rand.New(rand.NewPCG(1, 1))
	for range 30 {
		opened(table, randomTuple(rng, 4), bpf.XDPFlowStateFLOW_ESTABLISHED, 0)
		opened(table, randomTuple(rng, 6), bpf.XDPFlowStateFLOW_ESTABLISHED, 0)
	}
	for limit := 1; limit <= 60; limit++ {
		n := 0
		for range table.All() {
			if n++; n == limit {
				break
			}
		}
		if n != limit {
			t.Fatalf("All gave %d flows of 60, want %d", n, limit)
		}
	}
}

// One group each way: every rule of a full table can be seen.
func TestFullTable(t *testing.T) {
	const est, half = bpf.XDPFlowStateFLOW_ESTABLISHED, bpf.XDPFlowStateFLOW_NEW
	rng := rand.New(rand.NewPCG(1, 1))
	fresh := func() Tuple { return randomTuple(rng, 4) }
	cfg := TableConfig{Groups4: 2, Groups6: 2, FlowsMax: 100, HalfOpenMax: 100, OverflowMax: 2}

	t.Run("established flows are never evicted", func(t *testing.T) {
		table := newTable(t, cfg)
		for i := range 8 {
			if left, ok := opened(table, fresh(), est, uint32(i)); !ok || left != (ended{}) {
				t.Fatalf("flow %d: %v, %+v", i, ok, left)
			}
		}
		if table.Counters.Overflowed != 0 {
			t.Fatalf("%d of 8 flows in the overflow of 8 slots", table.Counters.Overflowed)
		}
		inOverflow := []Tuple{fresh(), fresh()}
		for _, tuple := range inOverflow {
			if _, ok := opened(table, tuple, half, 9); !ok {
				t.Fatal("no place in the overflow")
			}
		}
		if _, ok := opened(table, fresh(), half, 10); ok {
			t.Error("a flow found a place in a full overflow")
		}
		if f, ok := table.Lookup(inOverflow[1].reverse()); !ok || !f.ID.Overflow || f.ID.Family != 4 {
			t.Errorf("flow in the overflow: %+v, %v", f, ok)
		}
		want := bpf.XDPTableCounter{Created: 10, Refused: 1, Overflowed: 2}
		if table.Counters != want || table.Flows() != 10 || table.HalfOpen() != 2 || table.State().Overflow4 != 2 {
			t.Errorf("counters %+v, want %+v; %d flows, %d half-open", table.Counters, want, table.Flows(), table.HalfOpen())
		}
	})

	t.Run("the oldest half-open flow is evicted", func(t *testing.T) {
		table := newTable(t, cfg)
		var tuples []Tuple
		// Times wrap: the order of creation is 4294967293, ..., 0, 1, ...
		for i := range uint32(8) {
			tuples = append(tuples, fresh())
			state := half
			if i == 0 {
				state = est
			}
			opened(table, tuples[i], state, i-3)
		}
		k := keyOf(&tuples[1])
		e, _ := table.find(&k)
		opener := e.opener()
		e.count[opener] = bpf.XDPFlowCount{Packets: 3, Bytes: 400}
		e.count[opener^1] = bpf.XDPFlowCount{Packets: 1, Bytes: 100}
		generation := e.word() >> WordGenerationBit
		left, ok := opened(table, fresh(), half, 20)
		if want := (ended{rule: (1<<32 - 2) & verdictRuleMask, packets: 4, bytes: 500, replies: bpf.XDPFlowCount{Packets: 1, Bytes: 100}}); !ok || left != want {
			t.Errorf("evicted %+v, %v; want %+v", left, ok, want)
		}
		if _, ok := table.Lookup(tuples[1]); ok {
			t.Error("the evicted flow is still there")
		}
		if _, ok := table.Lookup(tuples[0]); !ok {
			t.Error("the established flow is gone")
		}
		if now := e.word() >> WordGenerationBit; now != generation+1 {
			t.Errorf("generation %d after %d", now, generation)
		}
		want := bpf.XDPTableCounter{Created: 9, Evicted: 1}
		if table.Counters != want || table.Flows() != 8 || table.HalfOpen() != 7 {
			t.Errorf("counters %+v, want %+v; %d flows, %d half-open", table.Counters, want, table.Flows(), table.HalfOpen())
		}
	})

	t.Run("half-open flows replace each other at their share", func(t *testing.T) {
		cfg := cfg
		cfg.HalfOpenMax = 2
		table := newTable(t, cfg)
		for i := range uint32(50) {
			if _, ok := opened(table, fresh(), half, i); !ok {
				t.Fatalf("flow %d refused", i)
			}
		}
		if table.HalfOpen() != 2 || table.Flows() != 2 || table.Counters.Evicted != 48 {
			t.Errorf("%d half-open of %d, %d evicted", table.HalfOpen(), table.Flows(), table.Counters.Evicted)
		}
		// One that is not half-open needs none of their share.
		if left, ok := opened(table, fresh(), est, 60); !ok || left != (ended{}) || table.Flows() != 3 {
			t.Errorf("picked-up flow: %v, %+v", ok, left)
		}
	})

	t.Run("at flows.max only eviction is left", func(t *testing.T) {
		cfg := cfg
		cfg.FlowsMax = 3
		table := newTable(t, cfg)
		for i := range uint32(3) {
			opened(table, fresh(), est, i)
		}
		if _, ok := opened(table, fresh(), est, 5); ok || table.Counters.Refused != 1 {
			t.Errorf("flow beyond flows.max: %v", ok)
		}
	})
}

func TestEmptierGroup(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 1024, Groups6: 1, FlowsMax: 4000, HalfOpenMax: 4000, OverflowMax: 100})
	rng := rand.New(rand.NewPCG(2, 3))
	for range 2048 {
		tuple := randomTuple(rng, 4)
		k := keyOf(&tuple)
		c := table.candidates(&k)
		var free [2]int
		for i, g := range c.group {
			for s := range uint8(GroupSlots) {
				if e := table.at(4, g, s); isFree(e.word()) {
					free[i]++
				}
			}
		}
		if _, ok := opened(table, tuple, bpf.XDPFlowStateFLOW_NEW, 0); !ok {
			t.Fatal("refused at half load")
		}
		f, _ := table.Lookup(tuple)
		want := c.group[0]
		if free[1] > free[0] {
			want = c.group[1]
		}
		if !f.ID.Overflow && f.ID.Group != want {
			t.Fatalf("group %d, want %d: free %v of %+v", f.ID.Group, want, free, c)
		}
	}
	if n := table.Counters.Overflowed; n > 4 {
		t.Errorf("%d of 2,048 flows overflow 4,096 slots", n)
	}
}

func TestGroupsFromMemory(t *testing.T) {
	mem := make([]uint64, 3*512/8)
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), len(mem)*8)
	g4, err := Groups4(bytes)
	if err != nil || len(g4) != 3 {
		t.Fatalf("%d groups, %v", len(g4), err)
	}
	g4[1].Slot[2].Core.Word = 0x1122
	if bytes[512+2*128+16] != 0x22 {
		t.Error("the groups are not the memory")
	}
	if g6, err := Groups6(bytes); err != nil || len(g6) != 1 {
		t.Errorf("%d IPv6 groups, %v", len(g6), err)
	}
	if _, err := Groups6(bytes[:1000]); err == nil {
		t.Error("half a group is a group")
	}
	if _, err := Groups4(bytes[4:]); err == nil {
		t.Error("memory that is not aligned is accepted")
	}
}

// A mapped table is read, aged and counted like one on the heap.
func TestMapTable(t *testing.T) {
	heap := newTable(t, TableConfig{Groups4: 8, Groups6: 8, Seed: 5, FlowsMax: 10, HalfOpenMax: 10})
	rng := rand.New(rand.NewPCG(1, 1))
	tuple := randomTuple(rng, 6)
	opened(heap, tuple, bpf.XDPFlowStateFLOW_NEW, 100)
	mapped, err := MapTable(TableConfig{Seed: 5}, heap.groups4, heap.groups6, heap.State())
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := mapped.Lookup(tuple.reverse()); !ok || f.Created != 100 {
		t.Errorf("Lookup = %+v, %v", f, ok)
	}
	n := mapped.Scan(1000, &testTimeouts, func() {}, func(*Flow) {})
	if n != 1 || heap.Flows() != 0 || heap.HalfOpen() != 0 {
		t.Errorf("%d freed, %d flows left", n, heap.Flows())
	}
}
