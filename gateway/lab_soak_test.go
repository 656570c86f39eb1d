package gateway

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// The time-outs of a day that passes in ten minutes, but none under the least there is.
const soakConfig = `flows:
  max: 400000
  timeouts: {tcp_syn_sent: 2s, tcp_syn_received: 2s, tcp_established: 52s, tcp_fin_wait: 2s, tcp_time_wait: 2s, tcp_closed: 2s, udp_new: 1s, udp: 2s, icmp: 1s, other: 2s}
`

// A holding is what a process could leak, and what the kernel keeps for it.
type holding struct {
	anonymous int64 // bytes of its own memory
	threads   int64
	files     int
	objects   map[string]int // open files by kind, as bpf-map
	pins      int
}

func (h holding) String() string {
	return fmt.Sprintf("%d KiB, %d threads, %d files, %d pins, %v", h.anonymous>>10, h.threads, h.files, h.pins, h.objects)
}

// most keeps the larger of each.
func (h *holding) most(other holding) {
	h.anonymous, h.threads = max(h.anonymous, other.anonymous), max(h.threads, other.threads)
	h.files, h.pins = max(h.files, other.files), max(h.pins, other.pins)
	if h.objects == nil {
		h.objects = map[string]int{}
	}
	for kind, n := range other.objects {
		h.objects[kind] = max(h.objects[kind], n)
	}
}

// least keeps the smaller of each.
func (h *holding) least(other holding) {
	if h.objects == nil {
		*h = other
		return
	}
	h.anonymous, h.threads = min(h.anonymous, other.anonymous), min(h.threads, other.threads)
	h.files, h.pins = min(h.files, other.files), min(h.pins, other.pins)
	for kind, n := range h.objects {
		h.objects[kind] = min(n, other.objects[kind])
	}
}

// holds looks at the gateway with that process, in the network namespace of that inode.
func holds(t *testing.T, pid int, inode uint64) (h holding) {
	t.Helper()
	status := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		switch fields[0] {
		case "RssAnon:":
			h.anonymous = must(strconv.ParseInt(fields[1], 10, 64)) << 10
		case "Threads:":
			h.threads = must(strconv.ParseInt(fields[1], 10, 64))
		}
	}
	h.objects = map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	for _, e := range must(os.ReadDir(dir)) {
		h.files++
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, "anon_inode:bpf") {
			h.objects[strings.TrimPrefix(to, "anon_inode:")]++
		}
	}
	pins := must(filepath.Glob(fmt.Sprintf("/run/softdpu/bpf/v*-netns-%d/*/*", inode)))
	h.pins = len(pins)
	return h
}

// newFlows sends the opening packets of that many UDP flows a second until ctx is done, paced by the
// clock: what it could not send in time it sends later. Their checksums are wrong, and nobody looks.
func newFlows(ctx context.Context, t *testing.T, client, gw *testenv.Namespace, rate int, sent *atomic.Int64) {
	sender, err := client.OpenSender("c0")
	if err != nil {
		t.Error(err)
		return
	}
	defer sender.Close()
	w := way{srcMAC: must(client.MAC("c0")), dstMAC: must(gw.MAC("lan")), src: client4, dst: server4}
	w6 := w
	w6.src, w6.dst = client6, server6
	frames := []template{{b: w.udp(t, 1, 7, []byte("new"))}, {b: w6.udp(t, 1, 7, []byte("new")), six: true}}
	const hosts = 200
	begin := time.Now()
	for n := 0; ctx.Err() == nil; {
		due := int(time.Since(begin).Seconds() * float64(rate))
		for ; n < due; n++ {
			if err := sender.Send(frames[n%2].client(n%(hosts*50_000), false)); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			sent.Add(1)
		}
		time.Sleep(time.Millisecond)
	}
}

