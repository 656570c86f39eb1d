package flowtable

import (
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// randomOuter returns what a tuple becomes when source, destination or both are translated.
func randomOuter(rng *rand.Rand, original Tuple) Tuple {
	other, outer := randomTuple(rng, original.Family), original
	which := rng.IntN(3)
	if which != 0 {
		outer.Src, outer.SrcPort = other.Src, other.SrcPort
	}
	if which != 1 {
		outer.Dst, outer.DstPort = other.Dst, other.DstPort
	}
	return outer
}

// translated opens a translated flow as an executor does: the alias first. It reports how far it came.
func translated(t *Table, original, outer Tuple, state bpf.XDPFlowState, now, ports uint32) (aliasResult, bool) {
	k := keyOf(&original)
	a := aliasOpening{outer: &outer, target: &k, ports: ports, sourceRule: 11, destinationRule: 12, now: now}
	result := t.createAlias(&a)
	if result == aliasTaken || result == aliasFull {
		return result, false
	}
	o := opening{state: state, now: now, rule: now, epoch: 1, from: 2, to: 3, outer: &outer, flags: hiOpened(k.sender)}
	var ok bool
	if e, there := t.find(&k); there {
		_, ok = t.reopen(&e, &k, &o)
	} else {
		_, _, ok = t.create(&k, &o)
	}
	if !ok {
		t.cancelAlias(&a)
	}
	return result, ok
}

// A translated flow is found from both its sides, is listed once, and says what it becomes.
func TestTranslatedFlows(t *testing.T) {
	for _, family := range []uint8{4, 6} {
		table := newTable(t, TableConfig{Groups4: 256, Groups6: 256, Seed: 3, StripeBits: 2, FlowsMax: 900, HalfOpenMax: 900, OverflowMax: 10})
		rng := rand.New(rand.NewPCG(1, uint64(family)))
		want := map[Tuple]Tuple{}
		for i := range uint32(300) {
			original := randomTuple(rng, family)
			outer := randomOuter(rng, original)
			if result, ok := translated(table, original, outer, bpf.XDPFlowStateFLOW_ESTABLISHED, i, natNoPorts); result != aliasMade || !ok {
				t.Fatalf("flow %d: %d, %v", i, result, ok)
			}
			want[original] = outer
		}
		plain := randomTuple(rng, family)
		opened(table, plain, bpf.XDPFlowStateFLOW_ESTABLISHED, 1)
		for original, outer := range want {
			for _, by := range []Tuple{original, original.reverse(), outer, outer.reverse()} {
				f, ok := table.Lookup(by)
				if !ok || f.Tuple != original || f.NAT == nil || *f.NAT != (Translation{Outer: outer, SourceRule: 11, DestinationRule: 12}) {
					t.Fatalf("Lookup(%+v) = %+v, %v with %+v, want %+v as %+v", by, f, ok, f.NAT, original, outer)
				}
			}
			k := keyOf(&outer)
			at, _ := table.find(&k)
			if !isAlias(at.word()) || openerOf(at.word()) != k.sender {
				t.Fatalf("the alias of %+v has word %#x", outer, at.word())
			}
			back := outer.reverse()
			flow, ok := table.follow(at, &back)
			if !ok || flow.tuple(flow.opener()) != original {
				t.Fatalf("the alias of %+v leads to %+v, %v", outer, flow, ok)
			}
			other := outer
			other.SrcPort++
			if _, ok := table.follow(at, &other); ok {
				t.Fatal("an alias is followed by another tuple than its own")
			}
		}
		listed, sums := 0, 0
		for f := range table.All() {
			listed++
			if outer, ok := want[f.Tuple]; ok != (f.NAT != nil) || ok && f.NAT.Outer != outer || !ok && f.Tuple != plain {
				t.Fatalf("All lists %+v", f)
			}
		}
		table.Sums(func(s *Sum) {
			if sums++; s.State != bpf.XDPFlowStateFLOW_ESTABLISHED {
				t.Fatalf("summed %+v", s)
			}
		})
		if s := table.State(); listed != 301 || sums != 301 || s.Flows != 601 || s.Aliases != 300 || s.HalfOpen != 0 || table.Counters.Created != 301 {
			t.Errorf("%d listed, %d summed, %+v, %+v", listed, sums, s, table.Counters)
		}
	}
}

func TestCreateAlias(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 2, Groups6: 2, Seed: 3, FlowsMax: 100, HalfOpenMax: 100})
	rng := rand.New(rand.NewPCG(2, 2))
	original, inTheWay := randomTuple(rng, 4), randomTuple(rng, 4)
	outer := randomOuter(rng, original)
	opened(table, inTheWay, bpf.XDPFlowStateFLOW_ESTABLISHED, 1)
	ask := func(original, outer Tuple) aliasResult {
		k := keyOf(&original)
		return table.createAlias(&aliasOpening{outer: &outer, target: &k, ports: natNoPorts})
	}
	if got := ask(original, inTheWay); got != aliasTaken {
		t.Errorf("%d where a flow is", got)
	}
	if got := ask(original, outer); got != aliasMade {
		t.Errorf("%d where nothing is", got)
	}
	k := keyOf(&outer)
	e, _ := table.find(&k)
	setWord(&e.core.Word, 0, WordMarked)
	if got := ask(original, outer); got != aliasOwn || e.word()&WordMarked != 0 {
		t.Errorf("%d where its own is, word %#x", got, e.word())
	}
	if got := ask(original, outer.reverse()); got != aliasTaken {
		t.Errorf("%d where its own is, opened by the other end", got)
	}
	if got := ask(randomTuple(rng, 4), outer); got != aliasTaken {
		t.Errorf("%d where another's is", got)
	}
	for i := range uint32(5) {
		opened(table, randomTuple(rng, 4), bpf.XDPFlowStateFLOW_ESTABLISHED, i)
	}
	half := randomTuple(rng, 4)
	opened(table, half, bpf.XDPFlowStateFLOW_SYN_SENT, 40)
	key := keyOf(&half)
	f, _ := table.find(&key)
	f.count[0].Packets = 7
	full := aliasOpening{outer: &Tuple{}, target: &k, ports: natNoPorts}
	*full.outer = randomTuple(rng, 4)
	if got := table.createAlias(&full); got != aliasMade || full.left.packets != 7 || full.left.rule != 40 || table.HalfOpen() != 0 || table.Counters.Evicted != 1 {
		t.Errorf("%d in the place of a half-open flow, which leaves %+v; %+v", got, full.left, table.State())
	}
	if got := ask(original, randomTuple(rng, 4)); got != aliasFull || table.Counters.Refused != 1 || table.State().Aliases != 2 || table.Flows() != 8 {
		t.Errorf("%d in a full table, %+v", got, table.State())
	}
}

