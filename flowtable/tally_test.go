package flowtable

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

const sourceLimit = bpf.XDPReasonREASON_NAT_SOURCE_LIMIT

// limited is a rule that masquerades, with a limit.
func limitedTo(limit uint32, row natRow) natRow {
	row.rule.SourceLimit = limit
	return row
}

// counted is what all sources have together.
func (t *Table) counted64() (sum uint64) {
	for i := range t.tallies {
		for _, w := range t.tallies[i].Word {
			sum += w & tallyCount
		}
	}
	return sum
}

// allOver frees every flow of the rig.
func (r *rig) allOver() {
	timeouts := UniformTimeouts(1)
	r.Table().Scan(Tick(r.now)+1000, &timeouts, func() {}, func(*Flow) {})
}

// A source has as many flows as its rule says and no more; others have theirs, and what ends leaves room. Hosts of one
// /64 are one.
func TestSourceLimit(t *testing.T) {
	for _, row := range []struct {
		name                    string
		family                  uint8
		host, sameHost, another side
		outer                   net.IP
	}{
		{"IPv4", 4, fromClient4, fromClient4, side{lanIf, neighbour, server4}, outer4},
		{"IPv6", 6, fromClient6, side{lanIf, net.ParseIP("fd10:1::ffff:9"), server6}, side{lanIf, net.ParseIP("fd10:1:0:1::2"), server6}, outer6},
	} {
		t.Run(row.name, func(t *testing.T) {
			const limit = 4
			r := natRig(t, limitedTo(limit, masquerade(row.family, zoneLAN, zoneWAN, 1024, 65535)))
			r.cfg.NATAddresses[bpf.XDPNatDevice{Port: 2, Vlan: swap16(100)}] = r.cfg.NATAddresses[bpf.XDPNatDevice{Port: 2}]
			frames := [][]byte{
				row.host.udp(t, 5000, 53, 9), row.host.tcp(t, 5000, 443, seg{flags: syn, seq: 1}), row.host.echo(t, true, 9), row.sameHost.udp(t, 5001, 53, 9),
			}
			for _, f := range frames {
				r.want(lanIf, right(f), Forward, reasonNone)
			}
			late := right(row.host.udp(t, 5002, 53, 9))
			res := r.want(lanIf, late, Drop, sourceLimit)
			r.want(lanIf, right(row.sameHost.raw(t, 47, 0, 0, 8, 0)), Drop, sourceLimit)
			if res.SourceRule != 1 || res.Rule != ruleAll {
				t.Errorf("the refusal names rules %d and %d", res.Rule, res.SourceRule)
			}
			r.want(lanIf, right(row.another.udp(t, 5002, 53, 9)), Forward, reasonNone)
			for _, f := range frames { // they go on
				r.want(lanIf, right(f), Forward, reasonNone)
			}
			if n := r.Counters.NAT[1]; n.Flows != limit+1 || n.Limited != 2 || r.Table().State().Aliases != limit+1 || r.Table().counted64() != limit+1 {
				t.Errorf("counted %+v, %d flows by source, %d aliases", n, r.Table().counted64(), r.Table().State().Aliases)
			}
			r.allOver()
			if n := r.Table().counted64(); n != 0 {
				t.Errorf("%d flows count when all have ended", n)
			}
			r.want(lanIf, late, Forward, reasonNone)
		})
	}
}

// A connection that begins anew at the limit is no more than the one that it ends.
func TestSourceLimitReopened(t *testing.T) {
	r := natRig(t, limitedTo(2, masquerade(4, zoneLAN, zoneWAN, 1024, 65535)))
	open := func(port uint16) []byte { return right(fromClient4.tcp(t, port, 443, seg{flags: syn, seq: 1000})) }
	for _, port := range []uint16{5000, 5001} {
		r.want(lanIf, open(port), Forward, reasonNone)
	}
	r.want(wanIf, right(side{wanIf, server4, outer4}.tcp(t, 443, 5000, seg{flags: rst | ack, ack: 1001})), Forward, reasonNone)
	r.want(lanIf, open(5002), Drop, sourceLimit)
	for range 3 {
		res := r.want(lanIf, open(5000), Forward, reasonNone)
		r.want(wanIf, right(side{wanIf, server4, outer4}.tcp(t, 443, res.Outer.SrcPort, seg{flags: rst | ack, ack: 1001})), Forward, reasonNone)
		if n := r.Table().counted64(); n != 2 {
			t.Fatalf("%d flows count, want 2", n)
		}
	}
	r.want(lanIf, open(5002), Drop, sourceLimit)
}

