package gateway

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

const routesConfig = `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan}, wan: {device: wan}, alt: {device: alt}}
policy: policy.yaml
management: none
on_stop: open
control: {socket: softdpu.sock, group: softdpu-nobody}
events: {file: eve.json}
metrics: none
flows: {max: 10000}
`

const routesPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan, alt]}
rules:
  - {name: stream, from: {zone: lan}, to: {zone: wan}, service: [udp/7, tcp/5001], action: allow}
`

// A oneWay is a stream of packets on one flow, to which nothing is answered.
type oneWay struct {
	sent, arrived atomic.Uint64
	last, gap     atomic.Int64 // when one arrived last, in ns, and the longest time without any
}

// startOneWay sends to an address of the server every 2 ms.
func startOneWay(t *testing.T, client, server *testenv.Namespace, address string) *oneWay {
	t.Helper()
	w := &oneWay{}
	far, err := server.ListenPacket(t.Context(), "udp4", address)
	if err != nil {
		t.Fatal(err)
	}
	near, err := client.Dial(t.Context(), "udp4", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); near.Close(); far.Close(); wg.Wait() })
	wg.Go(func() {
		b := make([]byte, 64)
		for {
			if _, _, err := far.ReadFrom(b); err != nil {
				return
			}
			now := time.Now().UnixNano()
			if last := w.last.Swap(now); last != 0 {
				w.gap.Store(max(w.gap.Load(), now-last))
			}
			w.arrived.Add(1)
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := near.Write([]byte("one way")); err == nil {
				w.sent.Add(1)
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	return w
}

// follows waits until packets arrive again, some in a row, and wants that within the limit.
func (w *oneWay) follows(t *testing.T, what string, limit time.Duration) {
	t.Helper()
	start, n := time.Now(), w.arrived.Load()
	for end := start.Add(limit + 20*time.Second); w.arrived.Load() < n+20; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: nothing arrives after %s", what, time.Since(start))
		}
	}
	if took := time.Since(start); took > testenv.Patience(limit) {
		t.Errorf("%s: traffic followed after %s, more than %s", what, took, limit)
	} else {
		t.Logf("%s: traffic followed after %s", what, took.Round(time.Millisecond))
	}
}

// Under transfers, with the daemon alive and with it killed: the route moves to another port and back, the
// next hop changes its MAC and says nothing, the port goes down and comes back. Traffic follows within two
// seconds, after a silent MAC change within ten. And nothing is forgotten of neighbours whose packets the
// kernel does not see.
func TestLabRoutes(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	for _, killed := range []bool{false, true} {
		t.Run(map[bool]string{false: "alive", true: "killed"}[killed], func(t *testing.T) {
			l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-way"})
			client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
			n, far := gw.Name(), server.Name()
			// Another way to the server, by which it never sends: what changes there it does not tell.
			ip(t, fmt.Sprintf("link add alt netns %s type veth peer name s1 netns %s", n, far))
			for _, args := range []string{
				"-n " + n + " addr add 10.10.4.1/24 dev alt", "-n " + n + " link set alt up",
				"-n " + far + " addr add 10.10.4.2/24 dev s1", "-n " + far + " link set s1 up",
				"-n " + far + " addr add 10.99.0.1/32 dev lo",
				"-n " + n + " route add 10.99.0.0/24 via 10.10.2.2",
			} {
				ip(t, args)
			}
			if out, err := server.Command(t.Context(), "ethtool", "-K", "s1", "gro", "on").CombinedOutput(); err != nil {
				t.Fatalf("ethtool: %v\n%s", err, out)
			}
			p := startProcess(t, gw, binary, write(t, routesConfig, routesPolicy))
			p.ready(t)
			t.Cleanup(func() { // gives the host back
				if killed {
					p = startProcess(t, gw, binary, p.config)
					p.ready(t)
				}
				p.stop(t)
			})
			routed := startOneWay(t, client, server, "10.99.0.1:7")
			direct := startOneWay(t, client, server, "10.10.2.2:7")
			routed.follows(t, "start", 3*time.Second)
			direct.follows(t, "start", 3*time.Second)
			exchanges := transfer(t, client, server)
			if killed {
				p.kill()
			}
			// What came by the new way, of one stream: TCP may be there sooner.
			newWay, err := server.StartCapture("s1", testenv.CaptureOptions{Keep: 1, Snaplen: 64, Match: func(frame []byte) bool { return bytes.Contains(frame, []byte("one way")) }})
			if err != nil {
				t.Fatal(err)
			}
			defer newWay.Stop()
			for round := range sized(1, 10) {
				before := newWay.Count()
				ip(t, "-n "+n+" route replace 10.99.0.0/24 via 10.10.4.2")
				routed.follows(t, "route moves", 2*time.Second)
				testenv.Eventually(t, 2*time.Second, func() error {
					if got := newWay.Count() - before; got < 20 {
						return fmt.Errorf("%d packets came by the new route", got)
					}
					return nil
				})
				if killed || long() {
					ip(t, fmt.Sprintf("-n %s link set s1 address 02:00:00:00:07:%02x", far, round))
					time.Sleep(50 * time.Millisecond) // what was under way
					routed.follows(t, "MAC changes", 10*time.Second)
				}
				if long() { // TCP tries again ever less often: let it come back before the next round
					n := exchanges.Load()
					testenv.Eventually(t, 40*time.Second, func() error {
						if exchanges.Load() == n {
							return fmt.Errorf("the transfer does not go on")
						}
						return nil
					})
				}
				ip(t, "-n "+n+" route replace 10.99.0.0/24 via 10.10.2.2")
				routed.follows(t, "route moves back", 2*time.Second)

				ip(t, "-n "+n+" link set wan down")
				time.Sleep(300 * time.Millisecond)
				ip(t, "-n "+n+" link set wan up")
				ip(t, "-n "+n+" route replace 10.99.0.0/24 via 10.10.2.2")
				direct.follows(t, "port comes back", 2*time.Second)
				routed.follows(t, "port comes back", 2*time.Second)
			}
			// Nothing happens: nothing is lost, nobody is forgotten.
			time.Sleep(300 * time.Millisecond)
			first, gaps := [2]uint64{routed.sent.Load() - routed.arrived.Load(), direct.sent.Load() - direct.arrived.Load()}, [2]*oneWay{routed, direct}
			for _, w := range gaps {
				w.gap.Store(0)
			}
			time.Sleep(sized(time.Second, 10*time.Minute))
			for i, w := range gaps {
				testenv.Eventually(t, 5*time.Second, func() error {
					if lost := int64(w.sent.Load()-w.arrived.Load()) - int64(first[i]); lost > 5 { // which are under way
						return fmt.Errorf("stream %d lost %d packets while nothing happened; the longest gap was %s", i, lost, time.Duration(w.gap.Load()))
					}
					return nil
				})
			}
		})
	}
}

// transfer keeps a TCP connection busy until the test's end: nothing may break it. It counts what went
// there and back.
func transfer(t *testing.T, client, server *testenv.Namespace) (exchanges *atomic.Int64) {
	t.Helper()
	echo, err := server.ServeEcho(t.Context(), netip.MustParseAddrPort("10.99.0.1:5001"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(limited(t, 10*time.Second), "tcp", echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	exchanges = new(atomic.Int64)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		random := rand.New(rand.NewPCG(5, 5))
		for ctx.Err() == nil {
			if err := swap(c, random, time.Minute); err != nil && ctx.Err() == nil {
				t.Errorf("the transfer broke: %v", err)
				return
			}
			exchanges.Add(1)
			time.Sleep(time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
		wg.Wait()
		echo.Close()
	})
	return exchanges
}
