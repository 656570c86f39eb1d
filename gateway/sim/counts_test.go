package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

// Both executors count exactly what the table holds, by family, half-open and beside the groups, and
// created less evicted and aged is that too, however flows come and go: created, refused, evicted,
// overflowed, reopened in the groups and beside them, aged.
func TestCountsAreExact(t *testing.T) {
	testenv.RequireRoot(t)
	cfg := Config{
		Policy: compile(t, `zones: {lan: {}, wan: {}}
rules: [{name: out, from: lan, to: wan, action: allow}]
`, firewall.CompileOptions{Ports: []string{"lan", "wan"}, OwnNamePorts: true}),
		FlowsMax: 16, HalfOpenShare: 0.5,
	}
	connections := crowded(t, cfg, 42)
	both := openBoth(t, cfg)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var (
		now      = 1_700_000_000 * second
		aged     [2]int
		besides  int // SYNs on connections that are over and beside the groups
		timeouts = flowtable.UniformTimeouts(flowtable.TimeoutTicks(30 * time.Second))
	)
	timeouts[flowtable.ClassTCP][bpf.XDPFlowStateFLOW_CLOSED] = flowtable.TimeoutTicks(2 * time.Minute)
	var c *connection
	from, to := 0, 0 // steps of it still to come
	for range 30_000 {
		now += rng.Uint64N(second / 4)
		if from == to {
			// Those in use are of one family for a while, and most get as far as to be confirmed.
			c = &connections[(2*rng.IntN(18)+int(now/(100*second)))%len(connections)]
			from, to = 0, len(c.frames)
			if rng.IntN(3) == 0 {
				from = rng.IntN(to)
				to = from + 1
			} else if len(c.frames) == 4 && rng.IntN(3) > 0 {
				to--
			}
		}
		step := from
		from++
		if f, ok := both[0].Table().Lookup(c.tuple); ok && f.ID.Overflow && f.State == bpf.XDPFlowStateFLOW_CLOSED && step == 0 {
			besides++
		}
		var results [2]Result
		for i, s := range both {
			results[i] = send(t, s, now, c.ports[step], c.frames[step])
		}
		if difference := differ(&results[0], &results[1]); difference != "" {
			t.Fatal(difference)
		}
		scan := rng.IntN(200) == 0
		var counters [2]bpf.XDPTableCounter
		for i, s := range both {
			if scan {
				aged[i] += ageNow(t, s, &timeouts)
			}
			counters[i] = checkCounts(t, s, aged[i])
		}
		if counters[0] != counters[1] || aged[0] != aged[1] {
			t.Fatalf("go counts %+v and %d aged, xdp %+v and %d", counters[0], aged[0], counters[1], aged[1])
		}
	}
	n := both[0].Table().Counters
	t.Logf("%+v, %d aged, %d SYNs on closed flows beside the groups", n, aged[0], besides)
	if n.Created == 0 || n.Refused == 0 || n.Evicted == 0 || n.Overflowed == 0 || n.Reopened == 0 || aged[0] == 0 || besides == 0 {
		t.Errorf("not all happened: %+v, %d aged, %d reopened beside the groups", n, aged[0], besides)
	}
}

// connection is the frames of one, and the ports by which they come.
type connection struct {
	tuple  flowtable.Tuple
	frames [][]byte
	ports  []string
}

