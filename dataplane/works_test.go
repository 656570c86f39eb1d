package dataplane

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/dataplane/xsk"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

// desk is where a test sits as a worker: a socket on the first queue of a port.
type desk struct {
	plane  *Plane
	queue  *bpf.XDPWorkerQueue
	umem   *xsk.UMEM
	pool   *xsk.Pool
	socket *xsk.Socket
	poller xsk.Poller
}

// handed is a packet that a worker got.
type handed struct {
	bpf.XDPHandover
	frame []byte
}

// sit opens a socket on a port's device and lets XDP find it. No worker serves the queue yet.
func (g *gateway) sit(t *testing.T, p *Plane, port Port, rx int) *desk {
	t.Helper()
	d := &desk{plane: p}
	tables := p.WorkerTables()
	index := bpf.QueueIndex(port.ID, 0)
	d.queue = &tables.Queues[index]
	g.do(t, func() (err error) {
		if d.umem, err = xsk.NewUMEM(xsk.UMEMOptions{Mode: xsk.Copy}); err != nil {
			return err
		}
		if d.pool, err = d.umem.NewPool(d.umem.Frames()); err != nil {
			return err
		}
		if d.socket, err = xsk.Open(d.umem, d.pool, port.Device, 0, xsk.SocketOptions{Rx: rx}); err != nil {
			return err
		}
		return tables.Sockets.Put(index, uint32(d.socket.FD()))
	})
	d.poller.Add(d.socket, xsk.Readable)
	t.Cleanup(func() {
		if err := d.socket.Close(); err != nil {
			t.Error(err)
		}
		if err := d.umem.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// serve has a worker of number 2 serve the queue, who takes so many packets at once.
func (d *desk) serve(size uint32) {
	d.queue.Worker = 1 + 2
	atomic.StoreUint32(&d.queue.Size, size)
	d.live()
}

// live gives a sign of life, for as long as the test may take.
func (d *desk) live() { atomic.StoreUint32(&d.queue.Beat, NowTick()+1<<20) }

// silent is a worker who gives none any more.
func (d *desk) silent() { atomic.StoreUint32(&d.queue.Beat, NowTick()-bpf.WorkerSilent-16) }

// take takes what has come.
func (d *desk) take(t *testing.T) (got []handed) {
	t.Helper()
	batch := make([]xsk.Desc, 64)
	n := d.socket.Receive(batch)
	for _, desc := range batch[:n] {
		b := bytes.Clone(d.umem.Frame(desc))
		head := *(*bpf.XDPHandover)(unsafe.Pointer(unsafe.SliceData(b)))
		got = append(got, handed{head, b[unsafe.Sizeof(head):]})
	}
	d.pool.Free(batch[:n])
	d.socket.Refill()
	if err := d.socket.Kick(); err != nil {
		t.Fatal(err)
	}
	atomic.AddUint32(&d.queue.Taken, uint32(n))
	return got
}

// wait waits for so many packets.
func (d *desk) wait(t *testing.T, n int) (got []handed) {
	t.Helper()
	testenv.Eventually(t, 5*time.Second, func() error {
		if got = append(got, d.take(t)...); len(got) < n {
			return fmt.Errorf("%d packets of %d have come; dropped: %v", len(got), n, dropReasons(d.plane))
		}
		return nil
	})
	return got
}

// done makes number the done number of a cell.
func (d *desk) done(cell uint32, number uint16) {
	at := &d.plane.WorkerTables().Cells[cell/8].Leg[cell/2%4][cell%2]
	for {
		old := atomic.LoadUint32(at)
		if atomic.CompareAndSwapUint32(at, old, old&^0xffff|uint32(number)) {
			return
		}
	}
}

// dropReasons are the counters of reasons that are not 0.
func dropReasons(p *Plane) map[string]uint64 {
	reasons, _ := p.Reasons()
	m := make(map[string]uint64)
	for r, c := range reasons {
		if c.Packets > 0 {
			m[bpf.XDPReason(r).String()] = c.Packets
		}
	}
	return m
}

// dropped returns how many packets were dropped for a reason.
func dropped(t *testing.T, p *Plane, reason bpf.XDPReason) uint64 {
	t.Helper()
	reasons, err := p.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	return reasons[reason].Packets
}

// datagram is a frame with a UDP datagram to port 5000.
func datagram(t *testing.T, from, to net.HardwareAddr, src, dst string, sport uint16) []byte {
	t.Helper()
	udp := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: 5000}
	eth := &layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv4}
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	} = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.ParseIP(src).To4(), DstIP: net.ParseIP(dst).To4()}
	if net.ParseIP(dst).To4() == nil {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)}
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		eth, ip, udp, gopacket.Payload("long enough for no padding: worker"))
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// flowOf returns the flow of a datagram.
func flowOf(t *testing.T, p *Plane, frame []byte, domain uint16) flowtable.Flow {
	t.Helper()
	var parsed packet.Parsed
	parsed.Decode(frame)
	table, err := p.Table()
	if err != nil {
		t.Fatal(err)
	}
	f, ok := table.Lookup(flowtable.Tuple{
		Family: parsed.Family, Proto: parsed.Proto, Domain: domain,
		Src: parsed.Src, Dst: parsed.Dst, SrcPort: parsed.SrcPort, DstPort: parsed.DstPort,
	})
	if !ok {
		t.Fatal("the flow is not in the table")
	}
	return f
}