// Whatever happens to the flows of a table, each translated one has its alias and its port, and nobody else
// has any.
func TestAliasesAgainstAModel(t *testing.T) {
	for _, cfg := range []TableConfig{
		{Groups4: 64, Groups6: 64, Seed: 1, StripeBits: 1, FlowsMax: 300, HalfOpenMax: 60, OverflowMax: 20},
		{Groups4: 4, Groups6: 4, Seed: 2, FlowsMax: 1000, HalfOpenMax: 1000, OverflowMax: 30},
		{Groups4: 8, Groups6: 8, Seed: 3, FlowsMax: 40, HalfOpenMax: 10},
	} {
		table := newTable(t, cfg)
		ports := natPorts((&NAT{Ports: []NATPorts{{natClasses * natSlices, 5000, 5200}}}).NewBitmaps())
		blank := (&NAT{Ports: []NATPorts{{1, 5000, 5200}}}).NewBitmaps()[0]
		table.SetNATPorts(9, ports)
		m := aliasModel{t: t, table: table, ports: ports, rng: rand.New(rand.NewPCG(cfg.Seed, 77))}
		for range 4000 {
			m.step()
			m.check(&blank)
		}
		if table.Counters.Created < 1000 || table.Counters.Reopened == 0 || m.ended == 0 || cfg.Seed > 1 && table.Counters.Refused == 0 {
			t.Errorf("%+v, %d ended: the test asks too little", table.Counters, m.ended)
		}
	}
}

