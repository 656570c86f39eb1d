package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
	pipeline "github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/testenv"
)

// pipelineLab is a gateway of three ports, frames for the first one, and what arrives behind the others.
type pipelineLab struct {
	*gateway
	plane    *Plane
	lan      *testenv.Namespace
	sender   *testenv.Sender
	captures map[string]*testenv.Capture // by port
}

const pipelineMark = "of the pipeline's lab: "

func newPipelineLab(t *testing.T) *pipelineLab {
	t.Helper()
	l := &pipelineLab{gateway: newGateway(t, "three-zone"), captures: make(map[string]*testenv.Capture)}
	l.plane = l.gateway.plane(t)
	if err := l.plane.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := l.plane.Attach([]PortConfig{{Name: "lan0", Device: "lan", Zone: 2}, {Name: "wan0", Device: "wan", Zone: 3}, {Name: "mon0", Device: "dmz", Zone: 4}}); err != nil {
		t.Fatal(err)
	}
	l.follow(t, l.plane)
	l.lan = l.lab.Must(t, "lan")
	var err error
	if l.sender, err = l.lan.OpenSender("l0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.sender.Close() })
	for port, at := range map[string][2]string{"wan0": {"wan", "w0"}, "mon0": {"dmz", "d0"}} {
		c, err := l.lab.Must(t, at[0]).StartCapture(at[1], testenv.CaptureOptions{
			Match: func(frame []byte) bool { return bytes.Contains(frame, []byte(pipelineMark)) }, Keep: 100_000,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
		l.captures[port] = c
	}
	return l
}

// udp is a frame for a port of UDP, under these VLAN tags.
func pipelineFrame(t *testing.T, dport uint16, number int, tags ...uint16) []byte {
	t.Helper()
	list := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}}
	if len(tags) > 0 {
		list[0].(*layers.Ethernet).EthernetType = layers.EthernetTypeDot1Q
	}
	for i, id := range tags {
		inner := layers.EthernetTypeIPv4
		if i < len(tags)-1 {
			inner = layers.EthernetTypeDot1Q
		}
		list = append(list, &layers.Dot1Q{VLANIdentifier: id & 0xfff, Priority: uint8(id >> 13), Type: inner})
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 10, 1, 2}, DstIP: net.IP{10, 10, 2, 2}}
	udp := &layers.UDP{SrcPort: 9, DstPort: layers.UDPPort(dport)}
	_ = udp.SetNetworkLayerForChecksum(ip) // never fails for IPv4
	list = append(list, ip, udp, gopacket.Payload(fmt.Sprintf("%s%08d", pipelineMark, number)))
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// arrived returns what has arrived at a port since so many frames, once it is as many as are wanted.
func (l *pipelineLab) arrived(t *testing.T, port string, before, want int) (frames [][]byte) {
	t.Helper()
	c := l.captures[port]
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := c.Count(); n < before+want {
			reasons, _ := l.plane.Reasons()
			return fmt.Errorf("%d frames have left by %s, want %d; dropped %+v", n-before, port, want, reasons)
		}
		return nil
	})
	for _, f := range c.Frames()[before:] {
		frames = append(frames, f.Data)
	}
	return frames
}

const forwardingPipeline = `root: kinds
bypasses_policy: true
mirrors: {tap: [mon0]}
pipes:
  - name: kinds
    kind: basic
    match: [l4.dport]
    monitor: {count: true}
    miss: {pipe: others}
    entries:
      - {name: port, match: {l4.dport: 1}, forward: {port: wan0}}
      - {name: mirrored, match: {l4.dport: 2}, monitor: {count: true, mirror: tap}, forward: {port: wan0}}
      - {name: flooded, match: {l4.dport: 3}, forward: {pipe: flood}}
      - {name: dropped, match: {l4.dport: 4}, monitor: {count: true, mirror: tap}, forward: drop}
      - {name: pushed, match: {l4.dport: 5}, forward: {pipe: push}}
      - {name: popped, match: {l4.dport: 6}, forward: {pipe: pop}}
      - {name: swapped, match: {l4.dport: 7}, forward: {pipe: swap}}
      - {name: worker, match: {l4.dport: 8}, forward: {stage: forward, port: wan0}}
      - {name: copied, match: {l4.dport: 9}, forward: {stage: mirror, port: wan0, copy: mon0}}
      - {name: bypassing, match: {l4.dport: 10}, forward: {stage: mirror, port: wan0, copy: mon0, on_failure: bypass}}
      - {name: tagged, match: {l4.dport: 11}, forward: {pipe: work}}
  - {name: flood, kind: hash, algorithm: flood, miss: drop, entries: [{index: 0, forward: {port: wan0}}, {index: 1, forward: {port: mon0}}]}
  - {name: push, kind: control, miss: drop, forward: {port: wan0}, actions: [{do: [{push_vlan: {id: 100, pcp: 5}}]}], entries: [{}]}
  - {name: pop, kind: control, miss: drop, forward: {port: wan0}, actions: [{do: [pop_vlan]}], entries: [{}]}
  - {name: swap, kind: control, miss: drop, forward: {port: wan0}, actions: [{do: [{set: vlan.0.id, value: 77}, {set: ipv4.src, value: 192.0.2.1}, {set: l4.sport, value: 700}]}], entries: [{}]}
  - {name: work, kind: control, miss: drop, forward: {stage: forward, port: mon0}, actions: [{do: [{push_vlan: {id: 100, pcp: 5}}, ttl]}], entries: [{}]}
  - name: others
    kind: control
    monitor: {count: true}
    miss: policy
    forward: host
    entries:
      - {name: echo, match: {icmp.type: echo-request, ipv4.dst: 10.10.1.1}}
      - {name: service, match: {ipv4.dst: 10.10.1.1, l4.dport: 5000-5001}}
`