// An attempt that comes to nothing leaves no count: no port, no place, another's translation.
func TestSourceLimitOfVainAttempts(t *testing.T) {
	r := natRig(t, limitedTo(100, masquerade(4, zoneLAN, zoneWAN, 20000, 20002)))
	for port := range uint16(12) {
		r.send(lanIf, right(fromClient4.udp(t, 5000+port, 53, 9)))
	}
	if n, refused := r.Table().counted64(), r.Counters.NAT[1].Exhausted; n != 3 || refused != 9 {
		t.Errorf("%d flows count by three ports, %d were refused", n, refused)
	}
	r.Table().cfg.FlowsMax, r.Table().cfg.HalfOpenMax = 6, 3
	gre := side{lanIf, neighbour, server4}.raw(t, 47, 0, 0, 8, 0)
	r.want(lanIf, right(gre), Drop, bpf.XDPReasonREASON_FLOW_TABLE_FULL)
	r.Table().cfg.FlowsMax, r.Table().cfg.HalfOpenMax = 4000, 4000
	r.want(lanIf, right(gre), Forward, reasonNone)
	r.want(lanIf, right(side{lanIf, client4, server4}.raw(t, 47, 0, 0, 8, 0)), Drop, natConflict)
	if n := r.Table().counted64(); n != 4 {
		t.Errorf("%d flows count, of 4", n)
	}
}

// A rule that gets a limit counts the flows that it has; those beyond the limit stay. Taking the limit away and setting
// another one loses none.
func TestSourceLimitComesLater(t *testing.T) {
	t.Run("ports of their own", func(t *testing.T) { sourceLimitComesLater(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535)) })
	t.Run("mappings", func(t *testing.T) { sourceLimitComesLater(t, mapping(4, 0)) })
}

func sourceLimitComesLater(t *testing.T, row natRow) {
	r := natRig(t, row)
	next := uint16(5000)
	open := func(v Outcome, reason bpf.XDPReason) {
		t.Helper()
		r.want(lanIf, right(fromClient4.udp(t, next, 53, 9)), v, reason)
		next++
	}
	for range 6 {
		open(Forward, reasonNone)
	}
	if r.Table().tallies != nil {
		t.Error("without a limit there is memory for counts")
	}
	set := func(limit uint32) { r.SetNAT(buildNAT(t, limitedTo(limit, row))) }
	set(4)
	open(Drop, sourceLimit)
	set(7)
	open(Forward, reasonNone)
	open(Drop, sourceLimit)
	set(0)
	open(Forward, reasonNone) // it counts nowhere
	if n := r.Table().counted64(); n != 7 {
		t.Errorf("%d flows count, want 7", n)
	}
	set(9)
	open(Forward, reasonNone)
	open(Drop, sourceLimit)
	if n := r.Table().counted64(); n != 9 {
		t.Errorf("%d flows count, want 9", n)
	}
	r.allOver()
	if n := r.Table().counted64(); n != 0 {
		t.Errorf("%d flows count when all have ended", n)
	}
}

// tallyTable is a table that only counts.
func tallyTable(t *testing.T) *Table {
	t.Helper()
	table, err := NewTable(TableConfig{Groups4: 2, Groups6: 2, Seed: 42, FlowsMax: 8, HalfOpenMax: 8})
	if err != nil {
		t.Fatal(err)
	}
	table.SetTallies(make([]bpf.XDPNatTallies, tallyGroups))
	return table
}

// Whoever counts at the same time, no source has more than its limit, and everything that is given back is free.
func TestTalliesAtTheSameTime(t *testing.T) {
	const limit, sources = 10, 3
	table := tallyTable(t)
	var has [sources]atomic.Int32
	var refused atomic.Int32
	var wg sync.WaitGroup
	for worker := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(worker, 1))
			var mine [sources][]uint32
			for range 20_000 {
				s := rng.IntN(sources)
				if n := len(mine[s]); n > 0 && rng.IntN(2) == 0 {
					has[s].Add(-1)
					table.giveTally(mine[s][n-1])
					mine[s] = mine[s][:n-1]
					continue
				}
				tally, ok := table.takeTally(7, limit, uint64(s))
				if !ok {
					refused.Add(1)
					continue
				}
				if n := has[s].Add(1); n > limit {
					t.Errorf("source %d has %d flows", s, n)
					return
				}
				mine[s] = append(mine[s], tally)
			}
			for s := range mine {
				for _, tally := range mine[s] {
					has[s].Add(-1)
					table.giveTally(tally)
				}
			}
		})
	}
	wg.Wait()
	if n := table.counted64(); n != 0 || refused.Load() == 0 {
		t.Errorf("%d flows still count; %d were refused", n, refused.Load())
	}
}