type aliasModel struct {
	t     *testing.T
	table *Table
	ports natPorts
	rng   *rand.Rand
	now   uint32
	ended int
}

// some returns a flow of the table.
func (m *aliasModel) some() (f Flow, ok bool) {
	n := m.rng.IntN(int(max(1, m.table.Flows())))
	for f = range m.table.All() {
		if n--; n < 0 {
			return f, true
		}
	}
	return f, false
}

func (m *aliasModel) step() {
	m.now++
	state := []bpf.XDPFlowState{bpf.XDPFlowStateFLOW_SYN_SENT, bpf.XDPFlowStateFLOW_ESTABLISHED, bpf.XDPFlowStateFLOW_TIME_WAIT}[m.rng.IntN(3)]
	ended := func(f *Flow) {
		m.ended++
		if f.NAT != nil && f.NAT.SourceRule != 11 {
			m.t.Fatalf("ended: %+v with %+v", f, f.NAT)
		}
	}
	switch m.rng.IntN(12) {
	case 0: // a flow of its own
		opened(m.table, randomTuple(m.rng, []uint8{4, 6}[m.rng.IntN(2)]), state, m.now)
	case 1: // a connection begins anew, with the same port or another
		if f, ok := m.some(); ok && isOver(f.State) {
			if f.NAT == nil || m.rng.IntN(2) == 0 {
				m.open(f.Tuple, state)
			} else if result, _ := translated(m.table, f.Tuple, f.NAT.Outer, state, m.now, natNoPorts); result != aliasOwn {
				m.t.Fatalf("the own alias of %+v: %d", f, result)
			}
		}
	case 2:
		limits := UniformTimeouts(uint32(20 + m.rng.IntN(200)))
		m.table.Scan(m.now, &limits, func() {}, ended)
	case 3:
		m.table.Kill(func(f *Flow) bool { return m.rng.IntN(40) == 0 }, func() {}, ended)
	default:
		tuple := randomTuple(m.rng, []uint8{4, 6}[m.rng.IntN(2)])
		tuple.Proto = []uint8{packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP}[m.rng.IntN(3)]
		m.open(tuple, state)
	}
}

// open makes a flow whose source port is chosen.
func (m *aliasModel) open(original Tuple, state bpf.XDPFlowState) {
	outer := original
	outer.Src = randomTuple(m.rng, original.Family).Src
	element, ok := m.table.natElement(0, 0, &outer)
	if !ok {
		return
	}
	p, ok := m.ports.next(element, original.SrcPort)
	if !ok {
		return
	}
	m.ports.take(element, p)
	outer.SrcPort = p
	if result, _ := translated(m.table, original, outer, state, m.now, element); result == aliasFull || result == aliasTaken {
		m.ports.give(element, p)
	}
}

