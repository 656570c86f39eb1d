package gateway

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// tiers returns how many flows live in each tier, by a filter, and why those of workers do.
func (r *testGateway) tiers(t *testing.T, filter string) (n map[string]int, why map[string]bool) {
	t.Helper()
	n, why = map[string]int{}, map[string]bool{}
	for _, f := range must(r.Flows(t.Context(), filter, 0)) {
		n[f.Tier]++
		if f.Tier == tierWorker {
			why[f.WhyNotHigher] = true
		}
	}
	return n, why
}

// unexpected returns what was dropped for another reason than that a busy machine kept a worker from its CPU for
// 50 ms.
func (r *testGateway) unexpected(t *testing.T) (others []Drop, late uint64) {
	t.Helper()
	for _, d := range must(r.Drops(t.Context(), false)) {
		if d.Reason == "worker-full" {
			late = d.Packets
		} else {
			others = append(others, d)
		}
	}
	return others, late
}

// With force_stage workers carry every flow between ports; without it again flows that go on move up, and
// lose nothing.
func TestLabForceStage(t *testing.T) {
	config := labMetrics + "force_stage: forward\n"
	r := newReloadRigIn(t, testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-force"}), config, labPolicy, 80)
	rig := &rig{testGateway: r.testGateway, lab: r.lab, client: r.client, server: r.lab.Must(t, "server"), gw: r.lab.Must(t, testenv.Gateway)}
	const pings = 20
	answered := 0
	for _, a := range rig.addresses() {
		_, before := r.unexpected(t)
		p, err := r.client.Ping(t.Context(), a, testenv.PingOptions{Count: pings, Size: 1400})
		if _, late := r.unexpected(t); err != nil || p.Received == 0 || p.Received+int(late-before) < pings {
			t.Errorf("ping %s: %d of %d came back: %v, %v", a, p.Received, p.Sent, p.Errors, err)
		}
		answered += p.Received
	}
	random := rand.New(rand.NewPCG(14, 1))
	c := r.dial(t, 80)
	const swaps = 30
	for i := range swaps {
		if err := swap(c, random, 5*time.Second); err != nil {
			t.Fatalf("exchange %d: %v\n%s\n%s", i, err, rig.tally(t), r.log)
		}
	}
	n, why := r.tiers(t, "")
	if n[tierXDP] != 0 || n[tierWorker] != 3 || len(why) != 1 || !why["force_stage: forward in the configuration"] {
		t.Errorf("flows by tier %v, because of %v", n, why)
	}
	if n, _ := r.tiers(t, "tier worker"); n[tierWorker] != 3 || len(n) != 1 {
		t.Errorf("the filter finds %v", n)
	}

	s := must(r.Workers(t.Context()))
	if !s.Running || s.Mode != "copy" || len(s.NeededBy) != 1 || s.NeededBy[0] != "force_stage: forward" || len(s.Workers) == 0 || len(s.Attempts) == 0 || s.Memory.Frames == 0 {
		t.Fatalf("workers %+v", s)
	}
	var packets uint64
	testenv.Eventually(t, 5*time.Second, func() error { // what they have counted is published a moment later
		var sent, batches uint64
		packets = 0
		ports := map[string]bool{}
		for _, w := range must(r.Workers(t.Context())).Workers {
			packets, sent = packets+w.Packets, sent+w.Sent
			for _, b := range w.Batches {
				batches += b
			}
			for _, q := range w.Queues {
				ports[q.Port] = true
			}
		}
		if packets < uint64(2*answered+2*swaps) || sent < packets || batches == 0 || !ports["lan"] || !ports["wan"] {
			return fmt.Errorf("workers took %d packets in %d batches and sent %d, on ports %v", packets, batches, sent, ports)
		}
		return nil
	})
	var status WorkersSummary
	testenv.Eventually(t, 5*time.Second, func() error { // none is held up by others for long
		if status = must(r.Status(t.Context())).Workers; len(status.Silent) > 0 {
			return fmt.Errorf("workers %v are silent", status.Silent)
		}
		return nil
	})
	if !status.Running || status.Workers != len(s.Workers) || status.Mode != "copy" || len(status.Stalls) != 0 {
		t.Errorf("status says %+v", status)
	}
	values, text := rig.scrape(t)
	counted := 0.0
	for series, v := range values {
		if strings.HasPrefix(series, "softdpu_worker_receive_packets_total{") {
			counted += v
		}
	}
	if counted < float64(packets) || values["softdpu_workers_running"] != 1 || values[`softdpu_workers_info{mode="copy"}`] != 1 ||
		values[`softdpu_flows{state="replied",tier="worker"}`] != 2 || values[`softdpu_flows{state="established",tier="worker"}`] != 1 {
		t.Errorf("metrics say that %v packets came by workers, which counted %d:\n%s", counted, packets, text)
	}
	if log := r.log.String(); !strings.Contains(log, `msg="workers run"`) || !strings.Contains(log, "mode=copy") || strings.Count(log, `msg="workers run"`) != 1 {
		t.Errorf("the log does not say once that workers run:\n%s", log)
	}

	// Without it: the flow that goes on moves up; the workers stay.
	r.write(t, "softdpu.yaml", labMetrics)
	r.apply(t, labPolicy)
	testenv.Eventually(t, 10*time.Second, func() error {
		if err := swap(c, random, 5*time.Second); err != nil {
			t.Fatalf("after the reload: %v\n%s", err, rig.tally(t))
		}
		if n, why := r.tiers(t, "dport 80"); n[tierXDP] != 1 {
			return fmt.Errorf("flows by tier %v, because of %v", n, why)
		}
		return nil
	})
	if s = must(r.Workers(t.Context())); !s.Running || len(s.NeededBy) != 0 {
		t.Errorf("after the reload: running %v, needed by %v", s.Running, s.NeededBy)
	}
	testenv.Eventually(t, 5*time.Second, func() error { // those that they have counted before are published a moment later
		before := must(r.Workers(t.Context())).Workers
		for range 5 {
			if err := swap(c, random, 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Millisecond)
		for i, w := range must(r.Workers(t.Context())).Workers {
			if w.Packets != before[i].Packets {
				return fmt.Errorf("worker %d got %d packets of a flow that moved up", i, w.Packets-before[i].Packets)
			}
		}
		return nil
	})

	// And back: established flows move down at once.
	r.write(t, "softdpu.yaml", config)
	r.apply(t, labPolicy)
	if err := swap(c, random, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.tiers(t, "dport 80"); n[tierWorker] != 1 {
		t.Errorf("after force_stage came back: %v", n)
	}
	if others, _ := r.unexpected(t); len(others) != 0 {
		t.Errorf("dropped: %+v", others)
	}
}

// A reload to a policy that mirrors starts workers: copies leave by the monitor port, and a flow of which
// only the first packets are mirrored moves up.
func TestLabMirror(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-mirror"})
	gw := l.Must(t, testenv.Gateway)
	ip(t, fmt.Sprintf("link add mon netns %s type veth peer name tool netns %s", gw.Name(), gw.Name()))
	for _, device := range []string{"mon", "tool"} {
		sysctl(t, gw, "ipv6/conf/"+device+"/disable_ipv6", "1")
		if err := gw.SetUp(device, true); err != nil {
			t.Fatal(err)
		}
	}
	config := strings.Replace(labRouted, "wan: {device: wan}", "wan: {device: wan}, mon0: {device: mon}", 1)
	policy := func(first, second string) string {
		return fmt.Sprintf(`apiVersion: softdpu/v1
kind: Policy
zones: {lan: {ports: [lan]}, wan: {ports: [wan]}}
rules:
  - {name: web, from: lan, to: wan, service: tcp/80, action: allow%s}
  - {name: mail, from: lan, to: wan, service: tcp/25, action: allow%s}
  - {name: anywhere, from: lan, to: any, service: udp/9, action: allow}
`, first, second)
	}
	r := newReloadRigIn(t, l, labRouted, policy("", ""), 80, 25)
	random := rand.New(rand.NewPCG(14, 2))
	web := r.dial(t, 80)
	if err := swap(web, random, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if s := must(r.Workers(t.Context())); s.Running || len(s.NeededBy) != 0 {
		t.Fatalf("workers without need: %+v", s)
	}

	// The monitor port comes with the policy that mirrors to it.
	const first = 6
	r.write(t, "softdpu.yaml", config)
	r.apply(t, policy(fmt.Sprintf(", mirror: {port: mon0, packets: %d}", first), ", mirror: mon0"))
	if s := must(r.Workers(t.Context())); !s.Running || len(s.NeededBy) != 2 || s.NeededBy[0] != "rule web mirrors to mon0, the first 6 packets" {
		t.Fatalf("workers %+v", s)
	}
	rules := must(r.Rules(t.Context()))
	for _, rule := range rules {
		if rule.Name == "web" && (rule.Mirror == nil || *rule.Mirror != RuleMirror{"mon0", first} || rule.OnFailure != "drop") {
			t.Errorf("rule %+v", rule)
		}
	}
	copies := func() uint64 { return must(gw.DeviceStats("tool")).RxPackets }
	before := copies()
	mail := r.dial(t, 25)
	for range 10 {
		if err := swap(mail, random, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	counted := func(name string) uint64 {
		for _, rule := range must(r.Rules(t.Context())) {
			if rule.Name == name {
				return rule.Packets
			}
		}
		return 0
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if got, want := copies()-before, counted("mail"); got != want || want < 20 {
			return fmt.Errorf("%d copies of %d packets", got, want)
		}
		return nil
	})
	if n, why := r.tiers(t, "rule mail"); n[tierWorker] != 1 || !why["rule mail mirrors it"] {
		t.Errorf("flows by tier %v, because of %v", n, why)
	}

	before = copies()
	again := r.dial(t, 80)
	testenv.Eventually(t, 10*time.Second, func() error {
		if err := swap(again, random, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		_, port, _ := strings.Cut(again.LocalAddr().String(), ":")
		if n, why := r.tiers(t, "sport "+port); n[tierXDP] != 1 {
			return fmt.Errorf("flows by tier %v, because of %v", n, why)
		}
		return nil
	})
	testenv.Eventually(t, 5*time.Second, func() error {
		if got := copies() - before; got != first {
			return fmt.Errorf("%d copies of the first %d packets", got, first)
		}
		return nil
	})
	if err := swap(web, random, 5*time.Second); err != nil {
		t.Errorf("a flow from before the reload: %v", err)
	}
	lost := uint64(0)
	for _, w := range must(r.Workers(t.Context())).Workers {
		lost += w.MirrorLost
	}
	if lost != 0 {
		t.Errorf("%d copies were left out", lost)
	}

	// What arrives by the monitor port is dropped, and so is what a route leads there.
	dropped := func(reason string) (n uint64) {
		for _, d := range must(r.Drops(t.Context(), false)) {
			if d.Reason == reason {
				n = d.Packets
			}
		}
		return n
	}
	sender, err := gw.OpenSender("tool")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	frame := make([]byte, 60)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 46})
	was := dropped("vlan-unknown")
	if err := sender.Send(frame); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := dropped("vlan-unknown"); n != was+1 {
			return fmt.Errorf("%d packets more are dropped as vlan-unknown", n-was)
		}
		return nil
	})
	ip(t, fmt.Sprintf("-n %s address add 192.0.2.1/24 dev mon", gw.Name()))
	testenv.Eventually(t, 10*time.Second, func() error { // once the route is known
		if _, err := r.client.Exchange(limited(t, 50*time.Millisecond), netip.MustParseAddrPort("192.0.2.9:9"), []byte("out")); err == nil {
			t.Error("somebody answers at the monitor port")
		}
		if dropped("egress-not-a-port") == 0 {
			return fmt.Errorf("dropped: %+v", must(r.Drops(t.Context(), false)))
		}
		return nil
	})
}

// Workers that cannot run as the configuration says keep the gateway from starting, with the reason.
func TestLabWorkersRefused(t *testing.T) {
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-wref"})
	c := write(t, labRouted+"workers: {mode: zero-copy}\n", labPolicy)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := l.Must(t, testenv.Gateway).Do(func() error { return Run(ctx, c, Options{}) })
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "zero-copy") || !strings.Contains(err.Error(), "port lan") || !strings.Contains(err.Error(), "workers in the configuration") {
		t.Errorf("start: %v", err)
	}
}

// A start that takes over has workers before its policy is in force: flows that they carried go on.
func TestLabWorkersTakeOver(t *testing.T) {
	config := strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1) + "force_stage: forward\n"
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-wtake"})
	r := newReloadRigIn(t, l, config, labPolicy, 80)
	random := rand.New(rand.NewPCG(14, 3))
	c := r.dial(t, 80)
	if err := swap(c, random, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	r.stop()
	// Nobody carries it now, and it fails closed.
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if n, err := c.Read(make([]byte, 5)); err == nil {
		t.Errorf("%d bytes came back without a worker", n)
	}
	g := runIn(t, l, r.config)
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second)) // TCP sends it again
	answer := make([]byte, 5)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "hello" {
		t.Fatalf("after the next start: %q, %v\n%s", answer, err, g.log)
	}
	for range 5 {
		if err := swap(c, random, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := g.tiers(t, "dport 80"); n[tierWorker] != 1 {
		t.Errorf("flows by tier %v", n)
	}
	if how := must(g.Status(t.Context())).Start.How; how != startTakeOver {
		t.Errorf("the start was a %s", how)
	}
	drops := must(g.Drops(t.Context(), false))
	for _, d := range drops {
		if !strings.HasPrefix(d.Reason, "worker-") {
			t.Errorf("dropped: %+v", d)
		}
	}
	if len(drops) == 0 {
		t.Error("what no worker took was not counted")
	}
}

// A start that takes over without need of workers leaves flows that some carried to XDP.
func TestLabWorkersNoMore(t *testing.T) {
	config := strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-wmore"})
	r := newReloadRigIn(t, l, config+"force_stage: forward\n", labPolicy, 80)
	random := rand.New(rand.NewPCG(14, 4))
	c := r.dial(t, 80)
	if err := swap(c, random, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	r.stop()
	if err := os.WriteFile(r.config.File, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	g := runIn(t, l, must(LoadConfig(r.config.File)))
	for range 5 {
		if err := swap(c, random, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if n, why := g.tiers(t, "dport 80"); n[tierXDP] != 1 || n[tierWorker] != 0 {
		t.Errorf("flows by tier %v: %v", n, why)
	}
	if s := must(g.Workers(t.Context())); s.Running {
		t.Errorf("workers run: %+v", s)
	}
}
