package dataplane

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

// What a worker gets is what the packet would have been on its way to the port, and everything about it.
func TestHandOver(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	client, server := g.lab.Must(t, "client"), g.lab.Must(t, "server")
	for _, gw := range []string{"10.10.2.1", "fd10:2::1"} { // so that the server's MAC is known
		if r, err := server.Ping(t.Context(), netip.MustParseAddr(gw), testenv.PingOptions{}); err != nil || r.Received == 0 {
			t.Fatalf("the gateway does not answer the server: %v", err)
		}
	}
	lan, wan := p.Ports()[0], p.Ports()[1]
	from, err := client.MAC("c0")
	if err != nil {
		t.Fatal(err)
	}
	sender, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	arrived, err := server.StartCapture("s0", testenv.CaptureOptions{Match: func(f []byte) bool { return bytes.HasSuffix(f, []byte("worker")) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := arrived.Stop(); err != nil {
			t.Error(err)
		}
	})
	tests := []struct{ src, dst string }{{"10.10.1.2", "10.10.2.2"}, {"fd10:1::2", "fd10:2::2"}}
	frames, sent := make([][]byte, len(tests)), make([][]byte, len(tests))
	for i, tt := range tests {
		frames[i] = datagram(t, from, lan.MAC[:], tt.src, tt.dst, 4000, text)
		// The first may go by the kernel, and so may one every three seconds.
		testenv.Eventually(t, 5*time.Second, func() error {
			count := arrived.Count()
			if err := sender.Send(frames[i]); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return arrived.Wait(ctx, count+1)
		})
		all := arrived.Frames()
		sent[i] = all[len(all)-1].Data
	}

	d := g.sit(t, p, lan, 64, false)
	d.serve(64)
	if err := p.Publish(working(t, 2)); err != nil {
		t.Fatal(err)
	}
	for i, tt := range tests {
		for n := uint16(1); n <= 3; n++ {
			var h handed
			testenv.Eventually(t, 5*time.Second, func() error {
				if err := sender.Send(frames[i]); err != nil {
					return err
				}
				for end := time.Now().Add(time.Second); time.Now().Before(end); {
					if got := d.take(t); len(got) > 0 {
						h = got[0]
						return nil
					}
					time.Sleep(time.Millisecond)
				}
				return fmt.Errorf("%s: nothing has come", tt.dst)
			})
			f := flowOf(t, p, frames[i], 0)
			family, l3, l4 := uint8(4), uint16(14), uint16(34)
			groups := uint32(0)
			if i == 1 {
				family, l4, groups = 6, 54, p.Sizes().Groups
			}
			want := bpf.XDPHandover{
				Cell: ((groups+f.ID.Group)*4 + uint32(f.ID.Slot)) * 2, Number: n, Stages: bpf.StageForward, Port: wan.ID,
				Generation: f.ID.Generation, Rule: 1 | 3<<24, Epoch: 2, Nth: uint32(f.Packets[0] + f.Packets[1]),
				L3: l3, L4: l4, Family: family, Arrival: lan.ID, Proto: 17,
			}
			if h.XDPHandover != want {
				t.Errorf("%s: the worker is told %+v, want %+v", tt.dst, h.XDPHandover, want)
			}
			if !bytes.Equal(h.frame, sent[i]) {
				t.Errorf("%s: the worker has\n%x, XDP sent\n%x", tt.dst, h.frame, sent[i])
			}
		}
	}
}

// Whoever needs a worker and finds none, or one that is full or silent, is dropped by name; flows of a rule
// that says so go on.
func TestFailClosed(t *testing.T) {
	p, d, arrived, send, _ := inlineDesk(t, testenv.Options{})
	drops := func(what string, reason bpf.XDPReason, n uint64) {
		t.Helper()
		testenv.Eventually(t, 5*time.Second, func() error {
			if got := dropped(t, p, reason); got != n {
				return fmt.Errorf("%s: %d packets are dropped as %s, want %d", what, got, reason, n)
			}
			return nil
		})
	}
	send(3, 4000)
	drops("nobody serves the queue", bpf.XDPReasonREASON_WORKER_ABSENT, 3)
	d.serve(4)
	send(7, 4000)
	drops("four are outstanding", bpf.XDPReasonREASON_WORKER_FULL, 3)
	got := d.wait(t, 4)
	send(2, 4000)
	got = append(got, d.wait(t, 2)...)
	for i, h := range got {
		if h.Number != uint16(i+1) || h.Nth != uint32(i+1) {
			t.Errorf("packet %d has number %d and is its flow's packet %d: refused ones count", i+1, h.Number, h.Nth)
		}
	}
	d.silent()
	send(2, 4000)
	drops("the worker is silent", bpf.XDPReasonREASON_WORKER_FULL, 5)
	d.live()
	send(1, 4000)
	d.wait(t, 1)
	if n := arrived.Count(); n != 0 {
		t.Errorf("%d packets have reached the server past the worker", n)
	}

	// The rule lets packets go on without a worker: with one, they go there.
	bypass := Generation{
		Epoch: 2, ACL: allowAll(t), Rules: 1, Workers: true,
		Works: map[uint32]RuleWork{1: {Stages: bpf.StageMirror, Bypass: true}},
	}
	if err := p.Publish(bypass); err != nil {
		t.Fatal(err)
	}
	send(1, 4000)
	if h := d.wait(t, 1)[0]; h.Stages != bpf.StageMirror || h.Epoch != 2 {
		t.Errorf("after another policy the worker is told %+v", h.XDPHandover)
	}
	d.silent()
	send(2, 4000)
	reach(t, arrived, 2)
	atomic.StoreUint32(&d.queue.Size, 0)
	send(2, 4001) // a new flow, too
	reach(t, arrived, 4)
	// A worker that is said to be there, and whose socket has just gone.
	d.serve(4)
	if err := p.maps[bpf.XDPMapSockets].Delete(bpf.QueueIndex(p.Ports()[0].ID, 0)); err != nil {
		t.Fatal(err)
	}
	send(1, 4001)
	reach(t, arrived, 5)
	if err := p.Publish(working(t, 3)); err != nil {
		t.Fatal(err)
	}
	send(1, 4001)
	drops("its socket has gone", bpf.XDPReasonREASON_WORKER_ABSENT, 4)
	drops("and nothing else", bpf.XDPReasonREASON_WORKER_FULL, 5)
}

// A packet of several buffers is handed over whole.
func TestHandOverInPieces(t *testing.T) {
	if k, err := probeKernel(); err != nil || !k.atLeast(6, 6) {
		t.Skip("sockets take packets of several buffers from Linux 6.6 on")
	}
	_, d, _, send, frame := inlineDesk(t, testenv.Options{MTU: 9000})
	d.serve(64)
	send(2, 4000)
	for i, h := range d.wait(t, 2) {
		if h.Number != uint16(i+1) || h.L4 != 34 || !bytes.Equal(h.frame, frame(4000)) {
			t.Errorf("packet %d came as %+v, %d bytes of %d", i+1, h.XDPHandover, len(h.frame), len(frame(4000)))
		}
	}
}

// Behind a driver without XDP the same is handed over, and what is lost there counts too.
func TestHandOverInGenericMode(t *testing.T) {
	p, d, _, send, frame := inlineDesk(t, testenv.Options{}, func(c *PortConfig) { c.Mode, c.FixOffloads = ModeGeneric, true })
	d.serve(1 << 20)
	send(64+10, 4000)
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := atomic.LoadUint32(&d.queue.Lost); n != 10 {
			return fmt.Errorf("%d packets are lost, want 10; dropped: %v", n, dropReasons(p))
		}
		return nil
	})
	for i, h := range d.wait(t, 64) {
		if h.Number != uint16(i+1) || h.L3 != 14 || h.L4 != 34 || !bytes.Equal(h.frame, frame(4000)) {
			t.Fatalf("packet %d came as %+v,\n%x, want\n%x", i+1, h.XDPHandover, h.frame, frame(4000))
		}
	}
	if n := dropped(t, p, bpf.XDPReasonREASON_WORKER_FULL); n != 10 {
		t.Errorf("%d packets are dropped as worker-full, want 10", n)
	}
}

