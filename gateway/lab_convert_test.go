package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// transfersOn has connections of both families send and check without pause until stop is called, which
// returns how many exchanges there were of each.
func transfersOn(t *testing.T, l *testenv.Lab, port uint16, count int) (stop func() []int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var conns []net.Conn
	for _, a := range serverAddresses(l) {
		echo := must(l.Must(t, "server").ServeEcho(t.Context(), netip.AddrPortFrom(a, port)))
		t.Cleanup(func() { echo.Close() })
		for range count {
			conns = append(conns, must(l.Must(t, "client").Dial(limited(t, 10*time.Second), "tcp", echo.Addr().String())))
		}
	}
	done := make([]int, len(conns))
	for i, c := range conns {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for ctx.Err() == nil {
				if err := swap(c, random, 10*time.Second); err != nil {
					t.Errorf("connection %d, exchange %d: %v", i, done[i], err)
					return
				}
				done[i]++
			}
		})
	}
	stop = sync.OnceValue(func() []int {
		cancel()
		wg.Wait()
		for _, c := range conns {
			c.Close()
		}
		return done
	})
	t.Cleanup(func() { stop() })
	return stop
}

// Transfers and a stream go on while flows.max changes from start to start, larger and smaller, and while
// the starts are killed at any moment of it: the flows move with all that they have counted. One that
// begins with tables of another layout picks the transfers up, in a grace that outlives it. Each start
// says which: in its log, its status and its events.
func TestLabConvert(t *testing.T) {
	binary := buildSoftdpu(t, thisVersion)
	other := buildSoftdpu(t, otherLayout)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-cv"})
	gw := l.Must(t, testenv.Gateway)
	policy := lifePolicy + "  - {name: talk, from: {zone: lan}, to: {zone: wan}, service: tcp/17, action: allow}\n"
	config := func(max int) string {
		return strings.Replace(labRouted, "on_stop: open", fmt.Sprintf("on_stop: keep\nupgrade_grace: 1m\nflows: {max: %d}", max), 1)
	}
	// The smallest has room for all that the stream opens while a new flow of UDP waits for an answer, which none gets.
	c := write(t, config(80_000), policy)
	before := settings(t, gw)
	resize := func(max int) {
		t.Helper()
		if err := os.WriteFile(c.File, []byte(config(max)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := startStream(t, l)
	p := startProcess(t, gw, binary, c)
	begun := time.Now()
	p.ready(t)
	starting := time.Since(begun)
	first := s.sent.Load() + 2
	const conns = 20
	stop := transfersOn(t, l, 17, conns/2)
	s.more(t, 50)
	if got := must(p.Status(t.Context())).Start; got.How != startFirst || got.PickUpUntil != nil {
		t.Errorf("the first start is %+v", got)
	}

	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	var talked, streamed uint64
	counts := func(when string) {
		t.Helper()
		g := &testGateway{Client: p.Client}
		talk, stream := g.rule(t, "talk"), g.rule(t, "stream")
		if talk.Packets < talked || stream.Packets < streamed || talk.Flows != conns {
			t.Errorf("%s: talk counted %d after %d on %d flows, stream %d after %d", when, talk.Packets, talked, talk.Flows, stream.Packets, streamed)
		}
		talked, streamed = talk.Packets, stream.Packets
		// Flows come meanwhile, and none goes.
		table := must(p.Status(t.Context())).Table
		flows := int64(len(must(p.Flows(t.Context(), "", 0))))
		if after := must(p.Status(t.Context())).Table; flows < table.Flows-20 || flows > after.Flows+20 || after.HalfOpen < 0 || after.HalfOpen > after.Flows {
			t.Errorf("%s: %d flows are listed, between %+v and %+v", when, flows, table, after)
		}
	}
	counts("at first")
	for i, max := range []int{200_000, 60_000, 100_000}[:sized(2, 3)] {
		p.kill()
		resize(max)
		early := startProcess(t, gw, binary, c)
		time.Sleep(time.Duration(random.Int64N(int64(2 * starting))))
		early.kill()
		p = startProcess(t, gw, binary, c)
		p.ready(t)
		start, log := must(p.Status(t.Context())).Start, early.log.String()+p.log.String()
		if start.How == startConversion && (start.Carried < conns || start.PickUpUntil == nil) || !strings.Contains(log, "its flows are in tables of another size now") {
			// The one that was killed may have done it, without a word.
			if start.How != startTakeOver {
				t.Errorf("flows.max %d: began with %+v\n%s", max, start, log)
			}
		}
		s.more(t, 50)
		counts(fmt.Sprintf("flows.max %d", max))
		last := s.sent.Load()
		if missing := s.missing(first, last); len(missing) > 0 {
			t.Errorf("size %d: of %d..%d missing: %v; %+v", i, first, last, missing, must(p.Drops(t.Context(), false)))
		}
	}

	p.kill()
	for i := range 2 { // the second takes over within the grace of the first
		p = startProcess(t, gw, other, c)
		p.ready(t)
		start := must(p.Status(t.Context())).Start
		want := []string{startAfresh, startTakeOver}[i]
		if start.How != want || start.PickUpUntil == nil || time.Until(*start.PickUpUntil) > time.Minute || (i == 0) != strings.Contains(start.Why, `layout "2"`) {
			t.Errorf("with another layout: began with %+v\n%s", start, p.log)
		}
		if !strings.Contains(p.log.String(), "TCP connections that are under way are picked up") {
			t.Errorf("the log says nothing of the grace:\n%s", p.log)
		}
		if i == 0 {
			p.kill()
		}
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := len(must(p.Flows(t.Context(), "rule talk", 0))); n != conns {
			return fmt.Errorf("%d of %d connections were picked up", n, conns)
		}
		return nil
	})
	for i, n := range stop() {
		if n < 10 {
			t.Errorf("connection %d had %d exchanges", i, n)
		}
	}
	last := s.sent.Load()
	if missing := s.missing(first, last); len(missing) > 0 {
		t.Errorf("of %d..%d missing: %v; %+v", first, last, missing, must(p.Drops(t.Context(), false)))
	}
	p.stop(t)
	s.stop()
	said := map[string]bool{}
	for _, e := range lines(t, c.Events.File) {
		if r := e["softdpu"].(map[string]any); r["event"] == "run-before" {
			said[r["by"].(string)] = true
			if why, _ := r["reason"].(string); (r["by"] == startAfresh) != strings.Contains(why, "layout") {
				t.Errorf("an event is %v", e)
			}
		}
	}
	if !said[startAfresh] || !said[startTakeOver] {
		t.Errorf("events tell of %v", said)
	}
	if out, err := gw.Command(t.Context(), binary, "detach").CombinedOutput(); err != nil {
		t.Errorf("detach: %v: %s", err, out)
	}
	asBefore(t, gw, before)
}
