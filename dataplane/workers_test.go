package dataplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/testenv"
)

// workerCounts sums up what all workers have counted.
func workerCounts(t *testing.T, p *Plane) (c worker.WorkerStatus) {
	t.Helper()
	s, ok := p.Workers()
	if !ok {
		t.Fatal("there are no workers")
	}
	c.Drops = make(map[string]uint64)
	for _, w := range s.Workers {
		c.Packets, c.Sent, c.HandedOver = c.Packets+w.Packets, c.Sent+w.Sent, c.HandedOver+w.HandedOver
		c.Mirrored, c.MovedUp, c.Restarts = c.Mirrored+w.Mirrored, c.MovedUp+w.MovedUp, c.Restarts+w.Restarts
		for reason, n := range w.Drops {
			c.Drops[reason] += n
		}
		c.Queues = append(c.Queues, w.Queues...)
	}
	return c
}

// TestWorkers leads all flows of a gateway through workers: bulk TCP arrives whole, a device goes and comes back, and
// a policy of another kind moves flows up. Without workers nothing passes that needs one.
func TestWorkers(t *testing.T) {
	lab := testenv.New(t, "client-server", testenv.Options{Queues: 2, MTU: 9000})
	g := &gateway{lab, lab.Must(t, testenv.Gateway)}
	p := g.kept(t, thisKernel, Options{Ports: routed()})
	stop := follow(t, p)
	defer func() {
		stop()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := p.Publish(Generation{Epoch: 2, ACL: allowAll(t), Rules: 1, Workers: true, ForceStages: bpf.StageForward}); err != nil {
		t.Fatal(err)
	}
	options := WorkerOptions{Ring: 1024, Log: func(text string) { t.Log(text) }}
	if err := p.StartWorkers(options); err != nil {
		t.Fatal(err)
	}
	if err := p.StartWorkers(options); err == nil {
		t.Error("workers start twice")
	}
	client, server := lab.Must(t, "client"), lab.Must(t, "server")
	ping := func(ip string) error {
		r, err := client.Ping(t.Context(), netip.MustParseAddr(ip), testenv.PingOptions{Timeout: 200 * time.Millisecond})
		if err == nil && r.Received == 0 {
			reasons, _ := p.Reasons()
			err = fmt.Errorf("no answer from %s: %+v", ip, reasons)
		}
		return err
	}
	answers := func() {
		t.Helper()
		for _, ip := range []string{"10.10.2.2", "fd10:2::2"} {
			testenv.Eventually(t, 15*time.Second, func() error { return ping(ip) })
		}
	}
	answers()

	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for i, address := range []string{"10.10.2.2", "fd10:2::2"} {
		sink, err := server.ServeSink(ctx, netip.AddrPortFrom(netip.MustParseAddr(address), 0))
		if err != nil {
			t.Fatal(err)
		}
		before := workerCounts(t, p)
		if _, err := client.SendTo(ctx, sink.Addr(), 32<<20, uint64(i)); err != nil {
			t.Fatal(err)
		}
		sink.Close()
		testenv.Eventually(t, 5*time.Second, func() error {
			after := workerCounts(t, p)
			if n := after.Packets - before.Packets; n < 32<<20/9000 {
				return fmt.Errorf("%d packets went through workers", n)
			}
			for _, q := range after.Queues {
				if q.Sent-q.Taken-q.Lost != 0 {
					return fmt.Errorf("%s queue %d: %d sent, %d taken, %d lost", q.Port, q.Queue, q.Sent, q.Taken, q.Lost)
				}
			}
			return nil
		})
	}

	u, err := lab.Unplug(testenv.Gateway, "wan")
	if err != nil {
		t.Fatal(err)
	}
	served := func(want int) {
		t.Helper()
		testenv.Eventually(t, 15*time.Second, func() error {
			if c := workerCounts(t, p); len(c.Queues) != want {
				return fmt.Errorf("%d queues are served", len(c.Queues))
			}
			return nil
		})
	}
	served(2)
	if err := u.Replug(); err != nil {
		t.Fatal(err)
	}
	served(4)
	answers()

	// A flow whose first packets are copied goes on without workers then.
	g3 := Generation{Epoch: 3, ACL: allowAll(t), Rules: 1, Workers: true,
		Works: map[uint32]RuleWork{1: {Stages: bpf.StageMirror, Mirror: "lan0", MirrorPackets: 4}}}
	if err := p.Publish(g3); err != nil {
		t.Fatal(err)
	}
	echo, err := server.ServeEcho(ctx, netip.MustParseAddrPort("10.10.2.2:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	c, err := client.Dial(ctx, "udp", echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	exchange := func() (err error) {
		b := make([]byte, 100)
		for range 3 { // a worker that gets no CPU for 50 ms lets nothing pass
			if _, err := c.Write(b); err != nil {
				return err
			}
			if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				return err
			}
			if _, err = c.Read(b); err == nil {
				return nil
			}
		}
		return err
	}
	before := workerCounts(t, p)
	for range 10 {
		if err := exchange(); err != nil {
			t.Fatal(err)
		}
	}
	// What was sent is known to have left some time after it has.
	testenv.Eventually(t, 15*time.Second, func() error {
		last := workerCounts(t, p)
		for range 5 {
			if err := exchange(); err != nil {
				return err
			}
		}
		time.Sleep(30 * time.Millisecond) // so that what they have counted is published
		if now := workerCounts(t, p); now.Packets != last.Packets {
			return fmt.Errorf("%d packets went through workers", now.Packets-last.Packets)
		}
		return nil
	})
	after := workerCounts(t, p)
	if up, copies := after.MovedUp-before.MovedUp, after.Mirrored-before.Mirrored; up == 0 || copies < 4 {
		t.Errorf("%d flows moved up, %d packets were copied", up, copies)
	}
	if after.Restarts != 0 {
		t.Errorf("%d restarts", after.Restarts)
	}

	// Fail closed.
	if err := p.Publish(Generation{Epoch: 4, ACL: allowAll(t), Rules: 1, Workers: true, ForceStages: bpf.StageForward}); err != nil {
		t.Fatal(err)
	}
	answers()
	if err := p.StopWorkers(); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.Workers(); ok {
		t.Error("there are workers still")
	}
	if err := ping("10.10.2.2"); err == nil {
		t.Error("a packet that needs a worker passes without one")
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		reasons, err := p.Reasons()
		if err == nil && reasons[bpf.XDPReasonREASON_WORKER_ABSENT].Packets == 0 {
			err = errors.New("the drop has another name")
		}
		return err
	})
	if err := p.StartWorkers(options); err != nil {
		t.Fatal(err)
	}
	answers()

	// Ports that change.
	if _, err := p.Change(routed()[:1], Generation{Epoch: 5, ACL: allowAll(t), Rules: 1, Workers: true}, Mover{}); err != nil {
		t.Fatal(err)
	}
	served(2)
	if _, err := p.Change(routed(), Generation{Epoch: 6, ACL: allowAll(t), Rules: 1, Workers: true, ForceStages: bpf.StageForward}, Mover{}); err != nil {
		t.Fatal(err)
	}
	served(4)
	answers()
}