// A flow beside the groups of the table has no cell, and stays with the worker.
func TestHandOverOfTheOverflow(t *testing.T) {
	p, d, _, send, frame := inlineDesk(t, testenv.Options{})
	d.serve(64)
	send(1, 4000)
	if h := d.wait(t, 1)[0]; h.Cell == bpf.CellNone {
		t.Fatalf("a flow in its slot has no cell: %+v", h.XDPHandover)
	}
	f := flowOf(t, p, frame(4000), 1<<12)
	slot := &p.WorkerTables().Flows4[f.ID.Group].Slot[f.ID.Slot]
	moved := *slot
	moved.Core.Word |= flowtable.WordReady
	if err := p.maps[bpf.XDPMapOverflow4].Put(&moved.Key, &moved); err != nil {
		t.Fatal(err)
	}
	atomic.AddInt64(&p.mem.gateway[0].Overflow4, 1)
	atomic.StoreUint64(&slot.Core.Word, moved.Core.Word&^0xff)
	send(2, 4000)
	for i, h := range d.wait(t, 2) {
		if h.Cell != bpf.CellNone || h.Number != 0 || h.Nth != uint32(i+2) || h.Generation != f.ID.Generation {
			t.Errorf("packet %d of a flow of the overflow came as %+v", i+2, h.XDPHandover)
		}
	}
}

