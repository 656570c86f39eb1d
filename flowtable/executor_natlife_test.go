package flowtable

import (
	"math/rand/v2"
	"net"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

// Whatever comes together - mappings, limits, forwarded ports, full tables, other policies, ends by age and by
// force - what is counted and taken is what there is, and nothing of it is left behind.
func TestTranslationsEndWhole(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := natRig(t)
		table := r.Table()
		table.cfg.FlowsMax, table.cfg.HalfOpenMax = 50+rng.Int64N(400), 20+rng.Int64N(300)
		r.SetNAT(randomRules(t, rng))
		timeouts := UniformTimeouts(Tick(30 * second))
		inside, ports := []net.IP{client4, neighbour, inner4, client6, inner6}, []uint16{1026}
		for step := range 3000 {
			in := inside[rng.IntN(len(inside))]
			out, own := []net.IP{server4, stranger4}[rng.IntN(2)], outer4
			if in.To4() == nil {
				out, own = []net.IP{server6, stranger6}[rng.IntN(2)], outer6
			}
			sport, dport, to := uint16(1024+rng.IntN(200)), uint16(50+rng.IntN(3)), ports[rng.IntN(len(ports))]
			switch k := rng.IntN(400); {
			case k < 160:
				ports = append(ports, max(1024, r.send(lanIf, rightFrom(t, lanIf, in, sport, out, dport)).Outer.SrcPort))
			case k < 240:
				res := r.send(lanIf, right(side{lanIf, in, out}.tcp(t, sport, dport, seg{flags: syn, seq: 1})))
				r.send(wanIf, right(side{wanIf, out, own}.tcp(t, dport, res.Outer.SrcPort, seg{flags: rst | ack, ack: 2})))
			case k < 270:
				r.send(lanIf, right(side{lanIf, in, out}.echo(t, true, sport)))
			case k < 370:
				r.send(wanIf, rightFrom(t, wanIf, out, dport, own, to))
			case k < 380:
				r.send(lanIf, rightFrom(t, lanIf, in, sport, own, to))
			case k < 396:
				r.now += rng.Uint64N(20) * second
				table.Scan(Tick(r.now), &timeouts, func() {}, func(*Flow) {})
			case k < 398:
				table.Kill(func(*Flow) bool { return rng.IntN(10) == 0 }, func() {}, func(*Flow) {})
			default:
				r.SetNAT(randomRules(t, rng))
			}
			if step%100 == 0 && !r.whole() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
		for range 2 { // flows, then what they kept alive
			r.now += 1000 * second
			r.allOver()
		}
		if s := table.State(); !r.whole() || s.Flows != 0 {
			t.Errorf("seed %d: left are %+v", seed, s)
		}
		for i, free := range r.cfg.NAT.NewBitmaps() {
			if table.natPorts[i] != free {
				t.Errorf("seed %d: element %d has other ports free than its rule", seed, i)
			}
		}
	}
}

// randomRules masquerade with and without mappings and limits, and may forward a port of the same address.
func randomRules(t *testing.T, rng *rand.Rand) *NAT {
	var rows []natRow
	maps, filter, last := rng.IntN(3) > 0, []uint8{0, natFilterAddress, natFilterAny}[rng.IntN(3)], []uint16{65535, 1100, 1030}[rng.IntN(3)]
	for _, family := range []uint8{4, 4, 6} {
		row := masquerade(family, zoneLAN, zoneWAN, 1024, last)
		if maps {
			row.rule.Flags = natMapping | filter
		}
		if len(rows) == 0 {
			row.when.Src = only(client4)
		}
		rows = append(rows, limitedTo([]uint32{0, 3, 20, 60}[rng.IntN(4)], row))
	}
	if rng.IntN(2) == 0 {
		rows = append(rows, forward(outer4, 17, 1026, natHairpin, natServer(inner4, 0)))
	}
	return buildNAT(t, rows...)
}

// whole reports whether counts are those of what there is, each translated flow and mapping has its alias, and
// each alias its own.
func (r *rig) whole() bool {
	r.t.Helper()
	table := r.Table()
	var is bpf.XDPGatewayState
	counts := make(map[uint32]uint64) // by place
	for e := range table.entries() {
		word := e.word()
		if word&WordStateMask == 0 {
			continue
		}
		is.Flows++
		if e.id.Family == 6 {
			is.Flows6++
		}
		if halfOpen(stateOf(word)) {
			is.HalfOpen++
		}
		k := e.key()
		if !isAlias(word) {
			if outer, ok := e.outer(); ok {
				if f, ok := table.Lookup(outer); !ok || f.Tuple != e.tuple(e.opener()) {
					r.t.Errorf("%v %+v has no alias", stateOf(word), outer)
				}
			}
			continue
		}
		is.Aliases++
		a := e.alias()
		f, ok := table.followKey(&e, &k)
		switch {
		case !ok:
			r.t.Errorf("alias %+v has no flow", a)
		case isMapping(f.word()) && a.tally != 0:
			r.t.Errorf("mapping %+v counts for its source", a)
		case a.tally != 0:
			counts[a.tally-1]++
			if source := f.tuple(f.opener()).Src; *table.tallyWord(a.tally - 1)&^tallyCount != table.tallyHash(a.source, tallySource(&source))&^tallyCount {
				r.t.Errorf("%+v counts for another source", a)
			}
		}
	}
	sum := uint64(0)
	for place, n := range counts {
		if sum += n; *table.tallyWord(place)&tallyCount != n {
			r.t.Errorf("place %d has %d flows and counts %d", place, n, *table.tallyWord(place)&tallyCount)
		}
	}
	s := table.State()
	if s.Flows != is.Flows || s.Flows6 != is.Flows6 || s.HalfOpen != is.HalfOpen || s.Aliases != is.Aliases || table.counted64() != sum {
		r.t.Errorf("counted are %+v and %d for sources, there are %+v and %d", s, table.counted64(), is, sum)
	}
	return !r.t.Failed()
}