// Tens of thousands of sources each have a word of their own, and where there is no place for one more it is refused.
func TestManyTallies(t *testing.T) {
	const many = 80_000
	table := tallyTable(t)
	refused := 0
	for s := range uint64(many) {
		for range 2 {
			if _, ok := table.takeTally(1, 2, s<<16); !ok {
				refused++
			}
		}
	}
	if n := table.counted64(); refused > 0 || n != 2*many {
		t.Errorf("%d of %d flows count, %d were refused", n, 2*many, refused)
	}
	if _, ok := table.takeTally(1, 2, 0); ok {
		t.Error("a source among many has more than its limit")
	}
	if _, ok := table.takeTally(2, 2, 0); !ok {
		t.Error("it has none by another rule")
	}
	for i := range table.tallies {
		for w := range table.tallies[i].Word {
			if word := &table.tallies[i].Word[w]; *word&tallyCount == 0 {
				*word = 1
			}
		}
	}
	if _, ok := table.takeTally(3, 2, 0); ok {
		t.Error("a source without a place was counted")
	}
}

// What two words say of one source is added up.
func TestTallyTwice(t *testing.T) {
	table := tallyTable(t)
	first, _ := table.takeTally(1, 10, 77)
	*table.tallyWord((first - 1) ^ 1) = *table.tallyWord(first - 1) + 7
	if _, ok := table.takeTally(1, 10, 77); !ok {
		t.Error("the tenth flow of ten was refused")
	}
	if _, ok := table.takeTally(1, 10, 77); ok {
		t.Error("the eleventh flow of ten was not")
	}
}

// Counts that no flow stands for are taken off when they were so twice, and those that are missing are added.
func TestTallyCheck(t *testing.T) {
	r := natRig(t, limitedTo(5, masquerade(4, zoneLAN, zoneWAN, 1024, 65535)))
	r.want(lanIf, right(fromClient4.udp(t, 5000, 53, 9)), Forward, reasonNone)
	table := r.Table()
	var own, stray uint32
	table.counting(nil, func(_ *entry, a *alias) { own = a.tally })
	for range 3 {
		stray, _ = table.takeTally(1, 100, 4711)
	}
	var c TallyCheck
	if n := c.Run(table, nil); n != 0 || table.counted64() != 4 {
		t.Errorf("the first look corrected %d", n)
	}
	table.giveTally(stray) // somebody is at it
	if n := c.Run(table, nil); n != 0 {
		t.Errorf("the second look corrected %d, though it had changed", n)
	}
	*table.tallyWord(own - 1) -= 1
	if n := c.Run(table, nil); n != 1 || table.counted64() != 0 {
		t.Errorf("the third look corrected %d, %d flows count", n, table.counted64())
	}
	if n := c.Run(table, nil); n != 1 || *table.tallyWord(own - 1)&tallyCount != 1 || table.counted64() != 1 {
		t.Errorf("the fourth look corrected %d, %d flows count", n, table.counted64())
	}
	for range 4 {
		if n := c.Run(table, nil); n != 0 {
			t.Errorf("%d right counts were corrected", n)
		}
	}
}

// Who has most comes first, by rule and source.
func TestSources(t *testing.T) {
	r := natRig(t, limitedTo(5, masquerade(4, zoneLAN, zoneWAN, 1024, 65535)), limitedTo(9, masquerade(6, zoneLAN, zoneWAN, 1024, 65535)))
	r.cfg.NATAddresses[bpf.XDPNatDevice{Port: 2, Vlan: swap16(100)}] = r.cfg.NATAddresses[bpf.XDPNatDevice{Port: 2}]
	for port := range uint16(3) {
		r.want(lanIf, right(fromClient6.udp(t, port+1, 53, 9)), Forward, reasonNone)
		if port > 0 {
			r.want(lanIf, right(fromClient4.udp(t, port, 53, 9)), Forward, reasonNone)
		}
	}
	r.want(lanIf, right(side{lanIf, neighbour, server4}.udp(t, 1, 53, 9)), Forward, reasonNone)
	near, _ := netip.AddrFromSlice(neighbour)
	want := []Source{
		{2, netip.MustParsePrefix("fd10:1::/64"), 3}, {1, netip.MustParsePrefix("10.1.0.2/32"), 2}, {1, netip.PrefixFrom(near.Unmap(), 32), 1},
	}
	if got := r.Table().Sources(nil); !reflect.DeepEqual(got, want) {
		t.Errorf("sources are %+v, want %+v", got, want)
	}
}