// soakPolicy differs in every round in the names and the order of its rules, in a set that a file gives,
// and in what it allows beside the traffic of the test.
func soakPolicy(round int, dir string) (string, error) {
	random := rand.New(rand.NewPCG(3, uint64(round)))
	var set strings.Builder
	for range 1000 {
		fmt.Fprintf(&set, "198.%d.%d.%d\n", 18+random.IntN(2), random.IntN(256), random.IntN(256))
	}
	if err := os.WriteFile(filepath.Join(dir, "listed.txt"), []byte(set.String()), 0o644); err != nil {
		return "", err
	}
	rules := []string{
		"{name: listed, from: {zone: lan}, to: {zone: wan, set: listed}, action: deny}",
		"{name: stream, from: {zone: lan}, to: {zone: wan}, service: udp/7, action: allow, log: true}",
		fmt.Sprintf("{name: talk-%d, from: {zone: lan}, to: {zone: wan}, service: tcp/17, action: allow}", round%3),
	}
	for i := range random.IntN(50) {
		rules = append(rules, fmt.Sprintf("{name: filler-%d-%d, from: {zone: lan}, to: host, service: udp/%d, action: allow}", round, i, 7000+i))
	}
	random.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	return "apiVersion: softdpu/v1\nkind: Policy\nzones: {lan: {ports: [lan]}, wan: {ports: [wan]}}\nsets: {listed: {type: prefix, file: listed.txt}}\nrules:\n  - " +
		strings.Join(rules, "\n  - ") + "\n", nil
}