// A generation that leads every flow through a worker.
func working(t *testing.T, epoch uint32) Generation {
	t.Helper()
	return Generation{Epoch: epoch, ACL: allowAll(t), Rules: 1, Workers: true, ForceStages: bpf.StageForward}
}

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
		frames[i] = datagram(t, from, lan.MAC[:], tt.src, tt.dst, 4000)
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

	d := g.sit(t, p, lan, 64)
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

// inlineDesk is a cable with a worker at its first port.
func inlineDesk(t *testing.T) (p *Plane, d *desk, arrived *testenv.Capture, send func(n int, sport uint16), frame func(sport uint16) []byte) {
	t.Helper()
	g := newGateway(t, "inline")
	p = g.plane(t)
	if err := p.Publish(working(t, 1)); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach([]PortConfig{{Name: "lan0", Device: "lan", Zone: 2, Peer: "wan0"}, {Name: "wan0", Device: "wan", Zone: 3, Peer: "lan0"}}); err != nil {
		t.Fatal(err)
	}
	client, server := g.lab.Must(t, "client"), g.lab.Must(t, "server")
	from, err := client.MAC("c0")
	if err != nil {
		t.Fatal(err)
	}
	to, err := server.MAC("s0")
	if err != nil {
		t.Fatal(err)
	}
	sender, err := client.OpenSender("c0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sender.Close() })
	arrived, err = server.StartCapture("s0", testenv.CaptureOptions{Match: func(f []byte) bool { return bytes.HasSuffix(f, []byte("worker")) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := arrived.Stop(); err != nil {
			t.Error(err)
		}
	})
	sink, err := server.ListenPacket(t.Context(), "udp4", "10.10.1.3:5000") // or it would send ICMP errors
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sink.Close() })
	frame = func(sport uint16) []byte { return datagram(t, from, to, "10.10.1.2", "10.10.1.3", sport) }
	send = func(n int, sport uint16) {
		t.Helper()
		for range n {
			if err := sender.Send(frame(sport)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p, g.sit(t, p, p.Ports()[0], 64), arrived, send, frame
}

// Whoever needs a worker and finds none, or one that is full or silent, is dropped by name; flows of a rule
// that says so go on.
func TestFailClosed(t *testing.T) {
	p, d, arrived, send, _ := inlineDesk(t)
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
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	d.silent()
	send(2, 4000)
	if err := arrived.Wait(ctx, 2); err != nil {
		t.Error(err)
	}
	atomic.StoreUint32(&d.queue.Size, 0)
	send(2, 4001) // a new flow, too
	if err := arrived.Wait(ctx, 4); err != nil {
		t.Error(err)
	}
	// A worker that is said to be there, and whose socket has just gone.
	d.serve(4)
	if err := p.maps[bpf.XDPMapSockets].Delete(bpf.QueueIndex(p.Ports()[0].ID, 0)); err != nil {
		t.Fatal(err)
	}
	send(1, 4001)
	if err := arrived.Wait(ctx, 5); err != nil {
		t.Error(err)
	}
	if err := p.Publish(working(t, 3)); err != nil {
		t.Fatal(err)
	}
	send(1, 4001)
	drops("its socket has gone", bpf.XDPReasonREASON_WORKER_ABSENT, 4)
	drops("and nothing else", bpf.XDPReasonREASON_WORKER_FULL, 5)
}

// A leg that its worker has done with moves up with the first packet that finds none under way, and comes
// down again when it is judged again.
func TestMovingUp(t *testing.T) {
	p, d, arrived, send, frame := inlineDesk(t)
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
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := arrived.Wait(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if flow.Leg[0].Stages != 0 || flow.Leg[1].Stages != bpf.StageForward {
		t.Errorf("after one leg has moved up the legs are %+v", flow.Leg)
	}
	if f := flowOf(t, p, frame(4000), domain); f.Stages != [2]uint8{0, bpf.StageForward} {
		t.Errorf("the flow is listed as %+v", f)
	}
	// It needs no worker any more, whoever is there.
	atomic.StoreUint32(&d.queue.Size, 0)
	send(1, 4000)
	if err := arrived.Wait(ctx, 3); err != nil {
		t.Fatal(err)
	}
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
	if err := arrived.Wait(ctx, 4); err != nil {
		t.Fatal(err)
	}
	if flow.Leg[0].Stages != 0 {
		t.Errorf("the leg is %+v", flow.Leg[0])
	}
}

// The programs that run while no flow may need a worker have nothing of it.
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