// Frames really leave by the ports that a pipeline says, as it says, copies by those of mirrors and of pipes that flood;
// the host's kernel answers what it gets; and counters tell.
func TestPipelineForwards(t *testing.T) {
	t.Parallel()
	l := newPipelineLab(t)
	prog := compilePipeline(t, l.plane, forwardingPipeline)
	if err := l.plane.ApplyPipeline(prog); err != nil {
		t.Fatal(err)
	}
	swapped := pipelineFrame(t, 7, 6, 77)
	copy(swapped[18+12:], []byte{192, 0, 2, 1})
	swapped[18+20], swapped[18+21] = 700>>8, 700&0xff
	for _, b := range [][]byte{swapped[18+10:], swapped[18+26:]} { // checksums: gopacket makes them
		b[0], b[1] = 0, 0
	}
	swapped = reserialized(t, swapped)
	for _, tt := range []struct {
		name   string
		frame  []byte
		leaves map[string][]byte
	}{
		{"port", pipelineFrame(t, 1, 0), map[string][]byte{"wan0": pipelineFrame(t, 1, 0)}},
		{"mirrored", pipelineFrame(t, 2, 1), map[string][]byte{"wan0": pipelineFrame(t, 2, 1), "mon0": pipelineFrame(t, 2, 1)}},
		{"flooded", pipelineFrame(t, 3, 2, 5), map[string][]byte{"wan0": pipelineFrame(t, 3, 2, 5), "mon0": pipelineFrame(t, 3, 2, 5)}},
		{"dropped", pipelineFrame(t, 4, 3), map[string][]byte{"mon0": pipelineFrame(t, 4, 3)}},
		{"pushed", pipelineFrame(t, 5, 4, 9), map[string][]byte{"wan0": pipelineFrame(t, 5, 4, 5<<13|100, 9)}},
		{"popped", pipelineFrame(t, 6, 5, 9, 8), map[string][]byte{"wan0": pipelineFrame(t, 6, 5, 8)}},
		{"swapped", pipelineFrame(t, 7, 6, 9), map[string][]byte{"wan0": swapped}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := map[string]int{"wan0": l.captures["wan0"].Count(), "mon0": l.captures["mon0"].Count()}
			if err := l.sender.Send(tt.frame); err != nil {
				t.Fatal(err)
			}
			for port := range before {
				want := tt.leaves[port]
				if want == nil {
					continue
				}
				if got := l.arrived(t, port, before[port], 1)[0]; !bytes.Equal(got, want) {
					t.Errorf("by %s leaves\n%x, want\n%x", port, got, want)
				}
			}
		})
	}
	for range 3 {
		if r, err := l.lan.Ping(t.Context(), netip.MustParseAddr("10.10.1.1"), testenv.PingOptions{Timeout: time.Second}); err != nil || r.Received != 1 {
			t.Errorf("the host does not answer: %+v, %v", r, err)
		}
	}
	if n := l.captures["wan0"].Count() + l.captures["mon0"].Count(); n != 9 {
		t.Errorf("%d frames have left, want 9", n)
	}
	for name, want := range map[string]uint64{"port": 1, "mirrored": 1, "flooded": 1, "dropped": 1, "pushed": 1, "popped": 1, "swapped": 1} {
		if got := entryCount(prog, 0, name); got != want {
			t.Errorf("%s counts %d packets, want %d", name, got, want)
		}
	}
	if got := entryCount(prog, slices.IndexFunc(prog.Pipes, func(p *pipeline.Planned) bool { return p.Pipe.Name == "others" }), "echo"); got != 3 {
		t.Errorf("echo requests to the host count %d", got)
	}
	l.stages(t, prog)
	l.host(t)
}

