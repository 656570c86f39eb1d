package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// An alias without its flow ends with the first scan after 2 s that looks at it, with its port; one whose
// flow is there, or comes while the scan waits, stays.
func TestScanOrphans(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	type world struct {
		table           *Table
		original, outer Tuple
		e               entry // of the alias
	}
	flow := func(outer *Tuple) func(*world) {
		return func(w *world) {
			k := keyOf(&w.original)
			o := opening{state: bpf.XDPFlowStateFLOW_ESTABLISHED, now: 100, flags: hiOpened(k.sender), outer: outer}
			if outer != nil && *outer == (Tuple{}) {
				o.outer = &w.outer
			}
			w.table.create(&k, &o)
		}
	}
	its, none := flow(&Tuple{}), func(*world) {}
	for _, tc := range []struct {
		name   string
		before func(*world)
		now    uint32 // after it was made
		during func(*world)
		stays  bool
	}{
		{"just made", none, 1907, none, true},
		{"without a flow", none, 1908, none, false},
		{"with its flow", its, 5000, none, true},
		{"its flow is another translation", func(w *world) { o := randomOuter(rng, w.original); flow(&o)(w) }, 5000, none, false},
		{"its flow is not translated", flow(nil), 5000, none, false},
		{"its flow comes meanwhile", none, 5000, its, true},
		{"it is about to be used", none, 5000, func(w *world) {
			k := keyOf(&w.original)
			w.table.createAlias(&aliasOpening{outer: &w.outer, target: &k, ports: natNoPorts})
		}, true},
		{"its place is another's by then", none, 5000, func(w *world) {
			k := keyOf(&w.original)
			w.table.freeAlias(&w.outer, &k)
			w.table.countedAlias(k.family, 1)
			other := randomTuple(rng, k.family)
			target, own := keyOf(&other), keyOf(&w.outer)
			w.table.fillAlias(&w.e, &own, &aliasOpening{outer: &w.outer, target: &target, ports: natNoPorts, now: 5000})
		}, true},
		{"flows may be beside the groups", func(w *world) {
			w.table.overflow4, w.table.overflow6 = nil, nil
			w.table.state.Overflow4, w.table.state.Overflow6 = 1, 1
		}, 5000, none, true},
	} {
		for _, family := range []uint8{4, 6} {
			const created = 0xffffff00 // ticks wrap during the test
			w := world{table: scanTable(t), original: randomTuple(rng, family)}
			w.outer = randomOuter(rng, w.original)
			ports := make([]bpf.XDPNatBitmap, 1)
			w.table.SetNATPorts(4, ports)
			natPorts(ports).take(0, w.outer.SrcPort)
			k, outer := keyOf(&w.original), keyOf(&w.outer)
			w.table.createAlias(&aliasOpening{outer: &w.outer, target: &k, ports: 0, now: created})
			w.e, _ = w.table.find(&outer)
			tc.before(&w)
			never := Timeouts{}
			never[ClassOther][bpf.XDPFlowStateFLOW_ESTABLISHED] = 1 << 25
			n := w.table.Scan(created+tc.now, &never, func() { tc.during(&w) }, func(f *Flow) { t.Errorf("%s: freed %+v", tc.name, f) })
			e, there := w.table.find(&outer)
			if there != tc.stays || n != 0 || there != (w.table.State().Aliases == 1) {
				t.Errorf("%s, IPv%d: there %v, %d freed, %+v", tc.name, family, there, n, w.table.State())
			}
			if there && e.word()&WordMarked != 0 {
				t.Errorf("%s, IPv%d: the mark stays", tc.name, family)
			}
			if taken := !natPorts(ports).take(0, w.outer.SrcPort); taken != there && w.e.alias().ports == 0 {
				t.Errorf("%s, IPv%d: port taken %v", tc.name, family, taken)
			}
		}
	}
}

// An orphan is found when it is 2 s old, whenever its group was looked at before.
func TestScanFindsOrphansAgain(t *testing.T) {
	table := scanTable(t)
	rng := rand.New(rand.NewPCG(7, 7))
	limits := UniformTimeouts(100_000)
	original := randomTuple(rng, 4)
	outer := randomOuter(rng, original)
	k := keyOf(&original)
	table.createAlias(&aliasOpening{outer: &outer, target: &k, ports: natNoPorts, now: 1000})
	for _, now := range []uint32{1000, 2000, 2907} {
		if table.Scan(now, &limits, func() {}, nil); table.State().Aliases != 1 {
			t.Fatalf("gone at tick %d", now)
		}
	}
	if table.Scan(2908, &limits, func() {}, nil); table.State().Aliases != 0 || table.Flows() != 0 {
		t.Errorf("%+v", table.State())
	}
}

// Aliases beside the groups end likewise, and with their flows.
func TestScanOrphansInOverflow(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 1, Groups6: 1, FlowsMax: 100, HalfOpenMax: 100, OverflowMax: 20})
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range 16 {
		original := randomTuple(rng, []uint8{4, 6}[i%2])
		outer := randomOuter(rng, original)
		if i < 12 {
			translated(table, original, outer, bpf.XDPFlowStateFLOW_REPLIED, 0, natNoPorts)
			continue
		}
		k := keyOf(&original)
		table.createAlias(&aliasOpening{outer: &outer, target: &k, ports: natNoPorts, now: 0})
	}
	s := table.State()
	if s.Aliases != 16 || s.Overflow4 != 10 || s.Overflow6 != 10 {
		t.Fatalf("%+v", s)
	}
	limits := UniformTimeouts(3000)
	if n := table.Scan(2000, &limits, func() {}, nil); n != 0 || s.Aliases != 12 || s.Overflow4 != 8 {
		t.Errorf("%d freed, %+v", n, s)
	}
	if n := table.Scan(3000, &limits, func() {}, func(*Flow) {}); n != 12 || *s != (bpf.XDPGatewayState{}) {
		t.Errorf("%d freed, %+v", n, s)
	}
}

// What is done to a translated flow while a scan means to free it saves its alias too; what ages takes it.
func TestScanRacesOfTranslatedFlows(t *testing.T) {
	for _, tc := range []struct {
		name  string
		hit   func(*entry)
		freed int
	}{
		{"no packet", func(*entry) {}, 1},
		{"a hit that saw the mark", func(e *entry) { setWord(&e.core.Word, WordMarked, 0) }, 0},
		{"a hit that read the word before", func(e *entry) { storeSeen(&e.leg[1], 500) }, 0},
	} {
		table := scanTable(t)
		rng := rand.New(rand.NewPCG(1, 1))
		original := randomTuple(rng, 4)
		outer := randomOuter(rng, original)
		translated(table, original, outer, bpf.XDPFlowStateFLOW_NEW, 100, natNoPorts)
		k := keyOf(&original)
		e, _ := table.find(&k)
		var last *Translation
		n := table.Scan(500, &testTimeouts, func() { tc.hit(&e) }, func(f *Flow) { last = f.NAT })
		_, there := table.Lookup(outer)
		if n != tc.freed || there != (n == 0) || table.State().Aliases != int64(1-n) {
			t.Errorf("%s: %d freed, found by its outer tuple: %v, %+v", tc.name, n, there, table.State())
		}
		if n == 1 && (last == nil || *last != Translation{Outer: outer, SourceRule: 11, DestinationRule: 12}) {
			t.Errorf("%s: freed with %+v", tc.name, last)
		}
		key := keyOf(&outer)
		if at, ok := table.find(&key); ok && at.word()&WordMarked != 0 {
			t.Errorf("%s: the mark of the alias stays", tc.name)
		}
	}
}