func (m *aliasModel) check(blank *bpf.XDPNatBitmap) {
	m.t.Helper()
	want := make(natPorts, len(m.ports))
	for i := range want {
		want[i] = *blank
	}
	var flows, aliases, six, half, xlat int64
	for e := range m.table.entries() {
		word := e.word()
		if word&WordStateMask == 0 {
			continue
		}
		flows++
		if e.id.Family == 6 {
			six++
		}
		if halfOpen(stateOf(word)) {
			half++
		}
		if outer, ok := e.outer(); isFlow(word) && ok {
			xlat++
			k, own := keyOf(&outer), e.key()
			at, there := m.table.find(&k)
			if !there || !isAlias(at.word()) {
				m.t.Fatalf("%+v has no alias", viewOf(&e, word))
			}
			if a := at.alias(); !sameKey(&a.target, &own) {
				m.t.Fatalf("the alias of %+v is another's", viewOf(&e, word))
			}
		}
		if !isAlias(word) {
			continue
		}
		aliases++
		if a := e.alias(); a.ports != natNoPorts && !want.take(a.ports, a.port) {
			m.t.Fatalf("port %d of element %d is two flows'", a.port, a.ports)
		}
		k := e.key()
		if _, ok := m.table.followKey(&e, &k); !ok {
			m.t.Fatalf("an alias without its flow: %+v", e.alias())
		}
	}
	s := m.table.State()
	if s.Flows != flows || s.Aliases != aliases || s.Flows6 != six || s.HalfOpen != half || xlat != aliases {
		m.t.Fatalf("%d entries, %d aliases of %d translated flows, %d of IPv6, %d half-open, and %+v", flows, aliases, xlat, six, half, s)
	}
	if held := int64(m.table.Counters.Created) - int64(m.table.Counters.Evicted) - int64(m.ended); held != flows-aliases {
		m.t.Fatalf("%+v less %d ended are %d flows, and %d are there", m.table.Counters, m.ended, held, flows-aliases)
	}
	for i := range want {
		if want[i] != m.ports[i] {
			m.t.Fatalf("element %d is not as the aliases say", i)
		}
	}
}

// Nothing that the packet path asks of aliases and ports allocates.
func TestAliasesAllocateNothing(t *testing.T) {
	table := scanTable(t)
	ports := natPorts(make([]bpf.XDPNatBitmap, natClasses*natSlices))
	table.SetNATPorts(1, ports)
	for _, family := range []uint8{4, 6} {
		original := randomTuple(rand.New(rand.NewPCG(1, uint64(family))), family)
		original.Proto = packet.ProtoTCP
		outer := original
		outer.Src[1] ^= 1
		k := keyOf(&original)
		if n := testing.AllocsPerRun(100, func() {
			element, _ := table.natElement(0, 0, &outer)
			p, _ := ports.next(element, 70)
			ports.take(element, p)
			outer.SrcPort = p
			a := aliasOpening{outer: &outer, target: &k, ports: element}
			if table.createAlias(&a) != aliasMade {
				t.Fatal("no alias")
			}
			o := opening{state: bpf.XDPFlowStateFLOW_TIME_WAIT, outer: &outer, flags: hiOpened(k.sender)}
			e, _, ok := table.create(&k, &o)
			own := keyOf(&outer)
			at, _ := table.find(&own)
			_, followed := table.follow(at, &outer)
			if _, again := table.reopen(&e, &k, &o); !ok || !followed || !again {
				t.Fatal("no flow")
			}
			table.dropAlias(&e)
			e.core.Word = 0
			table.counted(family, bpf.XDPFlowStateFLOW_TIME_WAIT, -1)
		}); n != 0 {
			t.Errorf("IPv%d: %v allocations", family, n)
		}
	}
	if *table.State() != (bpf.XDPGatewayState{}) {
		t.Errorf("left: %+v", table.State())
	}
}

// Translated says of every translated flow, in the groups and beside them, by which rules it is.
func TestTranslatedNamesRules(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 4, Groups6: 1, FlowsMax: 200, HalfOpenMax: 200, OverflowMax: 200})
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range uint32(30) {
		original := randomTuple(rng, uint8(4+2*(i%2)))
		if i%3 == 0 {
			opened(table, original, bpf.XDPFlowStateFLOW_REPLIED, 1)
			continue
		}
		if result, ok := translated(table, original, randomOuter(rng, original), bpf.XDPFlowStateFLOW_REPLIED, 1, natNoPorts); result != aliasMade || !ok {
			t.Fatalf("flow %d is not made: %v", i, result)
		}
	}
	n := 0
	table.Translated(func(source, destination uint32, _, _ bool) {
		n++
		if source != 11 || destination != 12 {
			t.Errorf("a flow is translated by %d and %d", source, destination)
		}
	})
	if n != 20 || len(table.overflow6) == 0 {
		t.Errorf("%d flows are translated, %d of IPv6 stand beside the groups", n, len(table.overflow6))
	}
}