// host speaks to the gateway itself, past a policy that lets nothing in nor out, as long as a pipeline says so.
func (l *pipelineLab) host(t *testing.T) {
	echo, err := l.ns.ServeEcho(t.Context(), netip.MustParseAddrPort("10.10.1.1:5000"))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	// Nothing is copied from socket to socket in the kernel here, which would keep pipes open.
	greeter, err := l.ns.Listen(t.Context(), "tcp", "10.10.1.1:5001")
	if err != nil {
		t.Fatal(err)
	}
	defer greeter.Close()
	go func() {
		for {
			c, err := greeter.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello you")
			c.Close()
		}
	}()
	if err := l.plane.Publish(Generation{Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	exchange := func(network, address string, limit time.Duration) error {
		c, err := l.lan.Dial(t.Context(), network, address)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(limit)) // a connection takes it
		b := make([]byte, 9)
		if _, err := c.Write([]byte("hello you")); err != nil {
			return err
		}
		_, err = io.ReadFull(c, b)
		return err
	}
	for network, address := range map[string]string{"tcp": "10.10.1.1:5001", "udp": "10.10.1.1:5000"} {
		if err := exchange(network, address, 5*time.Second); err != nil {
			t.Errorf("over %s the host does not answer: %v", network, err)
		}
	}
	if err := exchange("udp", "10.10.1.1:5001", 5*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port that nobody has: %v, want the host to say so", err)
	}
	l.forged(t)
	if err := l.plane.RemovePipeline(); err != nil {
		t.Fatal(err)
	}
	if err := exchange("udp", "10.10.1.1:5000", 200*time.Millisecond); err == nil {
		t.Error("without the pipeline the host answers")
	}
	var key bpf.XDPPipeHost
	if err := l.plane.maps[bpf.XDPMapPipeHosts].NextKey(nil, &key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("whom the host answered is still known: %+v, %v", key, err)
	}
}

// forged speaks to the gateway itself with an address from behind another port: the answer would leave by that one, and is not
// what the pipeline has allowed.
func (l *pipelineLab) forged(t *testing.T) {
	ports := l.plane.Ports()
	lan := ports[slices.IndexFunc(ports, func(p Port) bool { return p.Name == "lan0" })]
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: lan.MAC[:], EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 10, 2, 2}, DstIP: net.IP{10, 10, 1, 1}}
	udp := &layers.UDP{SrcPort: 4711, DstPort: 5000}
	_ = udp.SetNetworkLayerForChecksum(ip) // never fails for IPv4
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, gopacket.Payload(pipelineMark)); err != nil {
		t.Fatal(err)
	}
	refused := func() uint64 {
		reasons, err := l.plane.Reasons()
		if err != nil {
			t.Fatal(err)
		}
		return reasons[bpf.XDPReasonREASON_NO_RULE_MATCHED].Packets
	}
	before, left := refused(), l.captures["wan0"].Count()
	if err := l.sender.Send(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := refused() - before; n == 0 {
			reasons, _ := l.plane.Reasons()
			return fmt.Errorf("no answer was refused; dropped %+v", reasons)
		}
		return nil
	})
	if n := l.captures["wan0"].Count() - left; n != 0 {
		t.Errorf("%d answers to a forged address have left by another port", n)
	}
}