// TestMovesUp opens many flows, of which a worker copies the first packets, and sends numbered packets of all of them
// in turn: each arrives once and in its flow's order, while the flows move up to XDP one after the other.
func TestMovesUp(t *testing.T) {
	flows := 300
	if os.Getenv("SOFTDPU_LONG") != "" {
		flows = 10_000
	}
	const packets, limit = 12, 4
	// One queue, so that packets by socket and by XDP end in one ring of the far end: what is behind is not ours.
	g := newGateway(t, "client-server")
	var p *Plane
	g.do(t, func() (err error) {
		p, err = Open(Options{FlowsMax: 1 << 17, HalfOpenShare: 1})
		return err
	})
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	policy := Generation{Epoch: 1, ACL: allowAll(t), Rules: 1, Workers: true,
		Works: map[uint32]RuleWork{1: {Stages: bpf.StageMirror, Mirror: "lan0", MirrorPackets: limit}}}
	if err := p.Publish(policy); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	if err := p.StartWorkers(WorkerOptions{Ring: 512}); err != nil {
		t.Fatal(err)
	}
	client, server := g.lab.Must(t, "client"), g.lab.Must(t, "server")
	testenv.Eventually(t, 15*time.Second, func() error { // so that the server's MAC is known
		r, err := server.Ping(t.Context(), netip.MustParseAddr("10.10.2.1"), testenv.PingOptions{Timeout: 200 * time.Millisecond})
		if err == nil && r.Received == 0 {
			err = errors.New("the gateway does not answer the server")
		}
		return err
	})
	from, err := client.MAC("c0")
	if err != nil {
		t.Fatal(err)
	}
	lan := p.Ports()[0]
	sender, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	parse := func(f []byte) (flow, n int, ok bool) {
		i := bytes.Index(f, []byte("flow "))
		if i < 0 {
			return 0, 0, false
		}
		_, err := fmt.Sscanf(string(f[i:]), "flow %d packet %d", &flow, &n)
		return flow, n, err == nil
	}
	arrived, err := server.StartCapture("s0", testenv.CaptureOptions{Keep: flows * packets * 2,
		Match: func(f []byte) bool { _, _, ok := parse(f); return ok }})
	if err != nil {
		t.Fatal(err)
	}
	// What comes before XDP knows the server's MAC goes by the kernel.
	testenv.Eventually(t, 15*time.Second, func() error {
		if err := sender.Send(datagram(t, from, lan.MAC[:], "10.10.1.2", "10.10.2.2", 1999, "first")); err != nil {
			return err
		}
		time.Sleep(30 * time.Millisecond) // and what workers have counted is published then
		if c := workerCounts(t, p); c.Packets == 0 {
			return errors.New("no packet came to a worker")
		}
		return nil
	})
	before := workerCounts(t, p)
	// What a busy machine costs: a worker that gets no CPU for 50 ms lets nothing pass, and that is counted.
	starvedBefore := dropped(t, p, bpf.XDPReasonREASON_WORKER_FULL)
	starved := func() int { return int(dropped(t, p, bpf.XDPReasonREASON_WORKER_FULL) - starvedBefore) }
	sent, lost := 0, 0
	for n := range packets {
		for flow := range flows {
			frame := datagram(t, from, lan.MAC[:], "10.10.1.2", "10.10.2.2", uint16(2000+flow), fmt.Sprintf("flow %06d packet %02d", flow, n))
			for start := time.Now(); sent-arrived.Count()-lost >= 64; time.Sleep(50 * time.Microsecond) {
				if waits := time.Since(start); waits > 200*time.Millisecond && starved() > lost {
					lost = starved()
				} else if waits > 20*time.Second {
					reasons, _ := p.Reasons()
					t.Fatalf("%d sent, %d arrived: %+v", sent, arrived.Count(), reasons)
				}
			}
			if err := sender.Send(frame); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := arrived.Count(); n < sent {
			if lost = starved(); n+lost < sent {
				return fmt.Errorf("%d of %d arrived, %d were dropped", n, sent, lost)
			}
		}
		return nil
	})
	if lost = starved(); lost > sent/100 {
		t.Errorf("%d of %d packets found no worker", lost, sent)
	}
	if _, err := arrived.Stop(); err != nil {
		t.Fatal(err)
	}
	next, gone := make([]int, flows), 0
	for _, f := range arrived.Frames() {
		flow, n, _ := parse(f.Data)
		if gone += n - next[flow]; n < next[flow] || gone > lost {
			t.Fatalf("flow %d: packet %d came, and %d was next; %d were dropped", flow, n, next[flow], lost)
		}
		next[flow] = n + 1
	}
	var c worker.WorkerStatus
	testenv.Eventually(t, 5*time.Second, func() error { // what they have counted is published a moment later
		c = workerCounts(t, p)
		c.MovedUp, c.Mirrored, c.Packets = c.MovedUp-before.MovedUp, c.Mirrored-before.Mirrored, c.Packets-before.Packets
		// Now and then one goes by the kernel, to see whether the neighbour is there still.
		if int(c.MovedUp) > flows || int(c.MovedUp) < flows-lost || int(c.Mirrored) > flows*limit || int(c.Mirrored) < flows*limit-10-lost {
			return fmt.Errorf("%d of %d flows moved up, and %d packets were copied, want %d; %d were dropped", c.MovedUp, flows, c.Mirrored, flows*limit, lost)
		}
		return nil
	})
	// A leg moves up once its packet is known to have left: by the next but a few.
	if most := uint64(flows * (packets - 2)); c.Packets > most {
		t.Errorf("%d of %d packets went through workers, after the first %d of each flow were copied", c.Packets, sent, limit)
	}
	t.Logf("%d flows, %d packets, %d of them through workers", flows, sent, c.Packets)
}