// pullCable lets the server lose its carrier for a moment, and the gateway with it. What the server's
// kernel forgets by that is told to it again.
func pullCable(t *testing.T, server *testenv.Namespace) {
	t.Helper()
	sysctl(t, server, "ipv6/conf/s0/keep_addr_on_down", "1")
	for _, up := range []bool{false, true} {
		if err := server.SetUp("s0", up); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	ip(t, fmt.Sprintf("-n %s route replace default via 10.10.2.1", server.Name()))
	ip(t, fmt.Sprintf("-n %s -6 route replace default via fd10:2::1", server.Name()))
}

// look captures some packets.
func look(t *testing.T, c *Client) {
	t.Helper()
	stream := must(c.Capture(t.Context(), &CaptureRequest{Count: 10, Seconds: 5}))
	defer stream.Close()
	if n, err := io.Copy(io.Discard, stream); n == 0 || err != nil {
		t.Errorf("a capture has %d bytes: %v", n, err)
	}
}

// A day passes in short: flows come and go, policies and sets change, somebody captures, a port flaps. What the gateway holds
// at the end is what it held after the first part of the day, and ageing keeps up with the flows.
func TestLabSoak(t *testing.T) {
	day, rate, change := sized(12*time.Second, 10*time.Minute), sized(20_000, 50_000), sized(time.Second, 3*time.Second)
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-soak"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	events := "events: {file: eve.json, max_size: 16MiB, keep: 2}\n" + soakConfig
	c := write(t, strings.Replace(labRouted, "events: {file: eve.json}\n", events, 1), "")
	dir := filepath.Dir(c.File)
	var st unix.Stat_t
	if err := unix.Stat(gw.Path(), &st); err != nil {
		t.Fatal(err)
	}
	inode := st.Ino
	apply := func(round int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(must(soakPolicy(round, dir))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	apply(0)
	sink := must(server.ListenPacket(t.Context(), "udp", ":7")) // nobody reads: nothing is answered
	defer sink.Close()
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 17)))
	defer echo.Close()
	p := startProcess(t, gw, binary, c)
	p.ready(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sent, talks, failed atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() { newFlows(ctx, t, client, gw, rate, &sent) })
	wg.Go(func() { // connections that come and go
		random := rand.New(rand.NewPCG(8, 8))
		for ctx.Err() == nil {
			conn, err := client.Dial(ctx, "tcp", echo.Addr().String())
			if err == nil {
				err = swap(conn, random, 5*time.Second)
				conn.Close()
			}
			switch {
			case err == nil:
				talks.Add(1)
			case ctx.Err() == nil:
				failed.Add(1)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	lasting := must(client.Dial(limited(t, 5*time.Second), "tcp", echo.Addr().String()))
	defer lasting.Close()

	// The most of the second third of the day, and the least of the last: an entry that runs out, or a cable that is pulled, has
	// two generations loaded for a moment, and what is leaked stays.
	var early, late holding
	mostFlows, round, flaps := int64(0), 0, 0
	random := rand.New(rand.NewPCG(9, 9))
	begin := time.Now()
	// passed is how much of the day is over: on a slow machine it is longer, for each third has its rounds.
	passed := func() float64 { return min(time.Since(begin).Seconds()/day.Seconds(), float64(round)/6) }
	for passed() < 1 {
		next := time.Now().Add(change)
		round++
		apply(round)
		if _, err := p.Reload(t.Context()); err != nil {
			t.Fatalf("reload %d: %v\n%s", round, err, p.log)
		}
		if round%7 == 3 {
			flaps++
			pullCable(t, server)
		}
		if round%3 == 1 { // an entry that is over by itself, and one that somebody takes back
			must(p.AddToSet(t.Context(), "listed", SetChange{Entries: []string{fmt.Sprintf("198.20.%d.0/24", round%256)}, For: "2s"}))
			must(p.AddToSet(t.Context(), "listed", SetChange{Entries: []string{"198.21.0.1"}}))
			must(p.DeleteFromSet(t.Context(), "listed", SetChange{Entries: []string{"198.21.0.1"}}))
		}
		if round%5 == 2 {
			look(t, p.Client)
		}
		if err := swap(lasting, random, 10*time.Second); err != nil {
			t.Fatalf("the connection that lasts, in round %d: %v\n%s", round, err, p.log)
		}
		table := must(p.Status(t.Context())).Table
		mostFlows = max(mostFlows, table.Flows)
		if table.Refused+table.Evicted > 0 {
			t.Fatalf("ageing does not keep up: %+v", table)
		}
		h := holds(t, p.cmd.Process.Pid, inode)
		switch at := passed(); {
		case at > 0.67:
			late.least(h)
		case at > 0.34:
			early.most(h)
		}
		time.Sleep(time.Until(next))
	}
	took := time.Since(begin)
	cancel()
	wg.Wait()
	testenv.Eventually(t, 30*time.Second, func() error {
		if s := must(p.Status(t.Context())).Table; s.Flows > 1 {
			return fmt.Errorf("%d flows are left", s.Flows)
		}
		return nil
	})
	s := must(p.Status(t.Context()))
	t.Logf("%s: %d packets sent, %d flows created, %d aged, at most %d at once; %d connections, %d failed; %d policies, %d flaps; early %v; late %v; events %+v",
		took.Round(time.Second), sent.Load(), s.Table.Created, s.Table.Aged, mostFlows, talks.Load(), failed.Load(), round, flaps, early, late, s.Events)
	if created := float64(s.Table.Created); created < 0.9*float64(sent.Load()) {
		t.Errorf("%d packets that open flows made %d", sent.Load(), s.Table.Created)
	}
	if long() && float64(s.Table.Created)/took.Seconds() < 0.9*float64(rate) {
		t.Errorf("%.0f new flows a second, wanted %d", float64(s.Table.Created)/took.Seconds(), rate)
	}
	if want := int64(rate) * 4; mostFlows > want { // 1 s, the scan's second, and one for each on a busy machine
		t.Errorf("%d flows at once, wanted at most %d", mostFlows, want)
	}
	if failed.Load() > int64(flaps) {
		t.Errorf("%d connections failed, the cable was pulled %d times", failed.Load(), flaps)
	}
	if late.files > early.files || late.pins > early.pins || late.threads > early.threads+4 {
		t.Errorf("held was %v, and later %v", early, late)
	}
	for kind, n := range late.objects {
		if n > early.objects[kind] {
			t.Errorf("%s: %d, and later %d", kind, early.objects[kind], n)
		}
	}
	if late.anonymous > early.anonymous+early.anonymous/10+8<<20 {
		t.Errorf("memory grew from %d to %d KiB", early.anonymous>>10, late.anonymous>>10)
	}
}