// crowded returns connections, of both families in turn, whose flows all have the same two groups of
// their family's table to live in.
func crowded(t *testing.T, cfg Config, n int) (all []connection) {
	t.Helper()
	cfg.Engine = EngineGo
	s := open(t, cfg)
	atOnce := flowtable.UniformTimeouts(1)
	in := []string{"lan", "wan", "lan", "lan"}
	var other [2]uint32
	clock := uint64(0)
	for port := uint16(1024); len(all) < n; port++ {
		family := len(all) % 2
		client, server := "10.1.0.2", "192.0.2.1"
		if family == 1 {
			client, server = "2001:db8::2", "2001:db8:1::1"
		}
		c := connection{ports: in, frames: [][]byte{
			tcp(t, client, server, port, 443, "S", 1, 0), tcp(t, server, client, 443, port, "SA", 1, 2),
			tcp(t, client, server, port, 443, "A", 2, 2), tcp(t, client, server, port, 443, "RA", 2, 2),
		}}
		if port%4 == 0 {
			c = connection{ports: in[:2], frames: [][]byte{udp(t, client, server, port, 443, "x"), udp(t, server, client, 443, port, "y")}}
		}
		// An empty table shows the first group, one that holds a flow there the second.
		groups := [2]uint32{}
		for i := range groups {
			clock += second
			if i == 1 && len(all) > 1 {
				send(t, s, clock, "lan", all[family].frames[0])
			}
			send(t, s, clock, "lan", c.frames[0])
			for f := range s.Table().All() {
				if len(all) < 2 || f.Tuple != all[family].tuple {
					c.tuple, groups[i] = f.Tuple, f.ID.Group
				}
			}
			s.Table().Scan(flowtable.Tick(s.now)+1, &atOnce, func() {}, func(*flowtable.Flow) {})
		}
		switch {
		case groups[0] != 0:
		case len(all) < 2:
			all = append(all, c)
		case len(all) < 4:
			other[family] = groups[1]
			all = append(all, c)
		case groups[1] == other[family]:
			all = append(all, c)
		}
	}
	return all[2:] // the first two may have another second group
}

// ageNow scans the table by the time of the last packet.
func ageNow(t *testing.T, s *Sim, timeouts *flowtable.Timeouts) int {
	t.Helper()
	now := flowtable.Tick(s.now)
	n := s.Table().Scan(now, timeouts, func() {}, func(*flowtable.Flow) {})
	if e, ok := s.engine.(*xdpEngine); ok {
		more, err := e.plane.AgeOverflow(now, timeouts, func(*bpf.XDPFlow4) {}, func(*bpf.XDPFlow6) {})
		if err != nil {
			t.Fatal(err)
		}
		n += more
	}
	return n
}

// checkCounts compares what a table counts with what it lists, and returns what became of new flows.
func checkCounts(t *testing.T, s *Sim, aged int) bpf.XDPTableCounter {
	t.Helper()
	state := s.Table().State()
	got := [...]int64{state.Flows, state.Flows6, state.HalfOpen, state.Overflow4, state.Overflow6}
	var want [len(got)]int64
	count := func(family uint8, beside bool, state bpf.XDPFlowState) {
		want[0]++
		if family == 6 {
			want[1]++
		}
		if state <= bpf.XDPFlowStateFLOW_NEW {
			want[2]++
		}
		if beside {
			want[3+(family-4)/2]++
		}
	}
	for f := range s.Table().All() {
		count(f.Tuple.Family, f.ID.Overflow, f.State)
	}
	counters := s.Table().Counters
	if e, ok := s.engine.(*xdpEngine); ok {
		flows4, flows6, err := e.plane.Overflow()
		if err != nil {
			t.Fatal(err)
		}
		for i := range flows4 {
			count(4, true, bpf.XDPFlowState(flows4[i].Core.Word&flowtable.WordStateMask))
		}
		for i := range flows6 {
			count(6, true, bpf.XDPFlowState(flows6[i].Core.Word&flowtable.WordStateMask))
		}
		if counters, err = e.plane.TableCounters(); err != nil {
			t.Fatal(err)
		}
	}
	what := fmt.Sprintf("%s: %+v, %d aged", s.cfg.Engine, counters, aged)
	if got != want {
		t.Fatalf("flows, IPv6, half-open, overflow of each: counts %v, lists %v\n%s", got, want, what)
	}
	if held := int64(counters.Created) - int64(counters.Evicted) - int64(aged); held != state.Flows {
		t.Fatalf("created less evicted and aged is %d, the table holds %d\n%s", held, state.Flows, what)
	}
	return counters
}
