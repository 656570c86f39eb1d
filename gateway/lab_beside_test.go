package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// beside builds what Docker makes of a machine: two containers on a bridge, addresses of theirs translated
// on the way out by a device that is no port, one of their ports published there, and forwarding on.
func beside(t *testing.T, gw *testenv.Namespace, prefix string) (a, b, outside *testenv.Namespace) {
	t.Helper()
	for _, name := range []string{"a", "b", "out"} {
		ip(t, "netns add "+prefix+name)
		t.Cleanup(func() { ip(t, "netns del "+prefix+name) })
	}
	in := "-n " + gw.Name() + " "
	lines := []string{
		in + "link add docker0 type bridge", in + "link set docker0 up",
		in + "addr add 172.17.0.1/16 dev docker0", in + "addr add fd17::1/64 dev docker0 nodad",
	}
	for i, name := range []string{"a", "b"} {
		ns := "-n " + prefix + name + " "
		lines = append(lines,
			in+"link add v"+name+" type veth peer name eth0 netns "+prefix+name, in+"link set v"+name+" master docker0 up",
			ns+"link set lo up", ns+"link set eth0 up",
			ns+fmt.Sprintf("addr add 172.17.0.%d/16 dev eth0", 2+i), ns+fmt.Sprintf("addr add fd17::%d/64 dev eth0 nodad", 2+i),
			ns+"route add default via 172.17.0.1", ns+"route add default via fd17::1")
	}
	out := "-n " + prefix + "out "
	lines = append(lines,
		in+"link add uplink type veth peer name eth0 netns "+prefix+"out", in+"link set uplink up",
		in+"addr add 192.0.2.1/24 dev uplink", in+"addr add 2001:db8::1/64 dev uplink nodad",
		out+"link set lo up", out+"link set eth0 up", out+"addr add 192.0.2.2/24 dev eth0", out+"addr add 2001:db8::2/64 dev eth0 nodad",
		out+"route add fd17::/64 via 2001:db8::1")
	for _, line := range lines {
		ip(t, line)
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		sysctl(t, gw, name, "1")
	}
	cmd := gw.Command(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(`table ip docker {
	chain out { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/16 oifname != "docker0" masquerade; }
	chain in { type nat hook prerouting priority dstnat; iifname "uplink" meta l4proto { tcp, udp } th dport 8080 dnat to 172.17.0.2:7; }
}`)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, text)
	}
	return must(testenv.OpenNamespace(prefix + "a")), must(testenv.OpenNamespace(prefix + "b")), must(testenv.OpenNamespace(prefix + "out"))
}

// What the machine forwards, bridges and translates between devices that are no ports goes on without the
// loss of a packet while a gateway starts, reloads, is killed and stops as each on_stop says. By the ports
// it gets neither in nor out: the policy knows nothing of it.
func TestLabBesideOthers(t *testing.T) {
	binary := buildSoftdpu(t, thisVersion)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-bs"})
	gw, server, client := l.Must(t, testenv.Gateway), l.Must(t, "server"), l.Must(t, "client")
	a, b, outside := beside(t, gw, "t-lab-bs0-")
	before := settings(t, gw)

	addr := netip.MustParseAddrPort
	echo := func(ns *testenv.Namespace, at string) {
		e := must(ns.ServeEcho(t.Context(), addr(at)))
		t.Cleanup(func() { e.Close() })
	}
	for _, at := range []string{"172.17.0.2:7", "[fd17::2]:7"} {
		echo(a, at)
	}
	for _, at := range []string{"172.17.0.3:7", "[fd17::3]:7"} {
		echo(b, at)
	}
	for _, at := range []string{"192.0.2.2:7", "[2001:db8::2]:7"} {
		echo(outside, at)
	}
	echo(server, "10.10.2.2:7")

	var phase atomic.Value
	phase.Store("at first")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var done [8]atomic.Uint64
	for i, way := range []struct {
		name string
		from *testenv.Namespace
		to   string
	}{
		{"on the bridge", a, "172.17.0.3:7"},
		{"on the bridge by IPv6", a, "[fd17::3]:7"},
		{"out, translated", a, "192.0.2.2:7"},
		{"out by IPv6", b, "[2001:db8::2]:7"},
		{"in, by a published port", outside, "192.0.2.1:8080"},
		{"in by IPv6", outside, "[fd17::2]:7"},
	} {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				one, stop := context.WithTimeout(ctx, testenv.Patience(5*time.Second))
				_, err := way.from.Exchange(one, addr(way.to), fmt.Appendf(nil, "%d", n))
				stop()
				if err != nil && ctx.Err() == nil {
					t.Errorf("%s, %s: exchange %d: %v", phase.Load(), way.name, n, err)
				}
				done[i].Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	conns := []net.Conn{
		must(a.Dial(limited(t, 5*time.Second), "tcp", "192.0.2.2:7")), must(outside.Dial(limited(t, 5*time.Second), "tcp", "192.0.2.1:8080")),
	}
	for _, conn := range conns {
		defer conn.Close()
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, 2))
			for ctx.Err() == nil {
				if err := swap(conn, random, 5*time.Second); err != nil {
					t.Errorf("%s: connection to %s: %v", phase.Load(), conn.RemoteAddr(), err)
					return
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() }) // for the case that the test ends early
	// reached waits until exchanges have gone on everywhere, and tells who gets through the ports.
	reached := func(name string, forwards bool) {
		t.Helper()
		var was [len(done)]uint64
		for i := range done {
			was[i] = done[i].Load()
		}
		testenv.Eventually(t, 20*time.Second, func() error {
			for i := range 6 {
				if done[i].Load() < was[i]+5 {
					return fmt.Errorf("%s: exchanges stand still", name)
				}
			}
			return nil
		})
		for _, through := range []struct {
			from *testenv.Namespace
			to   string
			want bool
		}{
			{a, "10.10.2.2:7", false},
			{outside, "10.10.2.2:7", false},
			{client, "10.10.2.2:7", forwards},
		} {
			one, stop := context.WithTimeout(t.Context(), map[bool]time.Duration{true: 5 * time.Second, false: 200 * time.Millisecond}[through.want])
			_, err := through.from.Exchange(one, addr(through.to), []byte("through"))
			stop()
			if (err == nil) != through.want {
				t.Errorf("%s: an exchange from %s by the ports: %v", name, through.from.Name(), err)
			}
		}
	}
	ip(t, "-n t-lab-bs0-out route add 10.10.2.0/24 via 192.0.2.1")

	var p *process
	for _, onStop := range []string{"block", "keep", "open"} {
		c := write(t, strings.Replace(labRouted, "on_stop: open", "on_stop: "+onStop, 1), lifePolicy)
		phase.Store("starting, on_stop " + onStop)
		p = startProcess(t, gw, binary, c)
		p.ready(t)
		phase.Store("running, on_stop " + onStop)
		reached(onStop, true)
		if onStop == "keep" {
			must(p.Reload(t.Context()))
			p.kill()
			phase.Store("killed")
			reached("killed", true)
			p = startProcess(t, gw, binary, c)
			p.ready(t)
		}
		phase.Store("stopping, on_stop " + onStop)
		p.stop(t)
		phase.Store("stopped, on_stop " + onStop)
		if onStop != "open" {
			reached("stopped, "+onStop, onStop == "keep")
		}
	}
	asBefore(t, gw, before)
	time.Sleep(100 * time.Millisecond)
	cancel()
	wg.Wait()
	var n uint64
	for i := range done {
		n += done[i].Load()
	}
	t.Logf("%d exchanges, none lost", n)
}