// Whoever captures sees packets that go to a worker as they come and as they leave.
func TestCaptureOfHandedOver(t *testing.T) {
	p, d, _, send, frame := inlineDesk(t, testenv.Options{})
	d.serve(64)
	c, err := p.Capture(CaptureOptions{Points: Points{In: true, Out: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send(1, 4000)
	if h := d.wait(t, 1)[0]; h.Port != p.Ports()[1].ID || !bytes.Equal(h.frame, frame(4000)) {
		t.Errorf("while somebody captures the worker gets %+v", h)
	}
	d.silent()
	send(1, 4000)
	var seen []string
	testenv.Eventually(t, 5*time.Second, func() error {
		err := c.Read(func(head *bpf.XDPTapped, b []byte) error {
			if bytes.Equal(b, frame(4000)) {
				seen = append(seen, fmt.Sprintf("point %d port %d egress %d %s", head.Point, head.Port, head.Egress, bpf.XDPReason(head.Reason)))
			}
			return nil
		})
		if err == nil && len(seen) < 3 {
			err = fmt.Errorf("seen so far: %q", seen)
		}
		return err
	})
	want := []string{"point 0 port 1 egress 2 none", "point 1 port 2 egress 2 none", "point 0 port 1 egress 0 worker-full"}
	if !slices.Equal(seen, want) {
		t.Errorf("captured are %q, want %q", seen, want)
	}
}

// A leg that its worker has done with moves up with the first packet that finds none under way, and comes
// down again when it is judged again.
func TestMovingUp(t *testing.T) {
	p, d, arrived, send, frame := inlineDesk(t, testenv.Options{})
	d.serve(64)
	send(3, 4000)
	got := d.wait(t, 3)
	cell := got[0].Cell
	domain := uint16(1 << 12)
	f := flowOf(t, p, frame(4000), domain)
	flow := &p.WorkerTables().Flows4[f.ID.Group].Slot[f.ID.Slot]
	if flow.Leg[0].Stages != bpf.StageForward || flow.Leg[1].Stages != bpf.StageForward {
		t.Errorf("a new flow has the legs %+v", flow.Leg)
	}
	for {
		word := atomic.LoadUint64(&flow.Core.Word)
		if atomic.CompareAndSwapUint64(&flow.Core.Word, word, word|flowtable.WordReady) {
			break
		}
	}
	d.done(cell, 2)
	send(1, 4000)
	if h := d.wait(t, 1)[0]; h.Number != 4 {
		t.Errorf("while its third packet is under way the leg sends number %d, want 4", h.Number)
	}
	if f := flowOf(t, p, frame(4000), domain); !f.Ready || f.Stages != [2]uint8{bpf.StageForward, bpf.StageForward} {
		t.Errorf("the flow that is about to move up is listed as %+v", f)
	}
	d.done(cell, 4)
	send(2, 4000)
	reach(t, arrived, 2)
	if flow.Leg[0].Stages != 0 || flow.Leg[1].Stages != bpf.StageForward {
		t.Errorf("after one leg has moved up the legs are %+v", flow.Leg)
	}
	if f := flowOf(t, p, frame(4000), domain); f.Stages != [2]uint8{0, bpf.StageForward} {
		t.Errorf("the flow is listed as %+v", f)
	}
	// It needs no worker any more, whoever is there.
	atomic.StoreUint32(&d.queue.Size, 0)
	send(1, 4000)
	reach(t, arrived, 3)
	d.serve(64)
	if err := p.Publish(working(t, 2)); err != nil {
		t.Fatal(err)
	}
	send(1, 4000)
	if h := d.wait(t, 1)[0]; h.Number != 5 || h.Nth != 8 || h.Rule>>24 != 3 {
		t.Errorf("a flow that was judged again comes down as %+v", h.XDPHandover)
	}
	if word := atomic.LoadUint64(&flow.Core.Word); word&flowtable.WordReady != 0 {
		t.Error("a flow that was judged again is still ready")
	}
	// A policy that asks for nothing has it move up once more, at the latest when nobody is there.
	if err := p.Publish(Generation{Epoch: 3, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	send(1, 4000)
	if h := d.wait(t, 1)[0]; h.Number != 6 {
		t.Errorf("packet %d is the first under a policy without stages, want 6", h.Number)
	}
	atomic.StoreUint32(&d.queue.Size, 0)
	send(1, 4000)
	reach(t, arrived, 4)
	if flow.Leg[0].Stages != 0 {
		t.Errorf("the leg is %+v", flow.Leg[0])
	}
}

// The programs that run while no flow may need a worker have nothing for it but the look at the constant
// that says so.
func TestWorkersOffAreNotThere(t *testing.T) {
	p := openPlane(t, Options{})
	size := func(g Generation) (n int, workers bool) {
		t.Helper()
		if err := p.Publish(g); err != nil {
			t.Fatal(err)
		}
		prog, err := p.Program()
		if err != nil {
			t.Fatal(err)
		}
		defer prog.Close()
		info, err := prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := info.Instructions()
		if err != nil {
			t.Fatal(err)
		}
		ids := make(map[ebpf.MapID]string)
		for _, name := range []string{bpf.XDPMapLegCells, bpf.XDPMapWorkerQueues, bpf.XDPMapSockets} {
			id, err := mapID(p.maps[name])
			if err != nil {
				t.Fatal(err)
			}
			ids[ebpf.MapID(id)] = name
		}
		for _, ins := range loaded {
			if !ins.OpCode.IsDWordLoad() {
				n++
				continue
			}
			n += 2
			if ins.IsLoadFromMap() && ids[ebpf.MapID(ins.Constant)] != "" {
				workers = true
			}
		}
		return n, workers
	}
	plain, mentioned := size(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1})
	if mentioned {
		t.Error("the program without workers looks into their maps")
	}
	with, mentioned := size(working(t, 2))
	if !mentioned || with <= plain {
		t.Errorf("the program with workers has %d instructions, without %d", with, plain)
	}
	again, _ := size(Generation{Epoch: 3, ACL: allowAll(t), Rules: 1})
	if again != with || !p.HaveWorkers() {
		t.Errorf("%d instructions are left of %d: a flow that has stages would lose them", again, with)
	}
	t.Logf("%d instructions without workers, %d with", plain, with)
	if err := p.Publish(Generation{Epoch: 4, Workers: true, Works: map[uint32]RuleWork{1: {Stages: 1}}}); err == nil {
		t.Error("work of a rule that the policy does not have is taken")
	}
}