// stages sends what goes to workers, without and with some.
func (l *pipelineLab) stages(t *testing.T, prog *pipeline.Program) {
	reason := func(r bpf.XDPReason) uint64 {
		t.Helper()
		reasons, err := l.plane.Reasons()
		if err != nil {
			t.Fatal(err)
		}
		return reasons[r].Packets
	}
	send := func(dport uint16, number int, tags ...uint16) {
		t.Helper()
		if err := l.sender.Send(pipelineFrame(t, dport, number, tags...)); err != nil {
			t.Fatal(err)
		}
	}
	wan, mon := l.captures["wan0"].Count(), l.captures["mon0"].Count()
	send(8, 10)
	send(9, 11)
	send(10, 12)
	if got := l.arrived(t, "wan0", wan, 1); !bytes.Equal(got[0], pipelineFrame(t, 10, 12)) {
		t.Errorf("without workers %x leaves", got[0])
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := reason(bpf.XDPReasonREASON_WORKER_ABSENT); n != 2 {
			return fmt.Errorf("%d packets are dropped since there is no worker, want 2", n)
		}
		return nil
	})
	if err := l.plane.StartWorkers(WorkerOptions{Ring: 256, Log: func(text string) { t.Log(text) }}); err != nil {
		t.Fatal(err)
	}
	// They serve a queue once its socket is bound.
	tried, refused := 0, reason(bpf.XDPReasonREASON_WORKER_ABSENT)+reason(bpf.XDPReasonREASON_WORKER_FULL)
	testenv.Eventually(t, 10*time.Second, func() error {
		tried++
		send(8, 99)
		time.Sleep(20 * time.Millisecond)
		if l.captures["wan0"].Count() == wan+1 {
			return errors.New("nothing comes from the workers")
		}
		return nil
	})
	testenv.Eventually(t, 5*time.Second, func() error { // what was sent while they came is through
		lost := int(reason(bpf.XDPReasonREASON_WORKER_ABSENT) + reason(bpf.XDPReasonREASON_WORKER_FULL) - refused)
		if n := l.captures["wan0"].Count() - wan - 1; n+lost != tried {
			return fmt.Errorf("of %d packets for workers %d are refused and %d have left", tried, lost, n)
		}
		return nil
	})
	wan = l.captures["wan0"].Count()
	const rounds = 50
	for n := range rounds {
		send(8, 1000+n)
		send(9, 2000+n, 9)
		send(10, 3000+n)
		send(11, 4000+n, 9)
	}
	// Each kind of packets stays in its order; a worker makes all copies of a batch before it sends the packets.
	kinds := func(frames [][]byte) (sorted [][]byte) {
		sorted = slices.Clone(frames)
		kind := func(frame []byte) byte { return frame[bytes.Index(frame, []byte(pipelineMark))+len(pipelineMark)+4] }
		slices.SortStableFunc(sorted, func(a, b []byte) int { return int(kind(a)) - int(kind(b)) })
		return sorted
	}
	var want, copies [][]byte
	for n := range rounds {
		want = append(want, pipelineFrame(t, 8, 1000+n), pipelineFrame(t, 9, 2000+n, 9), pipelineFrame(t, 10, 3000+n))
		lower := pipelineFrame(t, 11, 4000+n, 5<<13|100, 9)
		lower[22+8]--
		lower[22+10], lower[22+11] = 0, 0
		copies = append(copies, pipelineFrame(t, 9, 2000+n, 9), pipelineFrame(t, 10, 3000+n), reserialized(t, lower))
	}
	for port, want := range map[string][][]byte{"wan0": want, "mon0": copies} {
		got := l.arrived(t, port, map[string]int{"wan0": wan, "mon0": mon}[port], len(want))
		if port == "mon0" {
			got, want = kinds(got), kinds(want)
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Errorf("frame %d of %d by %s is\n%x, want\n%x", i, len(got), port, got[i], want[i])
				break
			}
		}
	}
	c := workerCounts(t, l.plane)
	if c.Mirrored != 2*rounds || len(c.Drops) != 0 && slices.Max(slices.Collect(maps.Values(c.Drops))) > 0 {
		t.Errorf("workers have mirrored %d packets and dropped %v", c.Mirrored, c.Drops)
	}
	if got := entryCount(prog, 0, "copied"); got != rounds+1 {
		t.Errorf("the entry counts %d packets, want %d", got, rounds+1)
	}
	// Once they have gone all is as without them.
	if err := l.plane.StopWorkers(); err != nil {
		t.Fatal(err)
	}
	absent, wan := reason(bpf.XDPReasonREASON_WORKER_ABSENT), l.captures["wan0"].Count()
	send(9, 21)
	send(10, 22)
	if got := l.arrived(t, "wan0", wan, 1); !bytes.Equal(got[0], pipelineFrame(t, 10, 22)) || reason(bpf.XDPReasonREASON_WORKER_ABSENT) != absent+1 {
		t.Errorf("behind the workers %x leaves, and %d packets are dropped", got[0], reason(bpf.XDPReasonREASON_WORKER_ABSENT)-absent)
	}
}

func entryCount(prog *pipeline.Program, number int, name string) uint64 {
	pl := prog.Pipes[number]
	i := slices.IndexFunc(pl.Pipe.Entries, func(e *pipeline.Entry) bool { return e.Name == name })
	return prog.Memory.Entries[pl.Places[i]].Packets
}

// reserialized is a frame with the checksums that gopacket computes.
func reserialized(t *testing.T, frame []byte) []byte {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	var list []gopacket.SerializableLayer
	for _, l := range p.Layers() {
		list = append(list, l.(gopacket.SerializableLayer))
	}
	_ = p.TransportLayer().(*layers.UDP).SetNetworkLayerForChecksum(p.NetworkLayer())
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
