package dataplane

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

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
func (g *gateway) sit(t *testing.T, p *Plane, port Port, rx int, jumbo bool) *desk {
	t.Helper()
	d := &desk{plane: p}
	mode := xsk.Copy
	if port.Running == ModeGeneric {
		mode = xsk.Generic
	}
	tables := p.WorkerTables()
	index := bpf.QueueIndex(port.ID, 0)
	d.queue = &tables.Queues[index]
	g.do(t, func() (err error) {
		if d.umem, err = xsk.NewUMEM(xsk.UMEMOptions{Mode: mode, MultiBuffer: jumbo}); err != nil {
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
	packets := uint32(0)
	var b []byte
	for _, desc := range batch[:n] {
		if b = append(b, d.umem.Frame(desc)...); desc.More() {
			continue
		}
		head := *(*bpf.XDPHandover)(unsafe.Pointer(unsafe.SliceData(b)))
		got = append(got, handed{head, b[unsafe.Sizeof(head):]})
		b = nil
		packets++
	}
	d.pool.Free(batch[:n])
	d.socket.Refill()
	if err := d.socket.Kick(); err != nil {
		t.Fatal(err)
	}
	atomic.AddUint32(&d.queue.Taken, packets)
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

// text is what datagrams say: enough for no padding.
const text = "a packet that needs a worker"

// datagram is a frame with a UDP datagram to port 5000.
func datagram(t *testing.T, from, to net.HardwareAddr, src, dst string, sport uint16, payload string) []byte {
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
		eth, ip, udp, gopacket.Payload(payload))
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

// inlineDesk is a cable with a worker at its first port.
func inlineDesk(t *testing.T, o testenv.Options, first ...func(*PortConfig)) (p *Plane, d *desk, arrived *testenv.Capture, send func(n int, sport uint16), frame func(sport uint16) []byte) {
	t.Helper()
	lab := testenv.New(t, "inline", o)
	g := &gateway{lab, lab.Must(t, testenv.Gateway)}
	p = g.plane(t)
	if err := p.Publish(working(t, 1)); err != nil {
		t.Fatal(err)
	}
	ports := []PortConfig{{Name: "lan0", Device: "lan", Zone: 2, Peer: "wan0"}, {Name: "wan0", Device: "wan", Zone: 3, Peer: "lan0"}}
	for _, change := range first {
		change(&ports[0])
	}
	if err := p.Attach(ports); err != nil {
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
	frame = func(sport uint16) []byte {
		return datagram(t, from, to, "10.10.1.2", "10.10.1.3", sport, strings.Repeat("!", max(0, o.MTU-1500))+text)
	}
	send = func(n int, sport uint16) {
		t.Helper()
		for range n {
			if err := sender.Send(frame(sport)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p, g.sit(t, p, p.Ports()[0], 64, o.MTU > 1500), arrived, send, frame
}

// reach waits until so many packets have come to the server past the worker.
func reach(t *testing.T, arrived *testenv.Capture, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := arrived.Wait(ctx, n); err != nil {
		t.Fatal(err)
	}
}
