package gateway

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

const floodPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan]}
rules:
  - {name: out, from: {zone: lan}, to: {zone: wan}, service: [tcp/7, udp/7], action: allow}
  - {name: in, from: {zone: wan}, to: {zone: lan}, action: allow}
`

// An opened gateway runs in a lab as Run has it, and its program can be called.
type opened struct {
	*running
	api                *Client
	client, server, gw *testenv.Namespace
	program            *ebpf.Program
	lan, wan           uint32 // interface indices
	end                func() // stops the gateway
}

// openIn starts a gateway with room for that many flows. The neighbours on both sides are known.
func openIn(t *testing.T, prefix, flows string) *opened {
	t.Helper()
	return openWith(t, prefix, labRouted+"flows: "+flows+"\n", floodPolicy)
}

// openWith starts a gateway of that configuration and policy. Without end it runs as long as the test.
func openWith(t *testing.T, prefix, config, policy string) *opened {
	t.Helper()
	l := testenv.New(t, "client-server", testenv.Options{Prefix: prefix})
	o := &opened{client: l.Must(t, "client"), server: l.Must(t, "server"), gw: l.Must(t, testenv.Gateway)}
	c := write(t, config, policy)
	log := &lockedBuffer{}
	err := o.gw.Do(func() error {
		var err error
		if o.running, err = newRunning(c, Options{Log: slog.New(slog.NewTextHandler(log, nil))}); err != nil {
			return err
		}
		return o.start()
	})
	o.end = sync.OnceFunc(func() {
		if err := o.gw.Do(o.stop); err != nil {
			t.Errorf("stop: %v\n%s", err, log)
		}
	})
	t.Cleanup(o.end)
	if err != nil {
		t.Fatal(err)
	}
	o.api = NewClient(c.Control.Socket)
	if o.program, err = o.plane.Program(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.program.Close() })
	for _, p := range o.plane.Ports() {
		*map[string]*uint32{"lan": &o.lan, "wan": &o.wan}[p.Name] = p.Index
	}
	for _, n := range []struct {
		host, device string
		mac          net.HardwareAddr
	}{
		{"10.10.1.2", "lan", must(o.client.MAC("c0"))}, {"fd10:1::2", "lan", must(o.client.MAC("c0"))},
		{"10.10.2.2", "wan", must(o.server.MAC("s0"))}, {"fd10:2::2", "wan", must(o.server.MAC("s0"))},
	} {
		ip(t, fmt.Sprintf("-n %s neigh replace %s lladdr %s dev %s nud permanent", o.gw.Name(), n.host, n.mac, n.device))
	}
	return o
}

// onCPU runs fn in the gateway's namespace, on a thread that stays on one CPU.
func (o *opened) onCPU(cpu int, fn func() error) error {
	return o.gw.Do(func() error {
		var before, set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &before); err != nil {
			return err
		}
		set.Set(cpu % runtime.NumCPU())
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		defer unix.SchedSetaffinity(0, &before)
		return fn()
	})
}

// XDP verdicts (linux/bpf.h: enum xdp_action).
const (
	xdpDrop     = 1
	xdpRedirect = 4
)

// arrive lets a frame come in by a port and returns the program's verdict. The calling thread is in the
// gateway's namespace. Nothing is sent.
func (o *opened) arrive(port uint32, frame []byte) (uint32, error) {
	// struct xdp_md
	ctx := struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }{DataEnd: uint32(len(frame)), Ingress: port}
	return o.program.Run(&ebpf.RunOptions{Data: frame, Context: &ctx})
}

// A template is a frame whose ends are replaced.
type template struct {
	b   []byte
	six bool
}

// client makes the source, or with back the destination, host n and port n of a wide network.
func (f template) client(n int, back bool) []byte {
	host, port := uint32(n/50_000), uint16(1024+n%50_000)
	ip, l4 := f.b[14:], f.b[14+20:]
	address := ip[12:16]
	if f.six {
		l4, address = f.b[14+40:], ip[8:24]
	}
	if back {
		address, l4 = f.b[14+16:14+20], l4[2:]
		if f.six {
			address = ip[24:40]
		}
	}
	binary.BigEndian.PutUint16(address[len(address)-2:], uint16(host)+0x110) // none is the real client
	binary.BigEndian.PutUint16(l4, port)
	if !f.six {
		sumHeader(ip[:20])
	}
	return f.b
}

// table returns the table's state once it is consistent, which it is not for a moment while flows come
// and go.
func (o *opened) table(t *testing.T) (s TableStatus) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		status, err := o.api.Status(t.Context())
		if err != nil {
			return err
		}
		s = status.Table
		listed := int64(0)
		if err := o.ageing.ledger.each(func(*flowtable.Flow) bool { listed++; return true }); err != nil {
			return err
		}
		if held := int64(s.Created - s.Evicted - s.Aged); held != s.Flows || held != listed {
			return fmt.Errorf("created less evicted and aged is %d, the table counts %d and lists %d: %+v", held, s.Flows, listed, s)
		}
		return nil
	})
	return s
}

// established returns the flows of that state by their opening packets.
func (o *opened) established(t *testing.T) map[flowtable.Tuple]flowtable.Flow {
	t.Helper()
	found := map[flowtable.Tuple]flowtable.Flow{}
	err := o.ageing.ledger.each(func(f *flowtable.Flow) bool {
		if f.State == flowEstablished {
			found[f.Tuple] = *f
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A flood of SYNs, each of its own connection, costs no established connection its entry, and every
// single one is accounted for.
func TestLabSYNFlood(t *testing.T) {
	const established = 1000
	syns, flows := sized(200_000, 2_000_000), sized(10_000, 100_000)
	o := openIn(t, "t-lab-sf", fmt.Sprintf("{max: %d, timeouts: {tcp_syn_sent: 4s}}", flows))
	conns := o.dial(t, established)
	talk(t, conns)
	before, start := o.established(t), o.table(t)
	if len(before) != established || start.Flows != established {
		t.Fatalf("%d flows are established of %d: %+v", len(before), established, start)
	}

	// They go on talking while the flood runs.
	var rounds atomic.Int64
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := exchange(conns); err != nil {
				stopped <- err
				return
			}
			rounds.Add(1)
		}
	}()
	var verdicts [8]atomic.Int64
	begin := time.Now()
	var wg sync.WaitGroup
	for cpu := range 2 {
		wg.Go(func() {
			w := way{srcMAC: must(o.client.MAC("c0")), dstMAC: must(o.gw.MAC("lan")), src: client4, dst: server4}
			w6 := w
			w6.src, w6.dst = client6, server6
			syn := []template{{b: w.tcp(t, 1, 7, "S", 1, 0, nil)}, {b: w6.tcp(t, 1, 7, "S", 1, 0, nil), six: true}}
			err := o.onCPU(cpu, func() error {
				for i := cpu; i < syns; i += 2 {
					v, err := o.arrive(o.lan, syn[i/2%2].client(i, false))
					if err != nil {
						return err
					}
					verdicts[v&7].Add(1)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	full := must(o.api.Status(t.Context())).Table
	close(stop)
	if err := <-stopped; err != nil {
		t.Errorf("an established connection broke in the flood: %v", err)
	}
	end := o.table(t)
	talk(t, conns)

	created, refused := end.Created-start.Created, end.Refused-start.Refused
	t.Logf("%d SYNs in %s against %d established flows, which made %d rounds meanwhile: %d created, %d refused, %d evicted, %d aged, %d beside the groups; the table held %d of %d flows, %d of %d half-open",
		syns, took.Round(time.Millisecond), established, rounds.Load(), created, refused, end.Evicted-start.Evicted, end.Aged-start.Aged,
		end.Overflowed, full.Flows, full.FlowsMax, full.HalfOpen, full.HalfOpenMax)
	if created+refused != uint64(syns) {
		t.Errorf("created and refused add up to %d of %d", created+refused, syns)
	}
	// The other CPU may take the place of a new flow before its first packet has left.
	gone := must(o.plane.Reasons())[bpf.XDPReasonREASON_FLOW_GONE].Packets
	if sent, dropped := uint64(verdicts[xdpRedirect].Load()), uint64(verdicts[xdpDrop].Load()); sent != created-gone || dropped != refused+gone || gone > uint64(syns/100) {
		t.Errorf("%d SYNs were redirected and %d dropped, %d created, %d refused and %d gone at once", sent, dropped, created, refused, gone)
	}
	if created < uint64(flows/4) || end.Refused == 0 || end.Evicted == 0 {
		t.Errorf("the flood did not fill the table: %+v", end)
	}
	if full.Flows > full.FlowsMax || full.HalfOpen > full.HalfOpenMax {
		t.Errorf("the table is fuller than it may be: %+v", full)
	}
	after := o.established(t)
	for tuple, f := range before {
		g, ok := after[tuple]
		if !ok || g.ID != f.ID || g.Created != f.Created || g.Packets[0] <= f.Packets[0] || g.Packets[1] <= f.Packets[1] {
			t.Errorf("flow %+v became %+v (there: %t)", f, g, ok)
		}
	}
	// In the end they alone are left.
	testenv.Eventually(t, 30*time.Second, func() error {
		if s := must(o.api.Status(t.Context())).Table; s.Flows != established {
			return fmt.Errorf("%d flows are left", s.Flows)
		}
		return nil
	})
	if last := o.table(t); last.HalfOpen != 0 {
		t.Errorf("no flow is half-open: %+v", last)
	}
	talk(t, conns)
}

// dial opens real connections to an echo server, half of them over IPv6.
func (o *opened) dial(t *testing.T, count int) (conns []net.Conn) {
	t.Helper()
	for i, a := range []netip.Addr{server4, server6} {
		echo, err := o.server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { echo.Close() })
		err = o.client.Do(func() error {
			for range (count + i) / 2 {
				c, err := net.DialTimeout("tcp", echo.Addr().String(), 10*time.Second)
				if err != nil {
					return fmt.Errorf("connection %d: %w", len(conns), err)
				}
				t.Cleanup(func() { c.Close() })
				conns = append(conns, c)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return conns
}

// exchange sends something by every connection and reads it back.
func exchange(conns []net.Conn) error {
	for i, c := range conns {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		want := uint64(i)
		if err := binary.Write(c, binary.BigEndian, want); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		var b [8]byte
		if _, err := io.ReadFull(c, b[:]); err != nil || binary.BigEndian.Uint64(b[:]) != want {
			return fmt.Errorf("connection %d: %x came back (%w)", i, b, err)
		}
	}
	return nil
}

func talk(t *testing.T, conns []net.Conn) {
	t.Helper()
	if err := exchange(conns); err != nil {
		t.Error(err)
	}
}

// Two CPUs that create the same connections from both ends at once make one entry of each.
func TestLabBothEnds(t *testing.T) {
	count := sized(100_000, 1_000_000)
	o := openIn(t, "t-lab-be", fmt.Sprintf("{max: %d, half_open_share: 1}", sized(1<<17, 1<<20)))
	// Their hosts are behind the client.
	ip(t, "-n "+o.gw.Name()+" route add 10.128.0.0/9 via 10.10.1.2")
	ip(t, "-n "+o.gw.Name()+" -6 route add fd20::/32 via fd10:1::2")
	start := o.table(t)

	out := way{srcMAC: must(o.client.MAC("c0")), dstMAC: must(o.gw.MAC("lan")), src: netip.MustParseAddr("10.128.0.0"), dst: server4}
	in := way{srcMAC: must(o.server.MAC("s0")), dstMAC: must(o.gw.MAC("wan")), src: server4, dst: netip.MustParseAddr("10.128.0.0")}
	out6, in6 := out, in
	out6.src, out6.dst, in6.src, in6.dst = netip.MustParseAddr("fd20::"), server6, server6, netip.MustParseAddr("fd20::")
	ends := [2][]template{
		{{b: out.tcp(t, 1, 7, "S", 1, 0, nil)}, {b: out.udp(t, 1, 7, nil)}, {b: out6.tcp(t, 1, 7, "S", 1, 0, nil), six: true}, {b: out6.udp(t, 1, 7, nil), six: true}},
		{{b: in.tcp(t, 7, 1, "S", 1, 0, nil)}, {b: in.udp(t, 7, 1, nil)}, {b: in6.tcp(t, 7, 1, "S", 1, 0, nil), six: true}, {b: in6.udp(t, 7, 1, nil), six: true}},
	}
	var at [2]atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for cpu := range 2 {
		port := [2]uint32{o.lan, o.wan}[cpu]
		wg.Go(func() {
			err := o.onCPU(cpu, func() error {
				for i := range count {
					// Step by step with the other end, unless that has no CPU just now.
					at[cpu].Store(int64(i))
					for spin := 0; at[1-cpu].Load() < int64(i) && spin < 10_000; spin++ {
					}
					v, err := o.arrive(port, ends[cpu][i%4].client(i, cpu == 1))
					if err != nil {
						return err
					}
					if v != xdpRedirect {
						return fmt.Errorf("packet %d of end %d: verdict %d", i, cpu, v)
					}
				}
				at[cpu].Store(int64(count))
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)

	end := o.table(t)
	if end.Created-start.Created != uint64(count) || end.Refused+end.Evicted+end.Aged != 0 || end.Flows != int64(count) {
		t.Errorf("%d connections made %+v", count, end)
	}
	type pair struct {
		proto  uint8
		lo, hi netip.AddrPort
	}
	entries := make(map[pair]int, count)
	byClient, wrong := 0, 0
	err := o.ageing.ledger.each(func(f *flowtable.Flow) bool {
		a := netip.AddrPortFrom(f.Tuple.Source(), f.Tuple.SrcPort)
		b := netip.AddrPortFrom(f.Tuple.Destination(), f.Tuple.DstPort)
		if b.Port() == 7 {
			byClient++
		} else {
			a, b = b, a
		}
		entries[pair{proto: f.Tuple.Proto, lo: a, hi: b}]++
		want := flowSynReceived
		if f.Tuple.Proto == unix.IPPROTO_UDP {
			want = flowReplied
		}
		if f.State != want || f.Packets != [2]uint64{1, 1} {
			if wrong++; wrong <= 5 {
				t.Errorf("%+v is not in state %v with a packet from each end", *f, want)
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	double := 0
	for _, n := range entries {
		if n > 1 {
			double++
		}
	}
	if double > 0 || len(entries) != count || wrong > 0 {
		t.Errorf("%d connections have %d entries, %d more than one, %d are wrong", count, len(entries), double, wrong)
	}
	for i, d := range must(o.plane.Reasons()) {
		if d.Packets > 0 && bpf.XDPReason(i) != bpf.XDPReasonREASON_ICMP_TYPE {
			t.Errorf("%d packets were dropped: %s", d.Packets, bpf.XDPReason(i))
		}
	}
	t.Logf("%d connections from both ends in %s: %d entries, %d opened by the client's packet, %d by the server's",
		count, took.Round(time.Millisecond), len(entries), byClient, count-byClient)
}
